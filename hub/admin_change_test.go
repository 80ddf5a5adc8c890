package hub

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"hub/auth"
	"hub/hub/wire"
)

// Those connections end that are named, with the code that was asked for, and no others.
func TestAdminDisconnect(t *testing.T) {
	s := adminServer(t)
	client := func(user string) (*tester, string) {
		c := s.open(t, wire.JSON)
		return c, c.ok(connectWith(token(t, user))).Connect.Client
	}
	a1, _ := client("ann")
	a2, _ := client("ann")
	b1, b1ID := client("bob")
	b2, _ := client("bob")
	for _, c := range []struct {
		body   string
		closed float64
	}{
		{`{"user":"nobody"}`, 0},
		{`{"client":"nobody"}`, 0},
		{`{"user":"ann","client":"` + b1ID + `"}`, 0},
		{`{"client":"` + b1ID + `","code":4000,"reason":"enough"}`, 1},
		{`{"client":"` + b1ID + `"}`, 0},
		{`{"database":"default","user":"ann"}`, 2},
	} {
		if answer := s.asks(t, 200, "POST", "disconnect", c.body); answer["disconnected"] != c.closed {
			t.Errorf("%s: %v, want %v", c.body, answer, c.closed)
		}
	}
	b1.closes(4000)
	a1.closes(closeForced.code)
	a2.closes(closeForced.code)
	b2.ok(subscribeTo("open:a"))
	if n := s.databases.get("default").connections.Load(); n != 1 {
		t.Errorf("%d connections are left, want 1", n)
	}
}

// What is published after a revocation was answered reaches nobody who had the token;
// it holds until it is taken back, restarts included.
func TestAdminRevocations(t *testing.T) {
	o := adminOptions(t)
	s := startServer(t, o, nil)
	ann, bob := s.connect(t, wire.JSON, "ann"), s.connect(t, wire.JSON, "bob")
	for _, c := range []*tester{ann, bob} {
		c.ok(subscribeTo("open:a"))
	}
	until := time.Now().Add(time.Hour).Unix()
	v := s.asks(t, 201, "POST", "revocations", fmt.Sprintf(`{"user":"ann","until":%d,"note":"spam"}`, until))
	s.result(t, "publish", `{"channel":"open:a","data":1}`)
	ann.closes(closeUserRevoked.code)
	bob.publication()
	if v["user"] != "ann" || v["until"] != float64(until) || v["note"] != "spam" || v["id"] == nil || v["created"] == nil || v["jti"] != nil {
		t.Errorf("answer %v", v)
	}
	for i := range 5 {
		s.asks(t, 201, "POST", "revocations", fmt.Sprintf(`{"jti":"t%d"}`, i))
	}
	s.asks(t, 201, "POST", "revocations", `{"jti":"t0","note":"again"}`)

	refused := func() {
		t.Helper()
		s.open(t, wire.JSON).refusedWith(closeUserRevoked.code, token(t, "ann"))
		s.open(t, wire.JSON).fails(errTokenExpired.Code, connectWith(token(t, "bob", func(c *auth.Claims) { c.ID = "t3" })))
		if status, _, body := ask(t, s.Addr(), "/v1/default/rooms/open:a/history", map[string]string{"Authorization": "Bearer " + token(t, "ann")}); status != 401 {
			t.Errorf("over HTTP: %d %s", status, body)
		}
	}
	refused()
	s = s.restart(t, o)
	refused()

	var seen []any
	for after := ""; ; {
		page := s.asks(t, 200, "GET", "revocations?limit=4&after="+after, "")
		seen = append(seen, page["revocations"].([]any)...)
		if page["total"] != 6. {
			t.Errorf("total %v, want 6", page["total"])
		}
		if page["next"] == nil {
			break
		}
		after = page["next"].(string)
	}
	if len(seen) != 6 || seen[0].(object)["user"] != "ann" || seen[1].(object)["note"] != "again" {
		t.Fatalf("revocations %v", seen)
	}
	id := fmt.Sprint(seen[0].(object)["id"])
	s.asks(t, 204, "DELETE", "revocations/"+id, "")
	s.asks(t, 404, "DELETE", "revocations/"+id, "")
	s.connect(t, wire.JSON, "ann").ok(subscribeTo("open:a"))
}

// refusedWith connects with a token that ends the connection.
func (c *tester) refusedWith(code uint16, token string) {
	c.t.Helper()
	if err := c.send(connectWith(token)); err != nil {
		c.t.Fatal(err)
	}
	c.closes(code)
}

