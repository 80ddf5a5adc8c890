package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// The drawing area in user units: the picture scales to its place on the page,
// at about one unit to a pixel.
const (
	chartWidth  = 460.0
	chartHeight = 280.0
	plotLeft    = 52.0
	plotRight   = chartWidth - 14
	plotTop     = 24.0
	plotBottom  = chartHeight - 46
)

// maxLines is how many lines one chart can tell apart by colour.
const maxLines = 6

// chart is a picture as the page's template draws it: geometry and text only.
type chart struct {
	ID     string // unique on the page
	Title  string
	Desc   string // what the picture shows, for those who cannot see it
	YName  string
	XName  string
	XTicks []tick
	YTicks []tick
	Lines  []chartLine
	Bars   []chartBar
	Legend []legendItem
	Note   string
}

// chartLine is a polyline and the dots on it.
type chartLine struct {
	Path  string // in the syntax of SVG
	Color int    // 0 to maxLines-1
	Floor bool   // drawn dashed
	Dots  []chartDot
}

type chartDot struct{ X, Y float64 }

// chartBar is a bar with the floor across it.
type chartBar struct {
	X, Y, Width, Height float64
	Color               int
	Faulty              bool
	Limited             bool
	FloorY              float64 // 0: none
	Title               string
}

// legendItem names a colour.
type legendItem struct {
	Color int
	Floor bool
	Label string
}

// The edges of the plot, for the template.
func (chart) Width() float64    { return chartWidth }
func (chart) Height() float64   { return chartHeight }
func (chart) Left() float64     { return plotLeft }
func (chart) Right() float64    { return plotRight }
func (chart) Top() float64      { return plotTop }
func (chart) Bottom() float64   { return plotBottom }
func (chart) LabelY() float64   { return plotBottom + 17 }
func (chart) XNameY() float64   { return chartHeight - 8 }
func (chart) TickEdge() float64 { return plotLeft - 7 }

// path joins points given in user units.
func path(dots []chartDot) string {
	var b strings.Builder
	for i, d := range dots {
		verb := byte('L')
		if i == 0 {
			verb = 'M'
		}
		fmt.Fprintf(&b, "%c%.1f %.1f", verb, d.X, d.Y)
	}
	return b.String()
}

// roundsChart shows the p95 of every round beside the floor of its shape.
func roundsChart(s *Scenario) (chart, bool) {
	top, target := 0.0, s.targetP95()
	for _, r := range s.Rounds {
		if r.Latency.Count == 0 {
			continue
		}
		top = max(top, r.Latency.P95MS)
		if f, ok := s.floorOf(r.Shape); ok {
			top = max(top, f.floorP95())
		}
	}
	if top <= 0 || !finite(top) {
		return chart{}, false
	}
	if target <= 2*top {
		top = max(top, target)
	}
	c := chart{Title: "p95 of every round", YName: "ms", XName: "round"}
	y := linearScale(0, top*1.05, plotBottom, plotTop)
	c.YTicks = y.place(y.ticks(5), axisLabel)
	x := linearScale(0, float64(len(s.Rounds)), plotLeft, plotRight)
	step := (plotRight - plotLeft) / float64(len(s.Rounds))
	width := min(34, step*0.62)
	c.Bars, c.XTicks = roundBars(s, x, y, width)
	if target > 0 && target <= top {
		at := y.at(target)
		c.Lines = []chartLine{{Path: path([]chartDot{{plotLeft, at}, {plotRight, at}}), Color: targetColor, Floor: true}}
	}
	c.Legend, c.Desc = s.roundsLegend(len(c.Lines) > 0, target)
	if slices.ContainsFunc(c.Bars, func(b chartBar) bool { return b.Limited }) {
		c.Note += "Pale bars: the generator was the limit, the server may be faster. "
	}
	if slices.ContainsFunc(c.Bars, func(b chartBar) bool { return b.Faulty }) {
		c.Note += "Red bars: events were lost, repeated, out of order or misrouted."
	}
	return c, true
}

// targetColor is the style of a line that marks a target.
const targetColor = maxLines

func (s *Scenario) targetP95() float64 {
	for _, f := range s.Figures {
		if strings.HasPrefix(f.Name, DeliveryP95.Name) && f.Target != nil {
			return *f.Target
		}
	}
	return 0
}

func roundBars(s *Scenario, x, y scale, width float64) (bars []chartBar, ticks []tick) {
	groups := s.groups()
	every := (len(s.Rounds) + 15) / 16
	for i, r := range s.Rounds {
		center := x.at(float64(i) + 0.5)
		if i%every == 0 {
			ticks = append(ticks, tick{At: center, Label: fmt.Sprint(r.N)})
		}
		if r.Latency.Count == 0 {
			continue
		}
		at := y.at(r.Latency.P95MS)
		bar := chartBar{
			X: center - width/2, Y: at, Width: width, Height: y.from - at, Color: groupOf(groups, r) % maxLines,
			Faulty: r.Faults.Total() > 0, Limited: r.GeneratorLimited,
		}
		bar.Title = fmt.Sprintf("round %d, %s: p95 %s", r.N, roundLabel(r), formatValue(r.Latency.P95MS, "ms"))
		if f, ok := s.floorOf(r.Shape); ok && f.floorP95() > 0 {
			bar.FloorY = y.at(f.floorP95())
			bar.Title += ", floor " + formatValue(f.floorP95(), "ms")
		}
		if bar.Limited {
			bar.Title += ", generator limited"
		}
		if bar.Faulty {
			bar.Title += ", " + formatCount(r.Faults.Total()) + " faults"
		}
		bars = append(bars, bar)
	}
	return bars, ticks
}

