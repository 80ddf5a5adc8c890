package loadtest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
)

// room is one room of a run. Its events are numbered from 1 and published by
// one member alone, so their order is that of their offsets. An event that the
// server refuses has a number and no offset.
type room struct {
	// fixed after new
	number    int // among the rooms of all databases
	name, db  string
	members   []*conn
	publisher *conn
	once      bool // publish under idempotency keys, again until acknowledged
	// ledger, unless nil, says that nobody publishes in the room: its members operate
	// on its resources.
	ledger *ledger

	// atomic
	given atomic.Uint64 // number of the last event made
	acked atomic.Uint64 // events acknowledged, thus committed

	// mu guards the rest. It is taken inside a shard's.
	mu      sync.Mutex
	epoch   string              // empty until the first subscription
	base    uint64              // offset before the first event
	top     uint64              // offset of the last event that was acknowledged
	live    bool                // the publisher is subscribed
	waiting []event             // without an answer, in order
	refused map[uint64]struct{} // events that the server did not take
}

// joined notes the position of a subscription. It returns the room's base and
// whether the epoch is that of the first one.
func (r *room) joined(s *subscription) (base uint64, same bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.epoch == "" {
		r.epoch = string(s.epoch)
		r.base = s.offset - min(s.offset, r.given.Load())
		if r.ledger != nil {
			r.base = 0 // its events are those of operations, counted by their offsets
		}
		r.top = r.base
	}
	return r.base, r.epoch == string(s.epoch)
}

// position is the place of an offset.
func (r *room) position(offset uint64) *position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &position{epoch: r.epoch, offset: offset}
}

// A frame holds that many publish commands at most, and no more once it has so
// many bytes: servers bound what they take at once.
const (
	maxCommands  = 32
	maxFrameSent = 64 << 10
)

// publish sends n events that are due at a time on the swarm's clock. In a room
// that publishes once, those of a publisher that is not connected wait for it.
func (r *room) publish(n int, due int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := make([]event, n)
	for i := range events {
		events[i] = event{seq: r.given.Add(1), room: r.number, by: r.publisher.number, due: due}
	}
	r.waiting = append(r.waiting, events...)
	if r.once && !r.live {
		return nil
	}
	err := r.sendLocked(events)
	if err == nil || r.once {
		return nil // what was not sent is sent again when the publisher is back
	}
	r.waiting = r.waiting[:len(r.waiting)-n]
	for _, e := range events {
		r.refuseLocked(e.seq)
	}
	return fmt.Errorf("publish to %s: %w", r.name, err)
}

// sendLocked writes events as commands. Its caller holds mu.
func (r *room) sendLocked(events []event) error {
	o := &r.publisher.shard.swarm.options
	var payload, data []byte
	for len(events) > 0 {
		some := events[:min(len(events), maxCommands, 1+maxFrameSent/o.size)]
		events = events[len(some):]
		payload = payload[:0]
		for i, e := range some {
			if i > 0 {
				payload = append(payload, o.codec.separator()...)
			}
			data = appendEvent(data[:0], e, r.db, o.size)
			id := uint32(idPublish + e.seq)
			if r.once {
				payload = appendPublishOnce(o.codec, payload, id, r.name, strconv.FormatUint(e.seq, 10), data)
			} else {
				payload = o.codec.appendPublish(payload, id, r.name, data)
			}
		}
		if err := r.publisher.send(appendFrame(nil, o.codec.op(), payload)); err != nil {
			return err
		}
	}
	return nil
}

// back sends again what a publisher that lost its connection had no answer to.
func (r *room) back() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = true
	return r.sendLocked(r.waiting)
}

// gone notes that the publisher has no connection.
func (r *room) gone() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = false
}

// answered notes the reply to an event and reports whether it was new and said
// the right offset.
func (r *room) answered(seq uint64, m *message) (fresh, right bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.waiting, func(e event) bool { return e.seq == seq })
	switch {
	case i == 0:
		r.waiting = r.waiting[1:]
	case r.once: // an event that was sent again may have two answers
		return false, i < 0
	case i < 0:
		return false, false
	default: // a refusal may overtake a commit
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
	if m.code != 0 {
		r.refuseLocked(seq)
		return true, true
	}
	r.acked.Add(1)
	r.top++
	return true, !r.once || rpcOffset(m.rpc) == r.top
}

// rpcOffset reads the result of rpc publish, which is JSON in both encodings.
func rpcOffset(data []byte) (offset uint64) {
	_ = eachMember(data, func(key, value []byte) error {
		if string(key) == "offset" {
			offset, _ = digits(value)
		}
		return nil
	})
	return offset
}

func (r *room) refuseLocked(seq uint64) {
	if r.refused == nil {
		r.refused = make(map[uint64]struct{})
	}
	r.refused[seq] = struct{}{}
}

// stored is what a database must hold for the room, whose events have size bytes.
func (r *room) stored(size int) stored {
	if r.ledger != nil {
		return r.ledger.stored(r.name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return stored{
		room: r.name, number: r.number, by: r.publisher.number, user: r.publisher.user, size: size,
		given: r.given.Load(), acked: r.acked.Load(), refused: maps.Clone(r.refused),
	}
}

// lost counts the events that a member did not get, those it skipped and those
// that it still waits for, and returns the number of the first. Refused events are
// not lost.
func (r *room) lost(c *conn) (n int64, first uint64) {
	last := r.given.Load()
	if r.ledger != nil {
		last = r.ledger.last()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	count := func(seq uint64) {
		if _, ok := r.refused[seq]; ok {
			return
		}
		if n++; first == 0 || seq < first {
			first = seq
		}
	}
	for seq := range c.missing {
		count(seq)
	}
	for seq := c.next; seq <= last; seq++ {
		count(seq)
	}
	return n, first
}
