// Package polltest is a poll.Backend in memory for tests of event loops: a test
// holds the far end of every socket, and a seeded generator makes writes short,
// calls return poll.ErrAgain, events late and connections fail. It blocks on
// channels and timers only, so it works in testing/synctest.
package polltest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"hub/hub/poll"
)

// Faults says how badly the network behaves. A probability is per call, from 0
// (never) to 1.
type Faults struct {
	// Window is the number of bytes that a peer may have unread before Write meets
	// poll.ErrAgain; 0 is 64 KiB.
	Window int
	// ShortWrite is the probability of a Write that takes a random part.
	ShortWrite float64
	// ShortRead is the probability of a Read that yields a random part.
	ShortRead float64
	// Again is the probability of a Read or Write that meets poll.ErrAgain without
	// reason. The event that ends it may come a few Waits late.
	Again float64
	// Fail is the probability of a Read or Write that breaks the connection.
	Fail float64
}

// ErrInjected is what a Read or Write broken by [Faults].Fail returns.
var ErrInjected = errors.New("polltest: injected failure")

// Backend is a poll.Backend. What befalls a socket depends on the seed, its number
// in the order of dialling and its own calls, not on the other sockets. Safe for
// concurrent use.
type Backend struct {
	// Fixed after new.
	seed   uint64
	faults Faults

	mu sync.Mutex
	// changed, on mu, is broadcast when anything happens to a link.
	changed sync.Cond
	// Guarded by mu, like everything below it: links, ends, pollers, sockets.
	links   uint64
	pollers uint64
	open    int
}

// New returns a backend whose sockets suffer from f.
func New(seed uint64, f Faults) *Backend {
	if f.Window <= 0 {
		f.Window = 64 << 10
	}
	b := &Backend{seed: seed, faults: f}
	b.changed.L = &b.mu
	return b
}

// Name is "polltest".
func (b *Backend) Name() string { return "polltest" }

// Open is the number of server ends that nobody has closed.
func (b *Backend) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// Dial makes a connection: the far end for the test and the handle that a poller
// attaches.
func (b *Backend) Dial() (*Peer, poll.Handle) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.newLink()
	return &Peer{end{link: l, side: far}}, &handle{link: l}
}

