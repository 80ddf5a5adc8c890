package auth_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"hub/auth"
)

// A server is asked every 5 minutes, whatever it says about caches, and only a
// change is told.
func TestRefresh(t *testing.T) {
	k := keys()
	first, second := setOf(jwk(k.p256, kid("a"))), setOf(jwk(k.p256, kid("a")), jwk(k.ed, kid("b")))
	a := userToken(t, jwt.SigningMethodES256, k.p256, "a")
	b := userToken(t, jwt.SigningMethodEdDSA, k.ed, "b")
	inBubble(t, first, func(s *bubble) {
		s.want(a, nil)
		s.pass(5 * time.Minute)
		s.wantChanged(false)
		s.server.serve(" "+first, 0) // written in another way
		s.pass(5 * time.Minute)
		s.wantChanged(false)
		s.server.serve(second, 0)
		s.pass(5 * time.Minute)
		s.wantChanged(true)
		s.want(a, nil)
		s.want(b, nil)
		s.server.serve(setOf(jwk(k.ed, kid("b"))), 0)
		s.pass(5 * time.Minute)
		s.wantChanged(true)
		s.want(a, auth.ErrKeyRemoved)
		s.want(b, nil)
		// The key comes back, but for another algorithm, which is none of its type.
		s.server.serve(setOf(jwk(k.ed, kid("b")), jwk(k.p256, map[string]any{"kid": "a", "alg": "ES384"})), 0)
		s.pass(5 * time.Minute)
		s.wantChanged(false)
		s.want(a, auth.ErrKeyRemoved)
		s.server.serve(second, 0)
		s.pass(5 * time.Minute)
		s.wantChanged(true)
		s.want(a, nil)
		const m = time.Minute
		s.server.wantRequests(t, 0, 5*m, 10*m, 15*m, 20*m, 25*m, 30*m)
	})
}

// A key that may do more or less is another, though connections need not end.
func TestAlgorithmChanges(t *testing.T) {
	k := keys()
	with := func(alg any) string { return setOf(jwk(k.rsa, map[string]any{"kid": "a", "alg": alg})) }
	rs := userToken(t, jwt.SigningMethodRS256, k.rsa, "a")
	ps := userToken(t, jwt.SigningMethodPS256, k.rsa, "a")
	inBubble(t, with(nil), func(s *bubble) {
		claims, err := s.Verifier().Connection(ps, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			alg    any
			rs, ps error
		}{
			{"RS256", nil, auth.ErrInvalid},
			{"PS256", auth.ErrInvalid, nil},
			{nil, nil, nil},
		} {
			s.server.serve(with(tc.alg), 0)
			s.pass(5 * time.Minute)
			s.wantChanged(true)
			s.want(rs, tc.rs)
			s.want(ps, tc.ps)
			if !s.Verifier().Trusts(claims.KeyID) {
				t.Errorf("alg %v: the key is not trusted", tc.alg)
			}
		}
	})
}

// A kid that is unknown hastens one look; until then the answer is "later", and
// after it "no".
func TestUnknownKid(t *testing.T) {
	k := keys()
	a, b := jwk(k.p256, kid("a")), jwk(k.ed, kid("b"))
	rotated := userToken(t, jwt.SigningMethodEdDSA, k.ed, "b")
	inBubble(t, setOf(a), func(s *bubble) {
		before := s.Verifier()
		s.want(rotated, auth.ErrKeysPending)
		s.pass(9 * time.Second)
		s.server.wantRequests(t, 0)
		s.server.serve(setOf(a, b), time.Second)
		s.pass(time.Second)
		s.server.wantRequests(t, 0, 10*time.Second)
		s.want(rotated, auth.ErrKeysPending) // the look goes on
		s.server.serve(setOf(a, b), 0)
		s.pass(time.Second)
		s.wantChanged(true)
		s.want(rotated, nil)
		s.pass(time.Minute)
		s.server.wantRequests(t, 0, 10*time.Second) // whoever asked meanwhile has its answer too
		// Who still has the verifier of before never calls the key unknown.
		wantError(t, before, rotated, auth.ErrKeysPending)
		s.pass(10 * time.Second)
		wantError(t, before, rotated, auth.ErrKeysPending)
		s.want(rotated, nil)
	})
	inBubble(t, setOf(a), func(s *bubble) {
		s.server.serve(setOf(a), time.Second)
		s.pass(time.Minute)
		for range 1000 {
			s.want(rotated, auth.ErrKeysPending)
		}
		s.pass(0) // the last look is long ago, so the next one is at once
		s.server.wantRequests(t, 0, time.Minute)
		s.server.serve(setOf(a), 0)
		s.want(rotated, auth.ErrKeysPending)
		s.pass(time.Second)
		for range 1000 {
			s.want(rotated, auth.ErrInvalid)
		}
		// Another kid is answered by its own look, which the first did not hurry.
		other := userToken(t, jwt.SigningMethodEdDSA, k.ed, "c")
		s.pass(4 * time.Second)
		s.want(other, auth.ErrKeysPending)
		s.want(rotated, auth.ErrInvalid)
		s.pass(6 * time.Second)
		s.server.wantRequests(t, 0, 60*time.Second, 71*time.Second)
		s.want(other, auth.ErrInvalid)
		// What was absent may be there by now.
		s.want(rotated, auth.ErrKeysPending)
		s.server.serve(setOf(a, b), 0)
		s.pass(10 * time.Second)
		s.want(rotated, nil)
		s.server.wantRequests(t, 0, 60*time.Second, 71*time.Second, 81*time.Second)
		s.pass(4 * time.Minute) // and then nobody is in a hurry any more
		s.server.wantRequests(t, 0, 60*time.Second, 71*time.Second, 81*time.Second)
		// Also without another look in between, "no" holds for 10 s only.
		s.want(other, auth.ErrKeysPending)
		s.pass(0)
		s.want(other, auth.ErrInvalid)
		s.pass(10 * time.Second)
		s.want(other, auth.ErrKeysPending)
	})
}

