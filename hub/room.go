package hub

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
	"hub/store"
)

// room is the live part of a room: its log and who follows it. It exists while
// somebody is subscribed; everything durable is in the store.
//
// The log is shared: the database's writer (or, in a room without history, the
// publisher's loop) appends under mu and marks the room dirty in every loop that
// has receivers; each loop then brings its own receivers up to date.
type room struct {
	// fixed after new
	db     *database
	name   string
	kept   bool    // durable: its history is in the store
	shards []shard // one per loop

	// options are those of its namespace; a reload sets others. Written under the
	// database's mu.
	options atomic.Pointer[Namespace]

	// head is the offset of the last publication, as far as the log knows. In a
	// room without history it is internal and never told. Written under mu.
	head atomic.Uint64
	// floor: a cursor below it cannot go on, its next publication is gone. Written under mu.
	floor atomic.Uint64
	// generation counts the times when history was removed. Written under mu.
	generation atomic.Uint32
	// members counts live subscriptions.
	members atomic.Int64

	mu        sync.Mutex
	state     roomState               // guarded by mu
	epoch     string                  // guarded by mu
	users     int                     // subscriptions, also those under way; guarded by mu
	feeds     [wire.Encodings]*feed   // nil while nobody uses the encoding; guarded by mu
	signals   [wire.Encodings]*feed   // joins and leaves; as feeds
	interest  [wire.Encodings]int     // users per encoding; guarded by mu
	waiting   []func(*protocol.Error) // subscriptions that wait for the state; guarded by mu
	reading   bool                    // a page is being read; guarded by mu
	scratch   [wire.Encodings][]byte  // for encoding; guarded by mu
	pending   []signal                // joins and leaves to come; guarded by mu
	signalNow bool                    // pending is about to be appended; guarded by mu
}

type roomState uint8

const (
	roomLoading roomState = iota // the store has not told its position yet
	roomReady
	roomDead // no longer in the database's table
)

// shard is the part of a room that belongs to one loop.
type shard struct {
	room *room
	loop *loop

	// dirty is set by whoever appended, cleared by the loop before it looks.
	dirty atomic.Bool
	// users is guarded by the room's mu.
	users int

	// owned by loop:

	subs   []*sub // live subscriptions
	behind []*sub // those that wait for a page from the store, longest first
	// pos is the next subscription of the sweep under way; those before it have
	// been visited, visits of them in all. again asks for another sweep, queued
	// says that the shard is in the loop's queue or rests until a time on the
	// loop's clock.
	pos, visits   int
	again, queued bool
	until         time.Duration
}

func newRoom(db *database, name string, ns *Namespace) *room {
	r := &room{db: db, name: name, kept: ns.Durable, shards: make([]shard, len(db.server.loops))}
	r.options.Store(ns)
	for i := range r.shards {
		r.shards[i].room, r.shards[i].loop = r, db.server.loops[i]
	}
	if !r.durable() {
		r.state = roomReady
	}
	return r
}

func (r *room) durable() bool { return r.kept }

// keep is the bytes of entries that each of the room's logs keeps at least.
func (r *room) keep() int64 {
	if r.durable() {
		return r.db.server.sizes.keepDurable
	}
	return r.db.server.sizes.keepEphemeral
}

// join announces a subscription of loop l: from here on the log is kept in its
// encoding. It fails when the room has died; then ask the database again.
func (r *room) join(l *loop, enc wire.Encoding) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == roomDead {
		return false
	}
	r.users++
	r.shards[l.index].users++
	if r.interest[enc]++; r.interest[enc] == 1 {
		r.feeds[enc] = &feed{room: r, enc: enc, base: r.head.Load(), head: r.head.Load()}
	}
	if r.signals[enc] == nil && r.options.Load().JoinLeave {
		r.signals[enc] = &feed{room: r, enc: enc}
	}
	return true
}

// leave takes one join back. The last one ends the room.
func (r *room) leave(l *loop, enc wire.Encoding) {
	r.mu.Lock()
	r.users--
	r.shards[l.index].users--
	if r.interest[enc]--; r.interest[enc] == 0 {
		r.feeds[enc].reset(0)
		r.feeds[enc] = nil
		if r.signals[enc] != nil {
			r.signals[enc].reset(0)
			r.signals[enc] = nil
		}
	}
	last := r.users == 0
	r.mu.Unlock()
	if last {
		r.db.reap(r)
	}
}

// position is where the room stands.
func (r *room) position() (offset uint64, epoch string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.head.Load(), r.epoch
}

// whenReady calls f on any goroutine once the room's position is known, with an
// error if the store could not tell. It reports false, without calling f, when
// that is known already.
func (r *room) whenReady(f func(*protocol.Error)) (wait bool, e *protocol.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.state {
	case roomLoading:
		r.waiting = append(r.waiting, f)
		return true, nil
	case roomDead:
		return false, errInternal
	}
	return false, nil
}

