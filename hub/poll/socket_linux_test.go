package poll

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attached is a socket in a poller of its own and its peer, over loopback.
func attached(t testing.TB) (*epollPoller, *epollSocket, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a, err := Epoll().Listen(l)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client.SetDeadline(time.Now().Add(15 * time.Second))
	h, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := newTestPoller(t)
	s, err := p.Attach(h, "owner")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); client.Close() })
	return p, s.(*epollSocket), client.(*net.TCPConn)
}

func newTestPoller(t testing.TB) *epollPoller {
	t.Helper()
	p, err := Epoll().NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p.(*epollPoller)
}

func TestSocketOptions(t *testing.T) {
	check := func(t *testing.T, fd int) {
		t.Helper()
		for _, o := range []struct {
			name               string
			level, option, min int
			max                int
		}{
			{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1, 1},
			{"TCP_NOTSENT_LOWAT", unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat, notSentLowat},
			// The kernel doubles what is asked for, see socket(7).
			{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, 2 * sendBuffer, 2 * sendBuffer},
			{"TCP_RTO_MAX_MS", unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, retransmitMax, retransmitMax},
		} {
			got, err := unix.GetsockoptInt(fd, o.level, o.option)
			if o.option == unix.TCP_RTO_MAX_MS && err == unix.ENOPROTOOPT {
				t.Log("this kernel has no TCP_RTO_MAX_MS")
				continue
			}
			if err != nil || got < o.min || got > o.max {
				t.Errorf("%s is %d, %v, want %d", o.name, got, err, o.min)
			}
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("flags %#x, %v, want O_NONBLOCK", flags, err)
		}
		flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor flags %#x, %v, want FD_CLOEXEC", flags, err)
		}
	}
	_, s, client := attached(t)
	t.Run("accepted", func(t *testing.T) { check(t, int(s.fd)) })
	t.Run("connected before Listen", func(t *testing.T) {
		config := ListenConfig()
		l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		early, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer early.Close()
		a, err := Epoll().Listen(l)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if a.(*epollAcceptor).tuneEach {
			t.Error("each accepted socket is tuned, which costs three calls")
		}
		h, err := a.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		check(t, h.(*descriptor).fd)
	})
	h, err := Epoll().Take(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	t.Run("taken", func(t *testing.T) { check(t, h.(*descriptor).fd) })
}

// wrapped is what a listener that counts connections returns, say.
type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

func TestTakeRefusesUntouched(t *testing.T) {
	_, _, raw := attached(t)
	a, b := net.Pipe()
	defer b.Close()
	for _, c := range []net.Conn{a, tls.Server(raw, &tls.Config{}), wrapped{tls.Server(raw, &tls.Config{})}} {
		if _, err := Epoll().Take(c, nil); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("take %T: %v, want ErrUnsupported", c, err)
		}
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		t.Errorf("connection under TLS after the refusal: %v", err)
	}
	go b.Write([]byte("x"))
	if n, err := a.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("pipe after the refusal: %d, %v", n, err)
	}
	h, err := Epoll().Take(wrapped{raw}, []byte("read"))
	if err != nil {
		t.Fatalf("take a wrapped TCP connection: %v", err)
	}
	h.Close()
	if err := raw.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection taken over is still open: %v", err)
	}
}

