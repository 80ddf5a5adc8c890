package hub

import (
	"encoding/json"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
)

// subscribing is a subscription on its way: from the request to the moment when
// its reply is queued and its cursor stands in the room's log. Owned by the loop.
type subscribing struct {
	// the request
	recover   bool
	since     uint64
	epoch     string
	strict    bool // error 112 rather than recovered:false
	joinLeave bool
	// what allows it; token, info and expires (unix seconds, 0: never) are those of a
	// subscription token, or what the server API gave
	made    maker
	token   *credential
	info    json.RawMessage
	expires int64
	// budget is the bytes of publications that the reply may still take.
	budget *int
	// done is called once, on the loop, at the moment from which the subscription
	// is live, or with an error. It must queue the reply.
	done func(l *loop, res *protocol.SubscribeResult, pubs [][]byte, e *protocol.Error)

	sub   *sub
	ended bool
}

// end calls done.
func (sb *subscribing) end(l *loop, res *protocol.SubscribeResult, pubs [][]byte, e *protocol.Error) {
	sb.ended = true
	sb.done(l, res, pubs, e)
}

// flagRejectUnrecovered is bit 2 of a subscribe request's flag.
const flagRejectUnrecovered = 1 << 1

func (sb *subscribing) request(req *protocol.SubscribeRequest) {
	sb.recover, sb.since, sb.epoch = req.Recover, req.Offset, req.Epoch
	sb.strict = req.Flag&flagRejectUnrecovered != 0
	sb.joinLeave = req.JoinLeave
}

// subscribeCommand handles a client's subscribe command.
func (l *loop) subscribeCommand(c *conn, id uint32, req *protocol.SubscribeRequest) {
	if req.Type != 0 || req.Tf != nil || req.Phase != 0 {
		l.fail(c, id, badRequest("type, phase and tf are not supported"))
		return
	}
	budget := maxRecovered
	sb := &subscribing{budget: &budget}
	sb.request(req)
	inFlight := false
	sb.done = func(l *loop, res *protocol.SubscribeResult, pubs [][]byte, e *protocol.Error) {
		if e != nil {
			l.fail(c, id, e)
		} else {
			l.subscribeReply(c, id, res, pubs)
		}
		if inFlight {
			l.finish(c)
		}
	}
	start := func() {
		l.subscribe(c, req.Channel, sb)
		if !sb.ended {
			inFlight = true
			c.begin(true)
		}
	}
	if req.Token == "" {
		start()
		return
	}
	verify(l, c, req.Token, (*auth.Verifier).Subscription, func(claims *auth.SubscriptionClaims, err error) {
		token, e := l.checkSubscriptionToken(c, req.Channel, claims, err)
		if e != nil {
			l.fail(c, id, e)
			return
		}
		sb.made, sb.token, sb.info, sb.expires = byToken, token, claims.Info, claims.ExpiresAt
		start()
	})
}

func (l *loop) subscribeReply(c *conn, id uint32, res *protocol.SubscribeResult, pubs [][]byte) {
	if !c.open() {
		return
	}
	out, err := c.enc.AppendSubscribeReply(l.outBuffer(c), id, res, pubs)
	l.queued(c, out, err)
}

// checkSubscriptionToken returns what is kept of a subscription token, or says why
// it is not good for this.
func (l *loop) checkSubscriptionToken(c *conn, room string, claims *auth.SubscriptionClaims, err error) (*credential, *protocol.Error) {
	var token credential
	if err == nil {
		token = credential{user: claims.User, id: claims.ID, keyID: claims.KeyID, issuedAt: claims.IssuedAt}
	}
	is, why := l.server.policy.Load().standing(c.db.name, &token, err)
	switch {
	case is != tokenGood:
	case claims.Channel != room:
		is, why = tokenInvalid, "it is for another room"
	case claims.User != c.session.user:
		is, why = tokenInvalid, "it is another user's"
	default:
		return &token, nil
	}
	l.denied(c, "subscribe", "subscription token: "+why)
	switch is {
	case tokenPending:
		return nil, errKeysPending
	case tokenExpired, tokenRevoked:
		return nil, errTokenExpired
	}
	return nil, errPermissionDenied
}

