package poll

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Epoll returns the backend on raw descriptors: an idle connection costs one
// small struct and no goroutine. Its pollers attach handles of [Portable] too,
// so that one loop serves what Take refuses (TLS) beside the rest.
func Epoll() Backend { return epollBackend{} }

type epollBackend struct{}

func (epollBackend) Name() string { return "epoll" }

// Take takes over a *net.TCPConn, also one behind wrappers that give access to
// it by a NetConn method and pass bytes through unchanged. Anything else, TLS
// first of all, is errors.ErrUnsupported and left untouched.
func (epollBackend) Take(c net.Conn, read []byte) (Handle, error) {
	tc, prefix := unwrap(c, read)
	if tc == nil {
		return nil, fmt.Errorf("take %T: %w", c, errors.ErrUnsupported)
	}
	remote := addrPort(tc.RemoteAddr())
	fd, err := duplicate(tc)
	// The runtime's poller lets go of the socket; the duplicate keeps it open.
	c.Close()
	if err != nil {
		return nil, fmt.Errorf("take %T: %w", c, err)
	}
	if err := tune(fd); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("take %T: %w", c, err)
	}
	return &descriptor{fd: fd, remote: remote, read: prefix}, nil
}

// unwrap finds the TCP connection under c, nil if there is none, and a copy of
// the bytes that come before what can be read from it.
func unwrap(c net.Conn, read []byte) (*net.TCPConn, []byte) {
	prefix := slices.Clone(read)
	for {
		switch t := c.(type) {
		case *net.TCPConn:
			return t, prefix
		case *prefixConn:
			prefix = append(prefix, t.prefix...)
			c = t.Conn
		case *tls.Conn:
			return nil, nil
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil, nil
		}
	}
}

