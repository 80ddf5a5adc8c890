package hub

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"hub/auth"
)

// Case G47: names are decoded once and are names, whatever they look like.
func TestRestNames(t *testing.T) {
	s := restServer(t)
	ann := bearerOf(t, "ann")
	for path, room := range map[string]string{
		"open:a%2Fb":              "open:a/b",
		"open%3Aa":                "open:a",
		"open:%252F":              "open:%2F",
		"open:..%2F..%2Fetc":      "open:../../etc",
		"open:%E6%97%A5":          "open:日",
		"open:a%20b+c":            "open:a b+c",
		"open:%3Fx=1%26y":         "open:?x=1&y",
		"open:a/":                 "",
		"open:a%2F%2E%2E%2F":      "open:a/../",
		"open:a%00":               "!400",
		"open:%FF":                "!400",
		"open:a%23":               "!400",
		"%24open":                 "!400",
		"open:" + long(251):       "!400",
		"..%2F..%2Fetc%2Fpasswd":  "",
		"%2e%2e":                  "",
		"nowhere:a":               "!404",
		"open:a%2Fhistory%3Fx%23": "!400",
	} {
		a := s.call(t, "POST", rooms+path+"/publish", `{"data":1}`, ann)
		switch {
		case strings.HasPrefix(room, "!"):
			if strconv.Itoa(a.status) != room[1:] {
				t.Errorf("%s: got %s, want %s", path, a, room[1:])
			}
		case room == "": // no room, or one of a closed namespace
			if a.status != 404 && a.status != 403 {
				t.Errorf("%s: got %s, want 404 or 403", path, a)
			}
		default:
			if a.status != 200 {
				t.Errorf("%s: got %s, want 200", path, a)
			}
			page := s.result(t, "history", fmt.Sprintf(`{"channel":%q,"limit":10}`, room))
			if n := len(page["publications"].([]any)); n != 1 {
				t.Errorf("%s: room %q has %d publications, want 1", path, room, n)
			}
		}
	}
	for path, key := range map[string]string{
		"a/b": "a/b", "a%2Fb": "a/b", "a/": "a/", "a%2F%2Fb": "a//b", "..%2F..": "../..", "%2e%2e": "..", "%2525": "%25", "a%3Fb": "a?b", "%2F": "/",
		"a//b": "", "a/../b": "", "./b": "", "": "!400", "%00": "!400", "%FF": "!400", long(256): "!400",
	} {
		a := s.call(t, "GET", rooms+"open:keys/resources/"+path, "", ann)
		if key == "" || strings.HasPrefix(key, "!") {
			if want := "404"; strings.TrimPrefix(key, "!") != strconv.Itoa(a.status) && strconv.Itoa(a.status) != want {
				t.Errorf("%s: got %s, want a refusal", path, a)
			}
			continue
		}
		s.call(t, "POST", rooms+"open:keys/operations", fmt.Sprintf(`{"id":"%d","steps":[{"op":"set","key":%q,"value":1}]}`, time.Now().UnixNano(), key), ann).want(t, "set", 200, "")
		if got := s.call(t, "GET", rooms+"open:keys/resources/"+path, "", ann).object()["key"]; got != key {
			t.Errorf("%s: got key %v, want %q", path, got, key)
		}
	}
	for _, path := range []string{"/v1/..%2F..%2Fetc/rooms/open:a/history", "/v1/%2e%2e/rooms/open:a/history", "/v1/default%2F/rooms/open:a/history", "/v1/DEFAULT/rooms/open:a/history"} {
		s.call(t, "GET", path, "", ann).want(t, path, 404, "unknown_database")
	}
	for _, path := range []string{"/v1//rooms/open:a/history", "/v1/default/rooms//history", "/v1/default/rooms/../rooms/open:a/history"} {
		if a := s.call(t, "GET", path, "", ann).want(t, path, 404, "not_found"); !strings.Contains(string(a.body), "write / inside a name as %2F") {
			t.Errorf("%s: got %s, want it to say how", path, a)
		}
	}
}

// Who may not ask who is there does not learn either whether the room tells it.
func TestRestPresencePermission(t *testing.T) {
	o := restOptions(t)
	o.Namespaces["silent"] = DefaultNamespace()
	s := startServer(t, o, nil)
	const path = rooms + "silent:a/presence"
	s.call(t, "GET", path, "", bearerOf(t, "ann")).want(t, "without a grant", 403, "permission_denied")
	granted := bearerOf(t, "ann", func(c *auth.Claims) { c.Grants = auth.Grants{{Rooms: []string{"silent:a"}, Allow: auth.Presence}} })
	s.call(t, "GET", path, "", granted).want(t, "with a grant", 409, "not_available")
}

