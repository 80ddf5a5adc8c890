package loadtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hub/hub"
	"hub/loadtest/report"
)

// TestOwnServer is a whole run: floor, child server, checks of its files, reports.
func TestOwnServer(t *testing.T) {
	t.Parallel()
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
	if problems := slices.DeleteFunc(r.Problems, ofMachine); len(problems) > 0 {
		t.Errorf("problems: %q", problems)
	}
	var again report.Report
	text, err := os.ReadFile(o.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &again); err != nil || again.Verdict != report.Pass {
		t.Errorf("JSON: %v, verdict %q", err, again.Verdict)
	}
	if info, err := os.Stat(o.HTML); err != nil || info.Size() == 0 {
		t.Errorf("HTML: %v", err)
	}
}

// TestFloorIdles: the floor's sockets are idle before each burst as those of a
// server are, and what a burst costs is known.
func TestFloorIdles(t *testing.T) {
	if !floorSupported {
		t.Skip("no floor here")
	}
	t.Parallel()
	o := ownServer(t)
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	r := &runner{options: o, report: report.New(report.Tool{}), addresses: newAddresses(o.Seed), progress: newProgress(io.Discard, false, nil)}
	defer r.progress.close()
	const gap = 200 * time.Millisecond
	begin := time.Now()
	run, _, err := r.measureFloor(t.Context(), roomsShape(&o), gap)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < floorRounds*gap {
		t.Errorf("%d bursts took %v, want at least the %v before each", floorRounds, took, gap)
	}
	if run.Latency.Count != int64(o.Conns*o.Events) || run.WriterCPU <= 0 || run.GeneratorCPU <= 0 {
		t.Errorf("floor: %+v", run)
	}
}

// ofMachine says whether a problem is that of a machine which does other things.
func ofMachine(problem string) bool {
	return strings.Contains(problem, "the generator") || strings.Contains(problem, "the machine was not steady")
}

// TestScenarios carries out each scenario small, in the encoding and transport
// that the others do not have.
func TestScenarios(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"delivery": func(o *Options) { o.Conns = 8; o.Rooms = 1 },
		"fanout":   func(o *Options) { o.Protobuf = true },
		"hold":     func(o *Options) { o.TLS, o.Reconnects, o.Hold = true, 3, 10*time.Millisecond },
		"revoke":   func(o *Options) { o.Conns, o.Rooms, o.Protobuf = 60, 4, true },
		"crash":    func(o *Options) { o.Kills, o.Conns, o.Rooms = 2, 20, 4 },
		"slow":     func(o *Options) {},
		"connect":  func(o *Options) { o.Most = 30 },
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
			if got := r.Scenarios[0].Name; got != name {
				t.Errorf("the report says %s", got)
			}
			rounds := r.Scenarios[0].Rounds
			if len(rounds) == 0 {
				t.Fatal("no rounds")
			}
			if i := slices.IndexFunc(r.Scenarios[0].Figures, func(f report.Figure) bool { return f.Name == report.SustainedEnd.Name && f.Value > 0 }); (i >= 0) != (name == "delivery") {
				t.Errorf("p95 at the end of a steady stream: figure %d", i)
			}
			if got := rounds[0].Conns; o.Most > 0 && got != o.Most {
				t.Errorf("%d connections, at most and at least %d were asked for", got, o.Most)
			}
		})
	}
}

const integrityCheck, eventsCheck = "integrity_check of every database", "stored events = acknowledged events"

