package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// api calls a method of the server API of the default database.
func (s *testServer) api(t testing.TB, method, body string) map[string]any {
	t.Helper()
	return s.apiAt(t, "/api/"+method, body)
}

func (s *testServer) apiAt(t testing.TB, path, body string) map[string]any {
	t.Helper()
	status, answer := s.post(t, path, testAPIKey, body)
	if status != http.StatusOK {
		t.Fatalf("POST %s %s: status %d, %v", path, body, status, answer)
	}
	return answer
}

func (s *testServer) post(t testing.TB, path, key, body string) (status int, answer map[string]any) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+s.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		t.Fatalf("POST %s: %v", path, err)
	}
	return res.StatusCode, answer
}

// result calls a method that must not fail and returns its result.
func (s *testServer) result(t testing.TB, method, body string) map[string]any {
	t.Helper()
	answer := s.api(t, method, body)
	if e := answer["error"]; e != nil {
		t.Fatalf("%s %s: error %v", method, body, e)
	}
	result, _ := answer["result"].(map[string]any)
	return result
}

// apiCode is the error code of an answer, 0 without one.
func apiCode(answer map[string]any) int {
	e, _ := answer["error"].(map[string]any)
	code, _ := e["code"].(float64)
	return int(code)
}

func apiServer(t *testing.T) *testServer {
	o := testOptions(t)
	o.Database.Names = []string{"default", "other"}
	short := openNamespace()
	short.MaxMessage = 10
	o.Namespaces["short"] = short
	return startServer(t, o, nil)
}

func TestAPIRefusals(t *testing.T) {
	s := apiServer(t)
	for body, code := range map[string]int{
		`publish {"channel":"open:a"}`:                                                     107,
		`publish {"channel":"open:a","data":1,"tag":{}}`:                                   107,
		`publish {"channel":"open:a","data":1,"skip_history":true}`:                        107,
		`publish {"channel":"open:a","data":1,"delta":true}`:                               107,
		`publish {"channel":"open:a","data":1} {}`:                                         107,
		`publish {"channel":"open:a","data":`:                                              107,
		`publish {"channel":"open:a","b64data":"eyJhIjo="}`:                                107,
		`publish {"channel":"","data":1}`:                                                  107,
		`publish {"channel":"nowhere:a","data":1}`:                                         102,
		`publish {"channel":"short:a","data":"12345678901"}`:                               106,
		`publish {"channel":"live:a","data":1,"idempotency_key":"k"}`:                      108,
		`publish {"channel":"open:a","data":1,"idempotency_key":"` + long(256) + `"}`:      107,
		`broadcast {"channels":[],"data":1}`:                                               107,
		`subscribe {"channel":"open:a"}`:                                                   107,
		`subscribe {"user":"u","channel":"nowhere:a"}`:                                     102,
		`subscribe {"user":"u","channel":"open:a","session":"x"}`:                          107,
		`unsubscribe {"user":"u","channel":""}`:                                            107,
		`disconnect {}`:                                                                    107,
		`disconnect {"user":"u","disconnect":{"code":1005}}`:                               107,
		`refresh {"user":"u"}`:                                                             107,
		`presence {"channel":"a"}`:                                                         108,
		`presence_stats {"channel":"nowhere:a"}`:                                           102,
		`history {"channel":"live:a","limit":1}`:                                           108,
		`history {"channel":"open:a","limit":1,"reverse":true,"since":{"offset":0}}`:       107,
		`history {"channel":"open:a","limit":1,"since":{"offset":0,"epoch":"of another"}}`: 112,
		`history_remove {"channel":"live:a"}`:                                              108,
		`channels {"pattern":"["}`:                                                         107,
		`info {"x":1}`:                                                                     107,
		`batch {"commands":{}}`:                                                            107,
	} {
		method, body, _ := strings.Cut(body, " ")
		if got := apiCode(s.api(t, method, body)); got != code {
			t.Errorf("%s %.80s: error %d, want %d", method, body, got, code)
		}
	}
	for path, want := range map[string]int{
		"/api/nothing": 404, "/v1/nowhere/api/info": 404, "/v1/other/api/info": 200, "/api/info": 200,
	} {
		if status, answer := s.post(t, path, testAPIKey, "{}"); status != want {
			t.Errorf("%s: status %d %v, want %d", path, status, answer, want)
		}
	}
	for _, key := range []string{"", testAPIKey + "x", testAPIKey[:5]} {
		if status, answer := s.post(t, "/api/info", key, "{}"); status != http.StatusUnauthorized || answer["code"] != "unauthorized" {
			t.Errorf("key %q: status %d %v, want 401", key, status, answer)
		}
	}
	if status, _ := s.post(t, "/api/publish", testAPIKey, strings.Repeat(" ", maxAPIBody+1)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of more than 16 MiB: status %d, want 413", status)
	}
}

