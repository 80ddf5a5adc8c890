package hub

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"hub/auth"
	"hub/ratelimit"
)

const (
	// maxMessage is the largest command, so no larger publication can arrive.
	maxMessage = 64 << 10
	// minAPIKey is the shortest key of the server API and the admin listener.
	minAPIKey = 16
	// maxReaders and maxLoops catch a misplaced digit; nobody gains from more.
	maxReaders = 256
	maxLoops   = 256
)

// Validate reports everything that is wrong with o, one error per key
// (errors.Join): each begins with the key's path in hub.toml and says what
// would be right. No error contains a secret. It opens no file and no socket.
func (o *Options) Validate() error {
	var p mistakes
	o.Server.validate(&p)
	if o.Development {
		o.validateDevelopment(&p)
	}
	if _, err := auth.New(o.Auth); err != nil {
		p = append(p, err)
	}
	p.key("api.key", o.API.Key)
	o.Admin.validate(&p)
	if o.Admin.Listen != "" && o.Admin.Listen == o.Server.Listen && !strings.HasSuffix(o.Admin.Listen, ":0") {
		p.add("admin.listen", "must differ from server.listen, got %q for both", o.Admin.Listen)
	}
	o.Limits.validate(&p)
	o.Database.validate(&p)
	for _, name := range slices.Sorted(maps.Keys(o.Namespaces)) {
		// "*" is every namespace that is not declared; only a development
		// server has such a rule.
		if !namespaceName.MatchString(name) && !(name == "*" && o.Development) {
			p.add("namespace", "name must match %s, got %.80q", namespaceName, name)
			continue
		}
		n := o.Namespaces[name]
		n.validate(&p, "namespace."+name)
	}
	return errors.Join(p...)
}

// mistakes collects what is wrong; its methods check one value of a kind.
type mistakes []error

func (p *mistakes) add(key, format string, args ...any) {
	*p = append(*p, fmt.Errorf("%s "+format, append([]any{key}, args...)...))
}

// atLeast checks whole numbers.
func (p *mistakes) atLeast(key string, least, got int64) {
	if got < least {
		p.add(key, "must be at least %d, got %d", least, got)
	}
}

func (p *mistakes) between(key string, least, most, got int64) {
	if got < least || got > most {
		p.add(key, "must be between %d and %d, got %d", least, most, got)
	}
}

func (p *mistakes) positive(key string, d time.Duration) {
	if d <= 0 {
		p.add(key, "must be above 0s, got %v", d)
	}
}

func (p *mistakes) notNegative(key string, d time.Duration) {
	if d < 0 {
		p.add(key, "must not be negative, got %v", d)
	}
}

func (p *mistakes) oneOf(key, got string, words ...string) {
	if !slices.Contains(words, got) {
		p.add(key, "must be one of %s, got %.80q", strings.Join(words, ", "), got)
	}
}

// address checks a listening address; the host may be empty, the port 0.
func (p *mistakes) address(key, addr string) {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		p.add(key, "must be host:port, got %.80q", addr)
	}
}

// key checks a secret key where one is set.
func (p *mistakes) key(key, secret string) {
	switch {
	case secret == "":
	case auth.IsSample(secret):
		p.add(key, "is the sample value of the documentation; make one with `openssl rand -hex 32`")
	case len(secret) < minAPIKey:
		p.add(key, "must have at least %d bytes, got %d", minAPIKey, len(secret))
	}
}

func (p *mistakes) rate(key string, r Rate) {
	if !(r.PerSecond >= 0) || math.IsInf(r.PerSecond, 1) {
		p.add(key+".per_second", "must be a number that is not negative (0 is off), got %v", r.PerSecond)
	}
	if r.PerSecond > 0 && r.Burst < 1 {
		p.add(key+".burst", "must be at least 1 when per_second is set, got %d", r.Burst)
	} else if r.Burst < 0 {
		p.add(key+".burst", "must not be negative, got %d", r.Burst)
	}
}

func (s *ServerOptions) validate(p *mistakes) {
	p.address("server.listen", s.Listen)
	if s.DataDir == "" {
		p.add("server.data_dir", "must name a directory")
	}
	if _, err := auth.ParseOrigins(s.Origins); err != nil {
		p.add("server.origins", "holds something wrong: %w", err)
	}
	if _, err := ratelimit.ParseProxies(s.TrustedProxies); err != nil {
		p.add("server.trusted_proxies", "holds something wrong: %w", err)
	}
	if s.TLSCert != "" && s.TLSKey == "" {
		p.add("server.tls_key", "must be set when server.tls_cert is")
	}
	if s.TLSKey != "" && s.TLSCert == "" {
		p.add("server.tls_cert", "must be set when server.tls_key is")
	}
	if s.Backend == "epoll" && s.TLSCert != "" {
		p.add("server.backend", `must be "auto" or "portable" with TLS, got "epoll"`)
	}
	if s.Backend == "epoll" && runtime.GOOS != "linux" {
		p.add("server.backend", `must be "auto" or "portable" on this system, got "epoll"`)
	}
	p.between("server.loops", 0, maxLoops, int64(s.Loops))
	p.oneOf("server.backend", s.Backend, "auto", "epoll", "portable")
	p.positive("server.ping_interval", s.PingInterval)
	p.positive("server.pong_timeout", s.PongTimeout)
	if s.PingInterval > 0 && s.PongTimeout >= s.PingInterval {
		p.add("server.pong_timeout", "must be below server.ping_interval (%v), got %v", s.PingInterval, s.PongTimeout)
	}
	p.positive("server.handshake_timeout", s.HandshakeTimeout)
	p.notNegative("server.drain_window", s.DrainWindow)
}

