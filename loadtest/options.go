package loadtest

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"time"

	"hub/auth"
)

// Options is what a load test is asked to do. [DefaultOptions] has the defaults;
// the tags are the names of the flags.
type Options struct {
	Scenario string // see [Scenarios]

	Conns      int           // connections
	Most       int           // connections of scenario connect; 0: as many as descriptors allow
	Rooms      int           // rooms over which they are spread
	Events     int           // events of a round in each room
	Rounds     int           // rounds of each part
	Gap        time.Duration // between two rounds
	Hold       time.Duration // how long connections idle before the second part
	Reconnects int           // connections that are dropped and come back
	Kills      int           // times that scenario crash kills the server
	Duration   time.Duration // makes scenario soak of rooms and delivery, for so long; 0 does not
	Size       int           // bytes of an event's data

	// URL is the server to test, http:// or https://; empty starts one for the
	// test. A server that runs already needs Secret, its auth.hmac_secret, and is
	// tested in the rooms of Namespace and in Databases. AdminURL and AdminKey,
	// both or neither, are for its metrics.
	URL, Secret, AdminURL, AdminKey string
	Namespace                       string
	Databases                       []string

	TLS           bool   // the test's own server speaks TLS
	Sources       int    // client addresses; 0: one for a thousand connections
	Seed          uint64 // of client addresses and choices; 0: a new one
	Protobuf      bool   // clients speak Protobuf
	DistinctUsers bool   // every connection is a user of its own

	JSON, HTML string // files for the report; empty for none
	Profiles   string // directory for profiles of the test's own server; empty for none
	Dir        string // where the server's temporary directory is made; empty: a disk is looked for

	// Program is the command line that runs this program: arguments are appended.
	// Empty is the program that runs now.
	Program []string
	called  string // what Program is told to be its name, unless empty
	// Version and Commit of this program.
	Version, Commit string
	// Terminal says that progress may be shown by rewriting one line of stderr.
	Terminal bool
	// Width is the columns of the table; 0 means 100.
	Width int

	// share divides the operations and reads of scenarios mixed and state; 0 means 1.
	share int
	// stall is how long nothing may come before waiting ends; 0 means 30 s.
	stall time.Duration
	// settle is how long connections have been idle when memory is read; 0 means 2 s.
	settle time.Duration
	// stream is how long steady streams within a scenario last; 0 means 5 s.
	stream time.Duration
	// quiet is how long nothing may come before the end of a swarm; 0 means 500 ms.
	quiet time.Duration
	// stalling, unless nil, is called for each connection that was made to stall: a
	// test lets it read.
	stalling func(c *conn) error
	// revoking, unless nil, may change what the admin API is asked to revoke: a test
	// has it revoke others.
	revoking func(*revocation)
	// expiring, unless nil, may change the claims of each token that expires: a test
	// has it last.
	expiring func(*auth.Claims)
	// keepKey has scenario revoke remove no key: its connections stay.
	keepKey bool
	// before, unless nil, is called with the data directory, and what it must hold,
	// before files are checked: a test breaks them there.
	before func(dataDir string, want map[string][]stored)
}

const (
	defaultDatabase = "default"
	otherDatabase   = "other" // of the test's own server
	ownNamespace    = "load"
)

// DefaultOptions returns those of `hub loadtest`.
func DefaultOptions() Options {
	return Options{
		Scenario: "rooms",
		Conns:    10_000, Rooms: 100, Events: 10, Rounds: 3,
		Gap: time.Second, Hold: 20 * time.Second, Reconnects: 100, Kills: 20,
		Size:      150,
		Namespace: "default", Databases: []string{defaultDatabase},
		DistinctUsers: true,
	}
}

// ErrOptions is wrapped by what [Options.Validate] returns.
var ErrOptions = errors.New("bad options")