// Take takes over what Conn of one of this backend's handles returned; anything
// else is errors.ErrUnsupported.
func (b *Backend) Take(c net.Conn, read []byte) (poll.Handle, error) {
	e, ok := c.(*end)
	if !ok || e.link.backend != b {
		return nil, fmt.Errorf("take %T: %w", c, errors.ErrUnsupported)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.gone {
		return nil, net.ErrClosed
	}
	e.gone = true
	e.link.unread(read)
	return &handle{link: e.link}, nil
}

// Listen makes a [Listener] of this backend acceptable inside a loop.
func (b *Backend) Listen(l net.Listener) (poll.Acceptor, error) {
	if tl, ok := l.(*Listener); ok && tl.backend == b {
		return &acceptor{tl}, nil
	}
	return nil, fmt.Errorf("listen on %T: %w", l, errors.ErrUnsupported)
}

// NewPoller returns a poller that reports events in random order.
func (b *Backend) NewPoller() (poll.Poller, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pollers++
	p := &poller{
		backend: b,
		random:  rand.New(rand.NewPCG(b.seed, 1<<63|b.pollers)),
		ready:   make(chan struct{}, 1),
		timer:   time.NewTimer(time.Hour),
	}
	p.timer.Stop()
	return p, nil
}

// happened tells everybody who waits for l. Called with mu held.
func (b *Backend) happened(l *link) {
	b.changed.Broadcast()
	if l.socket != nil {
		l.socket.poller.signal()
	}
}

// Listener is what tests dial and a loop accepts from. As a net.Listener it only
// has an address.
type Listener struct {
	backend *Backend
	// Guarded by the backend's mu.
	waiting []*link
	poller  *poller
	owner   any
	err     error
	closed  bool
}

// NewListener returns a listener to give to Listen.
func (b *Backend) NewListener() *Listener { return &Listener{backend: b} }

// Dial makes a connection that waits to be accepted.
func (l *Listener) Dial() (*Peer, error) {
	b := l.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	k := b.newLink()
	l.waiting = append(l.waiting, k)
	if l.poller != nil {
		l.poller.signal()
	}
	return &Peer{end{link: k, side: far}}, nil
}

// Fail makes Accept return err (EMFILE, say) while connections wait, until it is
// called with nil.
func (l *Listener) Fail(err error) {
	l.backend.mu.Lock()
	defer l.backend.mu.Unlock()
	l.err = err
}

// Accept is errors.ErrUnsupported: give the listener to Listen.
func (l *Listener) Accept() (net.Conn, error) { return nil, errors.ErrUnsupported }

// Close drops the connections that wait; idempotent.
func (l *Listener) Close() error {
	l.backend.mu.Lock()
	defer l.backend.mu.Unlock()
	for _, k := range l.waiting {
		k.closeNear()
	}
	l.waiting, l.closed = nil, true
	return nil
}

// Addr is a constant.
func (l *Listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(listenAddr) }

type acceptor struct{ *Listener }

func (a *acceptor) Accept() (poll.Handle, error) {
	a.backend.mu.Lock()
	defer a.backend.mu.Unlock()
	switch {
	case a.closed:
		return nil, net.ErrClosed
	case len(a.waiting) == 0:
		return nil, poll.ErrAgain
	case a.err != nil:
		return nil, a.err
	}
	l := a.waiting[0]
	a.waiting = a.waiting[1:]
	return &handle{link: l}, nil
}

func (a *acceptor) Close() { _ = a.Listener.Close() }

type handle struct {
	link *link
	gone bool // guarded by mu
}

// take ends the life of h; it is false when that was over already.
func (h *handle) take() bool {
	was := h.gone
	h.gone = true
	return !was
}

func (h *handle) RemoteAddr() netip.AddrPort { return h.link.addr }

func (h *handle) Conn(read []byte) (net.Conn, error) {
	h.link.backend.mu.Lock()
	defer h.link.backend.mu.Unlock()
	if !h.take() {
		return nil, net.ErrClosed
	}
	h.link.unread(read)
	return &end{link: h.link, side: near}, nil
}

func (h *handle) Close() {
	h.link.backend.mu.Lock()
	defer h.link.backend.mu.Unlock()
	if h.take() {
		h.link.closeNear()
	}
}

// poller finds what is ready by looking at all its sockets.
type poller struct {
	backend *Backend
	ready   chan struct{} // holds one element after a signal

	// Owned by the loop. touched is written without a lock by every call, so that
	// the race detector sees calls from elsewhere, which mu would hide.
	timer   *time.Timer
	touched int

	// Guarded by the backend's mu.
	random    *rand.Rand
	sockets   []*socket
	listeners []*Listener
	woken     bool
	closed    bool
}

func (p *poller) lock() {
	p.touched++
	p.backend.mu.Lock()
}

func (p *poller) Attach(h poll.Handle, owner any) (poll.Socket, error) {
	p.lock()
	defer p.backend.mu.Unlock()
	th, ok := h.(*handle)
	if !ok || th.link.backend != p.backend {
		return nil, fmt.Errorf("attach %T: %w", h, errors.ErrUnsupported)
	}
	if p.closed || !th.take() {
		return nil, net.ErrClosed
	}
	s := &socket{poller: p, link: th.link, owner: owner, read: true}
	th.link.socket = s
	p.sockets = append(p.sockets, s)
	return s, nil
}

func (p *poller) Detach(s poll.Socket) (poll.Handle, error) {
	p.lock()
	defer p.backend.mu.Unlock()
	ts, ok := s.(*socket)
	if !ok || ts.poller != p || ts.closed {
		return nil, errors.New("polltest: detach of a socket that is not attached")
	}
	ts.leave()
	return &handle{link: ts.link}, nil
}

func (p *poller) AttachAcceptor(a poll.Acceptor, owner any) error {
	p.lock()
	defer p.backend.mu.Unlock()
	ta, ok := a.(*acceptor)
	if !ok || ta.poller != nil {
		return errors.New("polltest: attach of a foreign or attached acceptor")
	}
	ta.poller, ta.owner = p, owner
	p.listeners = append(p.listeners, ta.Listener)
	return nil
}

func (p *poller) DetachAcceptor(a poll.Acceptor) error {
	p.lock()
	defer p.backend.mu.Unlock()
	ta, ok := a.(*acceptor)
	if !ok || ta.poller != p {
		return errors.New("polltest: detach of an acceptor that is not attached")
	}
	ta.poller, ta.owner = nil, nil
	p.listeners = slices.DeleteFunc(p.listeners, func(l *Listener) bool { return l == ta.Listener })
	return nil
}

func (p *poller) Wait(events []poll.Event, timeout time.Duration) (int, error) {
	var expired <-chan time.Time
	if timeout > 0 {
		p.timer.Reset(timeout)
		defer p.timer.Stop()
		expired = p.timer.C
	}
	for {
		n, woken, late, err := p.look(events)
		if n > 0 || woken || timeout == 0 || err != nil {
			return n, err
		}
		if late {
			continue
		}
		select {
		case <-p.ready:
		case <-expired:
			timeout = 0
		}
	}
}

// look fills events in random order; late says that some are held back.
func (p *poller) look(events []poll.Event) (n int, woken, late bool, err error) {
	p.lock()
	defer p.backend.mu.Unlock()
	if p.closed {
		return 0, false, false, net.ErrClosed
	}
	woken, p.woken = p.woken, false
	var due []poll.Event
	for _, l := range p.listeners {
		if len(l.waiting) > 0 {
			due = append(due, poll.Event{Owner: l.owner, Readable: true})
		}
	}
	for _, s := range p.sockets {
		ev := s.event()
		switch {
		case !ev.Readable && !ev.Writable:
		case s.hold > 0:
			s.hold--
			late = true
		default:
			due = append(due, ev)
		}
	}
	p.random.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	return copy(events, due), woken, late, nil
}

func (p *poller) Wake() {
	p.backend.mu.Lock()
	p.woken = true
	p.backend.mu.Unlock()
	p.signal()
}

func (p *poller) signal() {
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

// Close fails when sockets or acceptors are still attached.
func (p *poller) Close() error {
	p.lock()
	defer p.backend.mu.Unlock()
	p.closed = true
	if n := len(p.sockets) + len(p.listeners); n > 0 {
		return fmt.Errorf("polltest: close of a poller with %d sockets and acceptors", n)
	}
	return nil
}
