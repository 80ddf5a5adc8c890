package poll

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Portable returns the backend for all systems and all kinds of net.Conn, TLS
// and net.Pipe included: two goroutines and their buffers per connection. It
// cannot Listen. Its pollers block on channels and timers only, so they work in
// testing/synctest.
func Portable() Backend { return portableBackend{} }

type portableBackend struct{}

func (portableBackend) Name() string { return "portable" }

func (portableBackend) Take(c net.Conn, read []byte) (Handle, error) {
	prefix := slices.Clone(read)
	if pc, ok := c.(*prefixConn); ok {
		c, prefix = pc.Conn, append(prefix, pc.prefix...)
	}
	if tc, ok := c.(*net.TCPConn); ok {
		// Tuning only: a socket that refuses shows its trouble at the first read.
		_ = tc.SetNoDelay(true)
		_ = tc.SetWriteBuffer(sendBuffer)
	}
	return newDuplex(c, prefix), nil
}

func (portableBackend) Listen(l net.Listener) (Acceptor, error) {
	return nil, fmt.Errorf("listen on %T: %w", l, errors.ErrUnsupported)
}

func (portableBackend) NewPoller() (Poller, error) {
	p := &portablePoller{ready: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	p.timer.Stop()
	p.queue.notify = p.signal
	return p, nil
}

// portablePoller waits for what the goroutines of its sockets post.
type portablePoller struct {
	// ready holds one element when queue or woken may have something new.
	ready chan struct{}
	woken atomic.Bool

	// Owned by the loop.
	queue  queue
	timer  *time.Timer
	closed bool
}

func (p *portablePoller) Attach(h Handle, owner any) (Socket, error) {
	d, ok := h.(*duplex)
	if !ok {
		return nil, fmt.Errorf("attach %T: %w", h, errors.ErrUnsupported)
	}
	return d.attach(&p.queue, owner)
}

func (p *portablePoller) Detach(s Socket) (Handle, error) {
	d, ok := s.(*duplex)
	if !ok {
		return nil, fmt.Errorf("detach %T: %w", s, errors.ErrUnsupported)
	}
	return d.detach(&p.queue)
}

func (p *portablePoller) AttachAcceptor(a Acceptor, _ any) error {
	return fmt.Errorf("attach %T: %w", a, errors.ErrUnsupported)
}

func (p *portablePoller) DetachAcceptor(a Acceptor) error {
	return fmt.Errorf("detach %T: %w", a, errors.ErrUnsupported)
}

func (p *portablePoller) Wait(events []Event, timeout time.Duration) (int, error) {
	if p.closed {
		return 0, net.ErrClosed
	}
	if len(events) == 0 {
		return 0, errors.New("wait: no room for events")
	}
	var expired <-chan time.Time
	if timeout > 0 {
		p.timer.Reset(timeout)
		defer p.timer.Stop()
		expired = p.timer.C
	}
	for {
		woken := p.woken.Swap(false)
		n := p.queue.collect(events)
		if n > 0 || woken || timeout == 0 {
			return n, nil
		}
		select {
		case <-p.ready:
		case <-expired:
			timeout = 0 // one last look
		}
	}
}

// Wake sets woken before it signals, so whoever takes the signal sees it.
func (p *portablePoller) Wake() {
	p.woken.Store(true)
	p.signal()
}

func (p *portablePoller) signal() {
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

func (p *portablePoller) Close() error {
	p.closed = true
	return nil
}

// queue is where portable sockets tell their loop that they are ready.
type queue struct {
	// notify makes the loop's Wait look at the queue. Fixed after new.
	notify func()

	// mu guards posted and is taken after a duplex's mu, never before it.
	mu     sync.Mutex
	posted []*duplex

	// current is owned by the loop: sockets that were ready when last looked at.
	// They stay until they are not, which makes events level-triggered.
	current []*duplex
}

// post adds d, which is in no queue.
func (q *queue) post(d *duplex) {
	q.mu.Lock()
	q.posted = append(q.posted, d)
	q.mu.Unlock()
	q.notify()
}

// collect fills events with what is ready and returns their number; sockets that
// found no room come first the next time.
func (q *queue) collect(events []Event) int {
	q.mu.Lock()
	q.current = append(q.current, q.posted...)
	clear(q.posted)
	q.posted = q.posted[:0]
	q.mu.Unlock()

	n, seen := 0, 0
	for end := len(q.current); seen < end && n < len(events); seen++ {
		d := q.current[seen]
		if ev, ok := d.event(q); ok {
			events[n] = ev
			n++
			q.current = append(q.current, d)
		}
	}
	q.current = slices.Delete(q.current, 0, seen)
	return n
}

// remove forgets d, which posts nothing more.
func (q *queue) remove(d *duplex) {
	other := func(o *duplex) bool { return o == d }
	q.mu.Lock()
	q.posted = slices.DeleteFunc(q.posted, other)
	q.mu.Unlock()
	q.current = slices.DeleteFunc(q.current, other)
}
