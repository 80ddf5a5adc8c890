package loadtest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// epollNetwork reads the raw sockets of a shard on one epoll instance, in one
// goroutine.
type epollNetwork struct {
	// fixed after new
	shard *shard
	epfd  int
	wake  int // an eventfd, written once, at the end
	done  sync.WaitGroup

	// guarded by shard.mu
	sockets []*epollSocket // by slot
	free    []int32
	turn    int32
	buf     []byte
}

// epollSocket is one raw socket. Epoll gives back its slot and its turn, a
// number that is never the same for two sockets of a slot: the events of a
// socket that was closed find nobody.
type epollSocket struct {
	network *epollNetwork
	conn    *conn
	fd      int
	slot    int32
	turn    int32
	reading bool // guarded by shard.mu

	// guarded by conn.mu
	unsent []byte
	closed bool
}

// epollBatch is how many sockets are handled with the shard's lock held.
const epollBatch = 256

// newNetwork returns the network of a shard; TLS takes the portable one.
func newNetwork(sh *shard, config *tls.Config) (network, error) {
	if config != nil {
		return newPortable(sh, config), nil
	}
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1})
	}
	if err != nil {
		_ = unix.Close(epfd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	n := &epollNetwork{shard: sh, epfd: epfd, wake: wake, buf: make([]byte, 256<<10)}
	n.done.Go(n.run)
	return n, nil
}

func (n *epollNetwork) dial(c *conn) (_ socket, err error) {
	o := &n.shard.swarm.options
	family, to := unix.AF_INET, unix.Sockaddr(nil)
	if addr := o.addr.Addr(); addr.Is4() {
		to = &unix.SockaddrInet4{Addr: addr.As4(), Port: int(o.addr.Port())}
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: addr.As16(), Port: int(o.addr.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return nil, fmt.Errorf("TCP_NODELAY: %w", err)
	}
	if c.receives > 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, c.receives); err != nil {
			return nil, fmt.Errorf("SO_RCVBUF: %w", err)
		}
	}
	if c.source.IsValid() {
		// The port is chosen in connect(2), per destination (ip(7)).
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
			return nil, fmt.Errorf("IP_BIND_ADDRESS_NO_PORT: %w", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: c.source.As4()}); err != nil {
			return nil, fmt.Errorf("bind to %s: %w", c.source, err)
		}
	}
	if err := unix.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return n.add(c, fd)
}

func (n *epollNetwork) add(c *conn, fd int) (*epollSocket, error) {
	n.turn++
	k := &epollSocket{network: n, conn: c, fd: fd, slot: int32(len(n.sockets)), turn: n.turn, reading: true}
	if last := len(n.free) - 1; last >= 0 {
		k.slot = n.free[last]
	}
	if err := unix.EpollCtl(n.epfd, unix.EPOLL_CTL_ADD, fd, k.event(unix.EPOLLOUT)); err != nil {
		return nil, fmt.Errorf("epoll_ctl: %w", err)
	}
	if last := len(n.free) - 1; last >= 0 {
		n.free = n.free[:last]
		n.sockets[k.slot] = k
	} else {
		n.sockets = append(n.sockets, k)
	}
	return k, nil
}

func (k *epollSocket) event(mask uint32) *unix.EpollEvent {
	return &unix.EpollEvent{Events: mask, Fd: k.slot, Pad: k.turn}
}

// watch sets what epoll looks for. Its caller holds conn.mu, and shard.mu if
// reading changes.
func (k *epollSocket) watch() error {
	mask := uint32(0)
	if k.reading {
		mask |= unix.EPOLLIN
	}
	if len(k.unsent) > 0 {
		mask |= unix.EPOLLOUT
	}
	return unix.EpollCtl(k.network.epfd, unix.EPOLL_CTL_MOD, k.fd, k.event(mask))
}

