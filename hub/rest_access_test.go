package hub

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"hub/auth"
)

// restAct is one thing to do in a room over HTTP.
type restAct struct {
	name, method, path, body string
	action                   auth.Action // what a grant must allow
}

var restActs = []restAct{
	{"history", "GET", "history", "", auth.History},
	{"presence", "GET", "presence", "", auth.Presence},
	{"list", "GET", "resources", "", auth.Subscribe},
	{"resource", "GET", "resources/k", "", auth.Subscribe},
	{"snapshot", "GET", "snapshot", "", auth.Subscribe},
	{"publish", "POST", "publish", `{"data":1}`, auth.Publish},
	{"operate", "POST", "operations", `{"id":"ID","steps":[{"op":"set","key":"k","value":1}]}`, auth.Operate},
}

// Every rule of a namespace against every way to come by a right.
func TestRestPermissions(t *testing.T) {
	o := restOptions(t)
	for _, a := range []Access{AccessToken, AccessUser, AccessSubscriber, AccessServer} {
		ns := DefaultNamespace()
		ns.Presence = true
		ns.Subscribe, ns.Publish, ns.History, ns.PresenceInfo, ns.Operate = a, a, a, a, a
		if a == AccessSubscriber { // which no rule for subscribing can be
			ns.Subscribe = AccessToken
		}
		o.Namespaces[string(a)] = ns
	}
	s := startServer(t, o, nil)
	// The columns: a bare token; a grant of exactly this; one of all but this; of
	// everything in another room, and in another database; a token that the server
	// subscribes (which reading resources asks for, and no more).
	for access, want := range map[Access]string{
		AccessToken:      "-+----",
		AccessUser:       "++++-+",
		AccessSubscriber: "-++--+",
		AccessServer:     "------",
	} {
		for _, a := range restActs {
			room := string(access) + ":" + a.name
			s.call(t, "POST", rooms+room+"/operations", `{"id":"fill","steps":[{"op":"set","key":"k","value":0}]}`, keyLine)
			for i, change := range []func(*auth.Claims){
				func(*auth.Claims) {},
				func(c *auth.Claims) { c.Grants = auth.Grants{{Rooms: []string{room}, Allow: a.action}} },
				func(c *auth.Claims) { c.Grants = auth.Grants{{Rooms: []string{room}, Allow: everyAction &^ a.action}} },
				func(c *auth.Claims) { c.Grants = auth.Grants{{Rooms: []string{room + "2"}, Allow: everyAction}} },
				func(c *auth.Claims) {
					c.Grants = auth.Grants{{Rooms: []string{room}, Allow: everyAction}}
					c.Databases = []string{"other"}
				},
				func(c *auth.Claims) { c.Channels = []string{room} },
			} {
				allowed := want[i] == '+'
				switch {
				case a.action == auth.Subscribe && i == 2 && access == AccessSubscriber:
					allowed = false // it may not subscribe, so it does not count as a subscriber
				case a.action == auth.Subscribe && i == 5:
					allowed = true
				}
				line := bearerOf(t, "u", change)
				got := s.call(t, a.method, rooms+room+"/"+a.path, strings.Replace(a.body, "ID", string(rune('a'+i)), 1), line)
				switch {
				case allowed && got.status != http.StatusOK:
					t.Errorf("rule %q, right %d, %s: got %s, want 200", access, i, a.name, got)
				case !allowed && i == 4:
					got.want(t, a.name+" with a token of another database", 401, "unauthorized")
				case !allowed && (got.status != http.StatusForbidden || got.code() != "permission_denied"):
					t.Errorf("rule %q, right %d, %s: got %s, want 403", access, i, a.name, got)
				}
			}
			s.call(t, a.method, rooms+room+"/"+a.path, strings.Replace(a.body, "ID", "by a server", 1), keyLine).want(t, a.name+" by a server", 200, "")
		}
	}
}

// A grant that names steps and keys allows these and no others.
func TestRestNarrowedGrant(t *testing.T) {
	s := restServer(t)
	const room = rooms + "closed:a/operations"
	s.call(t, "POST", room, `{"id":"fill","steps":[{"op":"create","key":"stock","value":5},{"op":"create","key":"price","value":1}]}`, keyLine).want(t, "fill", 200, "")
	line := bearerOf(t, "ann", func(c *auth.Claims) {
		c.Grants = auth.Grants{{Rooms: []string{"closed:a"}, Allow: auth.Operate, Steps: []string{"add"}, Keys: []string{"stock", "players/{user}/*"}}}
	})
	for steps, status := range map[string]int{
		`{"op":"add","key":"stock","by":-1}`:                                      200,
		`{"op":"add","key":"price","by":-1}`:                                      403,
		`{"op":"set","key":"stock","value":9}`:                                    403,
		`{"op":"delete","key":"stock"}`:                                           403,
		`{"op":"add","key":"players/bob/gold","by":1}`:                            403,
		`{"op":"add","key":"players/ann/gold","by":1}`:                            404,
		`{"op":"add","key":"stock","by":-1},{"op":"set","key":"stock","value":0}`: 403,
	} {
		if a := s.call(t, "POST", room, `{"id":"`+string(rune('a'+len(steps)))+`","steps":[`+steps+`]}`, line); a.status != status {
			t.Errorf("%s: got %s, want %d", steps, a, status)
		}
	}
	r := s.call(t, "GET", rooms+"closed:a/snapshot", "", keyLine).object()
	if got := r["offset"]; got != 2.0 {
		t.Errorf("position %v afterwards, want 2: one operation was allowed", got)
	}
}

