package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hub/store"
)

func TestHistory(t *testing.T) {
	o := options(t)
	o.Retention = func(room string) store.Retention {
		switch room {
		case "three", "removed three":
			return store.Retention{Size: 3}
		case "none":
			return store.Retention{}
		}
		return store.Retention{Size: 100}
	}
	o.SetMaintenance(time.Hour) // retention holds before a row is deleted
	db := open(t, o)
	for _, room := range []string{"all", "three", "none", "removed", "removed three"} {
		fill(t, db, room, 5) // 7 bytes each
	}
	remove(t, db, "removed")
	fill(t, db, "removed", 1)
	remove(t, db, "removed three")
	fill(t, db, "removed three", 1)
	const all = -1
	for _, c := range []struct {
		room   string
		query  store.Query
		top    uint64
		want   string
		pruned bool
	}{
		{"all", store.Query{}, 5, "", false},
		{"all", store.Query{Limit: all}, 5, "1 2 3 4 5", false},
		{"all", store.Query{Limit: 2}, 5, "1 2", false},
		{"all", store.Query{Limit: 2, Reverse: true}, 5, "5 4", false},
		{"all", store.Query{HasSince: true, Since: 0, Limit: all}, 5, "1 2 3 4 5", false},
		{"all", store.Query{HasSince: true, Since: 3, Limit: all}, 5, "4 5", false},
		{"all", store.Query{HasSince: true, Since: 5, Limit: all}, 5, "", false},
		{"all", store.Query{HasSince: true, Since: 1 << 63, Limit: all}, 5, "", false},
		{"all", store.Query{HasSince: true, Since: 3, Limit: all, Reverse: true}, 5, "2 1", false},
		{"all", store.Query{HasSince: true, Since: 0, Limit: all, Reverse: true}, 5, "", false},
		{"all", store.Query{HasSince: true, Since: 1<<64 - 1, Limit: 1, Reverse: true}, 5, "5", false},
		{"all", store.Query{Limit: all, MaxBytes: 1}, 5, "1", false},
		{"all", store.Query{Limit: all, MaxBytes: 21}, 5, "1 2 3", false},
		{"all", store.Query{Limit: all, MaxBytes: 20, Reverse: true}, 5, "5 4", false},
		{"three", store.Query{Limit: all}, 5, "3 4 5", false},
		{"three", store.Query{HasSince: true, Since: 1, Limit: all}, 5, "3 4 5", true},
		{"three", store.Query{HasSince: true, Since: 2, Limit: all}, 5, "3 4 5", false},
		{"three", store.Query{HasSince: true, Since: 0, Limit: 0}, 5, "", false},
		{"three", store.Query{Limit: all, Reverse: true}, 5, "5 4 3", false},
		{"none", store.Query{Limit: all}, 5, "", false},
		{"none", store.Query{HasSince: true, Since: 4, Limit: all}, 5, "", true},
		{"none", store.Query{HasSince: true, Since: 5, Limit: all}, 5, "", false},
		{"removed", store.Query{Limit: all}, 6, "6", false},
		{"removed", store.Query{HasSince: true, Since: 4, Limit: all}, 6, "6", true},
		{"removed", store.Query{HasSince: true, Since: 5, Limit: all}, 6, "6", false},
		{"removed three", store.Query{Limit: all}, 6, "6", false},
		{"never", store.Query{HasSince: true, Since: 0, Limit: all}, 0, "", false},
	} {
		page, err := db.History(t.Context(), c.room, c.query)
		if err != nil {
			t.Fatal(err)
		}
		if got := offsets(page); got != c.want || page.Top.Offset != c.top || page.Pruned != c.pruned {
			t.Errorf("%s %+v: %q, top %d, pruned %t; want %q, %d, %t",
				c.room, c.query, got, page.Top.Offset, page.Pruned, c.want, c.top, c.pruned)
		}
	}
	page, err := db.Page(t.Context(), "all", 1, 2, 0)
	if got := offsets(page); err != nil || got != "2 3" {
		t.Errorf("page: %q, %v", got, err)
	}
}

