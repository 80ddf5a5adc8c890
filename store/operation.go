package store

import (
	"encoding/json"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// operation is one kind of write. apply runs it inside a savepoint of the
// writer's transaction: it may run again after a failure, must not keep
// anything of the transaction, and changes the room's counters and the batch
// last, when nothing can fail any more.
type operation interface {
	// in is the room that it is about, within which operations keep their order.
	in() string
	apply(w *writer, b *batch) (Result, error)
}

// batch is one transaction's work and outcome.
type batch struct {
	entries   []entry
	results   []outcome // of entries
	events    []Event
	dirty     []*room // rooms whose counters changed
	published uint64
	produced  int // bytes of events, values and results
}

// outcome of one operation: its result or its refusal.
type outcome struct {
	Result
	err error
}

func newBatch(entries []entry) *batch {
	return &batch{entries: entries, results: make([]outcome, len(entries))}
}

// cut leaves all but the first n entries to another batch.
func (b *batch) cut(n int) {
	b.entries, b.results = b.entries[:n], b.results[:n]
}

func (b *batch) touch(r *room) {
	if !r.dirty {
		r.dirty = true
		b.dirty = append(b.dirty, r)
	}
}

// emit adds an event; room for all the batch is made at once.
func (b *batch) emit(e Event) {
	if b.events == nil {
		b.events = make([]Event, 0, len(b.entries))
	}
	b.events = append(b.events, e)
	b.produced += e.Publication.bytes()
}

// isRefusal tells an operation's own refusal from a failure.
func isRefusal(err error) bool {
	if errors.Is(err, ErrIDReused) || errors.Is(err, ErrRoomLimit) || errors.Is(err, ErrTooLarge) {
		return true
	}
	_, ok := errors.AsType[*StepError](err)
	return ok
}

// isConstraint tells the only failure that is certain to have undone its own
// statement and nothing else (sqlite.org/lang_conflict.html, ABORT); any other
// may have ended the transaction (sqlite.org/lang_transaction.html, section 3).
func isConstraint(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_CONSTRAINT
}

// publish stores one publication.
type publish struct {
	Publish
	hash []byte // of the data, when there is an ID
}

func (p *publish) in() string { return p.Room }

func (p *publish) apply(w *writer, b *batch) (Result, error) {
	r, err := w.room(p.Room)
	if err != nil {
		return Result{}, err
	}
	result := Result{Offset: r.top + 1, Epoch: r.epoch}
	if p.ID != "" {
		if earlier, found, err := w.claim(r, p, result); found || err != nil {
			return earlier, err
		}
	}
	return result, w.add(b, r, p.Publication)
}

// add makes pub the next event of r, the last thing that an operation does.
func (w *writer) add(b *batch, r *room, pub Publication) error {
	pub.Offset = r.top + 1
	pub.Time = max(w.now, r.time)
	retained := w.options.Retention(r.name).Size > 0
	if retained {
		if err := w.insertPublication(r, &pub); err != nil {
			return err
		}
	}
	r.top, r.time = pub.Offset, pub.Time
	switch {
	case !retained:
		r.first = r.top + 1
	case r.oldest == 0:
		r.oldest = r.top
	}
	b.touch(r)
	b.emit(Event{Room: r.name, Epoch: r.epoch, Publication: pub})
	b.published++
	return nil
}

func (w *writer) insertPublication(r *room, p *Publication) error {
	var tags any
	if len(p.Tags) > 0 {
		b, err := json.Marshal(p.Tags)
		if err != nil {
			return fmt.Errorf("encode tags: %w", err)
		}
		tags = string(b)
	}
	return w.exec(insertEvent, r.id, int64(p.Offset), p.Time, p.User, p.Client,
		blob(p.ConnInfo), blob(p.ChanInfo), tags, blob(p.Data))
}

// blob makes an empty value NULL.
func blob(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

// removal begins a new incarnation of a room.
type removal struct{ room string }

func (o *removal) in() string { return o.room }

func (o *removal) apply(w *writer, b *batch) (Result, error) {
	r, err := w.existing(o.room)
	if err != nil {
		return Result{}, err
	}
	if r == nil {
		return Result{Epoch: roomEpoch(w.epoch, 0)}, nil
	}
	r.incarnation++
	r.epoch = roomEpoch(w.epoch, r.incarnation)
	r.first = r.top + 1
	w.sweep.due = true
	b.touch(r)
	b.emit(Event{Room: r.name, Epoch: r.epoch, Removed: true, Publication: Publication{Offset: r.top}})
	return Result{Offset: r.top, Epoch: r.epoch}, nil
}

// probe writes as little as possible.
type probe struct{}

func (probe) in() string { return "" }

func (probe) apply(w *writer, _ *batch) (Result, error) {
	return Result{}, w.exec(touch, w.now)
}
