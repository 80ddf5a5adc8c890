package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hub/store"
)

// lasting is a last call that never comes.
const lasting = 1 << 30

// faults fails chosen calls of some stages.
type faults struct {
	mu     sync.Mutex
	stages []string
	from   int // the first call that fails, counted from 1
	to     int // the last one
	calls  int
	hits   int
}

func (f *faults) set(from, to int, stages ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stages, f.from, f.to, f.calls = stages, from, to, 0
}

func (f *faults) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

func (f *faults) fault(stage string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.stages, stage) {
		return nil
	}
	f.calls++
	if f.calls < f.from || f.calls > f.to {
		return nil
	}
	f.hits++
	return fmt.Errorf("%w: %s", errInjected, stage)
}

// unreached are the stages that the batches of TestFaultAtEachStage do not pass.
var unreached = map[string]bool{
	"rollback to": true, "prune": true, "expire ids": true, "expired": true, "sweep": true, "probe": true, "replace id": true,
	"resource": true, "put resource": true, "delete resource": true, "put deleted": true, "drop deleted": true, // these by operations
	"rollback": true, "connect": true, // these only after another failure
}

func TestFaultAtEachStage(t *testing.T) {
	for _, stage := range store.Stages() {
		if unreached[stage] {
			continue
		}
		for _, calls := range [][2]int{{1, 1}, {2, 2}, {1, 3}} {
			t.Run(fmt.Sprintf("%s/%d-%d", stage, calls[0], calls[1]), func(t *testing.T) {
				t.Parallel()
				testFault(t, stage, calls[0], calls[1])
			})
		}
	}
}

func testFault(t *testing.T, stage string, from, to int) {
	var l ledger
	f, g := &faults{}, newGate("begin")
	o := options(t)
	o.Committed = l.committed
	o.SetMaintenance(time.Hour)
	seeded := open(t, o)
	seed := publish(t, seeded, message("b", `"seed"`))
	shut(t, seeded)
	o.SetFault(func(stage string) error {
		g.fault(stage)
		return f.fault(stage)
	})
	db := open(t, o)
	answers := map[string]<-chan answer{`"first"`: g.hold(t, db, message("a", `"first"`))}
	rooms := []string{"a", "b", "c"}
	for i := range 30 {
		p := message(rooms[i%3], fmt.Sprintf(`"%d"`, i))
		if i%2 == 0 {
			p.Caller, p.ID = "u", fmt.Sprint(i)
		}
		answers[string(p.Publication.Data)] = ask(db, p)
	}
	again := message("a", `"0"`)
	again.Caller, again.ID = "u", "0"
	replayed := ask(db, again)
	f.set(from, to, stage)
	close(g.open)
	acknowledged := map[string]store.Result{`"seed"`: seed}
	var refused []string
	for data, c := range answers {
		a := wait(t, c)
		switch {
		case a.err == nil:
			acknowledged[data] = a.Result
		case errors.Is(a.err, store.ErrUnavailable) && errors.Is(a.err, errInjected):
			refused = append(refused, data)
		default:
			t.Errorf("%s: %v", data, a.err)
		}
	}
	if a := wait(t, replayed); a.err == nil && a.Offset != acknowledged[`"0"`].Offset && acknowledged[`"0"`].Offset != 0 {
		t.Errorf("replay: %+v, first %+v", a, acknowledged[`"0"`])
	} else if a.err == nil && !a.Replayed { // the first failed, so this one is it
		acknowledged[`"0"`] = a.Result
		refused = slices.DeleteFunc(refused, func(data string) bool { return data == `"0"` })
	}
	if f.count() == 0 && from == 1 {
		t.Errorf("stage %s was not reached", stage)
	}
	if from == to && len(refused) > 0 && from == 1 {
		t.Errorf("a single failure refused %v", refused)
	}
	f.set(0, 0)
	acknowledged[`"last"`] = publish(t, db, message("a", `"last"`))
	verify(t, db, &l, rooms, acknowledged, refused)
	if err := db.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	for _, c := range answers {
		select {
		case a := <-c:
			t.Errorf("second answer %+v", a)
		default:
		}
	}
	shut(t, db)
	if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
		t.Error(err)
	}
}

// A failure that lasts: everything is refused, nothing is stored, readiness
// tells, reads go on, and writing resumes by itself.
func TestLastingFault(t *testing.T) {
	for _, stage := range []string{"begin", "insert", "counter", "commit", "connect"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			var l ledger
			f := &faults{}
			o := options(t)
			o.Committed = l.committed
			o.SetFault(f.fault)
			db := open(t, o)
			acknowledged := map[string]store.Result{`"before"`: publish(t, db, message("a", `"before"`))}
			if stage == "connect" {
				f.set(1, lasting, "begin", "connect") // it connects only after a failure
			} else {
				f.set(1, lasting, stage)
			}
			a := wait(t, ask(db, message("a", `"during"`)))
			if !errors.Is(a.err, store.ErrUnavailable) || !errors.Is(a.err, errInjected) {
				t.Errorf("publish: %v", a.err)
			}
			if stage != "insert" && stage != "counter" { // which a probe does not need
				if err := db.Ready(); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("ready: %v", err)
				}
			}
			if top := position(t, db, "a").Offset; top != 1 {
				t.Errorf("top is %d", top)
			}
			f.set(0, 0)
			if err := db.Ready(); err != nil {
				t.Errorf("ready afterwards: %v", err)
			}
			acknowledged[`"after"`] = publish(t, db, message("a", `"after"`))
			verify(t, db, &l, []string{"a"}, acknowledged, []string{`"during"`})
		})
	}
}

