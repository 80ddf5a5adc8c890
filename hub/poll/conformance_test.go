package poll_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"hub/hub/poll"
)

func TestEcho(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		client, server := pair(t, b)
		s := l.attach(take(t, b, server, ""), echo)
		defer l.do(s.Close)
		if got, want := s.RemoteAddr().String(), client.LocalAddr().String(); got != want {
			t.Errorf("remote address %s, want %s", got, want)
		}
		for i := range 50 {
			want := fmt.Sprintf("message %d", i)
			io.WriteString(client, want)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(client, got); err != nil || string(got) != want {
				t.Fatalf("echo %q, %v, want %q", got, err, want)
			}
		}
	})
}

// What was read before the socket changed hands comes first, and at once.
func TestPrefix(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		client, server := pair(t, b)
		got := make(chan string, 16)
		var buf [3]byte // less than the prefix: the rest must be reported again
		s := l.attach(take(t, b, server, "pre-"), func(s poll.Socket, ev poll.Event) {
			if n, _ := s.Read(buf[:]); n > 0 {
				got <- string(buf[:n])
			}
		})
		defer l.do(s.Close)
		if first := receive(t, got) + receive(t, got); first != "pre-" {
			t.Errorf("read %q before the peer sent anything, want the prefix", first)
		}
		io.WriteString(client, "fix")
		if next := receive(t, got); next != "fix" {
			t.Errorf("read %q after the prefix", next)
		}
	})
}

// Data that arrives together with the end is read before the end.
func TestDataThenEnd(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		client, server := pair(t, b)
		want := strings.Repeat("0123456789abcdef", 20_000)
		var got bytes.Buffer
		ended := make(chan error, 1)
		var buf [4 << 10]byte
		l.attach(take(t, b, server, ""), func(s poll.Socket, ev poll.Event) {
			n, err := s.Read(buf[:])
			got.Write(buf[:n])
			if err != nil && !errors.Is(err, poll.ErrAgain) {
				s.Close()
				ended <- err
			}
		})
		io.WriteString(client, want)
		client.CloseWrite()
		if err := receive(t, ended); err != io.EOF {
			t.Errorf("ended with %v, want EOF", err)
		}
		if got.String() != want {
			t.Errorf("read %d bytes, want %d", got.Len(), len(want))
		}
	})
}

// A peer that reads late gets everything, in order, through short writes.
func TestShortWrites(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		client, server := pair(t, b)
		data := make([]byte, 8<<20)
		for i := range data {
			data[i] = byte(i * i >> 7)
		}
		want := sha256.Sum256(data)
		rest, again := data, make(chan struct{})
		write := func(s poll.Socket) {
			n, err := s.Write(rest)
			rest = rest[n:]
			switch {
			case errors.Is(err, poll.ErrAgain):
				s.Interest(true, true)
				if again != nil {
					close(again)
					again = nil
				}
			case err != nil || len(rest) > 0:
				t.Errorf("wrote %d with %d left: %v", n, len(rest), err)
				s.Close()
			default:
				s.Close() // what was written must arrive all the same
			}
		}
		met := again
		s := l.attach(take(t, b, server, ""), func(s poll.Socket, ev poll.Event) {
			if ev.Writable {
				write(s)
			}
		})
		l.do(func() { write(s) })
		receive(t, met)
		hash := sha256.New()
		if n, err := io.Copy(hash, client); err != nil || n != int64(len(data)) {
			t.Fatalf("received %d bytes, %v, want %d", n, err, len(data))
		}
		if !bytes.Equal(hash.Sum(nil), want[:]) {
			t.Error("bytes differ")
		}
	})
}

// Without interest nothing is reported, and what came meanwhile is reported after.
func TestInterest(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		client, server := pair(t, b)
		got := make(chan string, 16)
		calls := 0
		s := l.attach(take(t, b, server, ""), func(s poll.Socket, ev poll.Event) {
			calls++
			var buf [64]byte
			if n, _ := s.Read(buf[:]); n > 0 {
				got <- string(buf[:n])
			}
		})
		io.WriteString(client, "one")
		receive(t, got)
		var before int
		l.do(func() { s.Interest(false, false); before = calls })
		io.WriteString(client, "two")
		other, otherServer := pair(t, b)
		o := l.attach(take(t, b, otherServer, ""), echo)
		for range 20 { // the loop goes round while the data waits
			io.WriteString(other, "x")
			io.ReadFull(other, make([]byte, 1))
		}
		l.do(func() {
			if calls != before {
				t.Errorf("%d events without interest", calls-before)
			}
			s.Interest(true, false)
		})
		if g := receive(t, got); g != "two" {
			t.Errorf("read %q, want what came meanwhile", g)
		}
		l.do(func() { s.Close(); o.Close() })
	})
}

