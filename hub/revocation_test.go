package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
	"hub/store"
)

// revokes revokes and fails the test when that does.
func (s *testServer) revokes(t testing.TB, v store.Revocation) store.Revocation {
	t.Helper()
	stored, err := s.revoke(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// issued mints a token of user with a jti, issued some seconds ago.
func issued(t testing.TB, user, id string, ago int64) string {
	return token(t, user, func(c *auth.Claims) { c.ID, c.IssuedAt = id, time.Now().Unix()-ago })
}

// A revocation of each kind ends those tokens that it names, and no other: on live
// connections, when they come back, in a refresh and over HTTP.
func TestRevocations(t *testing.T) {
	now := time.Now().Unix()
	for _, test := range []struct {
		name string
		v    store.Revocation
		// what user ann is told, whose token has jti "a" and is 100 s old
		ends, connects, refreshed uint32
		others                    []string // users who are told the same
	}{
		{"a user", store.Revocation{User: "ann"}, 3500, 3500, 3500, nil},
		{"a user in this database", store.Revocation{User: "ann", Database: "default"}, 3500, 3500, 3500, nil},
		{"a token", store.Revocation{TokenID: "a"}, 3005, 109, 3005, nil},
		{"a user's token", store.Revocation{TokenID: "a", User: "ann"}, 3005, 109, 3005, nil},
		{"a user's old tokens", store.Revocation{User: "ann", IssuedBefore: now - 50}, 3005, 109, 3005, nil},
		{"all old tokens", store.Revocation{IssuedBefore: now - 50}, 3005, 109, 3005, []string{"old", "ageless"}},
		{"another user", store.Revocation{User: "nobody"}, 0, 0, 0, nil},
		{"another user's token", store.Revocation{TokenID: "a", User: "nobody"}, 0, 0, 0, nil},
		{"another database", store.Revocation{User: "ann", Database: "other"}, 0, 0, 0, nil},
		{"older tokens", store.Revocation{IssuedBefore: now - 1000}, 0, 0, 0, []string{"ageless"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startServer(t, testOptions(t), nil)
			tokens := map[string]string{
				"ann": issued(t, "ann", "a", 100), "bob": issued(t, "bob", "b", 0),
				"old": issued(t, "old", "c", 100), "ageless": token(t, "ageless"),
			}
			clients := make(map[string]*tester)
			for user, tok := range tokens {
				c := s.open(t, wire.Encoding(len(user)%2))
				c.ok(connectWith(tok))
				c.ok(subscribeTo("open:a"))
				clients[user] = c
			}
			s.revokes(t, test.v)
			for user, tok := range tokens {
				ends, connects, refreshed := test.ends, test.connects, test.refreshed
				switch {
				case user == "ann":
				case slices.Contains(test.others, user):
					ends, connects, refreshed = 3005, 109, 3005
				default:
					ends, connects, refreshed = 0, 0, 0
				}
				s.judges(t, user, tok, clients[user], ends, connects, refreshed)
			}
		})
	}
}

// judges checks how user's token and its live connection c are met.
func (s *testServer) judges(t *testing.T, user, tok string, c *tester, ends, connects, refreshed uint32) {
	t.Helper()
	if ends == 0 {
		c.ok(historyOf("open:a", 0)) // alive
	} else {
		c.closes(uint16(ends))
	}
	if got := replyCode(s.open(t, wire.JSON).call(connectWith(tok))); got != connects {
		t.Errorf("%s: connect gets %d, want %d", user, got, connects)
	}
	refresh := &protocol.Command{Refresh: &protocol.RefreshRequest{Token: tok}}
	// The refresh comes from a connection with a token that nothing names.
	if fresh := s.open(t, wire.JSON); refreshed != 3500 {
		fresh.ok(connectWith(issued(t, user, "fresh", 0)))
		if got := replyCode(fresh.call(refresh)); got != refreshed {
			t.Errorf("%s: refresh gets %d, want %d", user, got, refreshed)
		}
	}
	a := s.call(t, "GET", rooms+"open:a/history", "", "Authorization: Bearer "+tok)
	if ends == 0 {
		a.want(t, user+" over HTTP", 200, "")
	} else {
		a.want(t, user+" over HTTP", 401, "token_revoked")
	}
}

// Nothing that is published after a revocation has returned reaches whom it is
// about, however slowly they read and whatever they do at the time.
func TestNothingAfterRevocation(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		const each, before = 12, 100
		var banned []*tester
		for i := range each {
			c := s.open(t, wire.Encoding(i%2))
			c.ok(connectWith(issued(t, "banned", fmt.Sprint("b", i), 10)))
			c.ok(subscribeTo("open:a"))
			c.ok(subscribeTo("live:a"))
			banned = append(banned, c)
		}
		stays := s.connect(t, wire.JSON, "stays")
		stays.ok(subscribeTo("open:a"))
		stays.ok(subscribeTo("live:a"))
		var reader sync.WaitGroup
		reader.Go(func() { // gets everything
			for seen := 0; seen < 2; {
				if _, p := stays.publication(); string(p.Data) == `"after"` {
					seen++
				}
			}
		})
		publisher := s.connect(t, wire.JSON, "publisher")
		big := strings.Repeat("x", 16<<10)
		var revoked atomic.Bool
		var late sync.WaitGroup
		late.Go(func() { // some are always on their way
			for i := 0; i < before || !revoked.Load(); i++ {
				text := "before"
				if revoked.Load() {
					text = "after"
				}
				publisher.ok(publishTo("open:a", fmt.Sprintf(`"%s%s"`, text, big)))
				publisher.ok(publishTo("live:a", fmt.Sprintf(`"%s %d"`, text, i)))
			}
		})
		s.revokes(t, store.Revocation{User: "banned"})
		revoked.Store(true)
		late.Wait()
		for _, room := range []string{"open:a", "live:a"} {
			publisher.ok(publishTo(room, `"after"`))
		}
		for i, c := range banned {
			for {
				p, err := c.push()
				if err != nil {
					if !closedWith(err, closeUserRevoked.code) && !isEOF(err) && !isReset(err) { // a socket that took no more has no close frame
						t.Errorf("client %d ended with %v", i, err)
					}
					break
				}
				if p.Pub != nil && strings.HasPrefix(string(p.Pub.Data), `"after`) {
					t.Fatalf("client %d got an event of %s that was published after the revocation", i, p.Channel)
				}
			}
		}
		reader.Wait()
	})
}