// COMMIT reports an error and the file cannot be read at first: the answer waits
// until it is the truth.
func TestCommitInDoubt(t *testing.T) {
	for _, stage := range []string{"commit", "committed"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			var l ledger
			var mu sync.Mutex
			armed, blind := false, 0
			o := options(t)
			o.Committed = l.committed
			o.SetFault(func(s string) error {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case armed && s == stage:
					armed, blind = false, 4
					return errInjected
				case blind > 0 && (s == "connect" || s == "room"):
					blind--
					return errInjected
				}
				return nil
			})
			db := open(t, o)
			acknowledged := map[string]store.Result{`"1"`: publish(t, db, message("a", `"1"`))}
			mu.Lock()
			armed = true
			mu.Unlock()
			acknowledged[`"2"`] = publish(t, db, message("a", `"2"`))
			acknowledged[`"3"`] = publish(t, db, message("a", `"3"`))
			verify(t, db, &l, []string{"a"}, acknowledged, nil)
		})
	}
}

// Close with a writer that hangs gives up when its context ends, and what waits
// is answered.
func TestCloseGivesUp(t *testing.T) {
	g := newGate("commit")
	o := options(t)
	o.SetFault(g.fault)
	db, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	first := g.hold(t, db, message("a", `1`))
	second := ask(db, message("a", `2`))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
	if a := wait(t, second); !errors.Is(a.err, store.ErrClosed) {
		t.Errorf("waiting publication: %v", a.err)
	}
	close(g.open)
	if a := wait(t, first); a.err != nil {
		t.Errorf("publication under way: %v", a.err)
	}
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	var l ledger
	var mu sync.Mutex
	pages := int64(1 << 30)
	o := options(t)
	o.Committed = l.committed
	o.SetMaxPages(func() int64 {
		mu.Lock()
		defer mu.Unlock()
		return pages
	})
	f := &faults{}
	o.SetFault(f.fault)
	db := open(t, o)
	acknowledged := map[string]store.Result{`"first"`: publish(t, db, message("a", `"first"`))}
	mu.Lock()
	pages = int64(count(t, o.Path, "PRAGMA page_count")) + 12
	mu.Unlock()
	f.set(1, 1, "begin") // makes the writer connect again, to the small disk
	var refused []string
	data := func(i int) string { return fmt.Sprintf(`"%d%01000d"`, i, 0) }
	for i := range 60 {
		a := wait(t, ask(db, message("a", data(i))))
		switch {
		case a.err == nil:
			acknowledged[data(i)] = a.Result
		case errors.Is(a.err, store.ErrUnavailable):
			refused = append(refused, data(i))
		default:
			t.Fatal(a.err)
		}
	}
	if len(refused) < 20 || len(acknowledged) < 10 {
		t.Fatalf("%d refused, %d acknowledged", len(refused), len(acknowledged))
	}
	verify(t, db, &l, []string{"a"}, acknowledged, refused)
	mu.Lock()
	pages = 1 << 30
	mu.Unlock()
	acknowledged[data(60)] = publish(t, db, message("a", data(60)))
	verify(t, db, &l, []string{"a"}, acknowledged, refused)
	if err := db.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
}

// A constraint failure undoes its own operation, a new room too, and nothing else.
func TestConstraintFailure(t *testing.T) {
	raw, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_, constraint := raw.Exec("CREATE TABLE t (x NOT NULL); INSERT INTO t VALUES (NULL)")
	var l ledger
	var inserts atomic.Int64
	g := newGate("begin")
	o := options(t)
	o.Committed = l.committed
	o.SetFault(func(stage string) error {
		g.fault(stage)
		if stage == "insert" && inserts.Add(1) == 4 { // room a has its turn first
			return constraint
		}
		return nil
	})
	db := open(t, o)
	g.hold(t, db, message("a", `"1"`))
	bad := message("b", `"3"`)
	bad.Caller, bad.ID = "u", "x"
	second, third, fourth := ask(db, message("a", `"2"`)), ask(db, bad), ask(db, message("a", `"4"`))
	close(g.open)
	if a := wait(t, third); !errors.Is(a.err, store.ErrUnavailable) || !errors.Is(a.err, constraint) {
		t.Errorf("the one that failed: %+v", a)
	}
	acknowledged := map[string]store.Result{`"2"`: wait(t, second).Result, `"4"`: wait(t, fourth).Result}
	if s := db.Stats(); s.Rooms != 1 || s.Failed != 0 {
		t.Errorf("stats %+v", s)
	}
	verify(t, db, &l, []string{"a", "b"}, acknowledged, []string{`"3"`})
	again := publish(t, db, bad)
	if again.Offset != 1 || again.Replayed {
		t.Errorf("the same id again: %+v", again)
	}
	acknowledged[`"3"`] = again
	verify(t, db, &l, []string{"a", "b"}, acknowledged, nil)
}

// When the disk fails during COMMIT and until Close gives up, nobody can know
// what is stored: no promise is made.
func TestCloseGivesUpOnUnknownOutcome(t *testing.T) {
	for _, stage := range []string{"commit", "committed"} {
		o := options(t)
		var broken atomic.Bool
		failing := make(chan struct{})
		var once sync.Once
		o.SetFault(func(s string) error {
			switch {
			case s == stage:
				broken.Store(true)
				return errInjected
			case s == "connect" && broken.Load():
				once.Do(func() { close(failing) })
				return errInjected
			}
			return nil
		})
		db, err := store.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		c := ask(db, message("a", `1`))
		<-failing
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := db.Close(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("close: %v", err)
		}
		if a := wait(t, c); !errors.Is(a.err, store.ErrUnknownOutcome) || errors.Is(a.err, store.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnknownOutcome and not ErrUnavailable", stage, a.err)
		}
	}
}
