package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// epollRunner serves all clients in the goroutine that calls it.
type epollRunner struct {
	options *Options
	epfd    int
	clients []epollClient
	buf     []byte

	// of a run
	next     Next
	answered Answered
	left     int // clients that are not done
}

type epollState uint8

const (
	unconnected epollState = iota
	connecting
	resting // connected, without a request
	waiting // for an answer
)

type epollClient struct {
	fd    int
	state epollState
	turn  int32  // tells the sockets of a client apart: events of a closed one find nobody
	out   []byte // the request that is under way; what of it is not written: unsent
	in    []byte // of an answer that is not complete
	sent  int64

	unsent []byte
}

// batch is how many sockets are served between two looks at what is ready.
const batch = 256

func newRunner(o *Options) (runner, error) {
	if o.TLS != nil {
		return newPortable(o), nil
	}
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	r := &epollRunner{options: o, epfd: epfd, clients: make([]epollClient, o.Clients), buf: make([]byte, 256<<10)}
	for i := range r.clients {
		r.clients[i].fd = -1
	}
	return r, nil
}

func (r *epollRunner) close() {
	for i := range r.clients {
		r.clients[i].drop(false)
	}
	_ = unix.Close(r.epfd)
}

// drop closes the socket, if there is one; reset leaves no TIME_WAIT.
func (c *epollClient) drop(reset bool) {
	if c.fd < 0 {
		return
	}
	if reset {
		_ = unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	_ = unix.Close(c.fd)
	c.fd, c.state, c.in, c.unsent = -1, unconnected, nil, nil
}

func (r *epollRunner) run(ctx context.Context, next Next, answered Answered) error {
	r.next, r.answered, r.left = next, answered, len(r.clients)
	for i := range r.clients {
		if err := r.ask(i); err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
	}
	return r.loop(ctx)
}

// ask sends the next request of a client, over a new connection if there is none.
func (r *epollRunner) ask(i int) error {
	c := &r.clients[i]
	c.out = r.next(i, c.out[:0])
	if len(c.out) == 0 {
		r.left--
		return nil
	}
	if c.state == unconnected {
		return r.dial(i)
	}
	return r.send(i)
}

// send writes a client's request.
func (r *epollRunner) send(i int) error {
	c := &r.clients[i]
	c.state, c.sent = waiting, r.options.Now()
	return r.write(i, c.out)
}

func (r *epollRunner) write(i int, b []byte) error {
	c := &r.clients[i]
	n, err := unix.Write(c.fd, b)
	if err != nil && err != unix.EAGAIN {
		return fmt.Errorf("%w: write: %w", ErrLost, err)
	}
	had := len(c.unsent) > 0
	if c.unsent = b[max(n, 0):]; had != (len(c.unsent) > 0) {
		return r.watch(unix.EPOLL_CTL_MOD, i)
	}
	return nil
}

// watch tells epoll what the client waits for.
func (r *epollRunner) watch(op, i int) error {
	c := &r.clients[i]
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i), Pad: c.turn}
	switch {
	case c.state == connecting:
		e.Events = unix.EPOLLOUT
	case len(c.unsent) > 0:
		e.Events |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(r.epfd, op, c.fd, &e); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// dial begins to connect a client.
func (r *epollRunner) dial(i int) error {
	c, addr := &r.clients[i], r.options.Addr
	family, to := unix.AF_INET6, unix.Sockaddr(nil)
	if addr.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}
	} else {
		to = &unix.SockaddrInet6{Addr: addr.Addr().As16(), Port: int(addr.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	c.fd, c.state = fd, connecting
	c.turn++
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("TCP_NODELAY: %w", err)
	}
	if r.options.Source != nil {
		if source := r.options.Source(i); source.Is4() {
			// The port is chosen in connect(2), per destination (ip(7)).
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
				return fmt.Errorf("IP_BIND_ADDRESS_NO_PORT: %w", err)
			}
			if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: source.As4()}); err != nil {
				return fmt.Errorf("bind to %s: %w", source, err)
			}
		}
	}
	if err := unix.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		return fmt.Errorf("connect: %w", err)
	}
	return r.watch(unix.EPOLL_CTL_ADD, i)
}

// tick is how often a wait looks at its context.
const tick = 50 * time.Millisecond

// loop serves sockets until all clients are done.
func (r *epollRunner) loop(ctx context.Context) error {
	events := make([]unix.EpollEvent, batch)
	moved := time.Now()
	for r.left > 0 {
		ready, err := unix.EpollWait(r.epfd, events, int(tick.Milliseconds()))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("epoll_wait: %w", err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case ready > 0:
			moved = time.Now()
		case time.Since(moved) > r.options.Stall:
			return fmt.Errorf("%w for %v", ErrStalled, r.options.Stall)
		}
		for _, e := range events[:max(ready, 0)] {
			if err := r.handle(&e); err != nil {
				return fmt.Errorf("client %d: %w", e.Fd, err)
			}
		}
	}
	return nil
}

// handle makes one step for one client.
func (r *epollRunner) handle(e *unix.EpollEvent) error {
	i := int(e.Fd)
	c := &r.clients[i]
	if c.turn != e.Pad || c.fd < 0 {
		return nil
	}
	if c.state == connecting {
		return r.connected(i)
	}
	if e.Events&unix.EPOLLOUT != 0 && len(c.unsent) > 0 {
		if err := r.write(i, c.unsent); err != nil {
			return err
		}
	}
	if e.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		return r.receive(i)
	}
	return nil
}

// connected sends what waits for the connection.
func (r *epollRunner) connected(i int) error {
	c := &r.clients[i]
	code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	c.state = resting
	if err := r.watch(unix.EPOLL_CTL_MOD, i); err != nil || len(c.out) == 0 {
		return err
	}
	return r.send(i)
}

// receive reads, and goes on when an answer is complete.
func (r *epollRunner) receive(i int) error {
	c := &r.clients[i]
	if len(c.in) > len(r.buf)/2 {
		r.buf = make([]byte, 4*len(c.in))
	}
	held := copy(r.buf, c.in)
	got, err := unix.Read(c.fd, r.buf[held:])
	switch {
	case err == unix.EAGAIN:
		return nil
	case err != nil && c.state == waiting:
		return fmt.Errorf("%w: %w", ErrLost, err)
	case err == nil && got == 0 && c.state == waiting:
		return ErrLost
	case err != nil || got == 0: // nobody waits for it
		c.drop(false)
		return nil
	case c.state != waiting:
		return fmt.Errorf("%w: it answers nothing", ErrAnswer)
	}
	data := r.buf[:held+got]
	a := Answer{Sent: c.sent}
	n, err := parse(data, &a)
	switch {
	case err != nil:
		return err
	case n == 0:
		c.in = append(c.in, r.buf[held:held+got]...)
		return nil
	case n < len(data) && a.Status != 101:
		return fmt.Errorf("%w: %d bytes behind it", ErrAnswer, len(data)-n)
	}
	c.state, c.in, c.out = resting, c.in[:0], c.out[:0]
	a.At = r.options.Now()
	if r.options.Once || a.closes {
		c.drop(true)
	}
	r.answered(i, &a)
	return r.ask(i)
}
