package loadtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"hub/hub"
	"hub/loadtest/fleet"
	"hub/loadtest/model"
	"hub/loadtest/report"
)

const (
	answersCheck = "every answer to an operation and its event can be true"
	sumsCheck    = "stock, version, rewards and repeats add up"
	readsCheck   = "every read is answered with a valid value"
	viewsCheck   = "every client's own state = model"
	snapCheck    = "snapshot of the server = model"
	placeCheck   = "events say their true place and publisher"
	refusalCheck = "what is over a limit gets 429, Retry-After and a problem document"
	counterCheck = "what passed was applied, what was refused was not"
)

// TestOperationScenarios carries out each scenario with operations small, with a
// server of its own.
func TestOperationScenarios(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		checks []string
	}{
		"mixed": {func(o *Options) { o.Conns, o.Rooms, o.share = 300, 10, 10 }, []string{answersCheck, sumsCheck, readsCheck}},
		"state": {func(o *Options) { o.Conns, o.Rooms, o.share, o.Protobuf = 60, 3, 2, true }, []string{answersCheck, viewsCheck, snapCheck, "every position recovered"}},
		"crash": {func(o *Options) { o.Kills, o.Conns, o.Rooms = 3, 30, 4 }, []string{answersCheck, viewsCheck, snapCheck}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := ownServer(t)
			o.Scenario = name
			test.change(&o)
			r, table := runTest(t, context.Background(), o)
			onlyFailed(t, r)
			for _, name := range append(test.checks, eventsCheck) {
				if c := checkOf(t, r, name); c.Result != report.Passed {
					t.Errorf("%s: %s (%s)", c.Name, c.Result, c.Detail)
				}
			}
			figures := r.Scenarios[0].Figures
			for _, name := range map[string][]string{
				"mixed": {"mixed_s", "operation_p95_ms", "read_p95_ms", "reads_per_s", "mixed_s_many_readers"},
				"state": {"operations_applied", "operations_refused", "operations_replayed"},
				"crash": {"operations_applied", "operations_replayed"},
			}[name] {
				if i := slices.IndexFunc(figures, func(f report.Figure) bool { return f.Name == name }); i < 0 || figures[i].Value <= 0 {
					t.Errorf("figure %s: %d of %v", name, i, figures)
				}
			}
			if t.Failed() {
				t.Log(table)
			}
		})
	}
}

// TestMayNotOperate: a server that does not let its users operate is told as that.
func TestMayNotOperate(t *testing.T) {
	t.Parallel()
	addr := startHub(t, nil) // operate = "server"
	for _, name := range []string{"mixed", "state"} {
		o := small(addr)
		o.Scenario, o.share = name, 100
		r, _ := runTest(t, context.Background(), o)
		c := checkOf(t, r, "the scenario completes")
		if r.Passed() || !strings.Contains(c.Detail, "permission") || !strings.Contains(c.Detail, `operate = "token"`) {
			t.Errorf("%s: %s (%s)", name, c.Result, c.Detail)
		}
	}
}

// operable is a server whose users may operate.
func operable(o *hub.Options) {
	ns := o.Namespaces[ownNamespace]
	ns.Operate = hub.AccessToken
	o.Namespaces[ownNamespace] = ns
	o.Limits.Read, o.Limits.Mutation = hub.Rate{}, hub.Rate{}
}

// startRelay stands between clients and a server and lets lie change what the server
// sends, each time that something comes; lie is not called at the same time twice
// and must not change the length.
func startRelay(t *testing.T, server string, lie func(data []byte)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var done sync.WaitGroup
	serve := func(client, server net.Conn) {
		done.Go(func() {
			_, _ = io.Copy(server, client)
			_ = server.(*net.TCPConn).CloseWrite()
		})
		done.Go(func() {
			defer client.Close()
			defer server.Close()
			buf := make([]byte, 256<<10)
			for {
				n, err := server.Read(buf)
				mu.Lock()
				lie(buf[:n])
				mu.Unlock()
				if _, werr := client.Write(buf[:n]); err != nil || werr != nil {
					return
				}
			}
		})
	}
	done.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				return
			}
			mu.Lock()
			conns = append(conns, client, to)
			mu.Unlock()
			serve(client, to)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		done.Wait()
	})
	return l.Addr().String()
}

