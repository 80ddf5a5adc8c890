package hub

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
	"hub/store"
)

// admin calls the admin API and returns status and body, which is JSON or empty.
func (s *testServer) admin(t testing.TB, method, path, body string) (int, object) {
	t.Helper()
	status, _, text := s.adminRaw(t, method, "/admin/v1/"+path, body, map[string]string{"Authorization": "Bearer " + testAdminKey})
	if text == "" {
		return status, nil
	}
	var answer object
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%s %s: status %d, no JSON: %.200q", method, path, status, text)
	}
	return status, answer
}

func (s *testServer) adminRaw(t testing.TB, method, path, body string, header map[string]string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.AdminAddr()+path, strings.NewReader(body))
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
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(text)
}

// asks is admin with a status that must be.
func (s *testServer) asks(t testing.TB, want int, method, path, body string) object {
	t.Helper()
	status, answer := s.admin(t, method, path, body)
	if status != want {
		t.Fatalf("%s %s %s: status %d %v, want %d", method, path, body, status, answer, want)
	}
	return answer
}

// restart stops the server, whose clients are gone then, and starts one in its place.
func (s *testServer) restart(t testing.TB, o Options) *testServer {
	for _, l := range s.loops {
		onLoop(l, l.dropAll) // nobody would answer its close frame
	}
	s.stop()
	return startServer(t, o, nil)
}

// recorder is a log that tests read.
type recorder struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *recorder) lines(with string) (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.text.String()) {
		if strings.Contains(line, with) {
			lines = append(lines, line)
		}
	}
	return lines
}

func (r *recorder) log() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

// Nothing of the admin API is for who has another key or none, or comes under a
// foreign name; and what it does not know it refuses by a problem document.
func TestAdminEndpointsAreGuarded(t *testing.T) {
	s := adminServer(t)
	for pattern, e := range adminEndpoints {
		if e.development {
			continue
		}
		method, path, _ := strings.Cut(pattern, " ")
		path = "/admin/v1/" + strings.NewReplacer("{db}", "default", "{room}", "open:a", "{id}", "1").Replace(path)
		for _, c := range []struct {
			name   string
			header map[string]string
			want   string
		}{
			{"no key", nil, "unauthorized"},
			{"another key", map[string]string{"Authorization": "Bearer " + testAPIKey}, "unauthorized"},
			{"a token", map[string]string{"Authorization": "Bearer " + token(t, "ann")}, "unauthorized"},
			{"the key elsewhere", map[string]string{"X-API-Key": testAdminKey}, "unauthorized"},
			{"a foreign name", map[string]string{"Authorization": "Bearer " + testAdminKey, "Host": "evil.test"}, "host"},
		} {
			status, header, body := s.adminRaw(t, method, path, "{}", c.header)
			if !strings.Contains(body, `"code":"`+c.want+`"`) || status != problems[c.want].status || header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s with %s: status %d %s, want %s", pattern, c.name, status, body, c.want)
			}
		}
		if status, answer := s.admin(t, method, strings.TrimPrefix(path, "/admin/v1/")+"?tpyo=1", "{}"); status != 400 || answer["code"] != "bad_request" {
			t.Errorf("%s with an unknown parameter: status %d %v", pattern, status, answer)
		}
		if status, _, _ := ask(t, s.Addr(), path, map[string]string{"Authorization": "Bearer " + testAdminKey}); status != http.StatusNotFound {
			t.Errorf("%s for clients: status %d, want 404", path, status)
		}
	}
	for _, c := range []struct{ method, path, code string }{
		{"GET", "", "not_found"},
		{"GET", "nothing", "not_found"},
		{"GET", "rooms/default", "not_found"},
		{"GET", "rooms//open:a", "not_found"},
		{"GET", "rooms/default/../../overview", "not_found"},
		{"PUT", "overview", "method_not_allowed"},
		{"DELETE", "databases", "method_not_allowed"},
		{"OPTIONS", "databases", "method_not_allowed"},
	} {
		if _, answer := s.admin(t, c.method, c.path, ""); answer["code"] != c.code {
			t.Errorf("%s %s: %v, want %s", c.method, c.path, answer, c.code)
		}
	}
}