func long(n int) string { return strings.Repeat("k", n) }

func TestAPIPublish(t *testing.T) {
	s := apiServer(t)
	c := s.connect(t, wire.Protobuf, "u")
	c.ok(subscribeTo("open:a"))
	first := s.result(t, "publish", `{"channel":"open:a","data":{"x": 1},"tags":{"k":"v"}}`)
	if first["offset"] != 1.0 || first["epoch"] == "" {
		t.Errorf("result %v, want offset 1 and an epoch", first)
	}
	if _, p := c.publication(); p.Offset != 1 || string(p.Data) != `{"x": 1}` || p.Tags["k"] != "v" || p.Info != nil {
		t.Errorf("publication %v", p)
	}
	s.result(t, "publish", `{"channel":"open:a","b64data":"eyJ5IjoyfQ=="}`)
	if _, p := c.publication(); p.Offset != 2 || string(p.Data) != `{"y":2}` {
		t.Errorf("publication %v", p)
	}
	if r := s.result(t, "publish", `{"channel":"live:a","data":1}`); r["offset"] != nil || r["epoch"] != nil {
		t.Errorf("result %v of a room without history", r)
	}
	r := s.result(t, "broadcast", `{"channels":["open:a","open:b","nowhere:c"],"data":3}`)
	responses := r["responses"].([]any)
	for i, want := range []int{0, 0, 102} {
		if got := apiCode(responses[i].(map[string]any)); got != want {
			t.Errorf("response %d: %v, want error %d", i, responses[i], want)
		}
	}
	// Databases have nothing in common but the server.
	other := s.apiAt(t, "/v1/other/api/publish", `{"channel":"open:a","data":"elsewhere"}`)
	if got := other["result"].(map[string]any); got["offset"] != 1.0 || got["epoch"] == first["epoch"] {
		t.Errorf("result %v in the other database", got)
	}
	s.result(t, "publish", `{"channel":"open:a","data":4}`)
	for _, want := range []string{"3", "4"} {
		if _, p := c.publication(); string(p.Data) != want {
			t.Errorf("publication %v, want %s", p, want)
		}
	}
}

// A repeat is answered as the first time, also after a restart.
func TestAPIIdempotency(t *testing.T) {
	o := testOptions(t)
	s := startServer(t, o, nil)
	publish := func(s *testServer, data string) map[string]any {
		return s.api(t, "publish", fmt.Sprintf(`{"channel":"open:a","data":%s,"idempotency_key":"k1"}`, data))
	}
	first := publish(s, `{"n":1}`)
	if again := publish(s, `{"n":1}`); apiCode(first) != 0 || !reflect.DeepEqual(again, first) {
		t.Errorf("first %v, again %v", first, again)
	}
	if code := apiCode(publish(s, `{"n":2}`)); code != 107 {
		t.Errorf("other content: error %d, want 107", code)
	}
	s.stop()
	s = startServer(t, o, nil)
	if again := publish(s, `{"n":1}`); !reflect.DeepEqual(again, first) {
		t.Errorf("after a restart: %v, want %v", again, first)
	}
	if h := s.result(t, "history", `{"channel":"open:a","limit":-1}`); h["offset"] != 1.0 || len(h["publications"].([]any)) != 1 {
		t.Errorf("history %v, want one publication", h)
	}
}

