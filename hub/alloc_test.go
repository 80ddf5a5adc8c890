package hub

import (
	"testing"

	"hub/hub/wire"
	"hub/store"
)

// What a sweep does for each receiver costs no memory: neither looking at one
// that lacks nothing, nor a visit with one event, nor one with a reply.
func TestSweepAllocatesNothingPerReceiver(t *testing.T) {
	const members = 1000
	b := newBench(t)
	r := b.room("default", "r")
	visits := 0
	for i := range members {
		b.member(r, wire.Encoding(i%2), func(_ *sub, p []byte) (int, error) {
			visits++
			return len(p), nil
		})
	}
	p := &store.Publication{Data: []byte(`"some data of an event"`)}
	round := func() {
		r.publish(p)
		b.settle()
	}
	round() // buffers of the loop are made
	before := visits
	const rounds = 20
	// The event itself is encoded and logged, which costs something for all together.
	if n := testing.AllocsPerRun(rounds, round); n > members/20 {
		t.Errorf("%v allocations for an event to %d members", n, members)
	}
	if n := visits - before; n < rounds*members {
		t.Errorf("%d visits, want %d", n, rounds*members)
	}
	sh := &r.shards[0]
	if n := testing.AllocsPerRun(rounds, func() {
		sh.pos = 0
		b.sweepShard(sh, sweepQuantum)
	}); n != 0 {
		t.Errorf("%v allocations for a sweep of members that lack nothing", n)
	}
	for name, prepare := range map[string]func(s *sub){
		"an event": func(s *sub) { s.cursor-- },
		"an event behind a reply": func(s *sub) {
			s.cursor--
			s.conn.out = append(b.outBuffer(s.conn), `{"id":1}`...)
		},
	} {
		sh.look(b.loop)
		for _, s := range sh.subs[:2] { // one of each encoding
			visit := func() {
				prepare(s)
				b.deliver(s)
			}
			visit()
			if n := testing.AllocsPerRun(100, visit); n != 0 {
				t.Errorf("%v allocations for a visit with %s (%s)", n, name, s.conn.enc)
			}
		}
	}
}

// A timer is set, moved and fired without memory.
func TestTimersAllocateNothing(t *testing.T) {
	b := newBench(t)
	r := b.room("default", "r")
	s := b.member(r, wire.JSON, func(_ *sub, p []byte) (int, error) { return len(p), nil })
	s.conn.nextPing = wheelTick
	if n := testing.AllocsPerRun(100, func() {
		b.now += b.server.opts.Server.PingInterval
		s.conn.pongDue = false
		b.schedule(s.conn)
		b.wheel.advance(b.now, b.fire)
		b.flushAll()
	}); n != 0 {
		t.Errorf("%v allocations for a ping", n)
	}
}
