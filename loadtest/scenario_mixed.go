package loadtest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"hub/loadtest/fleet"
	"hub/loadtest/model"
	"hub/loadtest/report"
)

const (
	mixedOperations = 1000
	mixedReads      = 10_000
	mixedReaders    = 128
	mixedStock      = 100_000
	// mixedRepeats is how often it is done with mixedReaders. Once more there are as
	// many readers as reads.
	mixedRepeats = 3
	// mixedDeliveries are those of steady events, a second: one for each of 10,000
	// connections. Of few connections there are mixedEvents at most.
	mixedDeliveries = 10_000
	mixedEvents     = 1000
	// mixedLead is how long events go on before operations and reads begin.
	mixedLead = 200 * time.Millisecond
	// mixedQuiet bounds the time for which events go on without them.
	mixedQuiet = 3 * time.Second
	// readClients measure the rate of reads alone.
	readClients = 16
	// spareReaders is what readers leave of the descriptors of a process: a server has
	// two for a connection while it takes it over.
	spareReaders = 2 * spareDescriptors
	readTime     = 2 * time.Second
)

// mixedDatabases are fresh ones, one for each time; a server at -url has none, so
// there the room alone is fresh.
var mixedDatabases = []string{"mixed-1", "mixed-2", "mixed-3", "mixed-4"}

// mixed lets operations and reads happen at once while events are delivered.
func (st *stage) mixed(ctx context.Context) (err error) {
	var runs []*mixedRun
	defer func() { st.mixedChecks(runs, err) }()
	repeats := mixedRepeats
	if st.r.options.share > 1 {
		repeats = 1
	}
	for i := range repeats + 1 {
		if err := st.finishSwarm(ctx); err != nil {
			return err
		}
		m := st.newMixedRun(i, repeats)
		runs = append(runs, m)
		if err := m.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", m.part, err)
		}
	}
	st.mixedFigures(runs[:repeats], "", "")
	many := runs[repeats:]
	st.mixedFigures(many, "many_readers", fmt.Sprintf("%d readers", many[0].readers))
	return nil
}

// mixedRun is one time of it.
type mixedRun struct {
	// fixed after new
	stage                      *stage
	db, part                   string
	first                      bool
	operations, reads, readers int

	// of the goroutine of the scenario
	room      *room   // of the resources
	callers   []*conn // who operate, in turn
	asked     []*model.Operation
	fleet     *fleet.Fleet
	requests  [][]byte // of each reader, up to the key; behind it rest
	rest      [][]byte
	begun     int64 // on the swarm's clock
	wall      time.Duration
	writes    *hdrhistogram.Histogram // in microseconds
	ratio     float64                 // of delivery
	quiet     float64                 // p95 in ms
	during    float64
	ownShare  float64 // generator's processor time ÷ wall
	verdict   *model.Verdict
	wrong     []string // rewards, stock, snapshot, members' states
	perSecond float64  // reads alone

	// mu guards the rest
	mu       sync.Mutex
	rewarded []*model.Operation // those that were answered as applied
	latency  *hdrhistogram.Histogram
	answers  []string // what is wrong with answers to reads
	good     int      // answers
	readEnd  int64    // on the swarm's clock
}

// newMixedRun prepares the i-th run; behind so many repeats comes the one with many
// readers.
func (st *stage) newMixedRun(i, repeats int) *mixedRun {
	o := &st.r.options
	share := max(1, o.share)
	m := &mixedRun{stage: st, db: mixedDatabases[i], first: i == 0, operations: mixedOperations / share, reads: mixedReads / share, readers: mixedReaders,
		part: fmt.Sprintf("run %d of %d", i+1, repeats+1), writes: newHistogram(), latency: newHistogram()}
	if st.server == nil {
		m.db = ""
	}
	if i == repeats {
		m.readers = m.reads
	}
	if most := int(st.r.limit) - o.Conns - spareReaders; st.r.limit > 0 && m.readers > most {
		st.r.problem("scenario mixed: %d readers at once instead of %d: with %d connections held, descriptors of one process allow no more", max(1, most), m.readers, o.Conns)
		m.readers = max(1, most)
	}
	return m
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, slowest, 3) }

