package store_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"hub/store"
)

func TestPublicationIsStoredAsSent(t *testing.T) {
	var l ledger
	c := newClock()
	o := options(t)
	o.Committed, o.Now = l.committed, c.now
	db := open(t, o)
	want := store.Publication{
		Data: []byte(`{"a":"ü\u0000"}`), User: "u\x00ser", Client: "c1",
		ConnInfo: []byte(`{"n":1}`), ChanInfo: []byte(`[]`), Tags: map[string]string{"k": "v", "": "ö"},
	}
	for _, room := range []string{"chat:1", "CHAT:1", "chat:1\x00", "raum ü", "'; DROP TABLE rooms; --"} {
		r := publish(t, db, store.Publish{Room: room, Publication: want})
		if r.Offset != 1 || r.Replayed {
			t.Errorf("%q: result %+v", room, r)
		}
		page := history(t, db, room)
		stored := want
		stored.Offset, stored.Time = 1, c.now().UnixMilli()
		if len(page.Events) != 1 || !reflect.DeepEqual(page.Events[0], stored) {
			t.Errorf("%q: stored %+v\nwant %+v", room, page.Events, stored)
		}
		if page.Top != (store.Position{Offset: 1, Epoch: r.Epoch}) {
			t.Errorf("%q: top %+v, result %+v", room, page.Top, r)
		}
		events := l.all()
		if e := events[len(events)-1]; !reflect.DeepEqual(e, store.Event{Room: room, Epoch: r.Epoch, Publication: stored}) {
			t.Errorf("%q: event %+v", room, e)
		}
	}
}

// An event is told before its publisher is.
func TestCommittedComesBeforeDone(t *testing.T) {
	var l ledger
	o := options(t)
	o.Committed = l.committed
	db := open(t, o)
	var wg sync.WaitGroup
	for range 50 {
		wg.Add(1)
		db.Publish(message("a", "1"), func(r store.Result, err error) {
			defer wg.Done()
			if n := uint64(len(l.all())); err != nil || n < r.Offset {
				t.Errorf("offset %d acknowledged after %d events, %v", r.Offset, n, err)
			}
		})
	}
	wg.Wait()
}

