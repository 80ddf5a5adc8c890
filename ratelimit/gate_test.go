package ratelimit_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"hub/ratelimit"
)

type limit = ratelimit.Limit

var off = limit{}

// noon is a fake clock's start, without a monotonic reading.
var noon = time.Date(2027, 1, 2, 12, 0, 0, 0, time.UTC)

// ip4 returns the n-th IPv4 address.
func ip4(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// passes counts how many of n requests at one time pass.
func passes(g *ratelimit.Gate, database string, ip netip.Addr, n int, now time.Time) (count int) {
	for range n {
		if g.Allow(database, ip, now) == nil {
			count++
		}
	}
	return count
}

// wantRefusal checks that err is a RateError of this scope and returns its Retry.
func wantRefusal(t *testing.T, err error, scope string) time.Duration {
	t.Helper()
	var re *ratelimit.RateError
	if !errors.As(err, &re) {
		t.Fatalf("got %v, want a refusal by %s", err, scope)
	}
	if re.Scope != scope {
		t.Errorf("got a refusal by %s, want %s", re.Scope, scope)
	}
	if re.Retry <= 0 || re.Retry > time.Hour {
		t.Errorf("retry is %v", re.Retry)
	}
	return re.Retry
}

// Four addresses at 500/s with a burst of 1,200 get exactly 4*(1,200+500*t)
// requests through, however the time is cut.
func TestGateArithmetic(t *testing.T) {
	for _, step := range []time.Duration{2 * time.Millisecond, time.Millisecond, 333 * time.Microsecond, 777_777, 50 * time.Millisecond, time.Second} {
		g := ratelimit.NewGate(limit{500, 1200}, limit{20_000, 30_000}, 100)
		total, now, end := 0, noon, noon.Add(10*time.Second)
		for !now.After(end) {
			for i := range 4 {
				n := 2 + int(500*step/time.Second) // more than can pass
				if now.Equal(noon) {
					n = 1300
				}
				total += passes(g, "default", ip4(i), n, now)
			}
			now = now.Add(step)
		}
		elapsed := now.Add(-step).Sub(noon)
		if want := 4 * (1200 + int(500*elapsed/time.Second)); total != want {
			t.Errorf("steps of %v: %d pass in %v, want %d", step, total, elapsed, want)
		}
	}
}

// At random times the gate decides as x/time/rate does, which is not ours. The
// times are multiples of an eighth of a token's, since that package rounds waits
// down to nanoseconds and so gives tokens that are not quite there.
func TestGateDecidesLikeRate(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, l := range []limit{{0.5, 1}, {8, 3}, {200, 500}, {25_000, 64}, {0.25, 2}} {
		g := ratelimit.NewGate(l, off, 10)
		reference := rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst)
		now, passed := noon, 0
		for i := range 20_000 {
			got, want := g.Allow("default", ip4(1), now) == nil, reference.AllowN(now, 1)
			if got != want {
				t.Fatalf("%v: request %d at %v: passes %v, want %v", l, i, now.Sub(noon), got, want)
			}
			if got {
				passed++
			}
			now = now.Add(time.Duration(random.IntN(9)) * time.Duration(1e9/8/l.PerSecond))
		}
		if passed < 5000 || passed > 15_000 {
			t.Errorf("%v: %d of 20,000 pass: the comparison is of little use", l, passed)
		}
	}
}

// After Retry the request passes, a little earlier it does not.
func TestRetry(t *testing.T) {
	for _, l := range []limit{{500, 3}, {0.5, 1}, {7, 2}, {1.0 / 3600, 1}, {3e6, 1}} {
		for scope, g := range map[string]*ratelimit.Gate{
			"ip":       ratelimit.NewGate(l, off, 10),
			"database": ratelimit.NewGate(off, l, 10),
		} {
			if n := passes(g, "default", ip4(1), l.Burst, noon); n != l.Burst {
				t.Errorf("%v: %d pass, want the burst", l, n)
			}
			now := noon.Add(time.Duration(0.3e9 / l.PerSecond))
			retry := wantRefusal(t, g.Allow("default", ip4(1), now), scope)
			wantRefusal(t, g.Allow("default", ip4(1), now.Add(retry*99/100)), scope)
			if err := g.Allow("default", ip4(1), now.Add(retry)); err != nil {
				t.Errorf("%v by %s: after %v still %v", l, scope, retry, err)
			}
		}
	}
	g := ratelimit.NewGate(limit{1e-300, 1}, off, 10)
	passes(g, "default", ip4(1), 1, noon)
	if retry := wantRefusal(t, g.Allow("default", ip4(1), noon), "ip"); retry != time.Hour {
		t.Errorf("retry is %v, want the bound", retry)
	}
}

