package hub

import "hub/hub/wire"

// A feed is the log that one room's receivers read in one encoding: complete
// WebSocket frames back to back, in segments, numbered by offset. A receiver is
// a cursor, the offset of the last entry that it has; what it lacks is one run
// of bytes, written at once.
//
// Bytes of a segment never change once they are in a [view], so loops read them
// without a lock while the next entry is appended behind them.
type feed struct {
	// fixed after new
	room *room
	enc  wire.Encoding

	// guarded by the room's mu:

	// base is the offset before the first entry that the segments hold, head that
	// of the last one.
	base, head uint64
	segments   []*segment
	bytes      int64 // of the entries in segments
	// pages are runs read back from the store for receivers behind base, oldest
	// reading first.
	pages []*segment
}

// segment is a run that a feed owns and may append to.
type segment struct {
	run
	feed *feed
	// guarded by logMemory's mu:

	older, newer *segment // its ring
	counted      int64    // bytes accounted for; size is the room's to ask
}

// run is consecutive entries. A copy of it is what they were at that moment.
type run struct {
	first uint64 // offset of the first entry
	buf   []byte
	// ends[i] is where entry i ends in buf; pubs[i] where its bare publication lies.
	ends []uint32
	pubs []span
	// times[i] is the publication's time, in unix milliseconds.
	times []int64
}

// span is a part of a segment's buf.
type span struct{ start, end uint32 }

// logSizes are the bounds of one room's log.
type logSizes struct {
	// segments begin with min bytes and double up to max, so a quiet room is cheap
	min, max int
	// keep is the bytes of entries kept at least, memory permitting: for durable
	// rooms, whose receivers can be caught up from the store, and for the others
	keepDurable, keepEphemeral int64
	// pageEvents and pageBytes bound one reading from the store
	pageEvents, pageBytes int
}

func defaultLogSizes(unsent int) logSizes {
	if unsent == 0 {
		unsent = 1 << 30
	}
	return logSizes{
		min: 2 << 10, max: 64 << 10,
		keepDurable: 256 << 10, keepEphemeral: int64(unsent),
		pageEvents: 1024, pageBytes: 256 << 10,
	}
}

// pagesKept bounds the pages of a feed: receivers that catch up together share
// one, and a few starting points may be under way at once.
const pagesKept = 4

// smallFrame is the frame size below which a segment is full of entries before it
// is full of bytes.
const smallFrame = 128

// entryOverhead is the bytes of ends, pubs and times for an entry.
const entryOverhead = 20

func newSegment(f *feed, first uint64, bytes, entries int) *segment {
	return &segment{
		feed: f,
		run: run{
			first: first,
			buf:   make([]byte, 0, bytes),
			ends:  make([]uint32, 0, entries),
			pubs:  make([]span, 0, entries),
			times: make([]int64, 0, entries),
		},
	}
}

func (s *segment) size() int64 {
	return int64(cap(s.buf)) + int64(cap(s.ends))*entryOverhead
}

func (s *run) last() uint64 { return s.first + uint64(len(s.ends)) - 1 }

// add appends one framed entry; the caller has seen that it fits or grows the segment.
func (s *segment) add(frame []byte, pub span, time int64) {
	at := uint32(len(s.buf))
	s.buf = append(s.buf, frame...)
	s.ends = append(s.ends, at+uint32(len(frame)))
	s.pubs = append(s.pubs, span{at + pub.start, at + pub.end})
	s.times = append(s.times, time)
}

// append adds the entry of offset head+1. victims are what must be dropped for
// the server's memory limit once the room's mu is free.
func (f *feed) append(frame []byte, pub span, time int64) (victims []*segment) {
	sizes := &f.room.db.server.sizes
	n := len(f.segments)
	if n == 0 || !f.segments[n-1].fits(len(frame)) {
		size := sizes.min
		if n > 0 {
			size = min(2*cap(f.segments[n-1].buf), sizes.max)
		}
		size = max(size, len(frame))
		s := newSegment(f, f.head+1, size, max(1, size/smallFrame))
		f.segments = append(f.segments, s)
		victims = f.room.db.server.memory.add(s)
	}
	f.segments[len(f.segments)-1].add(frame, pub, time)
	f.bytes += int64(len(frame))
	f.head++
	keep := f.room.keep()
	for len(f.segments) > 1 && f.bytes-int64(len(f.segments[0].buf)) >= keep {
		f.dropOldest()
	}
	return victims
}

// fits says whether an entry can be added in place. Growing a slice would be
// right too, but would hide memory from the accounting.
func (s *segment) fits(n int) bool {
	return len(s.buf)+n <= cap(s.buf) && len(s.ends) < cap(s.ends)
}

// dropOldest forgets the oldest segment.
func (f *feed) dropOldest() {
	s := f.segments[0]
	f.segments[0] = nil // the array may live on
	f.segments = f.segments[1:]
	f.bytes -= int64(len(s.buf))
	f.base = s.last()
	f.room.db.server.memory.remove(s)
}

