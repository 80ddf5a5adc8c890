package loadtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

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
	reconnected   bool  // there were subscriptions to continue
	expectedEnds  int64 // connections that a scenario ended itself, by a crash
	problems      []string
}

// scenario runs one scenario with its floor and its checks. Whatever goes wrong
// is in the report.
func (r *runner) scenario(ctx context.Context, name string) {
	plan := scenarios[name]
	r.report.Scenarios = append(r.report.Scenarios, report.Scenario{Name: name, What: plan.what, Started: time.Now().UTC()})
	out := &r.report.Scenarios[len(r.report.Scenarios)-1]
	st := &stage{r: r, name: name, out: out, databases: make(map[string][]stored)}
	if r.options.Duration > 0 {
		plan.run, plan.shapes = (*stage).soak, nil
		out.What = fmt.Sprintf("steady traffic and reconnects for %v", r.options.Duration)
	}
	var shapes []report.Shape
	if plan.shapes != nil {
		shapes = plan.shapes(&r.options)
	}
	st.floors(ctx, shapes, func(f *report.Floor, run *report.FloorRun) { f.Before = run })
	err := st.run(ctx, plan.run)
	if err == nil {
		st.floors(ctx, shapes, func(f *report.Floor, run *report.FloorRun) { f.After = run })
	}
	st.ratios()
	out.Ended = time.Now().UTC()
}

// run starts the server, carries out the scenario and makes the checks.
func (st *stage) run(ctx context.Context, scenario func(*stage, context.Context) error) (err error) {
	ctx, st.quit = context.WithCancelCause(ctx)
	defer st.quit(nil)
	if err := st.begin(ctx); err != nil {
		st.fail("the server starts", err)
		return err
	}
	err = scenario(st, ctx)
	if err == nil && st.swarm != nil && st.swarm.refusedDeliveries() > 0 {
		// Rounds do not wait exactly when events are refused.
		err = st.waitAll(ctx)
	}
	st.endSwarm()
	if err != nil {
		st.fail("the scenario completes", err)
	}
	if errors.Is(err, errDied) {
		st.r.report.Partial = true
	}
	left, leftErr := st.connectionsLeft(ctx)
	st.checkTraffic()
	const none = "connections left after the end = 0"
	switch {
	case st.server == nil || errors.Is(leftErr, context.Canceled):
		st.notChecked(none, leftErr.Error())
	case leftErr != nil:
		st.check(none, false, "%v", leftErr)
	default:
		st.check(none, left == 0, "%d left", left)
	}
	st.end(ctx)
	return err
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// begin makes the server ready.
func (st *stage) begin(ctx context.Context) error {
	r := st.r
	if r.options.URL != "" {
		if r.options.AdminURL != "" {
			st.source = &metricsSource{base: strings.TrimSuffix(r.options.AdminURL, "/"), key: r.options.AdminKey}
		}
		st.sampler = newSampler(st)
		return nil
	}
	st.r.progress.set(nil, st.name+": start the server", time.Time{})
	server, err := newServer(&r.options, r.parent, r.host(), func(err error) { st.quit(err) })
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
	if st.server.process == nil {
		st.notChecked("the server stops in order", "it was not running")
	} else if err := context.Cause(ctx); errors.Is(err, errDied) {
		st.server.kill()
		st.check("the server stops in order", false, "%s", err)
	} else {
		err := st.server.stop()
		st.check("the server stops in order", err == nil, "%s", orText(errText(err), "exit code 0"))
	}
	if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), errDied) {
		st.notChecked("integrity_check of every database", "interrupted")
		st.notChecked("stored events = acknowledged events", "interrupted")
		return
	}
	st.checkFiles()
}

// checkFiles compares the databases with what was acknowledged.
func (st *stage) checkFiles() {
	if st.r.options.before != nil {
		st.r.options.before(st.server.dataDir())
	}
	var damaged, different []string
	rooms := 0
	for _, db := range []string{defaultDatabase, otherDatabase} {
		integrity, events, err := checkDatabase(context.Background(), st.server.database(db), db, st.databases[db], retention)
		if err != nil {
			events = append(events, err.Error())
		}
		damaged, different = append(damaged, integrity...), append(different, events...)
		rooms += len(st.databases[db])
	}
	st.check("integrity_check of every database", len(damaged) == 0, "%s", orText(strings.Join(damaged, "; "), "ok, 2 databases"))
	st.check("stored events = acknowledged events", len(different) == 0, "%s",
		orText(strings.Join(different[:min(len(different), maxExamples)], "; "), fmt.Sprintf("%d in %d rooms, contiguous", st.acked, rooms)))
}

func orText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// layout names the connections of a swarm.
type layout struct {
	conns, rooms int
	once         bool
	watched      bool // with watchers in other rooms, where there is only one room
	size         int  // of an event; 0: the option's
}

// watchers is how many connections each of the other rooms has, if the layout
// itself has only one room: without them nothing could be misdirected.
const watchers = 2

// open makes a swarm and connects it.
func (st *stage) open(ctx context.Context, l layout) error {
	if err := st.newSwarm(l); err != nil {
		return err
	}
	st.phase(fmt.Sprintf("connect %d", len(st.swarm.conns)))
	if _, err := st.swarm.open(ctx); err != nil {
		return err
	}
	return st.allReady()
}

