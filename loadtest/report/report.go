// Package report is the result of a load test: what was run, where, what was
// measured and what was checked, and the three forms in which people read it:
// JSON, a text table and one self-contained web page.
//
// The engine fills a [Report] while it runs, calls [Report.Finish] once and
// writes it with [Report.WriteJSON], [Report.WriteTable] and
// [Report.WriteHTML]. A report that was interrupted is written in the same way.
//
// # The JSON schema
//
// The JSON form is an interface: scripts read it. [Schema] is its version, in
// the field schema. Adding a field keeps the version; renaming or removing one,
// or changing a unit or a meaning, raises it. Names are snake_case and end in
// their unit: _ms and _s (milliseconds and seconds as decimals), _us
// (microseconds), _bytes. Times are RFC 3339 in UTC. A number that was not
// measured is absent, never zero.
package report

import (
	"slices"
	"time"
)

// Schema is the version of the JSON form.
const Schema = 1

// Report is one run of the load test. Whoever fills it owns it; the writers
// only read. It is not safe for concurrent use.
type Report struct {
	Schema int  `json:"schema"`
	Tool   Tool `json:"tool"`

	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Partial says that the run ended early: interrupted, or its server died.
	// What it holds was measured, but the run proves nothing.
	Partial bool `json:"partial"`
	// Verdict is filled by Finish.
	Verdict Verdict `json:"verdict"`

	Environment Environment `json:"environment"`
	Settings    Settings    `json:"settings"`
	Scenarios   []Scenario  `json:"scenarios"`
	Checks      []Check     `json:"checks"`
	// NotTested are sentences on what this run says nothing about.
	NotTested []string `json:"not_tested"`
	// Problems are sentences on the faults met on the way, in order: refusals,
	// retries, a full disk, a generator that was the bottleneck.
	Problems []string `json:"problems"`
	// Definitions explains every field of a round; Finish fills it. A figure
	// carries its own.
	Definitions []Definition `json:"definitions"`
}

// Tool is the program that made the report.
type Tool struct {
	Name    string `json:"name"` // "hub loadtest"
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // absent when unknown
	Go      string `json:"go"`               // runtime.Version()
}

// Environment is the machine of the generator, which is the server's too
// unless SameMachine is false.
type Environment struct {
	OS              string `json:"os"`     // runtime.GOOS or the distribution
	Kernel          string `json:"kernel"` // release
	Arch            string `json:"arch"`
	CPU             string `json:"cpu"` // model name
	Cores           int    `json:"cores"`
	MemoryBytes     int64  `json:"memory_bytes,omitempty"`
	DescriptorLimit int64  `json:"descriptor_limit,omitempty"` // of one process, after raising
	DataDisk        string `json:"data_disk,omitempty"`        // device or mount of the server's data directory
	DataFileSystem  string `json:"data_file_system,omitempty"` // ext4, xfs, …
	// LoadBefore and LoadAfter are the one-minute load averages around the run.
	LoadBefore *float64 `json:"load_1m_before,omitempty"`
	LoadAfter  *float64 `json:"load_1m_after,omitempty"`
	// SameMachine says that server and generator shared this machine, and so
	// its processors.
	SameMachine bool `json:"same_machine"`
}

// Settings is what the run was asked to do and what it changed for that.
type Settings struct {
	// Flags holds every flag with its effective value, secrets excepted.
	Flags []Setting `json:"flags"`
	// Raised holds the server's limits that differ from their defaults.
	Raised []Setting `json:"raised_limits"`
}

// Setting is one flag or limit. Default is empty where it does not matter.
type Setting struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Default string `json:"default,omitempty"`
}

