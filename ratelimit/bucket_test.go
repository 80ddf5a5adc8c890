package ratelimit_test

import (
	"math"
	"testing"
	"time"
	"unsafe"

	"hub/ratelimit"
)

const second = int64(time.Second)

// start is a realistic clock: Unix nanoseconds, where float64 has lost the last digits.
var start = time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano()

// allowed counts how many of n attempts at one time pass.
func allowed(b *ratelimit.Bucket, perSecond float64, burst, n int, now int64) (count int) {
	for range n {
		if b.Allow(perSecond, burst, now) {
			count++
		}
	}
	return count
}

func TestBucket(t *testing.T) {
	type step struct {
		after int64 // since start
		n     int
		want  int
	}
	for _, tc := range []struct {
		name      string
		perSecond float64
		burst     int
		steps     []step
	}{
		{"starts full, refills, is never fuller than full", 50, 100, []step{
			{0, 200, 100}, {0, 1, 0}, {second / 50, 2, 1}, {second, 100, 49}, {100 * second, 500, 100}}},
		{"refusals cost nothing", 1, 1, []step{{0, 1000, 1}, {second / 2, 1000, 0}, {second, 1000, 1}}},
		{"half a token a second", 0.5, 1, []step{{0, 5, 1}, {second, 5, 0}, {2 * second, 5, 1}, {3 * second, 5, 0}}},
		{"many small steps add up", 10, 1, []step{{0, 1, 1},
			{second / 40, 1, 0}, {2 * second / 40, 1, 0}, {3 * second / 40, 1, 0}, {4 * second / 40, 1, 1}}},
		{"a clock that steps back", 1, 2, []step{{10 * second, 5, 2}, {0, 5, 0}, {second + 1, 5, 1}}},
		{"0 is off", 0, 0, []step{{0, 1000, 1000}, {0, 1000, 1000}}},
		{"0 is off, whatever the burst", 0, 1, []step{{0, 1000, 1000}}},
		{"no burst", 50, 0, []step{{0, 10, 0}, {100 * second, 10, 0}}},
		{"negative burst", 50, -1, []step{{0, 10, 0}, {100 * second, 10, 0}}},
		{"negative rate", -1, 10, []step{{0, 20, 0}, {100 * second, 10, 0}}},
		{"NaN", math.NaN(), 10, []step{{0, 20, 0}, {100 * second, 10, 0}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b ratelimit.Bucket
			for i, s := range tc.steps {
				if got := allowed(&b, tc.perSecond, tc.burst, s.n, start+s.after); got != s.want {
					t.Errorf("step %d: %d of %d pass, want %d", i, got, s.n, s.want)
				}
			}
		})
	}
}

// Over any time a bucket lets burst + rate*t through, to the message.
func TestBucketArithmetic(t *testing.T) {
	for _, perSecond := range []float64{0.3, 7, 50, 500, 30_000} {
		var b ratelimit.Bucket
		const burst = 100
		total, elapsed := 0, int64(0)
		tick := int64(777_777) // no divisor of a second; a bucket is never full at it
		for elapsed < 3*second {
			total += allowed(&b, perSecond, burst, 200, start+elapsed)
			elapsed += tick
		}
		want := burst + perSecond*float64(elapsed-tick)/1e9
		if diff := float64(total) - want; diff > 0.001 || diff < -1.001 {
			t.Errorf("%v/s: %d pass, want %v", perSecond, total, want)
		}
	}
}

// The limits may change while the connection lives.
func TestBucketWithOtherLimits(t *testing.T) {
	var b ratelimit.Bucket
	if got := allowed(&b, 1, 10, 20, start); got != 10 {
		t.Errorf("%d pass, want 10", got)
	}
	if got := allowed(&b, 1, 15, 20, start); got != 5 {
		t.Errorf("raised to 15: %d pass, want 5", got)
	}
	if got := allowed(&b, 1, 5, 20, start+8*second); got != 0 {
		t.Errorf("lowered to 5 with 7 spent: %d pass, want 0", got)
	}
	if got := allowed(&b, 1, 5, 20, start+11*second); got != 1 {
		t.Errorf("4 spent of 5: %d pass, want 1", got)
	}
}

func TestBucketIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(ratelimit.Bucket{}); n > 16 {
		t.Errorf("a bucket has %d bytes", n)
	}
	var b ratelimit.Bucket
	now := start
	if n := testing.AllocsPerRun(100, func() { now++; b.Allow(50, 100, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkBucket(b *testing.B) {
	var bucket ratelimit.Bucket
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now += 1000
		bucket.Allow(50, 100, now)
	}
}