// allReady reports an error unless everybody is subscribed.
func (st *stage) allReady() error {
	if c := st.swarm.counts(); c.ready != int64(len(st.swarm.conns)) {
		return fmt.Errorf("%d of %d connections ready: %s", c.ready, len(st.swarm.conns), strings.Join(st.swarm.problems(), "; "))
	}
	return nil
}

// newSwarm prepares the connections of a layout. The last of several rooms is in
// the other database and has the name of the first one: were databases mixed up,
// its events would come there.
func (st *stage) newSwarm(l layout) error {
	r := st.r
	databases := r.options.databases()
	first, last := databases[0], databases[len(databases)-1]
	var plan []roomPlan
	for i := range l.rooms {
		p := roomPlan{name: r.roomName(r.roomsUsed + i), db: first, members: l.conns / l.rooms, once: l.once}
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
	user := userName
	if !r.options.DistinctUsers {
		user = func(int) string { return userName(0) }
	}
	st.crossDatabase = st.crossDatabase || last != first && len(plan) > 1
	st.swarm, err = newSwarm(o, plan, user, func(n int, room *room) (string, error) { return r.token(secret, user(n), room) })
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

// endSwarm closes the connections and keeps what the checks are about.
func (st *stage) endSwarm() {
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
		st.given += r.given.Load()
		st.acked += r.acked.Load()
		st.refused += int64(len(r.refused))
		st.databases[r.db] = append(st.databases[r.db], stored{room: r.name, acked: r.acked.Load(), refused: len(r.refused) > 0})
	}
	st.problems = append(st.problems, s.problems()...)
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
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// add sums what lasts over several swarms.
func (t *tally) add(u *tally) {
	t.ended += u.ended
	t.recovered += u.recovered
	t.misattributed += u.misattributed
	t.misplaced += u.misplaced
	t.malformed += u.malformed
	t.unrecovered += u.unrecovered
	t.wrongAcknowledgement += u.wrongAcknowledgement
}

// checkTraffic judges what the clients saw.
func (st *stage) checkTraffic() {
	why := ""
	if len(st.problems) > 0 {
		why = "; " + strings.Join(st.problems, "; ")
	}
	f, t := st.faults, &st.tally
	ended := t.ended - st.expectedEnds
	st.check("ready = asked", st.ready == st.asked && ended <= 0, "%d of %d connections%s", st.ready, st.asked, because(st.ready != st.asked || ended > 0, why))
	fault := func(name string, n int64) { st.check(name, n == 0, "%d%s", n, because(n > 0, why)) }
	if st.given == 0 && st.name != "connect" {
		for _, name := range []string{"lost = 0", "duplicate = 0", "out of order = 0", "cross-room = 0", "cross-database = 0"} {
			st.notChecked(name, "nothing was published")
		}
		return
	}
	if st.given > 0 {
		fault("lost = 0", f.Lost)
		fault("duplicate = 0", f.Duplicate)
		fault("out of order = 0", f.OutOfOrder)
		fault("cross-room = 0", f.CrossRoom)
		if st.crossDatabase {
			fault("cross-database = 0", f.CrossDatabase)
		} else {
			st.notChecked("cross-database = 0", "there was one database")
		}
		fault("events say their true place and publisher", t.misattributed+t.misplaced+t.malformed)
		missing := st.given - st.acked
		st.check("acknowledged = published", missing == 0 && t.wrongAcknowledgement == 0, "%d of %d%s", st.acked, st.given, because(missing != 0 || t.wrongAcknowledgement > 0, why))
	}
	if st.reconnected {
		st.check("every position recovered", t.unrecovered == 0 && t.recovered > 0, "%d recovered, %d not%s", t.recovered, t.unrecovered, because(t.unrecovered > 0, why))
	}
}

func because(failed bool, why string) string {
	if !failed {
		return ""
	}
	return why
}

// connectionsLeft asks the server how many connections it still has, waiting for
// their closes to be handled.
func (st *stage) connectionsLeft(ctx context.Context) (int, error) {
	if st.server == nil {
		return 0, errors.New("the server may have others")
	}
	if st.server.process == nil {
		return 0, errors.New("the server does not run")
	}
	deadline := time.Now().Add(st.r.options.stall)
	for {
		m, err := st.source.fetch(ctx)
		if err != nil {
			return 0, err
		}
		left := int(m["hub_connections"])
		if left == 0 || time.Now().After(deadline) {
			return left, nil
		}
		if err := st.pause(ctx, 10*time.Millisecond, "wait for closes"); err != nil {
			return left, err
		}
	}
}

func (st *stage) check(name string, ok bool, format string, args ...any) {
	result := report.Passed
	if !ok {
		result = report.Failed
	}
	st.addCheck(name, result, fmt.Sprintf(format, args...))
}

func (st *stage) notChecked(name, why string) { st.addCheck(name, report.NotChecked, why) }

// fail notes an error that ended something; an interruption is no failure.
func (st *stage) fail(name string, err error) {
	if errors.Is(err, context.Canceled) {
		st.notChecked(name, "interrupted")
		return
	}
	st.addCheck(name, report.Failed, err.Error())
}

func (st *stage) addCheck(name string, result report.Result, detail string) {
	st.r.report.Checks = append(st.r.report.Checks, report.Check{Scenario: st.name, Name: name, Result: result, Detail: strings.TrimSpace(detail)})
}
