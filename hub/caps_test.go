package hub

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hub/hub/poll/polltest"
	"hub/hub/wire"
)

// attempt opens a connection to a server, upgrade included, and returns the
// status of the answer.
func (s *testServer) attempt(path string, lines ...string) (conn net.Conn, status int, header http.Header, err error) {
	conn, err = net.Dial("tcp", s.Addr())
	if err != nil {
		return nil, 0, nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err = io.WriteString(conn, upgradeRequest(path, lines...)); err == nil {
		var r *http.Response
		if r, err = http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			return conn, r.StatusCode, r.Header, nil
		}
	}
	conn.Close()
	return nil, 0, nil, err
}

// Every way in which a connection can fail to begin gives its slot back.
func TestSlotsComeBack(t *testing.T) {
	const limit = 4
	for name, caps := range map[string]ConnectionLimits{
		"server": {Server: limit}, "database": {Database: limit}, "address": {IP: limit},
	} {
		t.Run(name, func(t *testing.T) {
			backends(t, func(t *testing.T, backend string) {
				o := testOptions(t)
				o.Server.Backend = backend
				o.Server.HandshakeTimeout = 400 * time.Millisecond
				o.Limits.Connections = caps
				s := startServer(t, o, nil)
				var all sync.WaitGroup
				for _, fail := range failures(s) {
					for range 3 * limit {
						all.Go(func() { fail(t) })
					}
				}
				all.Wait()
				until(t, "all slots are back", func() bool { n, _ := s.slots.Counts(); return n == 0 })
				s.fillUp(t, limit, name == "address")
			})
		})
	}
}

// failures are the ways, by name.
func failures(s *testServer) map[string]func(t *testing.T) {
	raw := func(request string, then func(net.Conn)) func(t *testing.T) {
		return func(t *testing.T) {
			conn, err := net.Dial("tcp", s.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(conn, request)
			then(conn)
		}
	}
	reset := func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }
	answered := func(c net.Conn) { _, _ = http.ReadResponse(bufio.NewReader(c), nil) }
	ws := func(token string) func(t *testing.T) {
		return func(t *testing.T) {
			conn, status, _, err := s.attempt(defaultSocketPath)
			if err != nil || status != http.StatusSwitchingProtocols {
				return // full for the moment
			}
			defer conn.Close()
			c := &wsClient{conn: conn, in: bufio.NewReader(conn)}
			if token != "" {
				_ = c.send(connectWith(token))
			}
			_ = c.end()
		}
	}
	return map[string]func(t *testing.T){
		"a plain GET":                   raw("GET "+defaultSocketPath+" HTTP/1.1\r\nHost: hub.test\r\n\r\n", answered),
		"a refused Origin":              raw(upgradeRequest(defaultSocketPath, "Origin: http://evil.test"), answered),
		"a bad key":                     raw(strings.Replace(upgradeRequest(defaultSocketPath), "dGhl", "@@@@", 1), answered),
		"an unknown database":           raw(upgradeRequest("/v1/nothing/websocket"), answered),
		"half a request and a reset":    raw("GET "+defaultSocketPath+" HTTP/1.1\r\nHos", reset),
		"a whole request and a reset":   raw(upgradeRequest(defaultSocketPath), reset),
		"half a request and no more":    raw("GET "+defaultSocketPath+" HTTP/1.1\r\nHos", answered),
		"no connect command in time":    ws(""),
		"a wrong token":                 ws("x.y.z"),
		"a request and then the end":    raw(upgradeRequest(defaultSocketPath), func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite(); answered(c) }),
		"an upgrade that is no request": raw("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", answered),
	}
}

// fillUp opens connections up to the limit, is refused one more, and gets in
// again when one has left.
func (s *testServer) fillUp(t *testing.T, limit int, address bool) {
	t.Helper()
	tok := token(t, "u")
	open := func() (net.Conn, int) {
		conn, status, header, err := s.attempt(defaultSocketPath)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if status != http.StatusSwitchingProtocols {
			want := http.StatusServiceUnavailable
			if address {
				want = http.StatusTooManyRequests
			}
			if status != want || header.Get("Retry-After") == "" {
				t.Errorf("status %d with Retry-After %q, want %d and a time", status, header.Get("Retry-After"), want)
			}
			return nil, status
		}
		c := &wsClient{conn: conn, in: bufio.NewReader(conn)}
		if _, err := c.call(connectWith(tok)); err != nil {
			t.Fatal(err)
		}
		return conn, status
	}
	var conns []net.Conn
	for i := range limit {
		conn, status := open()
		if conn == nil {
			t.Fatalf("connection %d of %d: status %d", i+1, limit, status)
		}
		conns = append(conns, conn)
	}
	if conn, _ := open(); conn != nil {
		t.Errorf("connection %d of %d was let in", limit+1, limit)
	}
	conns[0].Close()
	until(t, "a connection is let in again", func() bool { n, _ := s.slots.Counts(); return n < limit })
	if conn, status := open(); conn == nil {
		t.Errorf("status %d after one has left", status)
	}
}

