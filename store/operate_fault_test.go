package store_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hub/store"
)

// earn is an operation that counts and leaves a mark: however often it is tried,
// the count and the marks of a room agree. Every other one deletes the key "last".
func earn(room, id string) store.Operation {
	op := operation(room, id, add("count", "", 1), create("reward/"+id, `1`), set("last", `1`))
	if id[len(id)-1]%2 == 0 {
		op.Steps = append(op.Steps, del("last"))
	}
	return op
}

// lastKey is the key "last" in a state.
var lastKey = regexp.MustCompile(`; last \d+ 1`)

// checkEarned checks that room has done exactly the operations ids, its events make
// its state, and that each id gives the result that it had, which it returns.
func checkEarned(t *testing.T, db *store.DB, name string, ids []string) map[string]store.OperationResult {
	t.Helper()
	slices.Sort(ids)
	want := fmt.Sprintf("count %d %d", len(ids)+1, len(ids))
	for _, id := range ids {
		want += "; reward/" + id + " 1 1"
	}
	got := state(t, db, name)
	if earned := lastKey.ReplaceAllString(got, ""); earned != want {
		t.Errorf("%s has %s\nwant %s", name, earned, want)
	}
	folded := room{}
	page := history(t, db, name)
	for i, p := range page.Events {
		if p.Offset != uint64(i+1) {
			t.Errorf("%s: publication %d has offset %d", name, i+1, p.Offset)
		}
		folded.fold(t, p.Data)
	}
	if folded.String() != got || page.Top.Offset != uint64(len(page.Events)) {
		t.Errorf("%s has %s\nthe events up to %d make %s", name, got, page.Top.Offset, folded)
	}
	again := map[string]<-chan operated{}
	for _, id := range ids {
		again[id] = start(db, earn(name, id))
	}
	results := map[string]store.OperationResult{}
	for id, c := range again {
		r := await(t, c)
		if r.err != nil || !r.Replayed || len(r.Resources) != 3 || r.Offset > page.Top.Offset {
			t.Errorf("%s again: %+v", id, r)
		} else if data := string(page.Events[r.Offset-1].Data); !strings.HasPrefix(data, fmt.Sprintf(`{"operation":%q,`, id)) {
			t.Errorf("%s is at %d, where there is %s", id, r.Offset, data)
		}
		results[id] = r.OperationResult
	}
	if after := state(t, db, name); after != got {
		t.Errorf("repeating all changed %s to %s", got, after)
	}
	return results
}

// notOfOperations are the stages that the batches of TestOperationFaultAtEachStage
// do not pass.
var notOfOperations = map[string]bool{
	"insert id": true, "rollback to": true, "prune": true, "expire ids": true, "expired": true, "sweep": true, "probe": true,
	"rollback": true, "connect": true, // these only after another failure
}

// notOfAll are the stages that some of its operations pass without.
var notOfAll = map[string]bool{"insert room": true, "oldest": true, "delete resource": true, "put deleted": true, "drop deleted": true}

// A failure at each statement, COMMIT too: what is acknowledged is there once,
// what is refused is not there at all, and repeating it is right.
func TestOperationFaultAtEachStage(t *testing.T) {
	for _, stage := range store.Stages() {
		if notOfOperations[stage] {
			continue
		}
		for _, calls := range [][2]int{{1, 1}, {2, 2}, {1, lasting}} {
			t.Run(fmt.Sprintf("%s/%d-%d", stage, calls[0], calls[1]), func(t *testing.T) {
				t.Parallel()
				testOperationFault(t, stage, calls[0], calls[1])
			})
		}
	}
}

const faultOperations = 6 // in three rooms

