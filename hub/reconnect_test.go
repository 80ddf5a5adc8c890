package hub

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/centrifugal/protocol"
	"github.com/gobwas/ws"

	"hub/hub/wire"
)

// attentive is a client that reads all the time and answers pings.
type attentive struct {
	*tester
	client string               // its connection's id
	got    chan *protocol.Reply // all but pings
}

func (c *clockwork) attentive(enc wire.Encoding, user string) *attentive {
	c.t.Helper()
	ws, _ := c.open(enc)
	a := &attentive{tester: ws, got: make(chan *protocol.Reply, 10_000)}
	a.client = ws.ok(connectWith(token(c.t, user))).Connect.Client
	go func() {
		defer close(a.got)
		for {
			r, err := ws.read()
			if err != nil {
				return
			}
			if isPing(r) {
				a.pong()
				continue
			}
			a.got <- r
		}
	}()
	return a
}

func (a *attentive) pong() {
	if a.enc == wire.Protobuf {
		_ = a.write(rawFrame(true, ws.OpBinary, []byte{0}))
		return
	}
	_ = a.write(rawFrame(true, ws.OpText, []byte(`{}`)))
}

// do sends a command and returns its reply; seen gets what comes before.
func (a *attentive) do(cmd *protocol.Command, seen func(*protocol.Reply)) *protocol.Reply {
	a.t.Helper()
	if err := a.send(cmd); err != nil {
		a.t.Fatal(err)
	}
	for r := range a.got {
		if r.Id != cmd.Id {
			seen(r)
			continue
		}
		if r.Error != nil {
			a.t.Fatalf("%v: error %d", cmd, r.Error.Code)
		}
		return r
	}
	a.t.Fatalf("%v: the connection has ended", cmd)
	return nil
}

// A client's network changes: it comes back and resumes, and only then the server
// finds out that the old connection is dead. What ends is the old one alone:
// others see exactly its leave, in time, and the new one misses nothing.
func TestOldConnectionEndsLate(t *testing.T) {
	for _, loops := range []int{1, 2} {
		for _, later := range []bool{false, true} { // a third one comes before the old one ends
			t.Run(fmt.Sprintf("loops=%d/third=%v", loops, later), func(t *testing.T) {
				withClock(t, func(o *Options) {
					o.Server.Loops = loops
					ns := openNamespace()
					ns.JoinLeave = true
					o.Namespaces["crowd"] = ns
				}, func(s *clockwork) { oldConnectionEndsLate(s, later) })
			})
		}
	}
}

func oldConnectionEndsLate(s *clockwork, third bool) {
	t := s.t
	const room = "crowd:a"
	var joins, leaves []string
	watcher := s.attentive(wire.Protobuf, "watcher")
	watch := func(r *protocol.Reply) {
		if r.Push == nil {
			return
		}
		if j := r.Push.Join; j != nil && j.Info.Client != watcher.client {
			joins = append(joins, j.Info.Client)
		} else if l := r.Push.Leave; l != nil {
			leaves = append(leaves, l.Info.Client)
		}
	}
	crowd := subscribeTo(room)
	crowd.Subscribe.JoinLeave = true
	watcher.do(crowd, watch)

	old, peer := s.open(wire.JSON)
	oldID := old.ok(connectWith(token(t, "u"))).Connect.Client
	epoch := old.ok(subscribeTo(room)).Subscribe.Epoch
	for offset := uint64(1); offset <= 3; offset++ {
		watcher.do(publishTo(room, `1`), watch)
		if _, p := old.publication(); p.Offset != offset {
			t.Fatalf("offset %d, want %d", p.Offset, offset)
		}
	}
	peer.Pause()
	peer.Die()
	died := time.Now()
	watcher.do(publishTo(room, `1`), watch)
	watcher.do(publishTo(room, `1`), watch)

	// It resumes where it was.
	next := uint64(4)
	fresh := s.attentive(wire.JSON, "u")
	follow := func(r *protocol.Reply) {
		if r.Push == nil || r.Push.Pub == nil {
			return
		}
		if r.Push.Pub.Offset != next {
			t.Errorf("offset %d, want %d", r.Push.Pub.Offset, next)
		}
		next++
	}
	resume := func() {
		cmd := subscribeTo(room)
		cmd.Subscribe.Recover, cmd.Subscribe.Offset, cmd.Subscribe.Epoch = true, next-1, epoch
		r := fresh.do(cmd, follow).Subscribe
		if !r.Recovered {
			t.Fatalf("subscribe reply %v, want recovered", r)
		}
		for _, p := range r.Publications {
			follow(&protocol.Reply{Push: &protocol.Push{Pub: p}})
		}
	}
	resume()
	conns := 3
	var newest *attentive
	if third {
		newest = s.attentive(wire.JSON, "u")
		conns++
	}
	o := &s.opts.Server
	for until := died.Add(o.PingInterval + o.PongTimeout + 2*wheelTick + 2*signalInterval); time.Now().Before(until); time.Sleep(500 * time.Millisecond) {
		fresh.do(publishTo(room, `1`), follow)
	}
	if !peer.Hung() {
		t.Fatal("the old connection has not ended")
	}
	if n, _ := s.slots.Counts(); n != conns-1 {
		t.Errorf("%d slots are taken, want %d", n, conns-1)
	}

	// Nothing of the new one has gone with it.
	presence := fresh.do(&protocol.Command{Presence: &protocol.PresenceRequest{Channel: room}}, follow).Presence.Presence
	if len(presence) != 2 || presence[fresh.client] == nil || presence[watcher.client] == nil {
		t.Errorf("presence %v, want %s and the watcher's", presence, fresh.client)
	}
	if users := s.connectionsOf("u"); len(users) != conns-2 || slices.Contains(users, oldID) || !slices.Contains(users, fresh.client) {
		t.Errorf("connections of the user: %v, want %d with %s and without %s", users, conns-2, fresh.client, oldID)
	}
	if third {
		newest.conn.Close()
		synctest.Wait()
		if users := s.connectionsOf("u"); !slices.Equal(users, []string{fresh.client}) {
			t.Errorf("connections of the user: %v, want %s", users, fresh.client)
		}
	}
	fresh.do(unsubscribeFrom(room), follow)
	watcher.do(publishTo(room, `1`), watch)
	resume()
	fresh.do(publishTo(room, `1`), follow)
	synctest.Wait()
	for len(fresh.got) > 0 {
		follow(<-fresh.got)
	}
	if top := watcher.do(historyOf(room, 0), watch).History.Offset; next != top+1 {
		t.Errorf("the new one has received up to %d of %d", next-1, top)
	}
	time.Sleep(2 * signalInterval)
	watcher.do(historyOf(room, 0), watch)
	if want := fmt.Sprint([]string{oldID, fresh.client, fresh.client}); fmt.Sprint(joins) != want {
		t.Errorf("joins %v, want %v", joins, want)
	}
	if want := fmt.Sprint([]string{oldID, fresh.client}); fmt.Sprint(leaves) != want {
		t.Errorf("leaves %v, want %v: the old one's, and the unsubscribe", leaves, want)
	}
}

// connectionsOf returns the ids of a user's connections.
func (s *testServer) connectionsOf(user string) (all []string) {
	var mu sync.Mutex
	s.databases["default"].eachConn(apiUser{User: user}, func(_ *loop, c *conn) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, c.session.client)
	})
	return all
}