// Age counts at once; so does a change of the options.
func TestRetentionHoldsAtOnce(t *testing.T) {
	c := newClock()
	var retention atomic.Pointer[store.Retention]
	set := func(size uint64, ttl time.Duration) { retention.Store(&store.Retention{Size: size, TTL: ttl}) }
	set(100, time.Minute)
	o := options(t)
	o.Now = c.now
	o.Retention = func(string) store.Retention { return *retention.Load() }
	o.SetMaintenance(time.Hour)
	db := open(t, o)
	for range 6 {
		publish(t, db, message("a", `1`))
		c.add(10 * time.Second)
	}
	expect := func(want string, after uint64, pruned bool) {
		t.Helper()
		page, err := db.Page(t.Context(), "a", after, 0, 0)
		if got := offsets(page); err != nil || got != want || page.Pruned != pruned {
			t.Errorf("after %d: %q, pruned %t, %v; want %q, %t", after, got, page.Pruned, err, want, pruned)
		}
	}
	expect("2 3 4 5 6", 1, false) // the first is a minute old
	expect("2 3 4 5 6", 0, true)
	c.add(20 * time.Second)
	expect("4 5 6", 2, true)
	set(2, 0)
	expect("5 6", 2, true)
	set(0, 0)
	expect("", 5, true)
	expect("", 6, false)
	set(100, time.Minute)
	c.add(time.Hour)
	expect("", 0, true)
	c.add(-2 * time.Hour) // the clock goes back: times do not
	if r := publish(t, db, message("a", `1`)); r.Offset != 7 {
		t.Errorf("offset %d", r.Offset)
	}
	events := history(t, db, "a").Events
	if n := len(events); n < 2 || events[n-1].Time < events[n-2].Time {
		t.Errorf("times went back: %+v", events)
	}
}

// Rows go when the writer is idle, whatever gave them up.
func TestIdlePruning(t *testing.T) {
	c := newClock()
	o := options(t)
	o.Now = c.now
	o.Retention = func(room string) store.Retention {
		switch room {
		case "sized":
			return store.Retention{Size: 10}
		case "aged":
			return store.Retention{Size: 1 << 40, TTL: time.Minute}
		}
		return store.Retention{Size: 1 << 40}
	}
	o.SetMaintenance(time.Millisecond)
	db := open(t, o)
	fill(t, db, "kept", 5)
	fill(t, db, "sized", 50)
	fill(t, db, "aged", 2_500) // more than one step
	fill(t, db, "removed", 20)
	remove(t, db, "removed")
	c.add(time.Minute)
	fill(t, db, "aged", 3)
	rows := func() int { return count(t, o.Path, "SELECT count(*) FROM events") }
	until(t, "rows are deleted", func() bool { return rows() == 5+10+3 })
	for room, want := range map[string]string{"kept": "1 2 3 4 5", "aged": "2501 2502 2503", "removed": ""} {
		if got := offsets(history(t, db, room)); got != want {
			t.Errorf("%s: %q, want %q", room, got, want)
		}
	}
	shut(t, db)
	if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
		t.Error(err)
	}
}

// A writer that is never idle prunes inside its batches.
func TestBusyPruning(t *testing.T) {
	o := options(t)
	o.Retention = keep(100, 0)
	o.SetMaintenance(time.Hour)
	db := open(t, o)
	for i := range 20 {
		if i == 10 {
			shut(t, db)
			db = open(t, o)
		}
		fill(t, db, "a", 100)
		if n := count(t, o.Path, "SELECT count(*) FROM events"); n > 100+64 {
			t.Fatalf("%d rows for 100 publications", n)
		}
	}
	if page := history(t, db, "a"); len(page.Events) != 100 || page.Events[0].Offset != 1901 {
		t.Errorf("%d publications from %d", len(page.Events), page.Events[0].Offset)
	}
}

// No offset comes twice, whatever happened to the publications before it.
func TestOffsetsAreNeverReused(t *testing.T) {
	o := options(t)
	var retention atomic.Pointer[store.Retention]
	retention.Store(&store.Retention{Size: 100})
	o.Retention = func(string) store.Retention { return *retention.Load() }
	o.SetMaintenance(time.Millisecond)
	db := open(t, o)
	next := uint64(0)
	step := func(what string) {
		t.Helper()
		next++
		if r := publish(t, db, message("a", `1`)); r.Offset != next {
			t.Fatalf("%s: offset %d, want %d", what, r.Offset, next)
		}
	}
	empty := func() bool { return count(t, o.Path, "SELECT count(*) FROM events") == 0 }
	step("first")
	remove(t, db, "a")
	until(t, "rows are deleted", empty)
	step("after removal")
	retention.Store(&store.Retention{})
	until(t, "rows are deleted", empty)
	step("retaining nothing")
	shut(t, db)
	db = open(t, o)
	step("after a restart")
	retention.Store(&store.Retention{Size: 100})
	step("retaining again")
	step("once more")
	if got := offsets(history(t, db, "a")); got != "5 6" {
		t.Errorf("history is %q", got)
	}
}