// subscribe begins a subscription. sb.sub is set while it is on its way.
func (l *loop) subscribe(c *conn, name string, sb *subscribing) {
	ns, e := c.db.namespace(name)
	if e == nil {
		e = l.maySubscribe(c, name, ns, sb)
	}
	if e != nil {
		sb.end(l, nil, nil, e)
		return
	}
	r := c.db.room(name, ns)
	for !r.join(l, c.enc) {
		r = c.db.room(name, ns)
	}
	s := &sub{conn: c, shard: &r.shards[l.index], index: -1, made: sb.made, token: sb.token, info: sb.info}
	s.joinLeave = ns.JoinLeave && (sb.joinLeave || sb.made.server())
	if sb.expires > 0 {
		s.expires = l.endOf(sb.expires)
	}
	sb.sub = s
	c.subs = append(c.subs, s)
	wait, e := r.whenReady(func(e *protocol.Error) { l.later(c, func() { l.position(sb, e) }) })
	if !wait {
		l.position(sb, e)
	}
}

func (l *loop) maySubscribe(c *conn, name string, ns *Namespace, sb *subscribing) *protocol.Error {
	if c.find(name) != nil {
		return errAlreadySubbed
	}
	if limit := l.server.policy.Load().Limits.Subscriptions; limit > 0 && len(c.subs) >= limit {
		return errLimitExceeded
	}
	if sb.made != byGrant {
		return nil
	}
	return l.permit(c, name, ns.Subscribe, auth.Subscribe, "subscribe")
}

// position puts the cursor where the client left off, or at the head. The
// room's own position is known.
func (l *loop) position(sb *subscribing, e *protocol.Error) {
	s := sb.sub
	r := s.shard.room
	if !s.listed() {
		return
	}
	if e != nil {
		sb.fail(l, e)
		return
	}
	s.generation = r.generation.Load()
	head, epoch := r.position()
	s.cursor = head
	if !r.durable() {
		l.live(sb, &protocol.SubscribeResult{}, nil)
		return
	}
	if !sb.recover {
		l.live(sb, sb.result(head, epoch), nil)
		return
	}
	if sb.epoch != epoch || sb.since > head {
		sb.unrecovered(l)
		return
	}
	s.cursor = sb.since
	sb.finish(l)
}

// finish answers a recovery from the log, or from a page of the store once it
// is there.
func (sb *subscribing) finish(l *loop) {
	s := sb.sub
	r := s.shard.room
	head, epoch := r.position()
	if s.generation != r.generation.Load() || s.cursor < r.floor.Load() {
		sb.unrecovered(l)
		return
	}
	var pubs [][]byte
	if s.cursor < head {
		s.shard.look(l)
		v := &l.pubs[s.conn.enc]
		seg := v.find(s.cursor)
		switch {
		case seg == nil:
			s.waiting, s.recovery = true, sb
			s.shard.behind = append(s.shard.behind, s)
			r.requestPage(s.cursor)
			return
		case !r.retains(s.cursor, head, seg):
			sb.unrecovered(l)
			return
		}
		if *sb.budget > 0 {
			pubs, s.cursor = seg.publications(s.cursor, *sb.budget)
			for _, p := range pubs {
				*sb.budget -= len(p)
			}
		}
	}
	res := sb.result(sb.since, epoch)
	res.WasRecovering, res.Recovered = true, true
	l.live(sb, res, pubs)
}

// retains says whether the publication after cursor, in seg, still belongs to
// the room's history.
func (r *room) retains(cursor, head uint64, seg *run) bool {
	ns := r.options.Load()
	if head-cursor > ns.HistorySize {
		return false
	}
	ttl := ns.HistoryTTL
	return ttl == 0 || time.Since(time.UnixMilli(seg.times[cursor+1-seg.first])) < ttl
}

// unrecovered answers that the client must start over.
func (sb *subscribing) unrecovered(l *loop) {
	if sb.strict {
		sb.fail(l, errUnrecoverable)
		return
	}
	r := sb.sub.shard.room
	sb.sub.generation = r.generation.Load()
	head, epoch := r.position()
	sb.sub.cursor = head
	res := sb.result(head, epoch)
	res.WasRecovering = true
	l.live(sb, res, nil)
}

// result is the part of the reply that every durable room's has.
func (sb *subscribing) result(offset uint64, epoch string) *protocol.SubscribeResult {
	return &protocol.SubscribeResult{Recoverable: true, Positioned: true, Epoch: epoch, Offset: offset}
}

// fail takes the subscription back.
func (sb *subscribing) fail(l *loop, e *protocol.Error) {
	l.removeSub(sb.sub)
	sb.end(l, nil, nil, e)
}

