package hub

import (
	"time"

	"hub/auth"
)

// Options is everything a [Server] needs to know. [DefaultOptions] has the
// defaults of DESIGN.md; the tags are the keys of hub.toml.
type Options struct {
	Server     ServerOptions        `toml:"server"`
	Auth       auth.Options         `toml:"auth"`
	API        APIOptions           `toml:"api"`
	Admin      AdminOptions         `toml:"admin"`
	Limits     LimitOptions         `toml:"limits"`
	Database   DatabaseOptions      `toml:"database"`
	Namespaces map[string]Namespace `toml:"namespace"`

	// Development relaxes the rules for a server that only this machine can
	// reach: loopback Origins are allowed and denials are explained in the log.
	Development bool `toml:"-"`
	// Version is told to clients in the connect reply.
	Version string `toml:"-"`
}

// ServerOptions says where the server listens and what it does there.
type ServerOptions struct {
	// Listen is the host:port of clients and the server API.
	Listen string `toml:"listen"`
	// DataDir holds one SQLite file per database.
	DataDir string `toml:"data_dir"`
	// Origins lists the web origins that may open sockets, as scheme://host[:port]
	// or scheme://*.host[:port]; the server's own host is always allowed. "null"
	// only if listed.
	Origins []string `toml:"origins"`
	// TrustedProxies lists the addresses or CIDR prefixes whose X-Forwarded-For counts.
	TrustedProxies []string `toml:"trusted_proxies"`
	// TLSCert and TLSKey name PEM files; both or neither.
	TLSCert string `toml:"tls_cert"`
	TLSKey  string `toml:"tls_key"`
	// Loops is the number of event loops; 0 is one per core.
	Loops int `toml:"loops"`
	// Backend is "auto", "epoll" (Linux) or "portable" (a goroutine per connection).
	Backend string `toml:"backend"`
	// PingInterval is the time between two pings of a connection; PongTimeout is
	// how long the answer may take.
	PingInterval time.Duration `toml:"ping_interval"`
	PongTimeout  time.Duration `toml:"pong_timeout"`
	// HandshakeTimeout is the total time from accept to a successful connect command.
	HandshakeTimeout time.Duration `toml:"handshake_timeout"`
	// DrainWindow is the time over which a stopping server spreads its closes.
	DrainWindow time.Duration `toml:"drain_window"`
}

// APIOptions guards the server API.
type APIOptions struct {
	// Key is compared in constant time; empty switches the server API off.
	Key string `toml:"key"`
}

// AdminOptions is the listener of admin API, console, metrics and profiles.
type AdminOptions struct {
	// Listen is its host:port; empty switches it off.
	Listen string `toml:"listen"`
	// Key is the bearer token of every request there.
	Key string `toml:"key"`
}

// LimitOptions are the limits of DESIGN.md section 9; 0 means off for each.
type LimitOptions struct {
	Connections ConnectionLimits `toml:"connections"`
	// Messages bounds the commands of one connection, connect, subscribe and
	// pong excepted.
	Messages Rate `toml:"messages"`
	// Read, Mutation and Handshake bound the requests of one client address (IPv6
	// by /64), Database those of all together to one database. Read is for requests
	// that change nothing, Mutation for those that may, Handshake for upgrades to
	// WebSocket. Servers, with the API key, are not limited.
	Read      Rate          `toml:"read"`
	Mutation  Rate          `toml:"mutation"`
	Handshake Rate          `toml:"handshake"`
	Database  RequestLimits `toml:"database"`
	// Subscriptions bounds the rooms of one connection.
	Subscriptions int `toml:"subscriptions"`
	// Unsent is the bytes that may wait for a connection in rooms without history.
	Unsent int `toml:"unsent"`
	// Waiting is the commands of a connection that may wait for an answer; then
	// it is not read.
	Waiting int `toml:"waiting"`
	// LogMemory bounds the room logs of the whole server, in bytes.
	LogMemory int64 `toml:"log_memory"`
}

// ConnectionLimits caps the connections of the server, of one database and of
// one client address (IPv6 by /64).
type ConnectionLimits struct {
	Server   int `toml:"server"`
	Database int `toml:"database"`
	IP       int `toml:"ip"`
}

// RequestLimits are the limits of the three classes of requests.
type RequestLimits struct {
	Read      Rate `toml:"read"`
	Mutation  Rate `toml:"mutation"`
	Handshake Rate `toml:"handshake"`
}