func isReset(err error) bool { return err != nil && strings.Contains(err.Error(), "reset by peer") }

// A connect command whose token is being verified, or whose rooms are being read,
// when its user is revoked, does not get in.
func TestRevocationDuringConnect(t *testing.T) {
	signed := newSigner(t, "ES256", "")
	o := testOptions(t)
	publicKeys(t, []signer{signed})(&o)
	s := startServer(t, o, nil)
	release := s.holdVerifier(t)
	c := s.open(t, wire.JSON)
	if err := c.send(connectWith(signed.token(t, "ann", nil)), subscribeTo("open:a")); err != nil {
		t.Fatal(err)
	}
	until(t, "the token waits", func() bool { return s.waiting() == 1 })
	s.revokes(t, store.Revocation{User: "ann"})
	release()
	c.closes(closeUserRevoked.code)

	held, _, release := s.heldConnect(t, "bob", "open:b")
	s.revokes(t, store.Revocation{User: "bob"})
	held.closes(closeUserRevoked.code)
	release()
	until(t, "nobody is connected", func() bool { return s.databases.get("default").connections.Load() == 0 })
}

// The tokens of subscriptions are revoked as those of connections are; the rest of
// the connection stays.
func TestRevokedSubscriptionToken(t *testing.T) {
	encodings(t, nil, func(t *testing.T, s *testServer, enc wire.Encoding) {
		user, stolen := "u"+enc.String(), "stolen-"+enc.String()
		c := s.connect(t, enc, user)
		with := func(room, id string) *protocol.Command {
			return &protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: room, Token: subscriptionToken(t, user, room,
				func(c *auth.SubscriptionClaims) { c.ID, c.IssuedAt = id, time.Now().Unix() })}}
		}
		c.ok(with("private", stolen))
		c.ok(with("private2", "fine"))
		c.ok(subscribeTo("open:a"))
		v := s.revokes(t, store.Revocation{TokenID: stolen})
		p, err := c.push()
		if err != nil || p.Channel != "private" || p.Unsubscribe == nil || p.Unsubscribe.Code != unsubExpired.code {
			t.Fatalf("push %v, %v, want unsubscribe 2501 of private", p, err)
		}
		c.fails(errTokenExpired.Code, with("private", stolen)) // the SDK fetches another one
		again := with("private2", stolen).Subscribe.Token
		c.fails(errTokenExpired.Code, &protocol.Command{SubRefresh: &protocol.SubRefreshRequest{Channel: "private2", Token: again}})
		c.ok(with("private", "new"))
		for _, room := range []string{"private", "private2", "open:a"} {
			c.fails(errAlreadySubbed.Code, subscribeTo(room))
		}
		if err := s.restore(t.Context(), v.ID); err != nil {
			t.Fatal(err)
		}
		c.ok(unsubscribeFrom("private"))
		c.ok(with("private", stolen))
	})
}

