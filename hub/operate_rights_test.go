package hub

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
	"hub/store"
)

const setK = `{"op":"set","key":"k","value":1}`

// operating connects a user with these grants.
func (s *testServer) operating(t *testing.T, user string, grants ...auth.Grant) *tester {
	t.Helper()
	c := s.open(t, wire.JSON)
	c.ok(connectWith(token(t, user, func(c *auth.Claims) { c.Grants = grants })))
	return c
}

// A grant is good for what it names, over both doors.
func TestOperateGrants(t *testing.T) {
	o := operateOptions(t)
	o.Database.Names = []string{"default", "other"}
	s := startServer(t, o, nil)
	for _, x := range []struct {
		what    string
		grant   auth.Grant
		room    string
		steps   string
		allowed bool
	}{
		{"this room", auth.Grant{Rooms: []string{"grant:a"}, Allow: auth.Operate}, "grant:a", setK, true},
		{"a pattern", auth.Grant{Rooms: []string{"grant:*"}, Wildcard: true, Allow: auth.Operate}, "grant:a", setK, true},
		{"no pattern", auth.Grant{Rooms: []string{"grant:*"}, Allow: auth.Operate}, "grant:a", setK, false},
		{"another room", auth.Grant{Rooms: []string{"grant:b"}, Allow: auth.Operate}, "grant:a", setK, false},
		{"another action", auth.Grant{Rooms: []string{"grant:a"}, Allow: everyAction &^ auth.Operate}, "grant:a", setK, false},
		{"servers only", auth.Grant{Rooms: []string{"*"}, Wildcard: true, Allow: everyAction}, "closed:a", setK, false},
		{"servers only, narrowed", auth.Grant{Rooms: []string{"closed:a"}, Allow: auth.Operate, Keys: []string{"k"}}, "closed:a", setK, false},
		{"this step", auth.Grant{Rooms: []string{"grant:a"}, Allow: auth.Operate, Steps: []string{"set"}}, "grant:a", setK, true},
		{"another step", auth.Grant{Rooms: []string{"grant:a"}, Allow: auth.Operate, Steps: []string{"add", "create", "merge", "delete"}}, "grant:a", setK, false},
		{"this key", auth.Grant{Rooms: []string{"grant:a"}, Allow: auth.Operate, Keys: []string{"k"}}, "grant:a", setK, true},
		{"another key", auth.Grant{Rooms: []string{"grant:a"}, Allow: auth.Operate, Keys: []string{"kk", "K", "k/*"}}, "grant:a", setK, false},
		{"one step of two", auth.Grant{Rooms: []string{"grant:a"}, Allow: auth.Operate, Keys: []string{"k"}}, "grant:a", setK + `,{"op":"set","key":"l","value":1}`, false},
		{"own keys", auth.Grant{Rooms: []string{"grant:a"}, Allow: auth.Operate, Keys: []string{"players/{user}/*"}}, "grant:a", `{"op":"set","key":"players/u/hp","value":1}`, true},
		{"another's keys", auth.Grant{Rooms: []string{"grant:a"}, Allow: auth.Operate, Keys: []string{"players/{user}/*"}}, "grant:a", `{"op":"set","key":"players/v/hp","value":1}`, false},
		{"narrowed where subscribers may", auth.Grant{Rooms: []string{"member:a"}, Allow: auth.Operate, Keys: []string{"l"}}, "member:a", setK, false},
		{"narrowed where users may", auth.Grant{Rooms: []string{"game:a"}, Allow: auth.Operate, Keys: []string{"l"}}, "game:a", setK, true},
	} {
		c := s.operating(t, "u", x.grant)
		data := operation(x.room, "rpc "+x.what, x.steps)
		if x.allowed {
			rpc[operationReply](c, "operate", data)
		} else {
			c.refuses("error 103", "operate", data)
		}
		// Over HTTP whoever may subscribe is a subscriber, so "member" is open to all.
		status, code := 200, ""
		if !x.allowed && x.room != "member:a" {
			status, code = 403, "permission_denied"
		}
		bearer := bearerOf(t, "u", func(c *auth.Claims) { c.Grants = auth.Grants{x.grant} })
		body := fmt.Sprintf(`{"id":"http %s","steps":[%s]}`, x.what, x.steps)
		s.call(t, "POST", rooms+x.room+"/operations", body, bearer).want(t, x.what, status, code)
	}
	// A token of one database is nothing in another.
	tok := bearerOf(t, "u", func(c *auth.Claims) { c.Databases = []string{"default"} })
	s.call(t, "POST", "/v1/other/rooms/game:a/operations", `{"id":"1","steps":[`+setK+`]}`, tok).want(t, "another database", 401, "unauthorized")
	// Servers may always.
	s.call(t, "POST", rooms+"closed:a/operations", `{"id":"1","steps":[`+setK+`]}`, keyLine).want(t, "server", 200, "")
}

