package report

import (
	"math"
	"slices"
	"strings"
)

// distribution is the sum of some latencies' buckets.
type distribution struct {
	counts map[float64]int64 // by upper bound in ms
	bounds []float64         // the keys, rising, after sort
	count  int64
	max    float64
}

func (d *distribution) add(l Latency) {
	for _, b := range l.Buckets {
		if b.Count <= 0 || !finite(b.UpToMS) {
			continue
		}
		if d.counts == nil {
			d.counts = make(map[float64]int64)
		}
		if d.counts[b.UpToMS] == 0 {
			d.bounds = append(d.bounds, b.UpToMS)
		}
		d.counts[b.UpToMS] += b.Count
		d.count += b.Count
	}
	if finite(l.MaxMS) {
		d.max = max(d.max, l.MaxMS)
	}
	slices.Sort(d.bounds)
}

// quantile is the bound that a share of the deliveries does not exceed.
func (d *distribution) quantile(share float64) float64 {
	seen := int64(0)
	for _, bound := range d.bounds {
		seen += d.counts[bound]
		if float64(seen) >= share*float64(d.count) {
			return min(bound, d.max)
		}
	}
	return d.max
}

// curve is the line of the distribution: x takes nines, y milliseconds.
func (d *distribution) curve(x, y scale) []chartDot {
	if d.count == 0 {
		return nil
	}
	dots := []chartDot{{x.at(0), y.at(d.quantile(0))}}
	seen := int64(0)
	for _, bound := range d.bounds {
		seen += d.counts[bound]
		left := 1 - float64(seen)/float64(d.count)
		nines := x.hi
		if left > 0 {
			nines = -math.Log10(left)
		}
		dots = append(dots, chartDot{x.at(nines), y.at(min(bound, d.max))})
	}
	return dots
}

// roundGroup is the rounds of one shape and part.
type roundGroup struct {
	shape    Shape
	part     string
	label    string
	delivery distribution
	floor    distribution
}

// groups puts rounds with deliveries together that are comparable, in order of
// their first appearance, each labelled by what sets it apart.
func (s *Scenario) groups() []*roundGroup {
	var groups []*roundGroup
	for _, r := range s.Rounds {
		if r.Latency.Count == 0 || len(r.Latency.Buckets) == 0 {
			continue
		}
		i := groupOf(groups, r)
		if i == len(groups) {
			g := &roundGroup{shape: r.Shape, part: r.Part}
			if f, ok := s.floorOf(r.Shape); ok {
				for _, run := range []*FloorRun{f.Before, f.After} {
					if run != nil {
						g.floor.add(run.Latency)
					}
				}
			}
			groups = append(groups, g)
		}
		groups[i].delivery.add(r.Latency)
	}
	for _, g := range groups {
		g.label = g.describe(groups)
	}
	return groups
}

// groupOf is the index of the round's group, or len(groups).
func groupOf(groups []*roundGroup, r Round) int {
	i := slices.IndexFunc(groups, func(g *roundGroup) bool { return g.shape == r.Shape && g.part == r.Part })
	if i < 0 {
		return len(groups)
	}
	return i
}

// describe names what differs between the groups; connections always.
func (g *roundGroup) describe(all []*roundGroup) string {
	differs := func(of func(*roundGroup) int) bool {
		return slices.ContainsFunc(all, func(other *roundGroup) bool { return of(other) != of(g) })
	}
	words := []string{counted(g.shape.Conns, "connection")}
	if g.shape.Rooms > 1 || differs(func(g *roundGroup) int { return g.shape.Rooms }) {
		words = append(words, counted(g.shape.Rooms, "room"))
	}
	if differs(func(g *roundGroup) int { return g.shape.Events }) {
		words = append(words, counted(g.shape.Events, "event"))
	}
	if g.part != "" {
		words = append(words, g.part)
	}
	return strings.Join(words, ", ")
}

// roundLabel describes a round by itself.
func roundLabel(r Round) string {
	label := counted(r.Conns, "connection")
	if r.Part != "" {
		label += ", " + r.Part
	}
	return label
}

// counted is a number of things: "1 room", "100 rooms".
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return formatCount(n) + " " + thing
}
