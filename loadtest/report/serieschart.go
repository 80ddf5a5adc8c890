package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPoints is how many columns a series is drawn in: more would not be seen.
const maxPoints = 400

// seriesCharts draws every series, those with the same Chart in one picture.
func seriesCharts(s *Scenario) []chart {
	var names []string
	together := make(map[string][]Series)
	for _, series := range s.Series {
		series.Points = slices.DeleteFunc(slices.Clone(series.Points), func(p Point) bool { return !finite(p.T, p.V) })
		if len(series.Points) == 0 {
			continue
		}
		name := series.Chart
		if name == "" {
			name = series.Name
		}
		if together[name] == nil {
			names = append(names, name)
		}
		together[name] = append(together[name], series)
	}
	var charts []chart
	for _, name := range names {
		charts = append(charts, seriesChart(name, together[name]))
	}
	return charts
}

func seriesChart(name string, all []Series) chart {
	first, last, low, high := math.Inf(1), math.Inf(-1), 0.0, 0.0
	for _, series := range all {
		for _, p := range series.Points {
			first, last = min(first, p.T), max(last, p.T)
			low, high = min(low, p.V), max(high, p.V)
		}
	}
	c := chart{Title: capitalized(name)}
	unit, size := unitName(all[0].Unit), 1.0
	if all[0].Unit == "bytes" {
		size, unit = byteUnit(high)
	}
	c.YName = unit
	y := linearScale(low/size, high/size*1.05, plotBottom, plotTop)
	c.YTicks = y.place(y.ticks(5), axisLabel)
	xSize := 1.0
	c.XName, xSize = horizontal(all[0], last-first)
	x := linearScale(first/xSize, last/xSize, plotLeft, plotRight)
	c.XTicks = x.place(x.ticks(6), axisLabel)
	c.Desc = "Line chart of " + name + "."
	for i, series := range all {
		if i == maxLines {
			c.Note = fmt.Sprintf("The first %d of %d series.", maxLines, len(all))
			break
		}
		line := chartLine{Color: i}
		for _, p := range thin(series.Points, maxPoints) {
			line.Dots = append(line.Dots, chartDot{x.at(p.T / xSize), y.at(p.V / size)})
		}
		line.Path = path(line.Dots)
		if len(line.Dots) > 30 {
			line.Dots = nil
		}
		c.Lines = append(c.Lines, line)
		c.Desc += describeSeries(series)
		if len(all) > 1 {
			c.Legend = append(c.Legend, legendItem{Color: i, Label: series.Name})
		}
	}
	return c
}

// horizontal names the horizontal axis and gives the size of its unit: time is
// shown in hours, minutes or seconds.
func horizontal(s Series, span float64) (name string, size float64) {
	switch {
	case s.XName != "" || s.XUnit != "":
		name = s.XName
		if s.XUnit != "" {
			name = strings.TrimPrefix(name+", "+unitName(s.XUnit), ", ")
		}
		return name, 1
	case span > 3*3600:
		return "hours", 3600
	case span > 180:
		return "minutes", 60
	default:
		return "seconds", 1
	}
}

// capitalized begins with a capital, as a title does.
func capitalized(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[size:]
}

func describeSeries(s Series) string {
	low, high := s.Points[0].V, s.Points[0].V
	for _, p := range s.Points {
		low, high = min(low, p.V), max(high, p.V)
	}
	return fmt.Sprintf(" %s: from %s to %s, last %s.", s.Name, formatValue(low, s.Unit), formatValue(high, s.Unit),
		formatValue(s.Points[len(s.Points)-1].V, s.Unit))
}

// thin keeps the first, lowest, highest and last points of each of n stretches,
// so that no peak disappears.
func thin(points []Point, n int) []Point {
	if len(points) <= 4*n {
		return points
	}
	kept := make([]Point, 0, 4*n)
	for i := range n {
		stretch := points[i*len(points)/n : (i+1)*len(points)/n]
		low, high := 0, 0
		for j, p := range stretch {
			if p.V < stretch[low].V {
				low = j
			}
			if p.V > stretch[high].V {
				high = j
			}
		}
		keep := []int{0, min(low, high), max(low, high), len(stretch) - 1}
		for _, j := range slices.Compact(keep) {
			kept = append(kept, stretch[j])
		}
	}
	return kept
}