func (m *mixedRun) run(ctx context.Context) error {
	st, o := m.stage, &m.stage.r.options
	if err := st.open(ctx, layout{conns: o.Conns, rooms: o.Rooms, watched: true, shared: true, db: m.db}); err != nil {
		return err
	}
	m.room = st.swarm.rooms[len(st.swarm.rooms)-1]
	members := slices.DeleteFunc(slices.Clone(st.swarm.conns), func(c *conn) bool { return c.room.db != m.room.db || c.room == m.room })
	m.callers = some(members, m.operations)
	if len(m.callers) == 0 {
		m.callers = members // one is enough to say it all
	}
	if err := m.quietRound(ctx); err != nil {
		return err
	}
	if err := m.openReaders(ctx); err != nil {
		return err
	}
	defer m.fleet.Close()
	if err := m.measure(ctx); err != nil {
		return err
	}
	if err := m.repeat(ctx); err != nil {
		return err
	}
	if err := m.verify(ctx); err != nil {
		return err
	}
	if !m.first {
		return nil
	}
	return m.readAlone(ctx)
}

// steadyRate is that of events in all rooms together, a second: so many that
// mixedDeliveries come of them.
func (m *mixedRun) steadyRate() float64 {
	o := &m.stage.r.options
	return min(mixedDeliveries/float64(o.Conns)*float64(o.Rooms), mixedEvents) / float64(max(1, o.share))
}

func (m *mixedRun) shape(events int) report.Shape {
	o := &m.stage.r.options
	return report.Shape{Conns: o.Conns, Rooms: o.Rooms, Events: events}
}

// quietRound measures events alone.
func (m *mixedRun) quietRound(ctx context.Context) error {
	st, s, rooms := m.stage, m.stage.swarm, m.stage.swarm.published()
	d, rate := min(mixedQuiet, st.r.options.stream), m.steadyRate()
	st.r.progress.set(s, fmt.Sprintf("mixed: %s, events alone", m.part), time.Now().Add(d))
	total := int(rate * d.Seconds())
	t := traffic{part: "events alone", shape: m.shape(total / len(rooms)), answers: int64(total)}
	for i := range total {
		t.events += int64(len(rooms[i%len(rooms)].members))
	}
	t.send = func(at int64) error { return s.steady(ctx, rooms, rate, d, at) }
	round, err := st.round(ctx, t)
	if err == nil {
		m.quiet = round.Latency.P95MS
	}
	return err
}

