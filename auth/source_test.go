package auth_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"hub/auth"
)

var quiet = slog.New(slog.DiscardHandler)

// keyServing is a key server on a loopback address.
type keyServing struct {
	*httptest.Server
	set atomic.Pointer[string]
}

func newKeyServer(t testing.TB, start func(*httptest.Server), set string) *keyServing {
	t.Helper()
	s := &keyServing{}
	s.set.Store(&set)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/jwks":
			io.WriteString(w, *s.set.Load())
		case "/redirect":
			http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/huge":
			for range 1 << 10 {
				w.Write(make([]byte, 1<<12))
			}
		case "/headers":
			for i := range 100 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1<<10))
			}
			io.WriteString(w, *s.set.Load())
		default:
			http.NotFound(w, r)
		}
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	start(s.Server)
	t.Cleanup(s.Close)
	return s
}

// openURL opens the source of a URL and tells what its log says.
func openURL(t *testing.T, url string, via http.RoundTripper) (*auth.Source, *logged) {
	t.Helper()
	o := auth.DefaultOptions()
	o.JWKS = url
	log := &logged{}
	s, err := auth.OpenVia(t.Context(), o, slog.New(slog.NewTextHandler(log, nil)), via)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, log
}

// A set is read over TLS, or without it on this machine, from the origin that
// the configuration names and no other.
func TestFetch(t *testing.T) {
	k := keys()
	token := userToken(t, jwt.SigningMethodES256, k.p256, "a")
	set := setOf(jwk(k.p256, kid("a")))
	plain := newKeyServer(t, (*httptest.Server).Start, set)
	secure := newKeyServer(t, (*httptest.Server).StartTLS, set)
	other := newKeyServer(t, (*httptest.Server).Start, set)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + silent.Addr().String()
	silent.Close()
	trusting := secure.Client().Transport
	for _, tc := range []struct {
		name, url string
		via       http.RoundTripper
		want      string // part of the warning; "" when the set is loaded
	}{
		{"plain", plain.URL + "/jwks", nil, ""},
		{"TLS", secure.URL + "/jwks", trusting, ""},
		{"TLS, unknown authority", secure.URL + "/jwks", nil, "certificate signed by unknown authority"},
		{"redirect within the origin", plain.URL + "/redirect?to=/jwks", nil, ""},
		{"redirect to another port", plain.URL + "/redirect?to=" + other.URL + "/jwks", nil, "redirects to another origin"},
		{"redirect away from TLS", secure.URL + "/redirect?to=" + plain.URL + "/jwks", trusting, "redirects to another origin"},
		{"redirect to a file", plain.URL + "/redirect?to=file:///etc/passwd", nil, "redirects to another origin"},
		{"redirect loop", plain.URL + "/loop", nil, "redirects more than 3 times"},
		{"no such page", plain.URL + "/other", nil, "status 404"},
		{"huge", plain.URL + "/huge", nil, "larger than 1048576 bytes"},
		{"huge header", plain.URL + "/headers", nil, "exceeded"},
		{"nobody there", closed + "/jwks", nil, "refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, log := openURL(t, tc.url, tc.via)
			if tc.want == "" {
				wantError(t, s.Verifier(), token, nil)
				return
			}
			wantError(t, s.Verifier(), token, auth.ErrKeysPending)
			if log.count("level=WARN") != 1 || log.count(tc.want) != 1 {
				t.Errorf("the log says %q, want one warning with %q", log.buf.String(), tc.want)
			}
			if log.count("?") != 0 {
				t.Errorf("the log tells the query: %q", log.buf.String())
			}
		})
	}
}

