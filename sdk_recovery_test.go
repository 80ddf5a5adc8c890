package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

// cutter is a TCP proxy whose connections can be cut.
type cutter struct {
	listener net.Listener
	backend  string
	work     sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{} // guarded by mu; nil when closed
}

func newCutter(t *testing.T, backend string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &cutter{listener: l, backend: backend, conns: make(map[*net.TCPConn]struct{})}
	p.work.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.mu.Lock()
		p.conns = nil
		p.mu.Unlock()
		p.work.Wait()
	})
	return p
}

func (p *cutter) addr() string { return p.listener.Addr().String() }

func (p *cutter) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.backend)
		if err != nil { // the server is down
			_ = client.Close()
			continue
		}
		a, b := client.(*net.TCPConn), server.(*net.TCPConn)
		if !p.keep(a, b) {
			return
		}
		p.work.Go(func() { p.copy(a, b) })
		p.work.Go(func() { p.copy(b, a) })
	}
}

// keep makes connections known to cut; false when the proxy is closed.
func (p *cutter) keep(conns ...*net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.conns == nil {
			_ = c.Close()
			continue
		}
		p.conns[c] = struct{}{}
	}
	return p.conns != nil
}

func (p *cutter) copy(to, from *net.TCPConn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
	_ = from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, from)
}

// cut resets all connections, in the middle of whatever they carry.
func (p *cutter) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// receipt is a publication as a follower got it.
type receipt struct {
	Offset uint64          `json:"offset"`
	Data   json.RawMessage `json:"data"`
}

// mark is the data of the publications of these tests.
type mark struct {
	By string `json:"by"`
	N  int    `json:"n"`
}

// follower follows a room through interruptions.
type follower struct {
	name string

	mu        sync.Mutex
	got       []receipt     // guarded by mu
	recovered int           // successful recoveries; guarded by mu
	wrong     []string      // what must not have happened; guarded by mu
	acked     map[mark]bool // its own publications; guarded by mu
	stopped   chan struct{} // closed when its own publishing has ended
}

func newFollower(name string) *follower {
	return &follower{name: name, acked: make(map[mark]bool), stopped: make(chan struct{})}
}

func (f *follower) received(r receipt) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, r)
}

func (f *follower) subscribed(wasRecovering, recovered bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case recovered:
		f.recovered++
	case wasRecovering:
		f.wrong = append(f.wrong, "subscribed without recovery")
	}
}

func (f *follower) failed(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

func (f *follower) ack(m mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acked[m] = true
}

// progress is how many publications it has received and had acknowledged.
func (f *follower) progress() (received, acked int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got), len(f.acked)
}

