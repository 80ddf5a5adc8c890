package polltest

import (
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"hub/hub/poll"
)

var listenAddr = netip.MustParseAddrPort("192.0.2.1:8000")

// The two sides of a link: near is the server's.
const (
	near = iota
	far
)

// link is a connection. All fields but the first group are guarded by the
// backend's mu.
type link struct {
	backend *Backend
	addr    netip.AddrPort // of the far end
	random  *rand.Rand     // decides the faults of its socket

	socket *socket   // attached, or nil
	to     [2]stream // by the side that reads
	closed [2]bool   // by side
	err    error     // broken
	paused bool      // the far end takes nothing
	dead   bool      // the far end's host does not answer
}

// stream is one direction of a link.
type stream struct {
	buf   []byte
	ended bool
}

// newLink is called with mu held.
func (b *Backend) newLink() *link {
	b.links++
	b.open++
	n := b.links
	addr := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
	return &link{
		backend: b,
		addr:    netip.AddrPortFrom(addr, 40000),
		random:  rand.New(rand.NewPCG(b.seed, n)),
	}
}

func (l *link) unread(b []byte) {
	l.to[near].buf = slices.Concat(b, l.to[near].buf)
}

func (l *link) closeNear() {
	if l.closed[near] {
		return
	}
	l.closed[near] = true
	l.to[far].ended = true
	l.to[near].buf = nil
	l.backend.open--
	l.backend.happened(l)
}

// room is what a write of the near side may add.
func (l *link) room() int {
	if l.paused {
		return 0
	}
	return max(0, l.backend.faults.Window-len(l.to[far].buf))
}

func (l *link) chance(probability float64) bool {
	return probability > 0 && l.random.Float64() < probability
}

// socket is the near side in a poller. Its fields but the first group are guarded
// by the backend's mu.
type socket struct {
	poller *poller
	link   *link
	owner  any

	read, write bool // wanted
	hold        int  // Waits by which its next event is late
	closed      bool // or detached
}

func (s *socket) event() poll.Event {
	l := s.link
	broken := l.err != nil
	in := l.to[near]
	return poll.Event{
		Owner:    s.owner,
		Readable: s.read && (broken || len(in.buf) > 0 || in.ended),
		Writable: s.write && (broken || l.closed[far] || l.room() > l.backend.faults.Window/2),
	}
}

// fault decides about one call: broken for good, or not now.
func (s *socket) fault() error {
	l, f := s.link, s.link.backend.faults
	switch {
	case s.closed:
		return net.ErrClosed
	case l.err != nil:
		return l.err
	case l.chance(f.Fail):
		l.err = ErrInjected
		l.backend.happened(l)
		return l.err
	case l.chance(f.Again):
		s.hold = l.random.IntN(4)
		return poll.ErrAgain
	}
	return nil
}

func (s *socket) Read(p []byte) (int, error) {
	s.poller.lock()
	defer s.poller.backend.mu.Unlock()
	l := s.link
	if err := s.fault(); err != nil {
		return 0, err
	}
	in := &l.to[near]
	switch {
	case len(p) == 0:
		return 0, nil
	case len(in.buf) == 0 && in.ended:
		return 0, io.EOF
	case len(in.buf) == 0:
		return 0, poll.ErrAgain
	}
	n := min(len(p), len(in.buf))
	if l.chance(l.backend.faults.ShortRead) {
		n = 1 + l.random.IntN(n)
	}
	copy(p, in.buf[:n])
	in.buf = in.buf[n:]
	l.backend.happened(l)
	return n, nil
}

func (s *socket) Write(p []byte) (int, error) {
	s.poller.lock()
	defer s.poller.backend.mu.Unlock()
	l := s.link
	if err := s.fault(); err != nil {
		return 0, err
	}
	if l.closed[far] {
		return 0, os.NewSyscallError("write", syscall.EPIPE)
	}
	n := min(len(p), l.room())
	if n > 0 && l.chance(l.backend.faults.ShortWrite) {
		n = l.random.IntN(n + 1)
		s.hold = l.random.IntN(4)
	}
	l.to[far].buf = append(l.to[far].buf, p[:n]...)
	l.backend.happened(l)
	if n < len(p) {
		return n, poll.ErrAgain
	}
	return n, nil
}

func (s *socket) Interest(read, write bool) {
	s.poller.lock()
	defer s.poller.backend.mu.Unlock()
	s.read, s.write = read, write
}

func (s *socket) Stalled(time.Duration) bool {
	s.poller.lock()
	defer s.poller.backend.mu.Unlock()
	return !s.closed && !s.link.dead && s.link.err == nil
}

func (s *socket) RemoteAddr() netip.AddrPort { return s.link.addr }

func (s *socket) Close() {
	s.poller.lock()
	defer s.poller.backend.mu.Unlock()
	if !s.closed {
		s.leave()
		s.link.closeNear()
	}
}

