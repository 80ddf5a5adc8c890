package poll

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// portableSocket is a portable socket in p with bytes to read for ever.
func portableSocket(t *testing.T, p Poller, owner any) (*duplex, net.Conn) {
	t.Helper()
	client, server := net.Pipe()
	h, err := Portable().Take(server, []byte("unread"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Attach(h, owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); client.Close() })
	return s.(*duplex), client
}

// Portable sockets that are always ready do not starve raw ones.
func TestMixedFairness(t *testing.T) {
	p, _, client := attached(t)
	for i := range 8 {
		portableSocket(t, p, i)
	}
	client.Write([]byte("x"))
	events := make([]Event, 4)
	for range 1000 {
		n, err := p.Wait(events, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range events[:n] {
			if ev.Owner == "owner" {
				return
			}
		}
	}
	t.Error("the raw socket never had a turn")
}

// A portable socket's signal that leads to no event does not end a wait without
// timeout.
func TestWaitOnlyForWake(t *testing.T) {
	p := newTestPoller(t)
	var woken atomic.Bool
	go func() {
		for range 10 {
			p.signal(signalled)
			for p.wake.Load() != 0 { // until Wait has seen it
				time.Sleep(time.Microsecond)
			}
		}
		woken.Store(true)
		p.Wake()
	}()
	if n, err := p.Wait(make([]Event, 4), -1); n != 0 || err != nil || !woken.Load() {
		t.Errorf("wait: %d, %v, woken %v", n, err, woken.Load())
	}
}

// A socket that leaves its poller and comes back is reported once.
func TestReattach(t *testing.T) {
	for _, b := range []Backend{Epoll(), Portable()} {
		p, err := b.NewPoller()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		s, _ := portableSocket(t, p, "first")
		h, err := p.Detach(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Attach(h, "second"); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Attach(h, "third"); err == nil {
			t.Error("attached twice")
		}
		events := make([]Event, 8)
		n, err := p.Wait(events, time.Second)
		if n != 1 || err != nil || events[0].Owner != "second" {
			t.Errorf("%s: %d events, %v, %v", b.Name(), n, err, events[:n])
		}
	}
}

// A reset is told once though nothing is wanted, and again when reading is.
func TestHangUpEvent(t *testing.T) {
	p, s, client := attached(t)
	s.Interest(false, false)
	client.SetLinger(0)
	client.Close()
	events := make([]Event, 4)
	if n, err := p.Wait(events, 5*time.Second); n != 1 || err != nil || !events[0].Readable {
		t.Errorf("after the reset: %d events, %v", n, err)
	}
	if n, err := p.Wait(events, 0); n != 0 || err != nil {
		t.Errorf("the next wait: %d events, %v", n, err)
	}
	s.Interest(true, false)
	if n, err := p.Wait(events, 5*time.Second); n != 1 || err != nil || !events[0].Readable {
		t.Errorf("wanted again: %d events, %v", n, err)
	}
}

// An acceptor that was closed before it was detached leaves the next descriptor
// with its number alone.
func TestDetachClosedAcceptor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a, err := Epoll().Listen(l)
	if err != nil {
		t.Fatal(err)
	}
	p, raw, client := attached(t)
	if err := p.AttachAcceptor(a, a); err != nil {
		t.Fatal(err)
	}
	number := a.(*epollAcceptor).fd
	a.Close()
	h, err := p.Detach(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup3(h.(*descriptor).fd, number, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	h.Close()
	s, err := p.Attach(&descriptor{fd: number}, "reused")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := p.DetachAcceptor(a); err != nil {
		t.Fatal(err)
	}
	client.Write([]byte("x"))
	events := make([]Event, 4)
	if n, err := p.Wait(events, 5*time.Second); n != 1 || err != nil || events[0].Owner != "reused" {
		t.Errorf("%d events, %v: the socket left with the acceptor", n, err)
	}
}
