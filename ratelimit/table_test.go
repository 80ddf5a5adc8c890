package ratelimit_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"hub/ratelimit"
)

// At the bound only a full bucket gives its place away: the one that is full.
func TestGateBound(t *testing.T) {
	g := ratelimit.NewGate(limit{1, 10}, off, 3)
	passes(g, "default", ip4(1), 2, noon) // full after 2 s, 4 s and 9 s
	passes(g, "default", ip4(3), 9, noon)
	passes(g, "default", ip4(2), 4, noon)
	if retry := wantRefusal(t, g.Allow("default", ip4(4), noon), "ip"); retry != 2*time.Second {
		t.Errorf("retry is %v, want 2 s, when the first is full", retry)
	}
	passes(g, "default", ip4(1), 4, noon) // now it is ip4(2)
	if retry := wantRefusal(t, g.Allow("default", ip4(4), noon.Add(time.Second)), "ip"); retry != 3*time.Second {
		t.Errorf("retry is %v, want 3 s", retry)
	}
	now := noon.Add(4 * time.Second)
	if n := passes(g, "default", ip4(4), 20, now); n != 10 {
		t.Errorf("%d of the new address pass, want its burst", n)
	}
	wantRefusal(t, g.Allow("default", ip4(2), now), "ip") // it gave its place away
	for i, want := range map[int]int{1: 8, 3: 5} {        // these did not
		if n := passes(g, "default", ip4(i), 20, now); n != want {
			t.Errorf("%d of address %d pass, want %d", n, i, want)
		}
	}
	if n := g.Len(); n != 3 {
		t.Errorf("%d remembered, want 3", n)
	}
	// What it left behind is not in anybody's way when it returns.
	now = now.Add(10 * time.Second)
	passes(g, "default", ip4(4), 6, now)
	for i, want := range map[int]int{2: 10, 4: 4} {
		if n := passes(g, "default", ip4(i), 20, now); n != want {
			t.Errorf("%d of address %d pass later, want %d", n, i, want)
		}
	}
	// Databases are bounded as well.
	g = ratelimit.NewGate(off, limit{1, 10}, 3)
	for i := range 100 {
		err := g.Allow(fmt.Sprint("db", i), ip4(1), noon)
		if i >= 3 {
			wantRefusal(t, err, "database")
		}
	}
}

// After a flood the places of those that never came back are given up.
func TestGateShrinks(t *testing.T) {
	g := ratelimit.NewGate(limit{500, 1200}, off, 10_000)
	for i := range 5000 {
		passes(g, "default", ip4(i), 1, noon)
	}
	if n := g.Len(); n != 5000 {
		t.Errorf("%d remembered, want 5,000", n)
	}
	for i := range 2600 {
		passes(g, "default", ip4(1_000_000+i), 1, noon.Add(2*time.Minute))
	}
	if n := g.Len(); n != 2600 {
		t.Errorf("%d remembered, want the new 2,600 alone", n)
	}
}

// Case G21: a million addresses, one request each, within a second.
func TestMillionAddresses(t *testing.T) {
	const million, bound = 1_000_000, 10_000
	g := ratelimit.NewGate(limit{500, 1200}, off, bound)
	victim := addr("2001:db8::1")
	if n := passes(g, "default", victim, 2000, noon); n != 1200 {
		t.Fatalf("%d pass, want 1,200", n)
	}
	passed := 0
	for i := range million {
		if g.Allow("default", ip4(i), noon.Add(time.Duration(i)*time.Microsecond)) == nil {
			passed++
		}
	}
	// Each is in debt for 2 ms, so there is a place for every one of them.
	if n := g.Len(); passed != million || n > bound {
		t.Errorf("%d pass and %d are remembered, want a million and at most %d", passed, n, bound)
	}
	if n := passes(g, "default", victim, 2000, noon.Add(time.Second)); n != 500 {
		t.Errorf("%d pass of the address in debt, want the 500 of a second", n)
	}

	// All at once, the rest waits until the first is full.
	g, passed = ratelimit.NewGate(limit{500, 1200}, off, bound), 0
	for i := range 2 * bound {
		if g.Allow("default", ip4(i), noon) == nil {
			passed++
		}
	}
	if n := g.Len(); passed != bound || n != bound {
		t.Errorf("%d pass and %d are remembered, want %d", passed, n, bound)
	}
	if retry := wantRefusal(t, g.Allow("default", ip4(million), noon), "ip"); retry != 2*time.Millisecond {
		t.Errorf("retry is %v, want 2 ms", retry)
	}
}

// FuzzGate compares a small gate under pressure with buckets that forget nothing.
func FuzzGate(f *testing.F) {
	f.Add([]byte("abcabcaaaaaabbbbcdefgh\x80\x90abc\xffabc"), uint8(3), uint8(2))
	f.Add([]byte("abcdefghabcdefgh\x81ijkl\xa0abcdefgh"), uint8(7), uint8(5))
	f.Fuzz(func(t *testing.T, requests []byte, burst, entries uint8) {
		l := limit{PerSecond: 100, Burst: int(burst) + 1}
		g := ratelimit.NewGate(l, off, int(entries))
		reference := map[netip.Addr]*ratelimit.Bucket{}
		full := map[netip.Addr]time.Time{}
		now := noon
		for i, r := range requests {
			if r >= 0x80 { // time passes, or the burst changes
				now = now.Add(time.Duration(r&0x3f) * 3 * time.Millisecond)
				if r >= 0xc0 {
					l.Burst = int(r&0x0f) + 1
					g.SetLimits(l, off)
				}
				continue
			}
			ip := ip4(int(r))
			if reference[ip] == nil {
				reference[ip] = &ratelimit.Bucket{}
			}
			inDebt := 0
			for other, at := range full {
				if other != ip && at.After(now) {
					inDebt++
				}
			}
			err := g.Allow("default", ip, now)
			if err == nil {
				if !reference[ip].Allow(l.PerSecond, l.Burst, now.UnixNano()) {
					t.Fatalf("request %d of %q passes without a token", i, requests)
				}
				if at := full[ip]; at.Before(now) {
					full[ip] = now
				}
				full[ip] = full[ip].Add(10 * time.Millisecond)
			} else {
				// A copy, so that nothing is spent where there was a token but no place.
				b := *reference[ip]
				if b.Allow(l.PerSecond, l.Burst, now.UnixNano()) && (full[ip].After(now) || inDebt < max(1, int(entries))) {
					t.Fatalf("request %d of %q is refused with a token and a place: %v", i, requests, err)
				}
				wantRefusal(t, err, "ip")
			}
			if n := g.Len(); n > max(1, int(entries)) {
				t.Fatalf("%d remembered, the bound is %d", n, entries)
			}
		}
	})
}
