package hub

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"hub/store"
)

// ledger is what the model knows to be true: the events of each durable room in
// the order of their commits.
type ledger struct {
	rooms map[string]*record // fixed after new

	mu     sync.Mutex
	random *rand.Rand // guarded by mu
	stall  bool       // pause between commit and log; fixed after new
}

// record is the truth about one durable room.
type record struct {
	size uint64 // of its history
	// asked and removals count what was submitted, be it committed or not; acked
	// and removed are the top and the removals that somebody was told of.
	asked, removals, acked, removed atomic.Int64

	mu     sync.Mutex
	events []recorded // by offset-1; guarded by mu
	epochs []string   // of each incarnation; guarded by mu
}

type recorded struct {
	data  string
	epoch int // index in epochs
}

func newLedger(random *rand.Rand, stall bool, sizes map[string]uint64) *ledger {
	l := &ledger{rooms: make(map[string]*record), random: random, stall: stall}
	for room, size := range sizes {
		l.rooms[room] = &record{size: size}
	}
	return l
}

// committing is the server's hook of this name.
func (l *ledger) committing(events []store.Event) {
	for i := range events {
		if r := l.rooms[events[i].Room]; r != nil {
			r.add(&events[i])
		}
	}
	if !l.stall {
		return
	}
	l.mu.Lock()
	pause := time.Duration(0)
	if l.random.IntN(4) == 0 {
		pause = time.Duration(l.random.IntN(3000)) * time.Microsecond
	}
	l.mu.Unlock()
	time.Sleep(pause)
}

func (r *record) add(e *store.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.epochs) == 0 || r.epochs[len(r.epochs)-1] != e.Epoch {
		r.epochs = append(r.epochs, e.Epoch)
	}
	if e.Removed {
		return
	}
	if e.Publication.Offset != uint64(len(r.events))+1 {
		panic(fmt.Sprintf("committed offset %d after %d", e.Publication.Offset, len(r.events)))
	}
	r.events = append(r.events, recorded{string(e.Publication.Data), len(r.epochs) - 1})
}

// now is the top and the number of removals that are known to be committed.
func (r *record) now() (top uint64, removals int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return uint64(len(r.events)), len(r.epochs) - 1
}

// acknowledged notes a publication that is known to be committed.
func (r *record) acknowledged(offset uint64) {
	for {
		old := r.acked.Load()
		if int64(offset) <= old || r.acked.CompareAndSwap(old, int64(offset)) {
			return
		}
	}
}

// incarnation is the index of an epoch, -1 when it is unknown.
func (r *record) incarnation(epoch string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, e := range r.epochs {
		if e == epoch {
			return i
		}
	}
	return -1
}

// recoverable checks what a reply says of a recovery since an offset in an epoch
// against what was true between its request, when top and removals were those
// given, and now.
func (r *record) recoverable(recovered bool, since uint64, epoch string, top uint64, removals int) error {
	incarnation := r.incarnation(epoch)
	switch {
	case incarnation < 0:
		return fmt.Errorf("unknown epoch %q", epoch)
	case recovered && incarnation < removals:
		return fmt.Errorf("recovered:true in a history that was removed before")
	case recovered && since > uint64(r.asked.Load()):
		return fmt.Errorf("recovered:true since %d, where the room has not been", since)
	case recovered && since+r.size < top:
		return fmt.Errorf("recovered:true since %d of %d, of which %d are kept", since, top, r.size)
	}
	if most := uint64(r.asked.Load()); !recovered && since <= top && int64(incarnation) == r.removals.Load() && since+r.size >= most {
		return fmt.Errorf("recovered:false since %d of %d to %d, of which %d are kept", since, top, most, r.size)
	}
	return nil
}

// seen is one publication that a client got.
type seen struct {
	room   string
	offset uint64
	data   string
}

// check compares what a client saw with the truth.
func (l *ledger) check(s seen) error {
	r := l.rooms[s.room]
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.offset == 0 || s.offset > uint64(len(r.events)) {
		return fmt.Errorf("room %s has no offset %d", s.room, s.offset)
	}
	if want := r.events[s.offset-1].data; want != s.data {
		return fmt.Errorf("room %s offset %d: got %s, want %s", s.room, s.offset, s.data, want)
	}
	return nil
}