// Who may operate on a room that it may not read gets keys and versions, never
// values: from a result, its replay and a refusal.
func TestRestOperatingIsNotReading(t *testing.T) {
	s := restServer(t)
	const room = rooms + "closed:a/operations"
	s.call(t, "POST", room, `{"id":"fill","steps":[{"op":"create","key":"stock","value":{"amount":5,"cost":"secret"}}]}`, keyLine).want(t, "fill", 200, "")
	for _, reads := range []bool{false, true} {
		allow := auth.Operate
		if reads {
			allow |= auth.Subscribe
		}
		line := bearerOf(t, "ann", func(c *auth.Claims) { c.Grants = auth.Grants{{Rooms: []string{"closed:a"}, Allow: allow}} })
		id := fmt.Sprint("reads ", reads)
		for _, x := range []struct {
			steps  string
			status int
		}{
			{`{"op":"add","key":"stock","path":"/amount","by":1}`, 200},
			{`{"op":"add","key":"stock","path":"/amount","by":1}`, 200}, // replayed
			{`{"op":"create","key":"stock","value":1}`, 409},
			{`{"op":"add","key":"stock","path":"/amount","by":-100,"min":0}`, 422},
			{`{"op":"set","key":"stock","value":1,"if_version":9}`, 409},
		} {
			given := id
			if x.status != 200 {
				given = "another"
			}
			a := s.call(t, "POST", room, `{"id":"`+given+`","steps":[`+x.steps+`]}`, line)
			if a.status != x.status || !strings.Contains(string(a.body), `"key":"stock"`) || strings.Contains(string(a.body), "secret") != reads {
				t.Errorf("%s, who may read: %v: got %s", x.steps, reads, a)
			}
		}
		a := s.call(t, "GET", room+"/"+url.PathEscape(id), "", line)
		if a.status != 200 || !strings.Contains(string(a.body), `"key":"stock"`) || strings.Contains(string(a.body), "secret") != reads {
			t.Errorf("its operation, who may read: %v: got %s", reads, a)
		}
	}
}

