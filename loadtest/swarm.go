package loadtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"hub/loadtest/report"
)

// swarm is many clients of one server. One goroutine conducts it; its shards
// read by themselves.
type swarm struct {
	// fixed after new
	options swarmOptions
	start   time.Time // zero of the clock that stamps events
	shards  []*shard
	conns   []*conn
	rooms   []*room

	// of the goroutine that conducts
	dropped int64         // subscriptions that had to be continued
	slept   time.Duration // longest time between two looks of wait

	// resume makes clients that lose their connection come back by themselves,
	// continuing from the position they had.
	resume atomic.Bool
}

// swarmOptions says how clients reach the server.
type swarmOptions struct {
	addr    netip.AddrPort
	host    string // of the Host header
	tls     *tls.Config
	codec   codec
	sources []netip.Addr // of the connections in turn; none: the system's choice
	perIP   int          // connections of one source
	size    int          // bytes of an event's data
	shards  int
	stall   time.Duration // so long without any byte is the end of waiting
	backoff time.Duration // before a client comes back for the first time
}

func (o *swarmOptions) origin() string {
	if o.tls != nil {
		return "https://" + o.host
	}
	return "http://" + o.host
}

// handshakes is how many connections are on their way at once.
const handshakes = 256

func (s *swarm) window() int { return max(1, handshakes/len(s.shards)) }

// roomPlan asks for a room with so many members.
type roomPlan struct {
	name, db string
	members  int
	once     bool
	operated bool // has a ledger, see room
}

// newSwarm prepares connections and their rooms; token names the token of a
// connection, and user its user. Nothing is dialled yet.
func newSwarm(o swarmOptions, plan []roomPlan, user func(n int) string, token func(n int, r *room) (string, error)) (_ *swarm, err error) {
	s := &swarm{options: o, start: time.Now()}
	for range max(1, o.shards) {
		s.shards = append(s.shards, newShard(s))
	}
	for i, p := range plan {
		r := &room{number: i, name: p.name, db: p.db, once: p.once, members: make([]*conn, 0, p.members)}
		if p.operated {
			r.ledger = newLedger(i)
		}
		s.rooms = append(s.rooms, r)
	}
	for left := true; left; { // rooms in turn, so that every source and shard has members of each
		left = false
		for i, r := range s.rooms {
			if len(r.members) == plan[i].members {
				continue
			}
			left = true
			if err := s.join(r, user, token); err != nil {
				return nil, err
			}
		}
	}
	for _, sh := range s.shards {
		if sh.network, err = newNetwork(sh, o.tls); err != nil {
			s.close(false)
			return nil, err
		}
	}
	return s, nil
}

// join makes the next connection a member of r; the first one publishes there.
func (s *swarm) join(r *room, user func(int) string, token func(int, *room) (string, error)) (err error) {
	n := len(s.conns)
	sh := s.shards[n%len(s.shards)]
	c := &conn{number: n, shard: sh, room: r, user: user(n)}
	if k := len(s.options.sources); k > 0 {
		c.source = s.options.sources[n/s.options.perIP%k]
	}
	if c.token, err = token(n, r); err != nil {
		return err
	}
	if r.publisher == nil {
		r.publisher = c
	}
	r.members = append(r.members, c)
	s.conns = append(s.conns, c)
	sh.conns = append(sh.conns, c)
	return nil
}

// now is the time on the swarm's clock, in nanoseconds.
func (s *swarm) now() int64 { return int64(time.Since(s.start)) }

// open connects, authenticates and subscribes everybody and returns the time
// that took.
func (s *swarm) open(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	for _, sh := range s.shards {
		sh.mu.Lock()
		sh.queue = append(sh.queue, sh.conns...)
		sh.fill()
		sh.publish()
		sh.mu.Unlock()
	}
	err := s.wait(ctx, func(c *counts) bool { return c.ready+c.ended >= int64(len(s.conns)) })
	return time.Since(begin), err
}

