package auth

import "sync"

// sharedGrants remembers the grants of caps claims by their text: the tokens of
// one application carry few different ones, so its connections share their
// grants instead of each parsing and keeping a copy (about 120 bytes). Safe for
// concurrent use.
type sharedGrants struct {
	mu    sync.RWMutex
	byRaw map[string]Grants // guarded by mu
}

// Bounds of what is remembered: claims that name a user are of no use here, and
// must not crowd out or outgrow the rest.
const (
	maxShared     = 1024
	maxSharedCaps = 1024 // bytes
)

// parse is parseGrants.
func (s *sharedGrants) parse(caps []byte) (Grants, error) {
	s.mu.RLock()
	g, found := s.byRaw[string(caps)]
	s.mu.RUnlock()
	if found {
		return g, nil
	}
	g, err := parseGrants(caps)
	if err != nil || len(caps) > maxSharedCaps {
		return g, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byRaw == nil || len(s.byRaw) >= maxShared {
		s.byRaw = make(map[string]Grants)
	}
	s.byRaw[string(caps)] = g
	return g, nil
}
