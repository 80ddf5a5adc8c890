package poll

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Epoll returns the backend on raw descriptors: an idle connection costs one
// small struct and no goroutine, with TLS of [TLSServer] what crypto/tls keeps
// besides. Its pollers attach handles of [Portable] too, so that one loop serves
// what Take refuses beside the rest.
func Epoll() Backend { return epollBackend{} }

type epollBackend struct{}

func (epollBackend) Name() string { return "epoll" }

// Bits of epollPoller.wake.
const (
	signalled = 1 << iota // the eventfd was written and not read since
	woken                 // Wake was called, so Wait has to return
)

// epollPoller waits on one epoll instance.
//
// The 64 bits of data that epoll gives back are the socket's slot and a sequence
// number that is never the same for two sockets of a slot: an event finds the
// socket it was meant for or nobody, whatever became of the descriptor's number.
type epollPoller struct {
	// Fixed after new.
	epfd int

	// Owned by the loop.
	raw       []unix.EpollEvent
	slots     []*epollSocket // nil: free; slot 0 is the eventfd's
	free      []uint32
	seq       uint32
	unread    map[*epollSocket][]byte // what came with the handle; nil: TLS may have some
	acceptors map[*epollAcceptor]*epollSocket
	spare     [][]byte // for unsent bytes of TLS
	queue     queue    // of the portable sockets
	count     [8]byte  // what the eventfd held

	// Atomic.
	wake atomic.Uint32

	// mu guards the eventfd against a Wake that meets Close.
	mu      sync.Mutex
	eventfd int // -1 once closed
}

// one is what a signal adds to the eventfd.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// batch is the most events one epoll_wait returns.
const batch = 512

func (epollBackend) NewPoller() (Poller, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("new poller: %w", os.NewSyscallError("epoll_create1", err))
	}
	eventfd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("new poller: %w", os.NewSyscallError("eventfd", err))
	}
	// Slot 0, which no socket has.
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, eventfd, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		unix.Close(eventfd)
		unix.Close(epfd)
		return nil, fmt.Errorf("new poller: %w", os.NewSyscallError("epoll_ctl", err))
	}
	p := &epollPoller{
		epfd:      epfd,
		raw:       make([]unix.EpollEvent, batch),
		slots:     make([]*epollSocket, 1),
		unread:    map[*epollSocket][]byte{},
		acceptors: map[*epollAcceptor]*epollSocket{},
		eventfd:   eventfd,
	}
	p.queue.notify = func() { p.signal(signalled) }
	return p, nil
}

func (p *epollPoller) Attach(h Handle, owner any) (Socket, error) {
	if d, ok := h.(*duplex); ok {
		return d.attach(&p.queue, owner)
	}
	d, ok := h.(*descriptor)
	if !ok {
		return nil, fmt.Errorf("attach %T: %w", h, errors.ErrUnsupported)
	}
	if d.fd < 0 {
		return nil, fmt.Errorf("attach: %w", net.ErrClosed)
	}
	s := &epollSocket{
		poller: p,
		owner:  owner,
		addr:   d.remote.Addr().As16(),
		port:   d.remote.Port(),
		fd:     int32(d.fd),
		want:   wantRead,
		secure: d.secure,
	}
	if err := p.register(s, s.mask()); err != nil {
		return nil, err
	}
	d.fd = -1
	if d.secure != nil {
		d.secure.sock = s
	}
	if len(d.read) > 0 || d.secure != nil {
		s.unread = true
		p.unread[s] = d.read
	}
	return s, nil
}

// register gives s a slot and adds it to the epoll instance.
func (p *epollPoller) register(s *epollSocket, mask uint32) error {
	if n := len(p.free); n > 0 {
		s.slot = p.free[n-1]
	} else {
		s.slot = uint32(len(p.slots))
	}
	p.seq++
	s.seq = p.seq
	if err := unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, int(s.fd), s.event(mask)); err != nil {
		return fmt.Errorf("attach: %w", os.NewSyscallError("epoll_ctl", err))
	}
	if n := len(p.free); n > 0 {
		p.free = p.free[:n-1]
		p.slots[s.slot] = s
	} else {
		p.slots = append(p.slots, s)
	}
	return nil
}

// release frees the slot of s, whose descriptor leaves the epoll instance first.
func (p *epollPoller) release(s *epollSocket) {
	// Fails only when the descriptor is closed already (an acceptor's).
	_ = unix.EpollCtl(p.epfd, unix.EPOLL_CTL_DEL, int(s.fd), nil)
	p.slots[s.slot] = nil
	p.free = append(p.free, s.slot)
	if s.unread {
		delete(p.unread, s)
	}
	if s.secure != nil {
		s.secure.sock = nil
	}
	s.owner, s.secure, s.fd = nil, nil, -1
}

