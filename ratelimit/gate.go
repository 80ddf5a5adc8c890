package ratelimit

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Limit is a token bucket's rate and size. It starts full.
//
// PerSecond 0 is off, whatever the burst. A rate that is negative, NaN or
// infinite and a burst below 1 are refused by the configuration; here they
// allow nothing (case G24).
type Limit struct {
	PerSecond float64 // tokens that come back every second
	Burst     int     // tokens of a full bucket
}

func (l Limit) off() bool { return l.PerSecond == 0 }

func (l Limit) valid() bool {
	return l.PerSecond > 0 && !math.IsInf(l.PerSecond, 1) && l.Burst >= 1
}

// maxRetry bounds [RateError].Retry, for rates at which a token takes for ever.
const maxRetry = time.Hour

// RateError says which limit refused a request.
type RateError struct {
	Scope string        // "ip" or "database"
	Retry time.Duration // until the same request may pass: above 0, at most an hour
}

func (e *RateError) Error() string {
	return fmt.Sprintf("too many requests of this %s, retry in %v", e.Scope, e.Retry)
}

// Gate limits one class of requests by client address ([AddrKey]) and by
// database. Safe for concurrent use; it holds its lock for the time of two
// lookups.
//
// It remembers a bounded number of addresses and never forgets a bucket in
// debt: an address gives its place to a new one only when its bucket is full
// again, which is the same as one never seen. While all places are held by
// buckets in debt, new addresses are refused (case G21).
type Gate struct {
	mu sync.Mutex

	// Guarded by mu.
	base      time.Time // the first time that was told
	now       int64     // the latest, in nanoseconds after base; never steps back
	started   bool      // base is set
	addresses table[netip.Addr]
	databases table[string]
}

// NewGate returns a gate with these limits that remembers at most so many
// addresses (about 150 bytes each; at least 1), and as many databases.
func NewGate(ip, database Limit, entries int) *Gate {
	g := &Gate{
		addresses: newTable[netip.Addr](entries),
		databases: newTable[string](entries),
	}
	g.SetLimits(ip, database)
	return g
}

// Allow takes a token of the address and one of the database and returns nil,
// or takes neither and returns a [*RateError]. It never waits.
//
// now is the caller's clock. Callers may be overtaken by others between reading
// the clock and calling: time that steps back refills nothing, and nothing
// twice.
func (g *Gate) Allow(database string, ip netip.Addr, now time.Time) error {
	addr := AddrKey(ip)
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.clockLocked(now)
	a, wait := g.addresses.find(addr, t)
	if wait > 0 {
		return &RateError{Scope: "ip", Retry: wait}
	}
	d, wait := g.databases.find(database, t)
	if wait > 0 {
		return &RateError{Scope: "database", Retry: wait}
	}
	if !g.addresses.limit.off() {
		if a == nil {
			a = g.addresses.add(addr, t)
		}
		g.addresses.spend(a, t)
	}
	if !g.databases.limit.off() {
		if d == nil {
			d = g.databases.add(strings.Clone(database), t)
		}
		g.databases.spend(d, t)
	}
	return nil
}

func (g *Gate) clockLocked(now time.Time) int64 {
	if !g.started {
		g.base, g.started = now, true
	}
	g.now = max(g.now, min(int64(now.Sub(g.base)), maxTime))
	return g.now
}

// SetLimits changes the limits. What was spent stays spent: a raised burst adds
// its difference, a lowered one may leave a bucket in debt until the rate has
// paid for it. A limit that was off starts with full buckets.
func (g *Gate) SetLimits(ip, database Limit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addresses.setLimit(ip, g.now)
	g.databases.setLimit(database, g.now)
}

// Len returns the number of addresses remembered.
func (g *Gate) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.addresses.byKey)
}