// Who may read resources over HTTP is who could subscribe with the same token.
func TestReadResourcesOverHTTP(t *testing.T) {
	s := startServer(t, operateOptions(t), nil)
	grant := func(room string, a auth.Action) func(*auth.Claims) {
		return func(c *auth.Claims) { c.Grants = auth.Grants{{Rooms: []string{room}, Allow: a}} }
	}
	for _, room := range []string{"grant:a", "game:a", "closed:a"} {
		s.call(t, "POST", rooms+room+"/operations", `{"id":"1","steps":[`+setK+`]}`, keyLine).want(t, room, 200, "")
	}
	for _, x := range []struct {
		what, room string
		change     func(*auth.Claims)
		allowed    bool
	}{
		{"no grant", "grant:a", func(*auth.Claims) {}, false},
		{"a grant", "grant:a", grant("grant:a", auth.Subscribe), true},
		{"all other grants", "grant:a", grant("grant:a", everyAction&^auth.Subscribe), false},
		{"another room's grant", "grant:a", grant("grant:b", everyAction), false},
		{"a room of the token", "grant:a", func(c *auth.Claims) { c.Channels = []string{"grant:a"} }, true},
		{"any user", "game:a", func(*auth.Claims) {}, true},
	} {
		bearer := bearerOf(t, "u", x.change)
		status, code := 200, ""
		if !x.allowed {
			status, code = 403, "permission_denied"
		}
		for _, path := range []string{"/resources/k", "/resources", "/snapshot"} {
			s.call(t, "GET", rooms+x.room+path, "", bearer).want(t, x.what+" "+path, status, code)
		}
	}
}

// An id is no way around a grant that was lost.
func TestReplayNeedsTheGrantOfNow(t *testing.T) {
	s := startServer(t, operateOptions(t), nil)
	data := operation("grant:a", "1", setK)
	c := s.operating(t, "u", auth.Grant{Rooms: []string{"grant:a"}, Allow: auth.Operate})
	first := rpc[operationReply](c, "operate", data)
	if again := rpc[operationReply](c, "operate", data); !again.Replayed || again.Offset != first.Offset {
		t.Errorf("the repeat got %+v, want %+v replayed", again, first)
	}
	c.ok(&protocol.Command{Refresh: &protocol.RefreshRequest{Token: token(t, "u", func(c *auth.Claims) {
		c.Grants = auth.Grants{{Rooms: []string{"grant:a"}, Allow: auth.Operate, Keys: []string{"l"}}}
	})}})
	c.refuses("error 103", "operate", data)
	s.call(t, "POST", rooms+"grant:a/operations", `{"id":"1","steps":[`+setK+`]}`, bearerOf(t, "u")).want(t, "without a grant", 403, "permission_denied")
	s.call(t, "GET", rooms+"grant:a/operations/1", "", bearerOf(t, "u")).want(t, "without a grant", 403, "permission_denied")
}

