package poll_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"hub/hub/poll"
)

// pipe is a portable socket over net.Pipe in a loop of its own.
func pipe(t *testing.T, serve func(poll.Socket, poll.Event)) (*loop, poll.Socket, net.Conn) {
	client, server := net.Pipe()
	l := newLoop(t, poll.Portable())
	return l, l.attach(take(t, poll.Portable(), server, ""), serve), client
}

// A peer that never reads cannot keep a closed socket and its goroutines.
func TestPortableCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s, client := pipe(t, echo)
		l.do(func() {
			s.Write([]byte("nobody reads this"))
			s.Close()
		})
		time.Sleep(10 * time.Second)
		// A read would take the bytes that hold the socket up.
		if _, err := client.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("write to the closed socket after 10 s: %v", err)
		}
		l.close()
		// synctest fails the test for goroutines that do not end.
	})
}

// A peer that reads late, but in time, gets what was written before Close.
func TestPortableCloseSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s, client := pipe(t, echo)
		sent := make([]byte, 60<<10)
		l.do(func() {
			if n, err := s.Write(sent); n != len(sent) || err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
			s.Close()
		})
		time.Sleep(2 * time.Second)
		got, err := io.ReadAll(client)
		if len(got) != len(sent) || err != nil {
			t.Errorf("peer read %d bytes, %v, want %d", len(got), err, len(sent))
		}
		l.close()
	})
}

// Last words survive a peer that is still sending when the socket closes.
func TestPortableLingers(t *testing.T) {
	l := newLoop(t, poll.Portable())
	client, server := tcpPair(t)
	s := l.attach(take(t, poll.Portable(), server, ""), func(poll.Socket, poll.Event) {})
	l.do(func() { s.Interest(false, false) })
	sent := make(chan error, 1)
	go func() {
		_, err := client.Write(make([]byte, 8<<20))
		client.CloseWrite()
		sent <- err
	}()
	l.do(func() {
		s.Write([]byte("bye"))
		s.Close()
	})
	if got, err := io.ReadAll(client); err != nil || string(got) != "bye" {
		t.Errorf("peer read %q, %v, want the last words and EOF", got, err)
	}
	if err := receive(t, sent); err != nil {
		t.Errorf("peer's write: %v", err)
	}
}

// A loop that does not read exerts back-pressure: the peer's second chunk waits.
func TestPortableBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s, client := pipe(t, func(poll.Socket, poll.Event) {})
		l.do(func() { s.Interest(false, false) })
		client.SetWriteDeadline(time.Now().Add(time.Hour))
		n, err := client.Write(make([]byte, 1<<20))
		if err == nil || n > 8<<10 {
			t.Errorf("the peer sent %d bytes to a socket that does not read, %v", n, err)
		}
		l.do(s.Close)
		client.Close()
		l.close()
	})
}

// A full send buffer becomes writable again at half.
func TestPortableWritable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writable := make(chan time.Time, 1)
		l, s, client := pipe(t, func(s poll.Socket, ev poll.Event) {
			if ev.Writable {
				s.Interest(true, false)
				writable <- time.Now()
			}
		})
		wrote := 0
		l.do(func() {
			for {
				n, err := s.Write(make([]byte, 10_000))
				wrote += n
				if errors.Is(err, poll.ErrAgain) {
					break
				} else if err != nil {
					t.Error(err)
					return
				}
			}
			s.Interest(true, true)
		})
		if wrote < 64<<10 || wrote > 80<<10 {
			t.Errorf("the buffer took %d bytes", wrote)
		}
		synctest.Wait()
		select {
		case <-writable:
			t.Error("writable while full")
		default:
		}
		io.ReadFull(client, make([]byte, 50<<10))
		synctest.Wait()
		select {
		case <-writable:
		default:
			t.Error("not writable with more than half of the room")
		}
		client.Close()
		l.do(s.Close)
		l.close()
	})
}

func TestPortableStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s, client := pipe(t, func(poll.Socket, poll.Event) {})
		alive := func() (b bool) {
			l.do(func() { b = s.Stalled(time.Second) })
			return b
		}
		time.Sleep(time.Hour)
		if !alive() {
			t.Error("an idle peer counts as dead")
		}
		l.do(func() { s.Write(make([]byte, 100)) })
		time.Sleep(4 * time.Minute)
		if !alive() {
			t.Error("dead after four minutes")
		}
		time.Sleep(2 * time.Minute)
		if alive() {
			t.Error("alive after six minutes")
		}
		io.ReadFull(client, make([]byte, 100))
		synctest.Wait()
		if !alive() {
			t.Error("dead although it took everything")
		}
		client.Close()
		l.do(s.Close)
		l.close()
	})
}

// A wait with a timeout takes that long on the bubble's clock.
func TestPortableTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := poll.Portable().NewPoller()
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if n, err := p.Wait(make([]poll.Event, 1), 90*time.Second); n != 0 || err != nil {
			t.Errorf("wait: %d, %v", n, err)
		}
		if d := time.Since(start); d != 90*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

// More sockets are ready than events fit: each has its turn.
func TestFairness(t *testing.T) {
	for _, b := range backends {
		t.Run(b.Name(), func(t *testing.T) {
			p, err := b.NewPoller()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			const n = 9
			seen := map[any]bool{}
			for i := range n {
				client, server := tcpPair(t)
				s, err := p.Attach(take(t, b, server, ""), i)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				io.WriteString(client, "x")
			}
			events := make([]poll.Event, 2)
			for end := time.Now().Add(10 * time.Second); len(seen) < n; {
				k, err := p.Wait(events, time.Second)
				if err != nil {
					t.Fatal(err)
				}
				for _, ev := range events[:k] {
					seen[ev.Owner] = true
				}
				if time.Now().After(end) {
					t.Fatalf("only %d of %d ready sockets had a turn", len(seen), n)
				}
			}
		})
	}
}

// TLS runs in a portable socket, in the pollers of both backends.
func TestTLS(t *testing.T) {
	cert := certificate()
	for _, b := range backends[1:3] {
		t.Run(b.Name(), func(t *testing.T) {
			l := newLoop(t, b)
			raw, server := tcpPair(t)
			if _, err := poll.Default().Take(tls.Server(server, nil), nil); poll.Default().Name() == "epoll" && !errors.Is(err, errors.ErrUnsupported) {
				t.Fatalf("epoll takes TLS: %v", err)
			}
			s := l.attach(take(t, b, tls.Server(server, &tls.Config{Certificates: []tls.Certificate{cert}}), ""), echo)
			client := tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
			for range 10 {
				io.WriteString(client, "hello")
				got := make([]byte, 5)
				if _, err := io.ReadFull(client, got); err != nil || string(got) != "hello" {
					t.Fatalf("echo %q, %v", got, err)
				}
			}
			// Out of the loop and on as a net.Conn: an interrupted read does no harm.
			var c net.Conn
			l.do(func() {
				h, err := l.poller.Detach(s)
				if err == nil {
					c, err = h.Conn(nil)
				}
				if err != nil {
					t.Error(err)
				}
			})
			defer c.Close()
			io.WriteString(client, "again")
			got := make([]byte, 5)
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "again" {
				t.Errorf("as a connection %q, %v", got, err)
			}
		})
	}
}

func certificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
