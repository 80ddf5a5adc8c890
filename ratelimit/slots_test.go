package ratelimit_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"hub/ratelimit"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// wantLimit checks that err is a LimitError of this scope and limit.
func wantLimit(t *testing.T, err error, scope string, limit int) {
	t.Helper()
	var le *ratelimit.LimitError
	if !errors.As(err, &le) || le.Scope != scope || le.Limit != limit {
		t.Errorf("got error %v, want the %s limit %d", err, scope, limit)
	}
}

func acquire(t *testing.T, s *ratelimit.Slots, database, ip string) *ratelimit.Slot {
	t.Helper()
	slot, err := s.Acquire(database, addr(ip))
	if err != nil {
		t.Fatalf("Acquire(%s, %s): %v", database, ip, err)
	}
	return slot
}

func wantCounts(t *testing.T, s *ratelimit.Slots, server int, databases map[string]int) {
	t.Helper()
	gotServer, gotDatabases := s.Counts()
	if gotServer != server || !maps.Equal(gotDatabases, databases) {
		t.Errorf("got counts %d %v, want %d %v", gotServer, gotDatabases, server, databases)
	}
}

func TestEachScope(t *testing.T) {
	s := ratelimit.NewSlots(4, 2, 3)
	a := acquire(t, s, "a", "10.0.0.1")
	acquire(t, s, "a", "10.0.0.1")
	_, err := s.Acquire("a", addr("10.0.0.2"))
	wantLimit(t, err, "database", 2)
	acquire(t, s, "b", "10.0.0.1")
	_, err = s.Acquire("b", addr("10.0.0.1"))
	wantLimit(t, err, "ip", 3)
	acquire(t, s, "b", "10.0.0.2")
	_, err = s.Acquire("c", addr("10.0.0.3"))
	wantLimit(t, err, "server", 4)
	// A refusal took nothing of the other scopes.
	wantCounts(t, s, 4, map[string]int{"a": 2, "b": 2})
	a.Release()
	acquire(t, s, "a", "10.0.0.2")
}

func TestZeroIsOff(t *testing.T) {
	s := ratelimit.NewSlots(0, 0, 0)
	for range 1000 {
		acquire(t, s, "a", "10.0.0.1")
	}
	wantCounts(t, s, 1000, map[string]int{"a": 1000})
}

func TestSetLimits(t *testing.T) {
	s := ratelimit.NewSlots(0, 0, 0)
	slots := []*ratelimit.Slot{}
	for range 5 {
		slots = append(slots, acquire(t, s, "a", "10.0.0.1"))
	}
	s.SetLimits(0, 3, 0)
	_, err := s.Acquire("a", addr("10.0.0.2"))
	wantLimit(t, err, "database", 3)
	acquire(t, s, "b", "10.0.0.1")
	slots[0].Release()
	slots[1].Release()
	_, err = s.Acquire("a", addr("10.0.0.2"))
	wantLimit(t, err, "database", 3)
	slots[2].Release()
	acquire(t, s, "a", "10.0.0.2")
	s.SetLimits(0, 0, 2)
	_, err = s.Acquire("a", addr("10.0.0.1")) // counted while the cap was off
	wantLimit(t, err, "ip", 2)
	if server, database, ip := s.Limits(); server != 0 || database != 0 || ip != 2 {
		t.Errorf("got limits %d %d %d", server, database, ip)
	}
}

// A database with a cap of its own counts by that alone, until it has none again.
func TestSetDatabaseLimits(t *testing.T) {
	s := ratelimit.NewSlots(0, 2, 0)
	s.SetDatabaseLimits(map[string]int{"wide": 3, "open": 0})
	for database, limit := range map[string]int{"wide": 3, "plain": 2} {
		for range limit {
			acquire(t, s, database, "10.0.0.1")
		}
		_, err := s.Acquire(database, addr("10.0.0.1"))
		wantLimit(t, err, "database", limit)
		if got := s.DatabaseLimit(database); got != limit {
			t.Errorf("the limit of %s is %d, want %d", database, got, limit)
		}
	}
	for range 10 {
		acquire(t, s, "open", "10.0.0.1")
	}
	s.SetDatabaseLimits(nil)
	for _, database := range []string{"wide", "open"} {
		_, err := s.Acquire(database, addr("10.0.0.1"))
		wantLimit(t, err, "database", 2)
	}
}