// leave takes s out of its poller.
func (s *socket) leave() {
	p := s.poller
	s.closed, s.link.socket = true, nil
	p.sockets = slices.DeleteFunc(p.sockets, func(o *socket) bool { return o == s })
}

// end is a blocking net.Conn on one side of a link. Faults do not apply to it.
type end struct {
	link *link
	side int
	// Guarded by the backend's mu.
	gone                        bool // given to Take or closed
	readDeadline, writeDeadline time.Time
}

// wait returns nil when ready is true, at the deadline an error. Called with mu held.
func (e *end) wait(deadline *time.Time, ready func() bool) error {
	for {
		switch {
		case e.gone:
			return net.ErrClosed
		case !deadline.IsZero() && !time.Now().Before(*deadline):
			return os.ErrDeadlineExceeded
		case e.link.err != nil:
			return e.link.err
		case ready():
			return nil
		}
		e.link.backend.changed.Wait()
	}
}

func (e *end) Read(p []byte) (int, error) {
	b := e.link.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	in := &e.link.to[e.side]
	held := func() bool { return e.side == far && e.link.paused }
	err := e.wait(&e.readDeadline, func() bool { return !held() && (len(in.buf) > 0 || in.ended) })
	if err != nil {
		return 0, err
	}
	if len(in.buf) == 0 {
		return 0, io.EOF
	}
	n := copy(p, in.buf)
	in.buf = in.buf[n:]
	b.happened(e.link)
	return n, nil
}

func (e *end) Write(p []byte) (int, error) {
	b := e.link.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	other := 1 - e.side
	out := &e.link.to[other]
	written := 0
	for written < len(p) {
		room := func() int { return b.faults.Window - len(out.buf) }
		err := e.wait(&e.writeDeadline, func() bool { return room() > 0 || e.link.closed[other] })
		if err != nil {
			return written, err
		}
		if e.link.closed[other] || out.ended {
			return written, os.NewSyscallError("write", syscall.EPIPE)
		}
		n := min(len(p)-written, room())
		out.buf = append(out.buf, p[written:written+n]...)
		written += n
		b.happened(e.link)
	}
	return written, nil
}

// CloseWrite ends the stream to the other side.
func (e *end) CloseWrite() error {
	b := e.link.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	e.link.to[1-e.side].ended = true
	b.happened(e.link)
	return nil
}

// Close is idempotent; the other side still reads what was written.
func (e *end) Close() error {
	b := e.link.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.gone {
		return nil
	}
	e.gone = true
	if e.side == near {
		e.link.closeNear()
		return nil
	}
	e.link.closed[far] = true
	e.link.to[near].ended = true
	b.happened(e.link)
	return nil
}

func (e *end) LocalAddr() net.Addr  { return e.addr(e.side) }
func (e *end) RemoteAddr() net.Addr { return e.addr(1 - e.side) }

func (e *end) addr(side int) net.Addr {
	if side == far {
		return net.TCPAddrFromAddrPort(e.link.addr)
	}
	return net.TCPAddrFromAddrPort(listenAddr)
}

func (e *end) SetDeadline(t time.Time) error      { return e.setDeadline(t, true, true) }
func (e *end) SetReadDeadline(t time.Time) error  { return e.setDeadline(t, true, false) }
func (e *end) SetWriteDeadline(t time.Time) error { return e.setDeadline(t, false, true) }

func (e *end) setDeadline(t time.Time, read, write bool) error {
	b := e.link.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if read {
		e.readDeadline = t
	}
	if write {
		e.writeDeadline = t
	}
	b.changed.Broadcast()
	if !t.IsZero() {
		// Late or superseded, it only makes waiters look again.
		time.AfterFunc(time.Until(t), func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.changed.Broadcast()
		})
	}
	return nil
}

// Peer is the far end of a connection: a net.Conn with the powers of a test. Safe
// for concurrent use.
type Peer struct{ end }

// act changes the link.
func (p *Peer) act(change func(*link)) {
	b := p.link.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	change(p.link)
	b.happened(p.link)
}

// Pause makes the peer stop reading: its Read blocks and the server's Write meets
// poll.ErrAgain, until Resume.
func (p *Peer) Pause() { p.act(func(l *link) { l.paused = true }) }

// Resume ends a Pause.
func (p *Peer) Resume() { p.act(func(l *link) { l.paused = false }) }

// Fail breaks the connection: reads and writes of both sides return err.
func (p *Peer) Fail(err error) { p.act(func(l *link) { l.err = err }) }

// Die makes Stalled of the server's socket false.
func (p *Peer) Die() { p.act(func(l *link) { l.dead = true }) }

// Unread returns a copy of what the server wrote and the peer has not read.
func (p *Peer) Unread() (b []byte) {
	p.act(func(l *link) { b = slices.Clone(l.to[far].buf) })
	return b
}

// Hung reports whether the server has closed its end.
func (p *Peer) Hung() (closed bool) {
	p.act(func(l *link) { closed = l.closed[near] })
	return closed
}
