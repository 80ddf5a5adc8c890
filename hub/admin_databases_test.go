package hub

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hub/hub/wire"
	"hub/store"
)

// path is the file of a database of s.
func (s *testServer) path(name string) string { return databasePath(s.opts.Server.DataDir, name) }

// inOther connects a user to the database other.
func (s *testServer) inOther(t testing.TB, user string) *tester {
	t.Helper()
	conn, err := upgrade(s.dial(t), wire.JSON, "/v1/other/websocket")
	if err != nil {
		t.Fatal(err)
	}
	c := &tester{conn, t}
	c.ok(connectWith(token(t, user)))
	return c
}

// A database is served from the moment in which its creation was answered, by itself,
// and at the next start.
func TestCreateDatabase(t *testing.T) {
	o := adminOptions(t)
	s := startServer(t, o, nil)
	if _, err := upgrade(s.dial(t), wire.JSON, "/v1/other/websocket"); err == nil {
		t.Fatal("it is there already")
	}
	row := s.asks(t, 201, "POST", "databases", `{"name":"other"}`)
	if row["name"] != "other" || row["configured"] != false || row["connections"] != 0. {
		t.Errorf("created: %v", row)
	}
	c, elsewhere := s.inOther(t, "ann"), s.connect(t, wire.JSON, "ann")
	c.ok(subscribeTo("open:a"))
	elsewhere.ok(subscribeTo("open:a"))
	if status, answer := s.post(t, "/v1/other/api/publish", testAPIKey, `{"channel":"open:a","data":1}`); status != 200 || answer["error"] != nil {
		t.Fatal(status, answer)
	}
	c.publication()
	for _, where := range []string{"overview", "databases"} {
		if rows := s.asks(t, 200, "GET", where, "")["databases"].([]any); len(rows) != 2 || rows[1].(object)["name"] != "other" ||
			rows[1].(object)["connections"] != 1. || rows[0].(object)["publications"] != 0. {
			t.Errorf("%s: %v", where, rows)
		}
	}
	if _, _, text := ask(t, s.AdminAddr(), "/metrics", map[string]string{"Authorization": "Bearer " + testAdminKey}); !strings.Contains(text, `hub_connections{database="other"} 1`) {
		t.Error("it is not in the metrics")
	}
	s.asks(t, 409, "POST", "databases", `{"name":"other"}`)
	s = s.restart(t, o)
	c = s.inOther(t, "ann")
	if r := c.ok(subscribeTo("open:a")).Subscribe; r.Offset != 1 {
		t.Errorf("after the restart the room is at %d, want 1", r.Offset)
	}
	o.Database.Names = []string{"default", "other"} // which is no contradiction
	s = s.restart(t, o)
	if rows := s.asks(t, 200, "GET", "databases", "")["databases"].([]any); len(rows) != 2 || rows[1].(object)["configured"] != true {
		t.Errorf("databases %v", rows)
	}
}

