package hub

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// inspectToken asks for a token of the console.
func (s *testServer) inspectToken(t *testing.T, database string) string {
	t.Helper()
	status, answer := s.admin(t, "POST", "inspect", `{"database":"`+database+`"}`)
	token, _ := answer["token"].(string)
	if status != http.StatusCreated || token == "" {
		t.Fatalf("inspect: status %d %v", status, answer)
	}
	return token
}

func connectCommand(token string) *protocol.Command {
	return &protocol.Command{Connect: &protocol.ConnectRequest{Token: token}}
}

// The files of the console need no key, nothing else loses its guard by that, and a
// foreign name gets neither.
func TestConsoleFiles(t *testing.T) {
	s := adminServer(t)
	for path, has := range map[string]string{"/console/": "<!doctype html>", "/console/console.js": "import", "/hub.js": "export class Hub"} {
		status, header, body := ask(t, s.AdminAddr(), path, nil)
		if status != http.StatusOK || !strings.Contains(body, has) || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d %v %.80q", path, status, header, body)
		}
		if status, _, _ := ask(t, s.AdminAddr(), path, map[string]string{"Host": "evil.test"}); status != http.StatusForbidden {
			t.Errorf("%s under a foreign name: status %d, want 403", path, status)
		}
	}
	_, header, _ := ask(t, s.AdminAddr(), "/console/", nil)
	if policy := header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") ||
		!strings.Contains(policy, "connect-src 'self' ws: wss:") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy of the page is %q", policy)
	}
	for _, path := range []string{"/console/../metrics", "/console/%2e%2e/metrics", "/console/..%2fmetrics", "/console//../admin/v1/overview", "/console/metrics"} {
		if status, _, body := ask(t, s.AdminAddr(), path, nil); status == http.StatusOK || strings.Contains(body, "hub_sockets") {
			t.Errorf("%s without a key: status %d %.80q", path, status, body)
		}
	}
	if status, _, _ := ask(t, s.Addr(), "/console/", nil); status != http.StatusNotFound {
		t.Errorf("the console for clients: status %d, want 404", status)
	}
}

// A token of the console opens one database, and there what a server may do.
func TestInspectorMayEverything(t *testing.T) {
	o := adminOptions(t)
	o.Database.Names = []string{"default", "other"}
	s := startServer(t, o, nil)
	token := s.inspectToken(t, "default")
	c := s.open(t, wire.JSON)
	c.ok(connectCommand(token))
	// The namespace default is closed: it asks for grants, and for servers to operate.
	c.ok(&protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: "lobby"}})
	c.ok(&protocol.Command{Publish: &protocol.PublishRequest{Channel: "lobby", Data: []byte(`1`)}})
	c.ok(&protocol.Command{History: &protocol.HistoryRequest{Channel: "lobby", Limit: 1}})
	r := c.ok(&protocol.Command{Rpc: &protocol.RPCRequest{Method: "operate", Data: []byte(`{"room":"lobby","id":"1","steps":[{"op":"set","key":"a","value":1}]}`)}})
	if !strings.Contains(string(r.Rpc.Data), `"offset":2`) {
		t.Errorf("operate: %s", r.Rpc.Data)
	}
	if _, page := s.admin(t, "GET", "connections?user="+consoleUser, ""); page["total"] != 1.0 {
		t.Errorf("its connection is not among the others: %v", page)
	}
	elsewhere, err := upgrade(s.dial(t), wire.JSON, "/v1/other/websocket")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := elsewhere.call(connectCommand(token)); err == nil && r.Error == nil {
		t.Error("the token opened another database")
	}
	if status, answer := s.admin(t, "POST", "inspect", `{"database":"nowhere"}`); status != http.StatusNotFound {
		t.Errorf("a token for a database that is missing: status %d %v", status, answer)
	}
}