func TestAPIBatch(t *testing.T) {
	s := apiServer(t)
	answer := s.api(t, "batch", `{"commands":[
		{"publish":{"channel":"open:a","data":1}},
		{"publish":{"channel":"open:a","data":2}},
		{"history":{"channel":"open:a","limit":-1}},
		{"history_remove":{"channel":"open:a"}},
		{"publish":{"channel":"open:a","data":3}},
		{"history":{"channel":"open:a","limit":-1}},
		{"nothing":{}},
		{"publish":{"channel":"nowhere:a","data":1}},
		{"publish":{},"history":{}},
		5, null, [], {"publish":[]},
		{"history":{"channel":"open:a"}}]}`)
	replies := answer["replies"].([]any)
	at := func(i int) map[string]any { return replies[i].(map[string]any) }
	for i, want := range []int{0, 0, 0, 0, 0, 0, 104, 102, 107, 107, 107, 107, 107, 0} {
		if got := apiCode(at(i)); got != want {
			t.Errorf("reply %d: %v, want error %d", i, at(i), want)
		}
	}
	before, after := at(2)["history"].(map[string]any), at(5)["history"].(map[string]any)
	if n := len(before["publications"].([]any)); n != 2 {
		t.Errorf("%d publications before the removal, want 2", n)
	}
	if n := len(after["publications"].([]any)); n != 1 || after["offset"] != 3.0 || after["epoch"] == before["epoch"] {
		t.Errorf("history after the removal: %v, before: %v", after, before)
	}
}

func TestAPIHistory(t *testing.T) {
	s := apiServer(t)
	for i := range 5 {
		s.result(t, "publish", fmt.Sprintf(`{"channel":"open:a","data":%d}`, i+1))
	}
	epoch := s.result(t, "history", `{"channel":"open:a"}`)["epoch"].(string)
	for body, want := range map[string]string{
		`{"channel":"open:a"}`:            "",
		`{"channel":"open:a","limit":-1}`: "1 2 3 4 5",
		`{"channel":"open:a","limit":2}`:  "1 2",
		`{"channel":"open:a","limit":2,"since":{"offset":2,"epoch":"` + epoch + `"}}`: "3 4",
		`{"channel":"open:a","limit":9,"since":{"offset":5}}`:                         "",
		`{"channel":"open:a","limit":2,"reverse":true}`:                               "5 4",
		`{"channel":"open:a","limit":9,"reverse":true,"since":{"offset":3}}`:          "2 1",
		`{"channel":"open:never","limit":-1}`:                                         "",
	} {
		got := []string{}
		for _, p := range s.result(t, "history", body)["publications"].([]any) {
			got = append(got, fmt.Sprint(p.(map[string]any)["data"]))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", body, got, want)
		}
	}
}

