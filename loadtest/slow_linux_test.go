package loadtest

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hub/loadtest/report"
)

const stalledCheck = "the stalled read nothing"

// TestStalledThatRead: a run whose stalled clients read on proves nothing about
// stalled clients, and says so.
func TestStalledThatRead(t *testing.T) {
	t.Parallel()
	o := small(startHub(t, nil))
	o.Scenario = "slow"
	o.stalling = func(c *conn) error {
		fd := c.sock.(*epollSocket).fd
		if size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); size != 2*slowReceive || err != nil {
			t.Errorf("a receive buffer of %d bytes, %v; want twice %d", size, err, slowReceive)
		}
		return c.setReading(true)
	}
	r, _ := runTest(t, context.Background(), o)
	onlyFailed(t, r, stalledCheck)
	if detail := checkOf(t, r, stalledCheck).Detail; !strings.HasPrefix(detail, "0 of 1") {
		t.Errorf("detail %q", detail)
	}
}

// TestStalled: clients of a server that runs elsewhere are stalled as well, plain
// and through TLS, and what can be known of that is checked.
func TestStalled(t *testing.T) {
	for name, test := range map[string]struct {
		options func(t *testing.T) Options
		server  report.Result // of the check of its memory
	}{
		"elsewhere": {func(t *testing.T) Options { return small(startHub(t, nil)) }, report.NotChecked},
		"TLS":       {func(t *testing.T) Options { o := ownServer(t); o.TLS = true; return o }, report.Passed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := test.options(t)
			o.Scenario = "slow"
			r, _ := runTest(t, context.Background(), o)
			onlyFailed(t, r)
			for check, want := range map[string]report.Result{
				stalledCheck:                            report.Passed,
				"server memory grows by at most 64 MiB": test.server,
				"kernel memory of a stalled connection is at most 256 KiB": report.Passed,
			} {
				if c := checkOf(t, r, check); c.Result != want {
					t.Errorf("%s: %s (%s), want %s", c.Name, c.Result, c.Detail, want)
				}
			}
		})
	}
}

// TestBounded: more memory than the bound fails.
func TestBounded(t *testing.T) {
	for found, want := range map[int64]report.Result{
		0: report.Passed, maxKernelMemory: report.Passed, maxKernelMemory + 1: report.Failed, 1_400_000: report.Failed,
	} {
		st := unrun()
		st.bounded("memory", found, maxKernelMemory)
		if got := checkOf(t, st.r.report, "memory").Result; got != want {
			t.Errorf("%d bytes: %s, want %s", found, got, want)
		}
	}
}

// TestSocketMemories: what was written and not read is in the memory of the socket
// that wrote it, or of the one that does not read it.
func TestSocketMemories(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reader, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	writer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	of := func(local, peer net.Addr) int64 {
		t.Helper()
		all, err := socketMemories(netip.MustParseAddrPort(local.String()))
		if err != nil {
			t.Fatal(err)
		}
		bytes, ok := all[netip.MustParseAddrPort(peer.String())]
		if !ok {
			t.Fatalf("no connection from %s to %s in %v", local, peer, all)
		}
		return bytes
	}
	if bytes := of(writer.LocalAddr(), reader.LocalAddr()); bytes > 64<<10 {
		t.Errorf("a connection that was never used has %d bytes", bytes)
	}
	if err := writer.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	written := 0
	for buf := make([]byte, 64<<10); written < 64<<20; {
		n, err := writer.Write(buf)
		written += n
		if err != nil {
			break
		}
	}
	both := of(writer.LocalAddr(), reader.LocalAddr()) + of(reader.LocalAddr(), writer.LocalAddr())
	if both < int64(written) {
		t.Errorf("%d bytes wait, the sockets use %d", written, both)
	}
	raw, err := reader.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := unreadBytes(raw); !ok || n == 0 || n > written {
		t.Errorf("%d of %d bytes unread, known %v", n, written, ok)
	}
}
