package hub

import "sync"

// logMemory bounds the segments of all rooms together: when they exceed the
// limit, the oldest segment of any room goes. A receiver that still needed it is
// caught up from the store.
type logMemory struct {
	limit int64 // 0 is off; fixed after new

	mu   sync.Mutex // taken inside a room's mu, never around one
	used int64      // guarded by mu
	// ring of the segments, oldest behind it; guarded by mu
	ring segment
}

func newLogMemory(limit int64) *logMemory {
	m := &logMemory{limit: limit}
	m.ring.older, m.ring.newer = &m.ring, &m.ring
	return m
}

// add accounts for new segments and returns those that must go for them, which
// they themselves never are; the caller drops the victims once it holds no
// room's mu.
func (m *logMemory) add(segments ...*segment) (victims []*segment) {
	if len(segments) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range segments {
		s.older, s.newer = m.ring.older, &m.ring
		s.older.newer, m.ring.older = s, s
		s.counted = s.size()
		m.used += s.counted
	}
	for m.limit > 0 && m.used > m.limit && m.ring.newer != segments[0] {
		victim := m.ring.newer
		m.unlink(victim)
		victims = append(victims, victim)
	}
	return victims
}

// remove ends the accounting of s; a victim's has ended already.
func (m *logMemory) remove(s *segment) {
	m.mu.Lock()
	m.unlink(s)
	m.mu.Unlock()
}

func (m *logMemory) unlink(s *segment) {
	if s.newer == nil {
		return
	}
	s.older.newer, s.newer.older = s.newer, s.older
	s.older, s.newer = nil, nil
	m.used -= s.counted
}

// bytes is the memory in use.
func (m *logMemory) bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// dropAll makes each segment's room forget it.
func dropAll(victims []*segment) {
	for _, s := range victims {
		s.feed.room.mu.Lock()
		s.feed.drop(s)
		s.feed.room.mu.Unlock()
	}
}
