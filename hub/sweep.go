package hub

import (
	"errors"
	"slices"
	"time"

	"hub/hub/poll"
)

// The visit of a cold socket is what a delivery costs (about 4 µs, whatever its
// size up to a segment; ten events in one write cost a tenth of ten writes). So
// a sweep visits each receiver of a dirty room as seldom as it can and gives it
// everything then.

const (
	// sweepQuantum is the visits after which the next database has its turn.
	sweepQuantum = 256
	// sweepLook is the visits after which the loop looks at its mail, so that a
	// small room's event does not wait for a big room's sweep.
	sweepLook = 32
	// resumeRuns bounds the runs that one connection is given in an iteration when
	// its socket takes bytes as fast as they come.
	resumeRuns = 64
	// restPerVisit is how long a room rests after a sweep, for each visit of it:
	// about half of what that took. A room that never falls silent would else be
	// swept without a pause, each visit finding little, and receivers on the same
	// machine would wait for a processor. Fewer and fuller visits took p95 at
	// 1,000,000 deliveries a second in a room of 10,000 from 172–228 ms to 129–167 ms
	// on two cores, and a delivery's processor time from 1.28 to 1.01 µs.
	restPerVisit = 3 * time.Microsecond
	// restMin is the shortest rest; smaller rooms take none.
	restMin = time.Millisecond
)

// sweepQueue holds the dirty rooms of a loop: databases take turns, and within
// one its rooms do. Owned by the loop.
type sweepQueue struct {
	byDB map[*database]*dirtyRooms
	// turns are the databases that have dirty rooms.
	turns fifo[*dirtyRooms]
}

// dirtyRooms are the dirty rooms of one database.
type dirtyRooms struct {
	shards fifo[*shard]
	queued bool
}

func (q *sweepQueue) busy() bool { return q.turns.len() > 0 }

// add queues a dirty shard; one that is being swept is swept again.
func (q *sweepQueue) add(sh *shard) {
	if sh.queued {
		sh.again = true
		return
	}
	sh.pos = 0
	q.push(sh)
}

// push queues a shard to be swept from where its sweep stands.
func (q *sweepQueue) push(sh *shard) {
	sh.queued = true
	rooms := q.byDB[sh.room.db]
	if rooms == nil {
		rooms = &dirtyRooms{}
		q.byDB[sh.room.db] = rooms
	}
	rooms.shards.push(sh)
	if !rooms.queued {
		rooms.queued = true
		q.turns.push(rooms)
	}
}

// next takes the shard whose turn it is.
func (q *sweepQueue) next() *shard {
	rooms := q.turns.pop()
	sh := rooms.shards.pop()
	if rooms.queued = rooms.shards.len() > 0; rooms.queued {
		q.turns.push(rooms)
	}
	sh.queued = false
	return sh
}