// The same while the repeat waits: what was a subscriber when it asked is none when
// the answer comes.
func TestReplayOfOneThatLeft(t *testing.T) {
	commits := make(chan struct{})
	entered := make(chan struct{}, 1)
	s := startServer(t, operateOptions(t), func(s *Server) {
		s.committing = func(events []store.Event) {
			if events[0].Room == "game:hold" {
				entered <- struct{}{}
				<-commits
			}
		}
	})
	c := s.connect(t, wire.JSON, "u")
	c.ok(subscribeTo("member:a"))
	data := operation("member:a", "1", setK)
	rpc[operationReply](c, "operate", data)
	holder := s.connect(t, wire.JSON, "holder")
	if err := holder.send(rpcTo("publish", `{"room":"game:hold","data":1}`)); err != nil {
		t.Fatal(err)
	}
	<-entered // the writer is busy
	repeat := rpcTo("operate", data)
	if err := c.send(repeat); err != nil {
		t.Fatal(err)
	}
	until(t, "the repeat waits", func() bool { return s.databases.get("default").store.Stats().Queue == 1 })
	s.result(t, "unsubscribe", `{"user":"u","channel":"member:a"}`)
	close(commits)
	if r, err := c.reply(repeat.Id); err != nil || r.Error == nil || r.Error.Code != errPermissionDenied.Code {
		t.Errorf("the repeat got %v, %v, want error 103", r, err)
	}
}

// One id is one operation through whichever door it comes, for each caller alone.
func TestOneIDThroughAllDoors(t *testing.T) {
	s := startServer(t, operateOptions(t), nil)
	c := s.connect(t, wire.JSON, "u")
	bearer, path := bearerOf(t, "u"), rooms+"game:a/operations"
	first := rpc[operationReply](c, "operate", `{"room":"game:a","id":"x/1","steps":[{"op":"set","key":"k","value":{"a":[1,2.0]}}],"data":{"d":1}}`)
	var again operationReply
	a := s.call(t, "POST", path, "{ \"data\": {\"d\" :\t1},\n \"steps\" : [ { \"value\" : { \"a\" : [ 1 , 2.0 ] }, \"key\" : \"\\u006b\", \"op\":\"set\"} ], \"id\":\"x/1\"}", bearer)
	if err := json.Unmarshal(a.want(t, "repeat", 200, "").body, &again); err != nil || !again.Replayed || again.Offset != first.Offset || again.Epoch != first.Epoch ||
		len(again.Resources) != 1 || string(again.Resources[0].Value) != `{"a":[1,2.0]}` {
		t.Errorf("%+v, %v, want %+v replayed", again, err, first)
	}
	found := s.call(t, "GET", path+"/x%2F1", "", bearer).want(t, "find", 200, "")
	if string(found.body) != string(a.body) {
		t.Errorf("found %s, want %s", found, a)
	}
	for _, other := range []string{
		`{"id":"x/1","steps":[{"op":"set","key":"k","value":{"a":[1,2]}}],"data":{"d":1}}`,
		`{"id":"x/1","steps":[{"op":"set","key":"k","value":{"a":[1,2.0]}}]}`,
		`{"id":"x/1","steps":[{"op":"set","key":"k","value":{"a":[1,2.0]},"if_version":1}],"data":{"d":1}}`,
		`{"id":"x/1","steps":[{"op":"merge","key":"k","value":{"a":[1,2.0]}}],"data":{"d":1}}`,
	} {
		s.call(t, "POST", path, other, bearer).want(t, other, 409, "id_reused")
		c.refuses("id_reused", "operate", `{"room":"game:a",`+other[1:])
	}
	// A publication's id is one of them.
	c.refuses("id_reused", "publish", `{"room":"game:a","id":"x/1","data":1}`)
	rpc[published](c, "publish", `{"room":"game:a","id":"p","data":1}`)
	c.refuses("id_reused", "operate", operation("game:a", "p", setK))
	s.call(t, "GET", path+"/p", "", bearer).want(t, "a publication's id", 200, "")
	// It is another operation in another room, by another user, by a server.
	body := `{"id":"x/1","steps":[` + setK + `]}`
	s.call(t, "GET", path+"/x%2F1", "", bearerOf(t, "v")).want(t, "another's id", 404, "not_found")
	for i, door := range []struct{ path, line string }{
		{rooms + "game:b/operations", bearer}, {path, bearerOf(t, "v")}, {path, keyLine},
	} {
		a := s.call(t, "POST", door.path, body, door.line).want(t, fmt.Sprint("door ", i), 200, "")
		if a.object()["replayed"] != false {
			t.Errorf("door %d: %s", i, a)
		}
	}
}

