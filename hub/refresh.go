package hub

import (
	"errors"

	"github.com/centrifugal/protocol"

	"hub/auth"
)

// refreshCommand gives the connection a new token. One that is expired, or not
// its user's, ends it.
func (l *loop) refreshCommand(c *conn, id uint32, req *protocol.RefreshRequest) {
	if req.Token == "" {
		l.fail(c, id, badRequest("token is missing"))
		return
	}
	verify(l, c, req.Token, l.server.verifier.Connection, func(claims *auth.Claims, err error) {
		switch {
		case errors.Is(err, auth.ErrExpired):
			l.denied(c, "refresh", err.Error())
			l.disconnect(c, closeExpired)
			return
		case err != nil:
			l.denied(c, "refresh", err.Error())
			l.disconnect(c, closeInvalidToken)
			return
		case claims.User != c.session.user || !claims.AllowsDatabase(c.db.name):
			l.denied(c, "refresh", "the token is another user's or database's")
			l.disconnect(c, closeInvalidToken)
			return
		}
		c.setSession(claims, c.session.client)
		l.schedule(c)
		l.reply(c, &protocol.Reply{Id: id, Refresh: &protocol.RefreshResult{
			Client: c.session.client, Version: l.server.opts.Version, Expires: true, Ttl: l.server.ttl(claims.ExpiresAt)}})
	})
}

// subRefreshCommand gives a subscription a new token.
func (l *loop) subRefreshCommand(c *conn, id uint32, req *protocol.SubRefreshRequest) {
	switch {
	case req.Type != 0:
		l.fail(c, id, badRequest("type is not supported"))
		return
	case req.Token == "":
		l.fail(c, id, badRequest("token is missing"))
		return
	case c.find(req.Channel) == nil:
		l.fail(c, id, errPermissionDenied)
		return
	}
	verify(l, c, req.Token, l.server.verifier.Subscription, func(claims *auth.SubscriptionClaims, err error) {
		e := l.checkSubscriptionToken(c, req.Channel, claims, err)
		s := c.find(req.Channel)
		if e == nil && s == nil {
			e = errPermissionDenied
		}
		if e != nil {
			l.fail(c, id, e)
			return
		}
		s.info = claims.Info
		s.expires = l.server.endOf(claims.ExpiresAt)
		l.schedule(c)
		l.reply(c, &protocol.Reply{Id: id, SubRefresh: &protocol.SubRefreshResult{
			Expires: true, Ttl: l.server.ttl(claims.ExpiresAt)}})
	})
}
