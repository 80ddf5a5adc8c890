package hub

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
	"github.com/gobwas/ws"

	"hub/auth"
	"hub/hub/wire"
	"hub/store"
)

func connectWith(token string) *protocol.Command {
	return &protocol.Command{Connect: &protocol.ConnectRequest{Token: token}}
}

// encodings runs a test for both encodings on a server with the given options.
func encodings(t *testing.T, change func(*Options), test func(t *testing.T, s *testServer, enc wire.Encoding)) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		if change != nil {
			change(&o)
		}
		s := startServer(t, o, nil)
		for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
			t.Run(enc.String(), func(t *testing.T) { test(t, s, enc) })
		}
	})
}

// Commands of one frame take effect in order, each waiting for those before it.
func TestCommandsInOrder(t *testing.T) {
	encodings(t, nil, func(t *testing.T, s *testServer, enc wire.Encoding) {
		room := "open:order-" + enc.String()
		c := s.open(t, enc)
		if err := c.send(connectWith(token(t, "u")), subscribeTo(room),
			publishTo(room, `"one"`), publishTo(room, `"two"`), historyOf(room, -1),
			unsubscribeFrom(room), publishTo(room, `"three"`), historyOf(room, -1)); err != nil {
			t.Fatal(err)
		}
		ids, pushes := uint32(0), 0
		for ids < 8 {
			r, err := c.read()
			if err != nil || r.Error != nil {
				t.Fatalf("got %v, %v", r, err)
			}
			if r.Push != nil {
				pushes++
				if r.Push.Pub == nil || r.Push.Pub.Offset != uint64(pushes) || ids < 2 || ids > 5 {
					t.Errorf("push %v behind reply %d", r.Push, ids)
				}
				continue
			}
			if ids++; r.Id != ids {
				t.Fatalf("reply %d, want %d", r.Id, ids)
			}
			if want := map[uint32]int{5: 2, 8: 3}[ids]; r.History != nil && len(r.History.Publications) != want {
				t.Errorf("history %d has %v, want %d publications", ids, r.History.Publications, want)
			}
		}
		if pushes != 2 {
			t.Errorf("%d publications, want the 2 of the time of the subscription", pushes)
		}
	})
}

// After a failed connect the rest of what was sent is discarded; the socket
// stays open, and the client's close frame is answered.
func TestFailedConnect(t *testing.T) {
	expired := func(c *auth.Claims) { c.ExpiresAt = time.Now().Add(-time.Hour).Unix() }
	unknown := func(c *auth.Claims) { c.Channels = []string{"nowhere:x"} }
	encodings(t, nil, func(t *testing.T, s *testServer, enc wire.Encoding) {
		for name, test := range map[string]struct {
			token string
			code  uint32
		}{
			"no token":                   {"", 101},
			"expired":                    {token(t, "u", expired), 109},
			"unknown room in its claims": {token(t, "u", unknown), 102},
		} {
			c := s.open(t, enc)
			if err := c.send(connectWith(test.token), subscribeTo("open:x"), publishTo("open:x", `1`)); err != nil {
				t.Fatal(err)
			}
			if r, err := c.read(); err != nil || r.Error == nil || r.Error.Code != test.code || r.Id != 1 {
				t.Errorf("%s: got %v, %v, want error %d", name, r, err, test.code)
				continue
			}
			if err := c.send(subscribeTo("open:x")); err != nil {
				t.Fatal(err)
			}
			c.raw(rawFrame(true, ws.OpPing, []byte("still here")))
			if payload, before := c.pong(); payload != "still here" || len(before) > 0 {
				t.Errorf("%s: pong %q behind %v", name, payload, before)
			}
			c.raw(rawFrame(true, ws.OpClose, ws.NewCloseFrameBody(1000, "")))
			c.closes(1000)
		}
	})
}

func TestRefusedTokens(t *testing.T) {
	encodings(t, nil, func(t *testing.T, s *testServer, enc wire.Encoding) {
		forged, err := auth.Mint([]byte("another-secret-of-at-least-32-bytes"), auth.Claims{User: "u", ExpiresAt: time.Now().Add(time.Hour).Unix()})
		if err != nil {
			t.Fatal(err)
		}
		elsewhere := token(t, "u", func(c *auth.Claims) { c.Databases = []string{"other"} })
		for name, tok := range map[string]string{"forged": forged, "of another database": elsewhere, "nonsense": "x.y.z"} {
			c := s.open(t, enc)
			if err := c.send(connectWith(tok)); err != nil {
				t.Fatal(err)
			}
			if err := c.end(); !closedWith(err, closeInvalidToken.code) {
				t.Errorf("%s: ended with %v, want %d", name, err, closeInvalidToken.code)
			}
		}
		c := s.open(t, enc, "Authorization: Bearer "+token(t, "header"))
		if r := c.ok(connectWith("")); r.Connect.Client == "" || !r.Connect.Expires || r.Connect.Ttl == 0 {
			t.Errorf("token in the header: connect reply %v", r)
		}
	})
}

