package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

func TestFiles(t *testing.T) {
	serve, err := Files(fstest.MapFS{
		"index.html":   {Data: []byte("<!doctype html>")},
		"parts/app.js": {Data: []byte("export {};")},
	}, "/console/", nil)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, match string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		if match != "" {
			r.Header.Set("If-None-Match", match)
		}
		w := httptest.NewRecorder()
		serve(w, r)
		return w
	}
	page := get("/console/", "")
	if page.Code != http.StatusOK || page.Body.String() != "<!doctype html>" {
		t.Errorf("the index is answered %d %q", page.Code, page.Body)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer",
	} {
		if got := page.Header().Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	policy := page.Header().Get("Content-Security-Policy")
	if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %q", policy)
	}
	if script := get("/console/parts/app.js", ""); script.Header().Get("Content-Type") != "text/javascript; charset=utf-8" {
		t.Errorf("a script is %q", script.Header().Get("Content-Type"))
	}
	if again := get("/console/", page.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
		t.Errorf("an unchanged file is answered %d with %d bytes", again.Code, again.Body.Len())
	}
	for _, path := range []string{"/console/nothing", "/console/parts", "/elsewhere", "/console/../index.html"} {
		if w := get(path, ""); w.Code != http.StatusNotFound {
			t.Errorf("%s is answered %d", path, w.Code)
		}
	}
}

func TestFilesOfUnknownKinds(t *testing.T) {
	if _, err := Files(fstest.MapFS{"notes.txt~": {}}, "/", nil); err == nil {
		t.Error("a file whose type is unknown was taken")
	}
}

func TestClient(t *testing.T) {
	w := httptest.NewRecorder()
	Client()(w, httptest.NewRequest(http.MethodGet, "/hub.js", nil))
	h := w.Header()
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "export class Hub") || h.Get("Content-Type") != "text/javascript; charset=utf-8" ||
		h.Get("Access-Control-Allow-Origin") != "*" || h.Get("ETag") == "" {
		t.Errorf("%d %v %.80s", w.Code, h, w.Body)
	}
}
