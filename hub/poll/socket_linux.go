package poll

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Take takes over a *net.TCPConn, also one behind wrappers that give access to
// it by a NetConn method and pass bytes through unchanged, and TLS that comes of
// [TLSServer] with the handshake complete. Anything else is errors.ErrUnsupported
// and left untouched.
func (epollBackend) Take(c net.Conn, read []byte) (Handle, error) {
	tc, secure, prefix := unwrap(c, read)
	if tc == nil {
		return nil, fmt.Errorf("take %T: %w", c, errors.ErrUnsupported)
	}
	remote := addrPort(tc.RemoteAddr())
	fd, err := duplicate(tc)
	// The runtime's poller lets go of the socket; the duplicate keeps it open.
	if secure != nil {
		secure.Conn.Close() // without the alert that crypto/tls ends with
		secure.Conn = nil
	} else {
		c.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("take %T: %w", c, err)
	}
	if err := tune(fd); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("take %T: %w", c, err)
	}
	return &descriptor{fd: fd, remote: remote, read: prefix, secure: secure}, nil
}

// unwrap finds the TCP connection under c, nil if there is none that Take can use,
// the TLS over it, and a copy of the bytes that come before what can be read.
func unwrap(c net.Conn, read []byte) (_ *net.TCPConn, secure *transport, plain []byte) {
	prefix := slices.Clone(read)
	for {
		switch t := c.(type) {
		case *net.TCPConn:
			if secure == nil {
				return t, nil, prefix
			}
			secure.ahead = append(secure.ahead, prefix...)
			return t, secure, plain
		case *prefixConn:
			prefix = append(prefix, t.prefix...)
			c = t.Conn
		case *tls.Conn:
			under, ok := t.NetConn().(*transport)
			if !ok || secure != nil || !t.ConnectionState().HandshakeComplete {
				return nil, nil, nil
			}
			secure, plain, prefix = under, prefix, nil
			c = under.Conn
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil, nil, nil
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

// retransmitMax, in milliseconds, is how far apart the kernel's retransmissions
// and probes get, instead of two minutes, since Linux 6.15: a peer that has not
// read for a while and reads again may have to wait for the next one.
const retransmitMax = 10_000

// tune sets the options of a connection; on a listening TCP socket they are
// inherited by what it accepts. Options unknown to the protocol (multipath TCP)
// are left out.
func tune(fd int) error {
	for _, o := range [...]struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat},
		{unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer},
		{unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, retransmitMax},
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
	read   []byte     // precedes what the socket yields
	secure *transport // nil without TLS
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
	if t := d.secure; t != nil {
		if err := t.leave(c); err != nil {
			c.Close()
			return nil, fmt.Errorf("descriptor to connection: %w", err)
		}
		c = t.tls
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
// without a buffer, see tcp(7). What comes later still meets a reset.
func hangUp(fd int) {
	const enough = 8 << 20 // more than a receive buffer's default maximum, and no endless task
	unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), 0, enough, unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0)
	unix.Close(fd)
}

// epollSocket is the Socket of a raw descriptor, and the place of an acceptor in
// a poller. There are as many as connections: 64 bytes, of which 18 are the peer's
// address, since getpeername(2) has forgotten it when the peer is gone.
type epollSocket struct {
	poller *epollPoller
	owner  any
	secure *transport // nil without TLS
	addr   [16]byte
	fd     int32 // -1 once closed or detached
	slot   uint32
	seq    uint32
	port   uint16
	want   uint8
	// unread is set while there may be bytes that the kernel does not know of:
	// poller.unread has some, or TLS has.
	unread bool
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
	if s.want&wantWrite != 0 || s.secure != nil && len(s.secure.sealed) > 0 {
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
	if s.unread {
		if n := s.readPrefix(p); n > 0 {
			return n, nil
		}
	}
	if s.secure != nil {
		return s.secure.read(p)
	}
	return s.readRaw(p)
}

// readRaw reads from the kernel; p is not empty.
func (s *epollSocket) readRaw(p []byte) (int, error) {
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

// readPrefix yields what came with the handle, if anything is left of it.
func (s *epollSocket) readPrefix(p []byte) int {
	prefix := s.poller.unread[s]
	n := copy(p, prefix)
	if n > 0 && n == len(prefix) {
		s.setUnread(s.secure != nil)
	} else if n > 0 {
		s.poller.unread[s] = prefix[n:]
	}
	return n
}

// setUnread says whether there may be bytes that the kernel does not know of, what
// came with the handle aside.
func (s *epollSocket) setUnread(unread bool) {
	switch {
	case unread:
		s.poller.unread[s] = nil
	case s.unread:
		delete(s.poller.unread, s)
	}
	s.unread = unread
}

func (s *epollSocket) Write(p []byte) (int, error) {
	if s.fd < 0 {
		return 0, net.ErrClosed
	}
	if s.secure != nil {
		return s.secure.write(p)
	}
	if len(p) == 0 {
		return 0, nil
	}
	return s.writeRaw(p)
}

// writeRaw gives the kernel what it takes of p, which is not empty.
func (s *epollSocket) writeRaw(p []byte) (int, error) {
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
	before := s.mask()
	s.want = want
	s.rearm(before)
}

// rearm tells the kernel what to wait for, if that is not what it was before.
func (s *epollSocket) rearm(before uint32) {
	if s.mask() == before {
		return
	}
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
// for data that was sent since the last one, or for a second probe of its closed
// window (the answer to the first may be under way, and probes get up to two
// minutes apart, so their silence alone means nothing).
//
// Unacknowledged data alone means nothing either: a host whose buffer is full
// drops what is under way and answers each retransmission without taking it,
// and retransmissions get as far apart as probes. Last_data_sent counts them.
func answers(info *unix.TCPInfo, idle time.Duration) bool {
	acked, sent := ago(info.Last_ack_recv), ago(info.Last_data_sent)
	due := info.Unacked > 0 && sent >= answerTime && sent+answerSlack < acked || info.Probes > 1
	return !due || acked < idle
}

const (
	// answerTime is what the answer to the last transmission may take.
	answerTime = 100 * time.Millisecond
	// answerSlack is how far apart the kernel's two clocks may be for one moment.
	answerSlack = 20 * time.Millisecond
)

func ago(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }

func (s *epollSocket) RemoteAddr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(s.addr).Unmap(), s.port)
}

func (s *epollSocket) Close() {
	if s.fd < 0 {
		return
	}
	if s.secure != nil {
		s.secure.bye()
	}
	fd := int(s.fd)
	s.poller.release(s)
	hangUp(fd)
}