// duplicate returns a non-blocking descriptor of our own for the socket of c.
func duplicate(c syscall.Conn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = raw.Control(func(f uintptr) {
		fd, dupErr = unix.FcntlInt(f, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err != nil {
		return -1, err
	}
	if dupErr != nil {
		return -1, os.NewSyscallError("fcntl", dupErr)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("fcntl", err)
	}
	return fd, nil
}

// notSentLowat bounds what the kernel queues beyond the peer's window. Without
// it and SO_SNDBUF a peer that does not read costs 1.4 MB of kernel memory, with
// it a tenth; a write smaller than it still goes out at once.
const notSentLowat = 16 << 10

// tune sets the options of a connection; on a listening TCP socket they are
// inherited by what it accepts. Options unknown to the protocol (multipath TCP)
// are left out.
func tune(fd int) error {
	for _, o := range [...]struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat},
		{unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer},
	} {
		err := unix.SetsockoptInt(fd, o.level, o.name, o.value)
		if err != nil && err != unix.ENOPROTOOPT && err != unix.EOPNOTSUPP {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// descriptor is the Handle of a raw socket.
type descriptor struct {
	fd     int // -1 once given away or closed
	remote netip.AddrPort
	read   []byte // precedes what the socket yields
}

func (d *descriptor) RemoteAddr() netip.AddrPort { return d.remote }

func (d *descriptor) Conn(read []byte) (net.Conn, error) {
	if d.fd < 0 {
		return nil, net.ErrClosed
	}
	f := os.NewFile(uintptr(d.fd), "tcp")
	d.fd = -1
	c, err := net.FileConn(f) // works on a duplicate
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("descriptor to connection: %w", err)
	}
	return withPrefix(c, read, d.read), nil
}

func (d *descriptor) Close() {
	if d.fd >= 0 {
		hangUp(d.fd)
		d.fd = -1
	}
}

// hangUp closes fd after it has thrown away what was received and not read:
// otherwise close(2) sends a reset, which destroys what the peer has not read
// yet, a close frame for instance (RFC 2525 section 2.17). MSG_TRUNC discards
// without a buffer, see tcp(7).
func hangUp(fd int) {
	const enough = 1 << 30
	unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), 0, enough, unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0)
	unix.Close(fd)
}

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
	prefixes  map[*epollSocket][]byte // came with the handle, not read yet
	acceptors map[*epollAcceptor]*epollSocket
	queue     queue // of the portable sockets

	// Atomic.
	wake atomic.Uint32

	// mu guards the eventfd against a Wake that meets Close.
	mu      sync.Mutex
	eventfd int // -1 once closed
}

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
	// Slot 0 with sequence number 0: no socket has them.
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, eventfd, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		unix.Close(eventfd)
		unix.Close(epfd)
		return nil, fmt.Errorf("new poller: %w", os.NewSyscallError("epoll_ctl", err))
	}
	p := &epollPoller{
		epfd:      epfd,
		raw:       make([]unix.EpollEvent, batch),
		slots:     make([]*epollSocket, 1),
		prefixes:  map[*epollSocket][]byte{},
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
	}
	if err := p.register(s, s.mask()); err != nil {
		return nil, err
	}
	d.fd = -1
	if len(d.read) > 0 {
		s.prefixed = true
		p.prefixes[s] = d.read
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
	if s.prefixed {
		delete(p.prefixes, s)
	}
	s.owner, s.fd = nil, -1
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
		d := &descriptor{fd: int(s.fd), remote: s.RemoteAddr(), read: p.prefixes[s]}
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
		n := p.prefixed(half)
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
			if raw[i].Pad == 0 {
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

// prefixed fills events with the sockets whose handle brought bytes that nobody
// has read yet; like the kernel it repeats that in each Wait.
func (p *epollPoller) prefixed(events []Event) int {
	n := 0
	for s := range p.prefixes {
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
		Readable: !s.prefixed && e.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|over) != 0,
		Writable: s.want&wantWrite != 0 && e.Events&(unix.EPOLLOUT|over) != 0,
	}
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
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// Cannot fail: the counter is far from its maximum.
	_, _ = unix.Write(p.eventfd, one[:])
}

// drain consumes the signal and says whether a Wake was in it. The eventfd is
// read before the bits are cleared: the other way round, a signal in between
// would lose its write and leave its bit, and no later one would write again. A
// signal in between loses nothing here either: what came before it is seen by
// whoever called Wait, since Swap sees its bits.
func (p *epollPoller) drain() bool {
	var count [8]byte
	_, _ = unix.Read(p.eventfd, count[:])
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

// epollSocket is the Socket of a raw descriptor, and the place of an acceptor in
// a poller. There are as many as connections: 56 bytes, 64 with the allocator's
// rounding, of which 18 are the peer's address, since getpeername(2) has
// forgotten it when the peer is gone.
type epollSocket struct {
	poller *epollPoller
	owner  any
	addr   [16]byte
	fd     int32 // -1 once closed or detached
	slot   uint32
	seq    uint32
	port   uint16
	want   uint8
	// prefixed is set while poller.prefixes has bytes that precede the kernel's.
	prefixed bool
}

func (s *epollSocket) event(mask uint32) *unix.EpollEvent {
	return &unix.EpollEvent{Events: mask, Fd: int32(s.slot), Pad: int32(s.seq)}
}

// mask is level-triggered, except when nothing is wanted: the kernel reports
// hang-ups and errors all the same, and once is enough.
func (s *epollSocket) mask() uint32 {
	var m uint32
	if s.want&wantRead != 0 {
		m |= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if s.want&wantWrite != 0 {
		m |= unix.EPOLLOUT
	}
	if m == 0 {
		m = unix.EPOLLET
	}
	return m
}

func (s *epollSocket) Read(p []byte) (int, error) {
	if s.fd < 0 {
		return 0, net.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	if s.prefixed {
		return s.readPrefix(p), nil
	}
	for {
		n, err := unix.Read(int(s.fd), p)
		switch {
		case n > 0:
			return n, nil
		case err == nil:
			return 0, io.EOF
		case err == unix.EAGAIN:
			return 0, ErrAgain
		case err != unix.EINTR:
			return 0, os.NewSyscallError("read", err)
		}
	}
}

func (s *epollSocket) readPrefix(p []byte) int {
	prefix := s.poller.prefixes[s]
	n := copy(p, prefix)
	if n == len(prefix) {
		s.prefixed = false
		delete(s.poller.prefixes, s)
	} else {
		s.poller.prefixes[s] = prefix[n:]
	}
	return n
}

func (s *epollSocket) Write(p []byte) (int, error) {
	if s.fd < 0 {
		return 0, net.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := unix.Write(int(s.fd), p)
		switch {
		case n == len(p):
			return n, nil
		case n > 0 || err == unix.EAGAIN:
			return max(n, 0), ErrAgain
		case err != unix.EINTR:
			return 0, os.NewSyscallError("write", err)
		}
	}
}

func (s *epollSocket) Interest(read, write bool) {
	var want uint8
	if read {
		want |= wantRead
	}
	if write {
		want |= wantWrite
	}
	if s.fd < 0 || want == s.want {
		return
	}
	s.want = want
	if err := unix.EpollCtl(s.poller.epfd, unix.EPOLL_CTL_MOD, int(s.fd), s.event(s.mask())); err != nil {
		// EPOLL_CTL_MOD fails only for a descriptor that is not there, see epoll_ctl(2).
		panic(fmt.Sprintf("poll: change interest: %v", err))
	}
}

func (s *epollSocket) Stalled(idle time.Duration) bool {
	if s.fd < 0 {
		return false
	}
	info, err := unix.GetsockoptTCPInfo(int(s.fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && answers(info, idle)
}

// answers tells from the kernel's bookkeeping whether the peer's host still
// answers. It does not when no acknowledgement came for idle though one is due:
// for data that was sent, or for a second probe of its closed window (the
// answer to the first may be under way, and probes get up to two minutes apart,
// so their silence alone means nothing).
func answers(info *unix.TCPInfo, idle time.Duration) bool {
	due := info.Unacked > 0 || info.Probes > 1
	return !due || time.Duration(info.Last_ack_recv)*time.Millisecond < idle
}

func (s *epollSocket) RemoteAddr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(s.addr).Unmap(), s.port)
}

func (s *epollSocket) Close() {
	if s.fd < 0 {
		return
	}
	fd := int(s.fd)
	s.poller.release(s)
	hangUp(fd)
}
