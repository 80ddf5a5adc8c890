package poll

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// flow is the client's transport in these tests: how bytes arrive at the server.
type flow interface {
	// send gives the server what the client's TLS wrote.
	send(c *net.TCPConn, b []byte) error
	// limit is how much of what the server sent one read may return.
	limit() int
}

// dribble is a byte at a time, both ways.
type dribble struct{}

func (dribble) limit() int { return 1 }

func (dribble) send(c *net.TCPConn, b []byte) error {
	for i := range b {
		if _, err := c.Write(b[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

// torn is pieces of random sizes, which cut records anywhere.
type torn struct{ in, out *mathrand.Rand }

func (t torn) limit() int { return 1 + t.in.IntN(3000) }

func (t torn) send(c *net.TCPConn, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), 1+t.out.IntN(3000))
		if _, err := c.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// held keeps everything until it is released: many records in one segment.
type held struct {
	mu  sync.Mutex
	buf []byte
}

func (h *held) limit() int { return 64 << 10 }

func (h *held) send(_ *net.TCPConn, b []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf = append(h.buf, b...)
	return nil
}

// flowConn is a net.Conn with a flow, from after the handshake on.
type flowConn struct {
	*net.TCPConn
	flow flow
}

func (c *flowConn) Read(p []byte) (int, error) {
	if c.flow != nil {
		p = p[:min(len(p), c.flow.limit())]
	}
	return c.TCPConn.Read(p)
}

func (c *flowConn) Write(p []byte) (int, error) {
	if c.flow == nil {
		return c.TCPConn.Write(p)
	}
	return len(p), c.flow.send(c.TCPConn, p)
}

var tlsConfig = sync.OnceValue(func() *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return &tls.Config{
		Certificates:                []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		DynamicRecordSizingDisabled: true,
	}
})

// secured is a socket with TLS in a poller of its own and its client, over
// loopback, whose transport is under it.
func secured(t testing.TB, version uint16) (*epollPoller, *epollSocket, *tls.Conn, *flowConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	raw.SetDeadline(time.Now().Add(15 * time.Second))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	under := &flowConn{TCPConn: raw.(*net.TCPConn)}
	client := tls.Client(under, &tls.Config{InsecureSkipVerify: true, MaxVersion: version})
	shaken := make(chan error, 1)
	go func() { shaken <- client.Handshake() }()
	server := TLSServer(c, tlsConfig())
	if err := errors.Join(server.Handshake(), <-shaken); err != nil {
		t.Fatal(err)
	}
	h, err := Epoll().Take(server, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := newTestPoller(t)
	s, err := p.Attach(h, "owner")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); raw.Close() })
	return p, s.(*epollSocket), client, under
}

// versions runs a test with each version of TLS.
func versions(t *testing.T, test func(t *testing.T, version uint16)) {
	for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(v), func(t *testing.T) { test(t, v) })
	}
}

// nextEvent waits for an event. A Wait that sends unsent bytes may end without one.
func nextEvent(p *epollPoller) (Event, error) {
	events := make([]Event, 1)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if n, err := p.Wait(events, time.Second); n > 0 || err != nil {
			return events[0], err
		}
	}
	return Event{}, errors.New("no event for 10 s")
}

// echoUntilEnd echoes what s reads, through short writes, up to the end. A Read
// takes at most size bytes.
func echoUntilEnd(p *epollPoller, s *epollSocket, size int) error {
	buf, rest := make([]byte, size), []byte(nil)
	for ended, blocked := false, false; !ended || blocked; {
		ev, err := nextEvent(p)
		if err != nil {
			return err
		}
		if ev.Readable && !ended {
			k, err := s.Read(buf)
			if ended = err == io.EOF; err != nil && err != ErrAgain && !ended {
				return err
			}
			rest = append(rest, buf[:k]...)
		}
		k, err := s.Write(rest)
		if err != nil && err != ErrAgain {
			return err
		}
		rest, blocked = rest[k:], err == ErrAgain
		s.Interest(!ended && len(rest) < 256<<10, blocked)
	}
	s.Close()
	return nil
}

