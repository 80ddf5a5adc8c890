package hub

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"hub/hub/wire"
)

// feedModel is a feed and all that was ever appended to it, by offset-1.
type feedModel struct {
	t      *testing.T
	seed   uint64
	feed   *feed
	frames [][]byte
}

// frame is an entry: its publication lies between brackets.
func modelFrame(offset uint64, size int) (frame []byte, pub span) {
	body := fmt.Sprintf("%d:%s", offset, bytes.Repeat([]byte{byte('a' + offset%26)}, size))
	return []byte("<" + body + ">"), span{1, uint32(1 + len(body))}
}

// A feed against a slice, over random appends, drops, resets and pages. Views
// that were taken earlier stay what they were.
func TestFeedModel(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	for seed := base; seed < base+200; seed++ {
		random := rand.New(rand.NewPCG(seed, 0))
		b := newBench(t)
		b.server.memory = newLogMemory(pick(random, int64(0), 300, 3_000))
		b.server.sizes = logSizes{min: pick(random, 1, 50, 300), max: pick(random, 1, 100, 1000), keepEphemeral: pick(random, int64(1), 500, 1<<20)}
		r := b.room("default", "r")
		r.join(b.loop, wire.JSON)
		m := &feedModel{t: t, seed: seed, feed: r.feeds[wire.JSON]}
		var views []*view
		for range 150 {
			m.step(random)
			if random.IntN(5) == 0 {
				v := new(view)
				m.feed.look(v)
				views = append(views, v)
				m.check(random, v, true)
			}
		}
		for _, v := range views {
			m.check(random, v, false)
		}
		r.leave(b.loop, wire.JSON)
		if n := b.server.memory.bytes(); n != 0 {
			t.Fatalf("seed %d: %d bytes accounted for after the end", seed, n)
		}
	}
}

func (m *feedModel) step(random *rand.Rand) {
	f := m.feed
	switch n := random.IntN(40); {
	case n == 0:
		for range random.IntN(5) { // not in the log
			frame, _ := modelFrame(uint64(len(m.frames))+1, 3)
			m.frames = append(m.frames, frame)
		}
		f.reset(uint64(len(m.frames)))
	case n == 1 && len(f.segments) > 0:
		s := f.segments[random.IntN(len(f.segments))]
		f.room.db.server.memory.remove(s)
		f.drop(s)
	case n < 5 && f.base > 0:
		first := 1 + uint64(random.IntN(int(f.base)))
		page := newSegment(f, first, 10, 1)
		for offset := first; offset < first+4 && offset <= uint64(len(m.frames)); offset++ {
			frame := m.frames[offset-1]
			page.add(frame, span{1, uint32(len(frame) - 1)}, int64(offset))
		}
		f.addPage(page)
		m.dropAll(f.room.db.server.memory.add(page))
	default:
		offset := uint64(len(m.frames)) + 1
		frame, pub := modelFrame(offset, random.IntN(60))
		m.frames = append(m.frames, frame)
		m.dropAll(f.append(append([]byte(nil), frame...), pub, int64(offset)))
	}
}

func (m *feedModel) dropAll(victims []*segment) {
	for _, s := range victims {
		m.feed.drop(s)
	}
}

// check asks a view for what lies behind every cursor, in any order.
func (m *feedModel) check(random *rand.Rand, v *view, now bool) {
	m.t.Helper()
	if now && v.head != uint64(len(m.frames)) {
		m.t.Fatalf("seed %d: head %d, want %d", m.seed, v.head, len(m.frames))
	}
	for _, i := range random.Perm(int(v.head) + 1) {
		cursor := uint64(i)
		run := v.after(cursor)
		if run == nil {
			if cursor >= v.base && cursor < v.head {
				m.t.Fatalf("seed %d: nothing behind %d, though the log begins at %d and ends at %d", m.seed, cursor, v.base, v.head)
			}
			continue
		}
		if cursor == v.head || run.first > cursor+1 || run.last() <= cursor || run.last() > v.head {
			m.t.Fatalf("seed %d: behind %d of %d: a run from %d to %d", m.seed, cursor, v.head, run.first, run.last())
		}
		want := bytes.Join(m.frames[cursor:run.last()], nil)
		if got := run.after(cursor); !bytes.Equal(got, want) {
			m.t.Fatalf("seed %d: behind %d: %q, want %q", m.seed, cursor, got, want)
		}
		m.checkEntries(run, cursor)
		m.checkPublications(v.find(cursor), cursor)
	}
}

// checkEntries asks where each byte of a run belongs.
func (m *feedModel) checkEntries(r *run, cursor uint64) {
	pos := r.start(cursor + 1)
	for offset := cursor + 1; offset <= r.last(); offset++ {
		end := pos + uint32(len(m.frames[offset-1]))
		for _, at := range []uint32{pos + 1, (pos + 1 + end) / 2, end} {
			if got, stop := r.entryAt(at); got != offset || stop != end {
				m.t.Fatalf("seed %d: byte %d belongs to %d, which ends at %d; want %d, %d", m.seed, at, got, stop, offset, end)
			}
		}
		pos = end
	}
}

func (m *feedModel) checkPublications(r *run, cursor uint64) {
	for _, most := range []int{0, 20, 1 << 20} {
		pubs, last := r.publications(cursor, most)
		size := 0
		for i, p := range pubs {
			frame := m.frames[cursor+uint64(i)]
			if want := frame[1 : len(frame)-1]; !bytes.Equal(p, want) {
				m.t.Fatalf("seed %d: publication %d is %q, want %q", m.seed, cursor+1+uint64(i), p, want)
			}
			size += len(p)
		}
		if len(pubs) == 0 || last != cursor+uint64(len(pubs)) || size > most && len(pubs) > 1 || most == 1<<20 && last != r.last() {
			m.t.Fatalf("seed %d: %d publications of %d bytes behind %d up to %d, at most %d bytes asked for", m.seed, len(pubs), size, cursor, last, most)
		}
	}
}

// The limit of all logs holds, and the oldest goes first.
func TestLogMemory(t *testing.T) {
	m := newLogMemory(1000)
	var all []*segment
	gone := make(map[*segment]bool)
	random := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		s := newSegment(nil, 1, 10+random.IntN(300), 1)
		all = append(all, s)
		for _, victim := range m.add(s) {
			if gone[victim] || victim == s {
				t.Fatal("a segment goes twice, or before it was used")
			}
			gone[victim] = true
		}
		if random.IntN(4) == 0 {
			victim := all[random.IntN(len(all))]
			m.remove(victim)
			gone[victim] = true
		}
		used, kept := int64(0), false
		for _, s := range all {
			if !gone[s] {
				used, kept = used+s.size(), true
			} else if kept && s.newer != nil {
				t.Fatal("a segment that is gone is still in the ring")
			}
		}
		if m.bytes() != used || used > 1000 {
			t.Fatalf("%d bytes accounted for, want %d, at most 1000", m.bytes(), used)
		}
	}
	for _, s := range all {
		m.remove(s)
		m.remove(s)
	}
	if m.bytes() != 0 {
		t.Errorf("%d bytes left", m.bytes())
	}
}