func TestManyPublishersAndReaders(t *testing.T) {
	const publishers, each = 64, 25
	var l ledger
	o := options(t)
	o.Committed = l.committed
	db := open(t, o)
	rooms := []string{"a", "b", "c"}
	ctx, stop := context.WithCancel(t.Context())
	var readers, writers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			room, after := rooms[i%3], uint64(0)
			for ctx.Err() == nil {
				page, err := db.Page(ctx, room, after, 10, 0)
				if err != nil && ctx.Err() == nil {
					t.Errorf("page: %v", err)
				}
				for _, p := range page.Events {
					if p.Offset != after+1 || p.Offset > page.Top.Offset {
						t.Errorf("%s: offset %d after %d, top %d", room, p.Offset, after, page.Top.Offset)
					}
					after = p.Offset
				}
			}
		})
	}
	var mu sync.Mutex
	acknowledged := map[string]store.Result{}
	for g := range publishers {
		writers.Go(func() {
			var last uint64
			for i := range each {
				data := fmt.Sprintf(`"%d-%d"`, g, i)
				c := make(chan answer, 1)
				db.Publish(message(rooms[g%3], data), func(r store.Result, err error) { c <- answer{r, err} })
				a := <-c
				if a.err != nil || a.Offset <= last {
					t.Errorf("%s: %+v after %d", data, a, last)
				}
				last = a.Offset
				mu.Lock()
				acknowledged[data] = a.Result
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	stop()
	readers.Wait()
	if len(acknowledged) != publishers*each {
		t.Errorf("%d acknowledged", len(acknowledged))
	}
	verify(t, db, &l, rooms, acknowledged, nil)
}

func TestIdempotency(t *testing.T) {
	c := newClock()
	o := options(t)
	o.Now, o.IdempotencyTTL = c.now, time.Hour
	o.SetMaintenance(time.Millisecond)
	db := open(t, o)
	ask := func(room, caller, id, data string) (store.Result, error) {
		p := message(room, data)
		p.Caller, p.ID = caller, id
		a := wait(t, ask(db, p))
		return a.Result, a.err
	}
	first, err := ask("a", "u1", "x", `1`)
	if err != nil || first.Offset != 1 || first.Replayed {
		t.Fatalf("first: %+v, %v", first, err)
	}
	replayed := first
	replayed.Replayed = true
	expect := func(when string, want store.Result, wantErr error, room, caller, id, data string) {
		t.Helper()
		if got, err := ask(room, caller, id, data); got != want || !errors.Is(err, wantErr) {
			t.Errorf("%s: %+v, %v; want %+v, %v", when, got, err, want, wantErr)
		}
	}
	expect("again", replayed, nil, "a", "u1", "x", `1`)
	expect("other content", store.Result{}, store.ErrIDReused, "a", "u1", "x", `2`)
	expect("other caller", store.Result{Offset: 2, Epoch: first.Epoch}, nil, "a", "u2", "x", `2`)
	expect("other room", store.Result{Offset: 1, Epoch: first.Epoch}, nil, "b", "u1", "x", `2`)
	shut(t, db)
	db = open(t, o)
	expect("after a restart", replayed, nil, "a", "u1", "x", `1`)
	removed := remove(t, db, "a")
	expect("after the history was removed", replayed, nil, "a", "u1", "x", `1`)
	c.add(time.Hour)
	expect("expired", store.Result{Offset: 3, Epoch: removed.Epoch}, nil, "a", "u1", "x", `2`)
	expect("new under the same id", store.Result{Offset: 3, Epoch: removed.Epoch, Replayed: true}, nil, "a", "u1", "x", `2`)
	c.add(time.Hour)
	until(t, "expired ids are deleted", func() bool { return count(t, o.Path, "SELECT count(*) FROM idempotency") == 0 })
}

// Copies that race, some of them within one batch, publish once.
func TestIdempotencyRace(t *testing.T) {
	g := newGate("begin")
	o := options(t)
	o.SetFault(g.fault)
	db := open(t, o)
	g.hold(t, db, message("a", `0`))
	var copies, others []<-chan answer
	for range 20 {
		p := message("a", `1`)
		p.Caller, p.ID = "u", "x"
		copies = append(copies, ask(db, p))
		p.Publication.Data = []byte(`2`)
		others = append(others, ask(db, p))
	}
	close(g.open)
	fresh := 0
	for _, c := range copies {
		a := wait(t, c)
		if a.err != nil || a.Offset != 2 {
			t.Errorf("copy: %+v", a)
		}
		if !a.Replayed {
			fresh++
		}
	}
	for _, c := range others {
		if a := wait(t, c); !errors.Is(a.err, store.ErrIDReused) {
			t.Errorf("other content: %+v", a)
		}
	}
	if top := position(t, db, "a").Offset; fresh != 1 || top != 2 {
		t.Errorf("%d fresh, top %d", fresh, top)
	}
}

func TestRoomLimit(t *testing.T) {
	g := newGate("begin")
	o := options(t)
	o.MaxRooms = 2
	o.SetFault(g.fault)
	db := open(t, o)
	first := g.hold(t, db, message("a", `1`))
	b, c, again := ask(db, message("b", `1`)), ask(db, message("c", `1`)), ask(db, message("a", `2`))
	close(g.open)
	for name, a := range map[string]answer{"a": wait(t, first), "b": wait(t, b), "a again": wait(t, again)} {
		if a.err != nil {
			t.Errorf("%s: %v", name, a.err)
		}
	}
	if a := wait(t, c); !errors.Is(a.err, store.ErrRoomLimit) {
		t.Errorf("third room: %v", a.err)
	}
	if n := db.Stats().Rooms; n != 2 {
		t.Errorf("%d rooms", n)
	}
	shut(t, db)
	db = open(t, o)
	if a := wait(t, ask(db, message("c", `1`))); !errors.Is(a.err, store.ErrRoomLimit) {
		t.Errorf("third room after a restart: %v", a.err)
	}
	if err := db.Ready(); err != nil {
		t.Errorf("a refusal is no failure: %v", err)
	}
}

// While the writer is stuck: the queue is bounded in entries and bytes, what
// waits too long is answered and never applied, and readiness tells.
func TestStuckWriter(t *testing.T) {
	g := newGate("commit")
	o := options(t)
	o.Queue, o.WriteTimeout = 3, 50*time.Millisecond
	o.SetFault(g.fault)
	db := open(t, o)
	first := g.hold(t, db, message("a", `"first"`))
	if a := wait(t, ask(db, message("a", strings.Repeat("x", 64<<20)))); !errors.Is(a.err, store.ErrQueueFull) {
		t.Errorf("too many bytes: %v", a.err)
	}
	var waiting []<-chan answer
	for range 3 {
		waiting = append(waiting, ask(db, message("a", `"late"`)))
	}
	if a := wait(t, ask(db, message("a", `"too many"`))); !errors.Is(a.err, store.ErrQueueFull) {
		t.Errorf("too many entries: %v", a.err)
	}
	if s := db.Stats(); s.Queue != 3 || s.QueueBytes != 3*len(`a"late"`) {
		t.Errorf("stats: %+v", s)
	}
	for _, c := range waiting {
		if a := wait(t, c); !errors.Is(a.err, store.ErrWriteTimeout) {
			t.Errorf("waiting: %+v", a)
		}
	}
	until(t, "readiness tells", func() bool { return errors.Is(db.Ready(), store.ErrUnavailable) })
	close(g.open)
	if a := wait(t, first); a.err != nil {
		t.Errorf("a batch that has begun: %v", a.err)
	}
	if r := publish(t, db, message("a", `"next"`)); r.Offset != 2 {
		t.Errorf("next: %+v", r)
	}
	if s := db.Stats(); s.Queue != 0 || s.QueueBytes != 0 {
		t.Errorf("stats: %+v", s)
	}
}

func TestClose(t *testing.T) {
	g := newGate("begin")
	o := options(t)
	o.SetFault(g.fault)
	db := open(t, o)
	first := g.hold(t, db, message("a", `1`))
	second := ask(db, message("a", `2`))
	done := make(chan struct{})
	go func() {
		defer close(done)
		shut(t, db)
	}()
	until(t, "closing", func() bool { return errors.Is(db.Ready(), store.ErrClosed) })
	close(g.open)
	<-done
	for i, c := range []<-chan answer{first, second} {
		if a := wait(t, c); a.err != nil || a.Offset != uint64(i+1) {
			t.Errorf("queued before: %+v", a)
		}
	}
	if a := wait(t, ask(db, message("a", `3`))); !errors.Is(a.err, store.ErrClosed) {
		t.Errorf("publish: %v", a.err)
	}
	if _, err := db.Position(t.Context(), "a"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("position: %v", err)
	}
	if n := count(t, o.Path, "SELECT count(*) FROM events"); n != 2 {
		t.Errorf("%d events", n)
	}
}