// drop forgets s, and with a segment everything older.
func (f *feed) drop(s *segment) {
	for i, page := range f.pages {
		if page == s {
			f.pages = append(f.pages[:i:i], f.pages[i+1:]...)
			return
		}
	}
	for _, have := range f.segments {
		if have == s {
			for f.base < s.last() {
				f.dropOldest()
			}
			return
		}
	}
}

// reset empties the feed; it goes on behind head.
func (f *feed) reset(head uint64) {
	for len(f.segments) > 0 {
		f.dropOldest()
	}
	f.segments = nil
	f.dropPages()
	f.base, f.head = head, head
}

// addPage keeps a run that was read back from the store; the caller accounts for it.
func (f *feed) addPage(s *segment) {
	if len(f.pages) == pagesKept {
		f.room.db.server.memory.remove(f.pages[0])
		f.pages[0] = nil
		f.pages = f.pages[1:]
	}
	f.pages = append(f.pages, s)
}

// dropPages forgets the pages. Otherwise they stay until others take their place
// or the server's memory limit does.
func (f *feed) dropPages() {
	for _, s := range f.pages {
		f.room.db.server.memory.remove(s)
	}
	f.pages = nil
}

// view is what a feed held at one moment; valid for good.
type view struct {
	base, head uint64
	segments   []run
	pages      []*segment
	joined     run // what after has put together
}

// joinMax bounds the bytes that are copied to make one run of several.
const joinMax = 32 << 10

// look fills v, reusing its memory.
func (f *feed) look(v *view) {
	v.base, v.head = f.base, f.head
	v.segments = v.segments[:0]
	for _, s := range f.segments {
		v.segments = append(v.segments, s.run)
	}
	v.pages = append(v.pages[:0], f.pages...)
	v.joined.clear()
}

// after returns the entries behind cursor as one run, nil when the view does not
// reach back to them. A run that is short because its segment ends is put
// together with what follows, so that the border costs no second visit; most
// receivers have the same cursor, so this is done once for many. It is valid
// until the next call.
func (v *view) after(cursor uint64) *run {
	s := v.find(cursor)
	if s == nil || s.last() == v.head || cursor < v.base || len(s.after(cursor)) >= joinMax/2 {
		return s
	}
	if v.joined.first == cursor+1 && len(v.joined.ends) > 0 {
		return &v.joined
	}
	v.joined.clear()
	v.joined.first = cursor + 1
	for s != nil && len(v.joined.buf)+len(s.after(cursor)) <= joinMax {
		v.joined.join(s, cursor)
		cursor = s.last()
		s = v.find(cursor)
	}
	return &v.joined
}

// clear empties a run that join fills, keeping its memory.
func (r *run) clear() { r.buf, r.ends = r.buf[:0], r.ends[:0] }

// join appends the entries of s after cursor, without their details.
func (r *run) join(s *run, cursor uint64) {
	shift := uint32(len(r.buf)) - s.start(cursor+1)
	r.buf = append(r.buf, s.after(cursor)...)
	for _, end := range s.ends[cursor+1-s.first:] {
		r.ends = append(r.ends, end+shift)
	}
}

// find returns the run that holds the entry after cursor, nil when none does.
func (v *view) find(cursor uint64) *run {
	if cursor >= v.base {
		for i := len(v.segments) - 1; i >= 0; i-- { // nearly always the last
			if s := &v.segments[i]; s.first <= cursor+1 {
				if cursor < s.last() {
					return s
				}
				return nil
			}
		}
		return nil
	}
	for i := len(v.pages) - 1; i >= 0; i-- {
		if s := v.pages[i]; s.first <= cursor+1 && cursor < s.last() {
			return &s.run
		}
	}
	return nil
}

// after returns the bytes behind cursor in s.
func (s *run) after(cursor uint64) []byte {
	return s.buf[s.start(cursor+1):s.ends[len(s.ends)-1]]
}

// start is where the entry of this offset begins in buf.
func (s *run) start(offset uint64) uint32 {
	if offset == s.first {
		return 0
	}
	return s.ends[offset-s.first-1]
}

// entryAt returns the offset of the entry that the byte before pos belongs to,
// and where that entry ends: pos is how far a short write came.
func (s *run) entryAt(pos uint32) (offset uint64, end uint32) {
	lo, hi := 0, len(s.ends)-1
	for lo < hi {
		if mid := (lo + hi) / 2; s.ends[mid] < pos {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return s.first + uint64(lo), s.ends[lo]
}

// publications returns the bare publications after cursor, up to maxBytes, at
// least one, and the offset of the last.
func (s *run) publications(cursor uint64, maxBytes int) (pubs [][]byte, last uint64) {
	last = cursor
	for n := 0; last < s.last(); last++ {
		p := s.pubs[last+1-s.first]
		if n += int(p.end - p.start); n > maxBytes && len(pubs) > 0 {
			break
		}
		pubs = append(pubs, s.buf[p.start:p.end])
	}
	return pubs, last
}