func testOperationFault(t *testing.T, stage string, from, to int) {
	f, g := &faults{}, newGate("begin")
	o := options(t)
	o.SetMaintenance(time.Hour)
	rooms := []string{"a", "b", "c"}
	db := open(t, o)
	for _, name := range rooms[:2] { // the third one will be new
		operate(t, db, operation(name, "seed", create("count", `0`)))
	}
	shut(t, db)
	o.SetFault(func(stage string) error {
		g.fault(stage)
		return f.fault(stage)
	})
	db = open(t, o)
	held := g.hold(t, db, message("held", `1`))
	var seeds []<-chan operated
	for _, name := range rooms {
		seeds = append(seeds, start(db, operation(name, "seed", create("count", `0`))))
	}
	answers := map[string][]<-chan operated{}
	for i := range faultOperations {
		id := fmt.Sprint(i)
		for range 1 + i%2 {
			answers[id] = append(answers[id], start(db, earn(rooms[i%3], id)))
		}
	}
	f.set(from, to, stage)
	close(g.open)
	if a := wait(t, held); a.err != nil && !errors.Is(a.err, errInjected) {
		t.Error(a.err)
	}
	for _, c := range seeds {
		if a := await(t, c); a.err != nil && !errors.Is(a.err, errInjected) {
			t.Error(a.err)
		}
	}
	acknowledged := map[string]store.Result{}
	refused := 0
	for id, copies := range answers {
		for _, c := range copies {
			a := await(t, c)
			var missing *store.StepError
			switch {
			case a.err == nil && acknowledged[id].Offset != 0 && acknowledged[id].Offset != a.Offset:
				t.Errorf("%s is at %d and %d", id, acknowledged[id].Offset, a.Offset)
			case a.err == nil:
				acknowledged[id] = a.Result
			case errors.Is(a.err, store.ErrUnavailable) && errors.Is(a.err, errInjected),
				errors.As(a.err, &missing) && missing.Reason == store.Missing: // the seed was refused
				refused++
			default:
				t.Errorf("%s: %v", id, a.err)
			}
			select {
			case a := <-c:
				t.Errorf("second answer %+v", a)
			default:
			}
		}
	}
	if f.count() == 0 {
		t.Errorf("stage %s was not reached", stage)
	}
	if from == to && refused > 0 {
		t.Errorf("a single failure refused %d", refused)
	}
	if to == lasting && len(acknowledged) > 0 && stage != "committed" && !notOfAll[stage] { // which is stored
		t.Errorf("%d were acknowledged", len(acknowledged))
	}
	f.set(0, 0)
	for _, name := range rooms {
		operate(t, db, operation(name, "seed", create("count", `0`)))
		var ids []string
		for id := range acknowledged {
			if _, err := db.FindOperation(t.Context(), name, "u", id); err == nil {
				ids = append(ids, id)
			}
		}
		for id, r := range checkEarned(t, db, name, ids) {
			if want := acknowledged[id]; r.Offset != want.Offset || r.Epoch != want.Epoch {
				t.Errorf("%s is at %+v, acknowledged at %+v", id, r.Result, want)
			}
		}
	}
	all := map[string][]string{}
	for i := range faultOperations {
		name, id := rooms[i%3], fmt.Sprint(i)
		_, known := acknowledged[id]
		if r := operate(t, db, earn(name, id)); r.Replayed != known {
			t.Errorf("%s again: replayed %t, acknowledged %t", id, r.Replayed, known)
		}
		all[name] = append(all[name], id)
	}
	for _, name := range rooms {
		checkEarned(t, db, name, all[name])
	}
	if err := db.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	shut(t, db)
	if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
		t.Error(err)
	}
}

// A copy that was replayed in a batch that failed is the one that counts when the
// original fails alone too; its result is that of its own run.
func TestCopyOutlivesOriginal(t *testing.T) {
	f, g := &faults{}, newGate("begin")
	o := options(t)
	o.SetFault(func(stage string) error {
		g.fault(stage)
		return f.fault(stage)
	})
	db := open(t, o)
	g.hold(t, db, message("a", `1`))
	first := start(db, operation("a", "x", set("k", `"x"`)))
	other := start(db, operation("a", "y", set("k", `"y"`)))
	second := start(db, operation("a", "x", set("k", `"x"`)))
	f.set(2, 3, "commit") // of the batch of three, and of the original alone
	close(g.open)
	if a := await(t, first); !errors.Is(a.err, errInjected) {
		t.Errorf("original: %+v", a)
	}
	if a := await(t, other); a.err != nil || list(a.Resources) != `k 1 "y"` {
		t.Errorf("other: %+v", a)
	}
	if a := await(t, second); a.err != nil || a.Replayed || list(a.Resources) != `k 2 "x"` {
		t.Errorf("copy: %+v", a)
	}
}

