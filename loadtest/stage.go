package loadtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"hub/auth"
	"hub/loadtest/report"
)

// stage is one scenario on its server. One goroutine, that of the scenario,
// uses it.
type stage struct {
	// fixed after new
	r      *runner
	name   string
	server *server // nil for one that runs at -url
	source *metricsSource
	quit   context.CancelCauseFunc
	// others is how many connections the server had before ours; 0 for our own
	// server. othersErr says why that is not known.
	others    int
	othersErr error

	swarm   *swarm // nil between two
	sampler *sampler
	// eventBytes is what one event takes on the wire, replies included.
	eventBytes float64
	watched    report.Faults // of the swarm when its last round ended
	out        *report.Scenario

	// what the checks are about
	asked, ready  int64
	faults        report.Faults
	tally         tally
	given, acked  uint64
	refused       int64
	databases     map[string][]stored
	crossDatabase bool  // there were events of two databases
	dropped       int64 // subscriptions that had to be continued
	expectedEnds  int64 // connections that a scenario ended itself, by a crash
	problems      []string
	// early says why the scenario ended with events on their way; empty if it did not.
	early string
}

// scenario runs one scenario with its floor and its checks. Whatever goes wrong
// is in the report.
func (r *runner) scenario(ctx context.Context, name string) {
	plan := scenarios[name]
	r.report.Scenarios = append(r.report.Scenarios, report.Scenario{Name: name, What: plan.what, Started: time.Now().UTC()})
	out := &r.report.Scenarios[len(r.report.Scenarios)-1]
	st := &stage{r: r, name: name, out: out, databases: make(map[string][]stored)}
	var shapes []report.Shape
	if plan.shapes != nil {
		shapes = plan.shapes(&r.options)
	}
	gap := r.options.Gap
	if plan.gap != nil {
		gap = plan.gap(&r.options)
	}
	st.floors(ctx, shapes, gap, func(f *report.Floor, run *report.FloorRun) { f.Before = run })
	err := st.run(ctx, plan.run)
	if err == nil {
		st.floors(ctx, shapes, gap, func(f *report.Floor, run *report.FloorRun) { f.After = run })
	}
	st.ratios()
	out.Ended = time.Now().UTC()
}

// run starts the server, carries out the scenario and makes the checks. The user
// ends ctx.
func (st *stage) run(ctx context.Context, scenario func(*stage, context.Context) error) (err error) {
	user := ctx
	ctx, st.quit = context.WithCancelCause(ctx)
	defer st.quit(nil)
	if err := st.begin(ctx); err != nil {
		st.early = early(user, err)
		st.fail("the server starts", err)
		return err
	}
	if err = scenario(st, ctx); err == nil {
		err = st.finishSwarm(ctx)
	} else {
		err = st.abandon(ctx, err)
	}
	st.early = early(user, err)
	st.keepSwarm()
	if err != nil {
		st.fail("the scenario completes", err)
	}
	if st.early != "" {
		st.r.report.Partial = true
	}
	left, leftErr := st.connectionsLeft(ctx)
	st.checkTraffic()
	const none = "connections left after the end = 0"
	switch {
	case st.server == nil && leftErr != nil:
		st.notChecked(none, leftErr.Error())
	case ctx.Err() != nil && leftErr != nil:
		st.notChecked(none, orText(early(user, context.Cause(ctx)), interrupted))
	case leftErr != nil:
		st.check(none, false, "%v", leftErr)
	default:
		st.check(none, left == 0, "%d left", left)
	}
	st.end(ctx)
	return err
}

// abandon lets everything arrive after a scenario that failed, so that what is on
// its way does not count as lost. It returns err, or why that came about.
func (st *stage) abandon(ctx context.Context, err error) error {
	if st.swarm == nil || errors.Is(err, errStalled) || errors.Is(err, errDied) {
		return err
	}
	_ = st.waitAll(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errDied) {
		return cause
	}
	return err
}

