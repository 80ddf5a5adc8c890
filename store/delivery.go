package store

import "context"

// delivery is a batch from before its COMMIT until Options.Committed has been told
// of it: readers see what it wrote a little before the subscribers' logs know.
type delivery struct {
	events []Event
	done   chan struct{}
}

// deliver announces the events of b, which is about to be committed.
func (w *writer) deliver(b *batch) {
	if len(b.events) > 0 {
		w.delivering.Store(&delivery{events: b.events, done: make(chan struct{})})
	}
}

// delivered ends that, if it was begun.
func (w *writer) delivered() {
	if d := w.delivering.Swap(nil); d != nil {
		close(d.done)
	}
}

// holds says whether the batch moved a room up to this position, or part of the way.
func (d *delivery) holds(room string, top Position) bool {
	for i := range d.events {
		if e := &d.events[i]; e.Publication.Offset <= top.Offset && e.Room == room && e.Epoch == top.Epoch {
			return true
		}
	}
	return false
}

// awaitDelivery returns once Options.Committed has been told of everything up to
// a position that was read: whoever gets it may go on from there, and finds it known.
// It waits only when the position is one of the batch that is being handed out, never
// for a COMMIT that the reader has not seen.
func (db *DB) awaitDelivery(ctx context.Context, room string, top Position) error {
	d := db.writer.delivering.Load()
	if d == nil || !d.holds(room, top) {
		return nil
	}
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