// A refusal takes nothing: neither of the scope that refuses, nor of the other.
func TestBothOrNone(t *testing.T) {
	g := ratelimit.NewGate(limit{1, 5}, limit{1, 7}, 100)
	if n := passes(g, "a", ip4(1), 100, noon); n != 5 {
		t.Errorf("%d pass, want the address's 5", n)
	}
	if n := passes(g, "a", ip4(2), 100, noon); n != 2 {
		t.Errorf("%d pass, want the database's last 2", n)
	}
	if n := passes(g, "b", ip4(2), 100, noon); n != 3 {
		t.Errorf("%d pass, want the 3 that the database's refusals did not cost", n)
	}
	if n := passes(g, "a", ip4(3), 100, noon); n != 0 {
		t.Errorf("%d pass, want none of a spent database", n)
	}
	if n := g.Len(); n != 2 {
		t.Errorf("%d addresses remembered, want the 2 that spent something", n)
	}
	if n := passes(g, "a", ip4(2), 100, noon.Add(time.Second)); n != 1 {
		t.Errorf("%d pass, want the second's 1", n)
	}
}

// Case G24: 0 is off, whatever else; what is no limit lets nothing pass.
func TestGateOddLimits(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, l := range []limit{{0, 0}, {0, 1}, {0, -1}, {math.Copysign(0, -1), 0}} {
		g := ratelimit.NewGate(l, l, 10)
		for i := range 1000 {
			if err := g.Allow("default", ip4(i), noon); err != nil {
				t.Fatalf("%v: %v", l, err)
			}
		}
		if n := g.Len(); n != 0 {
			t.Errorf("%v: %d addresses remembered without a limit", l, n)
		}
	}
	for _, l := range []limit{{5, 0}, {5, -1}, {-1, 5}, {nan, 5}, {inf, 5}, {-inf, 5}, {0.5, 0}, {math.MinInt, math.MinInt}} {
		for scope, g := range map[string]*ratelimit.Gate{"ip": ratelimit.NewGate(l, off, 10), "database": ratelimit.NewGate(off, l, 10)} {
			for i := range 10 {
				wantRefusal(t, g.Allow("default", ip4(i), noon.Add(time.Duration(i)*time.Hour)), scope)
			}
		}
	}
	// Extreme clocks and tables.
	for _, entries := range []int{-1, 0, 1} {
		g := ratelimit.NewGate(limit{1e300, math.MaxInt}, limit{1e-300, math.MaxInt}, entries)
		for _, now := range []time.Time{noon, {}, time.Unix(1<<40, 0), time.Unix(-1<<40, 0), time.Unix(1<<62, 0), noon} {
			for i := range 3 {
				_ = g.Allow("default", ip4(i), now)
				_ = g.Allow("", netip.Addr{}, now)
			}
			if n := g.Len(); n > 1 {
				t.Errorf("%d entries allowed: %d remembered", entries, n)
			}
		}
	}
}

// A burst is whole also where the rate is a fraction.
func TestFractionalRate(t *testing.T) {
	g := ratelimit.NewGate(limit{0.5, 1}, off, 10)
	for i, want := range []int{1, 0, 1, 0, 1} { // one a second
		if n := passes(g, "default", ip4(1), 10, noon.Add(time.Duration(i)*time.Second)); n != want {
			t.Errorf("second %d: %d pass, want %d", i, n, want)
		}
	}
	// Tenths of a token, which floating point does not add up to a whole one.
	g = ratelimit.NewGate(limit{10, 1}, limit{10, 1}, 10)
	for i := range 201 {
		want := 0
		if i%10 == 0 {
			want = 1
		}
		if n := passes(g, "default", ip4(1), 2, noon.Add(time.Duration(i)*10*time.Millisecond)); n != want {
			t.Errorf("tenth %d: %d pass, want %d", i, n, want)
		}
	}
}