// A cap that is set while running holds at once and after a restart, beats the file
// until it is reset, and ends nobody.
func TestAdminCapacity(t *testing.T) {
	o := adminOptions(t)
	o.Limits.Connections = ConnectionLimits{Server: 100, Database: 50, IP: 10}
	s := startServer(t, o, nil)
	rows := func(answer object) map[string]object {
		byScope := make(map[string]object)
		for _, row := range answer["capacity"].([]any) {
			row := row.(object)
			name := row["scope"].(string)
			if db, ok := row["database"].(string); ok {
				name += " " + db
			}
			byScope[name] = row
		}
		return byScope
	}
	check := func(answer object, scope string, file float64, override any, limit float64, present any) {
		t.Helper()
		row := rows(answer)[scope]
		if row["file"] != file || row["override"] != override || row["limit"] != limit || row["present"] != present {
			t.Errorf("%s: %v, want file %v, override %v, limit %v, present %v", scope, row, file, override, limit, present)
		}
	}
	c := s.connect(t, wire.JSON, "ann")
	s.connect(t, wire.JSON, "bob")
	first := s.asks(t, 200, "GET", "capacity", "")
	check(first, "server", 100, nil, 100, 2.)
	check(first, "database", 50, nil, 50, nil)
	check(first, "database default", 50, nil, 50, 2.)
	check(first, "ip", 10, nil, 10, nil)

	check(s.asks(t, 200, "PUT", "capacity", `{"scope":"database","database":"default","limit":1}`), "database default", 50, 1., 1, 2.)
	check(s.asks(t, 200, "PUT", "capacity", `{"scope":"ip","limit":0}`), "ip", 10, 0., 0, nil)
	full := func() {
		t.Helper()
		if _, err := upgrade(s.dial(t), wire.JSON, defaultSocketPath); err == nil {
			t.Error("a connection above the cap was let in")
		}
	}
	full()
	c.ok(subscribeTo("open:a")) // nobody was closed
	s = s.restart(t, o)
	s.connect(t, wire.JSON, "ann")
	full()
	check(s.asks(t, 200, "GET", "capacity", ""), "database default", 50, 1., 1, 1.)
	check(s.asks(t, 200, "DELETE", "capacity?scope=database&database=default", ""), "database default", 50, nil, 50, 1.)
	check(s.asks(t, 200, "DELETE", "capacity?scope=ip", ""), "ip", 10, nil, 10, nil)
	s.connect(t, wire.JSON, "bob")
}

// Everything may be asked for and changed at once, while clients come and go.
func TestAdminAtOnce(t *testing.T) {
	s := adminServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	var clients, admins sync.WaitGroup
	for range 2 {
		clients.Go(func() {
			for ctx.Err() == nil {
				c := s.connect(t, wire.JSON, "ann")
				c.ok(subscribeTo("open:a"))
				c.ok(publishTo("open:a", "1"))
				c.conn.Close()
			}
		})
	}
	for i, ask := range []struct{ method, path, body string }{
		{"GET", "overview", ""},
		{"GET", "connections", ""},
		{"GET", "connections?database=default&room=open:a", ""},
		{"GET", "connections?user=ann", ""},
		{"GET", "rooms", ""},
		{"GET", "rooms/default/open:a", ""},
		{"POST", "disconnect", `{"user":"bob"}`},
		{"POST", "disconnect", `{"client":"nobody"}`},
		{"POST", "revocations", `{"user":"bob"}`},
		{"GET", "revocations", ""},
		{"DELETE", "revocations/1", ""},
		{"PUT", "capacity", `{"scope":"ip","limit":500}`},
		{"DELETE", "capacity?scope=ip", ""},
		{"GET", "capacity", ""},
		{"POST", "databases", `{"name":"second"}`},
		{"GET", "databases", ""},
		{"POST", "databases/default/integrity", ""},
		{"POST", "databases/default/backup", ""},
	} {
		admins.Go(func() {
			for range 5 {
				if status, answer := s.admin(t, ask.method, ask.path, ask.body); status >= 500 || status == 400 || status >= 400 && ask.method == "GET" && i != 5 {
					t.Errorf("%s %s: status %d %v", ask.method, ask.path, status, answer)
				}
			}
		})
	}
	admins.Wait()
	cancel()
	clients.Wait()
}
