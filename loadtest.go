package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"hub/loadtest"
)

func (p *program) loadtest(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == loadtest.FloorCommand {
		return p.floorWriter(args[1], args[2])
	}
	o := loadtest.DefaultOptions()
	fs := p.loadtestFlags(&o)
	rest, err := parseFlags(fs, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return misuse("loadtest takes no arguments, got %q", rest[0])
	}
	for name, secret := range map[string]*string{"secret": &o.Secret, "admin-key": &o.AdminKey} {
		if *secret, err = resolve(*secret); err != nil {
			return fmt.Errorf("-%s: %w", name, err)
		}
	}
	if given(fs, "conns") {
		o.Most = o.Conns
	}
	if !given(fs, "rooms") && o.Rooms > o.Conns {
		o.Rooms = o.Conns
	}
	if !given(fs, "reconnects") && o.Reconnects > o.Conns/10 {
		o.Reconnects = o.Conns / 10
	}
	o.Version, o.Commit, o.Terminal = version, builtFrom(), isTerminal(p.stderr)
	o.Width = tableWidth(os.Getenv("COLUMNS"), loadtest.Columns(p.stdout))
	ctx, stop := untilUnattended(ctx)
	defer stop()
	report, err := loadtest.Run(ctx, o, p.stdout, p.stderr)
	if errors.Is(err, loadtest.ErrOptions) {
		return misuse("%v", err)
	}
	if err == nil && !report.Passed() {
		err = errVerdict
	}
	return err
}

// maxTableWidth is as wide as a table can be read.
const maxTableWidth = 160

// tableWidth is the width of the report's table: what COLUMNS says, or else the
// terminal; 0 when neither does.
func tableWidth(columns string, terminal int) int {
	width, err := strconv.Atoi(columns)
	if err != nil || width <= 0 {
		width = terminal
	}
	return min(width, maxTableWidth)
}

// untilUnattended returns a context that ends too when the terminal is closed:
// whatever ends a load test, its server and files must go. A pipe that nobody
// reads any more kills no longer; writing to it fails.
func untilUnattended(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // for good: the last words come later
	if signal.Ignored(syscall.SIGHUP) {                     // by nohup(1)
		return context.WithCancel(ctx)
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// builtFrom is the commit that this program was built from, with a + when its
// files had changes; empty when the build does not tell.
func builtFrom() string {
	commit, changed := "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = s.Value[:min(len(s.Value), 12)]
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = "+"
			}
		}
	}
	return commit + changed
}

// errVerdict ends the command when the report has told everything.
var errVerdict = errors.New("the load test did not pass")

func (p *program) loadtestFlags(o *loadtest.Options) *flag.FlagSet {
	fs := p.flags("loadtest", "[flags]")
	fs.StringVar(&o.Scenario, "scenario", o.Scenario, "what to do: "+strings.Join(loadtest.Scenarios(), ", "))
	fs.IntVar(&o.Conns, "conns", o.Conns, "connections, each with a user of its own; scenario connect makes at most so many, and without -conns as many as descriptors allow")
	fs.IntVar(&o.Rooms, "rooms", o.Rooms, "rooms over which they are spread")
	fs.IntVar(&o.Events, "events", o.Events, "events of a round in each room")
	fs.IntVar(&o.Rounds, "rounds", o.Rounds, "rounds of each part")
	fs.DurationVar(&o.Gap, "gap", o.Gap, "time between two rounds")
	fs.DurationVar(&o.Hold, "hold", o.Hold, "how long connections idle before reconnects")
	fs.IntVar(&o.Reconnects, "reconnects", o.Reconnects, "connections that are dropped and come back")
	fs.IntVar(&o.Kills, "kills", o.Kills, "times that scenario crash kills the server")
	fs.DurationVar(&o.Duration, "duration", o.Duration, "soak: steady traffic and reconnects for so long, in the rooms of scenario rooms or delivery")
	fs.IntVar(&o.Size, "size", o.Size, "bytes of an event's data")
	fs.StringVar(&o.URL, "url", o.URL, "`URL` of a running server to test; by default one is started for the test")
	fs.StringVar(&o.Secret, "secret", o.Secret, "auth.hmac_secret of the server at -url; env:NAME or file:PATH")
	fs.StringVar(&o.AdminURL, "admin-url", o.AdminURL, "`URL` of its admin listener, for metrics")
	fs.StringVar(&o.AdminKey, "admin-key", o.AdminKey, "its admin key; env:NAME or file:PATH")
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "its `namespace` to use rooms of")
	fs.Func("databases", "its databases to use, one or two (default \"default\")", func(text string) error {
		o.Databases = strings.Split(text, ",")
		return nil
	})
	fs.BoolVar(&o.TLS, "tls", o.TLS, "the test's server speaks TLS")
	fs.IntVar(&o.Sources, "sources", o.Sources, "loopback addresses of the clients; 0 is one for a thousand")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of addresses and choices; 0 is a new one")
	fs.BoolVar(&o.Protobuf, "protobuf", o.Protobuf, "clients speak Protobuf")
	fs.BoolVar(&o.DistinctUsers, "distinct-users", o.DistinctUsers, "every connection is a user of its own")
	fs.StringVar(&o.JSON, "json", o.JSON, "`file` for the report as JSON")
	fs.StringVar(&o.HTML, "html", o.HTML, "`file` for the report as a page")
	fs.StringVar(&o.Profiles, "profiles", o.Profiles, "`directory` for processor and heap profiles of the test's server; taking them costs time")
	fs.StringVar(&o.Dir, "dir", o.Dir, "`directory` on a disk for the server's temporary files")
	return fs
}

// floorWriter is the process that the load test compares a server with.
func (p *program) floorWriter(address, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return misuse("%s: %v", loadtest.FloorCommand, err)
	}
	return loadtest.ServeFloor(address, n, p.stdin, p.stdout)
}