func (p *epollPoller) Detach(s Socket) (Handle, error) {
	switch s := s.(type) {
	case *duplex:
		return s.detach(&p.queue)
	case *epollSocket:
		if s.fd < 0 {
			return nil, fmt.Errorf("detach: %w", net.ErrClosed)
		}
		if s.poller != p {
			return nil, errors.New("detach: socket of another poller")
		}
		d := &descriptor{fd: int(s.fd), remote: s.RemoteAddr(), read: p.unread[s], secure: s.secure}
		p.release(s)
		return d, nil
	}
	return nil, fmt.Errorf("detach %T: %w", s, errors.ErrUnsupported)
}

func (p *epollPoller) Wait(events []Event, timeout time.Duration) (int, error) {
	if len(events) == 0 {
		return 0, errors.New("wait: no room for events")
	}
	for {
		// What is ready without the kernel's word leaves half of the room to the others.
		half := events[:(len(events)+1)/2]
		n := p.collectUnread(half)
		n += p.queue.collect(half[n:])
		ms := milliseconds(timeout)
		if n > 0 {
			ms = 0
		}
		raw := p.raw[:min(len(p.raw), len(events)-n)]
		if len(raw) == 0 {
			return n, nil
		}
		k, err := unix.EpollWait(p.epfd, raw, ms)
		if err != nil && err != unix.EINTR {
			return n, os.NewSyscallError("epoll_wait", err)
		}
		k = max(k, 0) // -1 after a signal
		wake := false
		for i := range raw[:k] {
			if raw[i].Fd == 0 { // the eventfd's slot
				wake = p.drain()
				continue
			}
			if ev, ok := p.resolve(&raw[i]); ok {
				events[n] = ev
				n++
			}
		}
		if n > 0 || wake || timeout == 0 {
			return n, nil
		}
		if timeout > 0 {
			// A signal or the wake of a portable socket: "at most timeout" holds.
			return p.queue.collect(events), nil
		}
	}
}

// collectUnread fills events with the sockets that may yield bytes the kernel does
// not know of; like the kernel it repeats that in each Wait.
func (p *epollPoller) collectUnread(events []Event) int {
	n := 0
	for s := range p.unread {
		if n == len(events) {
			break
		}
		if s.want&wantRead != 0 {
			events[n] = Event{Owner: s.owner, Readable: true}
			n++
		}
	}
	return n
}

// resolve turns what epoll reports into an event of the socket it is about.
func (p *epollPoller) resolve(e *unix.EpollEvent) (Event, bool) {
	slot := uint32(e.Fd)
	if int(slot) >= len(p.slots) {
		return Event{}, false
	}
	s := p.slots[slot]
	if s == nil || s.seq != uint32(e.Pad) {
		return Event{}, false
	}
	const over = unix.EPOLLHUP | unix.EPOLLERR
	ev := Event{
		Owner:    s.owner,
		Readable: !s.unread && e.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|over) != 0,
		Writable: e.Events&(unix.EPOLLOUT|over) != 0,
	}
	if ev.Writable && s.secure != nil && s.secure.flush() == ErrAgain {
		ev.Writable = false
	}
	ev.Writable = ev.Writable && s.want&wantWrite != 0
	return ev, ev.Readable || ev.Writable
}

// milliseconds rounds up, so that a short wait is not a busy loop.
func milliseconds(d time.Duration) int {
	const most = 1<<31 - 1
	switch {
	case d < 0:
		return -1
	case d > most*time.Millisecond:
		return most
	}
	return int((d + time.Millisecond - 1) / time.Millisecond)
}

func (p *epollPoller) Wake() { p.signal(signalled | woken) }

// signal sets bits of wake and makes epoll_wait return; only the first call
// after a drain costs a system call.
func (p *epollPoller) signal(bits uint32) {
	if p.wake.Or(bits)&signalled != 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.eventfd < 0 {
		return
	}
	// Cannot fail: the counter is far from its maximum.
	_, _ = unix.Write(p.eventfd, one)
}

// drain consumes the signal and says whether a Wake was in it. The eventfd is
// read before the bits are cleared: the other way round, a signal in between
// would lose its write and leave its bit, and no later one would write again. A
// signal in between loses nothing here either: what came before it is seen by
// whoever called Wait, since Swap sees its bits.
func (p *epollPoller) drain() bool {
	_, _ = unix.Read(p.eventfd, p.count[:])
	return p.wake.Swap(0)&woken != 0
}

func (p *epollPoller) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.eventfd < 0 {
		return nil
	}
	unix.Close(p.eventfd)
	p.eventfd = -1
	return os.NewSyscallError("close", unix.Close(p.epfd))
}
