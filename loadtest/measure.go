package loadtest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"hub/loadtest/report"
)

// usage is the processor time of server, or floor's writer, and generator at one
// moment.
type usage struct {
	server, own           time.Duration
	serverKnown, ownKnown bool
}

// per is what each of n deliveries took since before, in microseconds; 0 where
// that is not known.
func (u usage) per(before usage, n int64) (server, own float64) {
	if u.serverKnown && before.serverKnown && u.server >= before.server {
		server = micro(u.server-before.server) / float64(n)
	}
	if u.ownKnown && before.ownKnown {
		own = micro(u.own-before.own) / float64(n)
	}
	return server, own
}

func (st *stage) usage() (u usage) {
	u.server, u.serverKnown = st.server.cpu()
	u.own, u.ownKnown = ownCPU()
	return u
}

// traffic is what a round sends and what must come of it.
type traffic struct {
	part    string
	shape   report.Shape
	send    func(at int64) error
	events  int64 // deliveries to wait for
	answers int64 // acknowledgements to wait for
}

// round sends, waits until all has arrived and notes the round.
func (st *stage) round(ctx context.Context, t traffic) (*report.Round, error) {
	s := st.swarm
	s.reset()
	before, started, refused := st.usage(), time.Now().UTC(), s.refusedDeliveries()
	missing := s.counts().missing // for good, by now
	at := s.now()
	err := t.send(at)
	if err == nil {
		err = s.wait(ctx, func(c *counts) bool {
			events := t.events
			if c.refused > 0 {
				events -= s.refusedDeliveries() - refused
			}
			return c.got+c.missing-missing >= events && c.acks+c.refused >= t.answers
		})
	}
	after, c := st.usage(), s.counts()
	round := report.Round{
		N: len(st.out.Rounds) + 1, Part: t.part, Started: started, Shape: t.shape,
		Deliveries: c.got, WallMS: milliseconds(max(0, c.last-at)), Latency: report.Summarize(s.latency(), microsecond),
	}
	st.account(&round, before, after)
	faults := s.faults()
	if ctx.Err() != nil { // the rest is on its way
		faults.Lost = st.watched.Lost
	}
	round.Faults = difference(faults, st.watched)
	st.watched = faults
	st.r.progress.faults.Add(round.Faults.Total())
	st.out.Rounds = append(st.out.Rounds, round)
	return &st.out.Rounds[len(st.out.Rounds)-1], err
}

// refusedDeliveries is how many deliveries the refused events would have been.
func (s *swarm) refusedDeliveries() (n int64) {
	for _, r := range s.rooms {
		r.mu.Lock()
		n += int64(len(r.refused) * len(r.members))
		r.mu.Unlock()
	}
	return n
}

func difference(a, b report.Faults) report.Faults {
	return report.Faults{
		Lost: max(0, a.Lost-b.Lost), Duplicate: a.Duplicate - b.Duplicate, OutOfOrder: a.OutOfOrder - b.OutOfOrder,
		CrossRoom: a.CrossRoom - b.CrossRoom, CrossDatabase: a.CrossDatabase - b.CrossDatabase,
	}
}

const (
	// saturated is the part of its threads' time from which a process counts as the
	// bottleneck.
	saturated = 0.9
	// judged is the milliseconds that a round must last for that to be told.
	judged = 20
)

// account notes what a round cost, and whether the generator held it up: its
// threads were busy while the server was not.
func (st *stage) account(round *report.Round, before, after usage) {
	wall := round.WallMS * 1000
	if round.Deliveries == 0 || wall <= 0 {
		return
	}
	own, server := micro(after.own-before.own), micro(after.server-before.server)
	round.ServerCPU, round.GeneratorCPU = after.per(before, round.Deliveries)
	round.GeneratorLimited = after.ownKnown && after.serverKnown && round.WallMS > judged &&
		own/wall/float64(len(st.swarm.shards)) > saturated && server/wall/float64(runtime.NumCPU()) < saturated/2
	if round.GeneratorLimited {
		st.r.problem("scenario %s, round %d: the generator was busy all the time while the server was not; the server may be faster", st.name, round.N)
	}
}