func (s *Scenario) roundsLegend(withTarget bool, target float64) (legend []legendItem, desc string) {
	var p95 []float64
	floors := false
	for _, r := range s.Rounds {
		if r.Latency.Count > 0 {
			p95 = append(p95, r.Latency.P95MS)
			f, ok := s.floorOf(r.Shape)
			floors = floors || ok && f.floorP95() > 0
		}
	}
	for i, g := range s.groups() {
		if i < maxLines {
			legend = append(legend, legendItem{Color: i, Label: g.label})
		}
	}
	desc = fmt.Sprintf("Bar chart: p95 of %d rounds, median %s.", len(p95), formatValue(Median(p95), "ms"))
	if floors {
		legend = append(legend, legendItem{Color: floorColor, Floor: true, Label: "floor: plain writes on this machine"})
		desc += " The floor of the same run is drawn across each bar."
	}
	if withTarget {
		legend = append(legend, legendItem{Color: targetColor, Floor: true, Label: "target " + formatValue(target, "ms")})
	}
	return legend, desc
}

// floorColor is the style of the floor where it has one for all shapes.
const floorColor = maxLines + 1

// What a distribution's picture leaves to its edges: the fastest deliveries, which
// would take half of a logarithmic axis, and all slower ones beyond the last nine,
// among which the line climbs to the maximum.
const (
	least     = 0.02
	mostNines = 3.6
)

// latencyChart shows the distributions of a scenario, a line for each group of
// rounds and its floor, over percentiles spaced by their nines.
func latencyChart(s *Scenario) (chart, bool) {
	groups := s.groups()
	shown := groups[max(0, len(groups)-maxLines):]
	lo, hi, count := math.Inf(1), 0.0, int64(0)
	for _, g := range shown {
		for _, d := range []distribution{g.delivery, g.floor} {
			if d.count > 0 {
				lo, hi, count = min(lo, d.quantile(least)), max(hi, d.max), max(count, d.count)
			}
		}
	}
	if count == 0 {
		return chart{}, false
	}
	lo, hi = roundLog(max(lo, 0.001), max(hi, 0.001))
	c := chart{Title: "Latency distribution", YName: "ms, logarithmic", XName: "share of deliveries that took no longer"}
	y := logScale(lo, hi, plotBottom, plotTop)
	c.YTicks = y.place(y.ticks(8), axisLabel)
	nines := max(2, min(mostNines, math.Log10(float64(count))))
	x := linearScale(0, nines, plotLeft, plotRight)
	c.XTicks = nineTicks(x, nines)
	for i, g := range shown {
		color := len(groups) - len(shown) + i
		c.Lines = append(c.Lines, chartLine{Path: path(g.delivery.curve(x, y)), Color: color % maxLines})
		c.Legend = append(c.Legend, legendItem{Color: color % maxLines, Label: g.label})
		if g.floor.count > 0 && firstOfShape(shown, i) {
			c.Lines = append(c.Lines, chartLine{Path: path(g.floor.curve(x, y)), Color: color % maxLines, Floor: true})
			c.Legend = append(c.Legend, legendItem{Color: color % maxLines, Floor: true, Label: "floor of " + counted(g.shape.Conns, "connection")})
		}
		c.Desc += fmt.Sprintf(" %s: half within %s, 99 %% within %s, all within %s.", g.label,
			formatValue(g.delivery.quantile(0.5), "ms"), formatValue(g.delivery.quantile(0.99), "ms"), formatValue(g.delivery.max, "ms"))
	}
	c.Desc = "Line chart of latency by percentile, both axes logarithmic." + c.Desc
	if len(shown) < len(groups) {
		c.Note = fmt.Sprintf("The last %d of %d groups of rounds.", len(shown), len(groups))
	}
	return c, true
}

// firstOfShape reports whether the group is the first with its shape, and so the
// one to draw the floor of.
func firstOfShape(groups []*roundGroup, i int) bool {
	return slices.IndexFunc(groups, func(g *roundGroup) bool { return g.shape == groups[i].shape }) == i
}

// nineTicks labels an axis on which each unit is one more nine.
func nineTicks(x scale, nines float64) []tick {
	ticks := []tick{{At: x.at(-math.Log10(0.5)), Label: "50 %"}}
	for i, label := range []string{"90 %", "99 %", "99.9 %"} {
		if float64(i+1) < nines-0.4 {
			ticks = append(ticks, tick{At: x.at(float64(i + 1)), Label: label})
		}
	}
	return append(ticks, tick{At: x.at(nines), Label: "all"})
}