// However the bytes arrive and leave, they are the same.
func TestTLSFlows(t *testing.T) {
	random := func(seed uint64) *mathrand.Rand { return mathrand.New(mathrand.NewPCG(1, seed)) }
	for _, c := range []struct {
		name string
		flow flow
		size int
	}{
		{"a byte at a time", dribble{}, 20_000},
		{"records torn", torn{random(1), random(2)}, 1 << 20},
		{"as it comes", nil, 4 << 20},
	} {
		for _, buffer := range []int{1000, 64 << 10} {
			t.Run(c.name, func(t *testing.T) {
				versions(t, func(t *testing.T, version uint16) {
					p, s, client, under := secured(t, version)
					// A small buffer makes writes short.
					if err := unix.SetsockoptInt(int(s.fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<10); err != nil {
						t.Fatal(err)
					}
					under.flow = c.flow
					sent := make([]byte, c.size)
					for i := range sent {
						sent[i] = byte(i * i >> 9)
					}
					go func() {
						client.Write(sent)
						client.CloseWrite()
					}()
					ended := make(chan error, 1)
					go func() { ended <- echoUntilEnd(p, s, buffer) }()
					got, err := io.ReadAll(client)
					if err != nil || !bytes.Equal(got, sent) {
						t.Errorf("read %d bytes, %v, want the %d that were sent", len(got), err, len(sent))
					}
					if err := <-ended; err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// Many records in one segment are all read, without another event of the kernel,
// and the end after them too.
func TestTLSCoalesced(t *testing.T) {
	versions(t, func(t *testing.T, version uint16) {
		p, s, client, under := secured(t, version)
		hold := &held{}
		under.flow = hold
		var want []byte
		for i := range 300 {
			record := bytes.Repeat([]byte{byte(i)}, 1+i)
			client.Write(record)
			want = append(want, record...)
		}
		client.CloseWrite()
		under.SetWriteDeadline(time.Now().Add(5 * time.Second)) // crypto/tls has ended it
		if _, err := under.TCPConn.Write(hold.buf); err != nil {
			t.Fatal(err)
		}
		buf, got := make([]byte, 100), []byte(nil)
		for {
			if _, err := nextEvent(p); err != nil {
				t.Fatalf("with %d of %d bytes read: %v", len(got), len(want), err)
			}
			n, err := s.Read(buf)
			got = append(got, buf[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil && err != ErrAgain {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("read %d bytes, want %d", len(got), len(want))
		}
		// Only one direction has ended.
		if _, err := s.Write([]byte("still here")); err != nil {
			t.Errorf("write after the peer's end: %v", err)
		}
		if n, err := io.ReadFull(client, buf[:10]); err != nil || string(buf[:n]) != "still here" {
			t.Errorf("peer read %q, %v", buf[:n], err)
		}
	})
}

// A connection cut in the middle of a record or reset is an error and no end, and
// bytes that were changed under way are never read.
func TestTLSBroken(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(c *net.TCPConn, record []byte)
	}{
		{"cut", func(c *net.TCPConn, record []byte) { c.Write(record[:len(record)/2]); c.CloseWrite() }},
		{"reset", func(c *net.TCPConn, record []byte) { c.Write(record[:3]); c.SetLinger(0); c.Close() }},
		{"changed", func(c *net.TCPConn, record []byte) { record[len(record)-1]++; c.Write(record) }},
		{"no TLS", func(c *net.TCPConn, record []byte) { c.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			versions(t, func(t *testing.T, version uint16) {
				p, s, client, under := secured(t, version)
				hold := &held{}
				under.flow = hold
				client.Write([]byte("never to be read"))
				c.damage(under.TCPConn, hold.buf)
				buf := make([]byte, 100)
				for {
					if _, err := nextEvent(p); err != nil {
						t.Fatal(err)
					}
					n, err := s.Read(buf)
					if n > 0 || err == io.EOF {
						t.Fatalf("read %q, %v, want an error", buf[:n], err)
					}
					if err != ErrAgain {
						if _, again := s.Read(buf); again == nil || again == ErrAgain {
							t.Errorf("read %v, then %v", err, again)
						}
						return
					}
				}
			})
		})
	}
}

// fill writes until the socket takes no more and returns the bytes taken.
func fill(t *testing.T, s *epollSocket) (total int) {
	t.Helper()
	piece := make([]byte, 40_000)
	for {
		n, err := s.Write(piece)
		total += n
		switch {
		case err == ErrAgain:
			return total
		case err != nil || n != len(piece):
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
}

// A peer that does not read leaves one record at most encrypted and unsent. It is
// sent when the socket takes it, also when nobody wants to write, and the buffer
// goes back to the poller.
func TestTLSBackPressure(t *testing.T) {
	versions(t, func(t *testing.T, version uint16) {
		p, s, client, _ := secured(t, version)
		total := fill(t, s)
		unsent := len(s.secure.sealed)
		if unsent == 0 || unsent > recordSize+100 {
			t.Errorf("%d bytes encrypted and unsent, want up to a record", unsent)
		}
		if n, err := s.Write([]byte("x")); n != 0 || err != ErrAgain {
			t.Errorf("another write: %d, %v", n, err)
		}
		s.Interest(false, false)
		got := make(chan error, 1)
		go func() {
			_, err := io.ReadFull(client, make([]byte, total))
			got <- err
		}()
		events := make([]Event, 4)
		for end := time.Now().Add(10 * time.Second); len(s.secure.sealed) > 0; {
			if n, err := p.Wait(events, 100*time.Millisecond); n != 0 || err != nil {
				t.Fatalf("an event that nobody wants: %v, %v", events[:n], err)
			}
			if time.Now().After(end) {
				t.Fatal("never sent")
			}
		}
		if err := <-got; err != nil {
			t.Errorf("peer: %v", err)
		}
		if len(p.spare) != 1 || s.secure.sealed != nil {
			t.Errorf("%d buffers came back, want 1", len(p.spare))
		}
		if s.mask()&unix.EPOLLOUT != 0 {
			t.Error("still waits to be writable")
		}
	})
}

// A socket that blocks is writable only when all that was encrypted has left.
func TestTLSWritable(t *testing.T) {
	p, s, client, _ := secured(t, tls.VersionTLS13)
	total := fill(t, s)
	s.Interest(true, true)
	go io.ReadFull(client, make([]byte, total))
	for {
		ev, err := nextEvent(p)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Readable {
			s.Read(make([]byte, 100)) // the event after Attach
		}
		if ev.Writable {
			break
		}
	}
	if n := len(s.secure.sealed); n > 0 {
		t.Errorf("writable with %d bytes unsent", n)
	}
	if n, err := s.Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("write: %d, %v", n, err)
	}
}

// With unsent bytes, a socket on its way to net/http sends them first.
func TestTLSLeavesBlocked(t *testing.T) {
	p, s, client, _ := secured(t, tls.VersionTLS13)
	total := fill(t, s)
	h, err := p.Detach(s)
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() {
		c, err := h.Conn(nil)
		if err == nil {
			_, err = io.WriteString(c, "and on")
			err = errors.Join(err, c.Close())
		}
		left <- err
	}()
	got, err := io.ReadAll(client)
	if err != nil || len(got) != total+6 || string(got[total:]) != "and on" {
		t.Errorf("peer read %d bytes, %v, want %d", len(got), err, total+6)
	}
	if err := <-left; err != nil {
		t.Error(err)
	}
}

// A delivery allocates nothing, and a message that is read leads to no second event.
func TestTLSCost(t *testing.T) {
	p, s, client, under := secured(t, tls.VersionTLS13)
	events, buf, reply := make([]Event, 16), make([]byte, 4<<10), make([]byte, 100)
	for range 100 {
		client.Write(buf[:1])
		for got := 0; got == 0; {
			if _, err := p.Wait(events, -1); err != nil {
				t.Fatal(err)
			}
			var err error
			if got, err = s.Read(buf); err != nil && err != ErrAgain {
				t.Fatal(err)
			}
		}
		if n, err := p.Wait(events, 0); n != 0 || err != nil {
			t.Fatalf("%d events after everything was read, %v", n, err)
		}
	}
	allocs := testing.AllocsPerRun(200, func() {
		if n, err := s.Write(reply); n != len(reply) || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
		under.TCPConn.Read(buf)
	})
	if allocs > 0 && !raceEnabled { // which makes sync.Pool forget
		t.Errorf("%v allocations per delivery, want 0", allocs)
	}
}

// What TLS keeps of a handle that closed before it was attached is nothing.
func TestTLSHandleClosed(t *testing.T) {
	p, s, client, _ := secured(t, tls.VersionTLS13)
	h, err := p.Detach(s)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	if _, err := p.Attach(h, "again"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("attach after close: %v", err)
	}
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("peer read %v", err)
	}
	if len(p.unread) > 0 {
		t.Errorf("%d sockets left in the poller", len(p.unread))
	}
}