// Scenario is one part of the run with its measurements.
type Scenario struct {
	Name    string    `json:"name"` // as on the command line
	What    string    `json:"what"` // a sentence: what it does
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`

	Rounds []Round `json:"rounds"`
	// Requests are measurements of operations and reads.
	Requests []Requests `json:"requests,omitempty"`
	Floors   []Floor    `json:"floors"`
	Figures  []Figure   `json:"figures"`
	Series   []Series   `json:"series"`
	// References are figures of other systems; Finish adds the known ones.
	References []Reference `json:"references"`
}

// Shape is what two rounds must share to be comparable with each other and
// with a floor.
type Shape struct {
	Conns  int `json:"conns"`
	Rooms  int `json:"rooms"`
	Events int `json:"events"` // to each connection
}

// Round is one measured burst or period of steady traffic.
type Round struct {
	N int `json:"n"` // from 1, within its scenario
	// Part names what sets this round apart, such as "after reconnects"; empty
	// where nothing does.
	Part    string    `json:"part,omitempty"`
	Started time.Time `json:"started"`
	Shape

	Deliveries int64   `json:"deliveries"` // events received, all connections together
	WallMS     float64 `json:"wall_ms"`    // intended send time of the first to arrival of the last
	Latency    Latency `json:"latency"`

	// CPU of the process per delivery; 0 where unknown (a server elsewhere).
	ServerCPU    float64 `json:"server_cpu_us_per_delivery,omitempty"`
	GeneratorCPU float64 `json:"generator_cpu_us_per_delivery,omitempty"`
	// GeneratorLimited says that the generator was saturated while the server
	// was not: the round's times are the generator's.
	GeneratorLimited bool `json:"generator_limited"`

	Faults Faults `json:"faults"`
}

// Requests is what operations or reads of one period took.
type Requests struct {
	Part    string `json:"part"`
	Kind    string `json:"kind"`    // operation or read
	Clients int    `json:"clients"` // each has one under way, or for operations its share of all
	Count   int64  `json:"count"`
	// WallMS is from the first request of the period to the last answer, of all kinds.
	WallMS  float64 `json:"wall_ms"`
	Latency Latency `json:"latency"` // from the request's write to the last byte of its answer
}

// Faults counts events that did not arrive as promised; all zero is right.
type Faults struct {
	Lost          int64 `json:"lost"`
	Duplicate     int64 `json:"duplicate"`
	OutOfOrder    int64 `json:"out_of_order"`
	CrossRoom     int64 `json:"cross_room"`
	CrossDatabase int64 `json:"cross_database"`
}

// Total is the number of faults of all kinds.
func (f Faults) Total() int64 {
	return f.Lost + f.Duplicate + f.OutOfOrder + f.CrossRoom + f.CrossDatabase
}

// Add returns the sums of both.
func (f Faults) Add(g Faults) Faults {
	return Faults{
		Lost:          f.Lost + g.Lost,
		Duplicate:     f.Duplicate + g.Duplicate,
		OutOfOrder:    f.OutOfOrder + g.OutOfOrder,
		CrossRoom:     f.CrossRoom + g.CrossRoom,
		CrossDatabase: f.CrossDatabase + g.CrossDatabase,
	}
}

// Floor is what the machine can do at best for one shape: the same bytes
// written plainly to as many loopback sockets, all due events in one write(2)
// each, read by the same readers in the same run.
type Floor struct {
	Shape
	Before *FloorRun `json:"before,omitempty"`
	After  *FloorRun `json:"after,omitempty"`
	// The ratios are those of Scenario.FloorRatio, filled by Finish.
	RatioP95     float64 `json:"ratio_p95,omitempty"`
	RatioP95Low  float64 `json:"ratio_p95_low,omitempty"`
	RatioP95High float64 `json:"ratio_p95_high,omitempty"`
}

// FloorRun is one measurement of the floor: the median one of its repetitions.
type FloorRun struct {
	WallMS  float64 `json:"wall_ms"`
	Latency Latency `json:"latency"`
	// CPU of writer and generator per delivery; 0 where unknown.
	WriterCPU    float64 `json:"writer_cpu_us_per_delivery,omitempty"`
	GeneratorCPU float64 `json:"generator_cpu_us_per_delivery,omitempty"`
}

// Series is a quantity over time, or over another one. Series of one scenario
// with the same Chart are drawn together and share their unit.
type Series struct {
	Name  string `json:"name"`
	Unit  string `json:"unit"`            // see [Figure]
	Chart string `json:"chart,omitempty"` // empty: a chart of its own
	// XName and XUnit name the horizontal quantity; both empty: seconds since
	// the scenario began.
	XName  string  `json:"x_name,omitempty"`
	XUnit  string  `json:"x_unit,omitempty"`
	Points []Point `json:"points"` // by rising T
}

// Point is one sample of a series.
type Point struct {
	T float64 `json:"t"`
	V float64 `json:"v"`
}

// Result is the outcome of a check.
type Result string

// The outcomes of a check. What could not be looked at is NotChecked, never
// Passed.
const (
	Passed     Result = "passed"
	Failed     Result = "failed"
	NotChecked Result = "not_checked"
)

// Check is one promise that was put to the test.
type Check struct {
	Scenario string `json:"scenario,omitempty"` // empty: the whole run
	Name     string `json:"name"`               // what must hold: "no event lost"
	Result   Result `json:"result"`
	Detail   string `json:"detail,omitempty"` // what was found, or why it was not checked
}

// Verdict is the outcome of the whole run.
type Verdict string

// The verdicts. A run without any passed check is Incomplete.
const (
	Pass       Verdict = "pass"
	Fail       Verdict = "fail"
	Incomplete Verdict = "incomplete"
)

// Passed reports whether the run ended by itself, checked something, and no
// check failed. Missed targets do not fail a run: machines differ.
func (r *Report) Passed() bool { return r.verdict() == Pass }

func (r *Report) verdict() Verdict {
	has := func(result Result) bool {
		return slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Result == result })
	}
	switch {
	case has(Failed):
		return Fail
	case r.Partial || !has(Passed):
		return Incomplete
	default:
		return Pass
	}
}

// Faults sums the faults of all rounds.
func (r *Report) Faults() Faults {
	var sum Faults
	for _, s := range r.Scenarios {
		for _, round := range s.Rounds {
			sum = sum.Add(round.Faults)
		}
	}
	return sum
}
