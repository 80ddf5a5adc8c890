package hub

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// A reload that fails anywhere changes nothing.
func TestFailingReload(t *testing.T) {
	o := testOptions(t)
	s := startServer(t, o, nil)
	before := s.policy.Load()
	for key, wrong := range map[string]func(*Options){
		"auth.jwks":      func(o *Options) { o.Auth.JWKS = filepath.Join(t.TempDir(), "nosuch.json") },
		"auth.hmac":      func(o *Options) { o.Auth.HMACSecret = "short" },
		"server.origins": func(o *Options) { o.Server.Origins = []string{"nothing"} },
		"limits.read":    func(o *Options) { o.Limits.Read = Rate{PerSecond: 1} },
	} {
		o := o
		o.API.Key = "another-key-for-the-api"
		o.Limits.Connections.IP = 1
		o.Namespaces = map[string]Namespace{"new": openNamespace()}
		wrong(&o)
		if restart, err := s.Reload(t.Context(), o); err == nil || !strings.HasPrefix(err.Error(), key) || restart != nil {
			t.Errorf("%s: restart %q, %v, want an error that begins with it", key, restart, err)
		}
		if s.policy.Load() != before {
			t.Fatalf("%s: the policy is another", key)
		}
	}
	s.connect(t, wire.JSON, "one").ok(subscribeTo("open:a"))
	s.connect(t, wire.JSON, "two").fails(errUnknownChannel.Code, subscribeTo("new:a"))
	s.result(t, "info", "{}") // with the key of before
}

// What takes a restart is named and keeps its old value, the rest takes effect.
func TestRestartNeeded(t *testing.T) {
	o := testOptions(t)
	s := startServer(t, o, nil)
	if restart := s.reload(t, func(*Options) {}); len(restart) != 0 {
		t.Errorf("nothing has changed, yet %q need a restart", restart)
	}
	restart := s.reload(t, func(o *Options) {
		o.Server.Listen = "127.0.0.1:1"
		o.Server.DataDir = "elsewhere"
		o.Server.Loops++
		o.Server.Backend = "portable"
		o.Server.PingInterval += time.Second
		o.Server.Origins = []string{"https://app.test"}
		o.Server.TLSCert, o.Server.TLSKey = "cert.pem", "key.pem"
		o.Admin.Listen, o.Admin.Key = "127.0.0.1:2", "an-admin-key-for-tests"
		o.Limits.LogMemory++
		o.Limits.Subscriptions = 2
		o.Database.Synchronous = "full"
		o.Database.Names = append(o.Database.Names, "more")
		live := o.Namespaces["live"]
		live.Durable, live.HistorySize, live.HistoryTTL, live.MaxMessage = true, 5, time.Hour, 10
		o.Namespaces["live"] = live
	})
	want := []string{
		"admin.key", "admin.listen", "database.names", "database.synchronous", "limits.log_memory",
		"namespace.live.durable", "namespace.live.history_size", "namespace.live.history_ttl",
		"server.backend", "server.data_dir", "server.listen", "server.loops", "server.ping_interval", "server.tls_cert", "server.tls_key",
	}
	if slices.Sort(restart); !slices.Equal(restart, want) {
		t.Errorf("a restart is needed for %q, want %q", restart, want)
	}
	p := s.policy.Load()
	if p.Server.Listen != o.Server.Listen || p.Limits.LogMemory != o.Limits.LogMemory || p.namespaces["live"].Durable || p.certificate != nil {
		t.Errorf("something has changed without a restart")
	}
	if p.Limits.Subscriptions != 2 || p.namespaces["live"].MaxMessage != 10 || !slices.Equal(p.Server.Origins, []string{"https://app.test"}) {
		t.Errorf("something has not changed")
	}
	// A namespace that goes and comes again is what it was, also one that came late.
	s.reload(t, func(o *Options) { o.Namespaces["late"] = o.Namespaces["live"] })
	s.reload(t, func(o *Options) { delete(o.Namespaces, "live"); delete(o.Namespaces, "late") })
	restart = s.reload(t, func(o *Options) { o.Namespaces["live"], o.Namespaces["late"] = openNamespace(), openNamespace() })
	for _, name := range []string{"live", "late"} {
		if s.policy.Load().namespaces[name].Durable || !slices.Contains(restart, "namespace."+name+".durable") {
			t.Errorf("namespace %s is durable now; %q", name, restart)
		}
	}
}

