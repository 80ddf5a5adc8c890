package hub

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"

	"hub/auth"
)

// The HTTP API for clients (DESIGN.md section 5) does what the socket does, for
// the same tokens and by the same rules. openapi.json describes it.

// maxRestBody bounds a request: an event of 256 KiB however its JSON is written.
const maxRestBody = 512 << 10

// endpoint is a call of the API.
type endpoint struct {
	class requestClass
	query []string // the parameters that it knows
	serve func(*call) *problem
}

// endpoints by the pattern of their path below /v1/{db}/rooms/{room}/.
var endpoints = map[string]endpoint{
	"GET history":            {classRead, []string{"after", "limit", "reverse", "epoch"}, restHistory},
	"GET presence":           {classRead, nil, restPresence},
	"GET resources":          {classRead, []string{"prefix", "after", "limit"}, restList},
	"GET resources/{key...}": {classRead, nil, restResource},
	"GET snapshot":           {classRead, nil, restSnapshot},
	"GET operations/{id}":    {classRead, nil, restOperation},
	"POST publish":           {classMutation, nil, restPublish},
	"POST operations":        {classMutation, nil, restOperate},
}

// call is one request. Its names are decoded, once, and not checked.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	db     *database
	room   string
	caller caller
	query  url.Values
}

// restHandler serves an endpoint.
func (s *Server) restHandler(e *endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if p := s.serveRest(w, r, e); p != nil {
			writeProblem(w, p)
		}
	}
}

func (s *Server) serveRest(w http.ResponseWriter, r *http.Request, e *endpoint) *problem {
	w.Header()["Cache-Control"] = noStore
	if p := s.allowOrigin(w, r); p != nil {
		return p
	}
	if s.draining.Load() {
		return newProblem("draining", "the server is stopping")
	}
	c := call{w: w, r: r, db: s.databases.get(r.PathValue("db")), room: r.PathValue("room")}
	if c.db == nil {
		return newProblem("unknown_database", "there is no such database")
	}
	p := s.identify(&c, e.class)
	if p == nil {
		c.query, p = parseQuery(r, e.query)
	}
	if p == nil && e.class == classMutation && !isJSON(r.Header) {
		p = newProblem("unsupported_media_type", "send Content-Type: application/json")
	}
	if p == nil {
		p = e.serve(&c)
	}
	return p
}

// Header values that many responses share; nobody changes them.
var (
	noStore = []string{"no-store"}
	// revalidated: only the caller's own cache may keep it, and it asks each time.
	revalidated    = []string{"private, no-cache"}
	varyOrigin     = []string{"Origin"}
	exposedHeaders = []string{"ETag, Retry-After"}
	jsonType       = []string{"application/json"}
	problemType    = []string{"application/problem+json"}
)

// allowOrigin lets those pages read the answer that may open a socket, and
// refuses others.
func (s *Server) allowOrigin(w http.ResponseWriter, r *http.Request) *problem {
	h := w.Header()
	h["Vary"] = varyOrigin
	origin := r.Header["Origin"]
	if len(origin) == 0 {
		return nil
	}
	if !s.originAllowed(r) {
		return newProblem("origin", "pages of this origin may not call: see server.origins")
	}
	h["Access-Control-Allow-Origin"] = origin
	h["Access-Control-Expose-Headers"] = exposedHeaders
	return nil
}

// originAllowed says whether the page that r comes from, if any, may come here.
func (s *Server) originAllowed(r *http.Request) bool {
	origin := r.Header["Origin"]
	return len(origin) == 0 || len(origin) == 1 && (s.policy.Load().origins.Allow(origin[0], r.Host, s.opts.Server.TLSCert != "") ||
		s.consoleOrigin(origin[0], r.Host))
}

// servePreflight tells a browser what its page may send (Fetch Standard, section
// 4.8). X-API-Key is not among it: pages have no business with it.
func (s *Server) servePreflight(w http.ResponseWriter, r *http.Request) {
	if p := s.allowOrigin(w, r); p != nil {
		writeProblem(w, p)
		return
	}
	h := w.Header()
	h["Cache-Control"] = noStore
	if r.Header.Get("Origin") != "" {
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST")
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, If-None-Match")
		h.Set("Access-Control-Max-Age", "7200") // no browser keeps it longer
	}
	w.WriteHeader(http.StatusNoContent)
}