func closedWith(err error, code uint16) bool {
	var end *closed
	return errors.As(err, &end) && end.code == code
}

func TestConnectOnceAndFirst(t *testing.T) {
	encodings(t, nil, func(t *testing.T, s *testServer, enc wire.Encoding) {
		c := s.connect(t, enc, "u")
		if err := c.send(connectWith(token(t, "u"))); err != nil {
			t.Fatal(err)
		}
		c.closes(closeBadRequest.code)
		c = s.open(t, enc)
		if err := c.send(subscribeTo("open:x")); err != nil {
			t.Fatal(err)
		}
		c.closes(closeBadRequest.code)
	})
}

// A reconnect brings everything in one frame: connect and as many subscriptions
// as may be.
func TestReconnectFrame(t *testing.T) {
	change := func(o *Options) { o.Limits.Messages = Rate{PerSecond: 1, Burst: 2} }
	encodings(t, change, func(t *testing.T, s *testServer, enc wire.Encoding) {
		c := s.open(t, enc)
		commands := []*protocol.Command{connectWith(token(t, "u"))}
		for i := range 128 {
			cmd := subscribeTo(fmt.Sprint("open:many-", i))
			cmd.Subscribe.Recover, cmd.Subscribe.Token = i%2 == 0, ""
			commands = append(commands, cmd)
		}
		if err := c.send(commands...); err != nil {
			t.Fatal(err)
		}
		for id := uint32(1); id <= 129; id++ {
			r, err := c.read()
			if err != nil || r.Id != id || r.Error != nil {
				t.Fatalf("got %v, %v, want reply %d", r, err, id)
			}
			if id > 1 && (!r.Subscribe.Recoverable || !r.Subscribe.Positioned || r.Subscribe.Epoch == "" || r.Subscribe.Recovered) {
				t.Fatalf("subscribe reply %v", r.Subscribe) // an empty epoch never recovers
			}
		}
		c.fails(errLimitExceeded.Code, subscribeTo("open:one-more"))
		c.fails(errAlreadySubbed.Code, subscribeTo("open:many-0"))
	})
}

func TestMessageLimit(t *testing.T) {
	change := func(o *Options) { o.Limits.Messages = Rate{PerSecond: 0.001, Burst: 5} }
	encodings(t, change, func(t *testing.T, s *testServer, enc wire.Encoding) {
		c := s.connect(t, enc, "u")
		for range 5 {
			c.ok(publishTo("open:limited", `1`))
		}
		c.fails(errTooManyRequests.Code, publishTo("open:limited", `1`))
		c.ok(subscribeTo("open:limited")) // has a bucket of its own
		c.fails(errTooManyRequests.Code, unsubscribeFrom("open:limited"))
	})
}

// No more publications of a connection are in the write queue than may be.
func TestWaitingCommands(t *testing.T) {
	o := testOptions(t)
	o.Limits.Waiting = 3
	var gate sync.RWMutex
	s := startServer(t, o, func(s *Server) {
		s.committing = func([]store.Event) {
			gate.RLock()
			defer gate.RUnlock()
		}
	})
	c := s.connect(t, wire.JSON, "u")
	gate.Lock()
	if err := c.send(publishTo("open:w", `1`), publishTo("open:w", `2`), publishTo("open:w", `3`), publishTo("open:w", `4`), publishTo("open:w", `5`)); err != nil {
		t.Fatal(err)
	}
	var most int32
	until(t, "the fourth command is parked", func() (parked bool) {
		for _, l := range s.loops {
			onLoop(l, func() {
				for _, c := range l.conns {
					parked, most = parked || c.parked != nil && c.paused, max(most, c.flight)
				}
			})
		}
		return parked
	})
	gate.Unlock()
	if most != 3 {
		t.Errorf("%d commands in flight, want 3", most)
	}
	for id := uint32(2); id <= 6; id++ {
		if r, err := c.read(); err != nil || r.Id != id || r.Error != nil {
			t.Fatalf("got %v, %v, want reply %d", r, err, id)
		}
	}
}

