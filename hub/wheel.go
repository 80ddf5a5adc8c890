package hub

import "time"

// wheel is the timer wheel of one loop: every connection has one timer in it,
// set to the earliest of its deadlines. Setting, moving and stopping a timer
// costs a few pointer writes. Owned by the loop.
//
// A timer fires at the first tick at or after its time, so never early. Times
// beyond the wheel's horizon park in its last slot and are put off again there.
type wheel struct {
	tick  time.Duration
	now   int64 // last tick that has fired, in ticks since the clock's zero
	slots []timer
	count int
}

// timer is a node of a slot's ring; the zero value is stopped.
type timer struct {
	prev, next *timer
	due        int64 // in ticks
	conn       *conn
}

const (
	wheelTick  = 50 * time.Millisecond
	wheelSlots = 1024 // a horizon of 51 s, beyond the ping interval
)

func newWheel(now time.Duration) *wheel {
	w := &wheel{tick: wheelTick, now: int64(now / wheelTick), slots: make([]timer, wheelSlots)}
	for i := range w.slots {
		w.slots[i].prev, w.slots[i].next = &w.slots[i], &w.slots[i]
	}
	return w
}

// set makes t fire at when (since the clock's zero), instead of before.
func (w *wheel) set(t *timer, when time.Duration) {
	due := int64((when + w.tick - 1) / w.tick)
	if due <= w.now {
		due = w.now + 1
	}
	if t.next != nil {
		if t.due == due {
			return
		}
		w.stop(t)
	}
	t.due = due
	w.insert(t)
	w.count++
}

func (w *wheel) insert(t *timer) {
	at := min(t.due, w.now+int64(len(w.slots))-1)
	head := &w.slots[at%int64(len(w.slots))]
	t.prev, t.next = head.prev, head
	t.prev.next, head.prev = t, t
}

// stop makes t not fire; stopping a stopped timer does nothing.
func (w *wheel) stop(t *timer) {
	if t.next == nil {
		return
	}
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
	w.count--
}

// advance fires what is due at now, in order of its tick. fire may set and stop
// any timer.
func (w *wheel) advance(now time.Duration, fire func(*conn)) {
	for end := int64(now / w.tick); w.now < end; {
		if w.count == 0 {
			w.now = end
			return
		}
		w.now++
		head := &w.slots[w.now%int64(len(w.slots))]
		for t := head.next; t != head; t = head.next {
			w.stop(t)
			if t.due > w.now { // parked at the horizon
				w.insert(t)
				w.count++
				continue
			}
			fire(t.conn)
		}
	}
}

// wait is how long a loop may sleep before the next advance; negative: for ever.
func (w *wheel) wait(now time.Duration) time.Duration {
	if w.count == 0 {
		return -1
	}
	for i := int64(1); i < int64(len(w.slots)); i++ {
		if head := &w.slots[(w.now+i)%int64(len(w.slots))]; head.next != head {
			return max(0, time.Duration(w.now+i)*w.tick-now)
		}
	}
	return max(0, time.Duration(w.now+int64(len(w.slots)))*w.tick-now)
}