// openSome is open for some of the connections, which were not opened before.
func (s *swarm) openSome(ctx context.Context, conns []*conn) error {
	before := s.counts()
	for _, c := range conns {
		c.shard.mu.Lock()
		c.shard.queue = append(c.shard.queue, c)
		c.shard.mu.Unlock()
	}
	s.each(func(sh *shard) { sh.fill() })
	want := before.ready + before.ended + int64(len(conns))
	return s.wait(ctx, func(c *counts) bool { return c.ready+c.ended >= want })
}

// counts are sums over the shards.
type counts struct {
	got, acks, refused, bytes, last, ready, ended, leaving, seen, missing int64
}

func (s *swarm) counts() (c counts) {
	for _, sh := range s.shards {
		c.got += sh.now.got.Load()
		c.acks += sh.now.acks.Load()
		c.refused += sh.now.refused.Load()
		c.bytes += sh.now.bytes.Load()
		c.last = max(c.last, sh.now.last.Load())
		c.ready += sh.now.ready.Load()
		c.ended += sh.now.ended.Load()
		c.leaving += sh.now.leaving.Load()
		c.seen += sh.now.seen.Load()
		c.missing += sh.now.missing.Load()
	}
	return c
}

// errStalled is wrapped by [swarm.wait].
var errStalled = errors.New("nothing came any more")

// look is how often waiting looks at the counters. What they count carries its
// own time, so that looking seldom costs no precision.
const look = 2 * time.Millisecond

// longLook is a time between two looks that the machine is to blame for.
const longLook = time.Second