// A connection reset while nothing is of interest does not spin the loop.
func TestResetWithoutInterest(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		client, server := pair(t, b)
		calls := 0
		s := l.attach(take(t, b, server, ""), func(poll.Socket, poll.Event) { calls++ })
		var before int
		l.do(func() { s.Interest(false, false); before = calls })
		client.reset()
		for range 100 {
			l.do(func() {})
		}
		l.do(func() {
			if calls > before+1 {
				t.Errorf("%d events of a socket without interest, want at most one", calls-before)
			}
			s.Close()
		})
	})
}

func TestClosed(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		client, server := pair(t, b)
		s := l.attach(take(t, b, server, ""), echo)
		l.do(func() {
			s.Close()
			s.Close()
			s.Interest(true, true)
			if _, err := s.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read after close: %v", err)
			}
			if _, err := s.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("write after close: %v", err)
			}
			if s.Stalled(time.Hour) {
				t.Error("a closed socket counts as alive")
			}
			if _, err := l.poller.Detach(s); err == nil {
				t.Error("detached after close")
			}
		})
		if n, err := client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("peer read %d, %v, want EOF", n, err)
		}
		// A handle nobody attached.
		client, server = pair(t, b)
		h := take(t, b, server, "")
		h.Close()
		h.Close()
		if _, err := h.Conn(nil); err == nil {
			t.Error("a closed handle became a connection")
		}
		if n, err := client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("peer of a dropped handle read %d, %v, want EOF", n, err)
		}
	})
}

// Bytes that arrived and were not read do not turn the close into a reset that
// destroys the server's last words.
func TestCloseWithUnreadInput(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		for range 20 {
			client, server := pair(t, b)
			io.WriteString(client, strings.Repeat("x", 1000))
			l.attach(take(t, b, server, ""), func(s poll.Socket, ev poll.Event) {
				s.Write([]byte("bye"))
				s.Close()
			})
			got, err := io.ReadAll(client)
			if err != nil || string(got) != "bye" {
				t.Fatalf("peer read %q, %v, want the last words and EOF", got, err)
			}
			client.Close()
		}
	})
}

// A wake is never lost: each of many goroutines waits for the loop's answer to
// one before it wakes again.
func TestWake(t *testing.T) {
	const goroutines, rounds = 64, 200
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		done := make(chan struct{})
		var count int
		go func() {
			defer close(done)
			var wg sync.WaitGroup
			for range goroutines {
				wg.Go(func() {
					for range rounds {
						l.do(func() { count++ })
					}
				})
			}
			wg.Wait()
		}()
		receive(t, done)
		if count != goroutines*rounds {
			t.Errorf("%d calls, want %d", count, goroutines*rounds)
		}
	})
}

func TestWaitTimeout(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		p, err := b.NewPoller()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		events := make([]poll.Event, 8)
		p.Wake()
		p.Wake()
		start := time.Now()
		if n, err := p.Wait(events, -1); n != 0 || err != nil {
			t.Errorf("woken wait: %d, %v", n, err)
		}
		if n, err := p.Wait(events, 0); n != 0 || err != nil {
			t.Errorf("wait of 0: %d, %v", n, err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
		// Both wakes were one. A wait may end early, but not every time.
		for _, timeout := range []time.Duration{200 * time.Microsecond, 20 * time.Millisecond} {
			var longest time.Duration
			for range 5 {
				start = time.Now()
				if n, err := p.Wait(events, timeout); n != 0 || err != nil {
					t.Errorf("wait of %v: %d, %v", timeout, n, err)
				}
				longest = max(longest, time.Since(start))
			}
			if longest < timeout {
				t.Errorf("waits of %v took at most %v", timeout, longest)
			}
		}
	})
}

// A wake after Close, or in the middle of it, touches nobody else's descriptor.
func TestWakeAfterClose(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		for range 50 {
			p, err := b.NewPoller()
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(p.Wake)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			wg.Wait()
			p.Wake()
		}
	})
}
