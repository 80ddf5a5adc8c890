package store_test

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"modernc.org/sqlite"

	"hub/store"
)

// verifyTail is verify for a room that keeps its last size publications: data of
// all acknowledged ones by offset.
func verifyTail(t *testing.T, db *store.DB, l *ledger, room string, size int, acknowledged map[uint64]string) {
	t.Helper()
	page := history(t, db, room)
	top := len(acknowledged)
	if page.Top.Offset != uint64(top) || len(page.Events) != min(top, size) {
		t.Fatalf("%s: top %d with %d publications, acknowledged are %d", room, page.Top.Offset, len(page.Events), top)
	}
	for i, p := range page.Events {
		if want := uint64(top - len(page.Events) + i + 1); p.Offset != want || string(p.Data) != acknowledged[p.Offset] {
			t.Errorf("%s: publication %d %s, want %d %s", room, p.Offset, p.Data, want, acknowledged[want])
		}
	}
	next := uint64(1)
	for _, e := range l.all() {
		if e.Room != room {
			continue
		}
		if e.Publication.Offset != next || string(e.Publication.Data) != acknowledged[next] {
			t.Errorf("%s: told of %d %s, want %d %s", room, e.Publication.Offset, e.Publication.Data, next, acknowledged[next])
		}
		next++
	}
	if next != uint64(top)+1 {
		t.Errorf("%s: told up to %d of %d", room, next-1, top)
	}
}

// Deleting what a busy room is above its size fails, inside a user's transaction.
func TestFaultWhilePruningBusy(t *testing.T) {
	for _, c := range []struct{ from, to int }{{1, 1}, {2, 2}, {1, 3}, {1, lasting}} {
		t.Run(fmt.Sprintf("%d-%d", c.from, c.to), func(t *testing.T) {
			t.Parallel()
			const size = 10
			var l ledger
			f := &faults{}
			o := options(t)
			o.Retention, o.Committed = keep(size, 0), l.committed
			o.SetFault(f.fault)
			o.SetMaintenance(time.Hour)
			db := open(t, o)
			f.set(c.from, c.to, "prune")
			acknowledged := map[uint64]string{}
			refused := 0
			send := func(n int) {
				var answers []<-chan answer
				for i := range n {
					answers = append(answers, ask(db, message("a", fmt.Sprint(i))))
				}
				for i, c := range answers {
					switch a := wait(t, c); {
					case a.err == nil:
						acknowledged[a.Offset] = fmt.Sprint(i)
					case errors.Is(a.err, store.ErrUnavailable) && errors.Is(a.err, errInjected):
						refused++
					default:
						t.Error(a.err)
					}
				}
			}
			for range 20 {
				send(20) // far above the size and the slack
			}
			if f.count() == 0 {
				t.Error("nothing was pruned")
			}
			if c.to == lasting && refused < 100 || c.from == c.to && refused > 0 {
				t.Errorf("%d were refused", refused)
			}
			verifyTail(t, db, &l, "a", size, acknowledged)
			f.set(0, 0)
			send(200)
			verifyTail(t, db, &l, "a", size, acknowledged)
			if err := db.Ready(); err != nil {
				t.Errorf("ready: %v", err)
			}
			shut(t, db)
			if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
				t.Error(err)
			}
		})
	}
}

// What an operation refuses cannot be undone in its savepoint: then the batch is,
// and nobody else pays for it.
func TestFaultWhileRefusing(t *testing.T) {
	constraint := constraintFailure(t)
	for _, calls := range [][2]int{{1, 1}, {2, 2}, {1, 2}, {1, lasting}} {
		t.Run(fmt.Sprint(calls), func(t *testing.T) {
			t.Parallel()
			var l ledger
			f, g := &faults{}, newGate("begin")
			inserts := 0 // owned by the writer
			o := options(t)
			o.Committed = l.committed
			o.SetMaintenance(time.Hour)
			o.SetFault(func(stage string) error {
				g.fault(stage)
				if stage == "insert" {
					if inserts++; inserts == 2 {
						return constraint
					}
				}
				return f.fault(stage)
			})
			db := open(t, o)
			with := func(room, id, data string) store.Publish {
				p := message(room, data)
				p.Caller, p.ID = "u", id
				return p
			}
			answers := map[string]<-chan answer{`"hold"`: g.hold(t, db, message("a", `"hold"`))}
			// This one has made a room and taken its id when it fails.
			answers[`"half"`] = ask(db, with("c", "1", `"half"`))
			answers[`"one"`] = ask(db, with("a", "1", `"one"`))
			first := ask(db, with("a", "1", `"other content"`))
			answers[`"two"`] = ask(db, message("b", `"two"`))
			second := ask(db, with("a", "1", `"other content too"`))
			answers[`"three"`] = ask(db, with("b", "3", `"three"`))
			f.set(calls[0], calls[1], "rollback to")
			close(g.open)
			acknowledged := map[string]store.Result{}
			for data, c := range answers {
				if a := wait(t, c); a.err != nil {
					t.Errorf("%s: %v", data, a.err)
				} else {
					acknowledged[data] = a.Result
				}
			}
			for i, c := range []<-chan answer{first, second} {
				a := wait(t, c)
				if !errors.Is(a.err, store.ErrIDReused) && (calls[0] == calls[1] || !errors.Is(a.err, errInjected)) {
					t.Errorf("refused operation %d: %+v", i, a)
				}
			}
			if f.count() == 0 {
				t.Error("the stage was not reached")
			}
			f.set(0, 0)
			acknowledged[`"last"`] = publish(t, db, message("a", `"last"`))
			verify(t, db, &l, []string{"a", "b", "c"}, acknowledged, []string{`"other content"`, `"other content too"`})
		})
	}
}

