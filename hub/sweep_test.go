package hub

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"hub/hub/poll"
	"hub/hub/poll/polltest"
	"hub/hub/wire"
	"hub/store"
)

// bench is a loop that a test steps by hand, with rooms without history and
// connections whose sockets count.
type bench struct {
	*loop
	databases map[string]*database
}

func newBench(t testing.TB) *bench {
	s := &Server{
		opts: DefaultOptions(), log: slog.New(slog.NewTextHandler(io.Discard, nil)), start: time.Now(),
		sizes: defaultLogSizes(1 << 20), memory: newLogMemory(0),
	}
	s.context = t.Context()
	s.policy.Store(&policy{Options: DefaultOptions()})
	s.metrics = newMetrics(s)
	p, err := polltest.New(1, polltest.Faults{}).NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	s.loops = []*loop{newLoop(s, 0, p)}
	return &bench{s.loops[0], make(map[string]*database)}
}

// room returns a live room without history.
func (b *bench) room(database_, name string) *room {
	db := b.databases[database_]
	if db == nil {
		db = newDatabase(b.server, database_)
		b.databases[database_] = db
	}
	ns := openNamespace()
	ns.Durable = false
	return db.room(name, &ns)
}

// tap is a socket that calls write for each Write.
type tap struct {
	poll.Socket
	write func(p []byte) (int, error)
}

func (s *tap) Write(p []byte) (int, error) { return s.write(p) }
func (s *tap) Interest(bool, bool)         {}
func (s *tap) Close()                      {}
func (s *tap) RemoteAddr() netip.AddrPort  { return netip.AddrPort{} }

// member subscribes a new connection to r; write gets what is sent to it.
func (b *bench) member(r *room, enc wire.Encoding, write func(*sub, []byte) (int, error)) *sub {
	c := &conn{loop: b.loop, db: r.db, enc: enc, state: stateConnected, session: &session{credential: credential{user: fmt.Sprint("user-", len(b.conns))}}}
	c.timer.conn = c
	c.index = int32(len(b.conns))
	b.conns = append(b.conns, c)
	b.addUser(c)
	if !r.join(b.loop, enc) {
		panic("the room is dead")
	}
	s := &sub{conn: c, shard: &r.shards[0], index: len(r.shards[0].subs), cursor: r.head.Load()}
	s.shard.subs = append(s.shard.subs, s)
	c.subs = append(c.subs, s)
	c.sock = &tap{write: func(p []byte) (int, error) { return write(s, p) }}
	return s
}

func (b *bench) publish(r *room, data string) {
	r.publish(&store.Publication{Data: []byte(data)})
}

// step is what an iteration of the loop does after its events, when every rest is over.
func (b *bench) step() {
	b.now = time.Since(b.server.start) + time.Hour
	b.collect()
	b.unparkAll()
	b.wakeRested()
	b.sweep()
	b.flushAll()
}

// settle steps until there is nothing to do.
func (b *bench) settle() {
	for b.collect(); b.queue.busy() || b.mail.Load() || len(b.resting) > 0; {
		b.step()
	}
}

var errBroken = errors.New("broken socket")