// Names and values that are none are refused, whatever they try to be.
func TestAdminHostileInput(t *testing.T) {
	s := adminServer(t)
	for _, c := range []struct{ method, path, body, code string }{
		{"GET", "rooms?database=..", "", "unknown_database"},
		{"GET", "rooms?database=_hub", "", "unknown_database"},
		{"GET", "rooms?limit=0", "", "bad_request"},
		{"GET", "rooms?limit=1001", "", "bad_request"},
		{"GET", "rooms?limit=9&limit=9", "", "bad_request"},
		{"GET", "rooms?live=maybe", "", "bad_request"},
		{"GET", "rooms?prefix=" + strings.Repeat("x", 256), "", "bad_request"},
		{"GET", "rooms/..%2F..%2Fetc/open:a", "", "unknown_database"},
		{"GET", "rooms/default/%00", "", "bad_request"},
		{"GET", "rooms/default/%2e%2e%2f%2e%2e%2fpasswd", "", "not_found"}, // a name like any other
		{"GET", "rooms/default/" + strings.Repeat("x", 256), "", "bad_request"},
		{"GET", "connections?after=-1", "", "bad_request"},
		{"GET", "connections?after=x", "", "bad_request"},
		{"GET", "connections?room=open:a", "", "bad_request"},
		{"GET", "connections?database=default&room=%23", "", "bad_request"},
		{"GET", "connections?database=nowhere", "", "unknown_database"},
		{"POST", "disconnect", `{}`, "bad_request"},
		{"POST", "disconnect", ``, "bad_request"},
		{"POST", "disconnect", `{"user":"u","code":2999}`, "bad_request"},
		{"POST", "disconnect", `{"user":"u","code":5000}`, "bad_request"},
		{"POST", "disconnect", `{"user":"u","code":65537}`, "bad_request"},
		{"POST", "disconnect", `{"user":"u","User":"v"}`, "bad_request"},
		{"POST", "disconnect", `{"user":"u","user":"v"}`, "bad_request"},
		{"POST", "disconnect", `{"user":"u","reason":"` + strings.Repeat("x", 124) + `"}`, "bad_request"},
		{"POST", "disconnect", `{"user":"u","database":"nowhere"}`, "unknown_database"},
		{"POST", "disconnect", `{"user":"` + strings.Repeat("u", maxAdminBody) + `"}`, "too_large"},
		{"POST", "revocations", `{}`, "bad_request"},
		{"POST", "revocations", `{"jti":"a","issued_before":1}`, "bad_request"},
		{"POST", "revocations", `{"user":"u","issued_before":-1}`, "bad_request"},
		{"POST", "revocations", `{"user":"u","issued_before":1800000000000}`, "bad_request"},
		{"POST", "revocations", `{"user":"` + strings.Repeat("u", 256) + `"}`, "bad_request"},
		{"POST", "revocations", `{"user":"u\ud800"}`, "bad_request"},
		{"POST", "revocations", `{"user":"u","id":7}`, "bad_request"},
		{"POST", "revocations", `{"user":"u","database":"nowhere"}`, "unknown_database"},
		{"DELETE", "revocations/x", ``, "bad_request"},
		{"DELETE", "revocations/1", ``, "not_found"},
		{"PUT", "capacity", `{"scope":"server"}`, "bad_request"},
		{"PUT", "capacity", `{"scope":"server","limit":-1}`, "bad_request"},
		{"PUT", "capacity", `{"scope":"server","limit":1.5}`, "bad_request"},
		{"PUT", "capacity", `{"scope":"server","limit":1e3}`, "bad_request"},
		{"PUT", "capacity", `{"scope":"planet","limit":1}`, "bad_request"},
		{"PUT", "capacity", `{"scope":"ip","database":"default","limit":1}`, "bad_request"},
		{"PUT", "capacity", `{"scope":"database","database":"nowhere","limit":1}`, "unknown_database"},
		{"DELETE", "capacity", ``, "bad_request"},
		{"POST", "databases", `{}`, "bad_request"},
		{"POST", "databases", `{"name":"../x"}`, "bad_request"},
		{"POST", "databases", `{"name":"_hub"}`, "bad_request"},
		{"POST", "databases", `{"name":"X"}`, "bad_request"},
		{"POST", "databases", `{"name":"a.db"}`, "bad_request"},
		{"POST", "databases", `{"name":"file:x?mode=memory"}`, "bad_request"},
		{"POST", "databases", `{"name":"default"}`, "exists"},
		{"POST", "databases/nowhere/backup", `{}`, "unknown_database"},
		{"POST", "databases/..%2Fx/backup", `{}`, "unknown_database"},
		{"POST", "databases/default/backup", `{"name":"../x"}`, "bad_request"},
		{"POST", "databases/default/backup", `{"name":"/tmp/x"}`, "bad_request"},
		{"POST", "databases/default/backup", `{"name":".x"}`, "bad_request"},
		{"POST", "databases/default/backup", `{"name":"a\\b"}`, "bad_request"},
		{"POST", "databases/default/backup", `{"name":"a\u0000"}`, "bad_request"},
		{"POST", "databases/default/backup", `{"path":"x"}`, "bad_request"},
		{"POST", "databases/nowhere/integrity", ``, "unknown_database"},
		{"POST", "databases/default/integrity", `{"fast":true}`, "bad_request"},
		{"POST", "databases/default/integrity", `[]`, "bad_request"},
	} {
		status, answer := s.admin(t, c.method, c.path, c.body)
		if answer["code"] != c.code || status != problems[c.code].status {
			t.Errorf("%s %.80s %.80s: status %d %v, want %s", c.method, c.path, c.body, status, answer, c.code)
		}
	}
	if names := s.databases.sorted(); len(names) != 1 {
		t.Errorf("databases %q", names)
	}
}

