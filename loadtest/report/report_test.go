package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/HdrHistogram/hdrhistogram-go"

	"hub/loadtest/report"
)

// TestSchema holds the names of the JSON form: scripts read them. A change here
// that renames or removes one needs a new report.Schema.
func TestSchema(t *testing.T) {
	var b bytes.Buffer
	if err := small().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", b.Bytes())
	var back report.Report
	decoder := json.NewDecoder(&b)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&back, small()) {
		t.Error("the JSON form does not read back as the same report")
	}
}

// TestEveryMeasurementIsDefined walks what a round and a floor measure.
func TestEveryMeasurementIsDefined(t *testing.T) {
	r := small()
	defined := make(map[string]bool)
	for _, d := range r.Definitions {
		if d.Text == "" {
			t.Errorf("%s has an empty definition", d.Name)
		}
		defined[d.Name] = true
	}
	identity := []string{"n", "part", "started", "faults", "before", "after"}
	for _, measured := range []any{report.Round{}, report.Shape{}, report.Faults{}, report.Floor{}, report.FloorRun{}} {
		fields := reflect.VisibleFields(reflect.TypeOf(measured))
		for _, f := range fields {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.Anonymous && !slices.Contains(identity, name) && !defined[name] {
				t.Errorf("%s of %T has no definition", name, measured)
			}
		}
	}
	for _, f := range r.Scenarios[0].Figures {
		if f.Definition == "" {
			t.Errorf("figure %s has no definition", f.Name)
		}
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	if err := small().WriteTable(&b, 80); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", b.Bytes())
}

func TestTableFits(t *testing.T) {
	r := small()
	round := r.Scenarios[0].Rounds[0]
	for n := range 40 {
		round.N = n + 3
		r.Scenarios[0].Rounds = append(r.Scenarios[0].Rounds, round)
	}
	r.Checks = append(r.Checks, report.Check{
		Name: "each room's events are contiguous from 1 and as many as acknowledged", Result: report.Passed, Detail: "100 rooms, 60,000 events, of which none is missing",
	})
	for width := 88; width <= 160; width += 4 {
		var b strings.Builder
		if err := r.WriteTable(&b, width); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("width %d: a line has %d columns: %q", width, n, line)
			}
		}
		if !strings.Contains(b.String(), "3–42, medians") {
			t.Errorf("width %d: rounds of one shape do not share a line", width)
		}
	}
}

// TestReferences: figures of other systems stand beside ours, and never in a ratio.
func TestReferences(t *testing.T) {
	r := report.New(report.Tool{})
	r.Scenarios = []report.Scenario{{Name: "delivery", Rounds: []report.Round{{N: 1}}}, {Name: "chat", Rounds: []report.Round{{N: 1}}}}
	r.Finish()
	if refs := r.Scenarios[1].References; len(refs) != 0 {
		t.Errorf("chat has %v", refs)
	}
	var b strings.Builder
	if err := r.WriteTable(&b, 400); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Centrifugo 6.9.1 715–896 ms", "PocketBase 2,306 ms", "PocketBase: 9–39 µs", "PocketBase: 6–65 KB", "with 2 cores", "not to be divided by"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, b.String())
		}
	}
}

func TestVerdict(t *testing.T) {
	check := func(results ...report.Result) (checks []report.Check) {
		for _, result := range results {
			checks = append(checks, report.Check{Name: "promise", Result: result})
		}
		return checks
	}
	tests := []struct {
		name    string
		checks  []report.Check
		partial bool
		want    report.Verdict
		line    string
	}{
		{"all passed", check(report.Passed, report.Passed), false, report.Pass, "PASS (2 checks passed)"},
		{"some not checked", check(report.Passed, report.NotChecked), false, report.Pass, "PASS (1 check passed, 1 not checked)"},
		{"one failed", check(report.Passed, report.Failed), false, report.Fail, "FAIL: promise (1 of 2 checks passed)"},
		{"failed and interrupted", check(report.Failed), true, report.Fail, "FAIL: promise (0 of 1 check passed)"},
		{"interrupted", check(report.Passed), true, report.Incomplete, "INCOMPLETE: the run ended early (1 check passed)"},
		{"nothing checked", check(report.NotChecked), false, report.Incomplete, "INCOMPLETE: nothing was checked (0 checks passed, 1 not checked)"},
		{"no checks", nil, false, report.Incomplete, "INCOMPLETE: nothing was checked (0 checks passed)"},
		{"unknown result", check("perhaps"), false, report.Incomplete, "INCOMPLETE: nothing was checked (0 checks passed, 1 not checked)"},
	}
	for _, test := range tests {
		r := report.New(report.Tool{})
		r.Checks, r.Partial = test.checks, test.partial
		r.Finish()
		if r.Verdict != test.want || r.Passed() != (test.want == report.Pass) {
			t.Errorf("%s: got %s, passed %v, want %s", test.name, r.Verdict, r.Passed(), test.want)
		}
		var b strings.Builder
		if err := r.WriteTable(&b, 200); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if got := lines[len(lines)-1]; got != test.line {
			t.Errorf("%s: last line is %q, want %q", test.name, got, test.line)
		}
	}
}