func TestAPISubscriptions(t *testing.T) {
	s := apiServer(t)
	s.result(t, "publish", `{"channel":"open:a","data":1}`)
	epoch := s.result(t, "publish", `{"channel":"open:a","data":2}`)["epoch"]
	c, d := s.connect(t, wire.JSON, "u"), s.connect(t, wire.JSON, "u")
	bystander := s.connect(t, wire.JSON, "v")
	bystander.ok(subscribeTo("open:a"))
	s.result(t, "subscribe", fmt.Sprintf(`{"user":"u","channel":"open:a","info":{"i":1},"data":{"d":1},"recover_since":{"offset":1,"epoch":%q}}`, epoch))
	for _, c := range []*tester{c, d} {
		p, err := c.push()
		if err != nil || p.Subscribe == nil || p.Channel != "open:a" || p.Subscribe.Offset != 1 || !p.Subscribe.Recoverable || string(p.Subscribe.Data) != `{"d":1}` {
			t.Fatalf("push %v, %v, want subscribe at 1", p, err)
		}
		if _, p := c.publication(); p.Offset != 2 {
			t.Errorf("publication %v, want offset 2", p)
		}
	}
	presence := s.result(t, "presence", `{"channel":"open:a"}`)["presence"].(map[string]any)
	stats := s.result(t, "presence_stats", `{"channel":"open:a"}`)
	if len(presence) != 3 || stats["num_clients"] != 3.0 || stats["num_users"] != 2.0 {
		t.Errorf("presence %v, stats %v", presence, stats)
	}
	channels := s.result(t, "channels", `{"pattern":"open:*"}`)["channels"].(map[string]any)
	if want := map[string]any{"open:a": map[string]any{"num_clients": 3.0}}; !reflect.DeepEqual(channels, want) {
		t.Errorf("channels %v, want %v", channels, want)
	}
	if none := s.result(t, "channels", `{"pattern":"live:*"}`)["channels"].(map[string]any); len(none) != 0 {
		t.Errorf("channels %v, want none", none)
	}
	node := s.result(t, "info", ``)["nodes"].([]any)[0].(map[string]any)
	if node["num_clients"] != 3.0 || node["num_users"] != 2.0 || node["num_channels"] != 1.0 {
		t.Errorf("info %v", node)
	}
	// One of a user's connections, then all of them.
	var client string
	for id, info := range presence {
		if info.(map[string]any)["user"] == "u" {
			client = id
		}
	}
	s.result(t, "unsubscribe", fmt.Sprintf(`{"user":"u","client":%q,"channel":"open:a"}`, client))
	if n := s.result(t, "presence_stats", `{"channel":"open:a"}`)["num_clients"]; n != 2.0 {
		t.Errorf("%v members after one unsubscribe, want 2", n)
	}
	s.result(t, "unsubscribe", `{"user":"u","channel":"open:a"}`)
	for _, c := range []*tester{c, d} {
		if p, err := c.push(); err != nil || p.Unsubscribe == nil || p.Unsubscribe.Code != unsubServer.code {
			t.Errorf("push %v, %v, want unsubscribe 2000", p, err)
		}
	}
	// The history goes, and whoever followed it subscribes anew.
	s.result(t, "history_remove", `{"channel":"open:a"}`)
	if p, err := bystander.push(); err != nil || p.Unsubscribe == nil || p.Unsubscribe.Code != unsubInsufficient.code {
		t.Errorf("push %v, %v, want unsubscribe 2500", p, err)
	}
	cmd := subscribeTo("open:a")
	cmd.Subscribe.Recover, cmd.Subscribe.Offset, cmd.Subscribe.Epoch = true, 2, epoch.(string)
	if r := bystander.ok(cmd).Subscribe; r.Recovered || !r.WasRecovering || r.Offset != 2 || r.Epoch == epoch {
		t.Errorf("subscribe reply %v after the history went", r)
	}
	cmd.Id, cmd.Subscribe.Channel, cmd.Subscribe.Flag = 0, "open:b", flagRejectUnrecovered
	bystander.fails(errUnrecoverable.Code, cmd)
}

func TestAPIDisconnect(t *testing.T) {
	s := apiServer(t)
	connect := func() (*tester, string) {
		c := s.open(t, wire.JSON)
		return c, c.ok(connectWith(token(t, "u"))).Connect.Client
	}
	c, _ := connect()
	stays, id := connect()
	s.result(t, "disconnect", fmt.Sprintf(`{"user":"u","whitelist":[%q]}`, id))
	c.closes(closeForced.code)
	stays.ok(subscribeTo("open:a"))
	s.result(t, "disconnect", `{"user":"u","disconnect":{"code":4321,"reason":"`+strings.Repeat("é", 100)+`"}}`)
	stays.closes(4321)
	c, _ = connect()
	s.result(t, "refresh", fmt.Sprintf(`{"user":"u","expire_at":%d}`, time.Now().Add(time.Minute).Unix()))
	if p, err := c.push(); err != nil || p.Refresh == nil || !p.Refresh.Expires || p.Refresh.Ttl == 0 || p.Refresh.Ttl > 60 {
		t.Errorf("push %v, %v, want a refresh", p, err)
	}
	s.result(t, "refresh", `{"user":"u","expired":true}`)
	c.closes(closeExpired.code)
	until(t, "nobody is left", func() bool { return s.databases.get("default").connections.Load() == 0 })
	if n := s.result(t, "info", "{}")["nodes"].([]any)[0].(map[string]any)["num_users"]; n != 0.0 {
		t.Errorf("%v users are left", n)
	}
}