// What is misspelt, missing, too large or of another type is refused by name.
func TestRestRefusals(t *testing.T) {
	s := restServer(t)
	ann := bearerOf(t, "ann")
	for request, want := range map[string]string{
		"GET history?limit=0":                                    "400 bad_request limit must be",
		"GET history?limit=1001":                                 "400 bad_request limit must be",
		"GET history?limit=-1":                                   "400 bad_request limit must be",
		"GET history?limit=":                                     "400 bad_request limit must be",
		"GET history?limti=3":                                    `400 bad_request unknown parameter \"limti\"; known here: after, limit`,
		"GET history?limit=3&limit=4":                            "400 bad_request parameter limit is given twice",
		"GET history?after=x":                                    "400 bad_request after must be",
		"GET history?after=-1":                                   "400 bad_request after must be",
		"GET history?after=99999999999999999999":                 "400 bad_request after must be",
		"GET history?reverse=1":                                  "400 bad_request reverse must be",
		"GET history?reverse=true&after=0":                       "400 bad_request ",
		"GET history?%zz":                                        "400 bad_request the query is malformed",
		"GET history?a;b":                                        "400 bad_request the query is malformed",
		"GET presence?limit=1":                                   `400 bad_request unknown parameter \"limit\"; known here: none`,
		"GET resources?limit=0":                                  "400 bad_request limit must be",
		"GET resources?reverse=true":                             "400 bad_request unknown parameter",
		"GET snapshot?x":                                         "400 bad_request unknown parameter",
		"GET operations/nothing":                                 "404 not_found",
		"GET operations/" + long(256):                            "400 bad_request",
		"POST publish?x=1 {}":                                    "400 bad_request unknown parameter",
		"POST publish {}":                                        "400 bad_request data",
		"POST publish []":                                        "400 bad_request ",
		"POST publish {\"data\":1}x":                             "400 bad_request ",
		"POST publish {\"data\":1,\"Id\":\"x\"}":                 "400 bad_request ",
		"POST publish {\"data\":1,\"room\":\"x\"}":               "400 bad_request ",
		"POST publish {\"data\":1,\"id\":\"" + long(256) + "\"}": "400 bad_request id",
		"POST publish {\"data\":\"" + long(65536) + "\"}":        "413 too_large data",
		"POST publish {\"data\":\"" + long(maxRestBody) + "\"}":  "413 too_large a request is at most 512 KiB",
		"POST operations {\"id\":\"\",\"steps\":[]}":             "400 bad_request id",
		"POST operations {\"id\":\"x\",\"steps\":[{\"op\":\"add\",\"key\":\"k\",\"by\":1}]}":                     "404 not_found",
		"POST operations {\"id\":\"x\",\"steps\":[{\"op\":\"set\",\"key\":\"k\",\"value\":1,\"if_version\":3}]}": "409 version_conflict",
	} {
		method, rest, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(rest, " ")
		a := s.call(t, method, rooms+"open:a/"+path, body, ann)
		status, text, _ := strings.Cut(want, " ")
		code, detail, _ := strings.Cut(text, " ")
		if strconv.Itoa(a.status) != status || a.code() != code || !strings.Contains(string(a.body), `"detail":"`+detail) {
			t.Errorf("%.80s: got %s, want %s", request, a, want)
		}
	}
	for kind, status := range map[string]int{
		"application/json": 200, "application/json; charset=utf-8": 200, "Application/JSON;charset=UTF-8": 200,
		"text/plain": 415, "application/x-www-form-urlencoded": 415, "application/json; charset=latin1": 415, "application/jsonx": 415, "": 415,
	} {
		if a := s.call(t, "POST", rooms+"open:a/publish", `{"data":1}`, ann, "Content-Type: "+kind); a.status != status {
			t.Errorf("content type %q: got %s, want %d", kind, a, status)
		}
	}
	for method, path := range map[string]string{"DELETE": "history", "PUT": "resources/k", "POST": "snapshot", "PATCH": "publish"} {
		a := s.call(t, method, rooms+"open:a/"+path, "", ann).want(t, method, 405, "method_not_allowed")
		if a.header.Get("Allow") == "" {
			t.Errorf("%s: Allow is missing", method)
		}
	}
	// What the mux says by itself is one document, and nothing behind it.
	for _, method := range []string{"GET", "DELETE"} {
		w := httptest.NewRecorder()
		s.clientHandler().ServeHTTP(w, httptest.NewRequest(method, map[string]string{"GET": "/x", "DELETE": rooms + "a/history"}[method], nil))
		if length := w.Header().Get("Content-Length"); length != strconv.Itoa(w.Body.Len()) {
			t.Errorf("%s: Content-Length %s of %q", method, length, w.Body)
		}
	}
	for path, code := range map[string]string{
		"GET live:a/history": "not_available", "GET live:a/snapshot": "not_durable", "GET live:a/resources/k": "not_durable", "GET closed:p/history": "",
		"POST live:a/publish": "not_durable", "POST live:a/operations": "not_durable", "GET live:a/operations/x": "not_durable", "GET default/presence": "not_available",
	} {
		method, path, _ := strings.Cut(path, " ")
		body := ""
		if method == "POST" {
			body = map[bool]string{true: `{"id":"x","data":1}`, false: `{"id":"x","steps":[{"op":"delete","key":"k"}]}`}[strings.HasSuffix(path, "publish")]
		}
		status := http.StatusConflict
		if code == "" {
			status = http.StatusOK
		}
		s.call(t, method, rooms+path, body, keyLine).want(t, method+" "+path, status, code)
	}
	if r := s.call(t, "POST", rooms+"live:a/publish", `{"data":1}`, ann).want(t, "without history", 200, "").object(); r["offset"] != nil || r["epoch"] != nil {
		t.Errorf("a room without history answers %v", r)
	}
}
