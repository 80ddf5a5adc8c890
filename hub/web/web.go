// Package web holds the pages and scripts that the server serves to browsers, as
// they lie in its folders: there is no build step.
package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed hubjs/hub.js
var hubJS []byte

//go:embed console
var console embed.FS

// Policy is the Content-Security-Policy of every page: its own scripts, styles and
// pictures, nothing inline and nothing from elsewhere. connect lists further sources
// to which a page may open connections, separated by spaces.
func Policy(connect string) string {
	return strings.TrimSpace("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self' " + connect)
}

// file is an embedded file as it is served.
type file struct {
	body        []byte
	contentType string
	etag        string
}

// Files serves the files of a folder by the rest of the path after prefix; a path
// that ends with a slash means index.html there. Browsers ask each time whether a
// file has changed (the ETag is a hash of it), so a new version of the server is
// seen at once. policy answers the Content-Security-Policy of a request; nil is
// that of [Policy] with no further source.
func Files(folder fs.FS, prefix string, policy func(*http.Request) string) (http.HandlerFunc, error) {
	files, err := load(folder)
	if err != nil {
		return nil, err
	}
	own := Policy("")
	return func(w http.ResponseWriter, r *http.Request) {
		name, ok := strings.CutPrefix(r.URL.Path, prefix)
		if name == "" || strings.HasSuffix(name, "/") {
			name += "index.html"
		}
		f, found := files[name]
		if !ok || !found {
			http.NotFound(w, r)
			return
		}
		allowed := own
		if policy != nil {
			allowed = policy(r)
		}
		w.Header().Set("Content-Security-Policy", allowed)
		f.serve(w, r)
	}, nil
}

// Console serves the page for operators below /console/. Its inspector opens sockets to
// the clients' listener, whose port and scheme the page learns later.
func Console() http.HandlerFunc { return embedded(console, "console", Policy("ws: wss:")) }

// embedded serves the files of an embedded folder below a path of its name.
func embedded(files fs.FS, name, policy string) http.HandlerFunc {
	folder, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // of a name in this package
	}
	serve, err := Files(folder, "/"+name+"/", func(*http.Request) string { return policy })
	if err != nil {
		panic(err) // of files in this package, which a test serves
	}
	return serve
}

func newFile(name string, body []byte) (file, error) {
	contentType, err := typeOf(name)
	sum := sha256.Sum256(body)
	return file{body: body, contentType: contentType, etag: `"` + hex.EncodeToString(sum[:12]) + `"`}, err
}

// serve answers with the file, or with 304 to who has it.
func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.etag)
	if r.Header.Get("If-None-Match") == f.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.contentType)
	_, _ = w.Write(f.body) // a client that has gone needs no answer
}

// Client serves hub.js, the client for browsers, to pages of every origin.
func Client() http.HandlerFunc {
	client, _ := newFile("hub.js", hubJS) // whose kind is known
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		client.serve(w, r)
	}
}

func load(folder fs.FS) (map[string]file, error) {
	files := make(map[string]file)
	err := fs.WalkDir(folder, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(folder, name)
		if err != nil {
			return err
		}
		files[name], err = newFile(name, body)
		return err
	})
	return files, err
}

// typeOf does not ask the machine, whose tables differ.
func typeOf(name string) (string, error) {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8", nil
	case ".js":
		return "text/javascript; charset=utf-8", nil
	case ".css":
		return "text/css; charset=utf-8", nil
	case ".svg":
		return "image/svg+xml", nil
	case ".png", ".webp":
		return mime.TypeByExtension(path.Ext(name)), nil // known to package mime itself
	}
	return "", fmt.Errorf("%s: files of this kind are not served", name)
}
