package hub

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/centrifugal/protocol"

	"hub/hub/poll"
	"hub/hub/wire"
	"hub/store"
)

// durableRoom returns a live room with history, whose position is known. There is
// no store behind it.
func (b *bench) durableRoom(name string, historySize uint64) *room {
	db := b.room("default", "any").db
	ns := openNamespace()
	ns.HistorySize = historySize
	r := newRoom(db, name, &ns)
	r.state, r.epoch = roomReady, "e"
	db.rooms[name] = r
	return r
}

// commit hands r its next publication as the store does.
func (b *bench) commit(r *room, data string) {
	r.committed(&store.Event{Room: r.name, Epoch: r.epoch,
		Publication: store.Publication{Offset: r.head.Load() + 1, Data: []byte(data)}})
}

// rest steps until nothing is dirty.
func (b *bench) rest() {
	for b.collect(); b.queue.busy() || b.mail.Load(); {
		b.step()
	}
}

// metric sums the samples of a counter or gauge, of one label value if that is given.
func (s *Server) metric(t testing.TB, name, label string) (sum float64) {
	t.Helper()
	families, err := s.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			match := f.GetName() == name && label == ""
			for _, l := range m.GetLabel() {
				match = match || f.GetName() == name && l.GetValue() == label
			}
			if match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func takeAll(_ *sub, p []byte) (int, error)  { return len(p), nil }
func takeNone(_ *sub, p []byte) (int, error) { return 0, poll.ErrAgain }

// In a room without history what may wait for a connection is bytes of events, of
// small ones too.
func TestBacklogCountsEventBytes(t *testing.T) {
	for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
		for _, data := range []string{`1`, `"` + strings.Repeat("x", 38) + `"`, `"` + strings.Repeat("x", 5000) + `"`} {
			b := newBench(t)
			r := b.room("default", "r")
			stalled, good := b.member(r, enc, takeNone), b.member(r, enc, takeAll)
			frame, _, _, err := enc.AppendPublication(nil, r.name, &protocol.Publication{Data: []byte(data)})
			if err != nil {
				t.Fatal(err)
			}
			limit, waiting := b.server.opts.Limits.Unsent, 0
			for i := 0; stalled.conn.open() && waiting < 4*limit; i++ {
				b.publish(r, data)
				if waiting += len(frame); i%16 == 0 {
					b.rest()
				}
			}
			// A log is given up by the segment.
			if most := limit + b.server.sizes.max + 17*len(frame); waiting < limit || waiting > most {
				t.Errorf("%s, frames of %d bytes: closed with %d bytes waiting, want %d to %d", enc, len(frame), waiting, limit, most)
			}
			if n := b.server.metric(t, "hub_disconnects_total", "3008"); n != 1 {
				t.Errorf("%v connections were closed with 3008, want 1", n)
			}
			b.rest()
			if !good.conn.open() || good.cursor != r.head.Load() {
				t.Errorf("the one that reads: open %v, at %d of %d", good.conn.open(), good.cursor, r.head.Load())
			}
		}
	}
}

// A stalled receiver of a room with history is let go when what it lacks is no
// longer retained, and not before; the others are not touched.
func TestStalledBeyondHistory(t *testing.T) {
	const size = 100
	b := newBench(t)
	b.server.sizes = logSizes{min: 128, max: 256, keepDurable: 1 << 10}
	r := b.durableRoom("open:r", size)
	stalled, good := b.member(r, wire.JSON, takeNone), b.member(r, wire.Protobuf, takeAll)
	var younger *sub
	for offset := uint64(1); offset <= size+30; offset++ {
		b.commit(r, `"data"`)
		b.rest()
		if offset == 60 {
			younger = b.member(r, wire.JSON, takeNone)
		}
		if open := stalled.conn.open(); open != (offset <= size) {
			t.Fatalf("%d publications behind in a history of %d: open %v", offset, size, open)
		}
		if good.cursor != offset || !good.conn.open() {
			t.Fatalf("the one that reads is at %d of %d, open %v", good.cursor, offset, good.conn.open())
		}
	}
	if !younger.conn.open() || !younger.conn.blocked || r.feeds[wire.JSON].base <= younger.cursor {
		t.Errorf("one that stalls since 60: open %v, blocked %v, at %d, the log begins at %d",
			younger.conn.open(), younger.conn.blocked, younger.cursor, r.feeds[wire.JSON].base)
	}
	if slow, closes := b.server.metric(t, "hub_slow_disconnects_total", ""), b.server.metric(t, "hub_disconnects_total", "3008"); slow != 1 || closes != 1 {
		t.Errorf("%v slow, %v closed with 3008, want one", slow, closes)
	}
}

// A publication that the socket takes only in part leaves much unsent: then the
// connection is not read, whatever it sends, and goes on where it was later.
func TestNoReadingWhileMuchIsUnsent(t *testing.T) {
	withClock(t, nil, func(s *clockwork) {
		c, _ := s.connect(wire.JSON, token(t, "u"))
		c.ok(subscribeTo("live:r"))
		data := `"` + strings.Repeat("x", 150<<10) + `"` // the network takes 64 KiB of it
		s.databases.get("default").live("live:r").publish(&store.Publication{Data: []byte(data)})
		synctest.Wait()
		cc := s.connOf(t, "u")
		look := func() (in, out int, paused bool) {
			onLoop(cc.loop, func() { in, out, paused = len(cc.in), len(cc.out), cc.paused })
			return in, out, paused
		}
		if _, out, paused := look(); out <= unsentPause || !paused {
			t.Fatalf("%d bytes unsent, paused %v, want more than %d", out, paused, unsentPause)
		}
		const commands = 60
		var flood sync.WaitGroup
		big := `"` + strings.Repeat("y", 40<<10) + `"`
		flood.Go(func() {
			for range commands {
				if c.write(c.frame(publishTo("live:nobody", big))) != nil {
					return
				}
			}
		})
		synctest.Wait() // the flood has stopped: nobody takes it
		if in, out, paused := look(); in > 2*readSize || out <= unsentPause || !paused {
			t.Errorf("%d bytes received and kept while %d are unsent, paused %v", in, out, paused)
		}
		if room, p := c.publication(); room != "live:r" || len(p.Data) != len(data) {
			t.Fatalf("%d bytes in %s, want %d", len(p.Data), room, len(data))
		}
		for i := range uint32(commands) {
			if r, err := c.read(); err != nil || r.Id != 3+i || r.Error != nil {
				t.Fatalf("got %v, %v, want reply %d", r, err, 3+i)
			}
		}
		flood.Wait()
	})
}
