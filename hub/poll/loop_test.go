package poll_test

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"hub/hub/poll"
)

// mixed gives the handles of the portable backend to epoll's pollers.
type mixed struct{ poll.Backend }

func (mixed) Name() string { return "portable sockets in " + poll.Default().Name() }

func (mixed) NewPoller() (poll.Poller, error) { return poll.Default().NewPoller() }

// secure makes pair return TLS of a version.
type secure struct {
	poll.Backend
	version uint16
}

func (s secure) Name() string { return tls.VersionName(s.version) + " in " + s.Backend.Name() }

var backends = []poll.Backend{
	poll.Default(), poll.Portable(), mixed{poll.Portable()},
	secure{poll.Default(), tls.VersionTLS13}, secure{poll.Default(), tls.VersionTLS12},
}

// each runs test as a subtest for every backend.
func each(t *testing.T, test func(t *testing.T, b poll.Backend)) {
	for _, b := range backends {
		t.Run(b.Name(), func(t *testing.T) { test(t, b) })
	}
}

// loop is a small event loop: owners are functions that handle their events.
type loop struct {
	t       testing.TB
	backend poll.Backend
	poller  poll.Poller
	ended   chan struct{}

	// Guarded by mu.
	mu    sync.Mutex
	inbox []func()
	stop  bool
}

type handler func(poll.Event)

func newLoop(t testing.TB, b poll.Backend) *loop {
	t.Helper()
	p, err := b.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	l := &loop{t: t, backend: b, poller: p, ended: make(chan struct{})}
	go l.run()
	t.Cleanup(l.close)
	return l
}

func (l *loop) run() {
	defer close(l.ended)
	events := make([]poll.Event, 64)
	for {
		n, err := l.poller.Wait(events, -1)
		if err != nil {
			l.t.Errorf("wait: %v", err)
			return
		}
		for _, ev := range events[:n] {
			(*ev.Owner.(*handler))(ev)
		}
		l.mu.Lock()
		inbox, stop := l.inbox, l.stop
		l.inbox = nil
		l.mu.Unlock()
		for _, f := range inbox {
			f()
		}
		if stop {
			return
		}
	}
}

// do runs f in the loop and waits for it.
func (l *loop) do(f func()) {
	done := make(chan struct{})
	l.mu.Lock()
	l.inbox = append(l.inbox, func() { f(); close(done) })
	l.mu.Unlock()
	l.poller.Wake()
	<-done
}

func (l *loop) close() {
	l.mu.Lock()
	stopped := l.stop
	l.stop = true
	l.mu.Unlock()
	l.poller.Wake()
	<-l.ended
	if !stopped {
		if err := l.poller.Close(); err != nil {
			l.t.Errorf("close poller: %v", err)
		}
	}
}

// attach attaches h in the loop; serve sees each of its events with its socket.
func (l *loop) attach(h poll.Handle, serve func(poll.Socket, poll.Event)) (s poll.Socket) {
	l.do(func() { s = l.attachHere(h, serve) })
	return s
}

func (l *loop) attachHere(h poll.Handle, serve func(poll.Socket, poll.Event)) (s poll.Socket) {
	var own handler = func(ev poll.Event) { serve(s, ev) }
	s, err := l.poller.Attach(h, &own)
	if err != nil {
		l.t.Errorf("attach: %v", err)
		h.Close()
	}
	return s
}

// echo writes back what it reads and closes at the end.
func echo(s poll.Socket, ev poll.Event) {
	if !ev.Readable {
		return
	}
	var buf [8 << 10]byte
	n, err := s.Read(buf[:])
	if n > 0 {
		_, err = s.Write(buf[:n])
	}
	if err != nil && !errors.Is(err, poll.ErrAgain) {
		s.Close()
	}
}

// tcpPair is a connection over loopback.
func tcpPair(t testing.TB) (client, server *net.TCPConn) {
	t.Helper()
	l := listen(t)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	bound(t, c)
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// peer is the client's end of a connection of either kind.
type peer struct {
	net.Conn
	tcp *net.TCPConn
}

// CloseWrite ends what the peer sends.
func (p *peer) CloseWrite() error { return p.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// reset breaks the connection.
func (p *peer) reset() {
	p.tcp.SetLinger(0)
	p.tcp.Close()
}

// pair is a connection of the kind that b is to serve, over loopback.
func pair(t testing.TB, b poll.Backend) (client *peer, server net.Conn) {
	t.Helper()
	c, s := tcpPair(t)
	client = dialed(b, c)
	shaken := make(chan error, 1)
	if tc, ok := client.Conn.(*tls.Conn); ok {
		go func() { shaken <- tc.Handshake() }()
	} else {
		shaken <- nil
	}
	server, err := accepted(b, s)
	if err = errors.Join(err, <-shaken); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// dialed makes c the client's end.
func dialed(b poll.Backend, c net.Conn) *peer {
	p := &peer{c, c.(*net.TCPConn)}
	if s, ok := b.(secure); ok {
		p.Conn = tls.Client(c, &tls.Config{InsecureSkipVerify: true, MaxVersion: s.version})
	}
	return p
}

// accepted makes c the server's end.
func accepted(b poll.Backend, c net.Conn) (net.Conn, error) {
	if _, ok := b.(secure); !ok {
		return c, nil
	}
	tc := poll.TLSServer(c, serverConfig())
	return tc, tc.Handshake()
}

// serverConfig is that of the secure backends.
var serverConfig = sync.OnceValue(func() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{certificate()}, DynamicRecordSizingDisabled: true}
})

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// bound makes a client fail instead of hang, and closes it in the end.
func bound(t testing.TB, c net.Conn) {
	if err := c.SetDeadline(time.Now().Add(15 * time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// take takes c over or fails the test.
func take(t testing.TB, b poll.Backend, c net.Conn, read string) poll.Handle {
	t.Helper()
	h, err := b.Take(c, []byte(read))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// receive returns what comes from c or fails after a while.
func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(15 * time.Second):
		t.Fatal("nothing came for 15 s")
		panic("unreachable")
	}
}
