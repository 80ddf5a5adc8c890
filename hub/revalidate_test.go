package hub

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/poll/polltest"
	"hub/hub/wire"
	"hub/store"
)

// checked makes a bench whose connections, n of them with a subscription each, have
// their tokens checked again once per period.
func checked(t testing.TB, n int) *bench {
	t.Helper()
	b := newBench(t)
	o := DefaultOptions()
	o.Auth.HMACSecret = testSecret
	o.Namespaces = map[string]Namespace{"default": openNamespace()}
	p, err := newPolicy(o)
	if err != nil {
		t.Fatal(err)
	}
	if p.verifier, err = auth.New(o.Auth); err != nil {
		t.Fatal(err)
	}
	b.server.policy.Store(p)
	r := b.room("default", "r")
	for i := range n {
		c := b.member(r, wire.JSON, func(_ *sub, p []byte) (int, error) { return len(p), nil }).conn
		claims, err := p.verifier.Connection(token(t, fmt.Sprint("user", i), func(c *auth.Claims) {
			c.ID, c.IssuedAt = fmt.Sprint("token-", i), time.Now().Unix()
		}), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		b.forgetUser(c)
		c.setSession(p, claims, "client")
		b.addUser(c)
		c.nextCheck = spread(b.now, o.Auth.Revalidate)
		c.nextPing, c.expires.at = farAway, farAway
		b.schedule(c)
	}
	return b
}

// period has the next period pass.
func (b *bench) period() {
	for end := b.now + b.server.policy.Load().Auth.Revalidate; b.now < end; {
		b.now += wheelTick
		b.wheel.advance(b.now, b.fire)
	}
}

// What a connection costs whose policy is the same as at its last check, timer and
// clock included: about 30 ns; and with another one, about 75.
func BenchmarkRevalidate(b *testing.B) {
	const n = 10_000
	for _, revoked := range []int{0, 1000} {
		for _, changed := range []bool{false, true} {
			b.Run(fmt.Sprintf("connections=%d/revoked=%d/changed=%v", n, revoked, changed), func(b *testing.B) {
				w := checked(b, n)
				var list []auth.Revocation
				for i := range revoked {
					list = append(list, auth.Revocation{User: fmt.Sprint("banned-", i)}, auth.Revocation{TokenID: fmt.Sprint("stolen-", i)})
				}
				w.server.update(func(p *policy) { p.revocations = auth.NewRevocations(list) })
				w.period()
				b.ReportAllocs()
				for b.Loop() {
					if changed {
						w.server.update(func(*policy) {})
					}
					w.period()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/check")
			})
		}
	}
}

// A revocation looks at every connection, or at those of its user.
func BenchmarkScan(b *testing.B) {
	const n = 10_000
	w := checked(b, n)
	for _, v := range []struct {
		name string
		scan func()
	}{
		{"jti", func() {
			w.scan(len(w.conns), func(l *loop, c *conn) { l.endIfRevoked(c, &store.Revocation{TokenID: "nobody's"}) }, func() {})
		}},
		{"issued_before", func() {
			w.scan(len(w.conns), func(l *loop, c *conn) { l.endIfRevoked(c, &store.Revocation{IssuedBefore: 1}) }, func() {})
		}},
	} {
		b.Run(fmt.Sprintf("%s/connections=%d", v.name, n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				v.scan()
				for w.mail.Load() {
					w.collect()
				}
			}
		})
	}
}

// A check that finds nothing new takes no memory, whatever the policy says.
func TestRevalidationAllocatesNothing(t *testing.T) {
	b := checked(t, 50)
	list := []auth.Revocation{{User: "nobody"}, {TokenID: "nothing"}, {IssuedBefore: 1}}
	b.server.update(func(p *policy) { p.revocations = auth.NewRevocations(list) })
	b.period()
	before := len(b.conns)
	for _, generation := range []uint64{0, 1} {
		if n := testing.AllocsPerRun(20, func() {
			for _, c := range b.conns {
				c.checked -= generation
			}
			b.period()
		}); n != 0 {
			t.Errorf("%v allocations for checks, policy changed: %v", n, generation > 0)
		}
	}
	for _, c := range b.conns {
		if c.checked != b.server.policy.Load().generation {
			t.Errorf("a connection was checked under policy %d, want %d", c.checked, b.server.policy.Load().generation)
		}
	}
	if len(b.conns) != before {
		t.Errorf("%d connections are left, want %d", len(b.conns), before)
	}
}

// Each connection is checked once per period, and those who come together are not
// checked together.
func TestRevalidationIsSpread(t *testing.T) {
	const n = 600
	b := checked(t, n)
	period := b.server.policy.Load().Auth.Revalidate
	for range 2 {
		b.server.update(func(*policy) {})
		generation := b.server.policy.Load().generation
		checked, most := 0, 0
		for range period / wheelTick {
			b.now += wheelTick
			b.wheel.advance(b.now, b.fire)
			now := 0
			for _, c := range b.conns {
				if c.checked == generation {
					now++
				}
			}
			most = max(most, now-checked)
			checked = now
		}
		b.now += wheelTick // a time of its own is rounded up to a tick
		b.wheel.advance(b.now, b.fire)
		for _, c := range b.conns {
			if c.checked != generation {
				t.Fatalf("a connection was not checked within a period")
			}
		}
		if most > 12 { // 1 on average
			t.Errorf("%d of %d connections were checked in one tick of %d", most, n, period/wheelTick)
		}
	}
}

// reload changes the configuration of a running server, and returns what would take
// a restart.
func (s *testServer) reload(t testing.TB, change func(*Options)) []string {
	t.Helper()
	o := s.policy.Load().Options
	o.Namespaces = maps.Clone(o.Namespaces)
	change(&o)
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	restart, err := s.Reload(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return restart
}

// withWall is withClock whose server has a wall clock that is a time ahead.
func withWall(t *testing.T, change func(*Options), test func(s *clockwork, ahead *atomic.Int64)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(t)
		if change != nil {
			change(&o)
		}
		var ahead atomic.Int64
		network := polltest.New(1, polltest.Faults{})
		c := &clockwork{t: t, listener: network.NewListener()}
		c.testServer = startServer(t, o, func(s *Server) {
			s.backend, s.listener = network, c.listener
			s.clock = func() time.Time { return time.Now().Round(0).Add(time.Duration(ahead.Load())) }
		})
		test(c, &ahead)
		c.stop()
	})
}