// openReaders opens the readers' connections. Each has made a request before it
// counts: what a server does when a connection is new is no read.
func (m *mixedRun) openReaders(ctx context.Context) error {
	st := m.stage
	st.phase(m.part + ", open readers")
	f, err := st.newReaders(m.room, m.readers)
	if err != nil {
		return err
	}
	m.fleet, m.requests, m.rest = f.fleet, f.requests, f.rest
	warmed := make([]bool, m.readers)
	for begin := 0; begin < m.readers; begin += handshakes { // no more at once than sockets
		err := m.fleet.Run(ctx, func(i int, dst []byte) []byte {
			if i < begin || i >= begin+handshakes || warmed[i] {
				return dst
			}
			warmed[i] = true
			return m.get(i, dst, stockKey)
		}, func(_ int, a *fleet.Answer) {
			if a.Status != 404 {
				m.answers = append(m.answers, fmt.Sprintf("a read of what is not there yet was answered with status %d: %.200s", a.Status, a.Body))
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	stockKey  = "stock"
	rewardKey = "rewards/"
)

func (m *mixedRun) get(i int, dst []byte, key string) []byte {
	return append(append(append(dst, m.requests[i]...), key...), m.rest[i]...)
}

// measure does the operations and reads while events go on.
func (m *mixedRun) measure(ctx context.Context) error {
	st, s, l := m.stage, m.stage.swarm, m.room.ledger
	st.phase(fmt.Sprintf("%s, %d operations and %d reads of %d readers", m.part, m.operations, m.reads, m.readers))
	s.reset()
	started := time.Now().UTC()
	publishing, stop := context.WithCancel(ctx)
	defer stop()
	published := make(chan error, 1)
	go func() { published <- s.steady(publishing, s.published(), m.steadyRate(), time.Hour, s.now()) }()
	if err := sleep(ctx, mixedLead); err != nil {
		return err
	}
	before, at := st.usage(), s.now()
	s.watchEnd(at)
	m.begun = at
	// The first operation creates the stock, less what it takes: so each of the
	// operations is one version.
	if err := m.operate(0); err != nil {
		return err
	}
	if err := s.wait(ctx, func(*counts) bool { return l.waiting() == 0 }); err != nil {
		return err
	}
	if err := l.begun(); err != nil {
		stop()
		<-published
		return err
	}
	read := make(chan error, 1)
	go func() { read <- m.readAll(ctx) }()
	for i := 1; i < m.operations; i++ {
		if err := m.operate(i); err != nil {
			stop()
			return err
		}
	}
	err := <-read
	if err == nil {
		err = s.wait(ctx, func(*counts) bool { return l.waiting() == 0 })
	}
	after := st.usage()
	stop()
	<-published
	if err != nil {
		return err
	}
	end := m.readEnd
	for _, e := range l.asked {
		end = max(end, e.Answered)
		_ = m.writes.RecordValue(max(1, (e.Answered-e.Sent)/1000))
	}
	m.wall = time.Duration(end - at)
	if err := st.waitAll(ctx); err != nil {
		return err
	}
	m.note(started, before, after)
	return nil
}

// note keeps what the measurement says.
func (m *mixedRun) note(started time.Time, before, after usage) {
	st, s := m.stage, m.stage.swarm
	round := report.Round{N: len(st.out.Rounds) + 1, Part: fmt.Sprintf("operations and %d readers", m.readers), Started: started,
		Shape:  m.shape(int(m.steadyRate() * m.wall.Seconds() / float64(len(m.stage.swarm.published())))),
		WallMS: milliseconds(int64(m.wall)), Latency: report.Summarize(s.ending(), microsecond)}
	round.Deliveries = round.Latency.Count
	faults := s.faults()
	round.Faults, st.watched = difference(faults, st.watched), faults
	st.out.Rounds = append(st.out.Rounds, round)
	m.during = round.Latency.P95MS
	m.ratio = m.during / m.quiet
	m.ownShare = (after.own - before.own).Seconds() / m.wall.Seconds()
	if after.serverKnown && m.ownShare/float64(len(s.shards)+1) > saturated &&
		(after.server-before.server).Seconds()/m.wall.Seconds() < saturated {
		st.r.problem("scenario mixed, %s: the generator was busy all the time while the server was not; the server may be faster", m.part)
	}
	for _, q := range []struct {
		kind    string
		clients int
		h       *hdrhistogram.Histogram
	}{{"operation", len(m.callers), m.writes}, {"read", m.readers, m.latency}} {
		st.out.Requests = append(st.out.Requests, report.Requests{Part: m.part, Kind: q.kind, Clients: q.clients, Count: q.h.TotalCount(),
			WallMS: round.WallMS, Latency: report.Summarize(q.h, microsecond)})
	}
}

// operate asks for the i-th operation, over the socket of its caller.
func (m *mixedRun) operate(i int) error {
	c := m.callers[i%len(m.callers)]
	l, one, none := m.room.ledger, int64(-1), int64(0)
	take := model.Step{Op: "add", Key: stockKey, Path: "/amount", By: &one, Min: &none}
	if i == 0 {
		take = model.Step{Op: "create", Key: stockKey, Value: json.RawMessage(fmt.Sprintf(`{"amount":%d}`, mixedStock-1))}
	}
	op := l.operation(c.user, take)
	op.Steps = append(op.Steps, model.Step{Op: "create", Key: rewardKey + op.ID, Value: rewardOf(op)})
	m.asked = append(m.asked, op)
	return m.send(c, op)
}

func rewardOf(op *model.Operation) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"to":%q}`, op.User))
}

// send asks for an operation.
func (m *mixedRun) send(c *conn, op *model.Operation) error {
	l := m.room.ledger
	e := l.ask(op, m.stage.swarm.now())
	err := c.call("operate", operateCall(m.room.name, op), func(reply *message, at int64) {
		if l.replied(e, reply, at) {
			m.mu.Lock()
			m.rewarded = append(m.rewarded, op)
			m.mu.Unlock()
		}
	})
	if err != nil {
		l.lost(e)
		return fmt.Errorf("operation %s: %w", op.ID, err)
	}
	return nil
}

// operateCall is the data of rpc operate.
func operateCall(room string, op *model.Operation) []byte {
	body, err := json.Marshal(struct {
		Room string `json:"room"`
		*model.Operation
	}{room, op})
	if err != nil {
		panic(err) // there is nothing in it that cannot be written
	}
	return body
}

// repeat asks for everything once more: nothing may change.
func (m *mixedRun) repeat(ctx context.Context) error {
	st, l := m.stage, m.room.ledger
	st.phase(m.part + ", every operation again")
	for i, op := range m.asked {
		if err := m.send(m.callers[i%len(m.callers)], op); err != nil {
			return err
		}
	}
	return st.swarm.wait(ctx, func(*counts) bool { return l.waiting() == 0 })
}

// verify compares what was answered, what the watchers saw, and what is there now.
func (m *mixedRun) verify(ctx context.Context) error {
	st := m.stage
	if err := st.waitAll(ctx); err != nil {
		return err
	}
	m.verdict = m.room.ledger.judge()
	m.wrong = append(m.wrong, m.wrongSum()...)
	m.wrong = append(m.wrong, m.room.wrongViews(m.verdict)...)
	text, err := st.snapshotDiffers(ctx, m.room, m.verdict)
	if text != "" {
		m.wrong = append(m.wrong, text)
	}
	return err
}

// wrongSum says how the resources are not what so many operations leave.
func (m *mixedRun) wrongSum() (wrong []string) {
	state := m.verdict.State.Living()
	stock := model.Resource{Key: stockKey, Version: uint64(m.operations), Value: json.RawMessage(fmt.Sprintf(`{"amount":%d}`, mixedStock-m.operations))}
	if got := state[stockKey]; !got.Same(stock) {
		wrong = append(wrong, fmt.Sprintf("%s, should be %s", got, stock))
	}
	if n := len(state) - 1; n != m.operations {
		wrong = append(wrong, fmt.Sprintf("%d rewards, should be %d", n, m.operations))
	}
	if n := m.verdict.Replayed; n != m.operations {
		wrong = append(wrong, fmt.Sprintf("%d of %d repeats were answered as replayed", n, m.operations))
	}
	return wrong
}

// mixedChecks makes the checks of all runs; err says why the last one ended early.
func (st *stage) mixedChecks(runs []*mixedRun, err error) {
	const (
		answers = "every answer to an operation and its event can be true"
		sums    = "stock, version, rewards and repeats add up"
		reads   = "every read is answered with a valid value"
	)
	if err != nil {
		for _, name := range []string{answers, sums} {
			st.notChecked(name, incomplete)
		}
	}
	var judged, wrong, answered []string
	operations, good, asked := 0, 0, 0
	for _, m := range runs {
		if m.verdict != nil {
			judged, operations = append(judged, m.verdict.Wrong...), operations+len(m.verdict.Applied)
		}
		wrong, answered = append(wrong, m.wrong...), append(answered, m.answers...)
		good, asked = good+m.good, asked+m.reads
	}
	if err == nil {
		st.check(answers, len(judged) == 0, "%s", orText(examples(judged), fmt.Sprintf("%d operations, one after the other", operations)))
		st.check(sums, len(wrong) == 0, "%s", orText(examples(wrong), fmt.Sprintf("%d operations, in %d fresh rooms; each repeated once, nothing changed", operations, len(runs))))
	}
	if err == nil || len(answered) > 0 {
		st.check(reads, len(answered) == 0 && good == asked, "%d of %d%s", good, asked, because(len(answered) > 0, "; "+examples(answered)))
	} else {
		st.notChecked(reads, incomplete)
	}
}

// mixedFigures adds the medians of runs; name tells them apart from others of the
// scenario, unless empty.
func (st *stage) mixedFigures(runs []*mixedRun, name, title string) {
	add := func(metric report.Metric, value func(m *mixedRun) float64) {
		if name != "" {
			metric = metric.Named(name, title)
		}
		values := make([]float64, len(runs))
		for i, m := range runs {
			values[i] = value(m)
		}
		f := metric.Of(report.Median(values), st.r.options.Conns/max(1, st.r.options.share))
		if len(values) > 1 {
			f.Low, f.High = slices.Min(values), slices.Max(values)
		}
		st.figure(f, len(runs))
	}
	quantile := func(h *hdrhistogram.Histogram, q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	add(report.MixedTime, func(m *mixedRun) float64 { return m.wall.Seconds() })
	add(report.MixedRatio, func(m *mixedRun) float64 { return m.ratio })
	add(report.MixedDelivery, func(m *mixedRun) float64 { return m.during })
	add(report.WriteP50, func(m *mixedRun) float64 { return quantile(m.writes, 50) })
	add(report.WriteP95, func(m *mixedRun) float64 { return quantile(m.writes, 95) })
	add(report.ReadP50, func(m *mixedRun) float64 { return quantile(m.latency, 50) })
	add(report.ReadP95, func(m *mixedRun) float64 { return quantile(m.latency, 95) })
	add(report.MixedReads, func(m *mixedRun) float64 { return float64(m.reads) / (float64(m.readEnd-m.begun) / 1e9) })
	add(report.MixedGenerator, func(m *mixedRun) float64 { return m.ownShare })
	if name == "" {
		st.figure(report.Reads.Of(runs[0].perSecond, st.r.options.Conns), 0)
	}
}
