package report_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"hub/loadtest/report"
)

// voidTags have no end tag in HTML; XML wants one.
var voidTags = regexp.MustCompile(`<(meta|br)([^>]*)>`)

// element is a start tag of the page with the text directly inside it.
type element struct {
	name  string
	attrs map[string]string
	text  string
}

// elements makes the page and reads it as strictly as XML: every tag closed in
// order, every attribute quoted, every special character escaped.
func elements(t *testing.T, r *report.Report) []*element {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(bytes.NewReader(voidTags.ReplaceAll(b.Bytes(), []byte("<$1$2/>"))))
	var all, open []*element
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("the page is not well-formed: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := &element{name: token.Name.Local, attrs: make(map[string]string)}
			for _, a := range token.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			all, open = append(all, e), append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if len(open) > 0 {
				open[len(open)-1].text += string(token)
			}
		}
	}
}

// checkPage holds what every page must keep: nothing from outside, no script,
// names that exist, pictures within their frame.
func checkPage(t *testing.T, all []*element) {
	t.Helper()
	ids := make(map[string]bool)
	for _, e := range all {
		if id := e.attrs["id"]; id != "" {
			if ids[id] {
				t.Errorf("id %q is used twice", id)
			}
			ids[id] = true
		}
	}
	for _, e := range all {
		switch e.name {
		case "script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image", "foreignObject":
			t.Errorf("the page has a <%s>", e.name)
		case "style":
			for _, outside := range []string{"url(", "@import", "//"} {
				if strings.Contains(e.text, outside) {
					t.Errorf("the style has %q", outside)
				}
			}
		}
		for name, value := range e.attrs {
			if strings.HasPrefix(name, "on") || name == "src" || name == "style" || name == "href" && !strings.HasPrefix(value, "#") {
				t.Errorf("<%s %s=%q>", e.name, name, value)
			}
		}
		for _, id := range strings.Fields(e.attrs["aria-labelledby"] + " " + strings.TrimPrefix(e.attrs["href"], "#")) {
			if !ids[id] {
				t.Errorf("<%s> refers to %q, which is not there", e.name, id)
			}
		}
		checkGeometry(t, e)
	}
}

var coordinates = regexp.MustCompile(`-?[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?`)

// checkGeometry holds that every number of a picture is a number inside the
// largest frame of the page.
func checkGeometry(t *testing.T, e *element) {
	t.Helper()
	for _, name := range []string{"d", "x", "y", "width", "height", "cx", "cy"} {
		value, ok := e.attrs[name]
		if !ok {
			continue
		}
		if strings.Contains(value, "NaN") || strings.Contains(value, "Inf") {
			t.Errorf("<%s %s=%q>", e.name, name, value)
		}
		for _, number := range coordinates.FindAllString(value, -1) {
			v, err := strconv.ParseFloat(number, 64)
			if err != nil || v < 0 || v > 460 {
				t.Errorf("<%s> has %s=%s, outside of its picture", e.name, name, number)
			}
		}
	}
}

// count is the number of elements with a name and, unless empty, a class.
func count(all []*element, name, class string) int {
	n := 0
	for _, e := range all {
		if e.name == name && (class == "" || strings.Contains(" "+e.attrs["class"]+" ", " "+class+" ")) {
			n++
		}
	}
	return n
}

func text(all []*element) string {
	var b strings.Builder
	for _, e := range all {
		b.WriteString(e.text + "\n")
	}
	return b.String()
}