// Case G20.
func TestGateAddresses(t *testing.T) {
	g := ratelimit.NewGate(limit{1, 10}, off, 100)
	total := 0
	for i := range 50 {
		total += passes(g, "default", addr(fmt.Sprintf("2001:db8::%x", i)), 1, noon)
	}
	if total != 10 {
		t.Errorf("%d of neighbours in a /64 pass, want 10", total)
	}
	if n := passes(g, "default", addr("2001:db8:0:1::1"), 20, noon); n != 10 {
		t.Errorf("%d of another /64 pass, want 10", n)
	}
	if n := passes(g, "default", addr("10.0.0.1"), 6, noon) + passes(g, "default", addr("::ffff:10.0.0.1"), 20, noon); n != 10 {
		t.Errorf("%d of an address and its mapped form pass, want 10", n)
	}
}

// A clock that steps back refills nothing, and not the same time twice.
func TestGateClockStepsBack(t *testing.T) {
	g := ratelimit.NewGate(limit{1, 5}, limit{1, 5}, 10)
	if n := passes(g, "default", ip4(1), 10, noon); n != 5 {
		t.Errorf("%d pass, want 5", n)
	}
	total := 0
	for range 100 {
		total += passes(g, "default", ip4(1), 1, noon.Add(3*time.Second))
		total += passes(g, "default", ip4(1), 1, noon)
	}
	if total != 3 {
		t.Errorf("%d pass, want the 3 of 3 seconds", total)
	}
}

func TestGateSetLimits(t *testing.T) {
	for _, tc := range []struct {
		name         string
		before       limit
		spend        int
		after        limit
		atOnce       int
		when         time.Duration // later
		passThen     int
		rememberThen int
	}{
		{"raised burst", limit{1, 10}, 10, limit{1, 15}, 5, 2 * time.Second, 2, 1},
		{"raised from full", limit{1, 10}, 0, limit{1, 15}, 15, time.Second, 1, 1},
		{"raised rate", limit{1, 10}, 10, limit{100, 10}, 0, 50 * time.Millisecond, 5, 1},
		{"never above the burst", limit{1, 10}, 10, limit{100, 12}, 2, time.Hour, 12, 1},
		{"lowered burst keeps the debt", limit{1, 10}, 7, limit{1, 5}, 0, 3 * time.Second, 1, 1},
		{"lowered burst, little spent", limit{1, 10}, 2, limit{1, 5}, 3, time.Second, 1, 1},
		{"lowered rate", limit{100, 10}, 10, limit{1, 10}, 0, 2 * time.Second, 2, 1},
		{"same", limit{1, 10}, 10, limit{1, 10}, 0, 2 * time.Second, 2, 1},
		{"off", limit{1, 10}, 10, off, 1000, time.Second, 1000, 0},
		{"on", off, 1000, limit{1, 10}, 10, time.Second, 1, 1},
	} {
		for scope, both := range map[string]func(limit) (ip, database limit){
			"ip":       func(l limit) (limit, limit) { return l, off },
			"database": func(l limit) (limit, limit) { return off, l },
		} {
			g := ratelimit.NewGate(off, off, 10)
			g.SetLimits(both(tc.before))
			if n := passes(g, "default", ip4(1), tc.spend, noon); n != tc.spend {
				t.Fatalf("%s of %s: %d pass, want %d", tc.name, scope, n, tc.spend)
			}
			g.SetLimits(both(tc.after))
			if n := passes(g, "default", ip4(1), 1000, noon); n != tc.atOnce {
				t.Errorf("%s of %s: %d pass at once, want %d", tc.name, scope, n, tc.atOnce)
			}
			if n := passes(g, "default", ip4(1), 1000, noon.Add(tc.when)); n != tc.passThen {
				t.Errorf("%s of %s: %d pass after %v, want %d", tc.name, scope, n, tc.when, tc.passThen)
			}
			if n := g.Len(); scope == "ip" && n != tc.rememberThen {
				t.Errorf("%s: %d remembered, want %d", tc.name, n, tc.rememberThen)
			}
		}
	}
	// On again: as if nothing had been.
	g := ratelimit.NewGate(limit{1, 10}, limit{1, 10}, 10)
	passes(g, "default", ip4(1), 10, noon)
	g.SetLimits(off, off)
	g.SetLimits(limit{1, 10}, limit{1, 10})
	if n := passes(g, "default", ip4(1), 100, noon); n != 10 {
		t.Errorf("%d pass after off and on, want 10", n)
	}
	// What came in before a change came in at the rate before it.
	g = ratelimit.NewGate(limit{1, 10}, off, 10)
	passes(g, "default", ip4(1), 10, noon)
	passes(g, "default", ip4(2), 1, noon.Add(2*time.Second))
	g.SetLimits(limit{100, 10}, off)
	if n := passes(g, "default", ip4(1), 100, noon.Add(2*time.Second)); n != 2 {
		t.Errorf("%d pass, want the 2 of 2 seconds at 1/s", n)
	}
}