func micro(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// burst sends so many events to every room at once.
func (st *stage) burst(ctx context.Context, part string, shape report.Shape, events int) (*report.Round, error) {
	return st.burstIn(ctx, part, shape, st.swarm.rooms, events)
}

// burstIn is burst in some of the rooms.
func (st *stage) burstIn(ctx context.Context, part string, shape report.Shape, rooms []*room, events int) (*report.Round, error) {
	s := st.swarm
	t := traffic{part: part, shape: shape, answers: int64(events * len(rooms))}
	for _, r := range rooms {
		for _, c := range r.members {
			if !c.stalled { // only this goroutine stalls connections
				t.events += int64(events)
			}
		}
	}
	t.send = func(at int64) error {
		for _, r := range rooms {
			if err := r.publish(events, at); err != nil {
				return err
			}
		}
		return nil
	}
	round, err := st.round(ctx, t)
	if c := s.counts(); err == nil && c.got > 0 && st.eventBytes == 0 {
		st.eventBytes = float64(c.bytes) / float64(c.got)
	}
	return round, err
}

// bursts makes rounds with pauses between them.
func (st *stage) bursts(ctx context.Context, part string, shape report.Shape, n int, gap time.Duration) error {
	for i := range n {
		if i > 0 {
			if err := st.pause(ctx, gap, fmt.Sprintf("%sround %d of %d", prefix(part), i+1, n)); err != nil {
				return err
			}
		}
		st.phase(fmt.Sprintf("%sround %d of %d", prefix(part), i+1, n))
		if _, err := st.burst(ctx, part, shape, shape.Events); err != nil {
			return err
		}
	}
	return st.profileBursts(ctx, shape)
}

func prefix(part string) string {
	if part == "" {
		return ""
	}
	return part + ", "
}

// steady sends events to rooms in turn, at rate a second altogether, for d from a
// time on the swarm's clock. It returns when all were sent.
func (s *swarm) steady(ctx context.Context, rooms []*room, rate float64, d time.Duration, from int64) error {
	total := int(rate * d.Seconds())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range total {
		due := from + int64(float64(i)*1e9/rate)
		if wait := due - s.now(); wait > 0 {
			timer.Reset(time.Duration(wait))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := rooms[i%len(rooms)].publish(1, due); err != nil {
			return err
		}
	}
	return nil
}

// floored says whether there is a floor to compare with.
func (o *Options) floored() bool { return floorSupported && !o.TLS && o.URL == "" }

// floors measures the floor of each shape and has it noted.
func (st *stage) floors(ctx context.Context, shapes []report.Shape, gap time.Duration, note func(*report.Floor, *report.FloorRun)) {
	if !st.r.options.floored() {
		return
	}
	for i, shape := range shapes {
		if ctx.Err() != nil {
			return
		}
		if i >= len(st.out.Floors) {
			st.out.Floors = append(st.out.Floors, report.Floor{Shape: shape})
		}
		run, size, err := st.r.measureFloor(ctx, shape, gap)
		if err != nil {
			st.r.problem("scenario %s: %s", st.name, oneLine(err))
			continue
		}
		note(&st.out.Floors[i], run)
		st.floorSize(size)
	}
}

// floorSize warns when the floor's events are not as large as the server's.
func (st *stage) floorSize(size float64) {
	got := st.eventBytes
	if got > 0 && (size < 0.9*got || size > 1.1*got) {
		st.r.problem("scenario %s: an event of the server has %.0f bytes, of the floor %.0f: the ratio is not fair", st.name, got, size)
	}
}

// ratios adds the figures that the floor and the rounds give, and says where they
// are not worth much.
func (st *stage) ratios() {
	largest := report.Shape{}
	for _, f := range st.out.Floors {
		if f.Conns >= largest.Conns {
			largest = f.Shape
		}
	}
	for _, f := range st.out.Floors {
		ratio, ok := st.out.FloorRatio(f.Shape)
		if !ok {
			continue
		}
		metric, which := report.FloorRatio, ""
		if f.Shape != largest {
			which = fmt.Sprintf("%d connections", f.Conns)
			metric = metric.Named(fmt.Sprint(f.Conns), which)
		}
		figure := metric.Of(ratio.Median, f.Conns)
		figure.Low, figure.High = ratio.Low, ratio.High
		st.figure(figure, len(st.roundsOf(f.Shape, "")))
		st.doubtFloor(f, ratio.Median, which)
	}
}

// driftAllowed is how far the floors before and after may be apart.
const driftAllowed = 1.25

// doubtFloor tells of a floor that cannot have been one.
func (st *stage) doubtFloor(f report.Floor, ratio float64, which string) {
	where := "scenario " + st.name
	if which != "" {
		where += ", " + which
	}
	if ratio < 1 {
		st.r.problem("%s: delivery was faster than the floor (%.2f times its p95): the machine was not steady", where, ratio)
	}
	if f.Before == nil || f.After == nil {
		return
	}
	before, after := f.Before.Latency.P95MS, f.After.Latency.P95MS
	if max(before, after) > driftAllowed*min(before, after) {
		st.r.problem("%s: the floor's p95 was %.1f ms before and %.1f ms after: the machine was not steady", where, before, after)
	}
}

// roundsOf are the rounds of a shape; part, unless empty, selects further.
func (st *stage) roundsOf(shape report.Shape, part string) (list []report.Round) {
	for _, round := range st.out.Rounds {
		if round.Shape == shape && (part == "" || round.Part == part) && round.Deliveries > 0 {
			list = append(list, round)
		}
	}
	return list
}

// medianOf is the median of a value of rounds.
func medianOf(rounds []report.Round, value func(*report.Round) float64) float64 {
	values := make([]float64, len(rounds))
	for i := range rounds {
		values[i] = value(&rounds[i])
	}
	return report.Median(values)
}

func p95(r *report.Round) float64 { return r.Latency.P95MS }

func (st *stage) figure(f report.Figure, rounds int) {
	f.Rounds = rounds
	st.out.Figures = append(st.out.Figures, f)
}

// deliveryFigures adds those of the rounds of a shape; name tells it apart from
// others of the scenario, unless empty.
func (st *stage) deliveryFigures(shape report.Shape, name, title string) {
	rounds := st.roundsOf(shape, "")
	if len(rounds) == 0 {
		return
	}
	add := func(m report.Metric, value func(*report.Round) float64) {
		if v := medianOf(rounds, value); v > 0 {
			if name != "" {
				m = m.Named(name, title)
			}
			st.figure(m.Of(v, shape.Conns), len(rounds))
		}
	}
	add(report.DeliveryP95, p95)
	add(report.DeliveryP99, func(r *report.Round) float64 { return r.Latency.P99MS })
	add(report.ServerCPU, func(r *report.Round) float64 { return r.ServerCPU })
	add(report.GeneratorCPU, func(r *report.Round) float64 { return r.GeneratorCPU })
}

// openAndIdle makes a swarm and notes what its connections cost.
func (st *stage) openAndIdle(ctx context.Context, l layout) error {
	before, known := st.server.memory("VmRSS")
	first := st.asked == 0 // later ones use memory that was there already
	if err := st.newSwarm(l); err != nil {
		return err
	}
	n := len(st.swarm.conns)
	st.phase(fmt.Sprintf("connect %d", n))
	profiled := st.profile(ctx, "connect", time.Second)
	used := st.usage()
	took, err := st.swarm.open(ctx)
	if err != nil {
		return err
	}
	if err := st.allReady(); err != nil {
		return err
	}
	now := st.usage()
	ready := report.ReadyTime
	if l.conns > ready.MinConns+watchers*2 {
		ready.Target = 0 // it is the time of so many, not of more
	}
	st.figure(ready.Of(took.Seconds(), l.conns), 0)
	st.figure(report.ConnectRate.Of(float64(n)/took.Seconds(), n), 0)
	if now.serverKnown && used.serverKnown {
		st.figure(report.Figure{Name: "server_cpu_us_per_connect", Title: "server CPU per connection made ready", Unit: "us", Better: report.Lower,
			Value:      micro(now.server-used.server) / float64(n),
			Definition: "User and system time of the server from the first connect(2) until the last connection was ready, divided by their number."}, 0)
	}
	if err := profiled(); err != nil {
		return err
	}
	if !known || !first {
		return nil
	}
	if err := st.pause(ctx, st.r.options.settle, "idle"); err != nil {
		return err
	}
	if idle, ok := st.server.memory("VmRSS"); ok {
		metric := report.MemoryPerConn
		if st.swarm.options.tls != nil {
			metric = report.MemoryPerTLSConn
		}
		st.figure(metric.Of(float64(idle-before)/1024/float64(n), n), 0)
	}
	return st.saveHeap(ctx)
}

// some picks n of conns that are not publishers, evenly spread.
func some(conns []*conn, n int) (list []*conn) {
	members := slices.DeleteFunc(slices.Clone(conns), func(c *conn) bool { return c.room.publisher == c })
	n = min(n, len(members))
	for i := range n {
		list = append(list, members[i*len(members)/n])
	}
	return list
}

// waitAll returns when every event that was sent has arrived everywhere.
func (st *stage) waitAll(ctx context.Context) error {
	s := st.swarm
	looked := time.Time{}
	return s.wait(ctx, func(*counts) bool {
		if time.Since(looked) < 50*time.Millisecond {
			return false
		}
		looked = time.Now()
		if f := s.faults(); f.Lost > 0 {
			return false
		}
		return s.acknowledged()
	})
}

// acknowledged reports whether every event has an answer.
func (s *swarm) acknowledged() bool {
	return !slices.ContainsFunc(s.rooms, func(r *room) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.acked.Load()+uint64(len(r.refused)) < r.given.Load()
	})
}