// Of many handshakes at once as many as may be are let in.
func TestSimultaneousHandshakes(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		o.Limits.Connections = ConnectionLimits{IP: 10}
		s := startServer(t, o, nil)
		var in atomic.Int32
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				conn, status, _, err := s.attempt(defaultSocketPath)
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { conn.Close() })
				if status == http.StatusSwitchingProtocols {
					in.Add(1)
				}
			})
		}
		all.Wait()
		if n := in.Load(); n != 10 {
			t.Errorf("%d were let in, want 10", n)
		}
	})
}

func TestOrigins(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		o.Server.Origins = []string{"https://App.test", "https://*.wild.test"}
		s := startServer(t, o, nil)
		for origin, want := range map[string]int{
			"":                       101,
			"http://hub.test":        101,
			"http://HUB.test":        101,
			"http://hub.test:8080":   403,
			"http://evil.test":       403,
			"https://app.test":       101,
			"http://app.test":        403,
			"https://app.test:8443":  403,
			"https://a.wild.test":    101,
			"https://wild.test":      403,
			"https://evilwild.test":  403,
			"null":                   403,
			"https://app.test/":      403,
			"https://app.test.evil":  403,
			"http://hub.test.evil":   403,
			"https://x@app.test":     403,
			"file://":                403,
			"https://app.test, null": 403,
		} {
			var lines []string
			if origin != "" {
				lines = append(lines, "Origin: "+origin)
			}
			conn, status, _, err := s.attempt(defaultSocketPath, lines...)
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if status != want {
				t.Errorf("Origin %q: status %d, want %d", origin, status, want)
			}
		}
		conn, status, _, err := s.attempt(defaultSocketPath, "Origin: https://app.test", "Origin: https://app.test")
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if status != 403 && status != 400 {
			t.Errorf("two Origin lines: status %d", status)
		}
	})
}

// A connection that asked for something else first is upgraded all the same,
// with what came behind the request.
func TestUpgradeOfKeptAliveConnection(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		conn := s.dial(t)
		_ = conn.SetDeadline(time.Now().Add(patience))
		in := bufio.NewReader(conn)
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: hub.test\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(in, nil)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("healthz: %v, %v", r, err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		c := &tester{&wsClient{conn: conn, in: in}, t}
		early := c.frame(connectWith(token(t, "u")))
		if _, err := conn.Write(append([]byte(upgradeRequest(defaultSocketPath)), early...)); err != nil {
			t.Fatal(err)
		}
		if r, err = http.ReadResponse(in, nil); err != nil || r.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("upgrade: %v, %v", r, err)
		}
		if reply, err := c.reply(1); err != nil || reply.Connect == nil {
			t.Fatalf("got %v, %v, want the connect reply", reply, err)
		}
		c.ok(subscribeTo("open:kept"))
		c.ok(publishTo("open:kept", `1`))
		conn.Close()
		until(t, "the slot is back", func() bool { n, _ := s.slots.Counts(); return n == 0 })
	})
}

// Out of descriptors, a loop stops accepting for a while, says so once, and goes
// on by itself.
func TestOutOfDescriptors(t *testing.T) {
	network := polltest.New(1, polltest.Faults{})
	listener := network.NewListener()
	lines := new(countingLog)
	s := startServer(t, testOptions(t), func(s *Server) {
		s.backend, s.listener = network, listener
		s.log = slog.New(slog.NewTextHandler(lines, nil))
	})
	listener.Fail(syscall.EMFILE)
	var peers []*polltest.Peer
	for range 5 {
		p, err := listener.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		peers = append(peers, p)
	}
	until(t, "it is noticed", func() bool { return lines.count("cannot accept") > 0 })
	// Meanwhile the loops serve the others, and do not run hot.
	for _, l := range s.loops {
		onLoop(l, func() {})
	}
	listener.Fail(nil)
	for _, p := range peers {
		if _, err := upgrade(p, wire.JSON, defaultSocketPath); err != nil {
			t.Fatal(err)
		}
	}
	if n := lines.count("cannot accept"); n != 1 {
		t.Errorf("%d lines about it, want 1", n)
	}
}

// countingLog counts lines.
type countingLog struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (l *countingLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

func (l *countingLog) count(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

// Paths and names that mean nothing are refused before anything is upgraded.
func TestUnknownRoutes(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		for _, path := range []string{"/", "/v1/nothing/websocket", "/v1//websocket", "/v1/..%2F..%2Fetc/websocket", "/v1/default/websocket/x", "/connection/websocket/"} {
			conn, status, _, err := s.attempt(path)
			if err != nil {
				t.Fatal(fmt.Errorf("%s: %w", path, err))
			}
			conn.Close()
			if status != http.StatusNotFound && status != http.StatusMovedPermanently && status != http.StatusTemporaryRedirect {
				t.Errorf("%s: status %d, want 404", path, status)
			}
		}
	})
}