// An id whose time is over is used again, and storing the new use fails.
func TestFaultWhileReplacingID(t *testing.T) {
	for _, to := range []int{1, 2, lasting} {
		t.Run(fmt.Sprint("1-", to), func(t *testing.T) {
			t.Parallel()
			var l ledger
			f, now := &faults{}, newClock()
			o := options(t)
			o.Committed, o.Now, o.IdempotencyTTL = l.committed, now.now, time.Hour
			o.SetMaintenance(time.Hour) // it does not forget the id first
			o.SetFault(f.fault)
			db := open(t, o)
			with := func(data string) store.Publish {
				p := message("a", data)
				p.Caller, p.ID = "u", "1"
				return p
			}
			acknowledged := map[string]store.Result{`"old"`: publish(t, db, with(`"old"`))}
			var refused []string
			now.add(time.Hour)
			f.set(1, to, "replace id")
			again := func() {
				if a := wait(t, ask(db, with(`"new"`))); a.err == nil {
					acknowledged[`"new"`] = a.Result
				} else if !errors.Is(a.err, store.ErrUnavailable) || !errors.Is(a.err, errInjected) {
					t.Error(a.err)
				} else {
					refused = []string{`"new"`}
				}
			}
			again()
			if f.count() == 0 || (to == 1) != (refused == nil) {
				t.Errorf("%d failures, refused %v", f.count(), refused)
			}
			verify(t, db, &l, []string{"a"}, acknowledged, refused)
			f.set(0, 0)
			again()
			if a := publish(t, db, with(`"new"`)); !a.Replayed || a.Offset != 2 {
				t.Errorf("the same again: %+v, want the second publication", a)
			}
			verify(t, db, &l, []string{"a"}, acknowledged, nil)
		})
	}
}

// Maintenance fails at each of its statements: nothing that is kept goes with it,
// publications go on, and what has expired is deleted later.
func TestFaultWhileMaintaining(t *testing.T) {
	for _, stage := range []string{"expire ids", "sweep", "oldest", "expired", "prune", "commit"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			var l ledger
			f, now := &faults{}, newClock()
			o := options(t)
			o.Committed, o.Now = l.committed, now.now
			o.Retention, o.IdempotencyTTL = keep(1_000, time.Hour), time.Hour
			o.SetMaintenance(time.Millisecond)
			maintaining := false // owned by the writer
			o.SetFault(func(stage string) error {
				maintaining = stage == "expire ids" || maintaining && stage != "begin"
				if !maintaining {
					return nil // a batch passes some of the stages too
				}
				return f.fault(stage)
			})
			db := open(t, o)
			told := map[uint64]string{}
			send := func() {
				data := fmt.Sprint(len(told) + 1)
				p := message("a", data)
				p.Caller, p.ID = "u", data
				told[publish(t, db, p).Offset] = data
			}
			rows := func(table string) int { return count(t, o.Path, "SELECT count(*) FROM "+table) }
			for range 30 {
				send()
			}
			now.add(time.Hour) // those are over now
			f.set(1, 3, stage)
			for deadline := time.Now().Add(10 * time.Second); f.count() < 3; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d failures, want 3", f.count())
				}
				send() // and connect again
			}
			kept := len(told) - 30
			until(t, "what has expired is deleted", func() bool {
				_ = db.Ready() // connects again after the last failure
				return rows("events") == kept && rows("idempotency") == kept
			})
			send()
			kept++
			page := history(t, db, "a")
			if page.Top.Offset != uint64(len(told)) || len(page.Events) != kept {
				t.Errorf("top %d with %d publications, want %d with %d", page.Top.Offset, len(page.Events), len(told), kept)
			}
			for i, p := range page.Events {
				if p.Offset != uint64(31+i) || string(p.Data) != told[p.Offset] {
					t.Errorf("publication %d %s, want %d %s", p.Offset, p.Data, 31+i, told[uint64(31+i)])
				}
			}
			if n := len(l.all()); n != len(told) {
				t.Errorf("told of %d publications, want %d", n, len(told))
			}
			if err := db.Ready(); err != nil {
				t.Errorf("ready: %v", err)
			}
			if n := db.Stats().Failed; n != 0 {
				t.Errorf("%d batches failed because of maintenance", n)
			}
			shut(t, db)
			if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
				t.Error(err)
			}
		})
	}
}

