package hub

import (
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"hub/hub/web"
	"hub/hub/wire"
)

// routes are the paths of the clients' listener and who serves them.
func (s *Server) routes() map[string]http.HandlerFunc {
	routes := map[string]http.HandlerFunc{
		"GET /healthz":             s.healthz,
		"GET /readyz":              s.readyz,
		"GET /v1/openapi.json":     serveOpenAPI,
		"GET /hub.js":              web.Client(),
		"GET " + defaultSocketPath: s.serveSocket,
		"GET /v1/{db}/websocket":   s.serveSocket,

		"POST /api/{method}":         s.serveAPI,
		"POST /v1/{db}/api/{method}": s.serveAPI,
	}
	for pattern, e := range endpoints {
		method, path, _ := strings.Cut(pattern, " ")
		path = " /v1/{db}/rooms/{room}/" + path
		routes[method+path] = s.restHandler(&e)
		routes["OPTIONS"+path] = s.servePreflight
	}
	return routes
}

// clientHandler serves the clients' listener.
func (s *Server) clientHandler() http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range s.routes() {
		mux.HandleFunc(pattern, handler)
	}
	return s.observed(mux)
}

// healthz says that the process lives.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readyz says whether the server may be sent clients: it serves, does not
// drain, and every database can write.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	var why []string
	if !s.serving.Load() {
		why = append(why, "starting")
	}
	if s.draining.Load() {
		why = append(why, "draining")
	}
	for name, db := range s.databases.all() {
		if err := db.store.Ready(); err != nil {
			why = append(why, "database "+name+" cannot write")
			s.log.Warn("database cannot write", slog.String("database", name), slog.Any("error", err))
		}
	}
	if len(why) > 0 {
		writeProblem(w, newProblem("not_ready", strings.Join(why, ", ")))
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// observed counts requests by route.
func (s *Server) observed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		status := s.contained(mux, s.guardDevelopment(r), w, r)
		s.metrics.request(r.Pattern, status, time.Since(start))
	})
}

// contained serves a request, or refuses it with p, and returns the status. A panic
// is kept to it, and what the mux says by itself becomes a problem document.
func (s *Server) contained(mux *http.ServeMux, p *problem, w http.ResponseWriter, r *http.Request) (status int) {
	ow := &observedWriter{ResponseWriter: w, request: r, status: http.StatusOK}
	defer func() {
		if p := recover(); p != nil {
			s.panicked(p)
			if !ow.wrote {
				writeProblem(ow, newProblem("internal", ""))
			}
		}
		status = ow.status
	}()
	switch {
	case p != nil:
		writeProblem(ow, p)
	case !canonical(r.URL.EscapedPath()):
		writeProblem(ow, newProblem("not_found", "a path has no empty, . or .. segments: write / inside a name as %2F"))
	default:
		ow.byMux = true
		mux.ServeHTTP(ow, r)
	}
	return
}

// guardDevelopment keeps a development server, whose rules are open, from being
// reached through a proxy or a name that somebody pointed at this machine.
func (s *Server) guardDevelopment(r *http.Request) *problem {
	if !s.opts.Development {
		return nil
	}
	for name := range r.Header {
		if name == "Forwarded" || strings.HasPrefix(name, "X-Forwarded-") {
			return newProblem("development",
				"a development server is not for use behind a proxy: it needs a configuration (hub init)")
		}
	}
	if !ownHost(r.Host, s.opts.Server.Listen) {
		return newProblem("development", "a development server answers to 127.0.0.1 and localhost only")
	}
	return nil
}

// canonical says whether a path is as a mux wants it, a slash at its end aside. It
// would redirect another, and on the way decode what is escaped in it.
func canonical(p string) bool {
	return strings.TrimSuffix(p, "/") == strings.TrimSuffix(path.Clean(p), "/")
}

// observedWriter remembers the status of a response. What the mux says by itself,
// 404 or 405, it makes a problem document.
type observedWriter struct {
	http.ResponseWriter
	request *http.Request
	status  int
	wrote   bool
	byMux   bool // a response without a route is the mux's own
	muted   bool // the body is another's
}

// WriteHeader implements http.ResponseWriter.
func (w *observedWriter) WriteHeader(status int) {
	if w.byMux && w.request.Pattern == "" && !w.wrote {
		w.wrote = true
		switch status {
		case http.StatusNotFound:
			writeProblem(w, newProblem("not_found", "there is nothing here"))
			w.muted = true
			return
		case http.StatusMethodNotAllowed:
			writeProblem(w, newProblem("method_not_allowed", "this path has other methods"))
			w.muted = true
			return
		}
	}
	w.status, w.wrote = status, true
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *observedWriter) Write(b []byte) (int, error) {
	if w.muted {
		return len(b), nil
	}
	w.wrote = true
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *observedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := encodeJSON(v)
	if err != nil { // something stored is no JSON any more
		writeProblem(w, newProblem("internal", "the result cannot be encoded"))
		return
	}
	writeBody(w, status, jsonType, body)
}

// writeProblem answers with an RFC 9457 problem document.
func writeProblem(w http.ResponseWriter, p *problem) {
	if p.retry > 0 {
		w.Header().Set("Retry-After", retryAfter(p.retry))
	}
	w.Header()["Cache-Control"] = noStore
	body, _ := encodeJSON(p) // of values that came out of JSON
	writeBody(w, p.Status, problemType, body)
}

func writeBody(w http.ResponseWriter, status int, contentType []string, body []byte) {
	body = append(body, '\n')
	h := w.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// refuse makes a problem the refusal of an upgrade.
func refuse(p *problem) *wire.HandshakeError {
	e := &wire.HandshakeError{Status: p.Status, Code: p.Code, Reason: p.Detail}
	if p.retry > 0 {
		e.Header = http.Header{"Retry-After": {retryAfter(p.retry)}}
	}
	return e
}

// writeRefusal answers as wire.AppendErrorResponse does.
func writeRefusal(w http.ResponseWriter, e *wire.HandshakeError) {
	maps.Copy(w.Header(), e.Header)
	// Or net/http would wait for a body that the request announces.
	w.Header()["Connection"] = append([]string{"close"}, e.Header["Connection"]...)
	code := e.Code
	if code == "" {
		code = codeOfStatus(e.Status)
	}
	writeProblem(w, &problem{Type: "about:blank", Title: http.StatusText(e.Status), Status: e.Status, Code: code, Detail: e.Reason})
}

// codeOfStatus is the code of what broke HTTP or the handshake, as package wire has it
// too: Upgrade Required is upgrade_required.
func codeOfStatus(status int) string {
	return strings.ReplaceAll(strings.ToLower(http.StatusText(status)), " ", "_")
}

// retryAfter is a Retry-After value, in whole seconds and at least one.
func retryAfter(d time.Duration) string {
	return strconv.Itoa(max(1, int((d+time.Second-1)/time.Second)))
}

// handedListener is the listener of the connections that loops hand over.
type handedListener struct {
	addr net.Addr
	conn chan net.Conn
	done chan struct{}
	once sync.Once
}

func newHandedListener(addr net.Addr) *handedListener {
	return &handedListener{addr: addr, conn: make(chan net.Conn), done: make(chan struct{})}
}

// push hands a connection over and reports whether somebody took it.
func (l *handedListener) push(c net.Conn) bool {
	select {
	case l.conn <- c:
		return true
	case <-l.done:
		return false
	}
}

// Accept implements net.Listener.
func (l *handedListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *handedListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *handedListener) Addr() net.Addr { return l.addr }
