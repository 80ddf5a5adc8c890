package hub

import (
	"log/slog"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
)

// A function that panics neither ends its worker nor is forgotten.
func TestWorkersSurvivePanics(t *testing.T) {
	var seen []any // by the one worker
	w := workers{max: 1, recovered: func(p any) { seen = append(seen, p) }}
	done := 0
	for i := range 5 {
		w.do(func() { panic(i) })
		w.do(func() { done++ })
	}
	w.wait()
	if done != 5 || len(seen) != 5 || seen[4] != 4 || w.running != 0 {
		t.Errorf("%d functions done after panics %v, %d workers running", done, seen, w.running)
	}
}

// quiet drops the log of a server that is to meet errors.
func quiet(s *Server) { s.log = slog.New(slog.DiscardHandler) }

// A panic in what a worker does for a command closes that connection and no
// other; the workers go on.
func TestPanicInACommand(t *testing.T) {
	s := startServer(t, testOptions(t), quiet)
	db := s.databases.get("default")
	other := s.connect(t, wire.JSON, "other")
	other.ok(publishTo("open:a", `1`))
	const n = 10 // more than there are workers
	for range n {
		c := s.connect(t, wire.Protobuf, "u")
		cc := s.connOf(t, "u")
		onLoop(cc.loop, func() {
			cc.loop.async(cc, &db.queries, func() func() { panic("as a test wants") })
		})
		c.closes(closeInternal.code)
		until(t, "it is forgotten", func() bool { return db.connections.Load() == 1 })
	}
	if got := s.metric(t, "hub_panics_total", ""); got != n {
		t.Errorf("%v panics were counted, want %d", got, n)
	}
	if got := s.metric(t, "hub_disconnects_total", "1011"); got != n {
		t.Errorf("%v connections were closed with 1011, want %d", got, n)
	}
	if r := other.ok(historyOf("open:a", -1)); len(r.History.Publications) != 1 {
		t.Errorf("history %v, want one publication", r.History)
	}
}

// breakFeed makes appending to a room's log in one encoding panic, or work again.
func (r *room) breakFeed(enc wire.Encoding, broken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.feeds[enc].room = r; broken {
		r.feeds[enc].room = nil
	}
}

// A panic while a room's log is written leaves no lock behind: the next
// publication goes through.
func TestPanicInARoom(t *testing.T) {
	s := startServer(t, testOptions(t), quiet)
	subscriber, unlucky, other := s.connect(t, wire.JSON, "s"), s.connect(t, wire.JSON, "unlucky"), s.connect(t, wire.JSON, "other")
	subscriber.ok(subscribeTo("live:x"))
	r := s.databases.get("default").live("live:x")
	r.breakFeed(wire.JSON, true)
	if err := unlucky.send(publishTo("live:x", `"lost"`)); err != nil {
		t.Fatal(err)
	}
	unlucky.closes(closeInternal.code)
	r.breakFeed(wire.JSON, false)
	other.ok(publishTo("live:x", `"next"`))
	if _, p := subscriber.publication(); string(p.Data) != `"next"` {
		t.Errorf("publication %s, want the next", p.Data)
	}
	if got := s.metric(t, "hub_panics_total", ""); got != 1 {
		t.Errorf("%v panics were counted, want 1", got)
	}
}

// A panic while the writer hands a commit to a room costs nobody the event: it is
// read from the store.
func TestPanicInACommit(t *testing.T) {
	for _, broken := range []wire.Encoding{wire.JSON, wire.Protobuf} {
		s := startServer(t, testOptions(t), quiet)
		subscribers := []*tester{s.connect(t, wire.JSON, "j"), s.connect(t, wire.Protobuf, "p")}
		for _, c := range subscribers {
			c.ok(subscribeTo("open:a"))
		}
		r := s.databases.get("default").live("open:a")
		publisher := s.connect(t, wire.JSON, "publisher")
		publisher.ok(publishTo("open:a", `1`))
		r.breakFeed(broken, true)
		publisher.ok(publishTo("open:a", `2`))
		until(t, "the room has met it", func() bool { return s.metric(t, "hub_panics_total", "") == 1 })
		r.breakFeed(broken, false)
		publisher.ok(publishTo("open:a", `3`))
		for _, c := range subscribers {
			for offset := uint64(1); offset <= 3; offset++ {
				if _, p := c.publication(); p.Offset != offset {
					t.Fatalf("broken %s: %s got offset %d, want %d", broken, c.enc, p.Offset, offset)
				}
			}
		}
	}
}

// A panic while a page or a position is read counts as a failed read: whoever
// waits for it is told, and the next one may ask.
func TestPanicInAReader(t *testing.T) {
	b := newBench(t)
	db := b.room("default", "any").db // there is no store: every read panics
	db.pages.max, db.queries.max = 1, 1
	db.pages.recovered, db.queries.recovered = b.server.panicked, b.server.panicked
	for i := range 3 {
		r := b.durableRoom("open:r", 1000)
		r.head.Store(5) // what the log does not have
		s := b.member(r, wire.Encoding(i%2), takeAll)
		s.cursor = 2
		b.commit(r, `"new"`)
		for b.collect(); b.queue.busy(); {
			b.step()
		}
		if !s.waiting {
			t.Fatal("it does not wait for a page")
		}
		db.pages.wait()
		b.rest()
		if s.waiting || s.index >= 0 || len(s.conn.subs) != 0 || !s.conn.open() {
			t.Errorf("waiting %v, index %d, open %v, want an ended subscription", s.waiting, s.index, s.conn.open())
		}
		r.mu.Lock()
		if r.reading {
			t.Error("the room is reading for ever")
		}
		r.mu.Unlock()
	}
	ns := openNamespace()
	fresh := db.room("open:fresh", &ns)
	told := make(chan *protocol.Error, 1)
	if wait, e := fresh.whenReady(func(e *protocol.Error) { told <- e }); !wait {
		told <- e // it has been read meanwhile
	}
	db.queries.wait()
	if e := <-told; e == nil || db.live("open:fresh") != nil {
		t.Errorf("error %v, room %v, want an error and no room", e, db.live("open:fresh"))
	}
	if got := b.server.metric(t, "hub_panics_total", ""); got != 4 {
		t.Errorf("%v panics were counted, want 4", got)
	}
}
