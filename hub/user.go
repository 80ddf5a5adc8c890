package hub

import "log/slog"

// userKey finds the connections of a user.
type userKey struct {
	db   *database
	user string
}

// addUser puts the connection among those of its user.
func (l *loop) addUser(c *conn) {
	key := userKey{c.db, c.session.user}
	if first := l.users[key]; first != nil {
		c.userNext, first.userPrev = first, c
	}
	l.users[key] = c
	c.number, c.since = l.server.connected.Add(1), l.now
	l.logLife(c, "connected")
	c.db.connections.Add(1)
}

func (l *loop) forgetUser(c *conn) {
	if c.state != stateConnected {
		return
	}
	if c.userNext != nil {
		c.userNext.userPrev = c.userPrev
	}
	switch key := (userKey{c.db, c.session.user}); {
	case c.userPrev != nil:
		c.userPrev.userNext = c.userNext
	case c.userNext != nil:
		l.users[key] = c.userNext
	default:
		delete(l.users, key)
	}
	c.userPrev, c.userNext = nil, nil
	l.logLife(c, "disconnected")
	c.db.connections.Add(-1)
}

// logLife logs the beginning and the end of a connection, for debugging.
func (l *loop) logLife(c *conn, what string) {
	if log := l.server.log; log.Enabled(l.server.context, slog.LevelDebug) {
		log.Debug(what, slog.String("database", c.db.name), slog.String("user", c.session.user),
			slog.String("client", c.session.client), slog.String("addr", c.slot.Addr().String()))
	}
}