// validateDevelopment holds a server with relaxed rules to this machine.
func (o *Options) validateDevelopment(p *mistakes) {
	host, _, err := net.SplitHostPort(o.Server.Listen)
	if err != nil {
		return // reported already
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.Unmap().IsLoopback()) {
		p.add("server.listen", "must be a loopback address in development, got %.80q; other addresses need a configuration", o.Server.Listen)
	}
	if len(o.Server.TrustedProxies) > 0 {
		p.add("server.trusted_proxies", "must be empty in development")
	}
}

func (a *AdminOptions) validate(p *mistakes) {
	p.key("admin.key", a.Key)
	if a.Listen == "" {
		return
	}
	p.address("admin.listen", a.Listen)
	if a.Key == "" {
		p.add("admin.key", "must be set when admin.listen is (admin.listen = \"\" switches that listener off)")
	}
}

func (l *LimitOptions) validate(p *mistakes) {
	p.atLeast("limits.connections.server", 0, int64(l.Connections.Server))
	p.atLeast("limits.connections.database", 0, int64(l.Connections.Database))
	p.atLeast("limits.connections.ip", 0, int64(l.Connections.IP))
	p.rate("limits.messages", l.Messages)
	p.rate("limits.read", l.Read)
	p.rate("limits.mutation", l.Mutation)
	p.rate("limits.handshake", l.Handshake)
	p.rate("limits.database.read", l.Database.Read)
	p.rate("limits.database.mutation", l.Database.Mutation)
	p.rate("limits.database.handshake", l.Database.Handshake)
	p.atLeast("limits.subscriptions", 0, int64(l.Subscriptions))
	p.atLeast("limits.unsent", 0, int64(l.Unsent))
	p.atLeast("limits.waiting", 0, int64(l.Waiting))
	p.atLeast("limits.log_memory", 0, l.LogMemory)
}

func (d *DatabaseOptions) validate(p *mistakes) {
	p.oneOf("database.synchronous", d.Synchronous, "normal", "full")
	p.between("database.readers", 1, maxReaders, int64(d.Readers))
	p.atLeast("database.queue", 0, int64(d.Queue))
	p.notNegative("database.write_timeout", d.WriteTimeout)
	p.atLeast("database.max_rooms", 0, int64(d.MaxRooms))
	p.positive("database.idempotency_ttl", d.IdempotencyTTL)
	if len(d.Names) == 0 {
		p.add("database.names", "must hold at least one name, such as \"default\"")
	}
	for i, name := range d.Names {
		if err := ValidDatabase(name); err != nil {
			p.add("database.names", "holds something wrong: %w", err)
		} else if slices.Contains(d.Names[:i], name) {
			p.add("database.names", "holds %q twice", name)
		}
	}
}

func (n *Namespace) validate(p *mistakes, key string) {
	if n.Durable {
		if n.HistorySize == 0 || n.HistorySize > math.MaxInt64 {
			p.add(key+".history_size", "must be at least 1 when durable, got %d", n.HistorySize)
		}
		p.positive(key+".history_ttl", n.HistoryTTL)
	} else {
		p.notNegative(key+".history_ttl", n.HistoryTTL)
	}
	p.atLeast(key+".presence_max", 0, int64(n.PresenceMax))
	p.between(key+".max_message", 1, maxMessage, int64(n.MaxMessage))
	for _, may := range []struct {
		key string
		who Access
	}{
		{".publish", n.Publish},
		{".history", n.History},
		{".presence_info", n.PresenceInfo},
		{".operate", n.Operate},
	} {
		p.oneOf(key+may.key, string(may.who), "token", "user", "subscriber", "server")
	}
	p.oneOf(key+".subscribe", string(n.Subscribe), "token", "user", "server")
}

// maxRoomName is the longest room name in bytes (DESIGN.md section 6).
const maxRoomName = 255

var (
	errRoomLength  = errors.New("room name must have 1 to 255 bytes")
	errRoomUTF8    = errors.New("room name must be valid UTF-8")
	errRoomControl = errors.New("room name must not contain control characters")
	errRoomHash    = errors.New("room name must not contain #")
	errRoomDollar  = errors.New("room name must not begin with $")
)

// ValidRoom returns what is wrong with the name of a room, or nil: 1-255 bytes
// of UTF-8, no control character, no "#" and no leading "$", to which Centrifugo
// gives a meaning. It is the one check for sockets, HTTP (after decoding) and
// tokens, and it does not allocate.
func ValidRoom(name string) error {
	switch {
	case name == "" || len(name) > maxRoomName:
		return errRoomLength
	case name[0] == '$':
		return errRoomDollar
	case strings.IndexByte(name, '#') >= 0:
		return errRoomHash
	case !utf8.ValidString(name):
		return errRoomUTF8
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return errRoomControl
		}
	}
	return nil
}

// A database's name is part of a file name and of a path, so it comes from an
// allowlist of characters in one case (case G47); "_" at its start is ours.
var (
	databaseName  = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	namespaceName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

// ValidDatabase returns what is wrong with the name of a database, or nil.
func ValidDatabase(name string) error {
	if !databaseName.MatchString(name) {
		return fmt.Errorf("database name must match %s, got %.80q", databaseName, name)
	}
	return nil
}