// Revocations and what was taken back survive a restart.
func TestRevocationsSurvive(t *testing.T) {
	o := testOptions(t)
	s := startServer(t, o, nil)
	s.revokes(t, store.Revocation{User: "ann", Note: "spam"})
	pardoned := s.revokes(t, store.Revocation{User: "bob"})
	s.revokes(t, store.Revocation{TokenID: "a"})
	if err := s.restore(t.Context(), pardoned.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.restore(t.Context(), pardoned.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("restored twice: %v", err)
	}
	if _, err := s.revoke(t.Context(), store.Revocation{Note: "nobody"}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a revocation of nothing: %v", err)
	}
	before := s.revoked()
	s.stop()
	s = startServer(t, o, nil)
	if after := s.revoked(); len(after) != 2 || !reflect.DeepEqual(before, after) {
		t.Errorf("revocations %v, want %v", after, before)
	}
	for tok, want := range map[string]uint32{token(t, "ann"): 3500, token(t, "bob"): 0, issued(t, "carol", "a", 0): 109} {
		if got := replyCode(s.open(t, wire.JSON).call(connectWith(tok))); got != want {
			t.Errorf("connect gets %d, want %d", got, want)
		}
	}
}

// A revocation is forgotten when no token needs it any more, and not because a clock
// jumps ahead.
func TestRevocationsAreSwept(t *testing.T) {
	withWall(t, nil, func(s *clockwork, wall *atomic.Int64) {
		now := time.Now().Unix()
		for i, until := range []int64{now + 100, now + 300, 0} {
			s.revokes(t, store.Revocation{User: fmt.Sprint("user", i), Until: until})
		}
		check := func(when string, want int) {
			t.Helper()
			time.Sleep(revocationSweep + time.Second)
			stored, err := s.registry.Revocations(t.Context())
			if err != nil || len(stored) != want || len(s.revoked()) != want {
				t.Errorf("%s: %d stored, %d in force, %v, want %d", when, len(stored), len(s.revoked()), err, want)
			}
		}
		check("at first", 3)
		wall.Store(int64(24 * time.Hour))
		check("the wall clock is ahead", 2) // 100 s are over meanwhile
		wall.Store(int64(-24 * time.Hour))
		time.Sleep(5 * time.Minute)
		check("the wall clock is behind", 2)
		wall.Store(0)
		check("at last", 1)
		if _, _, ok := s.policy.Load().revocations.Revokes("default", "user0", "", 0); ok {
			t.Error("a revocation that is forgotten is in force")
		}
		c, _ := s.open(wire.JSON)
		if got := replyCode(c.call(connectWith(token(t, "user2")))); got != 3500 {
			t.Errorf("a ban without an end: connect gets %d, want 3500", got)
		}
	})
}

// A scan sees every connection that was there when it began and stays, however many
// come and go between its slices.
func TestScanMissesNobody(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 0))
		b := newBench(t)
		r := b.room("default", "r")
		come := func() *conn {
			return b.member(r, wire.JSON, func(_ *sub, p []byte) (int, error) { return len(p), nil }).conn
		}
		first := make(map[*conn]bool)
		for range scanSlice*3 + random.IntN(scanSlice) {
			first[come()] = true
		}
		seen, done := make(map[*conn]bool), false
		b.scan(len(b.conns), func(l *loop, c *conn) {
			seen[c] = true
			if random.IntN(4) == 0 {
				b.drop(c)
			}
		}, func() { done = true })
		for !done {
			for range random.IntN(scanSlice) {
				if random.IntN(3) == 0 {
					come()
				} else if n := len(b.conns); n > 0 {
					b.drop(b.conns[random.IntN(n)])
				}
			}
			b.collect()
		}
		for _, c := range b.conns {
			if first[c] && !seen[c] {
				t.Fatalf("seed %d: a connection was not seen", seed)
			}
		}
	}
}

// Many revoke, take back, connect and reload at once; in the end the registry, the
// list and the policy say the same.
func TestRevocationsAtOnce(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	users := func(i int) string { return fmt.Sprint("user-", i%5) }
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for j := range 15 {
				v, err := s.revoke(context.Background(), store.Revocation{User: users(i + j), Note: fmt.Sprint(i)})
				if err != nil {
					t.Error(err)
				}
				if err := s.restore(context.Background(), v.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
					t.Error(err)
				}
			}
			if _, err := s.revoke(context.Background(), store.Revocation{TokenID: fmt.Sprint("token-", i)}); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			for j := range 10 {
				c := s.open(t, wire.JSON)
				_, _ = c.call(connectWith(issued(t, users(i*j), fmt.Sprint("token-", j), 0)))
				_ = c.conn.Close()
			}
		})
	}
	all.Go(func() {
		for range 10 {
			s.reload(t, func(o *Options) { o.Limits.Waiting++ })
		}
	})
	all.Wait()
	stored, err := s.registry.Revocations(t.Context())
	if err != nil || !reflect.DeepEqual(stored, s.revoked()) {
		t.Errorf("the registry holds %v, %v, the list %v", stored, err, s.revoked())
	}
	if len(stored) != 6 {
		t.Errorf("%d revocations are left, want those of 6 tokens: %v", len(stored), stored)
	}
	p := s.policy.Load()
	for i := range 6 {
		if _, _, ok := p.revocations.Revokes("default", "u", fmt.Sprint("token-", i), 0); !ok {
			t.Errorf("token-%d is not revoked in the policy", i)
		}
		if why, _, ok := p.revocations.Revokes("default", users(i), "", 0); ok {
			t.Errorf("%s is still revoked in the policy: %s", users(i), why)
		}
	}
}
