package loadtest

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"hub/loadtest/report"
)

// unrun is a stage that has no server and measures nothing.
func unrun() *stage {
	r := &runner{options: DefaultOptions(), report: report.New(report.Tool{})}
	return &stage{r: r, name: "rooms", out: &report.Scenario{Name: "rooms"}, swarm: &swarm{shards: make([]*shard, 1)}}
}

// TestDoubtFloor: a floor that cannot have been one is told.
func TestDoubtFloor(t *testing.T) {
	shape := report.Shape{Conns: 10, Rooms: 1, Events: 1}
	run := func(p95 float64) *report.FloorRun {
		return &report.FloorRun{Latency: report.Latency{Count: 1, P95MS: p95}}
	}
	const faster, apart = "faster than the floor", "before and"
	for _, test := range []struct {
		before, after *report.FloorRun
		delivery      float64
		says          []string
	}{
		{run(40), run(49), 60, nil},
		{run(49), run(40), 45, nil},
		{run(40), run(51), 60, []string{apart}},
		{run(51), run(40), 60, []string{apart}},
		{run(40), run(40), 39, []string{faster}},
		{run(40), run(80), 30, []string{faster, apart}},
		{run(40), nil, 60, nil},
		{nil, nil, 60, nil},
	} {
		st := unrun()
		st.out.Floors = []report.Floor{{Shape: shape, Before: test.before, After: test.after}}
		st.out.Rounds = []report.Round{{Shape: shape, Deliveries: 10, Latency: report.Latency{Count: 10, P95MS: test.delivery}}}
		st.ratios()
		problems := st.r.report.Problems
		if len(problems) != len(test.says) {
			t.Errorf("%+v: problems %q, want %q", test, problems, test.says)
			continue
		}
		for i, want := range test.says {
			if !strings.Contains(problems[i], want) || !strings.Contains(problems[i], "the machine was not steady") {
				t.Errorf("%+v: problem %q, want %q", test, problems[i], want)
			}
		}
		if i := slices.IndexFunc(st.out.Figures, func(f report.Figure) bool { return f.Name == "floor_ratio" }); (i < 0) != (test.before == nil) {
			t.Errorf("%+v: figures %v", test, st.out.Figures)
		}
	}
}

// TestGeneratorLimited: the generator was the limit when its threads were busy and
// the server was not, and then the report says so in words.
func TestGeneratorLimited(t *testing.T) {
	const wall = 100 * time.Millisecond
	for name, test := range map[string]struct {
		own, server float64 // of one core's time
		wall        time.Duration
		unknown     bool
		want        bool
	}{
		"busy generator, idle server": {own: 0.95, server: 0.1, wall: wall, want: true},
		"both busy":                   {own: 0.95, server: 0.95 * math.MaxInt16, wall: wall},
		"idle generator":              {own: 0.85, server: 0.1, wall: wall},
		"too short to tell":           {own: 0.95, server: 0.1, wall: judged * time.Millisecond},
		"server elsewhere":            {own: 0.95, wall: wall, unknown: true},
	} {
		st := unrun()
		part := func(share float64) time.Duration { return time.Duration(share * float64(test.wall)) }
		before := usage{serverKnown: !test.unknown, ownKnown: true}
		after := usage{own: part(test.own), server: part(test.server), serverKnown: !test.unknown, ownKnown: true}
		round := report.Round{N: 3, Deliveries: 1000, WallMS: milliseconds(int64(test.wall))}
		st.account(&round, before, after)
		if round.GeneratorLimited != test.want {
			t.Errorf("%s: limited %v, want %v", name, round.GeneratorLimited, test.want)
		}
		told := slices.Contains(st.r.report.Problems, "scenario rooms, round 3: the generator was busy all the time while the server was not; the server may be faster")
		if told != test.want {
			t.Errorf("%s: problems %q", name, st.r.report.Problems)
		}
		if want := test.own * float64(test.wall.Microseconds()) / 1000; math.Abs(round.GeneratorCPU-want) > 0.001 {
			t.Errorf("%s: generator CPU %v us per delivery, want %v", name, round.GeneratorCPU, want)
		}
	}
}

