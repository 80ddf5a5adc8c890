package hub

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// Each value lies in its bucket, buckets follow each other without gap, and none but
// the last is wider than an eighth of its values.
func TestWindowBuckets(t *testing.T) {
	for b := range windowBuckets - 1 {
		most := bucketMost(b)
		least := int64(0)
		if b > 0 {
			least = bucketMost(b-1) + 1
		}
		if most < least || bucketOf(least) != b || bucketOf(most) != b || bucketOf(most+1) != b+1 {
			t.Fatalf("bucket %d is %d to %d, which are in %d and %d", b, least, most, bucketOf(least), bucketOf(most))
		}
		if most-least > least/8 {
			t.Errorf("bucket %d, %d to %d, is too wide", b, least, most)
		}
	}
	for _, v := range []int64{-1, 0, 1 << 40, 1<<63 - 1} {
		if b := bucketOf(v); b < 0 || b >= windowBuckets {
			t.Errorf("%d is in bucket %d", v, b)
		}
	}
}

// Quantiles are those of what was observed, to an eighth.
func TestWindowQuantiles(t *testing.T) {
	for _, n := range []int{1, 2, 3, 100, 10_000} {
		var w window
		values := make([]int64, n)
		for i := range values {
			values[i] = rand.Int64N(1 << rand.IntN(26))
			w.add(time.Second, values[i])
		}
		slices.Sort(values)
		s := w.summary(time.Second)
		for _, q := range []struct{ percent, got int64 }{{50, s.p50}, {95, s.p95}, {99, s.p99}, {100, s.max}} {
			want := values[(int64(n)*q.percent+99)/100-1]
			if q.got < want || q.got > want+want/8 {
				t.Errorf("of %d values the quantile %d is %d, want %d", n, q.percent, q.got, want)
			}
		}
		if s.total != uint64(n) || s.recent != uint64(n) {
			t.Errorf("%d values are counted as %d, %d of them recent", n, s.total, s.recent)
		}
	}
	var none window
	if s := none.summary(time.Hour); s != (summary{}) {
		t.Errorf("of no value: %+v", s)
	}
}

// What is more than a minute old is forgotten, but for its number.
func TestWindowForgets(t *testing.T) {
	var w window
	for second := range time.Duration(600) {
		w.add(second*time.Second, int64(second))
		s := w.summary(second * time.Second)
		if oldest := int64(second) - 60; s.total != uint64(second)+1 || s.recent > 60 || s.recent < min(uint64(second)+1, 51) || s.p50 < oldest {
			t.Fatalf("after %d s: %+v", second, s)
		}
	}
	if s := w.summary(700 * time.Second); s.recent != 0 || s.total != 600 || s.max != 0 {
		t.Errorf("later: %+v", s)
	}
}

func TestWindowAtOnce(t *testing.T) {
	var w window
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range time.Duration(1000) {
				w.add(i*100*time.Millisecond, 5)
				w.summary(i * 100 * time.Millisecond)
			}
		})
	}
	all.Wait()
	if s := w.summary(0); s.total != 8000 {
		t.Errorf("%d values are counted, want 8000", s.total)
	}
}

func BenchmarkWindow(b *testing.B) {
	var w window
	b.ReportAllocs()
	for b.Loop() {
		w.add(time.Second, 1234)
	}
}
