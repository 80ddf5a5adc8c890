package report_test

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"hub/loadtest/report"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// spread is a summary of so many latencies around a median, made by formula: the
// same in every run.
func spread(median time.Duration, count int) report.Latency {
	h := hdrhistogram.New(1, 60_000_000, 3)
	for i := range count {
		share := (float64(i) + 0.5) / float64(count)
		us := float64(median.Microseconds()) * math.Pow(share/(1-share), 0.3)
		if err := h.RecordValue(max(1, int64(us))); err != nil {
			panic(err)
		}
	}
	return report.Summarize(h, time.Microsecond)
}

// small is a report of one scenario with one of everything.
func small() *report.Report {
	load := 0.25
	r := report.New(report.Tool{Name: "hub loadtest", Version: "0.1.0", Commit: "0123456789ab", Go: "go1.26.0"})
	r.Started, r.Ended = start, start.Add(95*time.Second)
	r.Environment = report.Environment{
		OS: "linux", Kernel: "6.18.0", Arch: "amd64", CPU: "Example CPU", Cores: 2, MemoryBytes: 8 << 30, DescriptorLimit: 20_000,
		DataDisk: "vda", DataFileSystem: "ext4", LoadBefore: &load, LoadAfter: &load, SameMachine: true,
	}
	r.Settings = report.Settings{
		Flags:  []report.Setting{{Name: "conns", Value: "10000", Default: "10000"}, {Name: "seed", Value: "7", Default: "random"}},
		Raised: []report.Setting{{Name: "limits.connections.ip", Value: "20000", Default: "1000"}},
	}
	shape := report.Shape{Conns: 10_000, Rooms: 100, Events: 10}
	floor := report.Floor{
		Shape:  shape,
		Before: &report.FloorRun{WallMS: 60, Latency: spread(20*time.Millisecond, 100), WriterCPU: 0.51, GeneratorCPU: 0.62},
		After:  &report.FloorRun{WallMS: 62, Latency: spread(22*time.Millisecond, 100), WriterCPU: 0.53, GeneratorCPU: 0.64},
	}
	ratio := report.FloorRatio.Of(2.31, 10_000)
	ratio.Low, ratio.High = 2.09, 2.54
	s := report.Scenario{
		Name: "rooms", What: "Connections spread over rooms, ten events to each room at once.", Started: start, Ended: start.Add(time.Minute),
		Floors: []report.Floor{floor},
		Rounds: []report.Round{
			{N: 1, Started: start, Shape: shape, Deliveries: 100_000, WallMS: 81.2, Latency: spread(30*time.Millisecond, 100), ServerCPU: 0.71, GeneratorCPU: 0.9},
			{N: 2, Part: "after reconnects", Started: start.Add(time.Second), Shape: shape, Deliveries: 99_998, WallMS: 90, Latency: spread(32*time.Millisecond, 100), GeneratorLimited: true, Faults: report.Faults{Lost: 2, CrossRoom: 1}},
		},
		Requests: []report.Requests{{Part: "run 1 of 4", Kind: "read", Clients: 128, Count: 20, WallMS: 480, Latency: spread(4*time.Millisecond, 20)}},
		Figures: []report.Figure{
			report.DeliveryP95.Of(72.4, 10_000),
			ratio,
			report.MemoryPerConn.Of(1.52, 9_999),
		},
		Series: []report.Series{{Name: "connections", Unit: "", Points: []report.Point{{T: 0, V: 0}, {T: 1, V: 10_000}}}},
		References: []report.Reference{
			{System: "another system", What: "one message", Low: 1189, High: 1189, Unit: "ms", Hardware: "an Intel Core i7-8700K", Source: "published"},
		},
	}
	r.Scenarios = []report.Scenario{s}
	r.Checks = []report.Check{
		{Scenario: "rooms", Name: "no event lost", Result: report.Failed, Detail: "2 of 200,000"},
		{Scenario: "rooms", Name: "all ready", Result: report.Passed, Detail: "10,000 of 10,000"},
		{Name: "integrity_check", Result: report.NotChecked, Detail: "the server was not started by this run"},
	}
	r.NotTested = []string{"A network between server and clients."}
	r.Problems = []string{"rooms: 3 connections were refused at first and tried again"}
	r.Finish()
	return r
}

// golden compares with a file of testdata, or rewrites it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs; with -update the new text is kept. got:\n%s", file, got)
	}
}