func TestMissedTargetIsToldAndDoesNotFail(t *testing.T) {
	r := small()
	r.Checks = []report.Check{{Name: "promise", Result: report.Passed}}
	var b strings.Builder
	if err := r.WriteTable(&b, 200); err != nil {
		t.Fatal(err)
	}
	if want := "1 of 2 targets reached, missed: delivery p95 ÷ floor p95)"; !r.Passed() || !strings.Contains(b.String(), want) {
		t.Errorf("passed %v, want %q in:\n%s", r.Passed(), want, b.String())
	}
}

func TestTargets(t *testing.T) {
	tests := []struct {
		figure          report.Figure
		reached, judged bool
	}{
		{report.DeliveryP95.Of(100, 10_000), true, true},
		{report.DeliveryP95.Of(100.01, 10_000), false, true},
		{report.DeliveryP95.Of(1, 9_999), false, false},
		{report.SustainedRate.Of(1_000_000, 10_000), true, true},
		{report.SustainedRate.Of(999_999, 10_000), false, true},
		{report.ConnectRate.Of(5, 10_000), false, false},
	}
	for _, test := range tests {
		reached, judged := test.figure.Reached()
		if reached != test.reached || judged != test.judged {
			t.Errorf("%s = %v: reached %v judged %v, want %v %v", test.figure.Name, test.figure.Value, reached, judged, test.reached, test.judged)
		}
	}
	if f := report.DeliveryP95.Named("5000", "5,000 connections").Of(1, 1); f.Name != "delivery_p95_ms_5000" || f.Title != "delivery p95, 5,000 connections" {
		t.Errorf("named metric: %+v", f)
	}
}

func TestFloorRatio(t *testing.T) {
	shape := report.Shape{Conns: 10, Rooms: 1, Events: 1}
	at := func(ms float64) report.Latency { return report.Latency{Count: 1, P95MS: ms} }
	s := report.Scenario{
		Floors: []report.Floor{{Shape: shape, Before: &report.FloorRun{Latency: at(10)}, After: &report.FloorRun{Latency: at(30)}}},
		Rounds: []report.Round{{Shape: shape, Latency: at(60)}, {Shape: shape, Latency: at(500)}, {Shape: shape, Latency: at(20)}, {Shape: report.Shape{Conns: 99}, Latency: at(9)}},
	}
	want := report.Ratio{Median: 3, Low: 20.0 / 30, High: 50}
	if got, ok := s.FloorRatio(shape); got != want || !ok {
		t.Errorf("median 60 ms over mean 20 ms, 20 over 30, 500 over 10: got %v, want %v", got, want)
	}
	r := report.New(report.Tool{})
	r.Scenarios = []report.Scenario{s}
	r.Finish()
	if f := r.Scenarios[0].Floors[0]; (report.Ratio{Median: f.RatioP95, Low: f.RatioP95Low, High: f.RatioP95High}) != want {
		t.Errorf("in the floor: %+v, want %v", f, want)
	}
	s.Floors[0].After = nil
	if got, _ := s.FloorRatio(shape); got.Median != 6 {
		t.Errorf("with the first floor alone: got %v, want 6", got)
	}
	s.Floors[0].Before = &report.FloorRun{}
	if got, ok := s.FloorRatio(shape); ok {
		t.Errorf("an unmeasured floor gives %v, want none", got)
	}
}