// While a sweep is under way members leave, by a broken socket or by a task, and
// others come. Whoever stays is visited once, whoever leaves at most once.
func TestSweepWhileMembersLeave(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	for seed := base; seed < base+150; seed++ {
		random := rand.New(rand.NewPCG(seed, 0))
		b := newBench(t)
		r := b.room("default", "r")
		visits := make(map[*sub]int)
		var members []*sub
		gone := make(map[*sub]bool)
		leave := func(s *sub) {
			if !gone[s] {
				gone[s] = true
				b.drop(s.conn)
			}
		}
		var write func(s *sub, p []byte) (int, error)
		write = func(s *sub, p []byte) (int, error) {
			visits[s]++
			for range random.IntN(4) {
				victim := members[random.IntN(len(members))]
				b.post(func() { leave(victim) })
			}
			if random.IntN(8) == 0 {
				b.post(func() { members = append(members, b.member(r, wire.Encoding(random.IntN(2)), write)) })
			}
			if random.IntN(6) == 0 {
				gone[s] = true
				return 0, errBroken
			}
			return len(p), nil
		}
		for range 1 + random.IntN(400) {
			members = append(members, b.member(r, wire.Encoding(random.IntN(2)), write))
		}
		first := len(members)
		b.publish(r, `"one"`)
		b.settle()
		for i, s := range members {
			want := 1
			if i >= first { // it came after the event
				want = 0
			}
			if n := visits[s]; n > want || n < want && !gone[s] {
				t.Fatalf("seed %d: member %d of %d, gone %v, was visited %d times, want %d", seed, i, first, gone[s], n, want)
			}
		}
		sh := &r.shards[0]
		for i, s := range sh.subs {
			if s.index != i || gone[s] {
				t.Fatalf("seed %d: member at %d has index %d, gone %v", seed, i, s.index, gone[s])
			}
		}
	}
}

// Events that come while a sweep is under way reach also those whom it has
// visited already.
func TestSweepWhileEventsCome(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	for seed := base; seed < base+50; seed++ {
		random := rand.New(rand.NewPCG(seed, 0))
		b := newBench(t)
		r := b.room("default", "r")
		events := 1
		var members []*sub
		for range 1 + random.IntN(400) {
			members = append(members, b.member(r, wire.Encoding(random.IntN(2)), func(_ *sub, p []byte) (int, error) {
				if events < 20 && random.IntN(50) == 0 {
					events++
					b.publish(r, `"more"`)
				}
				return len(p), nil
			}))
		}
		b.publish(r, `"one"`)
		b.settle()
		for i, s := range members {
			if s.cursor != uint64(events) {
				t.Fatalf("seed %d: member %d of %d is at %d of %d", seed, i, len(members), s.cursor, events)
			}
		}
	}
}

// remove against a slice, with the sweep's position anywhere.
func TestShardRemove(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		sh := &shard{}
		visited := make(map[*sub]bool)
		for i := range 1 + random.IntN(20) {
			sh.subs = append(sh.subs, &sub{index: i})
		}
		sh.pos = random.IntN(len(sh.subs) + 1)
		for _, s := range sh.subs[:sh.pos] {
			visited[s] = true
		}
		for len(sh.subs) > 0 {
			s := sh.subs[random.IntN(len(sh.subs))]
			n := len(sh.subs)
			sh.remove(s)
			if s.index != -1 || len(sh.subs) != n-1 {
				t.Fatalf("seed %d: index %d after remove, %d of %d left", seed, s.index, len(sh.subs), n)
			}
			for i, s := range sh.subs {
				if s.index != i || visited[s] != (i < sh.pos) {
					t.Fatalf("seed %d: at %d: index %d, visited %v, position %d", seed, i, s.index, visited[s], sh.pos)
				}
			}
		}
	}
}

// A room that is always dirty does not delay another room, of its own or of
// another database, by more than one turn.
func TestSweepFairness(t *testing.T) {
	for _, other := range []string{"big", "small"} {
		t.Run("room of database "+other, func(t *testing.T) {
			b := newBench(t)
			big, small := b.room("big", "crowd"), b.room(other, "quiet")
			visits, waited, publishAt := 0, -1, 700
			sent := 0
			var last *sub
			for range 5000 {
				b.member(big, wire.JSON, func(s *sub, p []byte) (int, error) {
					if s == last { // a run per segment of the log
						return len(p), nil
					}
					last = s
					visits++
					if visits%10 == 0 { // there is always something new
						b.publish(big, `"more"`)
					}
					if visits == publishAt {
						sent = visits
						b.publish(small, `"now"`)
					}
					return len(p), nil
				})
			}
			b.member(small, wire.JSON, func(_ *sub, p []byte) (int, error) {
				waited = visits - sent
				return len(p), nil
			})
			b.publish(big, `"begin"`)
			for range 10 {
				publishAt, waited = visits+1+publishAt%301, -1
				for steps := 0; waited < 0; steps++ {
					if b.step(); steps > 20 {
						t.Fatal("the quiet room was not visited")
					}
				}
				// At worst it is noticed right after a turn has begun again.
				if most := sweepQuantum + sweepLook; waited > most {
					t.Errorf("the quiet room waited for %d visits of the crowd, want at most %d", waited, most)
				}
			}
			if !b.queue.busy() && len(b.resting) == 0 {
				t.Error("the crowd was not dirty all the time")
			}
		})
	}
}

