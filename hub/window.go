package hub

import (
	"math/bits"
	"sync"
	"time"
)

// window is the distribution of what was observed in the last minute, to an eighth
// of each value, and how much there ever was. Safe for concurrent use; it takes
// 5 KiB however much it sees.
type window struct {
	mu    sync.Mutex
	total uint64               // guarded by mu
	parts [windowParts]partial // the part of a time is at(time); guarded by mu
	at    [windowParts]int64   // the number of the period that a part is of; guarded by mu
}

// partial is what was observed in one period, by bucket.
type partial [windowBuckets]uint32

const (
	windowParts  = 6
	windowPeriod = 10 * time.Second
	// Each power of two has 8 buckets; values up to 8 have one each. The last one
	// holds what is above 2^26: a minute in microseconds.
	windowBuckets = 8 * 25
)

// bucketOf returns the bucket of a value.
func bucketOf(v int64) int {
	if v < 8 {
		return int(max(v, 0))
	}
	e := bits.Len64(uint64(v)) - 1
	return min((e-2)*8+int(v>>(e-3)&7), windowBuckets-1)
}

// bucketMost returns the largest value of a bucket.
func bucketMost(b int) int64 {
	if b < 8 {
		return int64(b)
	}
	e := b/8 + 2
	return int64(8+b%8+1)<<(e-3) - 1
}

// add takes in a value observed at a time since the server's start.
func (w *window) add(now time.Duration, v int64) {
	period := int64(now / windowPeriod)
	i := period % windowParts
	b := bucketOf(v)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at[i] != period {
		w.at[i], w.parts[i] = period, partial{}
	}
	w.parts[i][b]++
	w.total++
}

// addTime takes in how long something took that ended at a time.
func (w *window) addTime(now, took time.Duration) { w.add(now, int64(took/time.Microsecond)) }

// summary is what a window shows: how much there ever was, how much in the last
// minute, and that one's quantiles (the highest value of their bucket).
type summary struct {
	total, recent      uint64
	p50, p95, p99, max int64
}

func (w *window) summary(now time.Duration) summary {
	var sum [windowBuckets]uint64
	var s summary
	period := int64(now / windowPeriod)
	w.mu.Lock()
	s.total = w.total
	for i := range w.parts {
		if period-w.at[i] >= windowParts {
			continue
		}
		for b, n := range w.parts[i] {
			sum[b] += uint64(n)
			s.recent += uint64(n)
		}
	}
	w.mu.Unlock()
	quantiles := []struct {
		rank uint64 // how many are at most so large
		to   *int64
	}{
		{rank(s.recent, 50), &s.p50}, {rank(s.recent, 95), &s.p95}, {rank(s.recent, 99), &s.p99}, {s.recent, &s.max},
	}
	seen := uint64(0)
	for b, n := range sum {
		seen += n
		for n > 0 && len(quantiles) > 0 && seen >= quantiles[0].rank {
			*quantiles[0].to = bucketMost(b)
			quantiles = quantiles[1:]
		}
	}
	return s
}

// rank is the number of the value that is the quantile of n, by nearest rank.
func rank(n, percent uint64) uint64 { return (n*percent + 99) / 100 }
