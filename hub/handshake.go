package hub

import (
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"hub/hub/poll"
	"hub/hub/wire"
	"hub/ratelimit"
)

// A connection begins as an HTTP request. A loop that accepts reads it itself,
// which costs a third of what net/http does, and gives every request that is no
// upgrade to net/http. Where a loop cannot accept, and on a kept-alive HTTP
// connection, the upgrade comes from there.

// admission is an upgrade that was granted.
type admission struct {
	db    *database
	enc   wire.Encoding
	slot  *ratelimit.Slot
	token string // from the Authorization header
}

// handshake reads the upgrade request at the head of data.
func (l *loop) handshake(c *conn, data []byte) (used int) {
	r, n, err := wire.ParseRequest(data)
	if err != nil {
		var refusal *wire.HandshakeError
		if !errors.As(err, &refusal) {
			refusal = &wire.HandshakeError{Status: http.StatusBadRequest}
		}
		l.refuseUpgrade(c, refusal)
		return len(data)
	}
	if n == 0 {
		return 0
	}
	if !wire.IsUpgrade(r) || !isSocketPath(r.URL.Path) {
		l.handOver(c, data)
		return len(data)
	}
	a, refusal := l.server.admit(r, c.sock.RemoteAddr().Addr())
	if refusal != nil {
		l.refuseUpgrade(c, refusal)
		return len(data)
	}
	c.upgraded(a)
	c.out = wire.AppendUpgradeResponse(l.outBuffer(c), r, a.enc)
	l.flushLater(c)
	return n
}

// upgraded makes c a WebSocket connection.
func (c *conn) upgraded(a *admission) {
	c.state = stateConnect
	c.db, c.enc, c.slot = a.db, a.enc, a.slot
	if a.token != "" {
		c.setup = &setup{token: a.token}
	}
}

// refuseUpgrade answers with an HTTP error and closes.
func (l *loop) refuseUpgrade(c *conn, e *wire.HandshakeError) {
	l.server.metrics.refused(e.Status)
	c.out = wire.AppendErrorResponse(l.outBuffer(c), e)
	l.write(c, nil)
	l.drop(c)
}

// handOver gives the connection, with all it has sent, to net/http.
func (l *loop) handOver(c *conn, data []byte) {
	h, err := l.poller.Detach(c.sock)
	c.state = stateGone
	l.wheel.stop(&c.timer)
	l.forget(c)
	if err != nil {
		c.sock.Close()
		return
	}
	data = append([]byte(nil), data...)
	go l.server.serveHTTP(h, data)
}

func (s *Server) serveHTTP(h poll.Handle, data []byte) {
	nc, err := h.Conn(data)
	if err != nil {
		s.log.Debug("connection cannot be handed over", slog.Any("error", err))
		return
	}
	if !s.handed.push(nc) {
		_ = nc.Close()
	}
}

// isSocketPath says whether a path is one of the WebSocket routes.
func isSocketPath(path string) bool {
	return path == defaultSocketPath || strings.HasPrefix(path, "/v1/") && strings.HasSuffix(path, "/websocket")
}

const defaultSocketPath = "/connection/websocket"

// socketDatabase returns the database that a WebSocket route names; nil if there is none.
func (s *Server) socketDatabase(path string) *database {
	name := "default"
	if path != defaultSocketPath {
		name = strings.TrimSuffix(strings.TrimPrefix(path, "/v1/"), "/websocket")
	}
	return s.databases.get(name)
}

// admit decides about an upgrade request from remote. On success the slot is
// the caller's.
func (s *Server) admit(r *http.Request, remote netip.Addr) (*admission, *wire.HandshakeError) {
	if s.draining.Load() {
		return nil, refuse(newProblem("draining", "the server is stopping"))
	}
	if p := s.guardDevelopment(r); p != nil {
		return nil, refuse(p)
	}
	db := s.socketDatabase(r.URL.Path)
	if db == nil {
		return nil, refuse(newProblem("unknown_database", "there is no such database"))
	}
	enc, refusal := wire.CheckUpgrade(r)
	if refusal != nil {
		return nil, refusal
	}
	if !s.originAllowed(r) {
		return nil, refuse(newProblem("origin", "pages of this origin may not connect: see server.origins"))
	}
	addr := ratelimit.ClientAddr(remote, r.Header["X-Forwarded-For"], s.policy.Load().proxies)
	if p := s.pass(classHandshake, db, addr); p != nil {
		return nil, refuse(p)
	}
	slot, err := s.slots.Acquire(db.name, addr)
	if err != nil {
		return nil, refuse(s.noSlot(err))
	}
	return &admission{db: db, enc: enc, slot: slot, token: bearer(r)}, nil
}

// noSlot tells which cap of connections is reached.
func (s *Server) noSlot(err error) *problem {
	scope := "server"
	var limit *ratelimit.LimitError
	if errors.As(err, &limit) {
		scope = limit.Scope
	}
	s.metrics.limited.WithLabelValues("connections", scope).Inc()
	if scope == "ip" {
		return newProblem("connections_ip", "too many connections from this address")
	}
	return newProblem("connections", "too many connections")
}

// bearer returns the token of the Authorization header.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// serveSocket is the upgrade by way of net/http.
func (s *Server) serveSocket(w http.ResponseWriter, r *http.Request) {
	remote, _ := netip.ParseAddrPort(r.RemoteAddr)
	a, refusal := s.admit(r, remote.Addr().Unmap())
	if refusal != nil {
		s.metrics.refused(refusal.Status)
		writeRefusal(w, refusal)
		return
	}
	taken := false // by a loop, which owns slot and socket from then on
	defer func() {
		if !taken {
			a.slot.Release()
		}
	}()
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeProblem(w, newProblem("hijack", "the connection cannot be upgraded"))
		return
	}
	defer func() {
		if !taken {
			_ = nc.Close()
		}
	}()
	early := make([]byte, rw.Reader.Buffered())
	_, _ = rw.Reader.Read(early)
	_ = nc.SetDeadline(time.Time{})
	h, err := s.backend.Take(nc, early)
	if err != nil {
		s.log.Warn("connection cannot be taken over", slog.Any("error", err))
		return
	}
	taken = true
	response := wire.AppendUpgradeResponse(nil, r, a.enc)
	l := s.nextLoop()
	l.post(func() {
		c := &conn{loop: l}
		c.upgraded(a)
		if l.stopping {
			h.Close()
			a.slot.Release()
			return
		}
		if l.adopt(c, h) {
			c.out = append(l.outBuffer(c), response...)
			l.flushLater(c)
		}
	})
}