// Every option is either reloaded or named: none is lost.
func TestEveryOptionIsReloadedOrNamed(t *testing.T) {
	s := &Server{declared: map[string]Namespace{"default": DefaultNamespace()}}
	before := DefaultOptions()
	before.Namespaces = map[string]Namespace{"default": DefaultNamespace()}
	before.Server.TLSCert, before.Server.TLSKey = "a", "b" // TLS is on, so that another one is a change
	checked := 0
	var visit func(v, in reflect.Value, o *Options, key string)
	visit = func(v, in reflect.Value, o *Options, key string) {
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				if name := v.Type().Field(i).Tag.Get("toml"); name != "-" && v.Field(i).Kind() != reflect.Map {
					visit(v.Field(i), in.Field(i), o, joinKey(key, name))
				}
			}
			return
		}
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		alter(t, v)
		eff := s.reloadable(&before, o)
		restart := differing(reflect.ValueOf(&eff).Elem(), reflect.ValueOf(o).Elem(), "")
		reloaded := len(differing(reflect.ValueOf(&before).Elem(), reflect.ValueOf(&eff).Elem(), "")) > 0
		if reloaded == (len(restart) > 0) {
			t.Errorf("%s: reloaded %v, a restart is needed for %q", key, reloaded, restart)
		}
		v.Set(old)
		checked++
	}
	o := before
	visit(reflect.ValueOf(&o).Elem(), reflect.ValueOf(&before).Elem(), &o, "")
	if checked < 45 {
		t.Errorf("%d options checked, want all", checked)
	}
}

// alter makes v another value.
func alter(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Slice:
		v.Set(reflect.Append(reflect.MakeSlice(v.Type(), 0, 1), reflect.ValueOf("x")))
	default:
		t.Fatalf("an option of kind %s", v.Kind())
	}
}

// New limits, origins, proxies, keys and options hold for the next request, on
// connections that are there already too.
func TestReloadTakesEffect(t *testing.T) {
	encodings(t, func(o *Options) { o.Server.TrustedProxies = nil }, func(t *testing.T, s *testServer, enc wire.Encoding) {
		before := s.policy.Load().Options
		defer func() {
			if _, err := s.Reload(context.Background(), before); err != nil {
				t.Error(err)
			}
		}()
		c := s.connect(t, enc, "u"+enc.String())
		room := "open:" + enc.String()
		c.ok(subscribeTo(room))
		c.ok(publishTo(room, `"longer than ten bytes"`))
		ann := bearerOf(t, "ann")
		s.reload(t, func(o *Options) {
			small := o.Namespaces["open"]
			small.MaxMessage, small.History, small.JoinLeave = 10, AccessServer, true
			o.Namespaces["open"] = small
			o.Namespaces["new"] = openNamespace()
			o.Limits.Subscriptions = 2
			o.Limits.Mutation = once(1)
			o.Server.Origins = []string{"https://app.test"}
			o.Server.TrustedProxies = []string{"127.0.0.1"}
			o.API.Key = "another-key-for-the-api"
		})
		c.fails(errLimitExceeded.Code, publishTo(room, `"longer than ten bytes"`))
		c.fails(errPermissionDenied.Code, historyOf(room, 1))
		c.ok(subscribeTo("new:a"))
		c.fails(errLimitExceeded.Code, subscribeTo("new:b"))
		// Joins and leaves are told to those who subscribe from now on.
		c.ok(unsubscribeFrom("new:a"))
		watcher, joiner := s.connect(t, enc, "watcher"), s.connect(t, enc, "joiner")
		join := subscribeTo(room)
		join.Subscribe.JoinLeave = true
		watcher.ok(join)
		joiner.ok(subscribeTo(room))
		for {
			p, err := watcher.push()
			if err != nil {
				t.Fatal(err)
			}
			if p.Join != nil && p.Join.Info.User == "joiner" {
				break
			}
		}
		if conn, status, _, err := s.attempt(defaultSocketPath, "Origin: https://app.test"); err != nil || status != http.StatusSwitchingProtocols {
			t.Errorf("a page of the new origin gets %d, %v", status, err)
		} else {
			conn.Close()
		}
		if status, _ := s.post(t, "/api/info", testAPIKey, "{}"); status != http.StatusUnauthorized {
			t.Errorf("the old API key gets %d", status)
		}
		if status, _ := s.post(t, "/api/info", "another-key-for-the-api", "{}"); status != http.StatusOK {
			t.Errorf("the new API key gets %d", status)
		}
		for i, forwarded := range []string{"203.0.113.1", "203.0.113.2", "203.0.113.1"} { // a bucket each
			want, code := 200, ""
			if i == 2 {
				want, code = 429, "rate_limited"
			}
			s.call(t, "POST", rooms+room+"/publish", `{"data":1}`, ann, "X-Forwarded-For: "+forwarded).want(t, forwarded, want, code)
		}
		s.reload(t, func(o *Options) { o.API.Key = "" })
		if status, answer := s.post(t, "/api/info", "another-key-for-the-api", "{}"); status != http.StatusNotFound {
			t.Errorf("switched off, the API answers %d %v", status, answer)
		}
	})
}