// Forged tokens, each with a kid of its own, cost the server of keys no more
// than a request in 10 s, and do not keep a real key from being found.
func TestKidFlood(t *testing.T) {
	k := keys()
	a, b := jwk(k.p256, kid("a")), jwk(k.ed, kid("b"))
	rotated := userToken(t, jwt.SigningMethodEdDSA, k.ed, "b")
	inBubble(t, setOf(a), func(s *bubble) {
		for second := range 60 {
			for i := range 100 {
				s.want(userToken(t, jwt.SigningMethodES256, k.p256, fmt.Sprint("forged", second*100+i)), auth.ErrKeysPending)
			}
			if n := s.Asked(); n > 256 {
				t.Fatalf("%d key ids are remembered, want at most 256", n)
			}
			s.pass(time.Second)
		}
		s.server.serve(setOf(a, b), 0)
		s.want(rotated, auth.ErrKeysPending)
		s.pass(10 * time.Second)
		s.want(rotated, nil)
		const sec = time.Second
		s.server.wantRequests(t, 0, 10*sec, 20*sec, 30*sec, 40*sec, 50*sec, 60*sec, 70*sec)
	})
}

// Whatever the server says or does not say, the last good keys stay in force.
func TestBadSetsReplaceNothing(t *testing.T) {
	k := keys()
	good := setOf(jwk(k.p256, kid("a")))
	a := userToken(t, jwt.SigningMethodES256, k.p256, "a")
	for name, bad := range map[string]string{
		"unreachable":  "",
		"a page":       "<html>sign in</html>",
		"empty":        setOf(),
		"no use":       setOf(jwk(k.p256, map[string]any{"kid": "a", "use": "enc"})),
		"symmetric":    setOf(jwk(k.p256, kid("a")), `{"kty":"oct","k":"AAAA"}`),
		"kid twice":    setOf(jwk(k.p256, kid("a")), jwk(k.ed, kid("a"))),
		"huge":         setOf(jwk(k.p256, kid("a"))) + strings.Repeat(" ", 1<<20),
		"endless keys": setOf(slices.Repeat([]string{jwk(k.ed, nil)}, 65)...),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, good, func(s *bubble) {
				s.server.serve(bad, 0)
				s.pass(time.Hour)
				s.wantChanged(false)
				s.want(a, nil)
				if n := s.log.count("level=WARN"); n != 1 || s.log.count("its last keys stay in force") != 1 {
					t.Errorf("%d warnings in an hour, want one of the kept keys", n)
				}
				s.server.serve(good, 0)
				s.pass(5 * time.Minute)
				s.want(a, nil)
				if s.log.count("can be read again") != 1 {
					t.Error("the log does not tell the end of it")
				}
			})
		})
	}
}

// Without any key yet tokens wait, and the server is asked sooner.
func TestNothingLoadedYet(t *testing.T) {
	k := keys()
	a := userToken(t, jwt.SigningMethodES256, k.p256, "a")
	unnamed := userToken(t, jwt.SigningMethodES256, k.p256, "")
	inBubble(t, "", func(s *bubble) {
		wait := func() {
			t.Helper()
			s.want(unnamed, auth.ErrKeysPending)
			for _, forged := range []string{
				mint(t, auth.Claims{User: "u1", ExpiresAt: inAnHour}),
				userToken(t, jwt.SigningMethodHS256, []byte(secret), "a"),
				userToken(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "a"),
				"no.token.",
			} {
				s.want(forged, auth.ErrInvalid)
			}
		}
		wait()
		s.pass(100 * time.Second)
		wait()
		const sec = time.Second
		s.server.wantRequests(t, 0, 10*sec, 30*sec, 60*sec, 90*sec)
		s.want(a, auth.ErrKeysPending) // it hastens the next look, 10 s after the last
		s.pass(0)
		s.server.wantRequests(t, 0, 10*sec, 30*sec, 60*sec, 90*sec, 100*sec)
		s.want(a, auth.ErrKeysPending)
		s.server.serve(setOf(jwk(k.p256, kid("a"))), 0)
		s.pass(10 * sec)
		s.wantChanged(true)
		s.want(a, nil)
		s.want(unnamed, auth.ErrInvalid)
		if n := s.log.count("tokens of its keys wait"); n != 1 {
			t.Errorf("the log tells it %d times, want 1", n)
		}
	})
}