// Who may see what an id stands for: readers of the room, and those who may still
// change all that it changed.
func TestFindOperation(t *testing.T) {
	s := startServer(t, operateOptions(t), nil)
	grant := func(g auth.Grant) string {
		g.Rooms = []string{"grant:a"}
		return bearerOf(t, "u", func(c *auth.Claims) { c.Grants = auth.Grants{g} })
	}
	path := rooms + "grant:a/operations"
	all := grant(auth.Grant{Allow: auth.Operate | auth.Publish})
	s.call(t, "POST", path, `{"id":"1","steps":[`+setK+`,{"op":"set","key":"l","value":1}]}`, all).want(t, "operate", 200, "")
	s.call(t, "POST", rooms+"grant:a/publish", `{"id":"p","data":1}`, all).want(t, "publish", 200, "")
	for _, x := range []struct {
		what                   string
		grant                  auth.Grant
		operation, publication bool
	}{
		{"reader", auth.Grant{Allow: auth.Subscribe}, true, true},
		{"operator", auth.Grant{Allow: auth.Operate}, true, false},
		{"operator of these keys", auth.Grant{Allow: auth.Operate, Keys: []string{"k", "l"}, Steps: []string{"add"}}, true, false},
		{"operator of one of them", auth.Grant{Allow: auth.Operate, Keys: []string{"k"}}, false, false},
		{"publisher", auth.Grant{Allow: auth.Publish}, false, true},
		{"other", auth.Grant{Allow: auth.History | auth.Presence}, false, false},
	} {
		for id, allowed := range map[string]bool{"1": x.operation, "p": x.publication} {
			a := s.call(t, "GET", path+"/"+id, "", grant(x.grant))
			if allowed {
				a.want(t, x.what+" "+id, 200, "")
			} else {
				a.want(t, x.what+" "+id, 403, "permission_denied")
			}
		}
	}
	// A namespace that leaves operations to servers, since a reload, beats the grants.
	w := &caller{user: "u", grants: auth.Grants{{Rooms: []string{"grant:a"}, Allow: auth.Operate, Keys: []string{"k"}}}}
	db, changed := s.databases.get("default"), []store.Resource{{Key: "k"}}
	for access, want := range map[Access]bool{AccessToken: true, AccessServer: false} {
		if got := db.mayFind(w, "grant:a", &Namespace{Operate: access}, changed); got != want {
			t.Errorf("operate = %q: may find %t", access, got)
		}
	}
	s.call(t, "GET", path+"/none", "", all).want(t, "unknown id", 404, "not_found")
	s.call(t, "GET", rooms+"live:a/operations/1", "", all).want(t, "no history", 409, "not_durable")
}

// Commands of one connection take effect in order, and operations share commits.
func TestOperateThenSubscribe(t *testing.T) {
	s := startServer(t, operateOptions(t), nil)
	c := s.connect(t, wire.JSON, "u")
	op := func(i int) *protocol.Command {
		return rpcTo("operate", operation("game:a", fmt.Sprint(i), `{"op":"set","key":"k","value":`+fmt.Sprint(i)+`}`))
	}
	sub, get := subscribeTo("game:a"), rpcTo("get", `{"room":"game:a","key":"k"}`)
	if err := c.send(op(1), op(2), publishTo("game:a", `"p"`), sub, op(4), get, op(5)); err != nil {
		t.Fatal(err)
	}
	var offsets, operations []uint64
	for len(operations) < 4 || len(offsets) < 2 {
		r, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case r.Error != nil:
			t.Fatalf("error %v", r.Error)
		case r.Id == sub.Id && r.Subscribe.Offset != 3:
			t.Errorf("subscribed at %d, want 3", r.Subscribe.Offset)
		case r.Id == get.Id && string(r.Rpc.Data) != `{"key":"k","version":3,"value":4}`:
			t.Errorf("get: %s", r.Rpc.Data)
		case r.Id == get.Id, r.Id == sub.Id:
		case r.Rpc != nil:
			var o operationReply
			if err := json.Unmarshal(r.Rpc.Data, &o); err != nil {
				t.Fatal(err)
			}
			operations = append(operations, o.Offset)
		case r.Push != nil && r.Push.Pub != nil:
			offsets = append(offsets, r.Push.Pub.Offset)
		}
	}
	if got, want := fmt.Sprint(operations, offsets), "[1 2 4 5] [4 5]"; got != want {
		t.Errorf("operations and events at %s, want %s", got, want)
	}
}