// Every change is in the log with who made it, and no key or token is.
func TestAdminAudit(t *testing.T) {
	var log recorder
	s := startLogging(t, adminOptions(t), nil, log.log())
	secret := token(t, "ann")
	for _, c := range []struct{ method, path, body, logged string }{
		{"POST", "disconnect", `{"user":"ann","reason":"` + secret[:60] + `"}`, "change=disconnect"},
		{"POST", "revocations", `{"user":"bob","note":"` + secret + `"}`, "change=revoke"},
		{"POST", "revocations", `{"user":"","note":"x"}`, "outcome=bad_request"},
		{"DELETE", "revocations/1", ``, "change=restore"},
		{"PUT", "capacity", `{"scope":"ip","limit":7}`, `change="set capacity"`},
		{"DELETE", "capacity?scope=ip", ``, `change="reset capacity"`},
		{"POST", "databases", `{"name":"second"}`, `change="create database"`},
		{"POST", "databases/second/integrity", ``, `change="check integrity"`},
		{"POST", "databases/second/backup", `{"name":"one"}`, `change="back up"`},
	} {
		before := len(log.lines("msg=admin"))
		s.admin(t, c.method, c.path, c.body)
		lines := log.lines("msg=admin")
		if len(lines) != before+1 || !strings.Contains(lines[before], c.logged) || !strings.Contains(lines[before], "remote=127.0.0.1:") || !strings.Contains(lines[before], "level=INFO") {
			t.Errorf("%s %s is logged as %q, want %s", c.method, c.path, lines[before:], c.logged)
		}
	}
	before := len(log.lines(""))
	s.admin(t, "GET", "overview", "")
	if n := len(log.lines("")); n != before {
		t.Errorf("a look is logged")
	}
	for _, hidden := range []string{testAdminKey, secret[:40]} {
		if lines := log.lines(hidden); len(lines) > 0 {
			t.Errorf("a secret is in the log: %q", lines)
		}
	}
}

