package hub

import (
	"log/slog"
	"strconv"
	"sync/atomic"
)

// connectionPage is connections in the order in which they connected.
type connectionPage struct {
	Connections []adminConnection `json:"connections"`
	// Total is how many there are now to which the question applies, by and large.
	Total int64 `json:"total"`
	// Next is the after of the next page; empty at the end. Whoever connects meanwhile
	// comes at the end.
	Next string `json:"next,omitempty"`
}

type adminConnection struct {
	Client        string `json:"client"`
	User          string `json:"user"`
	Database      string `json:"database"`
	Address       string `json:"address"` // by which limits count: of IPv6 the /64
	Encoding      string `json:"encoding"`
	Connected     int64  `json:"connected"` // unix milliseconds
	Subscriptions int    `json:"subscriptions"`
	Unsent        int    `json:"unsent"` // bytes that wait for the socket
}

// connectionQuery selects connections; what is empty selects all.
type connectionQuery struct {
	db    *database // nil: all
	user  string
	room  string // needs db
	after uint64 // numbers above it
	limit int
}

func adminConnections(c *adminCall) (any, *problem) {
	q := connectionQuery{user: c.query.Get("user"), room: c.query.Get("room")}
	var p *problem
	if q.limit, p = pageLimit(c.query); p != nil {
		return nil, p
	}
	if name := c.query.Get("database"); name != "" {
		if q.db, p = c.database(name); p != nil {
			return nil, p
		}
	}
	if q.room != "" {
		if q.db == nil {
			return nil, badBody("room needs database")
		}
		if err := ValidRoom(q.room); err != nil {
			return nil, invalid(err)
		}
	}
	if after := c.query.Get("after"); after != "" {
		var err error
		if q.after, err = strconv.ParseUint(after, 10, 64); err != nil {
			return nil, badBody("after must be the next of another page")
		}
	}
	page := c.s.connections(&q)
	if page == nil {
		return nil, newProblem("draining", "the server is stopping")
	}
	return page, nil
}

// connections returns a page; nil when the loops have ended. One question at a time
// goes over the loops, each of which looks at its own in slices and remembers no more
// than a page. A second look tells of those that made it; who has gone by then is
// left out.
func (s *Server) connections(q *connectionQuery) *connectionPage {
	s.listing.Lock()
	defer s.listing.Unlock()
	found := make([]first[uint64, *conn], len(s.loops)) // each is its loop's
	for i := range found {
		found[i].limit = q.limit + 1
	}
	page := &connectionPage{Connections: []adminConnection{}}
	page.Total = s.visit(q, func(l *loop, c *conn) {
		if f := &found[l.index]; q.selects(c) && f.wants(c.number) {
			f.add(c.number, c)
		}
	})
	if s.loopsEnded() { // who has not answered does so when nobody waits any more
		return nil
	}
	all := first[uint64, *conn]{limit: q.limit + 1}
	for i := range found {
		all.items = append(all.items, found[i].items...)
	}
	members, more := all.page()
	rows := make([]adminConnection, len(members)) // each is that member's loop's
	s.eachLoop(func(l *loop) {
		for i, c := range members {
			if c.loop == l && c.state == stateConnected {
				rows[i] = c.describe()
			}
		}
	})
	if s.loopsEnded() {
		return nil
	}
	for i := range rows {
		if rows[i].Client != "" {
			page.Connections = append(page.Connections, rows[i])
		}
	}
	if more {
		page.Next = strconv.FormatUint(members[len(members)-1].number, 10)
	}
	return page
}

// selects says whether q is about a connection that its database, user or room has
// found already.
func (q *connectionQuery) selects(c *conn) bool {
	return c.number > q.after && (q.db == nil || c.db == q.db) && (q.user == "" || c.session.user == q.user)
}

func (s *Server) loopsEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// visit shows see, on the loops, the connections that q may select, some perhaps
// twice, and returns how many q selects.
func (s *Server) visit(q *connectionQuery, see func(*loop, *conn)) (total int64) {
	switch {
	case q.room != "":
		r := q.db.live(q.room)
		if r == nil {
			return 0
		}
		if q.user != "" {
			return s.visitUser(q, func(l *loop, c *conn) bool { return c.find(q.room) != nil }, see)
		}
		done := make(chan struct{}, len(s.loops))
		for i := range r.shards {
			sh := &r.shards[i]
			sh.loop.post(func() { sh.visit(len(sh.subs), see, func() { done <- struct{}{} }) })
		}
		s.awaitLoops(done)
		return r.members.Load()
	case q.user != "":
		return s.visitUser(q, func(*loop, *conn) bool { return true }, see)
	}
	s.scan(see)()
	if q.db != nil {
		return q.db.connections.Load()
	}
	for _, db := range s.databases.all() {
		total += db.connections.Load()
	}
	return total
}