func TestRemoveHistory(t *testing.T) {
	var l ledger
	o := options(t)
	o.Committed = l.committed
	db := open(t, o)
	before := position(t, db, "a")
	if r := remove(t, db, "a"); r != (store.Result{Epoch: before.Epoch}) || len(l.all()) != 0 {
		t.Errorf("room never published to: %+v, events %+v", r, l.all())
	}
	if n := db.Stats().Rooms; n != 0 {
		t.Errorf("asking and removing created %d rooms", n)
	}
	first := fill(t, db, "a", 3)
	if first.Epoch != before.Epoch {
		t.Errorf("epoch before the first publication %q, after %q", before.Epoch, first.Epoch)
	}
	r := remove(t, db, "a")
	if r.Offset != 3 || r.Epoch == first.Epoch {
		t.Errorf("removal: %+v after %+v", r, first)
	}
	events := l.all()
	if e := events[len(events)-1]; !e.Removed || e.Room != "a" || e.Epoch != r.Epoch || e.Publication.Offset != 3 {
		t.Errorf("event %+v", e)
	}
	if again := remove(t, db, "a"); again.Epoch == r.Epoch || again.Epoch == first.Epoch {
		t.Errorf("second removal: %+v", again)
	}
	if other := position(t, db, "b"); other.Epoch != before.Epoch {
		t.Errorf("another room's epoch is %q", other.Epoch)
	}
}

func TestReadersHonourContext(t *testing.T) {
	o := options(t)
	o.Readers = 1
	db := open(t, o)
	publish(t, db, message("a", `1`))
	ctx, cancel := context.WithCancel(t.Context())
	held, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- db.HoldReader(ctx, held) }()
	<-held
	waiting, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := db.Position(waiting, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no reader free: %v", err)
	}
	if n := db.Stats().Readers; n != 1 {
		t.Errorf("%d readers in use", n)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("held reader: %v", err)
	}
	if top := position(t, db, "a").Offset; top != 1 { // the connection is good again
		t.Errorf("top %d", top)
	}
}

// The WAL does not grow without bound though some reader is always busy, and is
// empty when the writer is idle.
func TestWALIsBounded(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.SetMaintenance(10 * time.Millisecond)
	db := open(t, o)
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				if _, err := db.History(ctx, "a", store.Query{Limit: 50}); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	data := `"` + strings.Repeat("x", 16<<10) + `"`
	var largest, total int64
	for i := range 64 {
		var c <-chan answer
		for range 16 {
			c = ask(db, message(fmt.Sprint("r", i%7), data))
			total += int64(len(data))
		}
		wait(t, c)
		largest = max(largest, db.Stats().WAL)
	}
	stop()
	readers.Wait()
	if largest == 0 || largest > 12<<20 || total < 2*largest {
		t.Errorf("WAL grew to %d bytes for %d bytes of data", largest, total)
	}
	until(t, "WAL is empty", func() bool {
		info, err := os.Stat(o.Path + "-wal")
		return err == nil && info.Size() == 0
	})
}

// A reader that stays in the WAL costs the writer a short wait now and then, not
// one for each batch; when it leaves, the WAL is emptied.
func TestForgottenReader(t *testing.T) {
	t.Parallel()
	var checkpoints atomic.Int64
	o := options(t)
	o.SetMaintenance(time.Hour)
	o.SetFault(func(stage string) error {
		if stage == "checkpoint" {
			checkpoints.Add(1)
		}
		return nil
	})
	db := open(t, o)
	publish(t, db, message("a", `1`))
	ctx, release := context.WithCancel(t.Context())
	held, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- db.HoldReader(ctx, held) }()
	<-held
	data := `"` + strings.Repeat("x", 200<<10) + `"`
	for range 60 {
		publish(t, db, message("a", data))
	}
	if n, wal := checkpoints.Load(), db.Stats().WAL; n == 0 || n > 4 || wal < 60*200<<10 {
		t.Errorf("%d checkpoints, WAL of %d bytes", n, wal)
	}
	release()
	<-done
	for range 30 {
		publish(t, db, message("a", data))
	}
	if wal := db.Stats().WAL; wal > 8<<20 {
		t.Errorf("WAL of %d bytes after the reader left", wal)
	}
}
