package report

import (
	"fmt"
	"slices"
)

// maxRounds is how many rounds the text table shows one by one.
const maxRounds = 12

// rounds prints the rounds between the floors measured before and after them.
// Of more than maxRounds, those of one shape and part share a line of medians.
func (t *textTable) rounds(s *Scenario) {
	columns := []column{
		{name: "round", left: true}, {name: "conns"}, {name: "rooms", drop: 2}, {name: "events", drop: 1}, {name: "deliveries", drop: 4},
		{name: "p50 ms"}, {name: "p95 ms"}, {name: "p99 ms", drop: 5}, {name: "max ms"}, {name: "wall ms", drop: 3}, {name: "CPU µs", drop: 6}, {name: "faults"},
	}
	var rows [][]string
	floor := func(f Floor, run *FloorRun, when string) {
		if run != nil {
			rows = append(rows, append(cells("floor "+when, f.Shape, run.Latency.Count, run.Latency, run.WallMS), cpuCell(run.WriterCPU), ""))
		}
	}
	for _, f := range s.Floors {
		floor(f, f.Before, "before")
	}
	limited := false
	for _, some := range together(s.Rounds) {
		rows = append(rows, roundCells(some))
		limited = limited || isLimited(some)
	}
	for _, f := range s.Floors {
		floor(f, f.After, "after")
	}
	if len(rows) == 0 {
		return
	}
	t.grid(columns, rows)
	if limited {
		t.paragraph("  ", "* the generator was the limit: the server may be faster")
	}
}

// together cuts the rounds into those that share a line.
func together(rounds []Round) [][]Round {
	var lines [][]Round
	for i, r := range rounds {
		if i > 0 && len(rounds) > maxRounds && r.Shape == rounds[i-1].Shape && r.Part == rounds[i-1].Part {
			last := len(lines) - 1
			lines[last] = append(lines[last], r)
			continue
		}
		lines = append(lines, []Round{r})
	}
	return lines
}

func isLimited(rounds []Round) bool {
	return slices.ContainsFunc(rounds, func(r Round) bool { return r.GeneratorLimited })
}

// roundCells are the cells of one round, or the medians and the sum of faults of
// several with the same shape.
func roundCells(rounds []Round) []string {
	first, last := rounds[0], rounds[len(rounds)-1]
	name := fmt.Sprint(first.N)
	if len(rounds) > 1 {
		name += fmt.Sprintf("–%d, medians", last.N)
	}
	if isLimited(rounds) {
		name += "*"
	}
	if first.Part != "" {
		name += " " + first.Part
	}
	var faults Faults
	for _, r := range rounds {
		faults = faults.Add(r.Faults)
	}
	median := func(of func(Round) float64) float64 {
		values := make([]float64, len(rounds))
		for i, r := range rounds {
			values[i] = of(r)
		}
		return Median(values)
	}
	latency := Latency{
		Count: int64(median(func(r Round) float64 { return float64(r.Latency.Count) })),
		P50MS: median(func(r Round) float64 { return r.Latency.P50MS }),
		P95MS: median(func(r Round) float64 { return r.Latency.P95MS }),
		P99MS: median(func(r Round) float64 { return r.Latency.P99MS }),
		MaxMS: median(func(r Round) float64 { return r.Latency.MaxMS }),
	}
	deliveries := int64(median(func(r Round) float64 { return float64(r.Deliveries) }))
	row := cells(name, first.Shape, deliveries, latency, median(func(r Round) float64 { return r.WallMS }))
	return append(row, cpuCell(median(func(r Round) float64 { return r.ServerCPU })), formatCount(faults.Total()))
}

func cpuCell(us float64) string {
	if us <= 0 {
		return ""
	}
	return formatNumber(us)
}

// cells are those that rounds and floors have in common.
func cells(name string, shape Shape, deliveries int64, l Latency, wall float64) []string {
	row := []string{name, formatCount(shape.Conns), formatCount(shape.Rooms), formatCount(shape.Events), formatCount(deliveries)}
	for _, v := range []float64{l.P50MS, l.P95MS, l.P99MS, l.MaxMS} {
		if l.Count > 0 {
			row = append(row, formatNumber(v))
		} else {
			row = append(row, "–")
		}
	}
	return append(row, formatNumber(wall))
}