// A publication behind a question waits for the answer.
func TestPublishWaitsForHistory(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	db := s.databases.get("default")
	c := s.connect(t, wire.JSON, "u")
	c.ok(publishTo("open:a", `1`))
	gate := make(chan struct{})
	for range db.queries.max {
		db.queries.do(func() { <-gate })
	}
	if err := c.send(historyOf("open:a", -1), publishTo("open:a", `2`)); err != nil {
		t.Fatal(err)
	}
	c.raw(rawFrame(true, ws.OpPing, nil)) // not read either
	parked := false
	until(t, "the question is under way", func() bool {
		under := false
		for _, l := range s.loops {
			onLoop(l, func() {
				for _, c := range l.conns {
					under, parked = under || c.flight > 0, parked || c.parked != nil
				}
			})
		}
		return under
	})
	if !parked {
		t.Error("the publication has begun")
	}
	close(gate)
	if r, err := c.reply(3); err != nil || len(r.History.GetPublications()) != 1 {
		t.Errorf("history %v, %v, want one publication", r, err)
	}
	if r, err := c.reply(4); err != nil || r.Error != nil {
		t.Errorf("publish: %v, %v", r, err)
	}
}

func TestPresenceLimit(t *testing.T) {
	change := func(o *Options) {
		ns := openNamespace()
		ns.PresenceMax = 2
		o.Namespaces["small"] = ns
		mute := DefaultNamespace()
		o.Namespaces["mute"] = mute
		mute.PresenceInfo = AccessUser
		o.Namespaces["silent"] = mute
	}
	encodings(t, change, func(t *testing.T, s *testServer, enc wire.Encoding) {
		room := "small:" + enc.String()
		ask := &protocol.Command{Presence: &protocol.PresenceRequest{Channel: room}}
		a, b := s.connect(t, enc, "a"), s.connect(t, enc, "b")
		a.ok(subscribeTo(room))
		b.ok(subscribeTo(room))
		r := a.ok(ask)
		users := make(map[string]bool)
		for id, info := range r.Presence.Presence {
			users[info.User] = id == info.Client
		}
		if len(users) != 2 || !users["a"] || !users["b"] {
			t.Errorf("presence %v", r.Presence)
		}
		c := s.connect(t, enc, "a")
		c.ok(subscribeTo(room))
		ask.Id = 0
		c.fails(errLimitExceeded.Code, ask)
		r = c.ok(&protocol.Command{PresenceStats: &protocol.PresenceStatsRequest{Channel: room}})
		if r.PresenceStats.NumClients != 3 || r.PresenceStats.NumUsers != 2 {
			t.Errorf("presence stats %v, want 3 clients of 2 users", r.PresenceStats)
		}
		c.fails(errNotAvailable.Code, &protocol.Command{Presence: &protocol.PresenceRequest{Channel: "silent:x"}})
		// Who may not ask is not told what there is.
		c.fails(errPermissionDenied.Code, &protocol.Command{Presence: &protocol.PresenceRequest{Channel: "mute:x"}})
	})
}

// Joins and leaves reach who asked for them.
func TestJoinLeave(t *testing.T) {
	change := func(o *Options) {
		ns := openNamespace()
		ns.JoinLeave = true
		o.Namespaces["party"] = ns
	}
	encodings(t, change, func(t *testing.T, s *testServer, enc wire.Encoding) {
		room := "party:" + enc.String()
		cmd := subscribeTo(room)
		cmd.Subscribe.JoinLeave = true
		host := s.connect(t, enc, "host")
		host.ok(cmd)
		guest := s.connect(t, 1-enc, "guest")
		guest.ok(subscribeTo(room))
		var seen []string
		wait := func(want string) {
			t.Helper()
			for {
				p, err := host.push()
				if err != nil {
					t.Fatalf("%v after %v, want %s", err, seen, want)
				}
				switch {
				case p.Join != nil:
					seen = append(seen, "join "+p.Join.Info.User)
				case p.Leave != nil:
					seen = append(seen, "leave "+p.Leave.Info.User)
				}
				if seen[len(seen)-1] == want {
					return
				}
			}
		}
		wait("join guest")
		guest.conn.Close()
		wait("leave guest")
	})
}

