package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/store"
)

// Every code that is used is in the table, and every code of the table is used.
func TestProblemCodes(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files := gotoken.NewFileSet()
	used := make(map[string]bool)
	computed := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				return n.Names[0].Name != "problems" // the table itself is no use
			case *ast.BasicLit: // problem.go words what others compute
				if code, err := strconv.Unquote(n.Value); err == nil && name == "problem.go" {
					used[code] = true
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); !ok || f.Name != "newProblem" {
					break
				}
				lit, ok := n.Args[0].(*ast.BasicLit)
				if !ok {
					computed++
					break
				}
				code, _ := strconv.Unquote(lit.Value)
				if used[code] = true; problems[code].status == 0 {
					t.Errorf("%s: %q is not in the table", files.Position(n.Pos()), code)
				}
			}
			return true
		})
	}
	// What breaks HTTP or the handshake is told by the text of its status.
	for _, status := range []int{http.StatusUpgradeRequired, http.StatusHTTPVersionNotSupported, http.StatusRequestHeaderFieldsTooLarge} {
		used[codeOfStatus(status)] = true
	}
	for code, kind := range problems {
		switch {
		case !used[code]:
			t.Errorf("%q is not used", code)
		case http.StatusText(kind.status) == "" || kind.meaning == "" || kind.remedy == "":
			t.Errorf("%q: %+v", code, kind)
		}
		p := newProblem(code, "")
		if later := slices.Contains([]int{429, 503, 504}, kind.status); later != (p.retry > 0) {
			t.Errorf("%q: retry after %v", code, p.retry)
		}
	}
	if computed != 2 {
		t.Errorf("%d problems have a code that is computed, want 2: that of a step and that of an error of the protocol", computed)
	}
	for _, k := range protocolCodes {
		if kind := problems[k.problem]; kind.rpc == nil && k.problem != "too_large" || kind.rpc != nil && kind.rpc.Code != k.code {
			t.Errorf("error %d is %q, which is error %v", k.code, k.problem, kind.rpc)
		}
	}
}

// What a socket gets: an error of the protocol, or the document as a result.
func TestProblemsOverRPC(t *testing.T) {
	want := map[string]string{
		"not_found": "", "exists": "", "id_reused": "", "not_durable": "", "version_conflict": "", "too_large": "",
		"not_integer": "", "out_of_range": "",
		"bad_request": "107 bad request: why", "unknown_room": "102 why", "permission_denied": "103 why",
		"rate_limited": "111 why, temporary", "queue_full": "111 why, temporary",
		"unavailable": "100 why, temporary", "write_timeout": "100 why, temporary", "internal": "100 why, temporary",
		"room_limit": "106 why", "not_available": "108 why", "unrecoverable": "112 why",
	}
	text := func(e *protocol.Error) string {
		if e == nil {
			return ""
		}
		return fmt.Sprintf("%d %s%s", e.Code, e.Message, map[bool]string{true: ", temporary"}[e.Temporary])
	}
	for code, want := range want {
		p := newProblem(code, "why")
		if got := text(p.protocolError()); got != want {
			t.Errorf("%s: %q, want %q", code, got, want)
		}
		if e := newProblem(code, "").protocolError(); e != problems[code].rpc {
			t.Errorf("%s without detail: %v", code, e)
		}
	}
	for code := range problems {
		if e := newProblem(code, "why").protocolError(); e == nil && want[code] != "" {
			t.Errorf("%s has no error", code)
		} else if _, listed := want[code]; e == nil && !listed {
			t.Errorf("%s would be a result", code)
		}
	}
}

func TestStoreProblems(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	step := func(r store.ConflictReason) error {
		return fmt.Errorf("wrapped: %w", &store.StepError{Reason: r, Step: 3, Current: store.Resource{Key: "k", Version: 7, Value: []byte("1")}, Detail: "why"})
	}
	for _, x := range []struct {
		err      error
		code     string
		protocol uint32 // what a publisher gets
	}{
		{store.ErrQueueFull, "queue_full", 111},
		{store.ErrWriteTimeout, "write_timeout", 100},
		{fmt.Errorf("%w: disk full", store.ErrUnavailable), "unavailable", 100},
		{store.ErrClosed, "unavailable", 100},
		{store.ErrRoomLimit, "room_limit", 106},
		{store.ErrIDReused, "id_reused", 107},
		{fmt.Errorf("%w: much", store.ErrTooLarge), "too_large", 0},
		{step(store.VersionConflict), "version_conflict", 0},
		{step(store.Exists), "exists", 0},
		{step(store.Missing), "not_found", 0},
		{step(store.OutOfRange), "out_of_range", 0},
		{step(store.NotInteger), "not_integer", 0},
		{step(store.Invalid), "bad_request", 0},
	} {
		p := s.storeProblem(x.err)
		if p.Code != x.code {
			t.Errorf("%v: %+v, want %s", x.err, p, x.code)
		}
		if e := s.storeError(x.err); x.protocol != 0 && (e == nil || e.Code != x.protocol) {
			t.Errorf("%v: a publisher gets %v, want %d", x.err, e, x.protocol)
		}
		var refusal *store.StepError
		if errors.As(x.err, &refusal) {
			b, err := encodeJSON(p)
			if want := `"detail":"steps/3: why","step":3,"current":{"key":"k","version":7,"value":1}}`; err != nil || !strings.HasSuffix(string(b), want) {
				t.Errorf("%v: %s, %v, want ...%s", x.err, b, err, want)
			}
		}
	}
	if s.storeProblem(nil) != nil || s.storeError(nil) != nil || protocolProblem(nil) != nil {
		t.Error("no error is a problem")
	}
}

// Values stay as they are, in results and problems.
func TestEncodeJSONKeepsValues(t *testing.T) {
	value := json.RawMessage(`{"a":"<&>\u2028é","b":[1.0,1e400,12345678901234567890]}`)
	b, err := encodeJSON(resource{Key: "<k>", Version: 1, Value: value})
	if want := `{"key":"<k>","version":1,"value":` + string(value) + `}`; err != nil || string(b) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
}