// Two databases with a crowd each get the same number of visits.
func TestSweepTurns(t *testing.T) {
	b := newBench(t)
	visits := make(map[string]int)
	for _, name := range []string{"one", "two"} {
		r := b.room(name, "crowd")
		for range 2000 {
			b.member(r, wire.JSON, func(_ *sub, p []byte) (int, error) {
				if visits[name]++; visits[name]%100 == 0 {
					b.publish(r, `"more"`)
				}
				return len(p), nil
			})
		}
		for range 3 { // more rooms get no more turns
			b.publish(r, `"begin"`)
		}
	}
	for range 40 {
		b.step()
	}
	if one, two := visits["one"], visits["two"]; one < 4000 || max(one, two)-min(one, two) > sweepQuantum {
		t.Errorf("%d and %d visits, want as many within one turn of %d", one, two, sweepQuantum)
	}
}

// A large room rests after a sweep: what is published meanwhile waits, and comes
// to everybody when the rest is over. A small one does not rest.
func TestSweepRest(t *testing.T) {
	for _, size := range []int{int(restMin/restPerVisit) + 1, int(restMin / restPerVisit)} {
		b := newBench(t)
		r := b.room("default", "r")
		visits := 0
		for range size {
			b.member(r, wire.JSON, func(_ *sub, p []byte) (int, error) {
				visits++
				return len(p), nil
			})
		}
		sweep := func() {
			for b.collect(); b.queue.busy(); {
				b.sweep()
			}
		}
		b.publish(r, `"one"`)
		sweep()
		b.publish(r, `"two"`)
		sweep()
		want, rests := 2*size, time.Duration(size)*restPerVisit >= restMin
		if rests {
			want = size
		}
		if visits != want {
			t.Errorf("%d visits of %d members for two events in a row, want %d", visits, size, want)
		}
		b.now = time.Since(b.server.start)
		if wait := b.timeout(); rests && (wait <= 0 || wait > time.Duration(size)*restPerVisit) {
			t.Errorf("the loop would wait %v in a rest of %v", wait, time.Duration(size)*restPerVisit)
		}
		b.wakeRested()
		sweep()
		b.now += time.Hour
		b.wakeRested()
		sweep()
		if visits != 2*size {
			t.Errorf("%d visits after the rest, want %d", visits, 2*size)
		}
	}
}

// Whatever happened since the last visit comes in one write, replies first.
func TestSweepOneWrite(t *testing.T) {
	b := newBench(t)
	r := b.room("default", "r")
	var writes []int
	s := b.member(r, wire.JSON, func(_ *sub, p []byte) (int, error) {
		writes = append(writes, len(p))
		return len(p), nil
	})
	s.conn.out = append(b.outBuffer(s.conn), "reply"...)
	b.flushLater(s.conn)
	for range 10 {
		b.publish(r, `"event"`)
	}
	b.step()
	b.step()
	if len(writes) != 1 {
		t.Errorf("writes of %v bytes for a reply and 10 events, want one write", writes)
	}
	if s.cursor != 10 {
		t.Errorf("the cursor is at %d, want 10", s.cursor)
	}
}
