package report

import (
	"math"
	"slices"
	"testing"
)

// FuzzScale holds for both kinds of scale: coordinates stay within the range,
// order is kept, ticks are few, within the scale and rising.
func FuzzScale(f *testing.F) {
	for _, seed := range [][4]float64{{0, 1, 0.2, 0.7}, {0, 0, 0, 1}, {5, 5, 5, 5}, {1e9, 1e9 + 1, 0, 2e9}, {-3, 1e-9, -2, 0}, {0, 1e308, 1, 2}, {-1e308, 1e308, 0, 1}, {1e-300, 2e-300, 0, 1}, {1e15, 1e15 + 0.1, 0, 1}} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, lo, hi, a, b float64) {
		if !finite(lo, hi, a, b) {
			t.Skip()
		}
		a, b = min(a, b), max(a, b)
		for name, s := range map[string]scale{"linear": linearScale(lo, hi, 200, 10), "log": logScale(lo, hi, 200, 10)} {
			if !(s.lo < s.hi) || !finite(s.lo, s.hi) {
				t.Fatalf("%s: from %v to %v", name, s.lo, s.hi)
			}
			x, y := s.at(a), s.at(b)
			if !(x >= 10 && x <= 200 && y >= 10 && y <= 200) {
				t.Errorf("%s %+v: %v is at %v, %v at %v", name, s, a, x, b, y)
			}
			if x < y {
				t.Errorf("%s %+v: %v is at %v, but %v at %v", name, s, a, x, b, y)
			}
			if s.at(s.lo) != 200 || math.Abs(s.at(s.hi)-10) > 1e-9 {
				t.Errorf("%s %+v: ends at %v and %v", name, s, s.at(s.lo), s.at(s.hi))
			}
			ticks := s.ticks(6)
			if len(ticks) > 8 || !slices.IsSorted(ticks) {
				t.Errorf("%s %+v: ticks %v", name, s, ticks)
			}
			for _, tick := range ticks {
				if margin := (s.hi - s.lo) * 1e-6; tick < s.lo-margin || tick > s.hi+margin {
					t.Errorf("%s %+v: tick %v is outside", name, s, tick)
				}
			}
		}
	})
}

func TestTicksAreRound(t *testing.T) {
	tests := []struct {
		scale scale
		want  []float64
	}{
		{linearScale(0, 100, 0, 1), []float64{0, 20, 40, 60, 80, 100}},
		{linearScale(0, 0.7, 0, 1), []float64{0, 0.2, 0.4, 0.6}},
		{linearScale(0, 10_500, 0, 1), []float64{0, 5000, 10_000}},
		{logScale(2, 200, 0, 1), []float64{3, 10, 30, 100}},
		{logScale(1, 20, 0, 1), []float64{1, 2, 5, 10, 20}},
	}
	for _, test := range tests {
		if got := test.scale.ticks(5); !slices.Equal(got, test.want) {
			t.Errorf("%+v: ticks %v, want %v", test.scale, got, test.want)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, test := range []struct {
		v          float64
		unit, want string
	}{
		{0, "ms", "0 ms"}, {0.06321, "ms", "0.0632 ms"}, {0.9999, "", "1.00"}, {1.234, "x", "1.23 ×"}, {9.999, "us", "10.0 µs"}, {63.24, "ms", "63.2 ms"},
		{100.44, "ms", "100.4 ms"}, {12345.6, "1/s", "12,346 /s"}, {1e9, "", "1,000,000,000"}, {-1234, "", "-1,234"}, {1e15, "", "1e+15"},
		{1536, "bytes", "1.50 KiB"}, {1 << 30, "bytes", "1 GiB"}, {math.NaN(), "ms", "– ms"}, {0.00001, "s", "1e-05 s"}, {999.99, "", "1,000.0"},
	} {
		if got := formatValue(test.v, test.unit); got != test.want {
			t.Errorf("%v %s: got %q, want %q", test.v, test.unit, got, test.want)
		}
	}
	for v, want := range map[float64]string{0.25: "0.25", 5000: "5,000", 20_000: "20,000", 150_000: "150k", 1_500_000: "1.5M", 2e9: "2G", 0.30000000000000004: "0.3"} {
		if got := axisLabel(v); got != want {
			t.Errorf("axis label of %v: got %q, want %q", v, got, want)
		}
	}
}

// TestThinKeepsExtremes: a peak of one sample is still drawn.
func TestThinKeepsExtremes(t *testing.T) {
	points := make([]Point, 100_000)
	for i := range points {
		points[i] = Point{T: float64(i), V: 1}
	}
	points[54_321].V, points[54_322].V = 100, -100
	kept := thin(points, 400)
	rising := slices.IsSortedFunc(kept, func(a, b Point) int { return int(a.T - b.T) })
	if len(kept) > 1600 || !rising || kept[0] != points[0] || kept[len(kept)-1] != points[len(points)-1] {
		t.Errorf("%d points kept, rising %v, from %v to %v", len(kept), rising, kept[0], kept[len(kept)-1])
	}
	if !slices.Contains(kept, points[54_321]) || !slices.Contains(kept, points[54_322]) {
		t.Error("the extremes are gone")
	}
}
