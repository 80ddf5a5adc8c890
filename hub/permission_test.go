package hub

import (
	"errors"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// act is one thing that a client may do in a room.
type act struct {
	name   string
	action auth.Action // what a grant must allow
	do     func(room string) *protocol.Command
}

var acts = []act{
	{"subscribe", auth.Subscribe, subscribeTo},
	{"publish", auth.Publish, func(room string) *protocol.Command { return publishTo(room, `1`) }},
	{"rpc publish", auth.Publish, func(room string) *protocol.Command {
		return &protocol.Command{Rpc: &protocol.RPCRequest{Method: "publish", Data: protocol.Raw(`{"room":"` + room + `","data":1}`)}}
	}},
	{"history", auth.History, func(room string) *protocol.Command { return historyOf(room, 1) }},
	{"presence", auth.Presence, func(room string) *protocol.Command {
		return &protocol.Command{Presence: &protocol.PresenceRequest{Channel: room}}
	}},
	{"presence_stats", auth.Presence, func(room string) *protocol.Command {
		return &protocol.Command{PresenceStats: &protocol.PresenceStatsRequest{Channel: room}}
	}},
	{"operate", auth.Operate, func(room string) *protocol.Command {
		return rpcTo("operate", operation(room, "1", `{"op":"set","key":"k","value":1}`))
	}},
	{"get", auth.Subscribe, func(room string) *protocol.Command { return rpcTo("get", `{"room":"`+room+`","key":"k"}`) }},
	{"list", auth.Subscribe, func(room string) *protocol.Command { return rpcTo("list", `{"room":"`+room+`"}`) }},
	{"snapshot", auth.Subscribe, func(room string) *protocol.Command { return rpcTo("snapshot", `{"room":"`+room+`"}`) }},
}

const everyAction = auth.Subscribe | auth.Publish | auth.Operate | auth.History | auth.Presence

// Who may do what: every rule of a namespace against every way to come by a right.
func TestPermissions(t *testing.T) {
	o := testOptions(t)
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
	// The columns: a bare token, a grant of exactly this, a grant of all but this,
	// subscribed by a server, subscribed by a subscription token. For subscribing
	// itself the fourth has no meaning.
	for _, row := range []struct {
		access    Access
		subscribe string
		read      string // resources
		others    string
	}{
		{AccessToken, "-+- +", "-+-++", "-+---"},
		{AccessUser, "+++ +", "+++++", "+++++"},
		{AccessSubscriber, "-+- +", "-+-++", "-+-++"},
		{AccessServer, "--- +", "---++", "-----"},
	} {
		for _, a := range acts {
			want := row.others
			switch {
			case a.name == "subscribe":
				want = row.subscribe
			case a.action == auth.Subscribe:
				want = row.read
			}
			for i, holder := range []func(room string) *tester{
				func(string) *tester { return s.connect(t, wire.JSON, "u") },
				func(room string) *tester { return s.granted(t, room, a.action) },
				func(room string) *tester { return s.granted(t, room, everyAction&^a.action) },
				func(room string) *tester { return s.subscribedByServer(t, room) },
				func(room string) *tester { return s.subscribedByToken(t, room, a.name != "subscribe") },
			} {
				if want[i] == ' ' {
					continue
				}
				room := string(row.access) + ":" + a.name + "-" + string(rune('a'+i))
				c, cmd := holder(room), a.do(room)
				if i == 4 && a.name == "subscribe" {
					cmd.Subscribe.Token = subscriptionToken(t, "u", room)
				}
				r, err := c.call(cmd)
				switch code := replyCode(r, err); {
				case want[i] == '+' && code != 0 || want[i] == '-' && code != errPermissionDenied.Code:
					t.Errorf("rule %q, right %d, %s: %v, %v; want allowed %c", row.access, i, a.name, r, err, want[i])
				}
				c.conn.Close()
			}
		}
		// A server may always.
		room := string(row.access) + ":by-server"
		for method, body := range map[string]string{"publish": `,"data":1`, "history": `,"limit":1`, "presence": ``, "presence_stats": ``} {
			s.result(t, method, `{"channel":"`+room+`"`+body+`}`)
		}
	}
}

// replyCode is the error code of a reply, 0 without one; the connection must last.
func replyCode(r *protocol.Reply, err error) uint32 {
	var end *closed
	switch {
	case errors.As(err, &end):
		return uint32(end.code)
	case err != nil:
		return errInternal.Code
	case r.Error != nil:
		return r.Error.Code
	}
	return 0
}

// granted connects a user whose token grants these actions in the room.
func (s *testServer) granted(t *testing.T, room string, allow auth.Action) *tester {
	t.Helper()
	c := s.open(t, wire.JSON)
	c.ok(connectWith(token(t, "u", func(c *auth.Claims) {
		c.Grants = auth.Grants{{Rooms: []string{room}, Allow: allow}}
	})))
	return c
}

// subscribedByServer connects a user whom the server subscribes to the room.
func (s *testServer) subscribedByServer(t *testing.T, room string) *tester {
	t.Helper()
	c := s.connect(t, wire.JSON, "u "+room)
	s.result(t, "subscribe", `{"user":"u `+room+`","channel":"`+room+`"}`)
	if p, err := c.push(); err != nil || p.Subscribe == nil {
		t.Fatalf("push %v, %v, want a subscription", p, err)
	}
	return c
}

// subscribedByToken connects a user and, if asked, subscribes with a token for the room.
func (s *testServer) subscribedByToken(t *testing.T, room string, subscribed bool) *tester {
	t.Helper()
	c := s.connect(t, wire.JSON, "u")
	if subscribed {
		cmd := subscribeTo(room)
		cmd.Subscribe.Token = subscriptionToken(t, "u", room)
		c.ok(cmd)
	}
	return c
}

// subscriptionToken mints a subscription token that is good for an hour.
func subscriptionToken(t testing.TB, user, room string, change ...func(*auth.SubscriptionClaims)) string {
	t.Helper()
	c := auth.SubscriptionClaims{User: user, Channel: room, ExpiresAt: time.Now().Add(time.Hour).Unix()}
	for _, f := range change {
		f(&c)
	}
	tok, err := auth.MintSubscription([]byte(testSecret), c)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}
