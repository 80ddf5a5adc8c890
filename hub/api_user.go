package hub

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/centrifugal/protocol"
)

// apiUser selects connections: those of a user, or one of them.
type apiUser struct {
	User   string `json:"user"`
	Client string `json:"client"`
}

func (u *apiUser) check() *protocol.Error {
	if u.User == "" {
		return badRequest("user is missing")
	}
	return nil
}

// eachConn runs f on the loops for every connection that u selects, and waits.
func (db *database) eachConn(u apiUser, f func(*loop, *conn)) {
	db.server.eachLoop(func(l *loop) {
		var next *conn
		for first := l.users[userKey{db, u.User}]; first != nil; first = next {
			c := first
			next = c.userNext // f may end c
			switch {
			case u.Client != "" && u.Client != c.session.client:
			case c.held: // f may push, and the connect reply comes first
				if c.setup == nil {
					c.setup = &setup{}
				}
				c.setup.deferred = append(c.setup.deferred, func() { f(l, c) })
			default:
				l.guard(c, func() { f(l, c) })
			}
		}
	})
}

// eachLoop runs f on every loop, all at once, and waits, unless the loops end
// meanwhile.
func (s *Server) eachLoop(f func(*loop)) {
	done := make(chan struct{}, len(s.loops))
	for _, l := range s.loops {
		l.post(func() {
			f(l)
			done <- struct{}{}
		})
	}
	s.awaitLoops(done)
}

// awaitLoops returns when every loop has said done, or they have ended.
func (s *Server) awaitLoops(done <-chan struct{}) {
	for range s.loops {
		select {
		case <-done:
		case <-s.ended:
			return
		}
	}
}

func apiUnsubscribe(db *database, body []byte) func() (any, *protocol.Error) {
	type request struct {
		apiUser
		Channel string `json:"channel"`
	}
	return decoded(body, func(req *request) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			if e := req.check(); e != nil {
				return nil, e
			}
			if err := ValidRoom(req.Channel); err != nil {
				return nil, badRequest(err.Error())
			}
			db.eachConn(req.apiUser, func(l *loop, c *conn) {
				if s := c.find(req.Channel); s != nil {
					l.unsubscribe(s, unsubServer)
				}
			})
			return struct{}{}, nil
		}
	})
}

func apiDisconnect(db *database, body []byte) func() (any, *protocol.Error) {
	type request struct {
		apiUser
		Whitelist  []string `json:"whitelist"` // connections that stay
		Disconnect *struct {
			Code   uint16 `json:"code"`
			Reason string `json:"reason"`
		} `json:"disconnect"`
	}
	return decoded(body, func(req *request) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			if e := req.check(); e != nil {
				return nil, e
			}
			code := closeForced
			if d := req.Disconnect; d != nil {
				if d.Code < 3000 || d.Code > 4999 {
					return nil, badRequest("disconnect.code must be between 3000 and 4999")
				}
				code = disconnectCode{d.Code, d.Reason}
			}
			db.eachConn(req.apiUser, func(l *loop, c *conn) {
				for _, id := range req.Whitelist {
					if id == c.session.client {
						return
					}
				}
				l.disconnect(c, code)
			})
			return struct{}{}, nil
		}
	})
}

// lastExpiry is the end of the year 9999, in unix seconds: as far as tokens go.
const lastExpiry = 253402300799

func validExpiry(at int64, now time.Time) bool { return at > now.Unix() && at <= lastExpiry }

func apiRefresh(db *database, body []byte) func() (any, *protocol.Error) {
	type request struct {
		apiUser
		Expired  bool  `json:"expired"`
		ExpireAt int64 `json:"expire_at"` // unix seconds
	}
	return decoded(body, func(req *request) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			if e := req.check(); e != nil {
				return nil, e
			}
			if !req.Expired && !validExpiry(req.ExpireAt, db.server.now()) {
				return nil, badRequest("expire_at must be in the future, or expired true")
			}
			db.eachConn(req.apiUser, func(l *loop, c *conn) {
				if req.Expired {
					l.disconnect(c, closeExpired)
					return
				}
				c.expires = l.server.expiry(l.now, req.ExpireAt)
				l.schedule(c)
				l.push(c, &protocol.Push{Refresh: &protocol.Refresh{Expires: true, Ttl: l.server.ttl(req.ExpireAt)}})
			})
			return struct{}{}, nil
		}
	})
}

func apiSubscribe(db *database, body []byte) func() (any, *protocol.Error) {
	type request struct {
		apiUser
		Channel      string          `json:"channel"`
		Info         json.RawMessage `json:"info"`
		Data         json.RawMessage `json:"data"`
		ExpireAt     int64           `json:"expire_at"`
		RecoverSince *apiPosition    `json:"recover_since"`
	}
	return decoded(body, func(req *request) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			if e := req.check(); e != nil {
				return nil, e
			}
			if _, e := db.namespace(req.Channel); e != nil {
				return nil, e
			}
			if req.ExpireAt != 0 && !validExpiry(req.ExpireAt, db.server.now()) {
				return nil, badRequest("expire_at must be in the future, or left out")
			}
			var refusal atomic.Pointer[protocol.Error]
			db.eachConn(req.apiUser, func(l *loop, c *conn) {
				sb := &subscribing{made: byServer, budget: new(int), info: req.Info, expires: req.ExpireAt}
				if since := req.RecoverSince; since != nil {
					sb.recover, sb.since, sb.epoch = true, since.Offset, since.Epoch
				}
				sb.done = func(l *loop, res *protocol.SubscribeResult, _ [][]byte, e *protocol.Error) {
					if e != nil && e != errAlreadySubbed {
						refusal.Store(e)
					}
					if e == nil { // who is subscribed already stays so
						l.push(c, &protocol.Push{Channel: req.Channel, Subscribe: &protocol.Subscribe{
							Recoverable: res.Recoverable, Positioned: res.Positioned,
							Epoch: res.Epoch, Offset: res.Offset, Data: raw(req.Data)}})
					}
				}
				l.subscribe(c, req.Channel, sb)
			})
			if e := refusal.Load(); e != nil { // as far as known by now: others may be on their way
				return nil, e
			}
			return struct{}{}, nil
		}
	})
}