// fifo is a queue whose operations take constant time, on average.
type fifo[T any] struct {
	items []T
	head  int // items before it have been taken
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

func (f *fifo[T]) push(item T) { f.items = append(f.items, item) }

func (f *fifo[T]) pop() T {
	var none T
	item := f.items[f.head]
	f.items[f.head] = none
	f.head++
	if f.head >= 32 && f.head*2 >= len(f.items) || f.head == len(f.items) {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	return item
}

// sweep visits up to sweepQuantum connections.
func (l *loop) sweep() {
	for visits := 0; visits < sweepQuantum && l.queue.busy(); {
		sh := l.queue.next()
		done, n := l.sweepShard(sh, sweepQuantum-visits)
		visits += n + 1 // a room costs something even when nobody lacks anything
		sh.visits += n
		if done {
			l.swept(sh)
		} else {
			l.queue.push(sh)
		}
	}
}

// swept ends a sweep. What was appended meanwhile is for the next one.
func (l *loop) swept(sh *shard) {
	rest := time.Duration(sh.visits) * restPerVisit
	sh.visits = 0
	switch {
	case rest >= restMin:
		sh.queued = true
		sh.until = time.Since(l.server.start) + rest
		l.resting = append(l.resting, sh)
	case sh.again:
		sh.again = false
		l.queue.add(sh)
	}
}

// wakeRested queues the rooms whose rest is over, if there is something new for them.
func (l *loop) wakeRested() {
	l.resting = slices.DeleteFunc(l.resting, func(sh *shard) bool {
		if sh.until > l.now {
			return false
		}
		sh.queued = false
		if sh.again {
			sh.again = false
			l.queue.add(sh)
		}
		return true
	})
}

// sweepShard goes on with the sweep of a shard, for at most limit visits.
func (l *loop) sweepShard(sh *shard, limit int) (done bool, visits int) {
	sh.dirty.Store(false) // before looking: what comes later marks it again
	sh.queued = true      // new marks ask for another sweep
	defer func() { sh.queued = false }()
	sh.look(l)
	for sh.pos < len(sh.subs) {
		s := sh.subs[sh.pos]
		sh.pos++
		if s.upToDate(&l.pubs[s.conn.enc], &l.signals[s.conn.enc]) {
			continue
		}
		c := s.conn
		if c.blocked || c.held {
			l.checkBacklog(s)
			continue
		}
		l.guard(c, func() { l.deliver(s) })
		if visits++; visits == limit {
			return sh.pos == len(sh.subs), visits
		}
		if visits%sweepLook == 0 && l.mail.Load() {
			l.collect()
			sh.look(l)
		}
	}
	return true, visits
}

// look takes a view of the room's logs into the loop's own.
func (sh *shard) look(l *loop) {
	r := sh.room
	r.mu.Lock()
	defer r.mu.Unlock()
	for enc := range r.feeds {
		l.pubs[enc].head, l.signals[enc].head = 0, 0
		if f := r.feeds[enc]; f != nil {
			f.look(&l.pubs[enc])
		}
		if f := r.signals[enc]; f != nil {
			f.look(&l.signals[enc])
		}
	}
}

// upToDate says whether the subscription lacks nothing.
func (s *sub) upToDate(pubs, signals *view) bool {
	return s.cursor >= pubs.head && (!s.joinLeave || s.signal >= signals.head)
}

// deliver writes what s lacks, in few writes, until its socket blocks. The
// loop's views are of its room.
func (l *loop) deliver(s *sub) {
	for l.deliverRun(s) {
	}
}

// deliverRun writes one run of what s lacks and reports whether there may be more.
func (l *loop) deliverRun(s *sub) bool {
	c := s.conn
	pubs, signals := &l.pubs[c.enc], &l.signals[c.enc]
	switch {
	case s.index < 0 || s.waiting:
		return false
	case s.cursor < pubs.head:
		seg := pubs.after(s.cursor)
		if seg == nil {
			l.fallBehind(s)
			return false
		}
		from := s.cursor
		ok := l.writeRun(c, seg, &s.cursor)
		c.db.stats[l.index].delivered.Add(s.cursor - from)
		return ok
	case s.joinLeave && s.signal < signals.head:
		seg := signals.after(s.signal)
		if seg == nil { // never silently: the client subscribes again and asks who is there
			l.unsubscribe(s, unsubInsufficient)
			return false
		}
		return l.writeRun(c, seg, &s.signal)
	}
	return false
}

// writeRun writes the entries of seg after *cursor, with the connection's unsent
// bytes before them in the same write, and moves *cursor behind the last entry
// that was begun. It reports whether the socket takes more.
func (l *loop) writeRun(c *conn, seg *run, cursor *uint64) bool {
	run := seg.after(*cursor)
	n := l.write(c, run)
	if n == 0 || !c.open() {
		return false
	}
	if n == len(run) {
		*cursor = seg.last()
		return !c.blocked
	}
	written := seg.start(*cursor+1) + uint32(n)
	offset, end := seg.entryAt(written)
	*cursor = offset
	if written < end { // the rest of this entry precedes everything else
		c.out = append(l.takeBuffer(), seg.buf[written:end]...)
		c.pauseIfFull()
	}
	return !c.blocked
}

// write sends the connection's unsent bytes and then run, in one write, and
// returns how much of run was taken; 0 too when unsent bytes are left or the
// connection failed and was closed.
func (l *loop) write(c *conn, run []byte) (n int) {
	l.stats.writes.Add(1)
	var err error
	if unsent := len(c.out); unsent == 0 {
		n, err = c.sock.Write(run)
	} else {
		data := c.out
		if len(run) > 0 {
			l.scratch = append(append(l.scratch[:0], c.out...), run...)
			data = l.scratch
		}
		n, err = c.sock.Write(data)
		if n < unsent {
			c.out = append(c.out[:0], c.out[n:]...)
			n = 0
		} else {
			l.giveBuffer(c.out)
			c.out = nil
			n -= unsent
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, poll.ErrAgain):
		c.block()
	default:
		l.drop(c)
	}
	return n
}

// flushAll writes the replies of this iteration that no visit has taken along.
func (l *loop) flushAll() {
	for len(l.unflushed) > 0 {
		c := l.unflushed[len(l.unflushed)-1]
		l.unflushed = l.unflushed[:len(l.unflushed)-1]
		c.unflushed = false
		if !c.blocked && !c.gone() {
			l.guard(c, func() { l.flush(c) })
		}
	}
}

// flush writes the unsent bytes, if a visit has not.
func (l *loop) flush(c *conn) {
	if len(c.out) > 0 {
		l.write(c, nil)
	}
	l.afterWrite(c)
}

// resume goes on writing when a blocked socket is writable again: first the
// unsent bytes, then the rooms that lag, taking turns.
func (l *loop) resume(c *conn) {
	c.unblock()
	if len(c.out) > 0 {
		l.write(c, nil)
	}
	if c.held {
		return
	}
	runs := 0
	for busy := true; busy && c.open() && !c.blocked; {
		busy = false
		for range len(c.subs) {
			if !c.open() || c.blocked || len(c.subs) == 0 {
				break
			}
			c.turn = (c.turn + 1) % int32(len(c.subs))
			s := c.subs[c.turn]
			if s.index < 0 || !s.joinLeave && s.cursor >= s.shard.room.head.Load() {
				continue
			}
			if runs++; runs > resumeRuns { // others have their turn; the socket will say so again
				c.block()
				break
			}
			s.shard.look(l)
			busy = l.deliverRun(s) || busy
		}
	}
	l.afterWrite(c)
}

// checkBacklog ends a blocked connection that has lost its place: what it lacks
// has left the history or, in a room without one, the log.
func (l *loop) checkBacklog(s *sub) {
	c, r := s.conn, s.shard.room
	v := &l.pubs[c.enc]
	lost := s.cursor < v.base
	if r.durable() {
		lost = lost && (s.cursor < r.floor.Load() || v.head-s.cursor > r.options.Load().HistorySize)
	}
	if lost && c.blocked {
		l.slow(c)
	}
}

// slow disconnects a connection that lost its place.
func (l *loop) slow(c *conn) {
	l.server.metrics.slow.Inc()
	l.disconnect(c, closeSlow)
}

// fallBehind is for a cursor that the log does not reach back to: it waits for a
// page from the store, or has lost its place.
func (l *loop) fallBehind(s *sub) {
	r := s.shard.room
	switch {
	case !r.durable():
		l.slow(s.conn)
	case s.cursor < r.floor.Load():
		l.lost(s)
	default:
		s.waiting = true
		s.shard.behind = append(s.shard.behind, s)
		r.requestPage(s.cursor)
	}
}

// lost ends a subscription whose next publication is gone.
func (l *loop) lost(s *sub) {
	if s.conn.blocked {
		l.slow(s.conn)
		return
	}
	l.unsubscribe(s, unsubInsufficient)
}

// catchUp goes on with those who wait for a page, when one has arrived or could
// not be read. Who is still not served asks for the next page before anybody
// that is served may, so that no starting point starves another.
func (l *loop) catchUp(sh *shard, failed bool) {
	behind := sh.behind
	sh.behind = nil
	served := behind[:0:0]
	sh.look(l)
	for _, s := range behind {
		switch pubs := &l.pubs[s.conn.enc]; {
		case !s.waiting: // gone meanwhile
		case !failed && s.cursor >= sh.room.floor.Load() && s.cursor < pubs.head && pubs.find(s.cursor) == nil:
			sh.behind = append(sh.behind, s)
			sh.room.requestPage(s.cursor)
		default:
			served = append(served, s)
		}
	}
	for _, s := range served {
		l.guard(s.conn, func() { l.served(s, failed) })
	}
}

// served goes on with one of them.
func (l *loop) served(s *sub, failed bool) {
	if !s.waiting {
		return
	}
	s.waiting = false
	s.shard.look(l)
	switch rec := s.recovery; {
	case rec != nil && failed:
		s.recovery = nil
		rec.fail(l, errInternal)
	case rec != nil:
		s.recovery = nil
		rec.finish(l)
	case failed:
		l.lost(s)
	case s.cursor < s.shard.room.floor.Load():
		l.lost(s)
	case !s.conn.blocked && !s.conn.held:
		l.deliver(s)
		l.afterWrite(s.conn)
	}
}
