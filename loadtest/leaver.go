package loadtest

import (
	"context"
	"errors"
	"math"
	"sync/atomic"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// leaver is what becomes of a connection that loses its right to be there. Its fields
// are guarded by the shard's mu.
type leaver struct {
	conn    *conn
	want    uint16        // code of the close frame that must come
	pending *atomic.Int64 // of all that something is waited for

	until   int64 // no event that is due later may come, on the swarm's clock
	lastDue int64 // of the events that came
	late    int   // events that must not have come
	waited  bool  // counted in pending
	end     error // how the connection ended last; nil while it has not
	at      int64 // when it ended first, on the swarm's clock
	in      bool  // it was subscribed when it must not be
}

// leave makes a connection one that will leave. Events may come until the time that
// [leaver.over] is told.
func leave(c *conn, want uint16, pending *atomic.Int64) *leaver {
	l := &leaver{conn: c, want: want, pending: pending, until: math.MaxInt64}
	c.shard.mu.Lock()
	defer c.shard.mu.Unlock()
	c.leaver = l
	l.waitLocked()
	return l
}

func (l *leaver) waitLocked() {
	l.waited = true
	l.pending.Add(1)
}

func (l *leaver) arrivedLocked() {
	if l.waited {
		l.waited = false
		l.pending.Add(-1)
	}
}

// over says that no event that is due later may come.
func (l *leaver) over(until int64) {
	l.conn.shard.mu.Lock()
	defer l.conn.shard.mu.Unlock()
	l.until = until
	if l.lastDue > until { // came before it was known
		l.late++
	}
}

// got takes an event; shard.mu is held, as for the next two.
func (l *leaver) got(due int64) {
	if l.lastDue = max(l.lastDue, due); due > l.until {
		l.late++
	}
}

// ended is called when its socket has ended.
func (l *leaver) ended(err error, at int64) {
	if l.end = err; l.at == 0 {
		l.at = at
	}
	l.arrivedLocked()
}

// admitted is called when it is subscribed again.
func (l *leaver) admitted() {
	l.in = true
	l.arrivedLocked()
}

// closedWith says whether it was closed as it must be.
func (l *leaver) closedWith() bool {
	var closed *closedError
	return errors.As(l.end, &closed) && closed.code == l.want
}

// refused says whether the attempt to come back was refused as tokens are: closed for
// good, or told that the token is over.
func (l *leaver) refused() bool {
	var closed *closedError
	var refused *refusedError
	return !l.in && (errors.As(l.end, &closed) && closed.code == closeInvalidToken ||
		errors.As(l.end, &refused) && refused.code == errorTokenExpired)
}

// What servers of the protocol say of tokens.
const (
	closeExpired      = 3005
	closeInvalidToken = 3500
	errorTokenExpired = 109
)

// comeBack lets all of them try to connect once more.
func (s *swarm) comeBack(ctx context.Context, all []*leaver) error {
	for _, l := range all {
		sh := l.conn.shard
		sh.mu.Lock()
		if l.end != nil {
			l.end = nil
			l.waitLocked()
			sh.queue = append(sh.queue, l.conn)
		}
		sh.mu.Unlock()
	}
	s.each(func(sh *shard) { sh.fill() })
	return s.gone(ctx, all)
}

// gone waits until nothing is waited for of any of them.
func (s *swarm) gone(ctx context.Context, all []*leaver) error {
	if len(all) == 0 {
		return nil
	}
	return s.wait(ctx, func(*counts) bool { return all[0].pending.Load() == 0 })
}

// eachLeaver calls f for each of some, with its shard's lock held.
func eachLeaver(all []*leaver, f func(l *leaver)) {
	for _, l := range all {
		l.conn.shard.mu.Lock()
		f(l)
		l.conn.shard.mu.Unlock()
	}
}

// closings are the times, in microseconds, from another time until each was closed
// first.
func closings(all []*leaver, from func(i int) int64) *hdrhistogram.Histogram {
	h := newHistogram()
	for i, l := range all {
		l.conn.shard.mu.Lock()
		if l.at != 0 {
			_ = h.RecordValue(max(1, min((l.at-from(i))/1000, slowest)))
		}
		l.conn.shard.mu.Unlock()
	}
	return h
}
