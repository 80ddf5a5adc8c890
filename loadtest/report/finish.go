package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
)

// New is an empty report with its schema set.
func New(tool Tool) *Report { return &Report{Schema: Schema, Tool: tool} }

// Finish makes the report ready to be written: it computes the verdict and the
// ratios to the floors, adds definitions and known reference figures, and orders
// the points of series. Figures, points and CPU times that are no finite numbers
// are taken out, each told in Problems, so that one division by zero does not
// cost the whole report. It may be called again after changes.
func (r *Report) Finish() {
	r.Schema = Schema
	r.Verdict = r.verdict()
	r.Definitions = definitions()
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		r.dropNonFinite(s)
		for j := range s.Floors {
			f := &s.Floors[j]
			f.RatioP95, f.RatioP95Low, f.RatioP95High = 0, 0, 0
			if ratio, ok := s.FloorRatio(f.Shape); ok {
				f.RatioP95, f.RatioP95Low, f.RatioP95High = ratio.Median, ratio.Low, ratio.High
			}
		}
		if s.References == nil && len(s.Rounds) > 0 {
			s.References = references(s.Name)
		}
	}
	r.fillEmpty()
}

// dropNonFinite removes what JSON and charts cannot show.
func (r *Report) dropNonFinite(s *Scenario) {
	s.Figures = slices.DeleteFunc(s.Figures, func(f Figure) bool {
		if finite(f.Value, f.Low, f.High) {
			return false
		}
		r.Problems = append(r.Problems, fmt.Sprintf("scenario %s: figure %s is not a number and was left out", s.Name, f.Name))
		return true
	})
	for i := range s.Rounds {
		round := &s.Rounds[i]
		if !finite(round.ServerCPU, round.GeneratorCPU) {
			r.Problems = append(r.Problems, fmt.Sprintf("scenario %s: CPU times of round %d are not numbers and were left out", s.Name, round.N))
			round.ServerCPU, round.GeneratorCPU = 0, 0
		}
	}
	for i := range s.Series {
		series := &s.Series[i]
		had := len(series.Points)
		series.Points = slices.DeleteFunc(series.Points, func(p Point) bool { return !finite(p.T, p.V) })
		if n := had - len(series.Points); n > 0 {
			r.Problems = append(r.Problems, fmt.Sprintf("scenario %s: %d points of %s are not numbers and were left out", s.Name, n, series.Name))
		}
		slices.SortStableFunc(series.Points, func(a, b Point) int { return cmp.Compare(a.T, b.T) })
	}
}

// fillEmpty makes lists empty rather than absent, so that the JSON form has []
// and not null.
func (r *Report) fillEmpty() {
	r.Settings.Flags = orEmpty(r.Settings.Flags)
	r.Settings.Raised = orEmpty(r.Settings.Raised)
	r.Scenarios = orEmpty(r.Scenarios)
	r.Checks = orEmpty(r.Checks)
	r.NotTested = orEmpty(r.NotTested)
	r.Problems = orEmpty(r.Problems)
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		s.Rounds, s.Floors, s.Figures = orEmpty(s.Rounds), orEmpty(s.Floors), orEmpty(s.Figures)
		s.Series, s.References = orEmpty(s.Series), orEmpty(s.References)
		for j := range s.Rounds {
			s.Rounds[j].Latency.Buckets = orEmpty(s.Rounds[j].Latency.Buckets)
		}
		for j := range s.Series {
			s.Series[j].Points = orEmpty(s.Series[j].Points)
		}
	}
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// p95s are those of the floor's runs in ms.
func (f Floor) p95s() (list []float64) {
	for _, run := range []*FloorRun{f.Before, f.After} {
		if run != nil && run.Latency.Count > 0 {
			list = append(list, run.Latency.P95MS)
		}
	}
	return list
}

// floorP95 is the mean p95 of the floor's runs in ms; 0 when there were none.
func (f Floor) floorP95() float64 {
	list := f.p95s()
	if len(list) == 0 {
		return 0
	}
	return Median(list) // of two
}

// floorOf is the floor of the same shape.
func (s *Scenario) floorOf(shape Shape) (Floor, bool) {
	i := slices.IndexFunc(s.Floors, func(f Floor) bool { return f.Shape == shape })
	if i < 0 {
		return Floor{}, false
	}
	return s.Floors[i], true
}

// Ratio compares the rounds of a shape with its floor.
type Ratio struct {
	Median    float64 // median p95 of the rounds ÷ mean p95 of the floor's runs
	Low, High float64 // best round ÷ slowest run of the floor, and the opposite
}

// FloorRatio compares the p95 of the rounds of a shape with that of the floor's
// runs for it; false without either.
func (s *Scenario) FloorRatio(shape Shape) (Ratio, bool) {
	f, ok := s.floorOf(shape)
	if !ok {
		return Ratio{}, false
	}
	var rounds []float64
	for _, round := range s.Rounds {
		if round.Shape == shape && round.Latency.Count > 0 {
			rounds = append(rounds, round.Latency.P95MS)
		}
	}
	floor := f.p95s()
	if len(rounds) == 0 || len(floor) == 0 || slices.Min(floor) <= 0 {
		return Ratio{}, false
	}
	r := Ratio{
		Median: Median(rounds) / f.floorP95(),
		Low:    slices.Min(rounds) / slices.Max(floor), High: slices.Max(rounds) / slices.Min(floor),
	}
	return r, finite(r.Median, r.Low, r.High)
}

// Median is the middle of the values, or the mean of the two middle ones; NaN
// without any. The values stay as they are.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

func finite(values ...float64) bool {
	return !slices.ContainsFunc(values, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

// WriteJSON writes the report, indented, with a newline at its end. A number
// that is not finite is an error; see Finish.
func (r *Report) WriteJSON(w io.Writer) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if _, err := w.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
