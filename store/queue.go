package store

import (
	"math"
	"sync"
	"time"
)

// queueBytes bounds what waits for the writer.
const queueBytes = 64 << 20

// entry is one operation that waits for its turn, with whom to tell.
type entry struct {
	op    operation
	done  func(Result, error)
	bytes int
	since time.Duration // on the clock of the queue
}

// fifo is a queue in which first is constant time, push and pop are so on average.
type fifo[T any] struct {
	items []T // items[head:] are in it
	head  int
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

// first is the oldest element; there is one.
func (f *fifo[T]) first() T { return f.items[f.head] }

func (f *fifo[T]) push(item T) { f.items = append(f.items, item) }

// pop removes the oldest element; there is one.
func (f *fifo[T]) pop() T {
	var none T
	item := f.items[f.head]
	f.items[f.head] = none
	f.head++
	switch {
	case f.head == len(f.items):
		f.items, f.head = f.items[:0], 0
	case f.head >= 1024 && f.head > len(f.items)/2:
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	return item
}

// line holds what waits for one room: a room's operations keep their order, and no
// others need one.
type line struct {
	room string
	fifo[entry]
}

// turn is how many operations a room may have done at its turn: so many are
// committed together, so that their events reach each subscriber in one write.
const turn = 16

// queue holds the operations that wait. Rooms take turns, a few operations each, so
// that a flood in one room delays the others by little more than the batch under
// way. An entry that waits longer than timeout leaves with ErrWriteTimeout, even
// while the writer is stuck.
type queue struct {
	// fixed after new
	maxEntries int
	maxBytes   int
	timeout    time.Duration
	start      time.Time
	wake       chan struct{} // has a token when there may be work or the queue closed

	mu      sync.Mutex
	lines   map[string]*line // by room; those that hold something
	turns   fifo[*line]      // the same
	taken   int              // by the line whose turn it is
	spare   []*line          // empty ones, for reuse
	entries int
	bytes   int
	closed  bool
	armed   bool        // timer is running
	timer   *time.Timer // fires when the oldest entry may be overdue
}

// spareLines and spareEntries bound what an empty queue keeps for reuse.
const (
	spareLines   = 128
	spareEntries = 128
)

func newQueue(entries, bytes int, timeout time.Duration) *queue {
	q := &queue{
		maxEntries: entries, maxBytes: bytes, timeout: timeout,
		start: time.Now(), wake: make(chan struct{}, 1), lines: make(map[string]*line),
	}
	q.timer = time.AfterFunc(timeout, q.expire)
	q.timer.Stop()
	return q
}

func (q *queue) push(op operation, bytes int, done func(Result, error)) error {
	now := time.Since(q.start)
	q.mu.Lock()
	switch {
	case q.closed:
		q.mu.Unlock()
		return ErrClosed
	case q.entries >= q.maxEntries, q.bytes+bytes > q.maxBytes:
		q.mu.Unlock()
		return ErrQueueFull
	}
	l := q.lineLocked(op.in())
	l.push(entry{op: op, done: done, bytes: bytes, since: now})
	q.entries++
	q.bytes += bytes
	if !q.armed {
		q.armed = true
		q.timer.Reset(q.timeout)
	}
	q.mu.Unlock()
	q.signal()
	return nil
}

// lineLocked returns the line of a room; a new one has the last turn.
func (q *queue) lineLocked(room string) *line {
	l := q.lines[room]
	if l != nil {
		return l
	}
	if n := len(q.spare); n > 0 {
		l, q.spare = q.spare[n-1], q.spare[:n-1]
	} else {
		l = new(line)
	}
	l.room = room
	q.lines[room] = l
	q.turns.push(l)
	return l
}

// emptyLocked ends a line that holds nothing. It is in turns no more.
func (q *queue) emptyLocked(l *line) {
	delete(q.lines, l.room)
	if l.room = ""; cap(l.items) <= spareEntries && len(q.spare) < spareLines {
		q.spare = append(q.spare, l)
	}
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take moves what waits into dst, room by room in turn, up to entries and bytes but
// at least one. open is false when there will never be more.
func (q *queue) take(dst []entry, entries, bytes int) (batch []entry, open bool) {
	var overdue []entry
	now := time.Since(q.start)
	size := 0
	q.mu.Lock()
	for q.entries > 0 && len(dst) < entries {
		first := q.turns.first().first()
		late := now-first.since >= q.timeout
		if !late && len(dst) > 0 && size+first.bytes > bytes {
			break
		}
		e := q.popLocked()
		if late {
			overdue = append(overdue, e)
			continue
		}
		size += e.bytes
		dst = append(dst, e)
	}
	open = !q.closed || q.entries > 0
	q.mu.Unlock()
	refuse(overdue, ErrWriteTimeout)
	return dst, open
}

// popLocked removes the oldest entry of the line whose turn it is, and gives the turn
// to the next when it is over.
func (q *queue) popLocked() entry {
	l := q.turns.first()
	e := q.dropLocked(l)
	if q.taken++; q.taken < turn && l.len() > 0 {
		return e
	}
	q.taken = 0
	q.turns.pop()
	q.againLocked(l)
	return e
}

// dropLocked removes the oldest entry of a line.
func (q *queue) dropLocked(l *line) entry {
	e := l.pop()
	q.entries--
	q.bytes -= e.bytes
	return e
}

// againLocked gives a line another turn, or ends it when nothing is left of it.
func (q *queue) againLocked(l *line) {
	if l.len() > 0 {
		q.turns.push(l)
	} else {
		q.emptyLocked(l)
	}
}

// expire runs when the oldest entry may be overdue. While the writer is stuck it
// looks at each line, so it does that 256 times within timeout at most.
func (q *queue) expire() {
	now := time.Since(q.start)
	q.mu.Lock()
	overdue := q.overdueLocked(now)
	if q.armed = q.entries > 0; q.armed {
		q.timer.Reset(max(q.oldestLocked()+q.timeout-now, q.timeout/256))
	}
	q.mu.Unlock()
	refuse(overdue, ErrWriteTimeout)
}

// overdueLocked removes the entries that waited too long and returns them.
func (q *queue) overdueLocked(now time.Duration) []entry {
	var overdue []entry
	for range q.turns.len() {
		l := q.turns.pop()
		for l.len() > 0 && now-l.first().since >= q.timeout {
			overdue = append(overdue, q.dropLocked(l))
		}
		q.againLocked(l)
	}
	q.taken = 0
	return overdue
}

// oldestLocked returns the time of the entry that has waited longest; there is one.
func (q *queue) oldestLocked() time.Duration {
	oldest := time.Duration(math.MaxInt64)
	for _, l := range q.lines {
		oldest = min(oldest, l.first().since)
	}
	return oldest
}

// waiting returns what waits, and how long the oldest of it has.
func (q *queue) waiting() (entries, bytes int, oldest time.Duration) {
	now := time.Since(q.start)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.entries > 0 {
		oldest = max(0, now-q.oldestLocked())
	}
	return q.entries, q.bytes, oldest
}

// close refuses further entries; those that wait are still served.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

// fail answers everything that waits with err.
func (q *queue) fail(err error) {
	q.mu.Lock()
	var waiting []entry
	for q.entries > 0 {
		waiting = append(waiting, q.popLocked())
	}
	q.timer.Stop()
	q.mu.Unlock()
	refuse(waiting, err)
	q.signal()
}

func refuse(entries []entry, err error) {
	for _, e := range entries {
		e.done(Result{}, err)
	}
}