func (k *epollSocket) send(b []byte) error {
	if len(k.unsent) > 0 {
		k.unsent = append(k.unsent, b...)
		return nil
	}
	n, err := unix.Write(k.fd, b)
	if err != nil && err != unix.EAGAIN {
		return fmt.Errorf("write: %w", err)
	}
	if n = max(n, 0); n < len(b) {
		k.unsent = append(k.unsent, b[n:]...)
		return k.watch()
	}
	return nil
}

// flush writes what send kept.
func (k *epollSocket) flush() error {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.closed || len(k.unsent) == 0 {
		return nil
	}
	n, err := unix.Write(k.fd, k.unsent)
	if err != nil && err != unix.EAGAIN {
		return fmt.Errorf("write: %w", err)
	}
	if k.unsent = k.unsent[max(n, 0):]; len(k.unsent) > 0 {
		return nil
	}
	k.unsent = nil
	return k.watch()
}

func (k *epollSocket) read(on bool) error {
	k.conn.mu.Lock()
	defer k.conn.mu.Unlock()
	k.reading = on
	return k.watch()
}

func (k *epollSocket) unread() (n int, local netip.AddrPort, ok bool) {
	at, err := unix.Getsockname(k.fd)
	if err != nil {
		return 0, local, false
	}
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		local = netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	case *unix.SockaddrInet6:
		local = netip.AddrPortFrom(netip.AddrFrom16(at.Addr), uint16(at.Port))
	}
	n, err = unix.IoctlGetInt(k.fd, unix.SIOCINQ)
	return n, local, err == nil
}

func (k *epollSocket) close(reset bool) {
	if k.closed {
		return
	}
	k.closed = true
	if reset {
		_ = unix.SetsockoptLinger(k.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	_ = unix.Close(k.fd) // leaves the epoll instance too
	n := k.network
	n.sockets[k.slot] = nil
	n.free = append(n.free, k.slot)
}

func (n *epollNetwork) close() {
	_, _ = unix.Write(n.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	n.done.Wait()
	_ = unix.Close(n.wake)
	_ = unix.Close(n.epfd)
}

// run handles what is ready until close.
func (n *epollNetwork) run() {
	events := make([]unix.EpollEvent, epollBatch)
	for {
		ready, err := unix.EpollWait(n.epfd, events, -1)
		if err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return
		}
		n.shard.mu.Lock()
		closing := n.shard.closing
		for _, e := range events[:ready] {
			n.handle(&e)
		}
		n.shard.publish()
		n.shard.mu.Unlock()
		if closing {
			return
		}
	}
}

// handle makes one step for one socket.
func (n *epollNetwork) handle(e *unix.EpollEvent) {
	if e.Fd < 0 || int(e.Fd) >= len(n.sockets) {
		return
	}
	k := n.sockets[e.Fd]
	if k == nil || k.turn != e.Pad {
		return
	}
	var err error
	if k.conn.state == opening {
		err = k.connected()
	} else {
		if e.Events&unix.EPOLLOUT != 0 {
			err = k.flush()
		}
		ended := e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 // told even to those who do not read
		if err == nil && (ended || e.Events&unix.EPOLLIN != 0 && k.reading) {
			err = k.receive()
		}
	}
	if err != nil {
		n.shard.ended(k.conn, err)
	}
}

func (k *epollSocket) connected() error {
	code, err := unix.GetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if code != 0 {
		return fmt.Errorf("connect: %w", unix.Errno(code))
	}
	c := k.conn
	c.mu.Lock()
	err = k.watch()
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return c.opened()
}

// receive makes one read and handles what is complete.
func (k *epollSocket) receive() error {
	n, c := k.network, k.conn
	if len(c.part) > len(n.buf)/2 {
		n.buf = make([]byte, 2*len(n.buf)+len(c.part))
	}
	held := copy(n.buf, c.part)
	got, err := unix.Read(k.fd, n.buf[held:])
	switch {
	case err == unix.EAGAIN:
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errEOF, err)
	case got == 0:
		return errEOF
	}
	n.shard.t.bytes += int64(got)
	rest, err := c.received(n.buf[:held+got], n.shard.swarm.now())
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		c.part = nil
	} else {
		c.part = append(c.part[:0:0], rest...)
	}
	return nil
}
