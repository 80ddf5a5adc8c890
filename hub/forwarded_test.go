package hub

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// attemptAfter is attempt; kept says that an ordinary request goes before the
// upgrade on the same connection.
func (s *testServer) attemptAfter(t *testing.T, kept bool, lines ...string) (*wsClient, int) {
	t.Helper()
	conn := s.dial(t)
	in := bufio.NewReader(conn)
	_ = conn.SetDeadline(time.Now().Add(patience))
	requests := []string{upgradeRequest(defaultSocketPath, lines...)}
	if kept {
		requests = append([]string{"GET /healthz HTTP/1.1\r\nHost: hub.test\r\n\r\n"}, requests...)
	}
	status := 0
	for _, request := range requests {
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if status = r.StatusCode; status != http.StatusSwitchingProtocols {
			_, _ = io.Copy(io.Discard, r.Body)
		}
	}
	return &wsClient{conn: conn, in: in}, status
}

// The limit of an address counts clients behind a trusted proxy one by one, and
// believes nobody else.
func TestForwardedAddresses(t *testing.T) {
	forwarded := func(value string) string { return "X-Forwarded-For: " + value }
	type step struct {
		header string
		want   int
	}
	for _, c := range []struct {
		name    string
		proxies []string
		steps   []step
	}{
		{"trusted", []string{"127.0.0.1", "10.0.0.0/8"}, []step{
			{forwarded("203.0.113.1"), 101},
			{forwarded("203.0.113.2"), 101},
			{forwarded("203.0.113.1"), 429},
			{forwarded("198.51.100.9, 203.0.113.1"), 429}, // what stands left is the client's claim
			{forwarded("203.0.113.1, 198.51.100.9"), 101},
			{forwarded("203.0.113.2, 10.1.2.3"), 429}, // over a second proxy
			{forwarded("2001:db8::1"), 101},
			{forwarded("2001:db8::ffff:2"), 429}, // the same /64
			{forwarded("2001:db8:0:1::1"), 101},
			{"X-Real-IP: 203.0.113.50", 101}, // the proxy itself
			{"X-Real-IP: 203.0.113.51", 429},
		}},
		{"another is trusted", []string{"10.0.0.0/8"}, []step{
			{forwarded("203.0.113.1"), 101},
			{forwarded("203.0.113.2"), 429},
			{"", 429},
		}},
		{"none is trusted", nil, []step{
			{forwarded("203.0.113.1"), 101},
			{forwarded("203.0.113.2"), 429},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, kept := range []bool{false, true} {
				backends(t, func(t *testing.T, backend string) {
					o := testOptions(t)
					o.Server.Backend, o.Server.TrustedProxies = backend, c.proxies
					o.Limits.Connections = ConnectionLimits{IP: 1}
					s := startServer(t, o, nil)
					var first *wsClient
					for i, step := range c.steps {
						var lines []string
						if step.header != "" {
							lines = []string{step.header}
						}
						ws, status := s.attemptAfter(t, kept, lines...)
						if status != step.want {
							t.Fatalf("step %d, %s: status %d, want %d", i+1, step.header, status, step.want)
						}
						if i == 0 {
							first = ws
						}
					}
					// The slot that comes back is that of the same address.
					before, _ := s.slots.Counts()
					first.conn.Close()
					until(t, "the first has left", func() bool { n, _ := s.slots.Counts(); return n < before })
					if _, status := s.attemptAfter(t, kept, c.steps[0].header); status != 101 {
						t.Errorf("the first one's address afterwards: status %d, want 101", status)
					}
				})
			}
		})
	}
}

// The same over IPv6, where there is a loopback address of it.
func TestForwardedIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 loopback")
	} else {
		l.Close()
	}
	backends(t, func(t *testing.T, backend string) {
		for name, c := range map[string]struct {
			proxies []string
			second  int
		}{"trusted": {[]string{"::1"}, 101}, "not trusted": {nil, 429}} {
			o := testOptions(t)
			o.Server.Backend, o.Server.Listen, o.Server.TrustedProxies = backend, "[::1]:0", c.proxies
			o.Limits.Connections = ConnectionLimits{IP: 1}
			s := startServer(t, o, nil)
			for i, step := range []struct {
				addr string
				want int
			}{{"2001:db8::1", 101}, {"2001:db8:1::1", c.second}, {"2001:db8::2", 429}} {
				if _, status := s.attemptAfter(t, false, "X-Forwarded-For: "+step.addr); status != step.want {
					t.Errorf("%s, step %d: status %d, want %d", name, i+1, status, step.want)
				}
			}
		}
	})
}

// The log names the client and not the proxy.
func TestForwardedAddressInTheLog(t *testing.T) {
	var log logText
	o := testOptions(t)
	o.Server.TrustedProxies = []string{"127.0.0.1"}
	s := startServer(t, o, func(s *Server) {
		s.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	ws, _ := s.attemptAfter(t, false, "X-Forwarded-For: 203.0.113.1")
	(&tester{ws, t}).ok(connectWith(token(t, "u")))
	ws.conn.Close()
	until(t, "it has left", func() bool { n, _ := s.slots.Counts(); return n == 0 })
	for _, what := range []string{"connected", "disconnected"} {
		found := false
		for line := range strings.Lines(log.String()) {
			found = found || strings.Contains(line, "msg="+what+" ") && strings.Contains(line, "addr=203.0.113.1")
		}
		if !found {
			t.Errorf("no line %q with the client's address in\n%s", what, log.String())
		}
	}
}

// logText is what a server has logged.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