// execute runs a statement on a database of a directory.
func execute(t *testing.T, dir, db, statement string) {
	t.Helper()
	pool, err := sql.Open("sqlite", filepath.Join(dir, db+".db"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// TestFilesAreChecked: a run looks at the files of its stopped server.
func TestFilesAreChecked(t *testing.T) {
	for name, test := range map[string]struct {
		damage func(t *testing.T, dir string)
		failed []string
	}{
		"an acknowledged write is lost": {func(t *testing.T, dir string) {
			execute(t, dir, defaultDatabase, "DELETE FROM events WHERE offset = 7 AND room_id = 2")
		}, []string{eventsCheck}},
		"a page of the other database is damaged": {func(t *testing.T, dir string) {
			overwrite(t, filepath.Join(dir, otherDatabase+".db"), 4096, 3000)
		}, []string{integrityCheck, eventsCheck}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := ownServer(t)
			o.before = func(dir string, _ map[string][]stored) { test.damage(t, dir) }
			r, _ := runTest(t, context.Background(), o)
			onlyFailed(t, r, test.failed...)
		})
	}
}

// TestCheckDatabase: each way in which a file can be wrong is found and named.
func TestCheckDatabase(t *testing.T) {
	t.Parallel()
	o := ownServer(t)
	kept := t.TempDir()
	var want []stored
	o.before = func(dir string, all map[string][]stored) {
		want = all[defaultDatabase]
		if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
			t.Error(err)
		}
	}
	r, _ := runTest(t, context.Background(), o)
	onlyFailed(t, r)
	for name, test := range map[string]struct {
		statement string // empty: a page is damaged
		retention uint64
		says      string // empty: nothing is wrong
	}{
		"nothing":                  {"SELECT 1", retention, ""},
		"what history may forget":  {"DELETE FROM events WHERE offset <= 10", 10, ""},
		"what history must keep":   {"DELETE FROM events WHERE offset <= 11", 10, "history begins at 12, it should reach back to 11"},
		"a row in the middle":      {"DELETE FROM events WHERE offset = 7 AND room_id = 2", retention, "19 events stored from 1 to 20, there should be all up to 20"},
		"the first row":            {"DELETE FROM events WHERE offset = 1 AND room_id = 2", retention, "history begins at 2"},
		"the last row":             {"DELETE FROM events WHERE offset = 20 AND room_id = 2", retention, "19 events stored from 1 to 19"},
		"the last write":           {"DELETE FROM events WHERE offset = 20 AND room_id = 2; UPDATE rooms SET top = 19 WHERE id = 2", retention, "19 events were committed, 20 acknowledged"},
		"a room":                   {"DELETE FROM events WHERE room_id = 2; DELETE FROM rooms WHERE id = 2", retention, "20 events were acknowledged, the room is not stored"},
		"all events of a room":     {"DELETE FROM events WHERE room_id = 2", retention, "history begins at 1"},
		"a room that nobody knows": {"INSERT INTO rooms VALUES (99, 'strange', 0, 0, 1, 0)", retention, "nobody published there"},
		"another event's data":     {"UPDATE events SET data = CAST(json_set(data, '$.seq', '0000000009') AS BLOB) WHERE offset = 7 AND room_id = 2", retention, "other data"},
		"another database's data":  {"UPDATE events SET data = CAST(json_set(data, '$.db', 'other') AS BLOB) WHERE offset = 7 AND room_id = 2", retention, "other data"},
		"another room's number":    {"UPDATE events SET data = CAST(json_set(data, '$.room', '000009') AS BLOB) WHERE offset = 7 AND room_id = 2", retention, "1 events hold other data"},
		"another publisher's":      {"UPDATE events SET data = CAST(json_set(data, '$.by', '000019') AS BLOB) WHERE offset = 7 AND room_id = 2", retention, "1 events hold other data"},
		"empty data":               {"UPDATE events SET data = CAST('{}' AS BLOB) WHERE room_id = 2", retention, "20 events hold other data"},
		"no data":                  {"UPDATE events SET data = NULL WHERE offset = 7 AND room_id = 2", retention, "1 events hold other data"},
		"no filler":                {"UPDATE events SET data = CAST(json_set(data, '$.d', '') AS BLOB) WHERE offset = 7 AND room_id = 2", retention, "1 events hold other data"},
		"another filler":           {"UPDATE events SET data = CAST(replace(data, 'xxxx', 'xxyx') AS BLOB) WHERE offset = 7 AND room_id = 2", retention, "1 events hold other data"},
		"another user":             {"UPDATE events SET user = 'user-19' WHERE offset = 7 AND room_id = 2", retention, "1 events hold other data"},
		"rows of two rooms swapped": {`CREATE TEMP TABLE kept AS SELECT * FROM events;
			UPDATE events SET data = (SELECT data FROM kept WHERE kept.offset = events.offset AND kept.room_id = 3 - events.room_id),
				user = (SELECT user FROM kept WHERE kept.offset = events.offset AND kept.room_id = 3 - events.room_id) WHERE room_id IN (1, 2)`, retention, "20 events hold other data"},
		"a page": {"", retention, "damaged"},
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, defaultDatabase+".db")
		if test.statement == "" {
			overwrite(t, path, 4096, 3000)
		} else {
			execute(t, dir, defaultDatabase, test.statement)
		}
		integrity, events, compared, err := checkDatabase(context.Background(), path, defaultDatabase, want, test.retention)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := strings.Join(events, "; "); (got == "") != (test.says == "") || !strings.Contains(got, test.says) && len(integrity) == 0 {
			t.Errorf("%s: %q, want %q", name, got, test.says)
		}
		if test.says == "" && compared != uint64(min(int(test.retention), 20)*len(want)) {
			t.Errorf("%s: %d events compared", name, compared)
		}
		if damaged := test.statement == ""; damaged != (len(integrity) > 0) {
			t.Errorf("%s: integrity %q", name, integrity)
		}
	}
	if _, _, _, err := checkDatabase(context.Background(), filepath.Join(kept, "missing.db"), "missing", nil, retention); err == nil {
		t.Error("a missing file is fine")
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

// with is the program of a test under an environment variable.
func with(name, value string) []string { return []string{"env", name + "=" + value, os.Args[0]} }

// TestServerDies: its last words are shown, once, what was measured is kept, and
// what was on its way is not judged.
func TestServerDies(t *testing.T) {
	for _, phase := range []string{": hold", "events/s"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			o := ownServer(t)
			if phase != ": hold" {
				o.Duration = time.Minute
			}
			r, table := runTestUntil(t, o, phase, func(func()) {
				for _, pid := range processesOf(o.Dir) {
					if p, err := os.FindProcess(pid); err != nil || p.Signal(syscall.SIGALRM) != nil {
						t.Errorf("no signal for %d", pid)
					}
				}
			})
			onlyFailedPartly(t, r, "the scenario completes")
			if c := checkOf(t, r, "the scenario completes"); !strings.Contains(c.Detail, deathCry) || !strings.Contains(c.Detail, "exit status 3") {
				t.Errorf("%s: %q", c.Result, c.Detail)
			}
			if strings.Count(table, deathCry) != 1 {
				t.Errorf("table:\n%s", table)
			}
		})
	}
}

