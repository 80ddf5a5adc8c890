package poll

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// epollAcceptor is a listening socket. Several pollers may attach it and accept
// from it at the same time.
type epollAcceptor struct {
	// mu is held for reading while fd is used, for writing to close it.
	mu sync.RWMutex
	fd int // -1 once closed

	// tuneEach is set when what is accepted does not inherit our options. Fixed
	// after new.
	tuneEach bool
}

// ListenConfig returns what makes listeners whose sockets have our options from
// their first byte on. Options set after listen(2) would miss those that connect
// before; multipath TCP, which package net prefers, does not hand them on.
func ListenConfig() net.ListenConfig {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var tuneErr error
		err := raw.Control(func(fd uintptr) { tuneErr = tune(int(fd)) })
		return errors.Join(err, tuneErr)
	}}
	c.SetMultipathTCP(false)
	return c
}

// Listen takes over a *net.TCPListener; anything else is errors.ErrUnsupported.
func (epollBackend) Listen(l net.Listener) (Acceptor, error) {
	tl, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("listen on %T: %w", l, errors.ErrUnsupported)
	}
	fd, err := duplicate(tl)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := tune(fd); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen: %w", err)
	}
	// Package net listens with multipath TCP where the kernel has it; the plain
	// TCP sockets that come out of that inherit less.
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	l.Close()
	return &epollAcceptor{fd: fd, tuneEach: err != nil || protocol != unix.IPPROTO_TCP}, nil
}

func (a *epollAcceptor) Accept() (Handle, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.fd < 0 {
		return nil, net.ErrClosed
	}
	for {
		fd, from, err := unix.Accept4(a.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			if a.tuneEach {
				if err := tune(fd); err != nil {
					unix.Close(fd)
					return nil, err
				}
			}
			return &descriptor{fd: fd, remote: sockaddrPort(from)}, nil
		case unix.EAGAIN:
			return nil, ErrAgain
		case unix.EINTR, unix.ECONNABORTED: // gone before we came
		default:
			return nil, os.NewSyscallError("accept4", err)
		}
	}
}

func sockaddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func (a *epollAcceptor) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd >= 0 {
		unix.Close(a.fd)
		a.fd = -1
	}
}

func (p *epollPoller) AttachAcceptor(a Acceptor, owner any) error {
	ea, ok := a.(*epollAcceptor)
	if !ok {
		return fmt.Errorf("attach %T: %w", a, errors.ErrUnsupported)
	}
	if p.acceptors[ea] != nil {
		return errors.New("attach: acceptor is attached already")
	}
	ea.mu.RLock()
	defer ea.mu.RUnlock()
	if ea.fd < 0 {
		return fmt.Errorf("attach: %w", net.ErrClosed)
	}
	s := &epollSocket{poller: p, owner: owner, fd: int32(ea.fd), want: wantRead}
	// EPOLLEXCLUSIVE: one connection does not wake every loop that accepts.
	if err := p.register(s, unix.EPOLLIN|unix.EPOLLEXCLUSIVE); err != nil {
		return err
	}
	p.acceptors[ea] = s
	return nil
}

func (p *epollPoller) DetachAcceptor(a Acceptor) error {
	ea, ok := a.(*epollAcceptor)
	if !ok || p.acceptors[ea] == nil {
		return errors.New("detach: acceptor is not attached")
	}
	ea.mu.RLock()
	defer ea.mu.RUnlock()
	s := p.acceptors[ea]
	delete(p.acceptors, ea)
	if ea.fd < 0 {
		s.fd = -1 // the number may be somebody else's by now
	}
	p.release(s)
	return nil
}
