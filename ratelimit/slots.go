// Package ratelimit holds the limits of DESIGN.md section 9: caps on live
// connections ([Slots]), the message limit of a connection ([Bucket]), request
// limits by address and database ([Gate]) and the client address by which
// limits count ([ClientAddr], [AddrKey]).
//
// Everywhere 0 means "off".
package ratelimit

import (
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
)

// LimitError says which cap refused a connection.
type LimitError struct {
	Scope string // "server", "database" or "ip"
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s has its %d connections", e.Scope, e.Limit)
}

// Slots counts live connections of the server, of each database and of each
// client address against three caps. Its tables hold live connections only, so
// they need no sweep. Safe for concurrent use.
type Slots struct {
	mu sync.Mutex

	// Guarded by mu. Everything is counted, also where the cap is off: it may
	// be switched on later.
	serverLimit   int
	databaseLimit int // of each that has none of its own
	ipLimit       int
	ownLimits     map[string]int // of single databases; never changed, only replaced
	server        int
	databases     map[string]int
	ips           map[netip.Addr]int
}

// NewSlots returns empty slots with these caps; 0 is off, and so is a negative.
func NewSlots(server, database, ip int) *Slots {
	return &Slots{
		serverLimit:   server,
		databaseLimit: database,
		ipLimit:       ip,
		databases:     map[string]int{},
		ips:           map[netip.Addr]int{},
	}
}

// SetLimits changes the caps. Connections above a lowered cap stay; new ones
// wait until enough of them are gone.
func (s *Slots) SetLimits(server, database, ip int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serverLimit, s.databaseLimit, s.ipLimit = server, database, ip
}

// SetDatabaseLimits gives single databases caps of their own, instead of those they
// had and of the one for all; 0 is off. The caller leaves the map alone afterwards.
func (s *Slots) SetDatabaseLimits(limits map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ownLimits = limits
}

// DatabaseLimit returns the cap in force for a database.
func (s *Slots) DatabaseLimit(database string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.databaseLimitLocked(database)
}

func (s *Slots) databaseLimitLocked(database string) int {
	if limit, ok := s.ownLimits[database]; ok {
		return limit
	}
	return s.databaseLimit
}

// Limits returns the caps in force; database is that of databases without one of
// their own.
func (s *Slots) Limits() (server, database, ip int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serverLimit, s.databaseLimit, s.ipLimit
}

// Acquire takes one connection of all three caps, or of none and returns a
// [*LimitError]. The address counts as [AddrKey] of it; the caller has checked
// that the database exists. Whoever gets the slot releases it.
func (s *Slots) Acquire(database string, ip netip.Addr) (*Slot, error) {
	addr := AddrKey(ip)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case full(s.server, s.serverLimit):
		return nil, &LimitError{Scope: "server", Limit: s.serverLimit}
	case full(s.databases[database], s.databaseLimitLocked(database)):
		return nil, &LimitError{Scope: "database", Limit: s.databaseLimitLocked(database)}
	case full(s.ips[addr], s.ipLimit):
		return nil, &LimitError{Scope: "ip", Limit: s.ipLimit}
	}
	s.server++
	s.databases[database]++
	s.ips[addr]++
	return &Slot{slots: s, database: database, ip: addr}, nil
}

func full(n, limit int) bool { return limit > 0 && n >= limit }

// Counts returns the live connections of the server and of each database that
// has any.
func (s *Slots) Counts() (server int, perDatabase map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server, maps.Clone(s.databases)
}

func (s *Slots) release(database string, ip netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server--
	decrement(s.databases, database)
	decrement(s.ips, ip)
}

func decrement[K comparable](m map[K]int, k K) {
	if m[k]--; m[k] <= 0 {
		delete(m, k)
	}
}

// Slot is one connection's share of the caps.
type Slot struct {
	// Fixed after new.
	slots    *Slots
	database string
	ip       netip.Addr

	released atomic.Bool
}

// Addr returns the address that the share counts for, as [AddrKey] of it; a nil
// slot has none.
func (s *Slot) Addr() netip.Addr {
	if s == nil {
		return netip.Addr{}
	}
	return s.ip
}

// Release gives the share back. Only the first call counts; any goroutine may
// make it, and a nil slot is nothing to release.
func (s *Slot) Release() {
	if s != nil && s.released.CompareAndSwap(false, true) {
		s.slots.release(s.database, s.ip)
	}
}