// constraintFailure is an SQLite error that undoes its own statement alone.
func constraintFailure(t *testing.T) error {
	t.Helper()
	raw, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_, err = raw.Exec("CREATE TABLE t (x NOT NULL); INSERT INTO t VALUES (NULL)")
	return err
}

// resultCode is the extended result code of an SQLite error (sqlite.org/rescode.html).
func resultCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

const (
	busy         = 5
	busySnapshot = 517
)

// A transaction that reads first and writes later fails at once when somebody
// wrote in between, whatever the busy timeout. So the writer's begins as a
// writing one: nobody can come in between.
func TestWriterBeginsByWriting(t *testing.T) {
	g := newGate("insert room") // it has read by then
	o := options(t)
	o.SetMaintenance(time.Hour)
	o.SetFault(g.fault)
	db := open(t, o)
	raw := func() *sql.Conn {
		pool, err := sql.Open("sqlite", store.DSN(o.Path)+"?_pragma=busy_timeout(0)")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pool.Close() })
		c, err := pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	reader, other := raw(), raw()
	exec := func(c *sql.Conn, query string) error {
		_, err := c.ExecContext(t.Context(), query)
		return err
	}
	first := g.hold(t, db, message("a", `1`))
	err := exec(other, "BEGIN IMMEDIATE")
	if resultCode(err)&0xff != busy {
		t.Errorf("somebody else begins to write meanwhile: %v, want SQLITE_BUSY", err)
		_ = exec(other, "ROLLBACK")
	}
	close(g.open)
	if a := wait(t, first); a.err != nil {
		t.Errorf("the writer: %v", a.err)
	}
	// What the writer is spared.
	if err := exec(reader, "BEGIN; SELECT count(*) FROM rooms"); err != nil {
		t.Fatal(err)
	}
	publish(t, db, message("a", `2`))
	if err := exec(reader, "INSERT INTO meta (key, value) VALUES ('x', 1)"); resultCode(err) != busySnapshot {
		t.Errorf("a write behind a read: %v, want SQLITE_BUSY_SNAPSHOT", err)
	}
	_ = exec(reader, "ROLLBACK")
}

// Of sixteen that open a fresh directory at once one gets it. (Not beside tests
// that start processes: between fork and exec those hold copies of the lock.)
func TestFirstOpens(t *testing.T) {
	o := options(t)
	dir := t.TempDir()
	o.Path = dir + "/default.db"
	const n = 16
	begin := make(chan struct{})
	won, refused := make(chan *store.DB, n), make(chan error, n)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			<-begin
			lock, err := store.LockDir(dir)
			if err != nil {
				refused <- err
				return
			}
			t.Cleanup(func() { lock.Close() })
			db, err := store.Open(o)
			if err != nil {
				t.Error(err)
				return
			}
			won <- db
		})
	}
	close(begin)
	all.Wait()
	if len(won) != 1 || len(refused) != n-1 {
		t.Fatalf("%d opened it and %d were refused, want 1 and %d", len(won), len(refused), n-1)
	}
	for range n - 1 {
		if err := <-refused; !errors.Is(err, store.ErrLocked) {
			t.Errorf("refused with %v", err)
		}
	}
	db := <-won
	publish(t, db, message("a", `1`))
	shut(t, db)
}

// Opening again changes nothing, as often as one likes.
func TestManyOpens(t *testing.T) {
	dir := t.TempDir()
	o := options(t)
	o.Path = dir + "/default.db"
	epoch := ""
	for i := range 16 {
		lock, err := store.LockDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		db := open(t, o)
		r := publish(t, db, message("a", fmt.Sprint(i)))
		if r.Offset != uint64(i+1) || epoch != "" && r.Epoch != epoch {
			t.Errorf("open %d: %+v, want offset %d in %s", i+1, r, i+1, epoch)
		}
		epoch = r.Epoch
		shut(t, db)
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
		t.Error(err)
	}
}
