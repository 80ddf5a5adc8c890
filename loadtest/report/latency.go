package report

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latency summarises how long deliveries took, from the intended send time to
// the moment the client read the event. The percentiles are the histogram's
// own; the buckets are coarser and serve drawing and adding.
type Latency struct {
	Count int64   `json:"count"`
	P50MS float64 `json:"p50_ms"`
	P90MS float64 `json:"p90_ms"`
	P95MS float64 `json:"p95_ms"`
	P99MS float64 `json:"p99_ms"`
	MaxMS float64 `json:"max_ms"`
	// Buckets holds the non-empty ones by rising bound. The bounds are 10^(k/50)
	// ms for whole k (4.7 % apart) in every report, so that buckets of different
	// rounds and runs can be added.
	Buckets []Bucket `json:"buckets"`
}

// Bucket counts the deliveries that took longer than the bound before UpToMS
// and at most UpToMS.
type Bucket struct {
	UpToMS float64 `json:"up_to_ms"`
	Count  int64   `json:"count"`
}

// perDecade is the number of bucket bounds between 1 ms and 10 ms.
const perDecade = 50

// minBound is the number of the first bound, 1 µs: shorter is counted there.
const minBound = -3 * perDecade

// Summarize makes the summary of a histogram whose values are whole multiples
// of unit: time.Microsecond for one that recorded microseconds. The histogram
// may go on recording afterwards.
func Summarize(h *hdrhistogram.Histogram, unit time.Duration) Latency {
	l := Latency{Count: h.TotalCount(), Buckets: []Bucket{}}
	if l.Count == 0 {
		return l
	}
	ms := func(v int64) float64 { return float64(time.Duration(v)*unit) / 1e6 }
	l.P50MS = ms(h.ValueAtQuantile(50))
	l.P90MS = ms(h.ValueAtQuantile(90))
	l.P95MS = ms(h.ValueAtQuantile(95))
	l.P99MS = ms(h.ValueAtQuantile(99))
	l.MaxMS = ms(h.Max())
	last := 0
	for _, bar := range h.Distribution() {
		if bar.Count == 0 {
			continue
		}
		k := boundAbove(ms(bar.To))
		if n := len(l.Buckets); n > 0 && k == last {
			l.Buckets[n-1].Count += bar.Count
			continue
		}
		last = k
		l.Buckets = append(l.Buckets, Bucket{UpToMS: bound(k), Count: bar.Count})
	}
	return l
}

// bound is the k-th bucket bound in ms, rounded to nine digits so that it reads
// the same everywhere.
func bound(k int) float64 {
	return roundTo(math.Pow(10, float64(k)/perDecade), 9)
}

// boundAbove is the number of the lowest bound that is not below ms.
func boundAbove(ms float64) int {
	if ms <= 0 {
		return minBound
	}
	k := max(minBound, int(math.Floor(math.Log10(ms)*perDecade))-1)
	for bound(k) < ms {
		k++
	}
	return k
}

// roundTo keeps so many significant digits.
func roundTo(v float64, digits int) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return v
	}
	scale := math.Pow(10, float64(digits-1)-math.Floor(math.Log10(math.Abs(v))))
	if math.IsInf(scale, 0) || scale == 0 {
		return v
	}
	return math.Round(v*scale) / scale
}
