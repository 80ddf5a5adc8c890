// Package loadtest is the proof on the user's machine: it starts a server of its
// own on a real disk, drives thousands of authenticated users against it, and
// ends with a verdict. It is an independent client of the protocol: it shares no
// code with the server, reads its sockets itself, and opens the databases of the
// stopped server to compare them with what was acknowledged.
//
// A run consists of scenarios. Each has a fresh server and goes like this:
//
//  1. The floor is measured: the same bytes to as many sockets, without a server
//     (floor.go).
//  2. The server is started as a child, with limits that one machine playing
//     everybody would exceed raised (server.go).
//  3. A swarm of clients connects (swarm.go, conn.go, network_*.go). Its members
//     check every event by themselves: room, database, publisher, number, offset.
//  4. The scenario publishes and measures (scenario_*.go, measure.go). In rooms
//     with a ledger its clients operate on resources instead (ledger.go, operator.go),
//     over sockets and, by package fleet, over HTTP; package model judges what they
//     were told.
//  5. The checks: faults of events, connections left, a server that stops well,
//     files that hold what was acknowledged (verdict.go, check.go).
//
// What cannot be checked is reported as not checked.
package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"hub/auth"
	"hub/loadtest/report"
)

const microsecond = time.Microsecond

// runner is one run.
type runner struct {
	// fixed after new
	options  Options
	report   *report.Report
	progress *progress
	parent   string // of the server's temporary directory
	id       string // of this run, part of the names of rooms
	limit    int64  // descriptors of this process; 0 when unknown

	addresses *addresses
	roomsUsed int

	revalidated bool // delivery was measured beside the check of all connections
}

// ErrFailed is wrapped when a run could not even begin.
var ErrFailed = errors.New("load test")

// Run carries out a load test. Progress goes to stderr, the table and the verdict
// to stdout. The error wraps [ErrOptions] when o makes no sense; otherwise it says
// why nothing was tested, or which file could not be written. A report that comes
// without an error may tell of failed checks, see [report.Report.Passed]. When ctx
// ends, or nobody reads stderr any more, what was measured so far is reported as
// partial. In every case the child
// processes have ended and the temporary files are gone when Run returns.
func Run(ctx context.Context, o Options, stdout, stderr io.Writer) (*report.Report, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	r := &runner{
		options: o, report: report.New(tool(&o)), addresses: newAddresses(o.Seed),
		id: strconv.FormatUint(o.Seed&0xFFFFFF, 36),
	}
	if err := r.preflight(stderr); errors.Is(err, ErrOptions) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	r.describe()
	user := ctx
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r.progress = newProgress(stderr, o.Terminal, stop)
	heard := make(chan struct{})
	unheard := context.AfterFunc(user, func() {
		defer close(heard)
		r.progress.stopping()
	})
	for _, name := range r.names() {
		if ctx.Err() != nil {
			break
		}
		r.scenario(ctx, name)
	}
	if !unheard() {
		<-heard
	}
	r.progress.close()
	if ctx.Err() != nil {
		r.report.Partial = true
		r.problem("interrupted: the checks that were still to come were not made")
	}
	r.conclude()
	return r.report, r.write(stdout)
}

// complete fills in what was left open and validates.
func (o *Options) complete() error {
	if err := o.Validate(); err != nil {
		return err
	}
	if len(o.Program) == 0 {
		path, err := ownProgram()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		o.Program, o.called = []string{path}, os.Args[0]
	}
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano())<<16 ^ uint64(os.Getpid())
	}
	if o.stall == 0 {
		o.stall = 30 * time.Second
	}
	if o.stream == 0 {
		o.stream = 5 * time.Second
	}
	if o.quiet == 0 {
		o.quiet = 500 * time.Millisecond
	}
	if o.settle == 0 {
		o.settle = 2 * time.Second
	}
	if o.Width == 0 {
		o.Width = 100
	}
	return nil
}

// names are the scenarios to run.
func (r *runner) names() []string {
	switch {
	case r.options.Scenario == allScenarios:
		return append([]string(nil), everyScenario...)
	case r.options.Duration > 0:
		return []string{soakScenario}
	}
	return []string{r.options.Scenario}
}

func (r *runner) problem(format string, args ...any) {
	r.report.Problems = append(r.report.Problems, fmt.Sprintf(format, args...))
}

func (r *runner) show(s *swarm, phase string) { r.progress.set(s, phase, time.Time{}) }

func (r *runner) codec() codec { return codecs[r.options.Protobuf] }

// host is an address for a server of ours.
func (r *runner) host() netip.Addr {
	if manyLoopbacks {
		return r.addresses.take()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// perSource is how many connections one address makes unless -sources says it.
const perSource = 1000

// swarmOptions are those of clients of the server at addr.
func (r *runner) swarmOptions(addr netip.AddrPort, conns int) swarmOptions {
	o := swarmOptions{
		addr: addr, host: addr.String(), codec: r.codec(), size: r.options.Size,
		shards: readers(), stall: r.options.stall, backoff: 200 * time.Millisecond,
	}
	if manyLoopbacks && addr.Addr().IsLoopback() && addr.Addr().Is4() {
		n := r.options.Sources
		if n == 0 {
			n = (conns + perSource - 1) / perSource
		}
		o.perIP = max(1, (conns+n-1)/n)
		for range n {
			o.sources = append(o.sources, r.addresses.take())
		}
	}
	return o
}

// roomName is the name of the run's n-th room.
func (r *runner) roomName(n int) string {
	name := "run" + r.id + "-" + strconv.Itoa(n)
	if ns := r.options.namespace(); ns != defaultDatabase {
		return ns + ":" + name
	}
	return name
}

func userName(n int) string { return "user-" + strconv.Itoa(n) }

// tokenLife is longer than any run: clients do not refresh tokens.
const tokenLife = 30 * 24 * time.Hour

// claimsOf are the claims of a connection's token: good for its room, and to operate
// on and read the room also, unless that is empty.
func claimsOf(user string, room *room, also string) auth.Claims {
	grants := auth.Grants{{Rooms: []string{room.name}, Allow: auth.Subscribe | auth.Publish}}
	if room.ledger != nil {
		grants[0].Allow |= auth.Operate
	}
	if also != "" {
		grants = append(grants, auth.Grant{Rooms: []string{also}, Allow: auth.Operate | auth.Subscribe})
	}
	return auth.Claims{User: user, ExpiresAt: time.Now().Add(tokenLife).Unix(), Databases: []string{room.db}, Grants: grants}
}

// write prints the table and writes the files that were asked for.
func (r *runner) write(stdout io.Writer) error {
	errs := []error{r.report.WriteTable(stdout, r.options.Width)}
	for _, f := range []struct {
		path  string
		write func(io.Writer) error
	}{{r.options.JSON, r.report.WriteJSON}, {r.options.HTML, r.report.WriteHTML}} {
		if f.path != "" {
			errs = append(errs, writeFile(f.path, f.write))
		}
	}
	return errors.Join(errs...)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("write report %s: %w", path, err)
	}
	return nil
}

func milliseconds(ns int64) float64 { return float64(ns) / 1e6 }

// oneLine is an error's text for a list of problems.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
