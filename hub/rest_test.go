package hub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"hub/auth"
)

// answer is a response of the HTTP API.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// object is the body as a JSON object.
func (a answer) object() (o object) {
	_ = json.Unmarshal(a.body, &o)
	return o
}

// code is the code of a problem; empty for others.
func (a answer) code() string {
	code, _ := a.object()["code"].(string)
	return code
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// call makes a request, a header line each, and checks the answer against its
// description. A body makes it JSON. path is taken as it is.
func (s *testServer) call(t testing.TB, method, path, body string, lines ...string) answer {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+s.Addr(), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	path, query, _ := strings.Cut(path, "?")
	req.URL.Opaque = "//" + req.URL.Host + path
	req.URL.RawQuery = query
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		if name == "Content-Type" {
			req.Header.Del(name)
		}
		req.Header.Add(name, value)
	}
	req.Close = true
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if method != http.MethodOptions {
		if err := checkDescribed(method, path, a.status, a.header, a.body); err != nil {
			t.Errorf("%s %s is not as described: %v", method, path, err)
		}
	}
	return a
}

// bearerOf is the header line of a user's token.
func bearerOf(t testing.TB, user string, change ...func(*auth.Claims)) string {
	t.Helper()
	return "Authorization: Bearer " + token(t, user, change...)
}

const keyLine = "X-API-Key: " + testAPIKey

// want fails the test unless the answer has this status and, if not empty, code.
func (a answer) want(t testing.TB, what string, status int, code string) answer {
	t.Helper()
	if a.status != status || a.code() != code {
		t.Errorf("%s: got %s, want %d %s", what, a, status, code)
	}
	return a
}

const rooms = "/v1/default/rooms/"

// restOptions has namespaces "open", where users may do everything, "live", without
// history, and "closed", where they need grants; and a second database.
func restOptions(t testing.TB) Options {
	o := testOptions(t)
	o.Database.Names = []string{"default", "other", "third"}
	open := openNamespace()
	open.Operate = AccessUser
	closed := DefaultNamespace()
	closed.Presence, closed.Operate = true, AccessToken
	o.Namespaces["open"], o.Namespaces["closed"] = open, closed
	return o
}

func restServer(t testing.TB) *testServer { return startServer(t, restOptions(t), nil) }

// Every route, as a user and as a server.
func TestRestCalls(t *testing.T) {
	s := restServer(t)
	for who, line := range map[string]string{"user": bearerOf(t, "ann"), "server": keyLine, "apikey": "Authorization: apikey " + testAPIKey} {
		room := rooms + "open:" + who + "/"
		call := func(method, path, body string) object {
			t.Helper()
			a := s.call(t, method, room+path, body, line)
			if a.status != http.StatusOK || a.header.Get("Cache-Control") == "" || a.header.Get("Vary") != "Origin" {
				t.Errorf("%s %s: got %s with %v", method, path, a, a.header)
			}
			return a.object()
		}
		check := func(what string, got, want any) {
			t.Helper()
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, %s: got %v, want %v", who, what, got, want)
			}
		}
		r := call("POST", "publish", `{"data":{"html":"<b>&"}}`)
		check("offset", r["offset"], 1)
		check("replayed", r["replayed"], false)
		epoch := r["epoch"]
		r = call("POST", "operations", `{"id":"a/b","steps":[{"op":"create","key":"stock/x","value":{"amount":3}},{"op":"set","key":"z","value":"<"}],"data":7}`)
		check("offset of an operation", r["offset"], 2)
		check("resources", r["resources"], `[map[key:stock/x value:map[amount:3] version:1] map[key:z value:< version:1]]`)
		r = call("GET", "operations/a%2Fb", "")
		check("the operation found", r["replayed"], true)
		check("the operation found", r["offset"], 2)
		r = call("GET", "resources/stock/x", "")
		check("a resource", r, `map[key:stock/x value:map[amount:3] version:1]`)
		check("a resource whose slash is escaped", call("GET", "resources/stock%2Fx", ""), r)
		r = call("GET", "resources", "")
		check("the list", r["resources"], `[map[key:stock/x value:map[amount:3] version:1] map[key:z value:< version:1]]`)
		check("next", r["next"], nil)
		check("a prefix", call("GET", "resources?prefix=stock%2F", "")["resources"], `[map[key:stock/x value:map[amount:3] version:1]]`)
		r = call("GET", "snapshot", "")
		check("position of the snapshot", r["offset"], 2)
		check("epoch of the snapshot", r["epoch"], epoch)
		r = call("GET", "history", "")
		pubs := r["publications"].([]any)
		first := pubs[0].(object)
		check("publications", len(pubs), 2)
		check("data", first["data"], `map[html:<b>&]`)
		if user := first["user"]; who == "user" && user != "ann" || who != "user" && user != nil {
			t.Errorf("%s: published by %v", who, user)
		}
		if at := first["time"].(float64); at < 1.7e12 || at > 1e13 {
			t.Errorf("time %v is not in milliseconds", at)
		}
		check("members", call("GET", "presence", "")["num_clients"], 0)
	}
}

// What is stored comes out byte for byte.
func TestRestKeepsValues(t *testing.T) {
	s := restServer(t)
	ann := bearerOf(t, "ann")
	const value = `{"n":12345678901234567890.10,"s":"<&>\u2028\\u0041 ` + "\u2028" + `","a":[1e300,-0]}`
	s.call(t, "POST", rooms+"open:a/publish", `{"data":`+value+`}`, ann).want(t, "publish", 200, "")
	s.call(t, "POST", rooms+"open:a/operations", `{"id":"1","steps":[{"op":"set","key":"k","value":`+value+`}]}`, ann).want(t, "operate", 200, "")
	for _, path := range []string{"history", "resources/k", "resources", "snapshot", "operations/1"} {
		if a := s.call(t, "GET", rooms+"open:a/"+path, "", ann); !bytes.Contains(a.body, []byte(value)) {
			t.Errorf("%s has not %s: %s", path, value, a)
		}
	}
}

// Presence tells connections and users.
func TestRestPresence(t *testing.T) {
	o := restOptions(t)
	small := openNamespace()
	small.PresenceMax = 1
	o.Namespaces["small"] = small
	s := startServer(t, o, nil)
	ann := bearerOf(t, "ann")
	for range 2 {
		c := s.connect(t, 0, "bob")
		c.ok(subscribeTo("open:a"))
		c.ok(subscribeTo("small:a"))
	}
	r := s.call(t, "GET", rooms+"open:a/presence", "", ann).want(t, "presence", 200, "").object()
	if r["num_clients"] != 2.0 || r["num_users"] != 1.0 || len(r["presence"].(object)) != 2 {
		t.Errorf("got %v, want two connections of one user", r)
	}
	s.call(t, "GET", rooms+"small:a/presence", "", ann).want(t, "too many members", 413, "too_large")
}
