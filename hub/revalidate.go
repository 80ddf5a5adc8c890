package hub

import (
	"slices"
	"time"

	mathrand "math/rand/v2"

	"hub/auth"
)

// Revalidation (DESIGN.md section 8): each connection is checked again once per
// auth.revalidate, at a time of its own, so that the work is spread and traffic
// does not put it off. Whether its time is over is looked at by every timer; the
// rest only when the policy is another than at the last check: is its key still
// trusted, is it revoked, does each subscription still stand. No signature is
// verified again, since no token is kept.

// expiry is when something is over: on the wall clock and on the loops'. The second
// is set when the time is learnt, so that a wall clock that is set back afterwards
// gives nobody more of it. The zero value never is.
type expiry struct {
	wall int64         // unix seconds; 0: never
	at   time.Duration // since server.start
}

// farAway bounds how far ahead a loop's clock is looked at; exp may be any number.
const farAway = 50 * 365 * 24 * time.Hour

// expiry makes one of a wall clock time, 0 for never, at the time now of the loops.
func (s *Server) expiry(now time.Duration, unix int64) expiry {
	if unix == 0 {
		return expiry{}
	}
	return expiry{unix, max(1, now+min(time.Unix(unix, 0).Sub(s.now()), farAway))}
}

// over says whether either clock says so: a wall clock that is set forward ends
// what it says has ended.
func (e *expiry) over(now time.Duration, wall int64) bool {
	return e.wall != 0 && (now >= e.at || wall >= e.wall)
}

func (e *expiry) overByBoth(now time.Duration, wall int64) bool {
	return e.wall != 0 && now >= e.at && wall >= e.wall
}

// now is the wall clock.
func (s *Server) now() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return time.Now()
}

// wall is the wall clock in unix seconds, read at most once per iteration.
func (l *loop) wall() int64 {
	if l.wallAt != l.now || l.wallClock == 0 {
		l.wallAt, l.wallClock = l.now, l.server.now().Unix()
	}
	return l.wallClock
}

// maker is what allows a subscription, and may take it back.
type maker uint8

const (
	// byGrant: the namespace and the grants of the connection's token, each time.
	byGrant maker = iota
	// byToken: a subscription token, while it is neither over nor revoked nor its key
	// removed.
	byToken
	// byClaim: the claim channels of the connection's token. After a refresh it is
	// that of the new token.
	byClaim
	// byServer: the server API, until it says otherwise or for as long as it said.
	byServer
)

// server says whether the server subscribes the connection, rather than its client.
func (m maker) server() bool { return m >= byClaim }

// spread is a time in the coming period, so that those who come together are not
// checked together.
func spread(now, period time.Duration) time.Duration {
	return now + 1 + mathrand.N(period)
}

// revalidate checks a connection whose time has come.
func (l *loop) revalidate(c *conn) {
	p := l.server.policy.Load()
	c.nextCheck = l.now + p.Auth.Revalidate
	if c.checked != p.generation {
		l.recheck(c, p)
	}
}

// recheck checks everything but the time.
func (l *loop) recheck(c *conn, p *policy) {
	c.checked = p.generation
	switch is, why := p.standing(c.db.name, &c.session.credential, nil); is {
	case tokenGood:
		l.review(c, p)
	case userRevoked:
		l.denied(c, "revalidation", why)
		l.disconnect(c, closeUserRevoked)
	default:
		l.denied(c, "revalidation", why)
		l.disconnect(c, closeTokenOver)
	}
}

// review ends the subscriptions of c that have lost what made them.
func (l *loop) review(c *conn, p *policy) {
	for i := len(c.subs) - 1; i >= 0 && c.open(); i-- {
		s := c.subs[i]
		if code := l.lostGrant(s, p); code != nil {
			l.denied(c, "revalidation", "the subscription to "+s.shard.room.name+" has lost what allowed it")
			l.unsubscribe(s, *code)
		}
	}
}

// lostGrant says how a subscription is to end; nil while it stands.
func (l *loop) lostGrant(s *sub, p *policy) *unsubscribeCode {
	c, room := s.conn, s.shard.room.name
	ns, e := p.namespace(room)
	switch {
	case e != nil: // no longer declared
		return &unsubLost
	case s.made == byServer:
		return nil
	case s.made == byToken:
		if is, _ := p.standing(c.db.name, s.token, nil); is != tokenGood {
			return &unsubExpired
		}
		return nil
	case s.made == byClaim && slices.Contains(c.session.rooms, room):
		return nil
	}
	if w := c.caller(); c.db.may(&w, room, ns.Subscribe, auth.Subscribe) {
		return nil
	}
	return &unsubLost
}
