package hub

import (
	"github.com/centrifugal/protocol"

	"hub/auth"
)

// refreshCommand gives the connection a new token. One that is over, forged, or not
// its user's ends it: the SDKs do not try again with a refresh that was refused. One
// that cannot be judged yet changes nothing.
func (l *loop) refreshCommand(c *conn, id uint32, req *protocol.RefreshRequest) {
	if req.Token == "" {
		l.fail(c, id, badRequest("token is missing"))
		return
	}
	verify(l, c, req.Token, (*auth.Verifier).Connection, func(claims *auth.Claims, err error) {
		p := l.server.policy.Load()
		is, why := p.connection(c.db.name, claims, err)
		if is == tokenGood && claims.User != c.session.user {
			is, why = tokenInvalid, "the token is another user's"
		}
		if is != tokenGood {
			l.denied(c, "refresh", why)
			l.refreshRefused(c, id, is)
			return
		}
		c.setSession(p, claims, c.session.client)
		l.schedule(c)
		l.reply(c, &protocol.Reply{Id: id, Refresh: &protocol.RefreshResult{
			Client: c.session.client, Version: l.server.opts.Version, Expires: true, Ttl: l.server.ttl(claims.ExpiresAt)}})
		l.review(c, p) // the new token may grant less
	})
}

func (l *loop) refreshRefused(c *conn, id uint32, is standing) {
	switch is {
	case tokenPending:
		l.fail(c, id, errKeysPending)
	case tokenExpired:
		l.disconnect(c, closeExpired)
	case tokenRevoked:
		l.disconnect(c, closeTokenOver)
	case userRevoked:
		l.disconnect(c, closeUserRevoked)
	default:
		l.disconnect(c, closeInvalidToken)
	}
}

// subRefreshCommand gives a subscription a new token, which is from then on what
// allows it. One that is refused changes nothing.
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
	verify(l, c, req.Token, (*auth.Verifier).Subscription, func(claims *auth.SubscriptionClaims, err error) {
		token, e := l.checkSubscriptionToken(c, req.Channel, claims, err)
		s := c.find(req.Channel)
		if e == nil && s == nil {
			e = errPermissionDenied
		}
		if e != nil {
			l.fail(c, id, e)
			return
		}
		s.made, s.token = byToken, token
		s.info = claims.Info
		s.expires = l.endOf(claims.ExpiresAt)
		l.schedule(c)
		l.reply(c, &protocol.Reply{Id: id, SubRefresh: &protocol.SubRefreshResult{
			Expires: true, Ttl: l.server.ttl(claims.ExpiresAt)}})
	})
}