// wait returns when done says so, when ctx ends, or when nothing has come for
// the time that counts as a stall.
func (s *swarm) wait(ctx context.Context, done func(c *counts) bool) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	last, moved := counts{}, time.Now()
	for looked := time.Now(); ; {
		c := s.counts()
		now := time.Now()
		if slept := now.Sub(looked); slept > longLook {
			moved = now // others stood still too
			s.slept = max(s.slept, slept)
		}
		looked = now
		if done(&c) {
			return nil
		}
		if c.bytes = 0; c != last { // bytes may be of pings alone, which never end
			last, moved = c, now
		} else if quiet := now.Sub(moved); quiet > s.options.stall {
			return fmt.Errorf("%w for %.0f s: %d of %d connections ready, %d events, %d acknowledgements",
				errStalled, quiet.Seconds(), c.ready, len(s.conns), c.got, c.acks)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// each calls f for every shard, with its lock held.
func (s *swarm) each(f func(sh *shard)) {
	for _, sh := range s.shards {
		sh.mu.Lock()
		f(sh)
		sh.publish()
		sh.mu.Unlock()
	}
}

// reset forgets the traffic that was measured.
func (s *swarm) reset() {
	s.each(func(sh *shard) {
		sh.latency.Reset()
		sh.ending.Reset()
		sh.endFrom = math.MaxInt64
		sh.resumed.Reset()
		sh.t.got, sh.t.acks, sh.t.refused, sh.t.bytes, sh.t.last = 0, 0, 0, 0, 0
	})
}

// latency is the distribution since the last reset, in microseconds.
func (s *swarm) latency() *hdrhistogram.Histogram {
	h := hdrhistogram.New(1, slowest, 3)
	s.each(func(sh *shard) { h.Merge(sh.latency) })
	return h
}

// watchEnd makes ending hold the events that are due from then on.
func (s *swarm) watchEnd(from int64) { s.each(func(sh *shard) { sh.endFrom = from }) }

// ending is the part of latency that watchEnd asked for since the last reset.
func (s *swarm) ending() *hdrhistogram.Histogram {
	h := hdrhistogram.New(1, slowest, 3)
	s.each(func(sh *shard) { h.Merge(sh.ending) })
	return h
}

// resumed is the distribution of the time from the loss of a connection, or the
// first connect(2), to ready.
func (s *swarm) resumed() *hdrhistogram.Histogram {
	h := hdrhistogram.New(1, slowest, 3)
	s.each(func(sh *shard) { h.Merge(sh.resumed) })
	return h
}

// tally sums up everything that was counted.
func (s *swarm) tally() (t tally) {
	s.each(func(sh *shard) {
		t.recovered += sh.t.recovered
		t.misattributed += sh.t.misattributed
		t.misplaced += sh.t.misplaced
		t.malformed += sh.t.malformed
		t.unrecovered += sh.t.unrecovered
		t.wrongAcknowledgement += sh.t.wrongAcknowledgement
		t.refused += sh.t.refused
		t.ready += sh.t.ready
		t.ended += sh.t.ended
	})
	return t
}

// faults are those of the swarm's whole life. They are complete only when all
// that was sent had the time to arrive.
func (s *swarm) faults() (f report.Faults) {
	s.each(func(sh *shard) { f = f.Add(sh.faults()) })
	return f
}

// problems are the faults in words: examples, and why connections ended.
func (s *swarm) problems() (lines []string) {
	reasons := make(map[string]int)
	s.each(func(sh *shard) {
		lines = append(lines, sh.examples...)
		for _, c := range sh.conns {
			if n, first := c.lost(); n > 0 && len(lines) < maxExamples {
				lines = append(lines, fmt.Sprintf("connection %d did not get %d events of %s, the first is %d", c.number, n, c.room.name, first))
			}
		}
		for text, n := range sh.reasons {
			reasons[text] += n
		}
	})
	if len(lines) > maxExamples {
		lines = lines[:maxExamples]
	}
	texts := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int { return reasons[b] - reasons[a] })
	for i, text := range texts {
		if i == maxExamples {
			lines = append(lines, fmt.Sprintf("… and %d other reasons", len(texts)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("%d × %s", reasons[text], text))
	}
	return lines
}

// reconnect drops connections as a network failure does and lets them come back
// at once, from their position. It waits until all are ready again.
func (s *swarm) reconnect(ctx context.Context, some []*conn) error {
	before := s.counts()
	for _, c := range some {
		sh := c.shard
		sh.mu.Lock()
		if c.state == subscribed {
			s.dropped++
			c.drop(false)
			c.dialed = s.now()
			sh.queue = append(sh.queue, c)
		}
		sh.publish()
		sh.mu.Unlock()
	}
	s.each(func(sh *shard) { sh.fill() })
	return s.wait(ctx, func(c *counts) bool { return c.ready+c.ended-before.ended >= before.ready })
}

// settle gives what should not come the time to come: it waits until no event
// has come for the time quiet, and then for the answer of the server to everybody's
// unsubscribe, behind which nothing of the room may be on its way.
func (s *swarm) settle(ctx context.Context, quiet time.Duration) error {
	begin := time.Now()
	seen, since := s.counts().seen, begin
	err := s.wait(ctx, func(c *counts) bool {
		if c.seen != seen {
			seen, since = c.seen, time.Now()
		}
		return time.Since(since) >= quiet || time.Since(begin) > quiet+s.options.stall
	})
	if err != nil {
		return err
	}
	if time.Since(since) < quiet {
		return fmt.Errorf("events come %v after the last was due", time.Since(begin).Round(time.Second))
	}
	s.each(func(sh *shard) {
		for _, c := range sh.conns {
			if c.state == subscribed && !c.stalled {
				c.leave()
			}
		}
	})
	if err := s.wait(ctx, func(c *counts) bool { return c.leaving == 0 }); err != nil {
		return fmt.Errorf("unsubscribe: %w", err)
	}
	return nil
}

// close drops all connections and ends the reading.
func (s *swarm) close(reset bool) {
	for _, sh := range s.shards {
		sh.mu.Lock()
		sh.closing = true
		for _, c := range sh.conns {
			c.drop(reset)
		}
		sh.publish()
		sh.mu.Unlock()
		if sh.network != nil {
			sh.network.close()
		}
	}
}