// A retention that a reload has changed holds for rooms with subscribers too.
func TestReloadedRetention(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	c := s.connect(t, wire.JSON, "u")
	sub := c.ok(subscribeTo("open:a")).Subscribe
	for i := range 20 {
		c.ok(publishTo("open:a", fmt.Sprint(i)))
	}
	recover := &protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: "open:a", Recover: true, Offset: sub.Offset, Epoch: sub.Epoch}}
	if r := s.connect(t, wire.JSON, "u").ok(recover).Subscribe; !r.Recovered {
		t.Errorf("recovery of all: %v", r)
	}
	s.reload(t, func(o *Options) {
		short := o.Namespaces["open"]
		short.HistorySize = 5
		o.Namespaces["open"] = short
	})
	if r := s.connect(t, wire.JSON, "u").ok(recover).Subscribe; r.Recovered || !r.WasRecovering {
		t.Errorf("recovery of 20 where 5 are kept: %v", r)
	}
}

// certificate makes the files of a certificate of 127.0.0.1.
func certificate(t *testing.T, dir, name string, serial int64) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "hub test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// A new certificate is used for the next handshake, also from the same files; live
// connections stay.
func TestReloadedCertificate(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(t)
	o.Server.TLSCert, o.Server.TLSKey = certificate(t, dir, "server", 1)
	s := startServer(t, o, nil)
	dial := func(want int64) *tester {
		t.Helper()
		conn, err := tls.Dial("tcp", s.Addr(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if got := conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != want {
			t.Errorf("certificate %d, want %d", got, want)
		}
		c, err := upgrade(conn, wire.JSON, defaultSocketPath)
		if err != nil {
			t.Fatal(err)
		}
		return &tester{c, t}
	}
	c := dial(1)
	c.ok(connectWith(token(t, "u")))
	certificate(t, dir, "server", 2)
	if restart := s.reload(t, func(*Options) {}); len(restart) > 0 {
		t.Errorf("a restart is needed for %q", restart)
	}
	dial(2)
	cert, key := certificate(t, dir, "other", 3)
	s.reload(t, func(o *Options) { o.Server.TLSCert, o.Server.TLSKey = cert, key })
	dial(3)
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	wrong := s.policy.Load().Options
	if _, err := s.Reload(t.Context(), wrong); err == nil || !strings.HasPrefix(err.Error(), "server.tls_cert") {
		t.Errorf("without its key: %v", err)
	}
	dial(3)
	c.ok(subscribeTo("open:a"))
}

// Keys that are not loaded yet are a reason to come again, not to go away.
func TestKeysPending(t *testing.T) {
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	defer keys.Close()
	signed := newSigner(t, "ES256", "new")
	o := testOptions(t)
	o.Auth.JWKS = keys.URL
	s := startServer(t, o, func(s *Server) { s.log = slog.New(slog.DiscardHandler) })
	tok := signed.token(t, "u", nil)
	c := s.open(t, wire.JSON)
	r, err := c.call(connectWith(tok))
	if err != nil || r.Error == nil || r.Error.Code != 100 || !r.Error.Temporary {
		t.Errorf("connect gets %v, %v, want the temporary error 100", r, err)
	}
	a := s.call(t, "GET", rooms+"open:a/history", "", "Authorization: Bearer "+tok).want(t, "over HTTP", 503, "keys_pending")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	c = s.connect(t, wire.JSON, "u") // with the secret
	for name, cmd := range map[string]*protocol.Command{
		"refresh":     {Refresh: &protocol.RefreshRequest{Token: tok}},
		"sub_refresh": {SubRefresh: &protocol.SubRefreshRequest{Channel: "open:a", Token: signed.token(t, "u", map[string]any{"channel": "open:a"})}},
		"subscribe":   {Subscribe: &protocol.SubscribeRequest{Channel: "open:b", Token: signed.token(t, "u", map[string]any{"channel": "open:b"})}},
	} {
		if name == "sub_refresh" {
			c.ok(subscribeTo("open:a"))
		}
		r, err := c.call(cmd)
		if err != nil || r.Error == nil || r.Error.Code != 100 || !r.Error.Temporary {
			t.Errorf("%s gets %v, %v, want the temporary error 100", name, r, err)
		}
	}
	// A secret's token that is forged is not worth waiting for.
	c = s.open(t, wire.JSON)
	if got := replyCode(c.call(connectWith(mintWith(t, previousSecret, "u")))); got != 3500 {
		t.Errorf("a forged token gets %d, want 3500", got)
	}
}

// Keys of a set that change in the background are those of the next check.
func TestKeySetChanges(t *testing.T) {
	first, second := newSigner(t, "ES256", "first"), newSigner(t, "ES256", "second")
	file := filepath.Join(t.TempDir(), "keys.json")
	write := func(all ...signer) {
		t.Helper()
		var keys []string
		for _, s := range all {
			raw, err := s.key.Public().(*ecdsa.PublicKey).Bytes()
			if err != nil {
				t.Fatal(err)
			}
			n := len(raw) / 2
			b64 := base64.RawURLEncoding.EncodeToString
			keys = append(keys, fmt.Sprintf(`{"kty":"EC","crv":"P-256","kid":%q,"x":%q,"y":%q}`, s.kid, b64(raw[1:n+1]), b64(raw[n+1:])))
		}
		if err := os.WriteFile(file+".new", []byte(`{"keys":[`+strings.Join(keys, ",")+`]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(first)
	withClock(t, func(o *Options) { noPings(o); o.Auth.JWKS = file }, func(s *clockwork) {
		connect := func(by signer) *tester {
			c, _ := s.connect(wire.JSON, by.token(t, "u", map[string]any{"exp": time.Now().Add(100 * time.Hour).Unix()}))
			return c
		}
		old, secret := connect(first), mintWith(t, testSecret, "u")
		stays, _ := s.connect(wire.JSON, secret)
		write(first, second)
		time.Sleep(time.Minute)
		newer := connect(second)
		write(second)
		old.closes(closeTokenOver.code)
		if err := os.WriteFile(file, []byte("nothing"), 0o600); err != nil { // a broken set replaces nothing
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		newer.ok(subscribeTo("open:a"))
		stays.ok(subscribeTo("open:a"))
	})
}

// Many reload while clients connect, subscribe and publish; whatever is in force is
// one configuration or another, never a mixture.
func TestReloadsAtOnce(t *testing.T) {
	o := testOptions(t)
	o.Server.Loops = 4
	s := startServer(t, o, nil)
	configuration := func(i int) Options {
		o := o
		o.Namespaces = maps.Clone(o.Namespaces)
		open := openNamespace()
		open.MaxMessage = 1000 + i
		open.JoinLeave = i%2 == 0
		o.Namespaces["open"] = open
		o.Limits.Subscriptions = 1000 + i
		o.Auth.PreviousSecrets = []string{fmt.Sprintf("%032d", i)}
		return o
	}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 25 {
				if _, err := s.Reload(context.Background(), configuration(i*100+j)); err != nil {
					t.Error(err)
				}
				p := s.policy.Load()
				if n := p.Limits.Subscriptions - 1000; p.namespaces["open"].MaxMessage != max(1000+n, 0) && n != 128-1000 {
					t.Errorf("limits of configuration %d with a namespace of %d", n, p.namespaces["open"].MaxMessage-1000)
				}
			}
		})
		all.Go(func() {
			for j := range 10 {
				c := s.connect(t, wire.Encoding(j%2), fmt.Sprint("u", i))
				room := fmt.Sprint("open:", j%3)
				c.ok(subscribeTo(room))
				c.ok(publishTo(room, `1`))
				_ = c.conn.Close()
			}
		})
	}
	all.Wait()
	p := s.policy.Load()
	secret := p.Auth.PreviousSecrets[0]
	if _, err := p.verifier.Connection(must(auth.Mint([]byte(secret), auth.Claims{User: "u", ExpiresAt: time.Now().Add(time.Hour).Unix()})), time.Now()); err != nil {
		t.Errorf("a token of the configuration in force: %v", err)
	}
}