// Whatever the goroutines do at once, not one request too many passes, and none
// too few.
func TestGateConcurrently(t *testing.T) {
	const workers, addresses, each = 16, 4, 3000
	g := ratelimit.NewGate(limit{500, 1200}, limit{1000, 4000}, 64)
	var clock, passed atomic.Int64 // clock in nanoseconds after noon
	var perAddress [addresses]atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				// Read first, used later: times arrive out of order.
				now := noon.Add(time.Duration(clock.Add(int64(10 * time.Microsecond))))
				a := (w + i) % addresses
				if g.Allow("default", ip4(a), now) == nil {
					passed.Add(1)
					perAddress[a].Add(1)
				}
				if w == 0 && i%100 == 0 {
					g.SetLimits(limit{500, 1200}, limit{1000, 4000})
					if n := g.Len(); n > addresses {
						t.Errorf("%d addresses remembered of %d", n, addresses)
					}
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Duration(clock.Load()).Seconds()
	if n, most := passed.Load(), int64(4000+1000*elapsed); n > most {
		t.Errorf("%d of a database pass in %v s, want at most %d", n, elapsed, most)
	}
	for a := range perAddress {
		if n, most := perAddress[a].Load(), int64(1200+500*elapsed); n > most {
			t.Errorf("%d of address %d pass in %v s, want at most %d", n, a, elapsed, most)
		}
	}
	// The database is what holds them back, so it has been used up.
	if n := passed.Load(); n < 4000 {
		t.Errorf("%d pass, want the burst at least", n)
	}
}

func TestGateDoesNotAllocate(t *testing.T) {
	g := ratelimit.NewGate(limit{500, 1200}, limit{20_000, 30_000}, 1000)
	now, ip := noon, addr("2001:db8::1")
	passes(g, "default", ip, 1, now)
	n := testing.AllocsPerRun(1000, func() {
		now = now.Add(2 * time.Millisecond)
		if err := g.Allow("default", ip, now); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for a known address", n)
	}
}

func BenchmarkGate(b *testing.B) {
	for _, n := range []int{1, 1000, 65_536} {
		b.Run(fmt.Sprintf("known=%d", n), func(b *testing.B) {
			g := ratelimit.NewGate(limit{1e6, 1000}, limit{1e9, 1000}, n)
			base := time.Now()
			for i := range n {
				_ = g.Allow("default", ip4(i), base)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				if err := g.Allow("default", ip4(i%n), base.Add(time.Duration(i)*time.Microsecond)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("new", func(b *testing.B) { // each takes the place of another
		g := ratelimit.NewGate(limit{500, 1200}, off, 65_536)
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			i++
			if err := g.Allow("default", ip4(i), noon.Add(time.Duration(i)*time.Microsecond)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("refused", func(b *testing.B) {
		g := ratelimit.NewGate(limit{1, 1}, off, 10)
		b.ReportAllocs()
		for b.Loop() {
			_ = g.Allow("default", ip4(1), noon)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		g := ratelimit.NewGate(limit{1e9, 1 << 30}, limit{1e9, 1 << 30}, 1000)
		var worker atomic.Int32
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			ip := ip4(int(worker.Add(1)))
			for pb.Next() {
				_ = g.Allow("default", ip, time.Now())
			}
		})
	})
}
