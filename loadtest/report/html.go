package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"count":    formatCount[int64],
	"conns":    formatCount[int],
	"number":   formatNumber,
	"value":    formatValue,
	"duration": formatDuration,
	"coord":    func(v float64) string { return fmt.Sprintf("%.1f", v) },
	"sub":      func(a, b float64) float64 { return a - b },
}).Parse(pageText))

// page is what the template shows.
type page struct {
	*Report
	Style     template.CSS // our own file
	Title     string
	Verdict   Verdict
	Word      string // the verdict for people
	Why       string // it is not a pass
	Counts    string // of checks and targets
	Arrived   string // the promise kept, as a sentence; empty where it was not
	Tiles     []tile
	Groups    []checkGroup
	Scenarios []scenarioPart
	Machine   []string
}

// tile is one of the headline numbers.
type tile struct {
	Label, Value, Note string
	Missed             bool
}

// Long says that the value needs smaller letters to stay in one piece.
func (t tile) Long() bool { return len(t.Value) > 9 }

// checkGroup is the checks with one result.
type checkGroup struct {
	Result Result
	Title  string
	Checks []Check
}

// scenarioPart is a scenario with its charts drawn.
type scenarioPart struct {
	*Scenario
	ID         string
	Charts     []chart
	FigureRows []figureRow
	FloorRows  []floorRow
	RefKinds   []referenceKind
	Open       bool // show the rounds at once
	Judged     bool // some figure has a target
}

type figureRow struct {
	Figure
	Shown, Range   string
	Goal, Standing string
	Bar            float64 // 0 to 100; the target stands at 50
}

type floorRow struct {
	When string
	Shape
	FloorRun
	Ratio string // in the last row of a shape
}

// WriteHTML writes the report as one self-contained page: no script, no outside
// resource, charts as SVG, light and dark, fit for print. Nothing is written if
// the page cannot be made.
func (r *Report) WriteHTML(w io.Writer) error {
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, r.page()); err != nil {
		return fmt.Errorf("make report page: %w", err)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) page() page {
	p := page{
		Report: r, Style: template.CSS(pageStyle), Verdict: r.verdict(), Word: r.verdict().word(),
		Tiles: r.tiles(), Machine: r.Environment.lines(),
	}
	p.Why, p.Counts = r.outcome()
	if n := r.deliveries(); n > 0 && r.Faults().Total() == 0 {
		p.Arrived = "All " + formatCount(n) + " events arrived once, in order and in their own room."
	}
	p.Title = fmt.Sprintf("%s: %s", r.Tool.Name, p.Word)
	for _, g := range []checkGroup{{Result: Failed, Title: "Failed"}, {Result: NotChecked, Title: "Not checked"}, {Result: Passed, Title: "Passed"}} {
		for _, c := range r.Checks {
			if c.Result == g.Result || g.Result == NotChecked && c.Result != Passed && c.Result != Failed {
				g.Checks = append(g.Checks, c)
			}
		}
		if len(g.Checks) > 0 {
			p.Groups = append(p.Groups, g)
		}
	}
	for i := range r.Scenarios {
		p.Scenarios = append(p.Scenarios, partOf(&r.Scenarios[i], fmt.Sprintf("s%d", i+1)))
	}
	return p
}

// deliveries sums those of all rounds.
func (r *Report) deliveries() int64 {
	sum := int64(0)
	for _, s := range r.Scenarios {
		for _, round := range s.Rounds {
			sum += round.Deliveries
		}
	}
	return sum
}

// tiles are the numbers to see first: deliveries, faults, then the best-known
// figures that were measured.
func (r *Report) tiles() []tile {
	faults := r.Faults()
	tiles := []tile{
		{Label: "events delivered", Value: formatCount(r.deliveries())},
		{Label: "lost, duplicate, out of order, misrouted", Value: formatCount(faults.Total()), Missed: faults.Total() > 0, Note: faults.describe()},
	}
	for _, m := range []Metric{FloorRatio, DeliveryP95, ServerCPU, MemoryPerConn, FanoutLast, ReadyTime, SustainedRate, Publications} {
		if len(tiles) == 6 {
			break
		}
		if t, ok := r.tileOf(m); ok {
			tiles = append(tiles, t)
		}
	}
	return tiles
}

// tileOf shows the first figure of a metric that has a target, or else the first
// of its own name.
func (r *Report) tileOf(m Metric) (found tile, ok bool) {
	for _, s := range r.Scenarios {
		for _, f := range s.Figures {
			judged := f.Target != nil && strings.HasPrefix(f.Name, m.Name)
			if !finite(f.Value) || !judged && (ok || f.Name != m.Name) {
				continue
			}
			found, ok = tile{Label: f.Title, Value: formatValue(f.Value, f.Unit), Note: s.Name}, true
			if judged {
				found.Note += ", target " + strings.ReplaceAll(f.target(), " ", "\u00a0")
				found.Missed = f.standing() == "missed"
				return found, true
			}
		}
	}
	return found, ok
}

// describe tells the faults that are not zero.
func (f Faults) describe() string {
	var words []string
	for _, part := range []struct {
		n    int64
		name string
	}{{f.Lost, "lost"}, {f.Duplicate, "duplicate"}, {f.OutOfOrder, "out of order"}, {f.CrossRoom, "in another room"}, {f.CrossDatabase, "in another database"}} {
		if part.n != 0 {
			words = append(words, formatCount(part.n)+" "+part.name)
		}
	}
	return strings.Join(words, ", ")
}

func partOf(s *Scenario, id string) scenarioPart {
	part := scenarioPart{Scenario: s, ID: id, Open: len(s.Rounds) <= maxRounds, RefKinds: byKind(s.References)}
	if c, ok := latencyChart(s); ok {
		part.Charts = append(part.Charts, c)
	}
	if c, ok := roundsChart(s); ok {
		part.Charts = append(part.Charts, c)
	}
	part.Charts = append(part.Charts, seriesCharts(s)...)
	for i := range part.Charts {
		part.Charts[i].ID = fmt.Sprintf("%s-c%d", id, i+1)
	}
	for _, f := range s.Figures {
		row := figureRow{Figure: f, Shown: formatValue(f.Value, f.Unit), Range: f.span(), Goal: f.target(), Standing: f.standing()}
		if f.Target != nil && *f.Target > 0 && finite(f.Value) {
			row.Bar = min(max(f.Value / *f.Target * 50, 0.5), 100)
		}
		part.Judged = part.Judged || f.Target != nil
		part.FigureRows = append(part.FigureRows, row)
	}
	for _, f := range s.Floors {
		for _, run := range []struct {
			when string
			of   *FloorRun
		}{{"before", f.Before}, {"after", f.After}} {
			if run.of != nil {
				part.FloorRows = append(part.FloorRows, floorRow{When: run.when, Shape: f.Shape, FloorRun: *run.of})
			}
		}
		if n := len(part.FloorRows); n > 0 && f.RatioP95 > 0 {
			part.FloorRows[n-1].Ratio = f.ratio()
		}
	}
	return part
}