// Who calls: what is missing, twice, forged, expired or for something else.
func TestRestCredentials(t *testing.T) {
	s := restServer(t)
	path := rooms + "open:a/history"
	ann := bearerOf(t, "ann")
	expired := bearerOf(t, "ann", func(c *auth.Claims) { c.ExpiresAt = time.Now().Add(-time.Hour).Unix() })
	foreign, err := auth.Mint([]byte("another secret of thirty-two bytes"), auth.Claims{User: "ann", ExpiresAt: time.Now().Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		lines  []string
		status int
		code   string
	}{
		"a token":                {[]string{ann}, 200, ""},
		"a key":                  {[]string{keyLine}, 200, ""},
		"nothing":                {nil, 401, "unauthorized"},
		"Basic":                  {[]string{"Authorization: Basic YTpi"}, 401, "unauthorized"},
		"an empty token":         {[]string{"Authorization: Bearer "}, 401, "unauthorized"},
		"a wrong key":            {[]string{keyLine + "x"}, 401, "unauthorized"},
		"a wrong apikey":         {[]string{"Authorization: apikey " + testAPIKey[1:]}, 401, "unauthorized"},
		"a key as a token":       {[]string{"Authorization: Bearer " + testAPIKey}, 401, "unauthorized"},
		"both":                   {[]string{ann, keyLine}, 400, "bad_request"},
		"a token and a bad key":  {[]string{ann, keyLine + "x"}, 400, "bad_request"},
		"two tokens":             {[]string{ann, ann}, 400, "bad_request"},
		"two keys":               {[]string{keyLine, keyLine}, 400, "bad_request"},
		"an expired token":       {[]string{expired}, 401, "token_expired"},
		"a forged token":         {[]string{ann[:len(ann)-2] + "xx"}, 401, "unauthorized"},
		"another's token":        {[]string{"Authorization: Bearer " + foreign}, 401, "unauthorized"},
		"a subscription token":   {[]string{"Authorization: Bearer " + subscriptionToken(t, "ann", "open:a")}, 401, "unauthorized"},
		"another database alone": {[]string{bearerOf(t, "ann", func(c *auth.Claims) { c.Databases = []string{"other"} })}, 401, "unauthorized"},
	} {
		a := s.call(t, "GET", path, "", c.lines...).want(t, name, c.status, c.code)
		if challenge := a.header.Get("WWW-Authenticate"); (c.status == 401) != strings.HasPrefix(challenge, "Bearer ") {
			t.Errorf("%s: WWW-Authenticate is %q", name, challenge)
		}
	}
	s.call(t, "GET", path+"?access_token="+ann[len("Authorization: Bearer "):], "", ann).want(t, "a token in the URL", 400, "bad_request")
	s.call(t, "GET", "/v1/third/rooms/open:a/history", "", ann).want(t, "a database that the token does not name", 401, "unauthorized")
	s.call(t, "GET", "/v1/nothing/rooms/open:a/history", "", ann).want(t, "no such database", 404, "unknown_database")
}

// Without a key configured no key is right, least of all the empty one.
func TestRestWithoutAPIKey(t *testing.T) {
	o := restOptions(t)
	o.API.Key = ""
	s := startServer(t, o, nil)
	for _, line := range []string{keyLine, "X-API-Key: ", "Authorization: apikey ", "Authorization: apikey"} {
		s.call(t, "GET", rooms+"open:a/history", "", line).want(t, line, 401, "unauthorized")
	}
	s.call(t, "GET", rooms+"open:a/history", "", bearerOf(t, "ann")).want(t, "a token", 200, "")
}

// A token that needs a public key is verified as well.
func TestRestPublicKey(t *testing.T) {
	own, foreign := newSigner(t, "ES256", ""), newSigner(t, "ES256", "")
	o := restOptions(t)
	publicKeys(t, []signer{own})(&o)
	s := startServer(t, o, nil)
	s.call(t, "GET", rooms+"open:a/history", "", "Authorization: Bearer "+own.token(t, "ann", nil)).want(t, "ES256", 200, "")
	s.call(t, "GET", rooms+"open:a/history", "", "Authorization: Bearer "+foreign.token(t, "ann", nil)).want(t, "another key", 401, "unauthorized")
}

// Pages of those origins may call that may open a socket, and no others.
func TestRestOrigins(t *testing.T) {
	o := restOptions(t)
	o.Server.Origins = []string{"https://app.example.com", "https://*.example.org"}
	s := startServer(t, o, nil)
	ann := bearerOf(t, "ann")
	for origin, allowed := range map[string]bool{
		"https://app.example.com": true, "https://a.example.org": true, "http://" + s.Addr(): true,
		"http://app.example.com": false, "https://evil.test": false, "null": false, "https://app.example.com.evil.test": false,
	} {
		socket, status, _, err := s.attempt(defaultSocketPath, "Origin: "+origin)
		if err != nil {
			t.Fatal(err)
		}
		socket.Close()
		if origin != "http://"+s.Addr() && (status == http.StatusSwitchingProtocols) != allowed {
			t.Errorf("%s: a socket gets %d", origin, status)
		}
		for _, path := range []string{"history", "resources/a/b", "nothing"} {
			a := s.call(t, "OPTIONS", rooms+"open:a/"+path, "", "Origin: "+origin,
				"Access-Control-Request-Method: GET", "Access-Control-Request-Headers: authorization")
			switch {
			case path == "nothing":
				a.want(t, "a preflight of no route", 404, "not_found")
			case !allowed:
				a.want(t, "preflight from "+origin, 403, "origin")
			case a.status != http.StatusNoContent || a.header.Get("Access-Control-Allow-Origin") != origin ||
				!strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "Authorization") ||
				strings.Contains(strings.ToLower(a.header.Get("Access-Control-Allow-Headers")), "key"):
				t.Errorf("preflight from %s: got %s with %v", origin, a, a.header)
			}
		}
		a := s.call(t, "GET", rooms+"open:a/resources/k", "", ann, "Origin: "+origin)
		shown := a.header.Get("Access-Control-Allow-Origin")
		switch {
		case allowed && (a.status != 404 || shown != origin || a.header.Get("Vary") != "Origin"):
			t.Errorf("from %s: got %s with %v, want a problem that the page can read", origin, a, a.header)
		case !allowed && (a.status != 403 || shown != ""):
			t.Errorf("from %s: got %s, shown to %q", origin, a, shown)
		}
		if a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("credentials of a browser are let in")
		}
	}
	s.call(t, "GET", rooms+"open:a/history", "", ann, "Origin: https://app.example.com", "Origin: https://evil.test").want(t, "two origins", 403, "origin")
	if a := s.call(t, "OPTIONS", "/api/publish", "", "Origin: https://app.example.com", "Access-Control-Request-Method: POST"); a.status != 405 {
		t.Errorf("preflight of the server API: got %s, want 405", a)
	}
}