// An event that is left of a socket that closed finds nobody, also when its slot
// and its descriptor's number are in use again.
func TestStaleEvent(t *testing.T) {
	p, s, client := attached(t)
	stale := *s.event(unix.EPOLLIN)
	slot, fd := s.slot, s.fd
	if ev, ok := p.resolve(&stale); !ok || ev.Owner != "owner" {
		t.Fatalf("event of a live socket: %v, %v", ev, ok)
	}
	s.Close()
	if _, ok := p.resolve(&stale); ok {
		t.Error("event of a closed socket")
	}
	h, err := Epoll().Take(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := h.(*descriptor)
	if err := unix.Dup3(d.fd, int(fd), unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	next, err := p.Attach(&descriptor{fd: int(fd)}, "next")
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	h.Close()
	if n := next.(*epollSocket); n.slot != slot || n.fd != fd {
		t.Fatalf("slot %d and descriptor %d are not reused, test is void", n.slot, n.fd)
	}
	if ev, ok := p.resolve(&stale); ok {
		t.Errorf("stale event reached %v", ev.Owner)
	}
}

func TestAnswers(t *testing.T) {
	const idle = time.Minute
	for _, c := range []struct {
		name string
		info unix.TCPInfo
		want bool
	}{
		{"all acknowledged, long ago", unix.TCPInfo{Last_ack_recv: 3_600_000}, true},
		{"data under way, acknowledged lately", unix.TCPInfo{Unacked: 3, Last_ack_recv: 59_999}, true},
		{"data under way, silence", unix.TCPInfo{Unacked: 3, Last_ack_recv: 60_000, Last_data_sent: 20_000}, false},
		{"data sent just now", unix.TCPInfo{Unacked: 3, Last_ack_recv: 60_000, Last_data_sent: 10}, true},
		{"retransmission answered at once, the next not due", unix.TCPInfo{Unacked: 1, Last_ack_recv: 60_000, Last_data_sent: 60_000}, true},
		{"window closed, probe under way", unix.TCPInfo{Probes: 1, Last_ack_recv: 119_000}, true},
		{"window closed, probes unanswered", unix.TCPInfo{Probes: 2, Last_ack_recv: 60_000}, false},
		{"window closed, probes unanswered yet", unix.TCPInfo{Probes: 2, Last_ack_recv: 1_000}, true},
	} {
		if got := answers(&c.info, idle); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// mute makes c's host drop every segment for it, acknowledgements included.
func mute(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: 1, Filter: &drop[0]})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func tcpInfo(t *testing.T, s *epollSocket) *unix.TCPInfo {
	t.Helper()
	info, err := unix.GetsockoptTCPInfo(int(s.fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// waitFor looks every 10 ms at something only the kernel's clock brings about.
func waitFor(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !reached(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

// A peer that does not read is alive; it is dead when its host falls silent.
func TestStalledReader(t *testing.T) {
	t.Parallel()
	const idle = 100 * time.Millisecond
	_, s, client := attached(t)
	buf := make([]byte, 64<<10)
	waitFor(t, "window closed and silence", func() bool {
		for {
			if _, err := s.Write(buf); err == ErrAgain {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		info := tcpInfo(t, s)
		return info.Unacked == 0 && info.Last_ack_recv > uint32(idle.Milliseconds()) && info.Notsent_bytes > 0
	})
	if !s.Stalled(idle) {
		t.Errorf("a peer that does not read counts as dead: %+v", tcpInfo(t, s))
	}
	mute(t, client)
	waitFor(t, "dead after unanswered probes", func() bool { return !s.Stalled(idle) })
	if !s.Stalled(time.Hour) {
		t.Error("dead for an idle time of an hour")
	}
}

func TestSilentHost(t *testing.T) {
	t.Parallel()
	_, s, client := attached(t)
	mute(t, client)
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "dead without acknowledgement", func() bool { return !s.Stalled(200 * time.Millisecond) })
	if !s.Stalled(time.Hour) {
		t.Error("dead for an idle time of an hour")
	}
}

// The cost of an idle connection and of a visit.
func TestCost(t *testing.T) {
	if size := unsafe.Sizeof(epollSocket{}); size > 64 {
		t.Errorf("a socket takes %d bytes, want 64 at most", size)
	}
	p, s, client := attached(t)
	events := make([]Event, 16)
	buf := make([]byte, 64)
	client.Write([]byte("x"))
	allocs := testing.AllocsPerRun(200, func() {
		for {
			n, err := p.Wait(events, -1)
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				break
			}
		}
		if _, err := s.Read(buf); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(buf); err != ErrAgain {
			t.Fatalf("read %v, want ErrAgain", err)
		}
		if _, err := s.Write(buf[:1]); err != nil {
			t.Fatal(err)
		}
		s.Interest(true, true)
		s.Interest(true, false)
		p.Wake()
		if _, err := client.Read(buf); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write(buf[:1]); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations per round trip, want 0", allocs)
	}
}

// Two pollers accept from one listener; a closed acceptor harms nobody.
func TestSharedAcceptor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	a, err := Epoll().Listen(l)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	pollers := []*epollPoller{newTestPoller(t), newTestPoller(t)}
	for _, p := range pollers {
		if err := p.AttachAcceptor(a, a); err != nil {
			t.Fatal(err)
		}
	}
	if err := pollers[0].AttachAcceptor(a, a); err == nil {
		t.Error("attached twice to one poller")
	}
	if _, err := a.Accept(); err != ErrAgain {
		t.Errorf("accept with nobody waiting: %v", err)
	}
	events := make([]Event, 4)
	for _, p := range []*epollPoller{pollers[0], pollers[1]} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := p.Wait(events, -1); n != 1 || err != nil || events[0] != (Event{Owner: a, Readable: true}) {
			t.Errorf("wait: %d, %v, %+v", n, err, events[0])
		}
		h, err := a.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := h.RemoteAddr().String(); got != c.LocalAddr().String() {
			t.Errorf("remote address %s, want %s", got, c.LocalAddr())
		}
		h.Close()
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("after close: %v", err)
		}
		c.Close()
		if err := p.DetachAcceptor(a); err != nil {
			t.Error(err)
		}
		if err := p.DetachAcceptor(a); err == nil {
			t.Error("detached twice")
		}
	}
	a.Close()
	a.Close()
	if _, err := a.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if err := pollers[0].AttachAcceptor(a, a); !errors.Is(err, net.ErrClosed) {
		t.Errorf("attach after close: %v", err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("a closed acceptor still listens")
	}
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]int{
		-1: -1, 0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, 1<<63 - 1: 1<<31 - 1,
	} {
		if got := milliseconds(d); got != want {
			t.Errorf("milliseconds(%d) = %d, want %d", d, got, want)
		}
	}
}
