package hub_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"hub/auth"
	"hub/hub"
)

const (
	testSecret = "0123456789abcdef0123456789abcdef"
	testKey    = "0123456789abcdef"
)

// validOptions returns options with every kind of table that Validate accepts.
func validOptions() hub.Options {
	o := hub.DefaultOptions()
	o.Auth.HMACSecret = testSecret
	o.API.Key = testKey
	o.Admin.Key = testKey
	o.Namespaces = map[string]hub.Namespace{"default": hub.DefaultNamespace(), "chat": hub.DefaultNamespace()}
	return o
}

func TestValidateAccepts(t *testing.T) {
	for name, change := range map[string]func(*hub.Options){
		"defaults with secrets": func(o *hub.Options) {},
		"no API, no admin":      func(o *hub.Options) { o.API.Key, o.Admin.Listen, o.Admin.Key = "", "", "" },
		"no namespaces":         func(o *hub.Options) { o.Namespaces = nil },
		"every limit off": func(o *hub.Options) {
			o.Limits = hub.LimitOptions{}
			o.Database.Queue, o.Database.WriteTimeout, o.Database.MaxRooms = 0, 0, 0
		},
		"a limit off with a burst": func(o *hub.Options) { o.Limits.Messages = hub.Rate{PerSecond: 0, Burst: 5} },
		"half a message a second":  func(o *hub.Options) { o.Limits.Messages = hub.Rate{PerSecond: 0.5, Burst: 1} },
		"port 0":                   func(o *hub.Options) { o.Server.Listen, o.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0" },
		"no host":                  func(o *hub.Options) { o.Server.Listen = ":8000" },
		"IPv6":                     func(o *hub.Options) { o.Server.Listen = "[::]:8000" },
		"TLS":                      func(o *hub.Options) { o.Server.TLSCert, o.Server.TLSKey = "c.pem", "k.pem" },
		"lists": func(o *hub.Options) {
			o.Server.Origins = []string{"https://*.example.com", "null"}
			o.Server.TrustedProxies = []string{"10.0.0.0/8"}
			o.Database.Names = []string{"default", "shop-1", "0_a"}
		},
		"ephemeral": func(o *hub.Options) {
			n := hub.DefaultNamespace()
			n.Durable, n.HistorySize, n.HistoryTTL = false, 0, 0
			n.Publish, n.History, n.PresenceInfo, n.Operate = hub.AccessSubscriber, hub.AccessUser, hub.AccessServer, hub.AccessToken
			o.Namespaces["cursors"] = n
		},
		"development": func(o *hub.Options) {
			o.Development = true
			o.Server.Listen = "127.0.0.1:8000"
			o.Namespaces["*"] = hub.DefaultNamespace()
		},
		"development on localhost": func(o *hub.Options) { o.Development, o.Server.Listen = true, "localhost:0" },
		"development on IPv6":      func(o *hub.Options) { o.Development, o.Server.Listen = true, "[::1]:0" },
	} {
		o := validOptions()
		change(&o)
		if err := o.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each mistake is reported with its key and what would be right, and alone.
func TestValidateRefuses(t *testing.T) {
	namespace := func(change func(*hub.Namespace)) func(*hub.Options) {
		return func(o *hub.Options) {
			n := hub.DefaultNamespace()
			change(&n)
			o.Namespaces["chat"] = n
		}
	}
	names := func(names ...string) func(*hub.Options) {
		return func(o *hub.Options) { o.Database.Names = names }
	}
	for _, tc := range []struct {
		want   string
		change func(*hub.Options)
	}{
		{`server.listen must be host:port, got ""`, func(o *hub.Options) { o.Server.Listen = "" }},
		{`server.listen must be host:port, got "8000"`, func(o *hub.Options) { o.Server.Listen = "8000" }},
		{`server.listen must be host:port, got "a:http"`, func(o *hub.Options) { o.Server.Listen = "a:http" }},
		{`server.listen must be host:port, got "a:65536"`, func(o *hub.Options) { o.Server.Listen = "a:65536" }},
		{`server.data_dir must name a directory`, func(o *hub.Options) { o.Server.DataDir = "" }},
		{`server.origins holds something wrong: "example.com" is not an origin`, func(o *hub.Options) { o.Server.Origins = []string{"example.com"} }},
		{`server.origins holds something wrong: "*" is not an origin`, func(o *hub.Options) { o.Server.Origins = []string{"*"} }},
		{`server.trusted_proxies holds something wrong: "lb" is not an address`, func(o *hub.Options) { o.Server.TrustedProxies = []string{"lb"} }},
		{`server.trusted_proxies holds something wrong: "0.0.0.0/0" trusts everybody`, func(o *hub.Options) { o.Server.TrustedProxies = []string{"0.0.0.0/0"} }},
		{`server.tls_key must be set when server.tls_cert is`, func(o *hub.Options) { o.Server.TLSCert = "c.pem" }},
		{`server.tls_cert must be set when server.tls_key is`, func(o *hub.Options) { o.Server.TLSKey = "k.pem" }},
		{`server.loops must be between 0 and 256, got -1`, func(o *hub.Options) { o.Server.Loops = -1 }},
		{`server.backend must be one of auto, epoll, portable, got "kqueue"`, func(o *hub.Options) { o.Server.Backend = "kqueue" }},
		{`server.ping_interval must be above 0s, got 0s`, func(o *hub.Options) { o.Server.PingInterval = 0 }},
		{`server.pong_timeout must be above 0s, got -1s`, func(o *hub.Options) { o.Server.PongTimeout = -time.Second }},
		{`server.pong_timeout must be below server.ping_interval (25s), got 25s`, func(o *hub.Options) { o.Server.PongTimeout = 25 * time.Second }},
		{`server.handshake_timeout must be above 0s, got 0s`, func(o *hub.Options) { o.Server.HandshakeTimeout = 0 }},
		{`server.drain_window must not be negative, got -1s`, func(o *hub.Options) { o.Server.DrainWindow = -time.Second }},

		{`auth.hmac_secret, auth.public_keys or auth.jwks must be set`, func(o *hub.Options) { o.Auth.HMACSecret = "" }},
		{`auth.hmac_secret is the sample value`, func(o *hub.Options) { o.Auth.HMACSecret = auth.SampleSecret }},
		{`auth.leeway must be between 0s and 1m0s, got 2m0s`, func(o *hub.Options) { o.Auth.Leeway = 2 * time.Minute }},

		{`api.key must have at least 16 bytes, got 15`, func(o *hub.Options) { o.API.Key = testKey[1:] }},
		{`api.key is the sample value`, func(o *hub.Options) { o.API.Key = auth.SampleSecret }},
		{`admin.key must have at least 16 bytes, got 1`, func(o *hub.Options) { o.Admin.Key = "x" }},
		{`admin.key must be set when admin.listen is`, func(o *hub.Options) { o.Admin.Key = "" }},
		{`admin.listen must be host:port, got "x"`, func(o *hub.Options) { o.Admin.Listen = "x" }},
		{`admin.listen must differ from server.listen, got "0.0.0.0:8000" for both`, func(o *hub.Options) { o.Admin.Listen = o.Server.Listen }},

		{`limits.connections.server must be at least 0, got -1`, func(o *hub.Options) { o.Limits.Connections.Server = -1 }},
		{`limits.connections.database must be at least 0, got -1`, func(o *hub.Options) { o.Limits.Connections.Database = -1 }},
		{`limits.connections.ip must be at least 0, got -1`, func(o *hub.Options) { o.Limits.Connections.IP = -1 }},
		{`limits.messages.burst must be at least 1 when per_second is set, got 0`, func(o *hub.Options) { o.Limits.Messages.Burst = 0 }},
		{`limits.messages.burst must not be negative, got -1`, func(o *hub.Options) { o.Limits.Messages = hub.Rate{Burst: -1} }},
		{`limits.messages.per_second must be a number that is not negative (0 is off), got NaN`, func(o *hub.Options) { o.Limits.Messages.PerSecond = math.NaN() }},
		{`limits.messages.per_second must be a number that is not negative (0 is off), got -1`, func(o *hub.Options) { o.Limits.Messages.PerSecond = -1 }},
		{`limits.messages.per_second must be a number that is not negative (0 is off), got +Inf`, func(o *hub.Options) { o.Limits.Messages.PerSecond = math.Inf(1) }},
		{`limits.read.burst must be at least 1 when per_second is set, got 0`, func(o *hub.Options) { o.Limits.Read.Burst = 0 }},
		{`limits.mutation.per_second must be a number that is not negative (0 is off), got NaN`, func(o *hub.Options) { o.Limits.Mutation.PerSecond = math.NaN() }},
		{`limits.handshake.per_second must be a number that is not negative (0 is off), got -0.5`, func(o *hub.Options) { o.Limits.Handshake.PerSecond = -0.5 }},
		{`limits.database.read.per_second must be a number that is not negative (0 is off), got +Inf`, func(o *hub.Options) { o.Limits.Database.Read.PerSecond = math.Inf(1) }},
		{`limits.database.mutation.burst must not be negative, got -1`, func(o *hub.Options) { o.Limits.Database.Mutation = hub.Rate{Burst: -1} }},
		{`limits.database.handshake.burst must be at least 1 when per_second is set, got 0`, func(o *hub.Options) { o.Limits.Database.Handshake.Burst = 0 }},
		{`limits.subscriptions must be at least 0, got -1`, func(o *hub.Options) { o.Limits.Subscriptions = -1 }},
		{`limits.unsent must be at least 0, got -1`, func(o *hub.Options) { o.Limits.Unsent = -1 }},
		{`limits.waiting must be at least 0, got -1`, func(o *hub.Options) { o.Limits.Waiting = -1 }},
		{`limits.log_memory must be at least 0, got -1`, func(o *hub.Options) { o.Limits.LogMemory = -1 }},

		{`database.synchronous must be one of normal, full, got "off"`, func(o *hub.Options) { o.Database.Synchronous = "off" }},
		{`database.readers must be between 1 and 256, got 0`, func(o *hub.Options) { o.Database.Readers = 0 }},
		{`database.queue must be at least 0, got -1`, func(o *hub.Options) { o.Database.Queue = -1 }},
		{`database.write_timeout must not be negative, got -1s`, func(o *hub.Options) { o.Database.WriteTimeout = -time.Second }},
		{`database.max_rooms must be at least 0, got -1`, func(o *hub.Options) { o.Database.MaxRooms = -1 }},
		{`database.idempotency_ttl must be above 0s, got 0s`, func(o *hub.Options) { o.Database.IdempotencyTTL = 0 }},
		{`database.names must hold at least one name`, names()},
		{`database.names holds "a" twice`, names("a", "b", "a")},
		{`database.names holds something wrong: database name must match`, names("_hub")},

		{`namespace name must match`, func(o *hub.Options) { o.Namespaces["a:b"] = hub.DefaultNamespace() }},
		{`namespace name must match`, func(o *hub.Options) { o.Namespaces[""] = hub.DefaultNamespace() }},
		{`namespace name must match ^[A-Za-z0-9_.-]{1,64}$, got "*"`, func(o *hub.Options) { o.Namespaces["*"] = hub.DefaultNamespace() }},
		{`namespace.chat.history_size must be at least 1 when durable, got 0`, namespace(func(n *hub.Namespace) { n.HistorySize = 0 })},
		{`namespace.chat.history_ttl must be above 0s, got 0s`, namespace(func(n *hub.Namespace) { n.HistoryTTL = 0 })},
		{`namespace.chat.history_ttl must not be negative, got -1s`, namespace(func(n *hub.Namespace) { n.Durable, n.HistoryTTL = false, -time.Second })},
		{`namespace.chat.presence_max must be at least 0, got -1`, namespace(func(n *hub.Namespace) { n.PresenceMax = -1 })},
		{`namespace.chat.max_message must be between 1 and 65536, got 0`, namespace(func(n *hub.Namespace) { n.MaxMessage = 0 })},
		{`namespace.chat.max_message must be between 1 and 65536, got 65537`, namespace(func(n *hub.Namespace) { n.MaxMessage = 65537 })},
		{`namespace.chat.subscribe must be one of token, user, server, got "subscriber"`, namespace(func(n *hub.Namespace) { n.Subscribe = hub.AccessSubscriber })},
		{`namespace.chat.subscribe must be one of token, user, server, got ""`, namespace(func(n *hub.Namespace) { n.Subscribe = "" })},
		{`namespace.chat.publish must be one of token, user, subscriber, server, got "all"`, namespace(func(n *hub.Namespace) { n.Publish = "all" })},
		{`namespace.chat.history must be one of`, namespace(func(n *hub.Namespace) { n.History = "User" })},
		{`namespace.chat.presence_info must be one of`, namespace(func(n *hub.Namespace) { n.PresenceInfo = "-" })},
		{`namespace.chat.operate must be one of`, namespace(func(n *hub.Namespace) { n.Operate = "-" })},

		{`server.listen must be a loopback address in development, got "0.0.0.0:8000"`, func(o *hub.Options) { o.Development = true }},
		{`server.listen must be a loopback address in development, got ":8000"`, func(o *hub.Options) { o.Development, o.Server.Listen = true, ":8000" }},
		{`server.listen must be a loopback address in development, got "example.com:80"`, func(o *hub.Options) { o.Development, o.Server.Listen = true, "example.com:80" }},
		{`server.trusted_proxies must be empty in development`, func(o *hub.Options) {
			o.Development, o.Server.Listen, o.Server.TrustedProxies = true, "127.0.0.1:0", []string{"10.0.0.1"}
		}},
	} {
		o := validOptions()
		tc.change(&o)
		err := o.Validate()
		if err == nil {
			t.Errorf("accepted, want %q", tc.want)
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, tc.want) || strings.Contains(text, "\n") {
			t.Errorf("got error %q, want %q", text, tc.want)
		}
	}
}

// All problems come at once, and none tells a secret.
func TestValidateReportsEverything(t *testing.T) {
	o := hub.Options{
		Auth:       auth.Options{HMACSecret: "s3cret"},
		API:        hub.APIOptions{Key: "k3y"},
		Admin:      hub.AdminOptions{Listen: "x", Key: "adm1n"},
		Namespaces: map[string]hub.Namespace{"b": {}, "a": {Durable: true}},
	}
	err := o.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range []string{
		"server.listen", "server.data_dir", "server.backend", "server.ping_interval", "server.pong_timeout", "server.handshake_timeout",
		"auth.hmac_secret", "auth.revalidate", "api.key", "admin.listen", "admin.key", "database.synchronous", "database.readers",
		"database.idempotency_ttl", "database.names", "namespace.a.history_size", "namespace.a.history_ttl", "namespace.a.max_message",
		"namespace.a.subscribe", "namespace.b.publish", "namespace.b.history", "namespace.b.presence_info", "namespace.b.operate",
	} {
		if !strings.Contains("\n"+err.Error(), "\n"+key+" ") {
			t.Errorf("no line begins with %s:\n%v", key, err)
		}
	}
	for _, secret := range []string{"s3cret", "k3y", "adm1n"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error tells %q", secret)
		}
	}
}

func TestValidRoom(t *testing.T) {
	for _, name := range []string{
		"a", "chat:lobby", "chat:a:b", ":", "a$b", "*", "../../etc/passwd", "Straße", "日本", "a b", "a%2Fb", "a/b", `"quoted"`, strings.Repeat("x", 255),
	} {
		if err := hub.ValidRoom(name); err != nil {
			t.Errorf("ValidRoom(%q): %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"":                       "1 to 255 bytes",
		strings.Repeat("x", 256): "1 to 255 bytes",
		strings.Repeat("ü", 128): "1 to 255 bytes",
		"$secret":                "begin with $",
		"user#1":                 "contain #",
		"#":                      "contain #",
		"a\x00b":                 "control",
		"a\nb":                   "control",
		"a\x7f":                  "control",
		"a\u0085b":               "control",
		"a\xffb":                 "UTF-8",
		"\xc0\xaf":               "UTF-8",
		"a\xed\xa0\x80":          "UTF-8", // half a surrogate pair
	} {
		if err := hub.ValidRoom(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ValidRoom(%q): got error %v, want one about %q", name, err, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = hub.ValidRoom("chat:Straße") }); n != 0 {
		t.Errorf("ValidRoom makes %v allocations", n)
	}
}

// Case G47: a database's name is part of a file name.
func TestValidDatabase(t *testing.T) {
	for _, name := range []string{"default", "a", "0", "shop-1", "a_b", strings.Repeat("x", 63)} {
		if err := hub.ValidDatabase(name); err != nil {
			t.Errorf("ValidDatabase(%q): %v", name, err)
		}
	}
	for _, name := range []string{
		"", "_hub", "-a", "A", "shop.db", "..", "../../etc", "..%2F..%2Fetc", "%2e%2e", "a%2Fb", "a/b", `a\b`, "a b", "a\n", "a\x00",
		"x?mode=memory", "ä", "a:b", "CON", strings.Repeat("x", 64),
	} {
		if err := hub.ValidDatabase(name); err == nil {
			t.Errorf("ValidDatabase(%q) accepted it", name)
		}
	}
}
