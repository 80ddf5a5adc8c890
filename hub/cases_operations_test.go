package hub

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"hub/hub/wire"
)

// Case G46: a handler that panics costs its request alone: 500 without details,
// one line with the stack, one in the metric; the connection goes on.
func TestPanicInAHandler(t *testing.T) {
	lines := new(countingLog)
	s := startServer(t, testOptions(t), func(s *Server) { s.log = slog.New(slog.NewTextHandler(lines, nil)) })
	mux := http.NewServeMux()
	const secret = "what the caller must not see"
	mux.HandleFunc("GET /panics", func(http.ResponseWriter, *http.Request) {
		var claims *struct{ User string }
		if claims.User == secret {
			return
		}
	})
	mux.HandleFunc("GET /lets", func(http.ResponseWriter, *http.Request) { panic(secret) })
	mux.HandleFunc("GET /fine", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") })
	front := httptest.NewServer(s.observed(mux))
	defer front.Close()
	get := func(path string) (int, string, string) {
		t.Helper()
		res, err := front.Client().Get(front.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, res.Header.Get("Content-Type"), string(body)
	}
	for i, path := range []string{"/panics", "/lets"} {
		status, kind, body := get(path)
		var p problem
		if err := json.Unmarshal([]byte(body), &p); err != nil || status != 500 || kind != "application/problem+json" || p.Code != "internal" {
			t.Errorf("%s: status %d, %s %s, want a problem internal", path, status, kind, body)
		}
		for _, detail := range []string{secret, "nil pointer", "goroutine", ".go:"} {
			if strings.Contains(body, detail) {
				t.Errorf("%s: %q is told: %s", path, detail, body)
			}
		}
		if n := s.metric(t, "hub_panics_total", ""); n != float64(i+1) {
			t.Errorf("%s: %v panics are counted, want %d", path, n, i+1)
		}
		if n := lines.count("cases_operations_test.go"); n != i+1 || lines.count("msg=panic") != n {
			t.Errorf("%s: %d lines with a stack, want %d", path, n, i+1)
		}
	}
	if status, _, body := get("/fine"); status != 200 || body != "fine" {
		t.Errorf("afterwards: status %d %s", status, body)
	}
}

// names that would be paths if anybody joined them to one.
func pathLike() []string {
	return []string{"..%2F..%2Fetc", "%2e%2e", "%2e%2e%2f%2e%2e%2fx", "a%2Fb", "..%5C..%5Cx", "x%00", "default.db", "default%3Fmode%3Dmemory", "_hub", ".."}
}

// Case G47: no name of a database or room, by whichever way it comes, makes or
// opens a file, or opens another database than the configured ones.
func TestNamesAreNoPaths(t *testing.T) {
	o := testOptions(t)
	parent := t.TempDir()
	o.Server.DataDir = filepath.Join(parent, "far", "below")
	if err := os.MkdirAll(o.Server.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, o, nil)
	c := s.connect(t, wire.JSON, "u")
	c.ok(publishTo("open:a", `1`))
	before := filesBelow(t, parent)
	for _, name := range pathLike() {
		for _, request := range []string{
			"POST /v1/" + name + "/api/publish", "POST /v1/" + name + "/api/info", "GET /v1/" + name + "/websocket",
			"GET /v1/" + name + "/rooms/open:a/history", "POST /v1/" + name + "/rooms/open:a/publish",
			"GET /v1/" + name + "/rooms/open:a/snapshot",
		} {
			if status := s.rawRequest(t, request); status < 400 || status >= 500 {
				t.Errorf("%s: status %d, want a refusal", request, status)
			}
		}
		if status := s.attemptAt(t, false, "/v1/"+name+"/websocket"); status != 404 && status != 400 {
			t.Errorf("upgrade to database %s: status %d, want 404", name, status)
		}
		// A room may have such a name: it is a name, not a path.
		s.rawRequest(t, "POST /v1/default/rooms/open:"+name+"/publish")
		s.rawRequest(t, "GET /v1/default/rooms/"+name+"/resources/"+name)
	}
	for _, room := range []string{"open:../../etc/x", "open:..", "open:a/b", "open:/etc/passwd", `open:..\..\x`, "open:%2e%2e%2fx"} {
		c.ok(publishTo(room, `"in `+fmt.Sprint(len(room))+`"`))
		if h := c.ok(historyOf(room, -1)).History.Publications; len(h) != 1 || string(h[0].Data) != `"in `+fmt.Sprint(len(room))+`"` {
			t.Errorf("room %s holds %v, want its own publication", room, h)
		}
		s.result(t, "publish", must(jsonText(map[string]any{"channel": room, "data": 2})))
	}
	if after := filesBelow(t, parent); !slices.Equal(before, after) {
		t.Errorf("files before: %v\nand after: %v", before, after)
	}
}

func jsonText(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// rawRequest sends a request line as it is, with both kinds of key, and returns
// the status.
func (s *testServer) rawRequest(t *testing.T, line string) int {
	t.Helper()
	const body = `{"channel":"open:a","data":1}`
	c := &wsClient{conn: s.dial(t)}
	r, err := c.exchange(fmt.Sprintf("%s HTTP/1.1\r\nHost: hub.test\r\nConnection: close\r\nX-API-Key: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		line, testAPIKey, token(t, "u"), len(body), body))
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return r.StatusCode
}

// filesBelow lists what is in a directory, at any depth. Those of SQLite come and
// go with its connections, so they are left out beside a database of ours.
func filesBelow(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if !strings.HasSuffix(path, "default.db-wal") && !strings.HasSuffix(path, "default.db-shm") {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Case G48: a configured key is compared by auth.KeyEqual, which takes as long
// for every wrong one, and by nothing else.
func TestKeysAreComparedInConstantTime(t *testing.T) {
	set := gotoken.NewFileSet()
	compared, checked := 0, 0
	for _, dir := range []string{".", "../auth"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(set, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BinaryExpr:
					if n.Op != gotoken.EQL && n.Op != gotoken.NEQ || !isKey(n.X) && !isKey(n.Y) {
						return true
					}
					checked++
					if !isEmptyString(n.X) && !isEmptyString(n.Y) {
						t.Errorf("%s: a key is compared with %s", set.Position(n.Pos()), n.Op)
					}
				case *ast.SelectorExpr:
					if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "auth" && n.Sel.Name == "KeyEqual" ||
						ok && pkg.Name == "subtle" && n.Sel.Name == "ConstantTimeCompare" {
						compared++
					}
				}
				return true
			})
		}
	}
	if compared < 3 || checked == 0 {
		t.Errorf("%d comparisons of keys and %d with nothing were found: the check cannot fail", compared, checked)
	}
}

// isKey says whether an expression is the key of the server API or the admin
// listener, or what a caller presents as such: a parameter of auth.KeyEqual.
func isKey(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name == "Key"
	case *ast.Ident:
		return e.Name == "want" || e.Name == "got"
	}
	return false
}

func isEmptyString(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == gotoken.STRING && lit.Value == `""`
}

// Case G27: the size of the write-ahead log is a metric of each database.
func TestWALIsAMetric(t *testing.T) {
	o := testOptions(t)
	o.Database.Names = []string{"default", "other"}
	s := startServer(t, o, nil)
	for _, db := range o.Database.Names {
		s.apiAt(t, "/v1/"+db+"/api/publish", `{"channel":"open:a","data":"`+strings.Repeat("x", 20_000)+`"}`)
		if n := s.metric(t, "hub_wal_bytes", db); n < 20_000 {
			t.Errorf("database %s: %v bytes after a publication of 20,000", db, n)
		}
	}
}

// fullDisk is where a log cannot be written.
type fullDisk struct{ lines atomic.Int64 }

func (d *fullDisk) Write([]byte) (int, error) {
	d.lines.Add(1)
	return 0, syscall.ENOSPC
}

// Case G30: a log that cannot be written takes nobody down.
func TestLogOnAFullDisk(t *testing.T) {
	disk := new(fullDisk)
	s := startServer(t, testOptions(t), func(s *Server) {
		s.log = slog.New(slog.NewJSONHandler(disk, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	c := s.connect(t, wire.JSON, "u")
	c.fails(errPermissionDenied.Code, subscribeTo("closed")) // which is logged
	c.ok(publishTo("open:a", `1`))
	s.stop()
	if disk.lines.Load() == 0 {
		t.Error("nothing was logged: the test is void")
	}
}
