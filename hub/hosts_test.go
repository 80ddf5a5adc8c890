package hub

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// statusOf sends one request with this Host and more header lines, an upgrade if
// the path is a socket's.
func (s *testServer) statusOf(t *testing.T, path, host, lines string) int {
	t.Helper()
	conn := s.dial(t)
	defer conn.Close()
	if isSocketPath(path) {
		lines += upgradeLines
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", path, host, lines); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusSwitchingProtocols {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	return r.StatusCode
}

// A development server, whose rules are open, is reached directly and by names of
// this machine only; a configured one has its own say.
func TestDevelopmentIsForThisMachine(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		for _, development := range []bool{true, false} {
			o := testOptions(t)
			o.Server.Backend, o.Development = backend, development
			s := startServer(t, o, nil)
			_, port, err := net.SplitHostPort(s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			own := "127.0.0.1:" + port
			for _, test := range []struct {
				host, lines string
				ok          bool
			}{
				{own, "", true},
				{"localhost:" + port, "", true},
				{"LOCALHOST", "", true},
				{"[::1]:" + port, "", true},
				{own, "X-Forwarded-For: 203.0.113.9\r\n", false},
				{own, "x-forwarded-for: 127.0.0.1\r\n", false},
				{own, "X-Forwarded-Host: localhost\r\n", false},
				{own, "X-Forwarded-Proto: https\r\n", false},
				{own, "Forwarded: for=203.0.113.9\r\n", false},
				{"evil.example:" + port, "", false},
				{"evil.example:" + port, "Origin: http://evil.example:" + port + "\r\n", false},
				{"localhost.evil.example:" + port, "", false},
				{"127.0.0.1.evil.example", "", false},
			} {
				for path, good := range map[string]int{
					defaultSocketPath: http.StatusSwitchingProtocols, "/v1/default/websocket": http.StatusSwitchingProtocols,
					"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/api/info": http.StatusMethodNotAllowed,
				} {
					want := good
					if development && !test.ok {
						want = http.StatusForbidden
					}
					if got := s.statusOf(t, path, test.host, test.lines); got != want {
						t.Errorf("development %v, %s, Host %s, %q: status %d, want %d", development, path, test.host, test.lines, got, want)
					}
				}
			}
		}
	})
}