// A room without history tells no offsets, and whoever lags by more than the
// backlog is closed; the others get everything.
func TestBacklog(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		o.Limits.Unsent = 64 << 10
		s := startServer(t, o, nil)
		good, stalled := s.connect(t, wire.JSON, "good"), s.connect(t, wire.Protobuf, "stalled")
		_ = stalled.conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		good.ok(subscribeTo("live:x"))
		if r := stalled.ok(subscribeTo("live:x")); r.Subscribe.Recoverable || r.Subscribe.Positioned || r.Subscribe.Epoch != "" {
			t.Errorf("subscribe reply %v of a room without history", r)
		}
		publisher := s.connect(t, wire.JSON, "publisher")
		n := 0
		for ; s.databases.get("default").connections.Load() == 3; n++ {
			if n > 5000 {
				t.Fatal("the stalled connection is never closed")
			}
			data := fmt.Sprintf(`{"n":%d,"pad":%q}`, n, strings.Repeat("x", 8<<10))
			publisher.ok(publishTo("live:x", data))
			if room, p := good.publication(); room != "live:x" || p.Offset != 0 || string(p.Data) != data {
				t.Fatalf("publication %d in %s: offset %d, %.40s", n, room, p.Offset, p.Data)
			}
		}
		if len(s.databases.get("default").live("live:x").name) == 0 || s.databases.get("default").live("live:x").members.Load() != 1 {
			t.Error("the stalled connection is still a member")
		}
		good.ok(publishTo("live:x", `"still here"`))
	})
}

// Server-side subscriptions come with the connect reply, before their
// publications.
func TestServerSubscriptions(t *testing.T) {
	encodings(t, nil, func(t *testing.T, s *testServer, enc wire.Encoding) {
		room := "open:mine-" + enc.String()
		first := s.connect(t, enc, "u")
		for i := range 3 {
			first.ok(publishTo(room, fmt.Sprint(i)))
		}
		page := first.ok(historyOf(room, 0)).History
		c := s.open(t, enc)
		r := c.ok(&protocol.Command{Connect: &protocol.ConnectRequest{
			Token: token(t, "u", func(c *auth.Claims) { c.Channels = []string{room, "live:y", room} }),
			Subs:  map[string]*protocol.SubscribeRequest{room: {Recover: true, Offset: 1, Epoch: page.Epoch}},
		}})
		sub := r.Connect.Subs[room]
		if sub == nil || !sub.Recovered || sub.Offset != 1 || len(sub.Publications) != 2 || sub.Publications[0].Offset != 2 || len(r.Connect.Subs) != 2 {
			t.Fatalf("connect reply %v", r.Connect)
		}
		first.ok(publishTo(room, `"next"`))
		if in, p := c.publication(); in != room || p.Offset != 4 {
			t.Errorf("publication %d in %s, want 4 in %s", p.Offset, in, room)
		}
	})
}

// What is not supported is refused.
func TestUnsupported(t *testing.T) {
	change := func(o *Options) {
		short := openNamespace()
		short.MaxMessage = 100
		o.Namespaces["short"] = short
	}
	encodings(t, change, func(t *testing.T, s *testServer, enc wire.Encoding) {
		c := s.connect(t, enc, "u")
		for name, test := range map[string]struct {
			code uint32
			cmd  *protocol.Command
		}{
			"subscription type":     {107, &protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: "open:x", Type: 1}}},
			"map publication":       {107, &protocol.Command{Publish: &protocol.PublishRequest{Channel: "open:x", Key: "k", Data: protocol.Raw("1")}}},
			"undeclared namespace":  {102, subscribeTo("nowhere:x")},
			"closed namespace":      {103, subscribeTo("x")},
			"name with #":           {107, subscribeTo("open:a#b")},
			"name with $":           {107, subscribeTo("$open:a")},
			"empty name":            {107, subscribeTo("")},
			"rpc method":            {104, &protocol.Command{Rpc: &protocol.RPCRequest{Method: "nothing", Data: protocol.Raw("{}")}}},
			"rpc field":             {107, &protocol.Command{Rpc: &protocol.RPCRequest{Method: "publish", Data: protocol.Raw(`{"room":"open:x","data":1,"odd":2}`)}}},
			"history of live rooms": {108, historyOf("live:x", 1)},
			"too large":             {106, publishTo("short:x", `"`+strings.Repeat("x", 99)+`"`)},
		} {
			t.Log(name)
			c.fails(test.code, test.cmd)
		}
		if err := c.send(&protocol.Command{Id: 77, Send: &protocol.SendRequest{Data: protocol.Raw("1")}}); err != nil {
			t.Fatal(err)
		}
		c.ok(unsubscribeFrom("open:never"))
	})
	t.Run("data that is no JSON from Protobuf", func(t *testing.T) {
		s := startServer(t, testOptions(t), nil)
		c := s.connect(t, wire.Protobuf, "u")
		c.fails(107, publishTo("open:x", `{"a":`))
		c.fails(107, publishTo("open:x", ``))
		c.ok(publishTo("open:x", "{\"a\":\n1}"))
		r := c.ok(historyOf("open:x", -1))
		if pubs := r.History.Publications; len(pubs) != 1 || string(pubs[0].Data) != `{"a":1}` {
			t.Errorf("history %v, want the one without its newline", pubs)
		}
	})
}
