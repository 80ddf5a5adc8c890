package ratelimit

import (
	"math"
	"time"
)

// maxTime, in nanoseconds, leaves room for a [table]'s sums: 73 years.
const maxTime = math.MaxInt64 / 4

// idle is how long a bucket has been full before it goes without need.
const idle = int64(time.Minute)

// table is a bounded set of buckets with one limit. One that is not in it is
// full. It belongs to its [Gate]'s lock; time never steps back.
type table[K comparable] struct {
	max    int // fixed after new
	limit  Limit
	byKey  map[K]*entry[K]
	byFull []*entry[K] // a binary heap: the first is full first
	spare  *entry[K]   // of a bucket that was dropped, for the next one
}

// entry is one bucket of a table.
type entry[K comparable] struct {
	Bucket
	key   K
	full  int64 // when it is full again, if nothing more is spent
	index int   // in byFull
}

func newTable[K comparable](entries int) table[K] {
	return table[K]{max: max(1, entries), byKey: map[K]*entry[K]{}}
}

// find returns the bucket of k, or nil when it is not in the table and so is
// full, and how long a token of it takes: 0 when there is one (and a place for
// the bucket), else at most [maxRetry]. Without a limit it is nil and 0.
func (t *table[K]) find(k K, now int64) (*entry[K], time.Duration) {
	if t.limit.off() {
		return nil, 0
	}
	if !t.limit.valid() {
		return nil, maxRetry
	}
	e := t.byKey[k]
	if e == nil {
		return nil, t.makeRoom(now)
	}
	e.refill(t.limit.PerSecond, now)
	lacking := e.spent + 1 - float64(t.limit.Burst)
	if lacking <= slack {
		return e, 0
	}
	return e, min(maxRetry, t.timeFor(lacking))
}

// makeRoom drops buckets so that one more has a place, and returns 0 or, when
// all are in debt, the time until one is not. Below the bound it drops what was
// idle, two for each newcomer, so that the table shrinks after a flood.
func (t *table[K]) makeRoom(now int64) time.Duration {
	for range 2 {
		if len(t.byFull) > 0 && t.byFull[0].full+idle <= now {
			t.dropFirst()
		}
	}
	if len(t.byFull) < t.max {
		return 0
	}
	if wait := t.byFull[0].full - now; wait > 0 {
		return min(maxRetry, time.Duration(wait))
	}
	t.dropFirst()
	return 0
}

func (t *table[K]) dropFirst() {
	first, last := t.byFull[0], len(t.byFull)-1
	t.place(t.byFull[last], 0)
	t.byFull[last] = nil
	t.byFull = t.byFull[:last]
	t.sink(0)
	delete(t.byKey, first.key)
	t.spare = first
}

// spend takes a token of e: find has told that there is one.
func (t *table[K]) spend(e *entry[K], now int64) {
	e.spent++
	e.full = now + int64(t.timeFor(e.spent))
	t.sink(e.index)
}

// add puts a full bucket in the place that find made.
func (t *table[K]) add(k K, now int64) *entry[K] {
	e := t.spare
	if t.spare = nil; e == nil {
		e = &entry[K]{}
	}
	*e = entry[K]{Bucket: Bucket{last: now}, key: k, full: now}
	t.byKey[k] = e
	t.byFull = append(t.byFull, e)
	t.rise(len(t.byFull)-1, e)
	return e
}

// timeFor returns how long tokens take to come back, rounded up.
func (t *table[K]) timeFor(tokens float64) time.Duration {
	return time.Duration(min(maxTime, math.Ceil(tokens/t.limit.PerSecond*1e9)))
}

// setLimit changes the limit and keeps what was spent. All debts change by the
// same factor, so the heap stays in order (but for a nanosecond of rounding).
func (t *table[K]) setLimit(l Limit, now int64) {
	old := t.limit
	t.limit = l
	if !l.valid() {
		clear(t.byKey)
		t.byFull, t.spare = nil, nil
		return
	}
	for _, e := range t.byFull {
		e.refill(old.PerSecond, now)
		e.full = now + int64(t.timeFor(e.spent))
	}
}

// sink moves the bucket at i down to where no later one is above it.
func (t *table[K]) sink(i int) {
	if i >= len(t.byFull) {
		return
	}
	e := t.byFull[i]
	for {
		child := 2*i + 1
		if child >= len(t.byFull) {
			break
		}
		if right := child + 1; right < len(t.byFull) && t.byFull[right].full < t.byFull[child].full {
			child = right
		}
		if e.full <= t.byFull[child].full {
			break
		}
		t.place(t.byFull[child], i)
		i = child
	}
	t.place(e, i)
}

// rise moves e, at i, up to where no later one is above it.
func (t *table[K]) rise(i int, e *entry[K]) {
	for i > 0 {
		parent := (i - 1) / 2
		if t.byFull[parent].full <= e.full {
			break
		}
		t.place(t.byFull[parent], i)
		i = parent
	}
	t.place(e, i)
}

func (t *table[K]) place(e *entry[K], i int) {
	t.byFull[i] = e
	e.index = i
}
