package report

import (
	"math"
	"strconv"
)

// scale maps values in [lo, hi] to coordinates in [from, to], where to may be
// less than from. Values outside are drawn at the nearer edge. lo < hi always.
type scale struct {
	lo, hi   float64
	from, to float64
	log      bool // lo > 0
}

// tick is a labelled coordinate on an axis.
type tick struct {
	At    float64
	Label string
}

// linearScale spans the values from lo to hi, widened where they are equal and
// brought into order where they are not.
func linearScale(lo, hi, from, to float64) scale {
	const most = 1e300
	lo, hi = max(-most, min(lo, hi)), min(most, max(lo, hi))
	if !(hi-lo > 0) || hi-lo < math.Abs(hi)*1e-12 {
		hi = lo + max(1, math.Abs(lo))
	}
	return scale{lo: lo, hi: hi, from: from, to: to}
}

// logScale spans the values from lo to hi, at least a factor of 2; what is not
// positive is taken for the smallest value drawn, 1 µs as milliseconds.
func logScale(lo, hi, from, to float64) scale {
	const least = 0.001
	const most = 1e300
	lo, hi = min(most, max(least, min(lo, hi))), min(most, max(least, lo, hi))
	return scale{lo: lo, hi: max(hi, 2*lo), from: from, to: to, log: true}
}

// at is the coordinate of a value.
func (s scale) at(v float64) float64 {
	v = min(max(v, s.lo), s.hi)
	part := (v - s.lo) / (s.hi - s.lo)
	if s.log {
		part = math.Log(v/s.lo) / math.Log(s.hi/s.lo)
	}
	return s.from + min(max(part, 0), 1)*(s.to-s.from)
}

// ticks are between 2 and about n round values within the scale, 1, 2 or 5
// times a power of ten apart; on a logarithmic scale the powers themselves, with
// 2 and 5 between them where there is room.
func (s scale) ticks(n int) []float64 {
	if s.log {
		return s.logTicks(n)
	}
	step := roundStep((s.hi - s.lo) / float64(n))
	var ticks []float64
	first := math.Ceil(s.lo/step - 1e-9)
	for i := 0; i <= 2*n; i++ {
		v := (first + float64(i)) * step
		if v > s.hi+step*1e-9 {
			break
		}
		ticks = append(ticks, roundTo(v, 12))
	}
	return ticks
}

func (s scale) logTicks(n int) []float64 {
	var all []float64
	for _, steps := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
		all = all[:0]
		for power := int(math.Floor(math.Log10(s.lo))); power <= int(math.Ceil(math.Log10(s.hi))); power++ {
			for _, step := range steps {
				v := roundTo(step*math.Pow(10, float64(power)), 3)
				if v >= s.lo*(1-1e-9) && v <= s.hi*(1+1e-9) {
					all = append(all, v)
				}
			}
		}
		if len(all) <= n {
			return all
		}
	}
	every := (len(all) + n - 1) / n
	var some []float64
	for i := 0; i < len(all); i += every {
		some = append(some, all[i])
	}
	return some
}

// roundStep is the smallest of 1, 2 and 5 times a power of ten not below v > 0.
func roundStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 5} {
		if v <= step*power*(1+1e-9) {
			return step * power
		}
	}
	return 10 * power
}

// roundLog widens a range of positive values to 1, 2 or 5 times a power of ten.
func roundLog(lo, hi float64) (float64, float64) {
	down := func(v float64) float64 {
		power := math.Pow(10, math.Floor(math.Log10(v)))
		for _, step := range []float64{5, 2} {
			if v >= step*power*(1-1e-9) {
				return step * power
			}
		}
		return power
	}
	return down(lo), roundStep(hi)
}

// place labels the values with their coordinates.
func (s scale) place(values []float64, label func(float64) string) []tick {
	var ticks []tick
	for _, v := range values {
		ticks = append(ticks, tick{At: s.at(v), Label: label(v)})
	}
	return ticks
}

// axisLabel is shorter than formatNumber: 0.5, 10, 20,000, 200k, 1.5M.
func axisLabel(v float64) string {
	size := math.Abs(v)
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e5, "k"}} {
		if size >= unit.size {
			if unit.name == "k" {
				unit.size = 1e3
			}
			return strconv.FormatFloat(roundTo(v/unit.size, 4), 'g', 6, 64) + unit.name
		}
	}
	return group(strconv.FormatFloat(roundTo(v, 4), 'f', -1, 64))
}