// Validate reports everything that is wrong with o, one line each.
func (o *Options) Validate() error {
	var wrong []string
	bad := func(when bool, format string, args ...any) {
		if when {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	_, known := scenarios[o.Scenario]
	bad(!known, "-scenario must be one of %s, got %q", strings.Join(Scenarios(), ", "), o.Scenario)
	bad(o.Conns < 1 || o.Conns > 999_000, "-conns must be from 1 to 999000, got %d", o.Conns)
	bad(o.Most < 0, "-conns must not be negative, got %d", o.Most)
	bad(o.Rooms < 1 || o.Rooms > o.Conns, "-rooms must be from 1 to -conns (%d), got %d", o.Conns, o.Rooms)
	bad(o.Events < 1 || o.Events > 1000, "-events must be from 1 to 1000, got %d", o.Events)
	bad(o.Rounds < 1 || o.Rounds > 1000, "-rounds must be from 1 to 1000, got %d", o.Rounds)
	bad(o.Gap < 0, "-gap must not be negative, got %v", o.Gap)
	bad(o.Hold < 0, "-hold must not be negative, got %v", o.Hold)
	bad(o.Duration < 0, "-duration must not be negative, got %v", o.Duration)
	soaks := o.Scenario == "rooms" || o.Scenario == "delivery" || o.Scenario == soakScenario
	bad(known && o.Duration > 0 && !soaks, "-duration soaks the rooms of scenario rooms or the one of delivery, it cannot go with -scenario %s", o.Scenario)
	bad(o.Scenario == soakScenario && o.Duration == 0, "-scenario %s needs a -duration", soakScenario)
	bad(o.Reconnects < 0 || o.Reconnects > o.Conns, "-reconnects must be from 0 to -conns (%d), got %d", o.Conns, o.Reconnects)
	bad(o.Kills < 1 || o.Kills > 1000, "-kills must be from 1 to 1000, got %d", o.Kills)
	bad(o.Size < minSize || o.Size > maxSize, "-size must be from %d to %d bytes, got %d", minSize, maxSize, o.Size)
	bad(o.Sources < 0 || o.Sources > 20_000, "-sources must be from 0 to 20000, got %d", o.Sources)
	bad(o.Sources > 0 && o.Conns > o.Sources*maxPerSource, "-sources %d is too few: an address makes at most %d connections, so %d need %d",
		o.Sources, maxPerSource, o.Conns, (o.Conns+maxPerSource-1)/maxPerSource)
	bad(o.JSON != "" && o.JSON == o.HTML, "-json and -html must be two files")
	wrong = append(wrong, o.wrongServer()...)
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrOptions, strings.Join(wrong, "; "))
}

// maxPerSource is how many connections one client address makes: ports for
// connections to one server are some 28,000 (ip_local_port_range), and fewer
// where others were closed a short time ago.
const maxPerSource = 10_000

// wrongServer is the part of Validate for a server that runs already.
func (o *Options) wrongServer() (wrong []string) {
	if o.URL == "" {
		if o.Secret != "" || o.AdminURL != "" || o.AdminKey != "" {
			wrong = append(wrong, "-secret, -admin-url and -admin-key are for a running server: give its -url")
		}
		return wrong
	}
	if s := scenarios[o.Scenario]; s.ownServer {
		wrong = append(wrong, fmt.Sprintf("-scenario %s controls its server: it cannot test one that runs at -url", o.Scenario))
	}
	if !serverURL(o.URL) {
		wrong = append(wrong, fmt.Sprintf("-url must be like http://127.0.0.1:8000, got %q", o.URL))
	}
	if o.TLS {
		wrong = append(wrong, "-tls is for the test's own server: a -url says it by https")
	}
	if o.Secret == "" {
		wrong = append(wrong, "-url needs -secret, the server's auth.hmac_secret, to sign tokens of its users: env:NAME or file:PATH keep it off the command line")
	}
	if (o.AdminURL == "") != (o.AdminKey == "") {
		wrong = append(wrong, "-admin-url and -admin-key go together")
	}
	if len(o.Databases) == 0 || slices.Contains(o.Databases, "") || len(o.Databases) > 2 {
		wrong = append(wrong, "-databases must name one or two databases")
	}
	for _, name := range o.Databases {
		if len(name) > 30 {
			wrong = append(wrong, fmt.Sprintf("-databases: %q is longer than 30 bytes", name))
		}
	}
	if o.Namespace == "" || strings.ContainsAny(o.Namespace, ":\"\\ ") {
		wrong = append(wrong, fmt.Sprintf("-namespace must be the name of a namespace, got %q", o.Namespace))
	}
	return wrong
}

// serverURL reports whether text is the URL of a server, without a path.
func serverURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.Trim(u.Path, "/") == ""
}

// command is a process of this program.
func (o *Options) command(args ...string) *exec.Cmd {
	cmd := exec.Command(o.Program[0], append(o.Program[1:len(o.Program):len(o.Program)], args...)...)
	if o.called != "" {
		cmd.Args[0] = o.called
	}
	isolate(cmd)
	return cmd
}

// namespace and databases are those that the test uses.
func (o *Options) namespace() string {
	if o.URL == "" {
		return ownNamespace
	}
	return o.Namespace
}

func (o *Options) databases() []string {
	if o.URL == "" {
		return []string{defaultDatabase, otherDatabase}
	}
	return o.Databases
}

// addresses hands out loopback addresses that no run before is likely to have
// used: a connection that was closed holds its address and port for 60 s
// (TIME_WAIT), which makes the next one slow.
type addresses struct {
	next uint32
}

// newAddresses begins at a place that the seed says.
func newAddresses(seed uint64) *addresses {
	return &addresses{next: uint32(seed*0x9E3779B97F4A7C15>>32) & 0x7FFFFF}
}

// take returns the next address of 127.1.0.0 to 127.126.255.254.
func (a *addresses) take() netip.Addr {
	for {
		a.next++
		v := a.next % (126 << 16)
		if last := byte(v); last != 0 && last != 255 {
			return netip.AddrFrom4([4]byte{127, byte(1 + v>>16), byte(v >> 8), last})
		}
	}
}
