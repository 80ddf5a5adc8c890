package hub

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// exchange sends a request and reads the answer, body included.
func (c *wsClient) exchange(request string) (*http.Response, error) {
	if c.in == nil {
		c.in = bufio.NewReader(c.conn)
	}
	_ = c.conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c.conn, request); err != nil {
		return nil, err
	}
	r, err := http.ReadResponse(c.in, nil)
	if err == nil && r.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return r, err
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A server that is stopping refuses upgrades, those on kept connections too, and
// says when to come again.
func TestUpgradeWhileDraining(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		kept := s.dial(t)
		c := &wsClient{conn: kept}
		answer := func(request string) *http.Response {
			t.Helper()
			r, err := c.exchange(request)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := answer("GET /healthz HTTP/1.1\r\nHost: hub.test\r\n\r\n"); r.StatusCode != http.StatusOK {
			t.Fatalf("healthz: status %d", r.StatusCode)
		}
		s.draining.Store(true)
		defer s.draining.Store(false)
		for name, r := range map[string]*http.Response{
			"kept": answer(upgradeRequest(defaultSocketPath)),
			"new":  must((&wsClient{conn: s.dial(t)}).exchange(upgradeRequest(defaultSocketPath))),
		} {
			body := string(must(io.ReadAll(r.Body)))
			if r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" || !strings.Contains(body, `"draining"`) {
				t.Errorf("%s connection: status %d, Retry-After %q, %s", name, r.StatusCode, r.Header.Get("Retry-After"), body)
			}
		}
		if n, _ := s.slots.Counts(); n != 0 {
			t.Errorf("%d slots are taken", n)
		}
	})
}