// A server that takes its time holds up nobody, and is given up after 10 s.
func TestSlowServer(t *testing.T) {
	k := keys()
	good := setOf(jwk(k.p256, kid("a")))
	a := userToken(t, jwt.SigningMethodES256, k.p256, "a")
	unknown := userToken(t, jwt.SigningMethodES256, k.p256, "x")
	inBubble(t, good, func(s *bubble) {
		s.server.serve(good, time.Hour)
		s.pass(5 * time.Minute)
		at := time.Now()
		s.want(a, nil)
		s.want(unknown, auth.ErrKeysPending)
		if d := time.Since(at); d != 0 {
			t.Errorf("tokens waited %v", d)
		}
		s.pass(9 * time.Second)
		s.want(unknown, auth.ErrKeysPending)
		s.pass(time.Second)
		if s.log.count("its last keys stay in force") != 1 {
			t.Error("the look was not given up after 10 s")
		}
		s.want(unknown, auth.ErrKeysPending) // nobody has looked for it
		s.server.serve(good, 0)
		s.pass(10 * time.Second)
		s.want(unknown, auth.ErrInvalid)
		const sec = time.Second
		s.server.wantRequests(t, 0, 300*sec, 320*sec)

		// Close does not wait for the server.
		s.server.serve(good, time.Hour)
		s.pass(5 * time.Minute)
		at = time.Now()
		s.Close()
		if d := time.Since(at); d != 0 {
			t.Errorf("Close took %v", d)
		}
		s.Close() // once more does nothing
		if _, open := <-s.Changed(); open {
			t.Error("Changed is open after Close")
		}
		s.want(a, nil)
		if err := s.Reload(t.Context(), auth.DefaultOptions()); err == nil {
			t.Error("Reload after Close succeeds")
		}
	})
	// It does wait for its goroutine.
	inBubble(t, good, func(s *bubble) {
		s.server.serve(good, time.Minute)
		s.server.mu.Lock()
		s.server.deaf = true
		s.server.mu.Unlock()
		s.pass(5 * time.Minute)
		at := time.Now()
		s.Close()
		if d := time.Since(at); d < time.Minute {
			t.Errorf("Close took %v, so it left a look behind", d)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		o := auth.DefaultOptions()
		o.JWKS = keyServer
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		server := &fakeServer{began: time.Now(), set: good, slow: time.Hour}
		if _, err := auth.OpenVia(ctx, o, slog.New(slog.DiscardHandler), server); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Open with a context that ends: got error %v", err)
		}
	})
}

// A file is read again every 2 s.
func TestFileChanges(t *testing.T) {
	k := keys()
	a, b := jwk(k.p256, kid("a")), jwk(k.ed, kid("b"))
	tokenA := userToken(t, jwt.SigningMethodES256, k.p256, "a")
	tokenB := userToken(t, jwt.SigningMethodEdDSA, k.ed, "b")
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o := auth.DefaultOptions()
		o.JWKS = filepath.Join(dir, "jwks.json")
		write := func(set string) {
			t.Helper()
			if err := os.WriteFile(o.JWKS, []byte(set), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(setOf(a))
		var log logged
		src, err := auth.Open(t.Context(), o, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		s := &bubble{Source: src, t: t}
		s.want(tokenB, auth.ErrKeysPending)
		s.pass(2 * time.Second)
		s.want(tokenB, auth.ErrInvalid)
		write(setOf(b)) // of another length; then the same length with other bytes
		s.pass(2 * time.Second)
		s.wantChanged(true)
		s.want(tokenA, auth.ErrKeyRemoved)
		s.want(tokenB, nil)
		write(setOf(b)[:20])
		s.pass(time.Hour)
		s.want(tokenB, nil)
		if err := os.Remove(o.JWKS); err != nil {
			t.Fatal(err)
		}
		s.pass(time.Hour)
		s.want(tokenB, nil)
		if n := log.count("level=WARN"); n != 2 {
			t.Errorf("%d warnings, want 2", n)
		}
		write(setOf(jwk(k.p256, kid("c"))))
		s.pass(2 * time.Second)
		s.want(tokenB, auth.ErrKeyRemoved)
		write(setOf(jwk(k.p256, kid("d"))))
		s.pass(2 * time.Second)
		s.want(userToken(t, jwt.SigningMethodES256, k.p256, "d"), nil)
	})
}
