package hub

import (
	"crypto/rand"
	"runtime"
	"time"

	mathrand "math/rand/v2"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// connect authenticates the connection. HMAC tokens cost about as much as two
// socket visits (7 µs) and are verified here; public keys cost 40–90 µs, which
// would delay everybody's delivery, so a worker verifies those.
func (l *loop) connect(c *conn, id uint32, req *protocol.ConnectRequest) {
	token := req.Token
	if token == "" && c.setup != nil {
		token = c.setup.token
	}
	c.setup = nil
	if token == "" {
		l.refuse(c, id, errUnauthorized)
		return
	}
	verify(l, c, token, (*auth.Verifier).Connection, func(claims *auth.Claims, err error) {
		l.authenticated(c, id, req, claims, err)
	})
}

// verify calls then on the loop with what check says of a token. By then the policy
// may be another.
func verify[T any](l *loop, c *conn, token string, check func(*auth.Verifier, string, time.Time) (T, error), then func(T, error)) {
	v := l.server.policy.Load().verifier
	if !v.Asymmetric(token) {
		claims, err := check(v, token, l.server.now())
		then(claims, err)
		return
	}
	l.async(c, &l.server.verifying, func() func() {
		claims, err := check(v, token, l.server.now())
		runtime.Gosched() // a loop that waits for this processor goes first
		return func() { then(claims, err) }
	})
}

// refuse answers a failed connect. The client is to close; what it has sent
// behind its connect command is discarded.
func (l *loop) refuse(c *conn, id uint32, e *protocol.Error) {
	l.fail(c, id, e)
	if c.open() {
		l.detach(c)
		c.state, c.held = stateRefused, false
		c.deadline = l.now + l.server.opts.Server.HandshakeTimeout
		l.schedule(c)
		l.ripen(c)
	}
}

func (l *loop) authenticated(c *conn, id uint32, req *protocol.ConnectRequest, claims *auth.Claims, err error) {
	p := l.server.policy.Load()
	is, why := p.connection(c.db.name, claims, err)
	if is != tokenGood {
		l.denied(c, "connect", why)
		switch is {
		case tokenPending:
			l.refuse(c, id, errKeysPending)
		case tokenExpired, tokenRevoked:
			l.refuse(c, id, errTokenExpired)
		case userRevoked:
			l.disconnect(c, closeUserRevoked)
		default:
			l.disconnect(c, closeInvalidToken)
		}
		return
	}
	c.state = stateConnected
	l.server.metrics.traffic.connected(l.now, l.now-c.deadline+l.server.opts.Server.HandshakeTimeout)
	c.deadline = 0
	c.setSession(p, claims, rand.Text())
	c.nextCheck = spread(l.now, p.Auth.Revalidate)
	// Pings are spread over the interval, however many connect at once.
	ping := l.server.opts.Server.PingInterval
	c.nextPing = l.now + ping/2 + mathrand.N(ping/2+1)
	l.addUser(c)
	l.schedule(c)
	l.serverSubscriptions(c, id, claims.Channels, req.Subs)
}

// connecting collects the server-side subscriptions of a connect command.
type connecting struct {
	id      uint32
	left    int
	budget  int // bytes of publications that the reply may still take
	subs    []wire.Subscription
	failure *protocol.Error
}

// serverSubscriptions subscribes to the rooms of the token; the connect reply
// comes when they are there, and before any of their publications.
func (l *loop) serverSubscriptions(c *conn, id uint32, rooms []string, from map[string]*protocol.SubscribeRequest) {
	if len(rooms) == 0 {
		l.connected(c, &connecting{id: id})
		return
	}
	if limit := l.server.policy.Load().Limits.Subscriptions; limit > 0 && len(rooms) > limit {
		l.refuse(c, id, errLimitExceeded)
		return
	}
	c.held = true
	c.begin(true)
	all := &connecting{id: id, left: len(rooms), budget: maxRecovered}
	for _, room := range rooms {
		sb := &subscribing{made: byClaim, budget: &all.budget}
		if req := from[room]; req != nil {
			sb.request(req)
		}
		sb.done = func(l *loop, res *protocol.SubscribeResult, pubs [][]byte, e *protocol.Error) {
			switch {
			case e == nil:
				all.subs = append(all.subs, wire.Subscription{Room: room, Result: res, Publications: pubs})
			case e != errAlreadySubbed: // a room named twice
				all.failure = e
			}
			if all.left--; all.left == 0 && c.open() {
				l.connected(c, all)
				l.finish(c)
			}
		}
		l.subscribe(c, room, sb)
	}
}

// connected sends the connect reply.
func (l *loop) connected(c *conn, all *connecting) {
	if all.failure != nil {
		l.refuse(c, all.id, all.failure)
		return
	}
	o := &l.server.opts
	res := &protocol.ConnectResult{
		Client: c.session.client, Version: o.Version,
		Ping: seconds(o.Server.PingInterval + time.Second - 1), Pong: true,
		Expires: true, Ttl: l.server.ttl(c.session.expires),
	}
	out, err := c.enc.AppendConnectReply(l.outBuffer(c), all.id, res, all.subs)
	l.queued(c, out, err)
	if c.held && err == nil {
		c.held = false
		for i := len(c.subs) - 1; i >= 0; i-- {
			l.queue.add(c.subs[i].shard)
			l.endDoomed(c.subs[i])
		}
		if setup := c.setup; setup != nil {
			c.setup = nil
			for _, f := range setup.deferred {
				if c.state == stateConnected { // one may have ended it
					f()
				}
			}
		}
	}
}

// setSession makes the connection that of a token that p finds good, until the
// token ends.
func (c *conn) setSession(p *policy, claims *auth.Claims, client string) {
	c.session = &session{
		credential: credentialOf(claims),
		client:     client,
		info:       claims.Info, grants: claims.Grants, rooms: claims.Channels,
		expires: claims.ExpiresAt, operator: claims.Operator,
	}
	c.checked = p.generation
	c.expires = c.loop.endOf(claims.ExpiresAt)
}

// endOf is when a token with this exp ends what it allowed: leeway later, as
// when it is verified. Both in unix seconds.
func (s *Server) endOf(exp int64) int64 {
	return exp + int64((s.policy.Load().Auth.Leeway+time.Second-1)/time.Second)
}

// endOf is when a token with this exp (unix seconds) ends what it allowed.
func (l *loop) endOf(exp int64) expiry { return l.server.expiry(l.now, l.server.endOf(exp)) }

// ttl is the time told for a token: so much less than is left that a client
// which refreshes exactly then is in time.
func (s *Server) ttl(expires int64) uint32 {
	left := time.Unix(expires, 0).Sub(s.now())
	left -= min(s.policy.Load().Auth.Revalidate, left/10)
	return max(1, seconds(min(left, maxTTL)))
}

// maxTTL is the longest time told: what a JavaScript timer can wait, 2^31-1 ms.
const maxTTL = (1<<31 - 1) * time.Millisecond

func seconds(d time.Duration) uint32 { return uint32(max(0, d) / time.Second) }

// denied logs which rule refused something to the user of c.
func (l *loop) denied(c *conn, what, why string) {
	user := ""
	if c.session != nil {
		user = c.session.user
	}
	c.db.denied(user, what, why)
}
