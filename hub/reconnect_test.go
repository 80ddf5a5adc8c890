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

// crowdRoom is the room of the test.
const crowdRoom = "crowd:a"

// watcher notes who else comes and goes.
type watcher struct {
	*attentive
	joins, leaves []string
}

func (w *watcher) act(cmd *protocol.Command) *protocol.Reply {
	w.t.Helper()
	return w.do(cmd, func(r *protocol.Reply) {
		if r.Push == nil {
			return
		}
		if j := r.Push.Join; j != nil && j.Info.Client != w.client {
			w.joins = append(w.joins, j.Info.Client)
		} else if l := r.Push.Leave; l != nil {
			w.leaves = append(w.leaves, l.Info.Client)
		}
	})
}

// resumer continues where it was and checks that it misses nothing.
type resumer struct {
	*attentive
	next  uint64 // the offset that is due
	epoch string
}

func (c *resumer) seen(r *protocol.Reply) {
	if r.Push == nil || r.Push.Pub == nil {
		return
	}
	if r.Push.Pub.Offset != c.next {
		c.t.Errorf("offset %d, want %d", r.Push.Pub.Offset, c.next)
	}
	c.next++
}

func (c *resumer) act(cmd *protocol.Command) *protocol.Reply {
	c.t.Helper()
	return c.do(cmd, c.seen)
}

func (c *resumer) resume() {
	c.t.Helper()
	cmd := subscribeTo(crowdRoom)
	cmd.Subscribe.Recover, cmd.Subscribe.Offset, cmd.Subscribe.Epoch = true, c.next-1, c.epoch
	r := c.act(cmd).Subscribe
	if !r.Recovered {
		c.t.Fatalf("subscribe reply %v, want recovered", r)
	}
	for _, p := range r.Publications {
		c.seen(&protocol.Reply{Push: &protocol.Push{Pub: p}})
	}
}

func oldConnectionEndsLate(s *clockwork, third bool) {
	t := s.t
	w := &watcher{attentive: s.attentive(wire.Protobuf, "watcher")}
	crowd := subscribeTo(crowdRoom)
	crowd.Subscribe.JoinLeave = true
	w.act(crowd)

	old, peer := s.open(wire.JSON)
	oldID := old.ok(connectWith(token(t, "u"))).Connect.Client
	epoch := old.ok(subscribeTo(crowdRoom)).Subscribe.Epoch
	for offset := uint64(1); offset <= 3; offset++ {
		w.act(publishTo(crowdRoom, `1`))
		if _, p := old.publication(); p.Offset != offset {
			t.Fatalf("offset %d, want %d", p.Offset, offset)
		}
	}
	peer.Pause()
	peer.Die()
	died := time.Now()
	w.act(publishTo(crowdRoom, `1`))
	w.act(publishTo(crowdRoom, `1`))

	fresh := &resumer{attentive: s.attentive(wire.JSON, "u"), next: 4, epoch: epoch}
	fresh.resume()
	others := []string{fresh.client}
	var newest *attentive
	if third {
		newest = s.attentive(wire.JSON, "u")
		others = append(others, newest.client)
	}
	o := &s.opts.Server
	for end := died.Add(o.PingInterval + o.PongTimeout + 2*wheelTick + 2*signalInterval); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		fresh.act(publishTo(crowdRoom, `1`))
	}
	if !peer.Hung() {
		t.Fatal("the old connection has not ended")
	}
	if n, _ := s.slots.Counts(); n != 1+len(others) {
		t.Errorf("%d slots are taken, want %d", n, 1+len(others))
	}
	s.wantConnections("u", others)
	if third {
		newest.conn.Close()
		synctest.Wait()
		s.wantConnections("u", others[:1])
	}

	// Nothing of the new one has gone with it.
	presence := fresh.act(&protocol.Command{Presence: &protocol.PresenceRequest{Channel: crowdRoom}}).Presence.Presence
	if len(presence) != 2 || presence[fresh.client] == nil || presence[w.client] == nil {
		t.Errorf("presence %v, want %s and the watcher's", presence, fresh.client)
	}
	fresh.act(unsubscribeFrom(crowdRoom))
	w.act(publishTo(crowdRoom, `1`))
	fresh.resume()
	fresh.act(publishTo(crowdRoom, `1`))
	synctest.Wait()
	for len(fresh.got) > 0 {
		fresh.seen(<-fresh.got)
	}
	if top := w.act(historyOf(crowdRoom, 0)).History.Offset; fresh.next != top+1 {
		t.Errorf("the new one has received up to %d of %d", fresh.next-1, top)
	}
	time.Sleep(2 * signalInterval)
	w.act(historyOf(crowdRoom, 0))
	if want := []string{oldID, fresh.client, fresh.client}; !slices.Equal(w.joins, want) {
		t.Errorf("joins %v, want %v", w.joins, want)
	}
	if want := []string{oldID, fresh.client}; !slices.Equal(w.leaves, want) {
		t.Errorf("leaves %v, want %v: the old one's, and the unsubscribe", w.leaves, want)
	}
}

// wantConnections checks which connections a user has.
func (s *clockwork) wantConnections(user string, want []string) {
	s.t.Helper()
	got := s.connectionsOf(user)
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
		s.t.Errorf("connections of %s: %v, want %v", user, got, want)
	}
}

// connectionsOf returns the ids of a user's connections.
func (s *testServer) connectionsOf(user string) (all []string) {
	var mu sync.Mutex
	s.databases.get("default").eachConn(apiUser{User: user}, func(_ *loop, c *conn) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, c.session.client)
	})
	return all
}
