package poll_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hub/hub/poll"
)

// Out of descriptors, Accept says so; detached, the acceptor does not spin the
// loop, and it goes on when connections have gone. In a child process, since the
// limit is the process's.
func TestOutOfDescriptors(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "POLL_TEST_CHILD=descriptors")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func child() int {
	if err := exhaust(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func exhaust() error {
	const limit, clients = 64, 100
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := l.Addr().String()
	a, err := poll.Epoll().Listen(l)
	if err != nil {
		return err
	}
	p, err := poll.Epoll().NewPoller()
	if err != nil {
		return err
	}
	if err := p.AttachAcceptor(a, a); err != nil {
		return err
	}
	// The clients are descriptors of this process too, so they come first.
	var conns []net.Conn
	for range clients {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: clients + limit, Max: clients + limit}); err != nil {
		return err
	}
	events := make([]poll.Event, 8)
	var sockets []poll.Socket
	var acceptErr error
	for acceptErr == nil {
		if n, err := p.Wait(events, 5*time.Second); n == 0 || err != nil {
			return fmt.Errorf("wait: %d events, %v, with %d accepted", n, err, len(sockets))
		}
		var h poll.Handle
		if h, acceptErr = a.Accept(); acceptErr == nil {
			s, err := p.Attach(h, h)
			if err != nil {
				return err
			}
			sockets = append(sockets, s)
		}
	}
	if !errors.Is(acceptErr, unix.EMFILE) {
		return fmt.Errorf("accept: %w, want EMFILE", acceptErr)
	}
	if err := p.DetachAcceptor(a); err != nil {
		return err
	}
	if n, err := p.Wait(events, 20*time.Millisecond); n != 0 || err != nil {
		return fmt.Errorf("a detached acceptor: %d events, %v", n, err)
	}
	if _, err := sockets[0].Write([]byte("still here")); err != nil {
		return err
	}
	if _, err := conns[0].Read(make([]byte, 10)); err != nil {
		return err
	}
	accepted := len(sockets)
	for _, s := range sockets {
		s.Close()
	}
	if err := p.AttachAcceptor(a, a); err != nil {
		return err
	}
	for ; accepted < clients; accepted++ {
		if n, err := p.Wait(events, 5*time.Second); n == 0 || err != nil {
			return fmt.Errorf("wait after recovery: %d events, %v", n, err)
		}
		h, err := a.Accept()
		if err != nil {
			return fmt.Errorf("accept after recovery: %w", err)
		}
		h.Close()
	}
	return nil
}