// The overview counts what happened, in each database by itself.
func TestOverview(t *testing.T) {
	o := adminOptions(t)
	o.Database.Names = []string{"default", "other"}
	s := startServer(t, o, nil)
	a, b := s.connect(t, wire.JSON, "ann"), s.connect(t, wire.Protobuf, "bob")
	for _, c := range []*tester{a, b} {
		c.ok(subscribeTo("open:a"))
		c.ok(subscribeTo("live:a"))
	}
	for range 3 {
		a.ok(publishTo("open:a", `1`))
	}
	a.ok(publishTo("live:a", `1`))
	until(t, "all is delivered", func() bool { _, n := s.databases.get("default").counts(); return n == 8 })
	a.fails(errPermissionDenied.Code, subscribeTo("closed"))
	done := make(chan error, 1)
	s.databases.get("default").store.Operate(store.Operation{Room: "open:b", ID: "1", Steps: []store.Step{{Op: store.StepSet, Key: "k", Value: []byte("1")}}},
		func(_ store.OperationResult, err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if status, _, body := ask(t, s.Addr(), "/v1/default/rooms/open:a/history", map[string]string{"Authorization": "Bearer " + token(t, "ann")}); status != 200 {
		t.Fatal(status, body)
	}
	if status, _ := s.post(t, "/api/info", testAPIKey, "{}"); status != 200 {
		t.Fatal(status)
	}
	_, _, _ = ask(t, s.Addr(), "/nowhere", nil)
	if _, err := upgrade(s.dial(t), wire.JSON, "/v1/nowhere/websocket"); err == nil {
		t.Fatal("a database that is not there")
	}

	got := s.asks(t, 200, "GET", "overview", "")
	rows := got["databases"].([]any)
	if len(rows) != 2 || rows[0].(object)["name"] != "default" || rows[1].(object)["name"] != "other" {
		t.Fatalf("databases %v", rows)
	}
	first, second := rows[0].(object), rows[1].(object)
	for name, want := range map[string]any{
		"connections": 2., "subscriptions": 4., "rooms": 2., "stored_rooms": 2., "publications": 5., "deliveries": 8.,
		"configured": true, "readers": 0., "reader_limit": 4.,
	} {
		if first[name] != want {
			t.Errorf("default: %s is %v, want %v", name, first[name], want)
		}
	}
	for _, name := range []string{"connections", "subscriptions", "rooms", "stored_rooms", "publications", "deliveries", "operations"} {
		if second[name] != 0. {
			t.Errorf("other: %s is %v", name, second[name])
		}
		if got[name] != nil && got[name] != first[name] {
			t.Errorf("%s of all is %v, want %v", name, got[name], first[name])
		}
	}
	if first["file_bytes"].(float64) < 4096 || first["wal_bytes"].(float64) < 4096 {
		t.Errorf("file %v, WAL %v", first["file_bytes"], first["wal_bytes"])
	}
	commits := first["commits"].(object)
	if commits["total"].(float64) < 4 || commits["recent"].(float64) < 4 || commits["failed"] != 0. ||
		commits["p50_ms"].(float64) <= 0 || commits["p99_ms"].(float64) < commits["p50_ms"].(float64) || commits["batch_max"] != 1. {
		t.Errorf("commits %v", commits)
	}
	requests := got["requests"].(object)
	for class, want := range map[string][2]float64{"read": {1, 0}, "mutation": {0, 0}, "server": {1, 0}, "other": {1, 1}, "handshake": {3, 1}} {
		r := requests[class].(object)
		if r["total"] != want[0] || r["client_errors"] != want[1] || r["server_errors"] != 0. {
			t.Errorf("requests of class %s: %v, want %v and of them errors %v", class, r, want[0], want[1])
		}
		if r["recent"].(float64) > 0 && (r["p50_ms"].(float64) <= 0 || r["p99_ms"].(float64) < r["p95_ms"].(float64)) {
			t.Errorf("times of class %s: %v", class, r)
		}
	}
	if n := requests["handshake"].(object)["recent"]; n != 2. {
		t.Errorf("%v handshakes took a time, want 2", n)
	}
	if replies := got["errors"].(object); replies["103"] != 1. || len(replies) != 1 {
		t.Errorf("errors %v", replies)
	}
	process := got["process"].(object)
	for _, name := range []string{"memory", "heap", "cpu", "goroutines", "descriptors", "descriptor_limit"} {
		if process[name].(float64) <= 0 {
			t.Errorf("process: %s is %v", name, process[name])
		}
	}
	if got["state"] != "serving" || got["sockets"].(float64) < 2 || got["socket_writes"].(float64) < 4 || got["log_bytes"].(float64) <= 0 || got["panics"] != 0. {
		t.Errorf("overview %v", got)
	}
}

// Operations are counted once each, replays are not.
func TestOverviewCountsOperations(t *testing.T) {
	o := adminOptions(t)
	ns := openNamespace()
	ns.Operate = AccessUser
	o.Namespaces["state"] = ns
	s := startServer(t, o, nil)
	c := s.connect(t, wire.JSON, "ann")
	for _, id := range []string{"1", "2", "2"} {
		c.ok(&protocol.Command{Rpc: &protocol.RPCRequest{Method: "operate",
			Data: protocol.Raw(`{"room":"state:a","id":"` + id + `","steps":[{"op":"set","key":"k","value":1}]}`)}})
	}
	if got := s.asks(t, 200, "GET", "overview", ""); got["operations"] != 2. || got["publications"] != 2. {
		t.Errorf("%v operations and %v publications, want 2", got["operations"], got["publications"])
	}
}

func BenchmarkOverview(b *testing.B) {
	s := adminServer(b)
	b.ReportAllocs()
	for b.Loop() {
		s.overview()
	}
}