// lie replaces a text by one as long, in the first message that has another text
// before it, or in all.
func lie(in, old, with string, always bool) func(data []byte) {
	if len(old) != len(with) {
		panic("another length: " + old)
	}
	done := false
	return func(data []byte) {
		at := bytes.Index(data, []byte(in))
		if done || at < 0 {
			return
		}
		if i := bytes.Index(data[at:], []byte(old)); i >= 0 {
			copy(data[at+i:], with)
			done = !always
		}
	}
}

// TestLies: each thing that a server can say wrongly about operations and state makes
// the check fail that is for it, and only that.
func TestLies(t *testing.T) {
	t.Parallel()
	addr, seed := startHub(t, operable), uint64(0)
	for name, test := range map[string]struct {
		scenario, in, old, with string
		failed                  []string
	}{
		"a read of another amount":    {"mixed", "\r\n\r\n{\"key\":\"stock\"", `"amount":9`, `"amount":8`, []string{readsCheck}},
		"a read that fails":           {"mixed", "HTTP/1.1 200 OK", "200 OK", "500 OK", []string{readsCheck}},
		"a read without its ETag":     {"mixed", "HTTP/1.1 200 OK", "Etag", "Gate", []string{readsCheck}},
		"a repeat that is applied":    {"mixed", `"replayed":true`, `"replayed":true`, `"replayed":null`, []string{answersCheck, sumsCheck}},
		"a result of another version": {"mixed", `"rpc":{"data":{"id":`, `"version":`, `"versiom":`, []string{answersCheck}},
		"an event of another amount":  {"mixed", `"pub":{"data":{"operation":`, `"amount":9`, `"amount":8`, []string{answersCheck, sumsCheck, placeCheck}},
		"an event of another user":    {"mixed", `"pub":{"data":{"operation":`, `"user":"user-`, `"user":"uzer-`, []string{answersCheck, placeCheck}},
		"a snapshot of other rewards": {"mixed", `{"resources":[{"key":"rewards`, `"to":"user`, `"to":"uzer`, []string{sumsCheck}},
		"snapshots of other versions": {"state", `{"resources":[{"key":"`, `"version":`, `"versiom":`, []string{viewsCheck, snapCheck}},
		"a conflict of another kind":  {"state", `"code":"version_conflict"`, `_conflict`, `_comflict`, []string{answersCheck}},
		"a conflict on nothing":       {"state", `"code":"exists"`, `"current"`, `"currend"`, []string{answersCheck}},
		"an event for one client":     {"state", `"pub":{"data":{"operation":`, `"version":`, `"versiom":`, []string{answersCheck, viewsCheck, placeCheck}},
	} {
		seed++ // rooms of one server have the names of a seed
		n := seed
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := small(startRelay(t, addr, lie(test.in, test.old, test.with, strings.HasPrefix(name, "snapshots"))))
			o.Scenario, o.share, o.Conns, o.Rooms, o.Seed = test.scenario, 25, 20, 2, n
			o.Databases = []string{defaultDatabase}
			r, table := runTest(t, context.Background(), o)
			failed := 0
			for _, c := range r.Checks {
				if c.Result != report.Failed {
					continue
				}
				failed++
				if !slices.Contains(test.failed, c.Name) {
					t.Errorf("%s failed too: %s", c.Name, c.Detail)
				}
			}
			if failed == 0 {
				t.Errorf("nothing failed:\n%s", table)
			}
		})
	}
}