// What is signed by anything but the key made of the admin key is no operator.
func TestForgedInspectorTokens(t *testing.T) {
	s := adminServer(t)
	now := time.Now()
	good, err := auth.New(auth.Options{HMACSecret: testSecret, Revalidate: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	forged, _, ok := good.WithOperators("another admin key").Operator("somebody", "default", now)
	if !ok {
		t.Fatal("no token")
	}
	past, _, _ := good.WithOperators(testAdminKey).Operator(consoleUser, "default", now.Add(-time.Hour))
	real := s.inspectToken(t, "default")
	cut := strings.LastIndex(real, ".")
	for name, token := range map[string]string{
		"another admin key's":    forged,
		"without its signature":  real[:cut+1],
		"another's signature":    real[:cut] + forged[strings.LastIndex(forged, "."):],
		"another's claims":       forged[:strings.LastIndex(forged, ".")] + real[cut:],
		"one whose time is over": past,
	} {
		c := s.open(t, wire.JSON)
		if r, err := c.call(connectCommand(token)); err == nil && r.Error == nil {
			t.Errorf("%s: connected", name)
		}
	}
	// A user of the same name is a user.
	c := s.connect(t, wire.JSON, consoleUser)
	c.fails(103, &protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: "lobby"}})
}

// A connection of the console ends with the admin key that opened it.
func TestInspectorEndsWithTheKey(t *testing.T) {
	o := adminOptions(t)
	o.Auth.Revalidate = 50 * time.Millisecond
	s := startServer(t, o, nil)
	token := s.inspectToken(t, "default")
	c, user := s.open(t, wire.JSON), s.connect(t, wire.JSON, "ann")
	c.ok(connectCommand(token))
	o.Admin.Key = "another-admin-key-for-tests"
	if _, err := s.Reload(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	c.closes(3005)
	user.ok(&protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: "open:a"}}) // others stay
	again := s.open(t, wire.JSON)
	if r, err := again.call(connectCommand(token)); err == nil && r.Error == nil {
		t.Error("the token of the old key connected")
	}
}

// The console's page may open a socket at the host that served it, from its own port
// alone.
func TestConsoleOrigin(t *testing.T) {
	s := adminServer(t)
	port := strconv.Itoa(portOf(s.Server.admin.Addr()))
	for origin, want := range map[string]bool{
		"http://hub.test:" + port:     true, // the Host that upgrade names
		"http://localhost:" + port:    false,
		"http://evil.test:" + port:    false,
		"http://hub.test:1":           false,
		"http://app.hub.test:" + port: false,
		"null":                        false,
	} {
		_, err := upgrade(s.dial(t), wire.JSON, defaultSocketPath, "Origin: "+origin)
		if (err == nil) != want {
			t.Errorf("Origin %s: %v, want allowed = %v", origin, err, want)
		}
	}
}

// Tokens of users are made in development alone, and are good.
func TestDevelopmentToken(t *testing.T) {
	o := adminOptions(t)
	if status, answer := startServer(t, o, nil).admin(t, "POST", "token", `{"user":"ann"}`); status != http.StatusNotFound {
		t.Errorf("with a configuration: status %d %v, want 404", status, answer)
	}
	o = adminOptions(t)
	o.Development, o.Server.Listen = true, "127.0.0.1:0"
	s := startServer(t, o, nil)
	status, answer := s.admin(t, "POST", "token", `{"user":"ann","ttl":60}`)
	token, _ := answer["token"].(string)
	if status != http.StatusCreated {
		t.Fatalf("status %d %v", status, answer)
	}
	if claims, err := s.policy.Load().verifier.Connection(token, time.Now()); err != nil || claims.User != "ann" || claims.Operator {
		t.Errorf("the token has %+v, %v", claims, err)
	}
	for _, body := range []string{`{}`, `{"user":""}`, `{"user":"ann","ttl":-1}`, `{"user":"ann","ttl":9223372036854775807}`,
		`{"user":"` + strings.Repeat("a", 256) + `"}`, `{"user":"ann","database":"nowhere"}`} {
		if status, answer := s.admin(t, "POST", "token", body); status < 400 || status > 499 {
			t.Errorf("%.60s: status %d %v", body, status, answer)
		}
	}
}
