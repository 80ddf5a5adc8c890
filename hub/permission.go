package hub

import (
	"github.com/centrifugal/protocol"

	"hub/auth"
)

// permit decides whether the user of c may do something in a room: access is
// what the namespace says of it, action what a grant must allow. A grant is
// enough wherever anybody but a server may.
func (l *loop) permit(c *conn, room string, access Access, action auth.Action, what string) *protocol.Error {
	allowed := false
	switch access {
	case AccessUser:
		allowed = true
	case AccessSubscriber:
		s := c.find(room)
		allowed = s != nil && s.index >= 0 || c.session.grants.Allow(room, action)
	case AccessToken:
		allowed = c.session.grants.Allow(room, action)
	case AccessServer:
	}
	if allowed {
		return nil
	}
	l.denied(c, what, "the namespace of "+room+" says "+what+" = \""+string(access)+"\"")
	return errPermissionDenied
}