// visitUser is visit for one user, whose connections a loop finds by itself.
func (s *Server) visitUser(q *connectionQuery, selected func(*loop, *conn) bool, see func(*loop, *conn)) int64 {
	databases := []*database{q.db}
	if q.db == nil {
		databases = s.databasesOf("")
	}
	var total atomic.Int64
	s.eachLoop(func(l *loop) {
		for _, db := range databases {
			for c := l.users[userKey{db, q.user}]; c != nil; c = c.userNext {
				if selected(l, c) {
					total.Add(1)
					see(l, c)
				}
			}
		}
	})
	return total.Load()
}

// visit goes over the live subscriptions of a shard below index i, in slices. Those
// that move meanwhile move down: none is left out, some come twice.
func (sh *shard) visit(i int, see func(*loop, *conn), done func()) {
	for range scanSlice {
		if i = min(i, len(sh.subs)); i == 0 {
			done()
			return
		}
		i--
		see(sh.loop, sh.subs[i].conn)
	}
	sh.loop.post(func() { sh.visit(i, see, done) })
}

// describe tells of c, on its loop.
func (c *conn) describe() adminConnection {
	return adminConnection{
		Client: c.session.client, User: c.session.user, Database: c.db.name,
		Address: c.slot.Addr().String(), Encoding: c.enc.String(),
		Connected:     c.loop.server.start.Add(c.since).UnixMilli(),
		Subscriptions: len(c.subs), Unsent: len(c.out),
	}
}

// adminDisconnect closes connections: all of a user, or one. They may come back
// unless code says otherwise; only a revocation keeps them away.
func adminDisconnect(c *adminCall) (any, *problem) {
	var req struct {
		Database string `json:"database"` // "" is all
		User     string `json:"user"`
		Client   string `json:"client"`
		Code     uint16 `json:"code"` // 0: 3503
		Reason   string `json:"reason"`
	}
	if p := c.decode(&req); p != nil {
		return nil, p
	}
	c.about(slog.String("database", req.Database), slog.String("user", req.User), slog.String("client", req.Client), slog.Int("code", int(req.Code)))
	code := closeForced
	switch {
	case req.User == "" && req.Client == "":
		return nil, badBody("user or client is missing")
	case req.Code != 0 && (req.Code < 3000 || req.Code > 4999):
		return nil, badBody("code must be between 3000 and 4999")
	case len(req.Reason) > maxCloseReason:
		return nil, badBody("reason is at most %d bytes long", maxCloseReason)
	case req.Code != 0:
		code = disconnectCode{req.Code, req.Reason}
	case req.Reason != "":
		code.reason = req.Reason
	}
	databases, p := c.databases(req.Database)
	if p != nil {
		return nil, p
	}
	return map[string]int64{"disconnected": c.s.disconnect(databases, apiUser{req.User, req.Client}, code)}, nil
}

// maxCloseReason is what a close frame holds (RFC 6455 section 5.5) beside its code.
const maxCloseReason = 123

// disconnect closes the connections that u selects, and returns their number.
func (s *Server) disconnect(databases []*database, u apiUser, code disconnectCode) int64 {
	var closed atomic.Int64
	end := func(l *loop, c *conn) {
		l.disconnect(c, code)
		closed.Add(1)
	}
	if u.User != "" {
		for _, db := range databases {
			db.eachConn(u, end)
		}
		return closed.Load()
	}
	// Only the loops know whose a connection is.
	var found atomic.Pointer[userKey]
	s.listing.Lock()
	s.scan(func(_ *loop, c *conn) {
		if c.session.client == u.Client {
			found.Store(&userKey{c.db, c.session.user})
		}
	})()
	s.listing.Unlock()
	if key := found.Load(); key != nil {
		for _, db := range databases {
			if db == key.db {
				db.eachConn(apiUser{key.user, u.Client}, end)
			}
		}
	}
	return closed.Load()
}
