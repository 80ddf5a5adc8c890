package hub

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"hub/auth"
)

// The admin API tells what the server does and changes it, for whoever has the admin
// key. Everything is asked for, nothing is pushed. What it looks at while clients are
// served it looks at in slices, so that a hundred thousand connections do not notice.

// adminEndpoint is a call of the admin API.
type adminEndpoint struct {
	query  []string // the parameters that it knows
	change string   // what it does, for the log; "" when it changes nothing
	status int      // when it went well; 0 is 200
	// development: it exists there alone.
	development bool
	serve       func(*adminCall) (any, *problem)
}

// adminEndpoints by the pattern of their path below /admin/v1/.
var adminEndpoints = map[string]adminEndpoint{
	"GET overview":                  {serve: adminOverview},
	"GET connections":               {query: []string{"database", "user", "room", "after", "limit"}, serve: adminConnections},
	"GET rooms":                     {query: []string{"database", "prefix", "live", "after", "limit"}, serve: adminRooms},
	"GET rooms/{db}/{room}":         {serve: adminRoom},
	"POST disconnect":               {change: "disconnect", serve: adminDisconnect},
	"GET revocations":               {query: []string{"after", "limit"}, serve: adminRevocations},
	"POST revocations":              {change: "revoke", status: http.StatusCreated, serve: adminRevoke},
	"DELETE revocations/{id}":       {change: "restore", status: http.StatusNoContent, serve: adminRestore},
	"GET capacity":                  {serve: adminCapacity},
	"PUT capacity":                  {change: "set capacity", serve: adminSetCapacity},
	"DELETE capacity":               {query: []string{"scope", "database"}, change: "reset capacity", serve: adminResetCapacity},
	"GET databases":                 {serve: adminDatabases},
	"POST databases":                {change: "create database", status: http.StatusCreated, serve: adminCreateDatabase},
	"POST databases/{db}/integrity": {change: "check integrity", serve: adminIntegrity},
	"POST databases/{db}/backup":    {change: "back up", status: http.StatusCreated, serve: adminBackup},
	"POST inspect":                  {change: "inspect", status: http.StatusCreated, serve: adminInspect},
	"POST token":                    {change: "make token", status: http.StatusCreated, development: true, serve: adminToken},
}

// adminRoutes serves the admin API, metrics and profiles, to whoever has the admin key,
// and the page of the console.
func (s *Server) adminRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	for pattern, e := range adminEndpoints {
		if e.development && !s.opts.Development {
			continue
		}
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" /admin/v1/"+path, s.adminHandler(&e))
	}
	console := consoleRoutes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p := s.guardHost(r); {
		case isConsole(r.URL.Path):
			s.contained(console, p, w, r)
		case p != nil:
			s.contained(mux, p, w, r)
		default:
			s.contained(mux, s.guardAdmin(w, r), w, r)
		}
	})
}

// guardHost refuses requests that were addressed to another server.
func (s *Server) guardHost(r *http.Request) *problem {
	if !ownHost(r.Host, s.opts.Admin.Listen) {
		return newProblem("host", "the Host header names another server")
	}
	return nil
}

