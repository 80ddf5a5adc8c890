package hub

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"hub/hub/wire"
)

// routes serves the clients' listener.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET "+defaultSocketPath, s.serveSocket)
	mux.HandleFunc("GET /v1/{db}/websocket", s.serveSocket)
	if s.opts.API.Key != "" {
		mux.HandleFunc("POST /api/{method}", s.serveAPI)
		mux.HandleFunc("POST /v1/{db}/api/{method}", s.serveAPI)
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
	for name, db := range s.databases {
		if err := db.store.Ready(); err != nil {
			why = append(why, "database "+name+" cannot write")
			s.log.Warn("database cannot write", slog.String("database", name), slog.Any("error", err))
		}
	}
	if len(why) > 0 {
		writeProblem(w, refuse(http.StatusServiceUnavailable, "not_ready", strings.Join(why, ", "), time.Second))
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// observed counts requests by route and keeps a panic to its request.
func (s *Server) observed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			if p := recover(); p != nil {
				s.panicked(p)
				if !sw.wrote {
					writeProblem(sw, refuse(http.StatusInternalServerError, "internal", "", 0))
				}
			}
			route := r.Pattern
			if route == "" {
				route = "unknown"
			}
			s.metrics.requests.WithLabelValues(route, strconv.Itoa(sw.status/100)+"xx").Observe(time.Since(start).Seconds())
		}()
		if e := s.guardDevelopment(r); e != nil {
			writeProblem(sw, e)
			return
		}
		if _, pattern := mux.Handler(r); pattern == "" {
			serveUnknown(mux, sw, r)
			return
		}
		mux.ServeHTTP(sw, r)
	})
}

// guardDevelopment keeps a development server, whose rules are open, from being
// reached through a proxy or a name that somebody pointed at this machine.
func (s *Server) guardDevelopment(r *http.Request) *wire.HandshakeError {
	if !s.opts.Development {
		return nil
	}
	for name := range r.Header {
		if name == "Forwarded" || strings.HasPrefix(name, "X-Forwarded-") {
			return refuse(http.StatusForbidden, "development",
				"a development server is not for use behind a proxy: it needs a configuration (hub init)", 0)
		}
	}
	if !ownHost(r.Host, s.opts.Server.Listen) {
		return refuse(http.StatusForbidden, "development", "a development server answers to 127.0.0.1 and localhost only", 0)
	}
	return nil
}

// serveUnknown answers what mux has no handler for: 404, or 405 with the methods
// allowed.
func serveUnknown(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	e := refuse(http.StatusNotFound, "not_found", "there is nothing here", 0)
	probe := &headerProbe{header: make(http.Header)}
	mux.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		e = refuse(probe.status, "method_not_allowed", "this path has other methods", 0)
		e.Header = http.Header{"Allow": probe.header["Allow"]}
	}
	writeProblem(w, e)
}

// headerProbe takes a response's status and header and forgets its body.
type headerProbe struct {
	header http.Header
	status int
}

// Header, Write and WriteHeader implement http.ResponseWriter.
func (p *headerProbe) Header() http.Header         { return p.header }
func (p *headerProbe) Write(b []byte) (int, error) { return len(b), nil }
func (p *headerProbe) WriteHeader(status int)      { p.status = status }

// statusWriter remembers the status of a response.
type statusWriter struct {
	http.ResponseWriter
	status int
	wrote  bool
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status, w.wrote = status, true
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *statusWriter) Write(b []byte) (int, error) {
	w.wrote = true
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// writeProblem answers with an RFC 9457 problem document.
func writeProblem(w http.ResponseWriter, e *wire.HandshakeError) {
	for name, values := range e.Header {
		w.Header()[name] = values
	}
	code := e.Code
	if code == "" {
		code = strings.ReplaceAll(strings.ToLower(http.StatusText(e.Status)), " ", "_")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(problem{Type: "about:blank", Title: http.StatusText(e.Status),
		Status: e.Status, Code: code, Detail: e.Reason})
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