// Case G20: neighbours in a /64 share a cap; mapped addresses are IPv4.
func TestAddressesThatShareACap(t *testing.T) {
	for _, tc := range []struct {
		one, other string
		share      bool
	}{
		{"2001:db8::1", "2001:db8::ffff:1", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
		{"fe80::1%eth0", "fe80::2%eth1", true},
		{"::ffff:10.0.0.1", "10.0.0.1", true},
		{"::ffff:10.0.0.1", "::ffff:10.0.0.2", false},
		{"10.0.0.1", "10.0.0.2", false},
	} {
		s := ratelimit.NewSlots(0, 0, 1)
		slot := acquire(t, s, "a", tc.one)
		other, err := s.Acquire("a", addr(tc.other))
		if tc.share != (err != nil) {
			t.Errorf("%s and %s: got error %v, want sharing %v", tc.one, tc.other, err, tc.share)
		}
		other.Release() // nil where refused
		slot.Release()
		acquire(t, s, "a", tc.other)
	}
}

// Case G22: refused attempts cost nothing, a slot counts once however often and
// from wherever it is released, and 40 at once against 10 admit 10.
func TestSlotsDoNotLeak(t *testing.T) {
	s := ratelimit.NewSlots(0, 10, 0)
	for round := range 200 {
		var admitted atomic.Int32
		var wg sync.WaitGroup
		slots := make([]*ratelimit.Slot, 40)
		start := make(chan struct{})
		for i := range slots {
			wg.Go(func() {
				<-start
				slot, err := s.Acquire("a", netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
				if err == nil {
					admitted.Add(1)
				}
				slots[i] = slot
			})
		}
		close(start)
		wg.Wait()
		if n := admitted.Load(); n != 10 {
			t.Fatalf("round %d: 40 at once admitted %d, want 10", round, n)
		}
		wantCounts(t, s, 10, map[string]int{"a": 10})
		for _, slot := range slots {
			for range 3 {
				wg.Go(slot.Release)
			}
		}
		wg.Wait()
		wantCounts(t, s, 0, map[string]int{})
	}
}

// Every operation from many goroutines; no count may ever exceed its cap.
func TestSlotsConcurrently(t *testing.T) {
	s := ratelimit.NewSlots(12, 5, 4)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			database := fmt.Sprint("db", i%3)
			for j := range 300 {
				slot, err := s.Acquire(database, netip.AddrFrom4([4]byte{10, 0, 0, byte(j % 5)}))
				server, databases := s.Counts()
				if server > 12 || databases[database] > 5 {
					t.Errorf("got %d of 12 connections, %d of 5 in %s", server, databases[database], database)
				}
				if err == nil {
					wg.Go(slot.Release)
					slot.Release()
				}
				if i == 0 {
					s.SetLimits(12-j%2, 5-j%3, 4)
				}
			}
		})
	}
	wg.Wait()
	wantCounts(t, s, 0, map[string]int{})
	s.SetLimits(12, 5, 4)
	for range 4 {
		acquire(t, s, "a", "10.0.0.1")
	}
}

func BenchmarkSlots(b *testing.B) {
	s := ratelimit.NewSlots(100_000, 12_000, 1_000)
	ip := addr("2001:db8::1")
	b.ReportAllocs()
	for b.Loop() {
		slot, err := s.Acquire("default", ip)
		if err != nil {
			b.Fatal(err)
		}
		slot.Release()
	}
}