// TestCheckOperations: each way in which a file can differ from what was answered is
// found and named.
func TestCheckOperations(t *testing.T) {
	t.Parallel()
	o := ownServer(t)
	o.Scenario, o.Conns, o.Rooms, o.share = "state", 20, 2, 4
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
	applied := len(want[0].operations.Applied)
	for name, test := range map[string]struct{ statement, says string }{
		"nothing":                {"SELECT 1", ""},
		"a resource":             {"UPDATE resources SET value = CAST('7' AS BLOB) WHERE key = 'k0'", "stored resources: k0 version"},
		"a version":              {"UPDATE resources SET version = version + 1 WHERE key = 'k1'", "stored resources: k1 version"},
		"a resource more":        {"INSERT INTO resources SELECT room_id, 'x', 1, CAST('7' AS BLOB) FROM resources LIMIT 1", "x version 1 7 should not be there"},
		"a resource is missing":  {"DELETE FROM resources WHERE key = 'k0'", "is missing"},
		"a record of an id":      {"DELETE FROM idempotency WHERE offset = 3", "the record of id"},
		"a record more":          {"INSERT INTO idempotency SELECT room_id, 'nobody', id, hash, offset, epoch, time, result FROM idempotency WHERE offset = 3", "1 ids are recorded that were not answered"},
		"another caller's":       {"UPDATE idempotency SET caller = 'nobody' WHERE offset = 3", "the record of id"},
		"an event":               {"DELETE FROM events WHERE offset = 3", "the event at offset 3 is missing"},
		"the last event":         {fmt.Sprintf("DELETE FROM events WHERE offset = %d", applied), fmt.Sprintf("events from offset %d on are missing", applied)},
		"the last write":         {"UPDATE rooms SET top = top - 1", fmt.Sprintf("%d operations were committed, %d answered as applied", applied-1, applied)},
		"a write more":           {"UPDATE rooms SET top = top + 1", fmt.Sprintf("%d operations were committed, %d answered as applied", applied+1, applied)},
		"another operation's id": {"UPDATE events SET data = CAST(json_set(data, '$.operation', 'x') AS BLOB) WHERE offset = 3", "is that of operation x"},
		"another user":           {"UPDATE events SET user = 'nobody' WHERE offset = 3", "is said to be of user"},
		"other changes":          {"UPDATE events SET data = CAST(json_set(data, '$.changes', json('[]')) AS BLOB) WHERE offset = 3", "has changes []"},
		"other data":             {"UPDATE events SET data = CAST(json_set(data, '$.data', 'x') AS BLOB) WHERE offset = 3", "has data"},
		"pruned too early":       {"UPDATE rooms SET first = 4", "history begins at 4"},
		"the room":               {"DELETE FROM resources; DELETE FROM idempotency; DELETE FROM events; DELETE FROM rooms", "the room is not stored"},
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
			t.Fatal(err)
		}
		execute(t, dir, defaultDatabase, test.statement)
		_, events, compared, err := checkDatabase(context.Background(), filepath.Join(dir, defaultDatabase+".db"), defaultDatabase, want, retention)
		if got := strings.Join(events, "; "); err != nil || (got == "") != (test.says == "") || !strings.Contains(got, test.says) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, test.says)
		}
		if test.says == "" && compared != uint64(applied) {
			t.Errorf("%d events compared, want %d", compared, applied)
		}
	}
}