// identify finds out who calls, and takes all but servers through the gate. What
// has no credentials is refused before it: any page can have a browser send that.
func (s *Server) identify(c *call, class requestClass) *problem {
	token, key := bearer(c.r), apiKey(c.r)
	policy := s.policy.Load()
	switch {
	case len(c.r.Header["Authorization"]) > 1, len(c.r.Header["X-Api-Key"]) > 1, token != "" && key != "":
		return newProblem("bad_request", "send either a token or the API key, once")
	case key != "":
		if !auth.KeyEqual(policy.API.Key, key) {
			return c.unauthorized("the API key is wrong")
		}
		c.caller.server = true
		return nil
	case token == "":
		return c.unauthorized("send Authorization: Bearer with a connection token, or X-API-Key")
	}
	if p := s.pass(class, c.db, s.clientAddr(c.r)); p != nil {
		return p
	}
	claims, err := s.verify(policy, token)
	if errors.Is(err, errPanicked) {
		return newProblem("internal", "")
	}
	if is, why := policy.connection(c.db.name, claims, err); is != tokenGood {
		user := ""
		if claims != nil {
			user = claims.User
		}
		c.db.denied(user, "http", why)
		return c.tokenRefused(is)
	}
	c.caller = caller{user: claims.User, info: claims.Info, grants: claims.Grants, rooms: claims.Channels, operator: claims.Operator}
	return nil
}

// tokenRefused is the problem of a token that is not good.
func (c *call) tokenRefused(is standing) *problem {
	switch is {
	case tokenPending:
		return newProblem("keys_pending", "the token's key may be about to be loaded")
	case tokenExpired:
		c.challenge(`Bearer realm="hub", error="invalid_token", error_description="expired"`)
		return newProblem("token_expired", "the token has run out: get a new one")
	case tokenRevoked, userRevoked:
		c.challenge(`Bearer realm="hub", error="invalid_token", error_description="revoked"`)
		return newProblem("token_revoked", "the token was revoked")
	}
	return c.unauthorized("the token is not valid for this database")
}

func (c *call) unauthorized(detail string) *problem {
	c.challenge(`Bearer realm="hub"`)
	return newProblem("unauthorized", detail)
}

// challenge goes with a 401 (RFC 6750 section 3).
func (c *call) challenge(value string) { c.w.Header()["Www-Authenticate"] = []string{value} }

// verify verifies a connection token: here, or by the worker where it is dear, as
// for a connection.
func (s *Server) verify(p *policy, token string) (*auth.Claims, error) {
	if !p.verifier.Asymmetric(token) {
		return p.verifier.Connection(token, s.now())
	}
	claims, err := (*auth.Claims)(nil), errPanicked
	done := make(chan struct{})
	s.verifying.do(func() {
		defer close(done)
		claims, err = p.verifier.Connection(token, s.now())
		runtime.Gosched() // a loop that waits for this processor goes first
	})
	<-done
	return claims, err
}

// parseQuery refuses parameters that are not known or come twice: what is
// misspelt must not be left out quietly.
func parseQuery(r *http.Request, known []string) (url.Values, *problem) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, newProblem("bad_request", "the query is malformed")
	}
	for name, list := range values {
		switch {
		case !slices.Contains(known, name):
			return nil, newProblem("bad_request", fmt.Sprintf("unknown parameter %.80q; known here: %s", name, knownList(known)))
		case len(list) > 1:
			return nil, newProblem("bad_request", "parameter "+name+" is given twice")
		}
	}
	return values, nil
}

func knownList(known []string) string {
	if len(known) == 0 {
		return "none"
	}
	return strings.Join(known, ", ")
}

// isJSON says whether a body is declared to be JSON.
func isJSON(h http.Header) bool {
	declared := h.Get("Content-Type")
	if declared == "application/json" {
		return true
	}
	name, params, err := mime.ParseMediaType(declared)
	charset := params["charset"]
	return err == nil && name == "application/json" && (charset == "" || strings.EqualFold(charset, "utf-8"))
}

// body reads the request's body.
func (c *call) body() ([]byte, *problem) {
	return readBody(c.w, c.r, maxRestBody)
}

// readBody reads a body of at most limit bytes.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *problem) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, newProblem("too_large", fmt.Sprintf("a request is at most %d KiB", limit>>10))
	case err != nil:
		return nil, newProblem("body", "the body cannot be read")
	}
	return body, nil
}

// answer writes the result of a call. A large one is held until its reader has taken
// it, which may take as long as the server's write timeout.
func (c *call) answer(result any) *problem {
	body, err := encodeJSON(result)
	if err != nil { // something stored is no JSON any more
		return newProblem("internal", "the result cannot be encoded")
	}
	if len(body) > smallReply {
		held := &c.db.server.replies
		if held.Add(int64(len(body))) > maxReplies {
			held.Add(-int64(len(body)))
			return newProblem("overloaded", "too many large replies are on their way to readers that are slow")
		}
		defer held.Add(-int64(len(body)))
	}
	writeBody(c.w, http.StatusOK, jsonType, body)
	return nil
}

const (
	// smallReply is what a reply may take, in bytes, without being counted.
	smallReply = 64 << 10
	// maxReplies bounds the larger ones that are on their way, in bytes together.
	maxReplies = 64 << 20
)