// followGo makes a follower with centrifuge-go, which publishes to the room too
// until ctx ends.
func followGo(ctx context.Context, t *testing.T, s *sdkServer, protocol, addr, room string) *follower {
	f := newFollower("go-" + protocol)
	g := newGoClient(t, protocol, sdkURL(addr, ""), centrifuge.Config{Token: s.token(f.name)})
	g.OnDisconnected(func(e centrifuge.DisconnectedEvent) {
		if ctx.Err() == nil {
			f.failed("disconnected: %d %s", e.Code, e.Reason)
		}
	})
	g.OnConnected(func(centrifuge.ConnectedEvent) {})
	g.OnConnecting(func(centrifuge.ConnectingEvent) {})
	g.OnError(func(centrifuge.ErrorEvent) {})
	sub, err := g.NewSubscription(room, centrifuge.SubscriptionConfig{
		Recoverable: true, MinResubscribeDelay: 20 * time.Millisecond, MaxResubscribeDelay: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	sub.OnPublication(func(e centrifuge.PublicationEvent) { f.received(receipt{e.Offset, e.Data}) })
	sub.OnSubscribed(func(e centrifuge.SubscribedEvent) { f.subscribed(e.WasRecovering, e.Recovered) })
	sub.OnUnsubscribed(func(e centrifuge.UnsubscribedEvent) {
		if ctx.Err() == nil {
			f.failed("unsubscribed: %d %s", e.Code, e.Reason)
		}
	})
	if err := sub.Subscribe(); err != nil {
		t.Fatal(err)
	}
	if err := g.Connect(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(f.stopped)
		f.publish(ctx, func(data []byte) error {
			limit, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, err := g.Publish(limit, room, data)
			return err
		})
	}()
	return f
}

// publish publishes one after the other until ctx ends. What is not
// acknowledged may have been stored or not; it is not tried again.
func (f *follower) publish(ctx context.Context, publish func(data []byte) error) {
	pause := time.NewTicker(10 * time.Millisecond) // a client under the race detector keeps up
	defer pause.Stop()
	for n := 0; ; n++ {
		m := mark{f.name, n}
		data, _ := json.Marshal(m)
		if publish(data) == nil {
			f.ack(m)
		}
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// followJS is followGo with centrifuge-js.
func followJS(ctx context.Context, t *testing.T, s *sdkServer, protocol, addr, room string) *follower {
	f := newFollower("js-" + protocol)
	p := startJS(t, addr, s.addr, protocol, "follow.cjs", room, f.name)
	context.AfterFunc(ctx, func() { _, _ = io.WriteString(p.stdin, "stop\n") })
	go func() {
		for raw := range p.lines {
			var line struct {
				receipt
				Acked, Stopped *int
				Subscribed     bool
				Recovered      *bool
				End            string
			}
			if err := json.Unmarshal(raw, &line); err != nil {
				f.failed("line %q", raw)
				continue
			}
			switch {
			case line.Acked != nil:
				f.ack(mark{f.name, *line.Acked})
			case line.Stopped != nil:
				close(f.stopped)
			case line.Subscribed:
				f.subscribed(line.Recovered != nil, line.Recovered != nil && *line.Recovered)
			case line.End != "":
				f.failed("%s", line.End)
			default:
				f.received(line.receipt)
			}
		}
	}()
	return f
}

// TestRecovery: publishers of every kind go on while connections are cut, the
// server is restarted and killed. Every acknowledged publication reaches every
// follower once and in order.
func TestRecovery(t *testing.T) { forBackends(t, recovery) }

func recovery(t *testing.T, backend string) {
	s := startSDKServer(t, backend)
	proxy := newCutter(t, s.addr)
	const room = "room:recovery"
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	var followers, publishers []*follower
	forEach := func(follow func(context.Context, *testing.T, *sdkServer, string, string, string) *follower) {
		for _, protocol := range []string{"json", "protobuf"} {
			followers = append(followers, follow(ctx, t, s, protocol, proxy.addr(), room))
		}
	}
	forEach(followGo)
	t.Run("with javascript", func(t *testing.T) { nodePackages(t) })
	if _, err := installedNodePackages(); err == nil {
		forEach(followJS)
	}
	publishers = append(publishers, followers...)
	for i := range 3 {
		f := newFollower(fmt.Sprintf("api-%d", i))
		publishers = append(publishers, f)
		go func() {
			defer close(f.stopped)
			f.publish(ctx, func(data []byte) error {
				_, err := s.publish("", room, json.RawMessage(data))
				return err
			})
		}()
	}

	// onward waits until everybody has received and published more.
	onward := func() {
		t.Helper()
		type counts struct{ received, acked int }
		before := make([]counts, len(publishers))
		for i, f := range publishers {
			before[i].received, before[i].acked = f.progress()
		}
		eventually(t, patience, func() string {
			for i, f := range publishers {
				received, acked := f.progress()
				if acked < before[i].acked+20 || i < len(followers) && received < before[i].received+50 {
					return fmt.Sprintf("%s received %d and had %d acknowledged, before %+v", f.name, received, acked, before[i])
				}
			}
			return ""
		})
	}
	onward()
	for range 3 {
		proxy.cut()
		onward()
	}
	for range 2 {
		s.stop()
		s.start()
		onward()
		s.kill()
		s.start()
		onward()
	}
	stop()
	for _, f := range publishers {
		receive(t, f.stopped, "end of "+f.name)
	}
	checkRecovery(t, s, room, followers, publishers)
	s.healthy()
}

// checkRecovery compares what followers have received with the room's history.
func checkRecovery(t *testing.T, s *sdkServer, room string, followers, publishers []*follower) {
	t.Helper()
	var history struct {
		Publications []receipt `json:"publications"`
		Offset       uint64    `json:"offset"`
	}
	if err := s.api("", "history", object{"channel": room, "limit": -1}, &history); err != nil {
		t.Fatal(err)
	}
	if n := uint64(len(history.Publications)); n != history.Offset {
		t.Fatalf("the history has %d publications up to offset %d", n, history.Offset)
	}
	stored := make(map[mark]int)
	last := make(map[string]int)
	for i, p := range history.Publications {
		var m mark
		if err := json.Unmarshal(p.Data, &m); err != nil || p.Offset != uint64(i+1) {
			t.Fatalf("history entry %d: offset %d, %s, %v", i, p.Offset, p.Data, err)
		}
		if stored[m]++; m.N < last[m.By] {
			t.Errorf("%s: %d is stored after %d", m.By, m.N, last[m.By])
		}
		last[m.By] = m.N
	}
	acked := 0
	for _, f := range publishers {
		f.mu.Lock()
		for m := range f.acked {
			acked++
			if stored[m] != 1 {
				t.Errorf("%s had %d acknowledged; it is stored %d times", f.name, m.N, stored[m])
			}
		}
		f.mu.Unlock()
	}
	for _, f := range followers {
		var got []receipt
		eventually(t, patience, func() string {
			f.mu.Lock()
			defer f.mu.Unlock()
			got = f.got
			if n := len(got); n == 0 || got[n-1].Offset < history.Offset {
				return fmt.Sprintf("%s has received %d publications, the last one is %d", f.name, n, history.Offset)
			}
			return ""
		})
		f.mu.Lock()
		for _, wrong := range f.wrong {
			t.Errorf("%s: %s", f.name, wrong)
		}
		if f.recovered < 7 {
			t.Errorf("%s has recovered %d times; it was interrupted 7 times", f.name, f.recovered)
		}
		f.mu.Unlock()
		// The first one received is wherever it subscribed.
		for i, r := range got {
			if want := got[0].Offset + uint64(i); r.Offset != want {
				t.Fatalf("%s: received %d, want %d", f.name, r.Offset, want)
			}
			if want := history.Publications[r.Offset-1].Data; string(r.Data) != string(want) {
				t.Fatalf("%s: received %s at %d, want %s", f.name, r.Data, r.Offset, want)
			}
		}
	}
	t.Logf("%d publications, %d acknowledged, %d followers", history.Offset, acked, len(followers))
}
