package hub

import (
	"encoding/json"
	"log/slog"
	"slices"

	"github.com/centrifugal/protocol"

	"hub/auth"
)

// caller is who asks for something: a connection, a user by HTTP or a server. It
// is made for one request; what it refers to belongs to others.
type caller struct {
	// server: it has the API key, so it may do everything. It has no user, which
	// makes its ids its own: users cannot have an empty name.
	server bool
	// operator: it came with a token of the console, so it may do what a server may, as
	// a user.
	operator bool
	// user, info and grants are those of the token.
	user   string
	info   json.RawMessage
	grants auth.Grants
	// rooms, over HTTP, are the server-side subscriptions of the token.
	rooms []string
	// conn is the connection; nil over HTTP. Its subscriptions belong to its loop, so
	// a caller that has one is asked there alone.
	conn *conn
}

// caller returns who c is now: a refresh may change it.
func (c *conn) caller() caller {
	return caller{user: c.session.user, info: c.session.info, grants: c.session.grants, operator: c.session.operator, conn: c}
}

// unbound says that no rule of rooms applies to w.
func (w *caller) unbound() bool { return w.server || w.operator }

// client is the id of the connection; empty over HTTP.
func (w *caller) client() string {
	if w.conn == nil {
		return ""
	}
	return w.conn.session.client
}

// subscription is the live subscription of the connection to a room, if any.
func (w *caller) subscription(room string) *sub {
	if w.conn == nil {
		return nil
	}
	if s := w.conn.find(room); s != nil && s.index >= 0 {
		return s
	}
	return nil
}

// may decides whether w may do something in a room: access is what its namespace
// says of it, action what a grant must allow. A grant is enough wherever anybody
// but a server may.
func (db *database) may(w *caller, room string, access Access, action auth.Action) bool {
	switch {
	case w.unbound(), access == AccessUser:
		return true
	case access == AccessServer:
		return false
	}
	return w.grants.Allow(room, action) || access == AccessSubscriber && db.subscriber(w, room)
}

// subscriber says whether w counts as a subscriber of a room. Over HTTP that is
// whoever could subscribe with the same token: it is the same power, since the
// token opens a socket, and what a subscriber may do takes one command more there.
// What only a subscription token or the server API allows exists on a socket alone.
func (db *database) subscriber(w *caller, room string) bool {
	if w.conn != nil {
		return w.subscription(room) != nil
	}
	return slices.Contains(w.rooms, room) || db.maySubscribe(w, room)
}

func (db *database) maySubscribe(w *caller, room string) bool {
	ns, e := db.namespace(room) // whose Subscribe is never AccessSubscriber
	return e == nil && db.may(w, room, ns.Subscribe, auth.Subscribe)
}

// permit is may with the error that w gets, and a line of the log that tells the
// rule that denied. The room's name is valid.
func (db *database) permit(w *caller, room string, access Access, action auth.Action, what string) *protocol.Error {
	if db.may(w, room, access, action) {
		return nil
	}
	db.denied(w.user, what, "the namespace of "+room+" says "+what+" = \""+string(access)+"\"")
	return errPermissionDenied
}

// permit decides whether the user of c may do something in a room.
func (l *loop) permit(c *conn, room string, access Access, action auth.Action, what string) *protocol.Error {
	w := c.caller()
	return c.db.permit(&w, room, access, action, what)
}

// mayRead decides whether w may read the resources of a room: its subscribers may,
// and whoever may subscribe.
func (db *database) mayRead(w *caller, room string) bool {
	return w.unbound() || db.subscriber(w, room) || db.maySubscribe(w, room)
}

// permitRead is mayRead as permit is may.
func (db *database) permitRead(w *caller, room string) *protocol.Error {
	if db.mayRead(w, room) {
		return nil
	}
	db.denied(w.user, "read resources", "neither subscribed to "+room+" nor allowed to be")
	return errPermissionDenied
}

// denied logs which rule refused something; never the token.
func (db *database) denied(user, what, why string) {
	level := slog.LevelDebug
	if db.server.opts.Development {
		level = slog.LevelInfo
	}
	db.server.log.Log(db.server.context, level, "denied", slog.String("database", db.name),
		slog.String("user", user), slog.String("what", what), slog.String("why", why))
}