// rpc publish tells where the publication went, and repeats are harmless.
func TestRPCPublish(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	c := s.connect(t, wire.JSON, "u")
	rpc := func(data string) (got struct {
		Offset   uint64
		Epoch    string
		Replayed bool
		Code     string
		Status   int
	}) {
		t.Helper()
		r := c.ok(&protocol.Command{Rpc: &protocol.RPCRequest{Method: "publish", Data: protocol.Raw(data)}})
		if err := json.Unmarshal(r.Rpc.Data, &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := rpc(`{"room":"open:a","id":"1","data":{"n":1}}`)
	if first.Offset != 1 || first.Epoch == "" || first.Replayed {
		t.Errorf("first %+v", first)
	}
	if again := rpc(`{"room":"open:a","id":"1","data":{"n":1}}`); again.Offset != 1 || !again.Replayed {
		t.Errorf("again %+v", again)
	}
	if reused := rpc(`{"room":"open:a","id":"1","data":{"n":2}}`); reused.Code != "id_reused" || reused.Status != 409 {
		t.Errorf("reused %+v", reused)
	}
	other := s.connect(t, wire.JSON, "another")
	c = other
	if theirs := rpc(`{"room":"open:a","id":"1","data":{"n":2}}`); theirs.Offset != 2 || theirs.Replayed {
		t.Errorf("the same id of another user: %+v", theirs)
	}
}

func TestReadiness(t *testing.T) {
	o := testOptions(t)
	o.Database.Names = []string{"default", "other"}
	s := startServer(t, o, nil)
	ask := func() (int, string) {
		w := httptest.NewRecorder()
		s.clientHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return w.Code, w.Body.String()
	}
	if status, body := ask(); status != http.StatusOK {
		t.Errorf("status %d %s, want 200", status, body)
	}
	s.draining.Store(true)
	if status, body := ask(); status != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
		t.Errorf("status %d %s while draining, want 503", status, body)
	}
	s.draining.Store(false)
	if err := s.databases.get("other").store.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if status, body := ask(); status != http.StatusServiceUnavailable || !strings.Contains(body, "database other cannot write") {
		t.Errorf("status %d %s with a database that cannot write, want 503", status, body)
	}
	w := httptest.NewRecorder()
	s.clientHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	if w.Code != http.StatusOK {
		t.Errorf("healthz: status %d, want 200", w.Code)
	}
	// The other databases go on.
	s.result(t, "publish", `{"channel":"open:a","data":1}`)
	if code := apiCode(s.apiAt(t, "/v1/other/api/publish", `{"channel":"open:a","data":1}`)); code != int(errInternal.Code) {
		t.Errorf("publish to the closed database: error %d, want 100", code)
	}
}

// A token of the database default opens no other.
func TestDatabaseRoute(t *testing.T) {
	o := testOptions(t)
	o.Database.Names = []string{"default", "other"}
	s := startServer(t, o, nil)
	for tok, want := range map[string]uint16{
		token(t, "u"): 0,
		token(t, "u", func(c *auth.Claims) { c.Databases = nil }): closeInvalidToken.code,
	} {
		c, err := upgrade(s.dial(t), wire.JSON, "/v1/other/websocket")
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.call(connectWith(tok))
		if want == 0 && (err != nil || r.Connect == nil) || want != 0 && !closedWith(err, want) {
			t.Errorf("got %v, %v, want close %d", r, err, want)
		}
	}
}
