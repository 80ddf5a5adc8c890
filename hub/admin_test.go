package hub

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gobwas/ws"

	"hub/hub/wire"
)

const testAdminKey = "an-admin-key-for-tests"

// adminServer is a server with an admin listener.
func adminServer(t testing.TB) *testServer { return startServer(t, adminOptions(t), nil) }

func adminOptions(t testing.TB) Options {
	o := testOptions(t)
	o.Admin.Listen, o.Admin.Key = "127.0.0.1:0", testAdminKey
	return o
}

// ask sends a GET to an address and returns status, header and body.
func ask(t *testing.T, addr, path string, header map[string]string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	req.Host, req.Close = header["Host"], true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(body)
}

// Nothing of the admin listener is for anybody without the key, or for a page
// whose name was pointed at it.
func TestAdminGuard(t *testing.T) {
	s := adminServer(t)
	for path, has := range map[string]string{
		"/metrics": "hub_sockets", "/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "TestAdminGuard",
		"/healthz": "ok", "/readyz": "ready",
	} {
		for _, c := range []struct {
			name, authorization, host string
			want                      int
		}{
			{"no key", "", "", 401},
			{"a wrong key", "Bearer " + testAdminKey + "x", "", 401},
			{"a part of the key", "Bearer " + testAdminKey[:5], "", 401},
			{"the key of the server API", "Bearer " + testAPIKey, "", 401},
			{"the right key by another scheme", "apikey " + testAdminKey, "", 401},
			{"the right key", "Bearer " + testAdminKey, "", 200},
			{"the right key on localhost", "Bearer " + testAdminKey, "LocalHost:1", 200},
			{"the right key under a foreign name", "Bearer " + testAdminKey, "evil.test", 403},
			{"no key under a foreign name", "", "evil.test:80", 403},
		} {
			header := map[string]string{"Host": c.host}
			if c.authorization != "" {
				header["Authorization"] = c.authorization
			}
			status, got, body := ask(t, s.AdminAddr(), path, header)
			if status != c.want || (status == 200) != strings.Contains(body, has) {
				t.Errorf("%s with %s: status %d, want %d; body %.200q", path, c.name, status, c.want, body)
			}
			if challenge := got.Get("WWW-Authenticate"); (status == 401) != (challenge != "") {
				t.Errorf("%s with %s: status %d, WWW-Authenticate %q", path, c.name, status, challenge)
			}
		}
	}
	// The clients' listener has none of it.
	for _, path := range []string{"/metrics", "/debug/pprof/", "/admin/v1/"} {
		if status, _, _ := ask(t, s.Addr(), path, map[string]string{"Authorization": "Bearer " + testAdminKey}); status != http.StatusNotFound {
			t.Errorf("%s for clients: status %d, want 404", path, status)
		}
	}
}

// A key that is not configured opens nothing, not even to those who send none.
func TestKeysThatAreNotSet(t *testing.T) {
	o := testOptions(t)
	o.API.Key = ""
	s := startServer(t, o, nil)
	for _, key := range []string{"", "x"} {
		for _, path := range []string{"/api/info", "/v1/default/api/info"} {
			if status, answer := s.post(t, path, key, "{}"); status != http.StatusNotFound {
				t.Errorf("%s with key %q: status %d %v, want 404", path, key, status, answer)
			}
		}
	}
	// An admin listener without a key is refused by Validate; should one exist:
	o = testOptions(t)
	o.Admin.Listen = "127.0.0.1:0"
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "admin.key") {
		t.Errorf("admin.listen without admin.key: %v", err)
	}
	s = startServer(t, testOptions(t), func(s *Server) { s.opts.Admin.Listen = "127.0.0.1:0" })
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer x"} {
		if status, _, _ := ask(t, s.AdminAddr(), "/metrics", map[string]string{"Authorization": authorization}); status != http.StatusUnauthorized {
			t.Errorf("metrics with %q and no key configured: status %d, want 401", authorization, status)
		}
	}
}

// Whatever clients call things, no series is named after it, and their number
// does not grow.
func TestMetricLabels(t *testing.T) {
	s := adminServer(t)
	scrape := func() (series int, text string) {
		t.Helper()
		status, _, text := ask(t, s.AdminAddr(), "/metrics", map[string]string{"Authorization": "Bearer " + testAdminKey})
		if status != http.StatusOK {
			t.Fatalf("metrics: status %d", status)
		}
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				series++
			}
		}
		return series, text
	}
	const mark = "zebra"
	odd := func(i int) {
		name := fmt.Sprint(mark, i)
		for _, path := range []string{"/" + name, "/api/" + name, "/v1/" + name + "/api/info", "/v1/" + name + "/websocket", "/v1/default/" + name} {
			_, _, _ = ask(t, s.Addr(), path, map[string]string{"X-Forwarded-For": "203.0.113.77", "User-Agent": name})
			_, _ = s.post(t, path, testAPIKey, "{}")
		}
		c := s.connect(t, wire.JSON, name)
		c.ok(subscribeTo("open:" + name))
		c.ok(publishTo("open:"+name, `"`+name+`"`))
		c.fails(errUnknownChannel.Code, subscribeTo(name+":a"))
		c.fails(errPermissionDenied.Code, subscribeTo(name))
		s.result(t, "unsubscribe", `{"user":"`+name+`","channel":"open:`+name+`"}`)
		if i%2 == 0 {
			s.result(t, "disconnect", fmt.Sprintf(`{"user":%q,"disconnect":{"code":%d,"reason":%q}}`, name, 4000+i, name))
		} else {
			c.raw(rawFrame(true, ws.OpClose, ws.NewCloseFrameBody(ws.StatusCode(3100+i), name)))
		}
		_ = c.end()
	}
	for i := range 4 {
		odd(i)
	}
	before, _ := scrape()
	for i := range 30 {
		odd(4 + i)
	}
	after, text := scrape()
	if before != after {
		t.Errorf("%d series, %d after more names", before, after)
	}
	for line := range strings.Lines(text) {
		for _, name := range []string{mark, "203.0.113.77", "127.0.0.1", "/api/info", "default/"} {
			if strings.Contains(line, name) {
				t.Errorf("a client's %q is in %s", name, line)
			}
		}
	}
	if !strings.Contains(text, `route="unknown"`) || !strings.Contains(text, `route="POST /api/{method}"`) {
		t.Error("requests are not counted by route")
	}
}