// guardAdmin refuses who does not have the admin key.
func (s *Server) guardAdmin(w http.ResponseWriter, r *http.Request) *problem {
	if len(r.Header["Authorization"]) > 1 || !auth.KeyEqual(s.policy.Load().Admin.Key, bearer(r)) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="hub admin"`)
		return newProblem("unauthorized", "send Authorization: Bearer with the admin key")
	}
	return nil
}

// ownHost refuses names that somebody else's DNS may have pointed here: a Host
// header must be an address, localhost, or the host that is listened on.
func ownHost(host, listenAddr string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	listen, _, _ := net.SplitHostPort(listenAddr)
	name = strings.ToLower(strings.Trim(name, "[]"))
	return net.ParseIP(name) != nil || name == "localhost" || name != "" && name == strings.ToLower(listen)
}

// adminCall is one request of the admin API. Its names are decoded and not checked.
type adminCall struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	query url.Values
	// target is what a change is about, for the log.
	target []slog.Attr
}

// adminHandler serves an endpoint. Every change is logged, refused ones too.
func (s *Server) adminHandler(e *adminEndpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Cache-Control"] = noStore
		c := adminCall{s: s, w: w, r: r}
		result, p := c.serve(e)
		if e.change != "" {
			c.audit(e.change, p)
		}
		switch {
		case p != nil:
			writeProblem(w, p)
		case e.status == http.StatusNoContent:
			w.WriteHeader(e.status)
		case e.status != 0:
			writeJSON(w, e.status, result)
		default:
			writeJSON(w, http.StatusOK, result)
		}
	}
}

func (c *adminCall) serve(e *adminEndpoint) (result any, p *problem) {
	if c.query, p = parseQuery(c.r, e.query); p != nil {
		return nil, p
	}
	return e.serve(c)
}

// audit logs who changed what, and how that went.
func (c *adminCall) audit(change string, p *problem) {
	outcome := "done"
	if p != nil {
		outcome = p.Code
	}
	attrs := []slog.Attr{slog.String("change", change), slog.String("remote", c.r.RemoteAddr), slog.String("outcome", outcome)}
	c.s.log.LogAttrs(c.r.Context(), slog.LevelInfo, "admin", append(attrs, c.target...)...)
}

// about adds to what the log says of a change.
func (c *adminCall) about(attrs ...slog.Attr) { c.target = append(c.target, attrs...) }

// maxAdminBody bounds a request, in bytes.
const maxAdminBody = 64 << 10

// decode decodes the body, which may be missing, into a struct.
func (c *adminCall) decode(into any) *problem {
	body, p := readBody(c.w, c.r, maxAdminBody)
	if p != nil || len(body) == 0 {
		return p
	}
	if err := decodeStrict(body, into); err != nil {
		return badBody("%s", err)
	}
	return nil
}

// databases returns the database of a name, all for "".
func (c *adminCall) databases(name string) ([]*database, *problem) {
	found := c.s.databasesOf(name)
	if name != "" && len(found) == 0 {
		return nil, newProblem("unknown_database", "there is no such database")
	}
	return found, nil
}

// database returns the database of a name.
func (c *adminCall) database(name string) (*database, *problem) {
	if db := c.s.databases.get(name); db != nil {
		return db, nil
	}
	return nil, newProblem("unknown_database", "there is no such database")
}

// failed is the problem of a change or a look that did not succeed. Whoever has the
// admin key is told why.
func (c *adminCall) failed(err error) *problem {
	switch {
	case c.s.context.Err() != nil || c.s.draining.Load():
		return newProblem("draining", "the server is stopping")
	case c.r.Context().Err() != nil:
		return newProblem("unavailable", "the caller has gone")
	}
	c.s.log.Warn("admin request failed", slog.Any("error", err))
	return newProblem("unavailable", err.Error())
}

// first collects those of the smallest keys, each key once. An element is made only
// when it may be among them.
type first[K interface{ ~uint64 | ~string }, T any] struct {
	limit int
	items []keyed[K, T] // at most twice limit
	full  bool          // bound is set
	bound K             // no key above it is among the first
}

type keyed[K any, T any] struct {
	key   K
	value T
}

func (f *first[K, T]) wants(key K) bool { return !f.full || key < f.bound }

func (f *first[K, T]) add(key K, value T) {
	f.items = append(f.items, keyed[K, T]{key, value})
	if len(f.items) >= 2*f.limit {
		f.settle()
	}
}

func (f *first[K, T]) settle() {
	slices.SortStableFunc(f.items, func(a, b keyed[K, T]) int {
		switch {
		case a.key < b.key:
			return -1
		case a.key > b.key:
			return 1
		}
		return 0
	})
	f.items = slices.CompactFunc(f.items, func(a, b keyed[K, T]) bool { return a.key == b.key })
	if len(f.items) >= f.limit {
		f.items = f.items[:f.limit]
		f.full, f.bound = true, f.items[f.limit-1].key
	}
}

// page returns the elements of a page of one less than the limit, and whether there
// are more.
func (f *first[K, T]) page() (values []T, more bool) {
	f.settle()
	n := min(len(f.items), f.limit-1)
	values = make([]T, n) // not nil, which would be null
	for i := range n {
		values[i] = f.items[i].value
	}
	return values, len(f.items) > n
}

// milliseconds is a time given in microseconds, for people.
func milliseconds(micro int64) float64 { return float64(micro) / 1000 }

// invalid is the problem of a value that a registry or a name check refused.
func invalid(err error) *problem {
	return newProblem("bad_request", strings.TrimPrefix(fmt.Sprint(err), "store: invalid: "))
}
