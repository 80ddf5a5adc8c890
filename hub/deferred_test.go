package hub

import (
	"fmt"
	"sync"
	"testing"

	"hub/auth"
	"hub/hub/wire"
)

// connOf returns the connection that user has opened last.
func (s *testServer) connOf(t testing.TB, user string) (c *conn) {
	t.Helper()
	until(t, user+" is connected", func() bool {
		for _, l := range s.loops {
			onLoop(l, func() {
				if first := l.users[userKey{s.databases.get("default"), user}]; first != nil {
					c = first
				}
			})
		}
		return c != nil
	})
	return c
}

// heldConnect sends a connect command of user whose reply waits until release is
// called: a room of its token has a position that cannot be read before.
func (s *testServer) heldConnect(t testing.TB, user, room string) (c *tester, client string, release func()) {
	t.Helper()
	db := s.databases.get("default")
	gate := make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	for range db.queries.max {
		db.queries.do(func() { <-gate })
	}
	c = s.open(t, wire.JSON)
	tok := token(t, user, func(c *auth.Claims) { c.Channels = []string{room} })
	if err := c.send(connectWith(tok)); err != nil {
		t.Fatal(err)
	}
	held := false
	until(t, "the connection waits for its room", func() bool {
		cc := s.connOf(t, user)
		onLoop(cc.loop, func() { client, held = cc.session.client, cc.held })
		return held
	})
	return c, client, release
}

// A call of the server API for a connection whose connect reply is still to come
// waits for the reply, and is that connection's and not another's of its user.
func TestCallBeforeTheConnectReply(t *testing.T) {
	o := testOptions(t)
	o.Server.Loops = 1
	s := startServer(t, o, nil)
	older := s.connect(t, wire.JSON, "u")
	c, client, release := s.heldConnect(t, "u", "open:a")
	s.result(t, "subscribe", fmt.Sprintf(`{"user":"u","client":%q,"channel":"live:x"}`, client))
	if s.databases.get("default").live("live:x") != nil {
		t.Error("somebody is subscribed before the connect reply")
	}
	release()
	if r, err := c.read(); err != nil || r.Connect == nil || r.Connect.Client != client {
		t.Fatalf("first came %v, %v, want the connect reply", r, err)
	}
	if p, err := c.push(); err != nil || p.Channel != "live:x" || p.Subscribe == nil {
		t.Fatalf("then came %v, %v, want the subscription", p, err)
	}
	older.ok(subscribeTo("live:x")) // it was not subscribed instead
}

// What waits for the connect reply is void once the connection has ended: a room
// has no member that is not there.
func TestCallOnAnEndedConnection(t *testing.T) {
	o := testOptions(t)
	o.Server.Loops = 1
	s := startServer(t, o, nil)
	older := s.connect(t, wire.JSON, "u")
	c, client, release := s.heldConnect(t, "u", "open:a")
	s.result(t, "disconnect", fmt.Sprintf(`{"user":"u","client":%q}`, client))
	s.result(t, "subscribe", fmt.Sprintf(`{"user":"u","client":%q,"channel":"live:ghost"}`, client))
	release()
	if r, err := c.read(); err != nil || r.Connect == nil {
		t.Fatalf("first came %v, %v, want the connect reply", r, err)
	}
	c.closes(closeForced.code)
	s.settle()
	for _, room := range []string{"live:ghost", "open:a"} {
		if r := s.databases.get("default").live(room); r != nil {
			t.Errorf("room %s lives on with %d members", room, r.members.Load())
		}
	}
	older.ok(subscribeTo("live:ghost"))
}
