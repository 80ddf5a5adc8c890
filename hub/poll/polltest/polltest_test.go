package polltest_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hub/hub/poll"
	"hub/hub/poll/polltest"
)

// echo is a loop that echoes what its sockets send until stop is closed and a
// wake makes it look.
func echo(t *testing.T, p poll.Poller, stop <-chan struct{}) {
	type conn struct {
		s   poll.Socket
		out []byte
	}
	conns := map[*conn]bool{}
	serve := func(c *conn, ev poll.Event) bool {
		var buf [512]byte
		if ev.Readable && len(c.out) < 4096 {
			n, err := c.s.Read(buf[:])
			c.out = append(c.out, buf[:n]...)
			if err != nil && !errors.Is(err, poll.ErrAgain) {
				return false
			}
		}
		n, err := c.s.Write(c.out)
		if n < len(c.out) && err == nil {
			t.Errorf("short write of %d without an error", n)
		}
		c.out = c.out[n:]
		c.s.Interest(len(c.out) < 4096, len(c.out) > 0)
		return err == nil || errors.Is(err, poll.ErrAgain)
	}
	events := make([]poll.Event, 4)
	for {
		n, err := p.Wait(events, -1)
		if err != nil {
			t.Errorf("wait: %v", err)
			return
		}
		for _, ev := range events[:n] {
			if a, ok := ev.Owner.(poll.Acceptor); ok {
				h, err := a.Accept()
				if err != nil {
					t.Errorf("accept: %v", err)
					continue
				}
				c := &conn{}
				if c.s, err = p.Attach(h, c); err != nil {
					t.Errorf("attach: %v", err)
				}
				conns[c] = true
				continue
			}
			if c := ev.Owner.(*conn); conns[c] && !serve(c, ev) {
				c.s.Close()
				delete(conns, c)
			}
		}
		select {
		case <-stop:
			for c := range conns {
				c.s.Close()
			}
			return
		default:
		}
	}
}

func TestFaults(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			b := polltest.New(seed, polltest.Faults{
				Window: 1 + int(seed*97%2000), ShortWrite: 0.3, ShortRead: 0.3, Again: 0.2,
			})
			p, _ := b.NewPoller()
			l := b.NewListener()
			a, err := b.Listen(l)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.AttachAcceptor(a, a); err != nil {
				t.Fatal(err)
			}
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() { echo(t, p, stop); close(stopped) }()
			for i := range 10 {
				peer, err := l.Dial()
				if err != nil {
					t.Fatal(err)
				}
				want := bytes.Repeat([]byte{byte(i), byte(i + 1)}, 5000)
				go peer.Write(want)
				if i%2 == 0 {
					peer.Pause()
					time.Sleep(time.Minute)
					peer.Resume()
				}
				got := make([]byte, len(want))
				if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("seed %d: echo of %d bytes differs, %v", seed, len(got), err)
				}
				if i%3 == 0 {
					peer.Close()
				}
			}
			close(stop)
			p.Wake()
			<-stopped
			if err := p.DetachAcceptor(a); err != nil {
				t.Error(err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if n := b.Open(); n != 0 {
				t.Errorf("%d sockets left open", n)
			}
		})
	}
}

// The same seed and calls give the same faults.
func TestDeterministic(t *testing.T) {
	run := func() (trace []int) {
		b := polltest.New(7, polltest.Faults{ShortWrite: 0.5, Again: 0.3, Fail: 0.02})
		p, _ := b.NewPoller()
		_, h := b.Dial()
		s, err := p.Attach(h, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			n, err := s.Write(make([]byte, 100))
			trace = append(trace, n)
			if errors.Is(err, polltest.ErrInjected) {
				break
			}
		}
		s.Close()
		return trace
	}
	first, second := run(), run()
	if len(first) != len(second) {
		t.Fatalf("%d and %d calls until the failure", len(first), len(second))
	}
	for i := range first {
		if first[i] != second[i] {
			t.Fatalf("call %d wrote %d and %d bytes", i, first[i], second[i])
		}
	}
}

func TestPeer(t *testing.T) {
	b := polltest.New(1, polltest.Faults{Window: 10})
	p, _ := b.NewPoller()
	peer, h := b.Dial()
	s, err := p.Attach(h, "me")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Write(make([]byte, 25)); n != 10 || !errors.Is(err, poll.ErrAgain) {
		t.Errorf("write beyond the window: %d, %v", n, err)
	}
	if got := len(peer.Unread()); got != 10 {
		t.Errorf("%d bytes unread, want 10", got)
	}
	peer.Die()
	if s.Stalled(time.Hour) {
		t.Error("a dead peer counts as alive")
	}
	broken := errors.New("broken")
	peer.Fail(broken)
	events := make([]poll.Event, 1)
	if n, err := p.Wait(events, -1); n != 1 || err != nil || events[0].Owner != "me" || !events[0].Readable {
		t.Errorf("wait after a failure: %d, %v, %+v", n, err, events[0])
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, broken) {
		t.Errorf("read %v, want the failure", err)
	}
	if p.Close() == nil {
		t.Error("closed a poller with a socket")
	}
	s.Close()
	if !peer.Hung() || b.Open() != 0 {
		t.Errorf("hung %v, open %d after close", peer.Hung(), b.Open())
	}
}

// A handle becomes a connection that net/http serves, and comes back.
func TestConn(t *testing.T) {
	b := polltest.New(1, polltest.Faults{})
	peer, h := b.Dial()
	io.WriteString(peer, "/ HTTP/1.1\r\nHost: x\r\n\r\n")
	c, err := h.Conn([]byte("GET "))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil || req.Method != "GET" || req.Host != "x" {
		t.Fatalf("request %v, %v", req, err)
	}
	if h, err = b.Take(c, []byte("rest")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("read from a connection that was taken over")
	}
	if c, err = h.Conn(nil); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	got, err := io.ReadAll(c)
	if string(got) != "rest" || err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("read %q, %v, want the rest and a timeout", got, err)
	}
	c.Close()
}