// TestServerDoesNotStart: the log says why.
func TestServerDoesNotStart(t *testing.T) {
	t.Parallel()
	o := ownServer(t)
	o.Program = with(maxFile, "no number")
	r, _ := runTest(t, context.Background(), o)
	if c := checkOf(t, r, "the server starts"); c.Result != report.Failed || !strings.Contains(c.Detail, "invalid syntax") {
		t.Errorf("%s: %q", c.Result, c.Detail)
	}
	if r.Passed() {
		t.Error("passed")
	}
}

// TestNoProgram: a program that cannot be started is told, and nothing else is left.
func TestNoProgram(t *testing.T) {
	t.Parallel()
	o := ownServer(t)
	o.Program = []string{filepath.Join(o.Dir, "missing")}
	r, _ := runTest(t, context.Background(), o)
	onlyFailed(t, r, "the server starts")
}

// TestRelativeDirectory: the place of the files may be named from the working directory.
func TestRelativeDirectory(t *testing.T) {
	o := ownServer(t)
	t.Chdir(filepath.Dir(o.Dir))
	o.Dir = filepath.Base(o.Dir)
	r, _ := runTest(t, context.Background(), o)
	onlyFailed(t, r)
}

// TestLargeEvents: events of every size that may be asked for go through server
// and floor.
func TestLargeEvents(t *testing.T) {
	t.Parallel()
	o := ownServer(t)
	o.Conns, o.Rooms, o.Events, o.Size = 3, 1, 140, maxSize
	r, _ := runTest(t, context.Background(), o)
	onlyFailed(t, r)
	if floorSupported && (len(slices.DeleteFunc(r.Problems, ofMachine)) > 0 || len(r.Scenarios[0].Floors) != 1) {
		t.Errorf("%d floors, problems %q", len(r.Scenarios[0].Floors), r.Problems)
	}
}

// TestInterrupted: partial results are kept, and nothing else is left.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	o := ownServer(t)
	r, _ := runTestUntil(t, o, ": hold", func(interrupt func()) { interrupt() })
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

