package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/centrifugal/centrifuge-go"
)

const testKey = "a-key-that-only-the-test-knows"

// publishTo runs `hub publish` against a handler.
func publishTo(t *testing.T, h http.HandlerFunc, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	var out, errs bytes.Buffer
	args = append([]string{"publish", "-url", s.URL, "-key", testKey}, args...)
	code = run(context.Background(), args, strings.NewReader(`{"from":"stdin"}`), &out, &errs)
	return code, out.String(), errs.String()
}

func TestPublishRequest(t *testing.T) {
	for _, c := range []struct {
		name       string
		args       []string
		path, body string
	}{
		{"data", []string{"chat:a", `"x"`}, "/api/publish", `{"channel":"chat:a","data":"x"}`},
		{"standard input", []string{"chat:a", "-"}, "/api/publish", `{"channel":"chat:a","data":{"from":"stdin"}}`},
		{"database", []string{"-db", "game1", "a", "1"}, "/v1/game1/api/publish", `{"channel":"a","data":1}`},
		{"id", []string{"-id", "i1", "a", "1"}, "/api/publish", `{"channel":"a","data":1,"idempotency_key":"i1"}`},
		{"negative number", []string{"a", "--", "-1"}, "/api/publish", `{"channel":"a","data":-1}`},
	} {
		var path, key, body string
		code, stdout, stderr := publishTo(t, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			path, key, body = r.URL.Path, r.Header.Get("X-API-Key"), string(b)
			_, _ = io.WriteString(w, `{"result":{"offset":7,"epoch":"e.1"}}`)
		}, c.args...)
		if code != exitOK || stdout != "7:e.1\n" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want the position", c.name, code, stdout, stderr)
		}
		if path != c.path || body != c.body || key != testKey {
			t.Errorf("%s: got %s %s with key %q, want %s %s", c.name, path, body, key, c.path, c.body)
		}
	}
}

func TestPublishFailures(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		want   string
	}{
		{"error in the reply", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"error":{"code":102,"message":"unknown channel"}}`)
		}, "unknown channel (error 102)"},
		{"problem", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"title":"Too many requests","detail":"try later","code":"limited"}`)
		}, "try later"},
		{"not found", http.NotFound, "404"},
		{"not JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, "read answer"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				_, _ = io.WriteString(w, `{"result":{}}`)
				return
			}
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, "307"},
	} {
		code, stdout, stderr := publishTo(t, c.answer, "a", "1")
		if code != exitFailed || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want exit 1 and %q", c.name, code, stdout, stderr, c.want)
		}
		if strings.Contains(stderr, testKey) {
			t.Errorf("%s: the key is printed", c.name)
		}
	}
}

func TestTailPrint(t *testing.T) {
	publication := centrifuge.Publication{Offset: 3, Data: []byte(`{"a":"<b>"}`), Info: &centrifuge.ClientInfo{User: "u1"}}
	for _, c := range []struct {
		name string
		json bool
		p    centrifuge.Publication
		want string
	}{
		{"text", false, publication, "chat:a 3 u1 {\"a\":\"<b>\"}\n"},
		{"json", true, publication, `{"room":"chat:a","offset":3,"epoch":"e1","user":"u1","data":{"a":"<b>"}}` + "\n"},
		{"text, ephemeral, from a server", false, centrifuge.Publication{Data: []byte(`1`)}, "chat:a - - 1\n"},
	} {
		var out bytes.Buffer
		tl := &tail{out: &out, status: io.Discard, json: c.json, epochs: map[string]string{"chat:a": "e1"}, end: make(chan error, 1)}
		tl.print("chat:a", c.p)
		if out.String() != c.want {
			t.Errorf("%s: got %q, want %q", c.name, out.String(), c.want)
		}
	}
}

// TestTailEnds: after -n publications, or when nobody reads them, nothing more
// is printed and the first outcome counts.
func TestTailEnds(t *testing.T) {
	var out bytes.Buffer
	tl := &tail{out: &out, status: io.Discard, left: 2, epochs: map[string]string{}, end: make(chan error, 1)}
	for range 5 {
		tl.print("a", centrifuge.Publication{Data: []byte(`1`)})
	}
	tl.finish(errors.New("too late"))
	if err := <-tl.end; err != nil || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("printed %q, outcome %v; want two lines and none", out.String(), err)
	}
	r, w := io.Pipe()
	_ = r.Close()
	tl = &tail{out: w, status: io.Discard, epochs: map[string]string{}, end: make(chan error, 1)}
	tl.print("a", centrifuge.Publication{Data: []byte(`1`)})
	if err := <-tl.end; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("closed output: outcome %v, want %v", err, io.ErrClosedPipe)
	}
}

// TestStartAt: a position that cannot be continued ends the tail with an error
// instead of a gap.
func TestStartAt(t *testing.T) {
	tl := &tail{status: io.Discard, end: make(chan error, 1)}
	ask := tl.startAt(centrifuge.StreamPosition{Offset: 4, Epoch: "e"})
	if p, err := ask(centrifuge.SubscriptionGetStateEvent{Channel: "a"}); err != nil || p.Offset != 4 || p.Epoch != "e" {
		t.Errorf("first: got %v, %v", p, err)
	}
	if _, err := ask(centrifuge.SubscriptionGetStateEvent{Channel: "a"}); err == nil {
		t.Error("second: no error")
	}
	if err := <-tl.end; err == nil {
		t.Error("the tail ended well")
	}
}
