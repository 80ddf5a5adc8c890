package loadtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"hub/loadtest/fleet"
	"hub/loadtest/model"
	"hub/loadtest/report"
)

const (
	stateConns = 200
	stateRooms = 5
	// Operations of each client, over its socket and over HTTP.
	stateOverSocket = 40
	stateOverHTTP   = 20
)

// state lets clients do random operations in a few rooms, all at the same time, and
// holds what they were told and what they saw against a model.
func (st *stage) state(ctx context.Context) error {
	o := &st.r.options
	n := min(o.Conns, stateConns)
	if err := st.newSwarm(layout{conns: n, rooms: min(o.Rooms, stateRooms, n), operated: true}); err != nil {
		return err
	}
	first, second, err := st.operators()
	if err != nil {
		return err
	}
	defer first.fleet.Close()
	defer second.fleet.Close()
	if err := first.seed(ctx); err != nil {
		return err
	}
	begin := time.Now()
	done := make(chan error, 2)
	if err := first.start(ctx, done); err != nil {
		return err
	}
	// The others come when there is something to see, in the middle of it all.
	third := first.total() / 3
	err = st.swarm.wait(ctx, func(*counts) bool { return first.toDo() <= 2*third })
	if err == nil {
		err = st.swarm.reconnect(ctx, some(first.conns(), n/10))
	}
	if err == nil {
		err = second.start(ctx, done)
	} else {
		done <- nil
	}
	for range 2 {
		if failed := <-done; err == nil {
			err = failed
		}
	}
	if err != nil {
		return err
	}
	everybody := slices.Concat(first.operators, second.operators)
	if err := st.finishOperations(ctx, everybody); err != nil {
		return err
	}
	took := time.Since(begin)
	if err := st.allReady(); err != nil {
		return err
	}
	return st.judgeRooms(ctx, took)
}

// crew is operators with an HTTP client each.
type crew struct {
	stage     *stage
	operators []*operator
	fleet     *fleet.Fleet
	host      string
}

// operators divides the swarm into two halves that have members of each room.
func (st *stage) operators() (first, second *crew, err error) {
	s, o := st.swarm, &st.r.options
	first, second = &crew{stage: st}, &crew{stage: st}
	for _, c := range s.conns {
		p := newOperator(c, c.room, o.Seed)
		p.token = c.token
		p.http = max(1, stateOverHTTP/max(1, o.share))
		c.ready = p.fill
		half := first
		if slices.Index(c.room.members, c)%2 == 1 {
			half = second
		}
		half.operators = append(half.operators, p)
	}
	for _, h := range []*crew{first, second} {
		f, host, _, err := st.fleetOptions(len(h.operators))
		if err != nil {
			return nil, nil, err
		}
		h.host = host
		if h.fleet, err = fleet.New(f); err != nil {
			return nil, nil, err
		}
	}
	return first, second, nil
}

func (h *crew) conns() (list []*conn) {
	for _, p := range h.operators {
		list = append(list, p.conn)
	}
	return list
}

// overSocket is how many operations each does there.
func (h *crew) overSocket() int { return max(1, stateOverSocket/max(1, h.stage.r.options.share)) }

func (h *crew) total() int { return h.overSocket() * len(h.operators) }

// toDo is how much of it is left.
func (h *crew) toDo() (n int) {
	for _, p := range h.operators {
		n += p.busy()
	}
	return n
}

// seed makes the first operation of each room over HTTP, so that there is something
// in the first snapshots.
func (h *crew) seed(ctx context.Context) error {
	h.stage.phase("the first operations")
	seeded := make(map[*room]bool)
	err := h.exchange(ctx, func(p *operator) *model.Operation {
		if seeded[p.room] {
			return nil
		}
		seeded[p.room] = true
		return p.room.ledger.operation(p.conn.user, model.Step{Op: "create", Key: "k0", Value: p.value()}, model.Step{Op: "create", Key: "k1", Value: p.value()})
	})
	for r := range seeded {
		if err == nil {
			err = r.ledger.begun()
		}
	}
	return err
}

// exchange lets each operator do at most one operation over HTTP.
func (h *crew) exchange(ctx context.Context, make func(p *operator) *model.Operation) error {
	s := h.stage.swarm
	entries := map[int]*entry{}
	return h.fleet.Run(ctx, func(i int, dst []byte) []byte {
		p := h.operators[i]
		if entries[i] != nil {
			return dst
		}
		op := make(p)
		if op == nil {
			return dst
		}
		entries[i] = p.room.ledger.ask(op, s.now())
		return fleet.Request(dst, "POST", roomPath(p.room)+"/operations", h.host, p.token, "", operateBody(op))
	}, func(i int, a *fleet.Answer) { h.operators[i].told(entries[i].Of, entries[i], a) })
}