// Without pings, nothing but the token and its checks moves a connection.
func noPings(o *Options) { o.Server.PingInterval = 1000 * time.Hour }

const previousSecret = "fedcba9876543210fedcba9876543210"

// mintWith is token with another secret.
func mintWith(t testing.TB, secret, user string) string {
	t.Helper()
	tok, err := auth.Mint([]byte(secret), auth.Claims{User: user, ExpiresAt: time.Now().Add(100 * time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// Keys overlap during a rotation. When the old one is removed, its connections end
// within a period, each at a time of its own, and may come back with a new token;
// nobody else notices.
func TestRemovedKey(t *testing.T) {
	withClock(t, func(o *Options) { noPings(o); o.Auth.PreviousSecrets = []string{previousSecret} }, func(s *clockwork) {
		const n = 30
		connect := func(enc wire.Encoding, secret, user string) *tester {
			c, _ := s.connect(enc, mintWith(t, secret, user))
			c.ok(subscribeTo("open:a"))
			return c
		}
		var old, current []*tester
		for i := range n {
			old = append(old, connect(wire.Encoding(i%2), previousSecret, "old"))
			current = append(current, connect(wire.Encoding(i%2), testSecret, "new"))
		}
		time.Sleep(time.Hour)
		begin := time.Now()
		s.reload(t, func(o *Options) { o.Auth.PreviousSecrets = nil })
		c, _ := s.open(wire.JSON)
		c.fails(errTokenExpired.Code, connectWith(mintWith(t, previousSecret, "old")))
		c, _ = s.open(wire.JSON)
		if got := replyCode(c.call(connectWith(mintWith(t, "never-a-secret-never-a-secret-00", "old")))); got != uint32(closeInvalidToken.code) {
			t.Errorf("a forged token gets %d, want 3500", got)
		}
		var ends []time.Duration
		for _, c := range old {
			c.closes(closeTokenOver.code)
			ends = append(ends, time.Since(begin))
		}
		period := s.opts.Auth.Revalidate
		if last := ends[n-1]; last > period+2*wheelTick {
			t.Errorf("the last one ends after %v, want within %v", last, period)
		}
		c, _ = s.connect(wire.JSON, mintWith(t, testSecret, "old"))
		c.ok(publishTo("open:a", `"to those who stay"`))
		time.Sleep(3 * period)
		for _, c := range current {
			if _, p := c.publication(); string(p.Data) != `"to those who stay"` {
				t.Errorf("got %s", p.Data)
			}
			c.ok(historyOf("open:a", 0))
		}
	})
}

// A subscription stands while what made it does, and nothing else of the connection
// goes with it.
func TestLostGrants(t *testing.T) {
	change := func(o *Options) {
		noPings(o)
		gone := openNamespace()
		o.Namespaces["gone"] = gone
		o.Auth.PreviousSecrets = []string{previousSecret}
	}
	withClock(t, change, func(s *clockwork) {
		connect := func(enc wire.Encoding, user string, more func(*auth.Claims)) *tester {
			c, _ := s.connect(enc, token(t, user, func(c *auth.Claims) {
				c.ExpiresAt += 1000 * 3600
				more(c)
			}))
			return c
		}
		grants := auth.Grants{{Rooms: []string{"open:granted", "gone:a"}, Allow: auth.Subscribe}}
		c := connect(wire.JSON, "u", func(c *auth.Claims) { c.Grants, c.Channels = grants, []string{"open:claimed"} })
		for _, room := range []string{"open:granted", "open:lost", "gone:a"} {
			c.ok(subscribeTo(room))
		}
		sub := func(room, secret string) *protocol.Command {
			tok, err := auth.MintSubscription([]byte(secret), auth.SubscriptionClaims{User: "u", Channel: room, ExpiresAt: time.Now().Add(1000 * time.Hour).Unix()})
			if err != nil {
				t.Fatal(err)
			}
			return &protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: room, Token: tok}}
		}
		c.ok(sub("open:token", testSecret))
		c.ok(sub("open:oldkey", previousSecret))
		s.databases.get("default").eachConn(apiUser{User: "u"}, func(l *loop, c *conn) { // as the server API does
			for _, room := range []string{"open:server", "gone:server"} {
				l.subscribe(c, room, &subscribing{made: byServer, budget: new(int), done: func(*loop, *protocol.SubscribeResult, [][]byte, *protocol.Error) {}})
			}
		})
		begin := time.Now()
		if restart := s.reload(t, func(o *Options) {
			o.Auth.PreviousSecrets = nil
			delete(o.Namespaces, "gone")
			closed := o.Namespaces["open"]
			closed.Subscribe = AccessToken
			o.Namespaces["open"] = closed
		}); len(restart) > 0 {
			t.Errorf("a restart is needed for %q", restart)
		}
		want := map[string]uint32{"open:lost": 2000, "gone:a": 2000, "gone:server": 2000, "open:oldkey": 2501}
		for len(want) > 0 {
			p, err := c.push()
			if err != nil || p.Unsubscribe == nil || p.Unsubscribe.Code != want[p.Channel] {
				t.Fatalf("push %v, %v, want one of %v", p, err, want)
			}
			delete(want, p.Channel)
			if took := time.Since(begin); took > s.opts.Auth.Revalidate+2*wheelTick {
				t.Errorf("%s ended after %v", p.Channel, took)
			}
		}
		c.fails(errPermissionDenied.Code, subscribeTo("open:lost"))
		c.fails(errUnknownChannel.Code, subscribeTo("gone:a"))
		time.Sleep(time.Hour)
		for _, room := range []string{"open:granted", "open:token", "open:claimed", "open:server"} {
			c.fails(errAlreadySubbed.Code, subscribeTo(room))
		}
		// A new token that grants less ends what it does not grant, at once.
		fresh := token(t, "u", func(c *auth.Claims) { c.ExpiresAt += 1000 * 3600 })
		c.ok(&protocol.Command{Refresh: &protocol.RefreshRequest{Token: fresh}})
		lost := []string{}
		for range 2 {
			p, err := c.push()
			if err != nil || p.Unsubscribe == nil || p.Unsubscribe.Code != unsubLost.code {
				t.Fatalf("push %v, %v, want unsubscribe 2000", p, err)
			}
			lost = append(lost, p.Channel)
		}
		if slices.Sort(lost); !slices.Equal(lost, []string{"open:claimed", "open:granted"}) {
			t.Errorf("a token without grants ends %q", lost)
		}
		for _, room := range []string{"open:token", "open:server"} {
			c.fails(errAlreadySubbed.Code, sub(room, testSecret))
		}
	})
}

// A wall clock that is set back gives no token more time; one that is set forward
// ends tokens within a period, and nobody else's.
func TestClocksThatMove(t *testing.T) {
	const lasts = 10 * time.Minute
	for _, test := range []struct {
		name  string
		ahead time.Duration
		ends  time.Duration // after the beginning
	}{
		{"stays", 0, lasts},
		{"is set back", -24 * time.Hour, lasts},
		{"goes back to 1970", -1e6 * time.Hour, lasts},
		{"is set forward", 24 * time.Hour, time.Minute},
		{"goes far", 200 * 365 * 24 * time.Hour, time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			withWall(t, noPings, func(s *clockwork, ahead *atomic.Int64) {
				exp := time.Now().Add(lasts).Truncate(time.Second)
				end := exp.Add(s.opts.Auth.Leeway)
				tok := token(t, "u", func(c *auth.Claims) { c.ExpiresAt = exp.Unix() })
				const n = 10
				var all []*tester
				for range n {
					c, _ := s.connect(wire.JSON, tok)
					cmd := subscribeTo("private")
					cmd.Subscribe.Token = subscriptionToken(t, "u", "private", func(c *auth.SubscriptionClaims) { c.ExpiresAt = exp.Add(-time.Minute).Unix() })
					c.ok(cmd)
					all = append(all, c)
				}
				time.Sleep(30 * time.Second)
				ahead.Store(int64(test.ahead))
				moved := time.Now()
				for _, c := range all {
					if p, err := c.push(); err == nil && p.Unsubscribe != nil && p.Unsubscribe.Code == unsubExpired.code {
						if late := time.Since(end.Add(-time.Minute)); late < 0 || late > time.Second+2*wheelTick {
							t.Errorf("the subscription ended %v after its end", late)
						}
					} else if test.ahead <= 0 || !closedWith(err, closeExpired.code) {
						t.Errorf("push %v, %v", p, err)
					} else {
						if took := time.Since(moved); took > s.opts.Auth.Revalidate+2*wheelTick {
							t.Errorf("closed %v after the clock was set forward", took)
						}
						continue
					}
				}
				if test.ahead <= 0 {
					for _, c := range all {
						c.closes(closeExpired.code)
						if late := time.Since(end); late < 0 || late > time.Second+2*wheelTick {
							t.Errorf("closed %v after its end", late)
						}
					}
				}
				if n := s.counted(t, "hub_disconnects_total"); n != float64(len(all)) {
					t.Errorf("%v close frames, want %d", n, len(all))
				}
			})
		})
	}
}

// A shorter period holds for live connections at once.
func TestShorterPeriod(t *testing.T) {
	withClock(t, func(o *Options) {
		noPings(o)
		o.Auth.Revalidate = 24 * time.Hour
		o.Auth.PreviousSecrets = []string{previousSecret}
	}, func(s *clockwork) {
		c, _ := s.connect(wire.JSON, mintWith(t, previousSecret, "u"))
		begin := time.Now()
		s.reload(t, func(o *Options) { o.Auth.Revalidate = 10 * time.Second; o.Auth.PreviousSecrets = nil })
		c.closes(closeTokenOver.code)
		if took := time.Since(begin); took > 10*time.Second+2*wheelTick {
			t.Errorf("closed after %v, want 10s", took)
		}
	})
}

// A refresh or sub_refresh that is refused without a close changes nothing.
func TestRefusedRefreshes(t *testing.T) {
	encodings(t, nil, func(t *testing.T, s *testServer, enc wire.Encoding) {
		user := "u" + enc.String()
		c := s.connect(t, enc, user)
		cmd := subscribeTo("private")
		cmd.Subscribe.Token = subscriptionToken(t, user, "private", func(c *auth.SubscriptionClaims) { c.ID = "first" })
		c.ok(cmd)
		state := func() (token credential, sessionEnds, subEnds expiry) {
			cc := s.connOf(t, user)
			onLoop(cc.loop, func() {
				sub := cc.find("private")
				token, sessionEnds, subEnds = *sub.token, cc.expires, sub.expires
			})
			return
		}
		beforeToken, beforeSession, beforeSub := state()
		expired := func(c *auth.SubscriptionClaims) { c.ExpiresAt = time.Now().Add(-time.Hour).Unix() }
		for name, test := range map[string]struct {
			room, token string
			code        uint32
		}{
			"another room's":      {"private", subscriptionToken(t, user, "private2"), 103},
			"another user's":      {"private", subscriptionToken(t, "another", "private"), 103},
			"expired":             {"private", subscriptionToken(t, user, "private", expired), 109},
			"forged":              {"private", subscriptionToken(t, user, "private") + "x", 103},
			"a connection's":      {"private", token(t, user), 103},
			"none":                {"private", "", 107},
			"of a room not in":    {"open:z", subscriptionToken(t, user, "open:z"), 103},
			"of no room":          {"", subscriptionToken(t, user, "private"), 103},
			"of a room not there": {"nowhere:a", subscriptionToken(t, user, "nowhere:a"), 103},
		} {
			if got := replyCode(c.call(&protocol.Command{SubRefresh: &protocol.SubRefreshRequest{Channel: test.room, Token: test.token}})); got != test.code {
				t.Errorf("%s: error %d, want %d", name, got, test.code)
			}
		}
		c.fails(107, &protocol.Command{Refresh: &protocol.RefreshRequest{}})
		if token, session, sub := state(); token != beforeToken || session != beforeSession || sub != beforeSub {
			t.Errorf("state %v %v %v, want %v %v %v", token, session, sub, beforeToken, beforeSession, beforeSub)
		}
		for name, test := range map[string]struct {
			token string
			code  uint16
		}{
			"expired":            {token(t, user, func(c *auth.Claims) { c.ExpiresAt = time.Now().Add(-time.Hour).Unix() }), 3005},
			"forged":             {mintWith(t, previousSecret, user), 3500},
			"another user's":     {token(t, "another"), 3500},
			"another database's": {token(t, user, func(c *auth.Claims) { c.Databases = []string{"elsewhere"} }), 3500},
			"a subscription's":   {subscriptionToken(t, user, "private"), 3500},
		} {
			c := s.connect(t, enc, user)
			if got := replyCode(c.call(&protocol.Command{Refresh: &protocol.RefreshRequest{Token: test.token}})); got != uint32(test.code) {
				t.Errorf("refresh with a token that is %s: %d, want %d", name, got, test.code)
			}
		}
	})
}