// A rotation with overlap under load: no token of a configured key is ever
// refused, and one of a removed key is told so.
func TestRotationUnderLoad(t *testing.T) {
	k := keys()
	a, b := jwk(k.p256, kid("a")), jwk(k.ed, kid("b"))
	tokenA := userToken(t, jwt.SigningMethodES256, k.p256, "a")
	tokenB := userToken(t, jwt.SigningMethodEdDSA, k.ed, "b")
	server := newKeyServer(t, (*httptest.Server).Start, setOf(a))
	o := auth.DefaultOptions()
	o.JWKS = server.URL + "/jwks"
	s, err := auth.Open(t.Context(), o, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	claims, err := s.Verifier().Connection(tokenA, now)
	if err != nil {
		t.Fatal(err)
	}

	// Each stage says what the answers may be while it lasts; 4 goroutines hold
	// tokens against it, a fifth follows the changes.
	const ( // bits of what may be answered
		fine = 1 << iota
		pending
		removed
	)
	var mayA, mayB atomic.Int32
	var stop atomic.Bool
	var load sync.WaitGroup
	var seen [4]atomic.Int64
	answer := func(err error) int32 {
		switch {
		case err == nil:
			return fine
		case errors.Is(err, auth.ErrKeysPending):
			return pending
		case errors.Is(err, auth.ErrKeyRemoved):
			return removed
		}
		return 0
	}
	mayA.Store(fine)
	mayB.Store(pending | fine)
	for i := range 4 {
		load.Go(func() {
			for !stop.Load() {
				for _, x := range []struct {
					token string
					may   *atomic.Int32
				}{{tokenA, &mayA}, {tokenB, &mayB}} {
					before := x.may.Load() // what is allowed may narrow while the token is checked
					_, err := s.Verifier().Connection(x.token, now)
					if got := answer(err); got == 0 || got&(before|x.may.Load()) == 0 {
						t.Errorf("got %v, which may not be", err)
						stop.Store(true)
					}
				}
				seen[i].Add(1)
			}
		})
	}
	load.Go(func() {
		for range s.Changed() {
			if s.Verifier() == nil {
				t.Error("no verifier")
			}
		}
	})
	// turn waits until each goroutine has checked some tokens.
	turn := func() {
		for i := range seen {
			for goal := seen[i].Load() + 3; seen[i].Load() < goal && !stop.Load(); {
				time.Sleep(time.Millisecond)
			}
		}
	}
	stage := func(a, b int32, set string) {
		mayA.Store(a)
		mayB.Store(b)
		server.set.Store(&set)
		if err := s.Reload(t.Context(), o); err != nil {
			t.Error(err)
		}
	}
	turn()
	stage(fine, pending|fine, setOf(a, b))
	mayB.Store(fine)
	turn()
	stage(fine, fine, setOf(b, a))
	turn()
	if !s.Verifier().Trusts(claims.KeyID) {
		t.Error("key a is not trusted while both are there")
	}
	stage(fine|removed, fine, setOf(b))
	mayA.Store(removed)
	turn()
	if s.Verifier().Trusts(claims.KeyID) {
		t.Error("key a is trusted after its end")
	}
	stop.Store(true)
	s.Close()
	load.Wait()
}

// Secrets overlap as well, and connections of a key survive its moving.
func TestSecretRotation(t *testing.T) {
	const next = "fedcba9876543210fedcba9876543210"
	of := func(secret string) string {
		return must(auth.Mint([]byte(secret), auth.Claims{User: "u1", ExpiresAt: inAnHour}))
	}
	o := auth.DefaultOptions()
	o.HMACSecret = secret
	s, err := auth.Open(t.Context(), o, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	claims, err := s.Verifier().Connection(of(secret), now)
	if err != nil {
		t.Fatal(err)
	}
	check := func(oldToken, newToken error, trusted bool) {
		t.Helper()
		v := s.Verifier()
		wantError(t, v, of(secret), oldToken)
		wantError(t, v, of(next), newToken)
		wantError(t, v, of(strings.ToUpper(next)), auth.ErrInvalid)
		if v.Trusts(claims.KeyID) != trusted {
			t.Errorf("Trusts says %v", !trusted)
		}
	}
	reload := func() {
		t.Helper()
		if err := s.Reload(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		<-s.Changed()
	}
	check(nil, auth.ErrInvalid, true)
	shared := func() auth.Grants {
		return must(s.Verifier().Connection(must(auth.Mint([]byte(secret), auth.Claims{
			User: "u1", ExpiresAt: inAnHour, Grants: auth.Grants{{Rooms: []string{"a"}, Allow: auth.Publish}},
		})), now)).Grants
	}
	grants := shared()
	o.HMACSecret, o.PreviousSecrets = next, []string{secret}
	reload()
	check(nil, nil, true)
	if &shared()[0] != &grants[0] {
		t.Error("the same caps were parsed again by the next verifier")
	}
	o.PreviousSecrets = nil
	reload()
	check(auth.ErrKeyRemoved, nil, false)
	if _, err := s.Verifier().Connection(of(secret), now); !errors.Is(err, auth.ErrExpired) {
		t.Errorf("a token of a removed key: got error %v, want one that is ErrExpired", err)
	}
	_, err = s.Verifier().Subscription(must(auth.MintSubscription([]byte(secret), auth.SubscriptionClaims{User: "u", Channel: "c", ExpiresAt: inAnHour})), now)
	if !errors.Is(err, auth.ErrKeyRemoved) {
		t.Errorf("a subscription token of a removed key: got error %v", err)
	}

	// Sixteen removed keys are remembered.
	last := next
	for i := range 16 {
		o.HMACSecret = fmt.Sprintf("%032d", i)
		reload()
		wantError(t, s.Verifier(), of(last), auth.ErrKeyRemoved)
		last = o.HMACSecret
		if i < 15 {
			wantError(t, s.Verifier(), of(secret), auth.ErrKeyRemoved)
		}
	}
	wantError(t, s.Verifier(), of(secret), auth.ErrInvalid)
	o.HMACSecret = secret // it comes back
	reload()
	check(nil, auth.ErrInvalid, true)
}

// A public key may move from the options into a set without anybody noticing.
func TestKeyMovesIntoSet(t *testing.T) {
	k := keys()
	server := newKeyServer(t, (*httptest.Server).Start, setOf(jwk(k.rsa, kid("a"))))
	o := auth.DefaultOptions()
	o.PublicKeys = []string{"kid=a\n" + publicPEM(k.rsa)}
	s, err := auth.Open(t.Context(), o, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	token := userToken(t, jwt.SigningMethodRS256, k.rsa, "a")
	claims, err := s.Verifier().Connection(token, now)
	if err != nil {
		t.Fatal(err)
	}
	both := o
	both.JWKS = server.URL + "/jwks"
	alone := both
	alone.PublicKeys = nil
	for _, o := range []auth.Options{both, alone, o} {
		if err := s.Reload(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		wantError(t, s.Verifier(), token, nil)
		if !s.Verifier().Trusts(claims.KeyID) {
			t.Error("the key is another now")
		}
	}
}

// Reload is all or nothing.
func TestReload(t *testing.T) {
	k := keys()
	tokenA := userToken(t, jwt.SigningMethodES256, k.p256, "a")
	server := newKeyServer(t, (*httptest.Server).Start, setOf(jwk(k.p256, kid("a"))))
	o := auth.DefaultOptions()
	o.HMACSecret, o.JWKS = secret, server.URL+"/jwks"
	s, err := auth.Open(t.Context(), o, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before := s.Verifier()
	for name, change := range map[string]func(*auth.Options){
		"a short secret":     func(o *auth.Options) { o.HMACSecret = "short" },
		"no keys":            func(o *auth.Options) { *o = auth.DefaultOptions() },
		"a URL without set":  func(o *auth.Options) { o.JWKS = server.URL + "/other" },
		"another query":      func(o *auth.Options) { o.JWKS = server.URL + "/redirect?to=/other" },
		"a file that is not": func(o *auth.Options) { o.JWKS = filepath.Join(t.TempDir(), "jwks.json") },
		"plain http":         func(o *auth.Options) { o.JWKS = "http://192.0.2.1/jwks" },
		"no time to refresh": func(o *auth.Options) { o.JWKSRefresh = time.Second },
	} {
		changed := o
		change(&changed)
		changed.Issuer = "other"
		if err := s.Reload(t.Context(), changed); err == nil || !strings.HasPrefix(err.Error(), "auth.") {
			t.Errorf("%s: got error %v", name, err)
		}
		if s.Verifier() != before {
			t.Fatalf("%s: the verifier is another", name)
		}
	}
	select {
	case <-s.Changed():
		t.Error("Changed without a change")
	default:
	}

	// The same URL may fail for a while: the rest is reloaded, its keys stay.
	broken := setOf()
	server.set.Store(&broken)
	o.Issuer = "other"
	if err := s.Reload(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Verifier().Connection(tokenA, now); err == nil || !strings.Contains(err.Error(), "iss is missing") {
		t.Errorf("a token of the kept key: got error %v, want one of the new issuer", err)
	}
	wantError(t, s.Verifier(), userToken(t, jwt.SigningMethodES256, k.p256, "b"), auth.ErrKeysPending)
	o.Issuer, o.JWKS = "", ""
	if err := s.Reload(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Verifier(), tokenA, auth.ErrKeyRemoved)
	wantError(t, s.Verifier(), userToken(t, jwt.SigningMethodES256, k.p256, "b"), auth.ErrInvalid)
}

// Reload, Close, Verifier and refreshes from everywhere.
func TestSourceConcurrentUse(t *testing.T) {
	k := keys()
	token := userToken(t, jwt.SigningMethodES256, k.p256, "a")
	unknown := userToken(t, jwt.SigningMethodES256, k.p256, "b")
	server := newKeyServer(t, (*httptest.Server).Start, setOf(jwk(k.p256, kid("a"))))
	o := auth.DefaultOptions()
	o.HMACSecret, o.JWKS = secret, server.URL+"/jwks"
	s, err := auth.Open(t.Context(), o, quiet)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			mine := o
			mine.PreviousSecrets = []string{fmt.Sprintf("%032d", i)}
			for range 5 {
				if err := s.Reload(t.Context(), mine); err != nil && !strings.Contains(err.Error(), "closed") {
					t.Error(err)
				}
				wantError(t, s.Verifier(), token, nil)
				_, _ = s.Verifier().Connection(unknown, now)
			}
			if i == 0 {
				s.Close()
			}
		})
	}
	all.Wait()
	for range s.Changed() { // until it is closed
	}
}