// live makes the subscription follow its room from its cursor on.
func (l *loop) live(sb *subscribing, res *protocol.SubscribeResult, pubs [][]byte) {
	s := sb.sub
	sh, r := s.shard, s.shard.room
	if s.expires.wall > 0 {
		res.Expires, res.Ttl = true, l.server.ttl(sb.expires)
	}
	s.index = len(sh.subs)
	sh.subs = append(sh.subs, s)
	r.db.stats[l.index].subscriptions.Add(1)
	r.members.Add(1)
	if s.joinLeave {
		s.signal = r.signalHead(s.conn.enc)
	}
	sb.end(l, res, pubs, nil)
	if s.index < 0 { // done has ended it
		return
	}
	if s.expires.wall > 0 {
		l.schedule(s.conn)
	}
	if s.cursor < r.head.Load() {
		l.queue.add(sh)
	}
	r.signalJoin(s)
	l.endDoomed(s)
}

// endDoomed ends a subscription that could not be ended earlier.
func (l *loop) endDoomed(s *sub) {
	if s.doomed != nil {
		l.unsubscribe(s, *s.doomed)
	}
}

// listed says whether the subscription is still among its connection's.
func (s *sub) listed() bool {
	for _, have := range s.conn.subs {
		if have == s {
			return true
		}
	}
	return false
}

// unsubscribe ends a subscription and tells the client. One that is still on
// its way, or belongs to a connect command, is ended as soon as the client knows
// of it.
func (l *loop) unsubscribe(s *sub, code unsubscribeCode) {
	if s.index < 0 || s.conn.held {
		s.doomed = &code
		return
	}
	l.server.metrics.unsubscribes.WithLabelValues(unsubscribeLabel(code.code)).Inc()
	name := s.shard.room.name
	l.removeSub(s)
	l.push(s.conn, &protocol.Push{Channel: name, Unsubscribe: &protocol.Unsubscribe{Code: code.code, Reason: code.reason}})
}

// unsubscribeCommand handles a client's unsubscribe command.
func (l *loop) unsubscribeCommand(c *conn, id uint32, req *protocol.UnsubscribeRequest) {
	if s := c.find(req.Channel); s != nil {
		l.removeSub(s)
	}
	l.reply(c, &protocol.Reply{Id: id, Unsubscribe: &protocol.UnsubscribeResult{}})
}

// removeSub takes a subscription out of its room and its connection.
func (l *loop) removeSub(s *sub) {
	c, sh := s.conn, s.shard
	for i, have := range c.subs {
		if have == s {
			last := len(c.subs) - 1
			c.subs[i], c.subs[last] = c.subs[last], nil
			c.subs = c.subs[:last]
			break
		}
	}
	s.waiting, s.recovery = false, nil
	if s.index >= 0 {
		sh.remove(s)
		sh.room.db.stats[l.index].subscriptions.Add(-1)
		sh.room.signalLeave(s) // before it is uncounted: as its join was, after it was counted
		sh.room.members.Add(-1)
	}
	sh.room.leave(l, c.enc)
}

// remove takes s out of the shard such that a sweep under way neither skips nor
// repeats anybody: those before pos stay before it.
func (sh *shard) remove(s *sub) {
	i := s.index
	if i < sh.pos {
		sh.pos--
		sh.move(sh.pos, i)
		i = sh.pos
	}
	last := len(sh.subs) - 1
	if i != last { // the last one may have moved to where s was
		sh.move(last, i)
	}
	sh.subs[last] = nil
	sh.subs = sh.subs[:last]
	s.index = -1
}

func (sh *shard) move(from, to int) {
	sh.subs[to] = sh.subs[from]
	sh.subs[to].index = to
}

// historyRemoved ends the subscriptions that followed a history that is gone.
func (l *loop) historyRemoved(sh *shard, generation uint32) {
	for i := len(sh.subs) - 1; i >= 0; i-- {
		if i < len(sh.subs) && sh.subs[i].generation < generation {
			l.unsubscribe(sh.subs[i], unsubInsufficient)
		}
	}
}

// clientInfo is what others see of a subscriber.
func (s *sub) clientInfo() *protocol.ClientInfo {
	c := s.conn
	return &protocol.ClientInfo{User: c.session.user, Client: c.session.client, ConnInfo: raw(c.session.info), ChanInfo: raw(s.info)}
}

func raw(m json.RawMessage) protocol.Raw { return protocol.Raw(m) }