// loaded ends roomLoading with what the store said.
func (r *room) loaded(p store.Position, err error) {
	var failure *protocol.Error
	if err != nil {
		r.db.forget(r) // before it is dead: who asks again must not meet it
	}
	r.mu.Lock()
	waiting := r.waiting
	r.waiting = nil
	if err != nil {
		failure = errInternal
		r.state = roomDead // the next subscription asks anew
	} else if r.state == roomLoading {
		r.state = roomReady
		if r.epoch == "" {
			r.epoch = p.Epoch
		}
		if p.Offset > r.head.Load() {
			r.restart(p.Offset)
		}
	}
	r.mu.Unlock()
	for _, f := range waiting {
		f(failure)
	}
}

// restart makes the logs go on behind offset; whoever is behind it reads the store.
func (r *room) restart(offset uint64) {
	for _, f := range r.feeds {
		if f != nil {
			f.reset(offset)
		}
	}
	r.head.Store(offset)
}

// committed appends a publication of the store, in commit order.
func (r *room) committed(e *store.Event) {
	r.extend(func() []*segment {
		p := &e.Publication
		head := r.head.Load()
		if p.Offset <= head { // the store told about it before its turn came here
			return nil
		}
		if p.Offset > head+1 { // the log has not followed the room so far
			r.restart(p.Offset - 1)
		}
		r.epoch = e.Epoch
		return r.append(p)
	})
}

// publish appends a publication to a room without history.
func (r *room) publish(p *store.Publication) {
	r.extend(func() []*segment { return r.append(p) })
}

// extend has add append to the logs, under mu, and tells the loops.
func (r *room) extend(add func() (victims []*segment)) {
	victims, dirty := r.extendLocked(add)
	dropAll(victims)
	wakeAll(dirty)
}

func (r *room) extendLocked(add func() []*segment) ([]*segment, []*shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return add(), r.markDirty()
}

// append encodes p once per encoding in use, as offset head+1. Nothing is
// appended before everything is encoded: a panic leaves the logs in step.
func (r *room) append(p *store.Publication) (victims []*segment) {
	msg := wirePublication(p)
	var frames [wire.Encodings][]byte
	var pubs [wire.Encodings]span
	for enc, f := range r.feeds {
		if f != nil {
			frames[enc], pubs[enc] = r.encode(f.enc, &r.scratch[enc], msg)
		}
	}
	for enc, f := range r.feeds {
		if f != nil {
			victims = append(victims, f.append(frames[enc], pubs[enc], p.Time)...)
		}
	}
	r.head.Add(1)
	return victims
}

// encode frames a publication in scratch; the result is valid until the next call.
func (r *room) encode(enc wire.Encoding, scratch *[]byte, msg *protocol.Publication) ([]byte, span) {
	out, start, end, err := enc.AppendPublication((*scratch)[:0], r.name, msg)
	if err != nil {
		// Data is checked before it is accepted, so this is a damaged row. The
		// offset must not be missing from anybody's sequence.
		r.db.server.log.Error("publication cannot be encoded", slog.String("database", r.db.name),
			slog.Uint64("offset", msg.Offset), slog.Any("error", err))
		out, start, end, _ = enc.AppendPublication((*scratch)[:0], r.name,
			&protocol.Publication{Offset: msg.Offset, Data: protocol.Raw("null")})
	}
	*scratch = out
	if cap(out) > maxScratch {
		*scratch = nil
	}
	return out, span{uint32(start), uint32(end)}
}

// maxScratch bounds the encoding buffer that a room keeps.
const maxScratch = 4 << 10

// wirePublication is p as receivers see it.
func wirePublication(p *store.Publication) *protocol.Publication {
	msg := &protocol.Publication{Offset: p.Offset, Data: p.Data, Tags: p.Tags}
	if p.User != "" || p.Client != "" {
		msg.Info = &protocol.ClientInfo{User: p.User, Client: p.Client, ConnInfo: p.ConnInfo, ChanInfo: p.ChanInfo}
	}
	return msg
}

// markDirty returns the shards whose loops must be told.
func (r *room) markDirty() (dirty []*shard) {
	for i := range r.shards {
		if sh := &r.shards[i]; sh.users > 0 && !sh.dirty.Swap(true) {
			dirty = append(dirty, sh)
		}
	}
	return dirty
}

func wakeAll(dirty []*shard) {
	for _, sh := range dirty {
		sh.loop.postDirty(sh)
	}
}

// removed begins a new incarnation: the history that subscriptions followed is
// gone, so each is told to subscribe anew.
func (r *room) removed(e *store.Event) {
	r.mu.Lock()
	r.epoch = e.Epoch
	r.restart(max(r.head.Load(), e.Publication.Offset))
	generation := r.generation.Add(1)
	r.mu.Unlock()
	for i := range r.shards {
		sh := &r.shards[i]
		sh.loop.post(func() { sh.loop.historyRemoved(sh, generation) })
	}
}