// begin makes the server ready.
func (st *stage) begin(ctx context.Context) error {
	r := st.r
	if r.options.URL != "" {
		st.othersErr = errors.New("the server's metrics tell: -admin-url and -admin-key let this be checked")
		if r.options.AdminURL != "" {
			st.source = &metricsSource{base: strings.TrimSuffix(r.options.AdminURL, "/"), key: r.options.AdminKey}
			st.others, st.othersErr = st.source.connections(ctx)
		}
		st.sampler = newSampler(st)
		return nil
	}
	st.r.progress.set(nil, st.name+": start the server", time.Time{})
	server, err := newServer(&r.options, scenarios[st.name].plan(&r.options), r.parent, r.host(), func(err error) { st.quit(err) })
	if err != nil {
		return err
	}
	st.server = server
	if err := server.start(ctx); err != nil {
		return errors.Join(err, server.close())
	}
	st.source = server.metrics()
	st.sampler = newSampler(st)
	return nil
}

// end stops the server and checks its files.
func (st *stage) end(ctx context.Context) {
	st.sampler.close()
	st.sampler.report(st.out)
	if st.server == nil {
		for _, name := range []string{"the server stops in order", "integrity_check of every database", "stored events = acknowledged events"} {
			st.notChecked(name, "the server at -url goes on")
		}
		return
	}
	defer func() {
		if err := st.server.close(); err != nil {
			st.r.problem("remove temporary files: %v", err)
		}
	}()
	st.r.progress.set(nil, st.name+": stop the server and check its files", time.Time{})
	const stops = "the server stops in order"
	if st.early == serverDied {
		st.server.kill()
		st.notChecked(stops, serverDied)
	} else if st.server.process == nil {
		st.notChecked(stops, "it was not running")
	} else if err := context.Cause(ctx); errors.Is(err, errDied) {
		st.server.kill()
		st.check(stops, false, "%s", err)
	} else {
		err := st.server.stop()
		st.check(stops, err == nil, "%s", orText(errText(err), "exit code 0"))
	}
	if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), errDied) {
		st.notChecked("integrity_check of every database", interrupted)
		st.notChecked("stored events = acknowledged events", interrupted)
		return
	}
	st.checkFiles()
}

// layout names the connections of a swarm.
type layout struct {
	conns, rooms int
	once         bool
	watched      bool // with watchers in other rooms, where there is only one room
	size         int  // of an event; 0: the option's

	db       string // in place of the first database; empty: that one
	operated bool   // nobody publishes, all rooms have ledgers
	// shared adds one room with a ledger and watchers, in which everybody of the first
	// database may operate.
	shared bool
	// firstUser is the number of the first connection's user.
	firstUser int
	// credentials, unless nil, may change the claims of a connection's token, and
	// return another secret to sign it with; "" is the usual one.
	credentials func(n int, r *room, claims *auth.Claims) (secret string)
}

// watchers is how many connections each of the other rooms has, if the layout
// itself has only one room: without them nothing could be misdirected.
const watchers = 2

// open makes a swarm and connects it.
func (st *stage) open(ctx context.Context, l layout) error {
	if err := st.newSwarm(l); err != nil {
		return err
	}
	return st.connect(ctx)
}

// connect connects the swarm.
func (st *stage) connect(ctx context.Context) error {
	st.phase(fmt.Sprintf("connect %d", len(st.swarm.conns)))
	if _, err := st.swarm.open(ctx); err != nil {
		return err
	}
	return st.allReady()
}

// allReady reports an error unless everybody is subscribed.
func (st *stage) allReady() error {
	if c := st.swarm.counts(); c.ready != int64(len(st.swarm.conns)) {
		return fmt.Errorf("%d of %d connections ready: %s", c.ready, len(st.swarm.conns), st.hinted(strings.Join(st.swarm.problems(), "; ")))
	}
	return nil
}

// hinted appends what may help to why connections are not ready.
func (st *stage) hinted(why string) string {
	if st.server == nil && strings.Contains(why, commandName(idSubscribe)+" answered with error 102 ") {
		why += fmt.Sprintf("; has the server a namespace %q? -namespace names the one to use", st.r.options.Namespace)
	}
	return why
}

