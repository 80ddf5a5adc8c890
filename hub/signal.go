package hub

import (
	"log/slog"
	"time"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
)

// Joins and leaves travel in a log of their own, without history: what a
// connection has missed of them because it did not read is a reason to subscribe
// again and to ask who is there. They are appended in batches, so that a crowd
// that enters at once costs each member one visit rather than a thousand.

// signalInterval is the time over which joins and leaves are collected.
const signalInterval = 100 * time.Millisecond

// signal is one join or leave.
type signal struct {
	info  *protocol.ClientInfo
	leave bool
}

// signalJoin announces a new member, signalLeave one that is gone.
func (r *room) signalJoin(s *sub)  { r.signal(s, false) }
func (r *room) signalLeave(s *sub) { r.signal(s, true) }

func (r *room) signal(s *sub, leave bool) {
	if !r.options.Load().JoinLeave || r.crowded() {
		return
	}
	r.mu.Lock()
	r.pending = append(r.pending, signal{s.clientInfo(), leave})
	begin := !r.signalNow
	r.signalNow = true
	r.mu.Unlock()
	if begin {
		r.signalSoon()
	}
}

// signalSoon has what is pending appended in a while.
func (r *room) signalSoon() {
	time.AfterFunc(signalInterval, func() {
		defer r.db.server.rescue()
		r.flushSignals()
	})
}

// flushSignals appends what has been collected, as far as it fits the log beside
// what receivers are reading: a crowd larger than that would push its own
// beginning out, and all who miss it would subscribe again and be the next crowd.
func (r *room) flushSignals() {
	r.extend(func() (victims []*segment) {
		pending := r.pending
		r.pending, r.signalNow = nil, false // first, should a panic end this
		for room := r.keep() / 2; len(pending) > 0 && room > 0; pending = pending[1:] {
			size, gone := r.appendSignal(pending[0])
			victims = append(victims, gone...)
			room -= size
		}
		if len(pending) > 0 {
			r.pending, r.signalNow = pending, true
			r.signalSoon()
		}
		return victims
	})
}

// appendSignal frames a join or leave for each encoding in use; size is that of
// the largest frame.
func (r *room) appendSignal(s signal) (size int64, victims []*segment) {
	for _, f := range r.signals {
		if f == nil {
			continue
		}
		frame, err := f.enc.AppendPush(r.scratch[f.enc][:0], s.push(r.name))
		if err != nil {
			r.db.server.log.Error("join or leave cannot be encoded", slog.Any("error", err))
			continue
		}
		victims = append(victims, f.append(frame, span{}, 0)...)
		size = max(size, int64(len(frame)))
	}
	return size, victims
}

func (s signal) push(room string) *protocol.Push {
	if s.leave {
		return &protocol.Push{Channel: room, Leave: &protocol.Leave{Info: s.info}}
	}
	return &protocol.Push{Channel: room, Join: &protocol.Join{Info: s.info}}
}

// signalHead is where a new member's joins and leaves begin.
func (r *room) signalHead(enc wire.Encoding) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.signals[enc]; f != nil {
		return f.head
	}
	return 0
}