// start gives each client the snapshot of its room, lets it subscribe from there and
// do its operations over its socket; done gets the end of those over HTTP.
func (h *crew) start(ctx context.Context, done chan<- error) error {
	h.stage.phase(fmt.Sprintf("%d clients join from a snapshot", len(h.operators)))
	if err := h.join(ctx); err != nil {
		done <- nil
		return err
	}
	h.stage.phase("random operations")
	for _, p := range h.operators {
		p.add(h.overSocket())
	}
	go func() { done <- h.overHTTP(ctx) }()
	return nil
}

func (h *crew) join(ctx context.Context) error {
	var failed error
	asked := make([]bool, len(h.operators))
	err := h.fleet.Run(ctx, func(i int, dst []byte) []byte {
		if asked[i] {
			return dst
		}
		asked[i] = true
		p := h.operators[i]
		return fleet.Request(dst, "GET", roomPath(p.room)+"/snapshot", h.host, p.token, "", nil)
	}, func(i int, a *fleet.Answer) {
		if s, err := readSnapshot(a); err == nil {
			h.operators[i].conn.begin(s)
		} else {
			failed = err
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	h.stage.swarm.dropped += int64(len(h.operators)) // each must be continued from its snapshot
	return h.stage.swarm.openSome(ctx, h.conns())
}

// begin makes a connection that has not subscribed yet continue from a snapshot.
func (c *conn) begin(s *model.Snapshot) {
	c.room.mu.Lock()
	if c.room.epoch == "" {
		c.room.epoch = s.Epoch
	}
	c.room.mu.Unlock()
	c.shard.mu.Lock()
	defer c.shard.mu.Unlock()
	c.was, c.offset, c.next, c.view = true, s.Offset, s.Offset+1, stateOf(s)
}

// overHTTP does the operations that are left there.
func (h *crew) overHTTP(ctx context.Context) error {
	s := h.stage.swarm
	type asking struct {
		op *model.Operation
		e  *entry
	}
	under := make([]asking, len(h.operators))
	return h.fleet.Run(ctx, func(i int, dst []byte) []byte {
		dst, under[i].op, under[i].e = h.operators[i].next(dst, h.host, s.now())
		return dst
	}, func(i int, a *fleet.Answer) { h.operators[i].told(under[i].op, under[i].e, a) })
}

// finishOperations waits until nothing is under way, finds out what became of what
// had no answer, and waits until every member has everything.
func (st *stage) finishOperations(ctx context.Context, operators []*operator) error {
	st.phase("wait for every answer")
	err := st.swarm.wait(ctx, func(*counts) bool {
		return !slices.ContainsFunc(operators, func(p *operator) bool { return p.busy() > 0 })
	})
	if err != nil {
		return err
	}
	if err := st.settle(ctx, operators); err != nil {
		return err
	}
	return st.waitAll(ctx)
}

// judgeRooms makes the checks of all rooms with ledgers.
func (st *stage) judgeRooms(ctx context.Context, took time.Duration) error {
	st.phase("compare with the model")
	var answers, views, snapshots []string
	applied, refused, replayed, members := 0, 0, 0, 0
	rooms := st.swarm.ledgers()
	for _, r := range rooms {
		v := r.ledger.judge()
		answers = append(answers, v.Wrong...)
		views = append(views, r.wrongViews(v)...)
		text, err := st.snapshotDiffers(ctx, r, v)
		if err != nil {
			return err
		}
		if text != "" {
			snapshots = append(snapshots, text)
		}
		applied, refused, replayed, members = applied+len(v.Applied), refused+v.Refused, replayed+v.Replayed, members+len(r.members)
	}
	st.check("every answer to an operation and its event can be true", len(answers) == 0, "%s",
		orText(examples(answers), fmt.Sprintf("%d applied, %d refused, %d replayed", applied, refused, replayed)))
	st.check("every client's own state = model", len(views) == 0, "%s", orText(examples(views), fmt.Sprintf("clients: %d, rooms: %d", members, len(rooms))))
	st.check("snapshot of the server = model", len(snapshots) == 0, "%s", orText(examples(snapshots), fmt.Sprintf("rooms: %d", len(rooms))))
	count := func(name, title string, n int, definition string) {
		st.figure(report.Figure{Name: name, Title: title, Value: float64(n), Definition: definition}, 0)
	}
	count("operations_applied", "operations applied", applied, "Operations that were answered with a result of their own.")
	count("operations_refused", "operations refused", refused, "Attempts that were answered with a conflict or another refusal that the model says was right at some moment while they were under way.")
	count("operations_replayed", "operations replayed", replayed, "Attempts that were answered with the result of an earlier one, with the same id and content.")
	st.figure(report.Figure{Name: "operations_per_s", Title: "operations answered a second, random ones", Unit: "1/s", Better: report.Higher, Value: float64(applied+refused+replayed) / took.Seconds(),
		Definition: "Attempts divided by the time from the first to the last, snapshots, joins and reconnects of clients included."}, 0)
	return nil
}