// A full disk is an explicit error, reads go on, and operations resume by
// themselves when there is room again.
func TestDiskFullWhileOperating(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	pages := int64(1 << 30)
	f := &faults{}
	o := options(t)
	o.SetFault(f.fault)
	o.SetMaxPages(func() int64 {
		mu.Lock()
		defer mu.Unlock()
		return pages
	})
	db := open(t, o)
	operate(t, db, operation("a", "seed", create("count", `0`)))
	mu.Lock()
	pages = int64(count(t, o.Path, "PRAGMA page_count")) + 20
	mu.Unlock()
	f.set(1, 1, "begin") // makes the writer connect again, to the small disk
	big := func(id string) store.Operation {
		op := earn("a", id)
		op.Publisher.Data = []byte(`"` + strings.Repeat("x", 2_000) + `"`)
		return op
	}
	var done, refused []string
	for i := range 30 {
		id := fmt.Sprint(i)
		switch a := await(t, start(db, big(id))); {
		case a.err == nil:
			done = append(done, id)
		case errors.Is(a.err, store.ErrUnavailable):
			refused = append(refused, id)
		default:
			t.Fatal(a.err)
		}
	}
	if len(done) < 3 || len(refused) < 10 {
		t.Fatalf("%d done, %d refused", len(done), len(refused))
	}
	checkEarned(t, db, "a", done)
	mu.Lock()
	pages = 1 << 30
	mu.Unlock()
	for _, id := range refused {
		if r := operate(t, db, big(id)); r.Replayed {
			t.Errorf("%s was refused: %+v", id, r)
		}
	}
	checkEarned(t, db, "a", append(done, refused...))
	if err := db.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
}

// childOperate operates from 16 goroutines until it is killed and prints a line
// for each acknowledgement.
func childOperate(path string) {
	db, err := store.Open(store.Options{Path: path, Retention: keep(1<<40, 0), WriteTimeout: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	for g := range 16 {
		go func() {
			name := fmt.Sprintf("room%d", g%killRooms)
			for i := -1; ; i++ {
				op := earn(name, fmt.Sprintf("%s-%d-%d", os.Getenv("STORE_TEST_RUN"), g, i))
				if i < 0 {
					op = operation(name, "seed", create("count", `0`))
				}
				a := <-start(db, op)
				if a.err != nil {
					log.Fatal(a.err)
				}
				if i >= 0 {
					mu.Lock()
					fmt.Printf("%s %s %d %s\n", name, op.ID, a.Offset, a.Epoch)
					mu.Unlock()
				}
			}
		}()
	}
	select {}
}

// After kill -9 in the middle of operations, each acknowledged one is there once
// with all that it did; what was not acknowledged is there whole or not at all;
// and all ids give their results.
func TestKillWhileOperating(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Retention = keep(1<<40, 0)
	acknowledged := map[string]string{} // id → room, offset and epoch
	for run := range 6 {
		for _, line := range killed(t, "operate", o.Path, run, 1+run*61) {
			var name, id, offset, epoch string
			if _, err := fmt.Sscan(line, &name, &id, &offset, &epoch); err != nil {
				t.Fatal(err)
			}
			acknowledged[id] = name + " " + offset + " " + epoch
		}
		if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
			t.Fatalf("run %d: %v", run, err)
		}
		db := open(t, o)
		stored := map[string]string{}
		for i := range killRooms {
			name := fmt.Sprintf("room%d", i)
			if position(t, db, name).Offset == 0 {
				continue // killed before its first operation
			}
			page, err := db.Resources(t.Context(), name, store.ResourceQuery{Prefix: "reward/"})
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, r := range page.Resources {
				ids = append(ids, strings.TrimPrefix(r.Key, "reward/"))
			}
			for id, r := range checkEarned(t, db, name, ids) {
				stored[id] = fmt.Sprintf("%s %d %s", name, r.Offset, r.Epoch)
			}
		}
		for id, want := range acknowledged {
			if stored[id] != want {
				t.Errorf("%s: acknowledged at %s, stored at %q", id, want, stored[id])
			}
		}
		shut(t, db)
	}
}
