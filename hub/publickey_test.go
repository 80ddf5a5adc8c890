package hub

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
	"github.com/golang-jwt/jwt/v5"

	"hub/hub/wire"
)

// signer makes tokens with one private key.
type signer struct {
	name   string
	method jwt.SigningMethod
	key    crypto.Signer
	kid    string // in the header; "" for none
}

func newSigner(t testing.TB, name, kid string) signer {
	t.Helper()
	s := signer{name: name + " kid=" + kid, kid: kid}
	var err error
	switch name {
	case "ES256":
		s.method = jwt.SigningMethodES256
		s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "RS256":
		s.method = jwt.SigningMethodRS256
		s.key, err = rsa.GenerateKey(rand.Reader, 2048)
	case "EdDSA":
		s.method = jwt.SigningMethodEdDSA
		_, s.key, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// public is the key's entry in auth.public_keys.
func (s signer) public(t testing.TB) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(s.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	if s.kid != "" {
		text = "kid=" + s.kid + "\n" + text
	}
	return text
}

// token signs claims of user, good for an hour unless more says otherwise.
func (s signer) token(t testing.TB, user string, more jwt.MapClaims) string {
	t.Helper()
	claims := jwt.MapClaims{"sub": user, "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, more)
	tok := jwt.NewWithClaims(s.method, claims)
	if s.kid != "" {
		tok.Header["kid"] = s.kid
	}
	text, err := tok.SignedString(s.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// signers are of each kind, with and without a key id.
func signers(t testing.TB) (all []signer) {
	for _, name := range []string{"ES256", "RS256", "EdDSA"} {
		all = append(all, newSigner(t, name, ""), newSigner(t, name, "key-"+name))
	}
	return all
}

// publicKeys makes a server trust them besides its secret.
func publicKeys(t testing.TB, all []signer) func(*Options) {
	return func(o *Options) {
		for _, s := range all {
			o.Auth.PublicKeys = append(o.Auth.PublicKeys, s.public(t))
		}
	}
}

// holdVerifier keeps the worker that verifies busy until the returned function is
// called.
func (s *testServer) holdVerifier(t testing.TB) (release func()) {
	gate := make(chan struct{})
	s.verifying.do(func() { <-gate })
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return release
}

// waiting is how many tokens wait for the verifier.
func (s *testServer) waiting() int {
	s.verifying.mu.Lock()
	defer s.verifying.mu.Unlock()
	return len(s.verifying.queue)
}

// What is sent behind a token waits for its verification, in order.
func TestPublicKeys(t *testing.T) {
	all := signers(t)
	encodings(t, publicKeys(t, all), func(t *testing.T, s *testServer, enc wire.Encoding) {
		for i, key := range all {
			room := fmt.Sprintf("open:%d-%s", i, enc)
			c := s.open(t, enc)
			release := s.holdVerifier(t)
			if err := c.send(connectWith(key.token(t, "u", nil)), subscribeTo(room), publishTo(room, `"a"`), historyOf(room, -1)); err != nil {
				t.Fatal(err)
			}
			until(t, "the token waits for the verifier", func() bool { return s.waiting() == 1 })
			release()
			var order []string
			for len(order) < 5 || !slices.Contains(order, "push") {
				r, err := c.read()
				if err != nil || r.Error != nil {
					t.Fatalf("%s: %v, %v after %q", key.name, r, err, order)
				}
				switch {
				case r.Connect != nil:
					order = append(order, "connect")
				case r.Subscribe != nil:
					order = append(order, "subscribe")
				case r.Push != nil:
					order = append(order, "push")
				case r.Publish != nil:
					order = append(order, "publish")
				case r.History != nil:
					order = append(order, fmt.Sprint("history ", len(r.History.Publications)))
				}
			}
			// The publication may come anywhere behind its room's subscribe reply.
			push := slices.Index(order, "push")
			replies := slices.Delete(slices.Clone(order), push, push+1)
			if want := []string{"connect", "subscribe", "publish", "history 1"}; push < 2 || !slices.Equal(replies, want) {
				t.Errorf("%s: got %q, want %q with the push behind the second", key.name, order, want)
			}
			c.conn.Close()
		}
	})
}

// What a bad token says decides what the client is told.
func TestPublicKeyRefusals(t *testing.T) {
	all := signers(t)
	encodings(t, publicKeys(t, all), func(t *testing.T, s *testServer, enc wire.Encoding) {
		for _, key := range all {
			past := jwt.MapClaims{"exp": time.Now().Add(-time.Hour).Unix()}
			c := s.open(t, enc)
			if err := c.send(connectWith(key.token(t, "u", past)), subscribeTo("open:refused"), publishTo("open:refused", `1`)); err != nil {
				t.Fatal(err)
			}
			if r, err := c.reply(1); err != nil || r.Error == nil || r.Error.Code != 109 {
				t.Errorf("%s, expired: %v, %v, want error 109", key.name, r, err)
			}
			c.conn.Close()
			stranger := newSigner(t, key.method.Alg(), "")
			stranger.kid = key.kid
			unknown := key
			unknown.kid = "nobody's"
			secret, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "u", "exp": time.Now().Add(time.Hour).Unix()}).
				SignedString([]byte(key.public(t)))
			if err != nil {
				t.Fatal(err)
			}
			for name, tok := range map[string]string{
				"forged":                  stranger.token(t, "u", nil),
				"forged and expired":      stranger.token(t, "u", past),
				"of an unknown key":       unknown.token(t, "u", nil),
				"signed with the PEM":     secret,
				"without a user":          key.token(t, "", nil),
				"for another database":    key.token(t, "u", jwt.MapClaims{"db": []string{"other"}}),
				"of a subscription":       key.token(t, "u", jwt.MapClaims{"channel": "open:a"}),
				"cut":                     key.token(t, "u", nil)[:150],
				"with a longer signature": key.token(t, "u", nil) + "AA",
			} {
				c := s.open(t, enc)
				if err := c.send(connectWith(tok), publishTo("open:refused", `1`)); err != nil {
					t.Fatal(err)
				}
				if err := c.end(); !closedWith(err, closeInvalidToken.code) {
					t.Errorf("%s, token %s: %v, want close %d", key.name, name, err, closeInvalidToken.code)
				}
			}
		}
		if n := s.result(t, "history", `{"channel":"open:refused"}`)["offset"]; n != 0.0 {
			t.Errorf("offset %v where nobody got in", n)
		}
	})
}

// Refreshes and subscription tokens travel by the same worker, and what follows
// waits for them too.
func TestPublicKeyRefresh(t *testing.T) {
	all := signers(t)
	encodings(t, publicKeys(t, all), func(t *testing.T, s *testServer, enc wire.Encoding) {
		for i, key := range all {
			room := fmt.Sprintf("private-%d-%s", i, enc) // of the closed namespace
			sub := func(user, room string, exp time.Duration) string {
				return key.token(t, user, jwt.MapClaims{"channel": room, "exp": time.Now().Add(exp).Unix()})
			}
			connect := func() *tester {
				c := s.open(t, enc)
				c.ok(connectWith(key.token(t, "u", jwt.MapClaims{"caps": []any{map[string]any{"channels": []string{room}, "allow": []string{"pub"}}}})))
				return c
			}
			with := func(tok string) *protocol.Command {
				return &protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: room, Token: tok}}
			}
			renew := func(tok string) *protocol.Command {
				return &protocol.Command{SubRefresh: &protocol.SubRefreshRequest{Channel: room, Token: tok}}
			}
			refresh := func(tok string) *protocol.Command {
				return &protocol.Command{Refresh: &protocol.RefreshRequest{Token: tok}}
			}
			c := connect()
			c.fails(103, with(sub("another", room, time.Hour)))
			c.fails(103, with(sub("u", room+"x", time.Hour)))
			c.fails(109, with(sub("u", room, -time.Hour)))
			release := s.holdVerifier(t)
			// The publication behind the subscription reaches its own publisher.
			if err := c.send(with(sub("u", room, time.Hour)), publishTo(room, `"a"`)); err != nil {
				t.Fatal(err)
			}
			until(t, "the token waits for the verifier", func() bool { return s.waiting() == 1 })
			release()
			if got, p := c.publication(); got != room || string(p.Data) != `"a"` {
				t.Errorf("%s: publication %v in %s", key.name, p, got)
			}
			if r := c.ok(renew(sub("u", room, time.Hour))).SubRefresh; !r.Expires || r.Ttl == 0 {
				t.Errorf("%s: sub_refresh reply %v", key.name, r)
			}
			c.fails(109, renew(sub("u", room, -time.Hour)))
			c.fails(103, renew(sub("another", room, time.Hour)))
			if r := c.ok(refresh(key.token(t, "u", nil))).Refresh; !r.Expires || r.Ttl == 0 {
				t.Errorf("%s: refresh reply %v", key.name, r)
			}
			c.fails(103, publishTo(room, `1`)) // the new token grants nothing
			for tok, want := range map[string]uint16{
				key.token(t, "another", nil):                                               closeInvalidToken.code,
				newSigner(t, key.method.Alg(), key.kid).token(t, "u", nil):                 closeInvalidToken.code,
				key.token(t, "u", jwt.MapClaims{"exp": time.Now().Add(-time.Hour).Unix()}): closeExpired.code,
			} {
				c := connect()
				if err := c.send(refresh(tok)); err != nil {
					t.Fatal(err)
				}
				c.closes(want)
			}
		}
	})
}

// Connections that end while their tokens are being verified leave nothing behind.
func TestGoneWhileVerifying(t *testing.T) {
	key := newSigner(t, "ES256", "")
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		o.Server.HandshakeTimeout = time.Second // ends those that connect
		publicKeys(t, []signer{key})(&o)
		s := startServer(t, o, nil)
		db := s.databases.get("default")
		room := subscribeTo("private")
		room.Subscribe.Token = key.token(t, "u", jwt.MapClaims{"channel": "private"})
		for name, run := range map[string]struct {
			connected bool
			commands  []*protocol.Command
		}{
			"connecting":           {false, []*protocol.Command{connectWith(key.token(t, "u", nil)), subscribeTo("open:a"), publishTo("open:a", `1`)}},
			"refreshing":           {true, []*protocol.Command{{Refresh: &protocol.RefreshRequest{Token: key.token(t, "u", nil)}}, publishTo("open:a", `1`)}},
			"subscribing by token": {true, []*protocol.Command{room, publishTo("open:a", `1`)}},
		} {
			var all []*tester
			for range 8 {
				c := s.open(t, wire.JSON)
				if run.connected {
					c.ok(connectWith(key.token(t, "u", nil)))
				}
				all = append(all, c)
			}
			release := s.holdVerifier(t)
			for _, c := range all {
				if err := c.send(run.commands...); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "all wait for the verifier", func() bool { return s.waiting() == len(all) })
			for _, c := range all[1:] {
				c.conn.Close()
			}
			if run.connected {
				s.result(t, "disconnect", `{"user":"u"}`)
				all[0].closes(closeForced.code)
			} else {
				all[0].closes(closeStale.code)
			}
			all[0].conn.Close()
			until(t, "the connections are gone", func() bool { n, _ := s.slots.Counts(); return n == 0 })
			release()
			s.verifying.wait()
			s.settle()
			if n := db.connections.Load(); n != 0 {
				t.Errorf("%s: %d connections are counted", name, n)
			}
			if db.live("open:a") != nil || db.live("private") != nil {
				t.Errorf("%s: a room of nobody is live", name)
			}
			for _, l := range s.loops {
				onLoop(l, func() {
					if len(l.users) != 0 {
						t.Errorf("%s: users are left: %v", name, l.users)
					}
				})
			}
		}
		if h := s.result(t, "history", `{"channel":"open:a"}`); h["offset"] != 0.0 {
			t.Errorf("what waited behind the tokens was published: %v", h)
		}
	})
}

func TestManyPublicKeyConnects(t *testing.T) {
	all := signers(t)
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		publicKeys(t, all)(&o)
		s := startServer(t, o, nil)
		const n = 200
		var group sync.WaitGroup
		for i := range n {
			c := s.open(t, wire.JSON)
			user := fmt.Sprint("u", i)
			frame := c.frame(connectWith(all[i%len(all)].token(t, user, nil)), subscribeTo("open:all"))
			group.Go(func() {
				if err := c.write(frame); err != nil {
					t.Error(err)
				}
				if r, err := c.reply(2); err != nil || r.Subscribe == nil {
					t.Errorf("%s: %v, %v", user, r, err)
				}
			})
		}
		group.Wait()
		stats := s.result(t, "presence_stats", `{"channel":"open:all"}`)
		if got := s.databases.get("default").connections.Load(); got != n || stats["num_clients"] != float64(n) || stats["num_users"] != float64(n) {
			t.Errorf("%d connections, presence %v, want %d of as many users", got, stats, n)
		}
	})
}
