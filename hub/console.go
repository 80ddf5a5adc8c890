package hub

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"hub/auth"
	"hub/hub/web"
)

// The console is a page of the admin listener. Its files are for everybody who reaches
// that listener: they hold no secret. What it shows it asks of the admin API, with the
// key that the operator has typed in.

// isConsole says whether a path of the admin listener needs no key.
func isConsole(path string) bool {
	return path == "/" || path == "/hub.js" || strings.HasPrefix(path, "/console/")
}

// consoleRoutes serves the files of the console and nothing else.
func consoleRoutes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", http.RedirectHandler("/console/", http.StatusSeeOther))
	mux.HandleFunc("GET /console/", web.Console())
	mux.HandleFunc("GET /hub.js", web.Client())
	return mux
}

// consoleUser is the user of the console's inspector.
const consoleUser = "console"

// verifier is that of the configured keys and of the console's tokens.
func (s *Server) verifier(adminKey string) *auth.Verifier {
	return s.source.Verifier().WithOperators(adminKey)
}

// consoleOrigin says whether an origin is that of the console at the host that a client
// has addressed: the page comes from the admin listener's port there.
func (s *Server) consoleOrigin(origin, host string) bool {
	if s.admin == nil {
		return false
	}
	return auth.SameHost(origin, host, strconv.Itoa(portOf(s.admin.Addr())))
}

func portOf(a net.Addr) int {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.Port
	}
	return 0
}

// consoleToken is a token and the end of its time.
type consoleToken struct {
	Token   string `json:"token"`
	Expires int64  `json:"expires"` // unix seconds
}

// adminInspect makes a token of an operator for one database. It lasts five minutes, or
// until the admin key changes, which ends connections at their next revalidation.
func adminInspect(c *adminCall) (any, *problem) {
	var req struct {
		Database string `json:"database"` // "": default
	}
	if p := c.decode(&req); p != nil {
		return nil, p
	}
	if req.Database == "" {
		req.Database = "default"
	}
	c.about(slog.String("database", req.Database))
	if _, p := c.database(req.Database); p != nil {
		return nil, p
	}
	token, expires, ok := c.s.policy.Load().verifier.Operator(consoleUser, req.Database, c.s.now())
	if !ok {
		return nil, newProblem("internal", "no token can be made")
	}
	return consoleToken{token, expires}, nil
}

// Times of a token that is made in development.
const (
	defaultTokenTTL = 24 * time.Hour
	maxTokenTTL     = 365 * 24 * time.Hour
)

// adminToken makes the token of any user, as an application's backend would.
func adminToken(c *adminCall) (any, *problem) {
	var req struct {
		User     string          `json:"user"`
		Database string          `json:"database"` // "": default
		TTL      int64           `json:"ttl"`      // seconds; 0: a day
		Info     json.RawMessage `json:"info"`     // what others see of the user
	}
	if p := c.decode(&req); p != nil {
		return nil, p
	}
	c.about(slog.String("user", req.User), slog.String("database", req.Database))
	if _, p := c.databases(req.Database); p != nil {
		return nil, p
	}
	ttl := time.Duration(min(max(req.TTL, 0), int64(maxTokenTTL/time.Second)+1)) * time.Second
	switch {
	case req.User == "":
		return nil, badBody("user is missing")
	case req.TTL < 0 || ttl > maxTokenTTL:
		return nil, badBody("ttl must be between 0 and %d seconds", maxTokenTTL/time.Second)
	case ttl == 0:
		ttl = defaultTokenTTL
	}
	now := c.s.now()
	claims := auth.Claims{User: req.User, Info: req.Info, IssuedAt: now.Unix(), ExpiresAt: now.Add(ttl).Unix()}
	if req.Database != "" {
		claims.Databases = []string{req.Database}
	}
	p := c.s.policy.Load()
	token, err := auth.Mint([]byte(p.Auth.HMACSecret), claims)
	if err == nil {
		_, err = c.s.verify(p, token) // sub, say, may be too long
	}
	if err != nil {
		return nil, badBody("%s", fmt.Sprint(err))
	}
	return consoleToken{token, claims.ExpiresAt}, nil
}
