package hub

import (
	"net"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"hub/auth"
)

// adminRoutes serves metrics and profiles, to whoever has the admin key.
func (s *Server) adminRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !ownHost(r.Host, s.opts.Admin.Listen):
			writeProblem(w, newProblem("host", "the Host header names another server"))
		case !auth.KeyEqual(s.policy.Load().Admin.Key, bearer(r)):
			w.Header().Set("WWW-Authenticate", `Bearer realm="hub admin"`)
			writeProblem(w, newProblem("unauthorized", "send Authorization: Bearer with the admin key"))
		default:
			mux.ServeHTTP(w, r)
		}
	})
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