// TestBadStop: a server that does not end well fails the run.
func TestBadStop(t *testing.T) {
	t.Parallel()
	o := ownServer(t)
	o.Program = with(badStop, "1")
	r, _ := runTest(t, context.Background(), o)
	onlyFailed(t, r, "the server stops in order")
	if detail := checkOf(t, r, "the server stops in order").Detail; !strings.Contains(detail, "the checkpoint failed") {
		t.Errorf("detail %q", detail)
	}
}

// TestDiskFull: what the server refuses is told as that, and not as lost.
func TestDiskFull(t *testing.T) {
	if !filesLimited {
		t.Skip("the size of files cannot be limited")
	}
	t.Parallel()
	o := ownServer(t)
	o.Program = with(maxFile, "200000")
	o.Size, o.Events = 1000, 60 // more than fits, however few commits there are
	r, table := runTest(t, context.Background(), o)
	for _, c := range r.Checks {
		switch c.Name {
		case "the server stops in order": // its last checkpoint may need more disk
		case "acknowledged = published":
			if c.Result != report.Failed {
				t.Errorf("%s: %s (%s)", c.Name, c.Result, c.Detail)
			}
		default:
			if c.Result != report.Passed {
				t.Errorf("%s: %s (%s)", c.Name, c.Result, c.Detail)
			}
		}
	}
	if !strings.Contains(strings.Join(strings.Fields(table), " "), "publish answered with error 100 database cannot write") {
		t.Errorf("the table does not tell of the server's answer:\n%s", table)
	}
}

// TestConnectionsLeftElsewhere: the metrics of a server that runs already tell
// whether connections are left there.
func TestConnectionsLeftElsewhere(t *testing.T) {
	t.Parallel()
	const key = "0123456789abcdef"
	s := runHub(t, func(o *hub.Options) { o.Admin.Listen, o.Admin.Key = "127.0.0.1:0", key })
	o := small(s.Addr())
	o.AdminURL, o.AdminKey = "http://"+s.AdminAddr(), key
	r, _ := runTest(t, context.Background(), o)
	onlyFailed(t, r)
	if c := checkOf(t, r, leftCheck); c.Result != report.Passed {
		t.Errorf("%s: %s (%s)", c.Name, c.Result, c.Detail)
	}
	o.AdminKey = "another"
	r, _ = runTest(t, context.Background(), o)
	onlyFailed(t, r)
	if c := checkOf(t, r, leftCheck); c.Result != report.NotChecked || !strings.Contains(c.Detail, "401") {
		t.Errorf("%s: %s (%s)", c.Name, c.Result, c.Detail)
	}
}

const leftCheck = "connections left after the end = 0"

// TestConnectionsLeft: connections that the server still has are counted.
func TestConnectionsLeft(t *testing.T) {
	pages := -1000 // far from the third
	page := "# HELP hub_connections Authenticated connections.\nhub_connections{database=\"default\"} 2\nhub_connections{database=\"other\"} 1\n"
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" || r.Header.Get("Authorization") != "Bearer key" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if pages++; pages == 3 {
			_, _ = io.WriteString(w, "hub_connections 0\n") // closes take their time
			return
		}
		_, _ = io.WriteString(w, page)
	}))
	defer admin.Close()
	progress := newProgress(io.Discard, false, nil)
	defer progress.close()
	st := &stage{
		r:      &runner{options: Options{stall: 20 * time.Millisecond}, progress: progress},
		server: &server{process: &process{}}, source: &metricsSource{base: admin.URL, key: "key"},
	}
	if left, err := st.connectionsLeft(t.Context()); left != 3 || err != nil {
		t.Errorf("%d, %v; want 3", left, err)
	}
	pages, st.r.options.stall = 0, time.Minute
	if left, err := st.connectionsLeft(t.Context()); left != 0 || err != nil {
		t.Errorf("%d, %v; want 0 once all are closed", left, err)
	}
	st.others = 3
	if _, err := st.connectionsLeft(t.Context()); err == nil || !strings.Contains(err.Error(), "3 connections of others") {
		t.Errorf("connections of others: %v", err)
	}
	st.others = 0
	page = "hub_other 0\n"
	if _, err := st.connectionsLeft(t.Context()); err == nil {
		t.Error("a missing metric counts as none")
	}
	st.source.key = "another"
	if _, err := st.connectionsLeft(t.Context()); err == nil {
		t.Error("a refusal counts as none")
	}
}