// TestSustained: a rate is held when what was due last came as soon as the rest.
func TestSustained(t *testing.T) {
	const d = 5 * time.Second
	for name, test := range map[string]struct {
		p95, end, wall float64 // ms
		held           bool
	}{
		"even":                 {p95: 60, end: 62, wall: 5055, held: true},
		"high and even":        {p95: 300, end: 600, wall: 5600, held: true},
		"low":                  {p95: 60, end: 150, wall: 5150, held: true},
		"a backlog that grows": {p95: 80, end: 161, wall: 5170},
		"a long one":           {p95: 700, end: 1500, wall: 6500},
	} {
		st := unrun()
		round := &report.Round{Shape: report.Shape{Conns: 10_000, Rooms: 1, Events: 500}, Deliveries: 5_000_000, WallMS: test.wall,
			Latency: report.Latency{Count: 1, P95MS: test.p95}}
		st.sustained(round, test.end, d)
		rate := st.out.Figures[0]
		if reached, judged := rate.Reached(); !judged || reached != test.held {
			t.Errorf("%s: %v/s, reached %v, want %v", name, rate.Value, reached, test.held)
		}
		if told := strings.Contains(rate.Title, "not held"); told == test.held || len(st.r.report.Problems) > 0 == test.held {
			t.Errorf("%s: %q, problems %q", name, rate.Title, st.r.report.Problems)
		}
		if got := st.out.Figures[2]; got.Name != "sustained_end_p95_ms" || got.Value != test.end {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestEnding: the end of a stream is what was due there, whenever it came.
func TestEnding(t *testing.T) {
	s := &swarm{}
	sh := newShard(s)
	s.shards = []*shard{sh}
	sh.record(9e9, 1) // nobody asked yet
	s.reset()
	s.watchEnd(4e9)
	sh.record(6e9, 4e9-1)
	sh.record(5e9, 4e9)
	sh.record(9e9, 6e9)
	if h := s.ending(); h.TotalCount() != 2 || h.Max() < 2_990_000 || h.Min() < 990_000 {
		t.Errorf("%d events, %d to %d us; want 2 of 1 and 3 s", h.TotalCount(), h.Min(), h.Max())
	}
	if n := s.latency().TotalCount(); n != 3 {
		t.Errorf("%d events altogether, want 3", n)
	}
	s.reset()
	sh.record(9e9, 6e9)
	if n := s.ending().TotalCount(); n != 0 {
		t.Errorf("%d events after a reset, want 0", n)
	}
}

// TestKnee: where everything that was offered was completed there is no knee.
func TestKnee(t *testing.T) {
	for name, test := range map[string]struct {
		completed []float64 // of 1000, 2000, 4000 offered
		knee      bool
		best      float64
		beyond    float64
	}{
		"none met":       {completed: []float64{1000, 1990, 3820}, best: 3820},
		"level":          {completed: []float64{1000, 1990, 1990}, knee: true, best: 1990, beyond: 1},
		"a fall":         {completed: []float64{1000, 2000, 500}, knee: true, best: 2000, beyond: 0.25},
		"just below all": {completed: []float64{1000, 2000, 3790}, knee: true, best: 3790, beyond: 1},
	} {
		st := unrun()
		var curve []report.Point
		for i, v := range test.completed {
			curve = append(curve, report.Point{T: float64(int(1000) << i), V: v})
		}
		st.knee(curve)
		f := st.out.Figures
		if f[0].Value != test.best || strings.Contains(f[0].Title, "no knee up to 4000") == test.knee {
			t.Errorf("%s: %s = %v, want %v", name, f[0].Title, f[0].Value, test.best)
		}
		if (len(f) == 2) != test.knee || test.knee && f[1].Value != test.beyond {
			t.Errorf("%s: %+v, want %v beyond the knee", name, f[1:], test.beyond)
		}
	}
}

// TestRecovered: every subscription that was dropped must have been continued.
func TestRecovered(t *testing.T) {
	for _, test := range []struct {
		dropped, recovered, unrecovered int64
		early                           string
		want                            report.Result
	}{
		{dropped: 5, recovered: 5, want: report.Passed},
		{dropped: 5, recovered: 6, want: report.Passed}, // one was dropped again before it was counted
		{dropped: 5, recovered: 4, want: report.Failed},
		{dropped: 5, recovered: 0, want: report.Failed},
		{dropped: 5, recovered: 5, unrecovered: 1, want: report.Failed},
		{dropped: 5, recovered: 4, early: interrupted, want: report.NotChecked},
		{dropped: 5, recovered: 4, unrecovered: 1, early: interrupted, want: report.Failed},
	} {
		st := unrun()
		st.given, st.acked, st.asked, st.ready = 1, 1, 1, 1
		st.dropped, st.early = test.dropped, test.early
		st.tally = tally{recovered: test.recovered, unrecovered: test.unrecovered}
		st.checkTraffic()
		if got := checkOf(t, st.r.report, "every position recovered").Result; got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}