// Of many who create a database at once one does, and those who use the server
// meanwhile do not notice.
func TestCreateDatabasesAtOnce(t *testing.T) {
	s := adminServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	var users sync.WaitGroup
	for range 2 {
		users.Go(func() {
			for ctx.Err() == nil {
				s.connect(t, wire.JSON, "ann").conn.Close()
				s.overview()
			}
		})
	}
	var created atomic.Int32
	var creators sync.WaitGroup
	for i := range 12 {
		creators.Go(func() {
			switch err := s.createDatabase(ctx, fmt.Sprint("db", i%4)); {
			case err == nil:
				created.Add(1)
			case !errors.Is(err, errDatabaseExists):
				t.Error(err)
			}
		})
	}
	creators.Wait()
	cancel()
	users.Wait()
	if n, names := created.Load(), s.databases.sorted(); n != 4 || len(names) != 5 {
		t.Errorf("%d were created, there are %q", n, names)
	}
	s.stop()
	if err := s.createDatabase(t.Context(), "late"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// What cannot become a database leaves the server as it was.
func TestCreateDatabaseRefusals(t *testing.T) {
	var log recorder
	s := startLogging(t, adminOptions(t), nil, log.log())
	foreign, err := sql.Open("sqlite", s.path("foreign"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := foreign.Exec("CREATE TABLE t (x)"); err != nil {
		t.Fatal(err)
	}
	foreign.Close()
	s.asks(t, 409, "POST", "databases", `{"name":"foreign"}`)
	if err := s.registry.Close(); err != nil {
		t.Fatal(err)
	}
	s.asks(t, 503, "POST", "databases", `{"name":"unlucky"}`)
	if names := s.databases.sorted(); len(names) != 1 {
		t.Errorf("databases %q", names)
	}
	for i := len(s.databases.all()); i < maxDatabases; i++ {
		s.databases.addLocked(&database{server: s.Server, name: fmt.Sprint("x", i)})
	}
	if err := s.createDatabase(t.Context(), "more"); !errors.Is(err, errDatabaseLimit) {
		t.Errorf("one above the limit: %v", err)
	}
	for name := range s.databases.all() {
		if strings.HasPrefix(name, "x") {
			s.databases.forget(name)
		}
	}
}

// forget takes a database of a test out of the table.
func (d *databases) forget(name string) {
	table := make(map[string]*database)
	for other, db := range d.all() {
		if other != name {
			table[other] = db
		}
	}
	d.table.Store(&table)
}

// A check tells of damage, and that there is none.
func TestAdminIntegrity(t *testing.T) {
	var log recorder
	s := startLogging(t, adminOptions(t), nil, log.log())
	for range 5 {
		s.result(t, "publish", `{"channel":"open:a","data":1}`)
	}
	if r := s.asks(t, 200, "POST", "databases/default/integrity", ""); r["ok"] != true || r["finding"] != nil || r["database"] != "default" {
		t.Errorf("sound: %v", r)
	}
	raw, err := sql.Open("sqlite", s.path("default"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Exec("PRAGMA busy_timeout=5000; DELETE FROM events WHERE offset = 3"); err != nil {
		t.Fatal(err)
	}
	raw.Close()
	if r := s.asks(t, 200, "POST", "databases/default/integrity", "{}"); r["ok"] != false || !strings.Contains(r["finding"].(string), "publications") {
		t.Errorf("damaged: %v", r)
	}
	if lines := log.lines("database is damaged"); len(lines) != 1 {
		t.Errorf("logged: %q", lines)
	}
	s.maintenance.Lock()
	for _, path := range []string{"databases/default/integrity", "databases/default/backup"} {
		if r := s.asks(t, 409, "POST", path, ""); r["code"] != "busy" {
			t.Errorf("%s while another is under way: %v", path, r)
		}
	}
	s.maintenance.Unlock()
}

// A backup made while clients write is a database that can be served, with a
// beginning of what was acknowledged and another epoch.
func TestAdminBackup(t *testing.T) {
	o := adminOptions(t)
	s := startServer(t, o, nil)
	dir := filepath.Join(o.Server.DataDir, backupDir)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	var published atomic.Int64
	for range 2 {
		writers.Go(func() {
			for ctx.Err() == nil {
				s.result(t, "publish", `{"channel":"open:a","data":1}`)
				published.Add(1)
			}
		})
	}
	until(t, "much is published", func() bool { return published.Load() > 50 })
	before := published.Load()
	leftover := filepath.Join(dir, "old.db.default.db.partial")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(leftover, []byte("x"), 0o600), os.WriteFile(leftover+"-journal", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	r := s.asks(t, 201, "POST", "databases/default/backup", `{"name":"One.1"}`)
	named := s.asks(t, 201, "POST", "databases/default/backup", ``)
	cancel()
	writers.Wait()
	path := filepath.Join(dir, "One.1.db")
	info, err := os.Stat(path)
	if err != nil || r["path"] != path || r["bytes"] != float64(info.Size()) || r["rooms"] != 1. || r["name"] != "One.1" || info.Mode().Perm() != 0o600 {
		t.Fatalf("backup %v, %v", r, err)
	}
	if name := named["name"].(string); !strings.HasPrefix(name, "default-2") || ValidBackup(name) != nil {
		t.Errorf("a backup that nobody named is called %q", name)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("files %v, %v; want the two backups", entries, err)
	}
	s.asks(t, 409, "POST", "databases/default/backup", `{"name":"One.1"}`)
	epoch := s.databases.get("default").store.Epoch()
	s.stop()

	o2 := adminOptions(t)
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(databasePath(o2.Server.DataDir, "default"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	restored := startServer(t, o2, nil)
	h := restored.result(t, "history", `{"channel":"open:a","limit":-1}`)
	n := int64(len(h["publications"].([]any)))
	if n < before || n > published.Load() || h["offset"] != float64(n) || strings.HasPrefix(h["epoch"].(string), epoch) {
		t.Errorf("restored: %d publications at %v, epoch %v; %d were acknowledged before, %d after; the original's epoch is %s", n, h["offset"], h["epoch"], before, published.Load(), epoch)
	}
}

// Who goes away, and a server that stops, end a backup, which leaves nothing behind.
func TestAdminBackupEnds(t *testing.T) {
	var log recorder
	o := adminOptions(t)
	s := startLogging(t, o, nil, log.log())
	for range 40 {
		s.result(t, "publish", `{"channel":"open:a","data":"`+strings.Repeat("x", 60<<10)+`"}`)
	}
	dir := filepath.Join(o.Server.DataDir, backupDir)
	empty := func(when string) {
		t.Helper()
		if entries, _ := os.ReadDir(dir); len(entries) != 0 {
			t.Errorf("%s: files %v", when, entries)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", "/admin/v1/databases/default/backup", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.SetPathValue("db", "default")
	w := &discarded{header: make(http.Header)}
	e := adminEndpoints["POST databases/{db}/backup"]
	s.adminHandler(&e)(w, req)
	if w.status != http.StatusServiceUnavailable {
		t.Errorf("whose caller has gone: status %d", w.status)
	}
	empty("whose caller has gone")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; !s.draining.Load() || n == 0; n++ { // the last one meets the end
			w := &discarded{header: make(http.Header)}
			r := req.WithContext(context.Background())
			r.SetPathValue("db", "default")
			s.adminHandler(&e)(w, r)
			finished, _ := filepath.Glob(filepath.Join(dir, "*.db")) // make room for the next of this second
			for _, path := range finished {
				_ = os.Remove(path)
			}
		}
	}()
	until(t, "one was made", func() bool { return len(log.lines("outcome=done")) > 0 })
	s.stop()
	<-ended
	if partial, _ := filepath.Glob(filepath.Join(dir, "*.partial*")); len(partial) != 0 {
		t.Errorf("left behind: %q", partial)
	}
}

// discarded is the response of a caller that does not look at it.
type discarded struct {
	header http.Header
	status int
}

func (w *discarded) Header() http.Header         { return w.header }
func (w *discarded) WriteHeader(status int)      { w.status = status }
func (w *discarded) Write(b []byte) (int, error) { return len(b), nil }

func (w *discarded) SetReadDeadline(time.Time) error  { return nil }
func (w *discarded) SetWriteDeadline(time.Time) error { return nil }