// TestSummarize compares buckets with the values themselves.
func TestSummarize(t *testing.T) {
	h := hdrhistogram.New(1, 60_000_000, 3)
	var values []float64
	for us := int64(1); us < 30_000_000; us += us/7 + 1 {
		if err := h.RecordValue(us); err != nil {
			t.Fatal(err)
		}
		values = append(values, float64(us)/1000)
	}
	l := report.Summarize(h, time.Microsecond)
	if l.Count != int64(len(values)) || !(l.P50MS <= l.P90MS && l.P90MS <= l.P95MS && l.P95MS <= l.P99MS && l.P99MS <= l.MaxMS) {
		t.Errorf("summary of %d values: %+v", len(values), l)
	}
	if last := values[len(values)-1]; math.Abs(l.MaxMS-last) > last/500 {
		t.Errorf("max %v ms, want %v", l.MaxMS, last)
	}
	seen, before := int64(0), 0.0
	for _, b := range l.Buckets {
		k := math.Log10(b.UpToMS) * 50
		if b.UpToMS <= before || b.Count <= 0 || math.Abs(k-math.Round(k)) > 1e-6 {
			t.Errorf("bucket %+v after %v", b, before)
		}
		seen += b.Count
		least, most, here := int64(0), int64(0), int64(0)
		under := math.Pow(10, (math.Round(k)-1)/50)
		for _, v := range values { // of which the histogram keeps three digits
			if v*1.002 <= b.UpToMS {
				least++
			}
			if v*0.998 <= b.UpToMS {
				most++
				if v*1.002 > under {
					here++
				}
			}
		}
		if seen < least || seen > most {
			t.Errorf("up to %v ms: %d counted, %d to %d were recorded", b.UpToMS, seen, least, most)
		}
		if b.Count > here {
			t.Errorf("from %v to %v ms: %d counted, at most %d were recorded", under, b.UpToMS, b.Count, here)
		}
		before = b.UpToMS
	}
	if seen != l.Count || before < l.MaxMS {
		t.Errorf("buckets hold %d of %d, up to %v of %v ms", seen, l.Count, before, l.MaxMS)
	}
	if empty := report.Summarize(hdrhistogram.New(1, 100, 3), time.Microsecond); empty.Count != 0 || len(empty.Buckets) != 0 {
		t.Errorf("empty histogram: %+v", empty)
	}
}

func TestFinishTakesOutWhatIsNoNumber(t *testing.T) {
	r := small()
	s := &r.Scenarios[0]
	s.Figures = append(s.Figures, report.ServerCPU.Of(math.NaN(), 1), report.ServerCPU.Of(math.Inf(1), 1))
	s.Series[0].Points = append(s.Series[0].Points, report.Point{T: 3, V: math.NaN()}, report.Point{T: -1, V: 5})
	s.Rounds[0].ServerCPU = math.NaN()
	if err := r.WriteJSON(&bytes.Buffer{}); err == nil {
		t.Error("NaN was written as JSON")
	}
	r.Finish()
	if err := r.WriteJSON(&bytes.Buffer{}); err != nil {
		t.Error(err)
	}
	if want := []report.Point{{T: -1, V: 5}, {T: 0, V: 0}, {T: 1, V: 10_000}}; !slices.Equal(s.Series[0].Points, want) {
		t.Errorf("points %v, want %v", s.Series[0].Points, want)
	}
	if len(s.Figures) != 3 || len(r.Problems) != 5 {
		t.Errorf("%d figures left, problems: %q", len(s.Figures), r.Problems)
	}
}

func TestTableCannotDriveTheTerminal(t *testing.T) {
	r := small()
	setStrings(reflect.ValueOf(r).Elem(), "\x1b[2J\u202eevil\r\n\u009b31m")
	var b strings.Builder
	if err := r.WriteTable(&b, 80); err != nil {
		t.Fatal(err)
	}
	for _, c := range b.String() {
		if c != '\n' && !unicode.IsGraphic(c) {
			t.Fatalf("%U reached the terminal", c)
		}
	}
	if !strings.Contains(b.String(), "evil") {
		t.Error("the harmless part is gone too")
	}
}

// setStrings gives every string in v, except results and verdicts, one value.
func setStrings(v reflect.Value, s string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				setStrings(v.Field(i), s)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			setStrings(v.Index(i), s)
		}
	case reflect.Pointer:
		if !v.IsNil() && v.Elem().Kind() == reflect.Struct {
			setStrings(v.Elem(), s)
		}
	case reflect.String:
		v.SetString(s)
	}
}

type fullDisk struct{}

var errFull = errors.New("no space left")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestWritersReportErrors(t *testing.T) {
	r := small()
	for name, err := range map[string]error{
		"json": r.WriteJSON(fullDisk{}), "table": r.WriteTable(fullDisk{}, 80), "html": r.WriteHTML(fullDisk{}),
	} {
		if !errors.Is(err, errFull) {
			t.Errorf("%s: got %v, want %v", name, err, errFull)
		}
	}
}