// newSwarm prepares the connections of a layout. The last of several rooms is in
// the other database and has the name of the first one: were databases mixed up,
// its events would come there.
func (st *stage) newSwarm(l layout) error {
	r := st.r
	databases := r.options.databases()
	first, last := orText(l.db, databases[0]), databases[len(databases)-1]
	var plan []roomPlan
	for i := range l.rooms {
		p := roomPlan{name: r.roomName(r.roomsUsed + i), db: first, members: l.conns / l.rooms, once: l.once, operated: l.operated}
		if i < l.conns%l.rooms {
			p.members++
		}
		if i > 0 && i == l.rooms-1 && last != first {
			p.name, p.db = plan[0].name, last
		}
		plan = append(plan, p)
	}
	if l.rooms == 1 && l.watched {
		plan = append(plan, roomPlan{name: r.roomName(r.roomsUsed + 1), db: first, members: watchers, once: l.once})
		if last != first {
			plan = append(plan, roomPlan{name: plan[0].name, db: last, members: watchers, once: l.once})
		}
	}
	shared := ""
	if l.shared {
		shared = r.roomName(r.roomsUsed + len(plan))
		plan = append(plan, roomPlan{name: shared, db: first, members: watchers, operated: true})
	}
	r.roomsUsed += len(plan)
	conns := 0
	for _, p := range plan {
		conns += p.members
	}
	o, secret, err := st.clients(conns)
	if err != nil {
		return err
	}
	if l.size > 0 {
		o.size = l.size
	}
	user := func(n int) string {
		if !r.options.DistinctUsers {
			n = 0
		}
		return userName(l.firstUser + n)
	}
	st.crossDatabase = st.crossDatabase || last != first && len(plan) > 1
	st.swarm, err = newSwarm(o, plan, user, func(n int, room *room) (string, error) {
		claims, key := claimsOf(user(n), room, shared), secret
		if l.credentials != nil {
			key = orText(l.credentials(n, room, &claims), secret)
		}
		return auth.Mint([]byte(key), claims)
	})
	if err == nil {
		st.asked += int64(conns)
		st.watched = report.Faults{}
		st.sampler.watch(st.swarm)
	}
	return err
}

// clients says how to reach the server.
func (st *stage) clients(conns int) (o swarmOptions, secret string, err error) {
	if st.server == nil {
		addr, host, secure, err := st.r.options.target()
		if err != nil {
			return o, "", err
		}
		o = st.r.swarmOptions(addr, conns)
		o.host = host
		if secure {
			o.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: strings.Split(host, ":")[0], NextProtos: []string{"http/1.1"}}
		}
		return o, st.r.options.Secret, nil
	}
	o = st.r.swarmOptions(st.server.addr, conns)
	if st.server.tls != nil {
		o.tls = st.server.tls.client()
	}
	return o, st.server.secret, nil
}

// finishSwarm ends a swarm whose events have all arrived, unless there is none:
// what should not come gets the time to come first.
func (st *stage) finishSwarm(ctx context.Context) error {
	s := st.swarm
	if s == nil {
		return nil
	}
	if s.refusedDeliveries() > 0 { // rounds do not wait exactly when events are refused
		if err := st.waitAll(ctx); err != nil {
			return err
		}
	}
	st.phase("wait for what should not come")
	if err := s.settle(ctx, st.r.options.quiet); err != nil {
		return err
	}
	st.keepSwarm()
	return nil
}

// keepSwarm closes the connections and keeps what the checks are about.
func (st *stage) keepSwarm() {
	s := st.swarm
	if s == nil {
		return
	}
	st.sampler.watch(nil)
	st.swarm = nil
	t := s.tally()
	st.ready += t.ready
	st.faults = st.faults.Add(s.faults())
	st.tally.add(&t)
	for _, r := range s.rooms {
		w := r.stored(s.options.size)
		st.given += w.given
		st.acked += w.acked
		st.refused += int64(len(w.refused))
		st.databases[r.db] = append(st.databases[r.db], w)
	}
	st.dropped += s.dropped
	st.problems = append(st.problems, s.problems()...)
	if s.slept > longLook {
		st.r.problem("scenario %s: the generator itself stood still for %.1f s: times of that part are not the server's", st.name, s.slept.Seconds())
	}
	s.close(false)
}

// phase tells what goes on.
func (st *stage) phase(what string) {
	st.r.progress.set(st.swarm, st.name+": "+what, time.Time{})
}

// pause waits for d while connections idle.
func (st *stage) pause(ctx context.Context, d time.Duration, what string) error {
	if d <= 0 {
		return ctx.Err()
	}
	st.r.progress.set(st.swarm, st.name+": "+what, time.Now().Add(d))
	return sleep(ctx, d)
}

// sleep waits for d, or returns why ctx ended before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
