package loadtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hub/loadtest/report"
)

// TestOwnServer is a whole run: floor, child server, checks of its files, reports.
func TestOwnServer(t *testing.T) {
	o := ownServer(t)
	out := t.TempDir()
	o.Reconnects, o.JSON, o.HTML = 5, filepath.Join(out, "report.json"), filepath.Join(out, "report.html")
	r, _ := runTest(t, context.Background(), o)
	onlyFailed(t, r)
	for _, c := range r.Checks {
		if c.Result != report.Passed {
			t.Errorf("%s: %s (%s)", c.Name, c.Result, c.Detail)
		}
	}
	if floorSupported {
		f := r.Scenarios[0].Floors
		if len(f) != 1 || f[0].Before == nil || f[0].After == nil || f[0].Before.Latency.Count != int64(o.Conns*o.Events) {
			t.Errorf("floors: %+v", f)
		}
	}
	if len(r.Problems) > 0 {
		t.Errorf("problems: %q", r.Problems)
	}
	var again report.Report
	text, err := os.ReadFile(o.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &again); err != nil || again.Verdict != report.Pass {
		t.Errorf("JSON: %v, verdict %q", err, again.Verdict)
	}
	if info, err := os.Stat(o.HTML); err != nil || info.Size() == 0 && false {
		t.Errorf("HTML: %v", err)
	}
}

// TestScenarios carries out each scenario small, in the encoding and transport
// that the others do not have.
func TestScenarios(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"delivery": func(o *Options) { o.Conns = 8; o.Rooms = 1 },
		"fanout":   func(o *Options) { o.Protobuf = true },
		"hold":     func(o *Options) { o.TLS, o.Reconnects, o.Hold = true, 3, 10*time.Millisecond },
		"crash":    func(o *Options) { o.Kills, o.Conns, o.Rooms = 2, 20, 4 },
		"slow":     func(o *Options) {},
		"soak":     func(o *Options) { o.Scenario, o.Duration, o.Reconnects = "rooms", 600*time.Millisecond, 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := ownServer(t)
			o.Scenario = name
			change(&o)
			r, table := runTest(t, context.Background(), o)
			onlyFailed(t, r)
			if t.Failed() {
				t.Log(table)
			}
			if len(r.Scenarios[0].Rounds) == 0 {
				t.Error("no rounds")
			}
		})
	}
}

// TestFilesChecked: what is wrong with the files of the stopped server is found.
func TestFilesChecked(t *testing.T) {
	execute := func(statement string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			db, err := sql.Open("sqlite", filepath.Join(dir, defaultDatabase+".db"))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	const integrity, events = "integrity_check of every database", "stored events = acknowledged events"
	tests := map[string]struct {
		damage func(t *testing.T, dir string)
		failed []string
		says   string
	}{
		"a row in the middle": {execute("DELETE FROM events WHERE offset = 7 AND room_id = 2"), []string{events}, "there should be all up to 40"},
		"the first row":       {execute("DELETE FROM events WHERE offset = 1 AND room_id = 2"), []string{events}, "history begins at 2"},
		"the last write": {execute("DELETE FROM events WHERE offset = 40 AND room_id = 2; UPDATE rooms SET top = 39 WHERE id = 2"),
			[]string{events}, "39 events were committed, 40 acknowledged"},
		"a room":        {execute("DELETE FROM events WHERE room_id = 2; DELETE FROM rooms WHERE id = 2"), []string{events}, "the room is not stored"},
		"other content": {execute(`UPDATE events SET data = CAST(json_set(data, '$.seq', '0000000009') AS BLOB) WHERE offset = 7 AND room_id = 2`), []string{events}, "other data"},
		"a damaged page": {func(t *testing.T, dir string) {
			overwrite(t, filepath.Join(dir, defaultDatabase+".db"), 4096, 3000)
		}, []string{integrity, events}, ""},
		"a missing file": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, otherDatabase+".db")); err != nil {
				t.Fatal(err)
			}
		}, []string{events}, "no such file"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := ownServer(t)
			o.before = func(dir string) { test.damage(t, dir) }
			r, _ := runTest(t, context.Background(), o)
			onlyFailed(t, r, test.failed...)
			if detail := checkOf(t, r, events).Detail; !strings.Contains(detail, test.says) {
				t.Errorf("detail %q does not say %q", detail, test.says)
			}
		})
	}
}

func overwrite(t *testing.T, path string, at int64, n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	garbage := make([]byte, n)
	for i := range garbage {
		garbage[i] = byte(i*7 + 3)
	}
	_, err = f.WriteAt(garbage, at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestServerDies: its last words are shown, what was measured is kept.
func TestServerDies(t *testing.T) {
	t.Setenv(dieAfter, "700ms")
	o := ownServer(t)
	o.Hold = time.Minute
	r, table := runTest(t, context.Background(), o)
	c := checkOf(t, r, "the scenario completes")
	if c.Result != report.Failed || !strings.Contains(c.Detail, deathCry) || !strings.Contains(c.Detail, "exit status 3") {
		t.Errorf("%s: %q", c.Result, c.Detail)
	}
	if r.Passed() || !strings.Contains(table, deathCry) {
		t.Errorf("passed: %v; table:\n%s", r.Passed(), table)
	}
}

// TestServerDoesNotStart: the log says why.
func TestServerDoesNotStart(t *testing.T) {
	t.Setenv(dieAfter, "no duration")
	r, _ := runTest(t, context.Background(), ownServer(t))
	if c := checkOf(t, r, "the server starts"); c.Result != report.Failed || !strings.Contains(c.Detail, "invalid duration") {
		t.Errorf("%s: %q", c.Result, c.Detail)
	}
	if r.Passed() {
		t.Error("passed")
	}
}

// TestInterrupted: partial results are kept, and nothing else is left.
func TestInterrupted(t *testing.T) {
	o := ownServer(t)
	o.Hold = time.Minute
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	var out, progress lockedBuffer
	o.Terminal = true // progress comes often
	done := make(chan *report.Report, 1)
	go func() {
		r, err := Run(ctx, o, &out, &progress)
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	for deadline := time.After(20 * time.Second); !strings.Contains(progress.String(), "hold"); {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			interrupt()
			t.Fatalf("no hold in %q", progress.String())
		}
	}
	interrupt()
	r := <-done
	if r == nil {
		return
	}
	if !r.Partial || r.Passed() || r.Verdict != report.Incomplete {
		t.Errorf("partial %v, passed %v, verdict %s", r.Partial, r.Passed(), r.Verdict)
	}
	if len(r.Scenarios[0].Rounds) != o.Rounds {
		t.Errorf("%d rounds were kept, want %d", len(r.Scenarios[0].Rounds), o.Rounds)
	}
	for _, c := range r.Checks {
		if c.Result == report.Failed {
			t.Errorf("%s failed (%s): an interruption is no failure", c.Name, c.Detail)
		}
	}
}
