package store

import (
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

// queue holds the operations that wait, oldest first. An entry that waits longer
// than timeout leaves it with ErrWriteTimeout, even while the writer is stuck.
type queue struct {
	// fixed after new
	maxEntries int
	maxBytes   int
	timeout    time.Duration
	start      time.Time
	wake       chan struct{} // has a token when there may be work or the queue closed

	mu      sync.Mutex
	entries []entry // entries[head:] wait
	head    int
	bytes   int
	closed  bool
	armed   bool        // timer is running
	timer   *time.Timer // fires when the oldest entry may be overdue
}

func newQueue(entries, bytes int, timeout time.Duration) *queue {
	q := &queue{
		maxEntries: entries, maxBytes: bytes, timeout: timeout,
		start: time.Now(), wake: make(chan struct{}, 1),
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
	case len(q.entries)-q.head >= q.maxEntries, q.bytes+bytes > q.maxBytes:
		q.mu.Unlock()
		return ErrQueueFull
	}
	q.entries = append(q.entries, entry{op: op, done: done, bytes: bytes, since: now})
	q.bytes += bytes
	if !q.armed {
		q.armed = true
		q.timer.Reset(q.timeout)
	}
	q.mu.Unlock()
	q.signal()
	return nil
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take moves what waits into dst, up to entries and bytes but at least one.
// open is false when there will never be more.
func (q *queue) take(dst []entry, entries, bytes int) (batch []entry, open bool) {
	q.mu.Lock()
	overdue := q.overdueLocked()
	size := 0
	for q.head < len(q.entries) && len(dst) < entries {
		e := q.entries[q.head]
		if len(dst) > 0 && size+e.bytes > bytes {
			break
		}
		size += e.bytes
		dst = append(dst, e)
		q.dropLocked()
	}
	open = !q.closed || q.head < len(q.entries)
	q.mu.Unlock()
	refuse(overdue, ErrWriteTimeout)
	return dst, open
}

// dropLocked removes the oldest entry.
func (q *queue) dropLocked() {
	q.bytes -= q.entries[q.head].bytes
	q.entries[q.head] = entry{}
	q.head++
	switch {
	case q.head == len(q.entries):
		q.entries, q.head = q.entries[:0], 0
	case q.head >= 1024 && q.head > len(q.entries)/2:
		n := copy(q.entries, q.entries[q.head:])
		clear(q.entries[n:])
		q.entries, q.head = q.entries[:n], 0
	}
}

// overdueLocked removes the entries that waited too long and returns them.
func (q *queue) overdueLocked() []entry {
	var overdue []entry
	now := time.Since(q.start)
	for q.head < len(q.entries) && now-q.entries[q.head].since >= q.timeout {
		overdue = append(overdue, q.entries[q.head])
		q.dropLocked()
	}
	return overdue
}

// expire runs when the oldest entry may be overdue.
func (q *queue) expire() {
	q.mu.Lock()
	overdue := q.overdueLocked()
	q.armed = q.head < len(q.entries)
	if q.armed {
		q.timer.Reset(q.entries[q.head].since + q.timeout - time.Since(q.start))
	}
	q.mu.Unlock()
	refuse(overdue, ErrWriteTimeout)
}

// waiting returns what waits, and how long the oldest of it has.
func (q *queue) waiting() (entries, bytes int, oldest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if entries = len(q.entries) - q.head; entries > 0 {
		oldest = time.Since(q.start) - q.entries[q.head].since
	}
	return entries, q.bytes, oldest
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
	waiting := append([]entry(nil), q.entries[q.head:]...)
	q.entries, q.head, q.bytes = nil, 0, 0
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