// Rate is a token bucket: PerSecond tokens a second, up to Burst saved.
type Rate struct {
	PerSecond float64 `toml:"per_second"`
	Burst     int     `toml:"burst"`
}

// DatabaseOptions are shared by all databases.
type DatabaseOptions struct {
	// Synchronous is "normal" (a commit survives a killed process) or "full"
	// (it survives a power cut too).
	Synchronous string `toml:"synchronous"`
	// Readers is the number of read connections per database.
	Readers int `toml:"readers"`
	// Queue is the number of writes that may wait.
	Queue int `toml:"queue"`
	// WriteTimeout is how long a write may wait for its turn.
	WriteTimeout time.Duration `toml:"write_timeout"`
	// MaxRooms bounds the durable rooms of one database.
	MaxRooms int `toml:"max_rooms"`
	// IdempotencyTTL is how long the id of a publication is remembered.
	IdempotencyTTL time.Duration `toml:"idempotency_ttl"`
	// Names lists the databases; "default" serves /connection/websocket.
	Names []string `toml:"names"`
}

// Access says who may do something in the rooms of a namespace.
type Access string

// The four answers. A server, with the API key, may always.
const (
	AccessToken      Access = "token"      // a grant of the token is needed
	AccessUser       Access = "user"       // any authenticated user
	AccessSubscriber Access = "subscriber" // whoever is subscribed to the room
	AccessServer     Access = "server"     // nobody but servers
)

// Namespace holds the options of the rooms whose name begins with its name and
// a colon; "default" is for names without a colon.
type Namespace struct {
	Durable      bool          `toml:"durable"`
	HistorySize  uint64        `toml:"history_size"`
	HistoryTTL   time.Duration `toml:"history_ttl"`
	Presence     bool          `toml:"presence"`
	PresenceMax  int           `toml:"presence_max"`
	JoinLeave    bool          `toml:"join_leave"`
	MaxMessage   int           `toml:"max_message"`
	Subscribe    Access        `toml:"subscribe"`
	Publish      Access        `toml:"publish"`
	History      Access        `toml:"history"`
	PresenceInfo Access        `toml:"presence_info"`
	Operate      Access        `toml:"operate"`
}

// DefaultOptions returns the defaults that config.example.toml documents.
func DefaultOptions() Options {
	return Options{
		Server: ServerOptions{
			Listen:           "0.0.0.0:8000",
			DataDir:          "data",
			Origins:          []string{},
			TrustedProxies:   []string{},
			Backend:          "auto",
			PingInterval:     25 * time.Second,
			PongTimeout:      10 * time.Second,
			HandshakeTimeout: 10 * time.Second,
			DrainWindow:      2 * time.Second,
		},
		Auth:  auth.DefaultOptions(),
		Admin: AdminOptions{Listen: "127.0.0.1:8001"},
		Limits: LimitOptions{
			Connections: ConnectionLimits{Server: 100_000, Database: 12_000, IP: 1_000},
			Messages:    Rate{PerSecond: 50, Burst: 100},
			Read:        Rate{PerSecond: 500, Burst: 1_200},
			Mutation:    Rate{PerSecond: 200, Burst: 500},
			Handshake:   Rate{PerSecond: 200, Burst: 500},
			Database: RequestLimits{
				Read:      Rate{PerSecond: 20_000, Burst: 30_000},
				Mutation:  Rate{PerSecond: 20_000, Burst: 30_000},
				Handshake: Rate{PerSecond: 20_000, Burst: 30_000},
			},
			Subscriptions: 128,
			Unsent:        1 << 20,
			Waiting:       64,
			LogMemory:     256 << 20,
		},
		Database: DatabaseOptions{
			Synchronous:    "normal",
			Readers:        8,
			Queue:          10_000,
			WriteTimeout:   4 * time.Second,
			MaxRooms:       1_000_000,
			IdempotencyTTL: 7 * 24 * time.Hour,
			Names:          []string{"default"},
		},
	}
}

// DefaultNamespace returns the options of a namespace whose table is empty.
func DefaultNamespace() Namespace {
	return Namespace{
		Durable:      true,
		HistorySize:  10_000,
		HistoryTTL:   168 * time.Hour,
		PresenceMax:  1_000,
		MaxMessage:   64 << 10,
		Subscribe:    AccessToken,
		Publish:      AccessToken,
		History:      AccessToken,
		PresenceInfo: AccessToken,
		Operate:      AccessServer,
	}
}