// TestOperated: the events of operations are counted by their offsets, and each
// belongs to its room.
func TestOperated(t *testing.T) {
	for name, test := range map[string]struct {
		ops  string // offset of each event; x3 is one of another room, y3 of another database
		want report.Faults
	}{
		"in order":         {"1 2 3", report.Faults{}},
		"one is missing":   {"1 3", report.Faults{Lost: 1}},
		"the last is":      {"1 2", report.Faults{Lost: 1}},
		"one comes late":   {"1 3 2", report.Faults{OutOfOrder: 1}},
		"one comes twice":  {"1 2 2 3", report.Faults{Duplicate: 1}},
		"another room's":   {"1 2 x3", report.Faults{Lost: 1, CrossRoom: 1}},
		"another database": {"1 2 y3", report.Faults{Lost: 1, CrossDatabase: 1}},
	} {
		s := &swarm{options: swarmOptions{codec: jsonCodec{}}}
		sh := newShard(s)
		s.shards = []*shard{sh}
		for i, db := range []string{"a", "a", "b"} {
			s.rooms = append(s.rooms, &room{number: i, name: "r", db: db, ledger: newLedger(i)})
		}
		c := &conn{shard: sh, room: s.rooms[0], was: true, next: 1}
		sh.conns = []*conn{c}
		c.room.ledger.top = 3
		for text := range strings.FieldsSeq(test.ops) {
			number := strings.IndexByte("0xy", text[0]) // of the room
			offset := uint64(text[len(text)-1] - '0')
			data := fmt.Sprintf(`{"operation":"%d-%d","changes":[{"key":"k","version":%d,"value":%d}]}`, max(0, number), offset, offset, offset)
			c.operated([]byte("r"), &publication{data: []byte(data), offset: offset})
		}
		if got := sh.faults(); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// TestReadAnswers: what a read may be answered with depends on what was answered
// before it.
func TestReadAnswers(t *testing.T) {
	op := &model.Operation{ID: "7-3", User: "user-5"}
	answer := func(body string, version int) *fleet.Answer {
		return &fleet.Answer{Status: 200, ETag: fmt.Appendf(nil, `"%d"`, version), Body: []byte(body)}
	}
	for name, test := range map[string]struct {
		wrong string
		right bool
	}{
		"stock":             {wrongStock(answer(`{"key":"stock","version":5,"value":{"amount":99995}}`, 5), 5, 10), true},
		"newer stock":       {wrongStock(answer(`{"value":{"amount":99990},"version":10,"key":"stock"}`, 10), 5, 10), true},
		"older stock":       {wrongStock(answer(`{"key":"stock","version":5,"value":{"amount":99995}}`, 5), 6, 10), false},
		"too new":           {wrongStock(answer(`{"key":"stock","version":11,"value":{"amount":99989}}`, 11), 6, 10), false},
		"another amount":    {wrongStock(answer(`{"key":"stock","version":5,"value":{"amount":99994}}`, 5), 5, 10), false},
		"another key":       {wrongStock(answer(`{"key":"stick","version":5,"value":{"amount":99995}}`, 5), 5, 10), false},
		"another ETag":      {wrongStock(answer(`{"key":"stock","version":5,"value":{"amount":99995}}`, 6), 5, 10), false},
		"no JSON":           {wrongStock(answer(`no`, 0), 0, 10), false},
		"refused":           {wrongStock(&fleet.Answer{Status: 429}, 0, 10), false},
		"reward":            {wrongReward(answer(`{"key":"rewards/7-3","version":1,"value":{"to":"user-5"}}`, 1), op), true},
		"another's reward":  {wrongReward(answer(`{"key":"rewards/7-3","version":1,"value":{"to":"user-6"}}`, 1), op), false},
		"reward, version 2": {wrongReward(answer(`{"key":"rewards/7-3","version":2,"value":{"to":"user-5"}}`, 2), op), false},
	} {
		if (test.wrong == "") != test.right {
			t.Errorf("%s: %q", name, test.wrong)
		}
	}
}

// TestHTTPBody: an answer whose status or type belies its body is none.
func TestHTTPBody(t *testing.T) {
	const result, refusal = `{"id":"a","offset":3}`, `{"status":409,"code":"exists"}`
	for _, test := range []struct {
		status        int
		kind, body    string
		right, refuse bool
	}{
		{200, "application/json", result, true, false},
		{409, "application/problem+json", refusal, true, true},
		{500, "application/json", result, false, true},
		{200, "application/problem+json", refusal, false, true},
		{409, "application/json", refusal, false, true},
		{200, "text/html", result, false, true},
		{404, "application/problem+json", refusal, false, true},
	} {
		body := httpBody(&fleet.Answer{Status: test.status, ContentType: []byte(test.kind), Body: []byte(test.body)})
		e := entry{body: body}
		e.decode()
		if (string(body) == test.body) != test.right || (e.Refusal != nil) != test.refuse || !json.Valid(body) {
			t.Errorf("%+v: %s", test, body)
		}
	}
}