func TestPage(t *testing.T) {
	all := elements(t, small())
	checkPage(t, all)
	if n := count(all, "svg", "chart"); n != 3 {
		t.Errorf("%d charts, want latency, rounds and connections", n)
	}
	if n := count(all, "g", "bar"); n != 2 {
		t.Errorf("%d bars for 2 rounds", n)
	}
	if count(all, "g", "limited") != 1 || count(all, "g", "faulty") != 1 {
		t.Error("the limited and faulty round is not marked")
	}
	shown := text(all)
	for _, want := range []string{
		"FAIL", "no event lost", "not checked", "the server was not started by this run", "72.4 ms", "≤ 2 ×", "missed", "reached",
		"another system", "an Intel Core i7-8700K", "A network between server and clients.", "were refused at first", "limits.connections.ip",
		"Example CPU", "ext4", "floor before", "after reconnects", "2 lost, 1 in another room",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, chart := range all {
		if chart.name == "svg" && chart.attrs["role"] == "img" && chart.attrs["aria-labelledby"] == "" {
			t.Error("a chart has no name for screen readers")
		}
	}
}

func TestPageEscapes(t *testing.T) {
	r := small()
	const hostile = `</style></title><script>alert("1")</script><img src=x onerror='x'>&lt;{{.}}`
	setStrings(reflect.ValueOf(r).Elem(), hostile)
	all := elements(t, r)
	checkPage(t, all)
	if n := strings.Count(text(all), hostile); n < 20 {
		t.Errorf("the text is shown %d times as it is", n)
	}
}

func TestPageOfExtremes(t *testing.T) {
	shape := report.Shape{Conns: 1, Rooms: 1, Events: 1}
	latency := func(values ...float64) report.Latency {
		l := report.Latency{Count: int64(len(values))}
		for _, v := range values {
			l.Buckets = append(l.Buckets, report.Bucket{UpToMS: v, Count: 1})
			l.P95MS, l.MaxMS = v, v
		}
		return l
	}
	tests := map[string]report.Scenario{
		"nothing":   {},
		"zero":      {Rounds: []report.Round{{Shape: shape, Latency: latency(0)}}, Series: []report.Series{{Points: []report.Point{{}}}}},
		"one":       {Rounds: []report.Round{{Shape: shape, Latency: latency(1)}}, Series: []report.Series{{Points: []report.Point{{T: 7, V: 1}}}}},
		"huge":      {Rounds: []report.Round{{Shape: shape, Latency: latency(1e-9, 1e9, 1e308)}}, Series: []report.Series{{Unit: "bytes", Points: []report.Point{{T: 0, V: 1e308}, {T: 1e308, V: -1e308}}}}},
		"no number": {Rounds: []report.Round{{Shape: shape, Latency: latency(math.NaN(), math.Inf(1))}}, Series: []report.Series{{Points: []report.Point{{T: math.NaN()}, {V: math.Inf(-1)}}}}},
		"not one":   {Rounds: []report.Round{{Shape: shape, Latency: latency(1, math.NaN())}}},
		"flat":      {Series: []report.Series{{Points: []report.Point{{T: 5, V: 1e9}, {T: 5, V: 1e9}}}}},
		"no bucket": {Rounds: []report.Round{{Shape: shape, Latency: report.Latency{Count: 3, P95MS: 2}}}},
		"targets":   {Figures: []report.Figure{report.DeliveryP95.Of(0, 10_000), report.DeliveryP95.Of(1e300, 10_000), report.DeliveryP95.Of(math.NaN(), 10_000)}},
	}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			r := report.New(report.Tool{})
			r.Scenarios = []report.Scenario{s}
			checkPage(t, elements(t, r)) // as it is
			if err := r.WriteTable(io.Discard, 80); err != nil {
				t.Error(err)
			}
			r.Finish()
			checkPage(t, elements(t, r))
		})
	}
}

// TestPageOfAnything draws random rounds and series.
func TestPageOfAnything(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	anything := func() float64 { return math.Pow(10, random.Float64()*18-9) }
	for range 12 {
		r := small()
		s := &r.Scenarios[0]
		for n := range random.IntN(60) {
			shape := report.Shape{Conns: random.IntN(9), Rooms: 1, Events: 1}
			l := spread(time.Duration(anything()*float64(time.Microsecond))%time.Second, 1+random.IntN(200))
			s.Floors = append(s.Floors, report.Floor{Shape: shape, Before: &report.FloorRun{Latency: l}})
			s.Rounds = append(s.Rounds, report.Round{N: n, Shape: shape, Latency: l, Part: "part"[:random.IntN(5)]})
		}
		for range random.IntN(9) {
			series := report.Series{Chart: "together"[:random.IntN(2)], Unit: []string{"bytes", "ms", ""}[random.IntN(3)]}
			for range random.IntN(3000) {
				series.Points = append(series.Points, report.Point{T: anything(), V: anything() - anything()})
			}
			s.Series = append(s.Series, series)
		}
		r.Finish()
		checkPage(t, elements(t, r))
	}
}

// TestPageStaysSmall holds that a long soak is drawn with its peak and without
// a point for each sample.
func TestPageStaysSmall(t *testing.T) {
	r := small()
	series := report.Series{Name: "memory", Unit: "bytes"}
	for i := range 200_000 {
		series.Points = append(series.Points, report.Point{T: float64(i), V: 50 << 20})
	}
	r.Scenarios[0].Series = []report.Series{series}
	draw := func() (line string, size int) {
		var b bytes.Buffer
		if err := r.WriteHTML(&b); err != nil {
			t.Fatal(err)
		}
		for _, e := range elements(t, r) {
			if e.name == "path" && e.attrs["class"] == "line c0" && e.attrs["d"] != "M1 4H23" {
				line = e.attrs["d"]
			}
		}
		return line, b.Len()
	}
	flat, size := draw()
	if size > 100_000 {
		t.Errorf("the page has %d bytes", size)
	}
	series.Points[123_456].V = 40 << 20
	if dip, _ := draw(); dip == flat {
		t.Error("a single low sample cannot be seen")
	}
}

// TestHeadlineFigures: the small shapes of a scenario come first and do not stand
// for the run.
func TestHeadlineFigures(t *testing.T) {
	r := small()
	s := &r.Scenarios[0]
	s.Figures = []report.Figure{
		report.DeliveryP95.Named("5000", "5,000 connections").Of(11, 5_000),
		report.DeliveryP95.Of(222, 10_000),
		report.ReadyTime.Of(0.33, 500),
	}
	var tiles []string
	for _, e := range elements(t, r) {
		if e.name == "b" && strings.Contains(e.text, " ") {
			tiles = append(tiles, e.text)
		}
		if e.attrs["id"] == "checks" {
			break
		}
	}
	if want := []string{"222 ms", "0.330 s"}; !reflect.DeepEqual(tiles, want) {
		t.Errorf("headline figures %q, want %q", tiles, want)
	}
}
