package hub

import (
	"context"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/store"
)

// historyCommand pages through a room's publications.
func (l *loop) historyCommand(c *conn, id uint32, req *protocol.HistoryRequest) {
	ns, e := c.db.namespace(req.Channel)
	if e == nil {
		e = l.permit(c, req.Channel, ns.History, auth.History, "history")
	}
	var q historyQuery
	if e == nil {
		q, e = newHistoryQuery(ns, req)
	}
	if e != nil {
		l.fail(c, id, e)
		return
	}
	l.async(c, &c.db.queries, func() func() {
		page, e := c.db.history(l.server.context, req.Channel, q)
		return func() {
			if e != nil {
				l.fail(c, id, e)
				return
			}
			l.reply(c, &protocol.Reply{Id: id, History: historyResult(page)})
		}
	})
}

// historyQuery is a checked history request.
type historyQuery struct {
	store.Query
	epoch string // "": any
}

// newHistoryQuery checks a history request by the rules of the client protocol.
func newHistoryQuery(ns *Namespace, req *protocol.HistoryRequest) (q historyQuery, e *protocol.Error) {
	if !ns.Durable {
		return q, errNotAvailable
	}
	q.Limit, q.Reverse, q.MaxBytes = int(req.Limit), req.Reverse, maxReply
	if req.Limit < 0 {
		q.Limit = -1
	}
	if req.Since != nil {
		q.Since, q.HasSince, q.epoch = req.Since.Offset, true, req.Since.Epoch
		if req.Reverse && req.Since.Offset == 0 {
			return q, badRequest("since.offset must be above 0 with reverse")
		}
	}
	return q, nil
}

// history reads a page; it blocks.
func (db *database) history(ctx context.Context, room string, q historyQuery) (store.Page, *protocol.Error) {
	page, err := db.store.History(ctx, room, q.Query)
	switch {
	case err != nil:
		db.readFailed(ctx, "history", err)
		return page, errInternal
	case q.epoch != "" && q.epoch != page.Top.Epoch:
		return page, errUnrecoverable
	}
	return page, nil
}

// historyResult is a page as a reply that stays within maxReply, one publication
// excepted; the client asks on from the last one.
func historyResult(page store.Page) *protocol.HistoryResult {
	res := &protocol.HistoryResult{Epoch: page.Top.Epoch, Offset: page.Top.Offset}
	for i, bytes := 0, 0; i < len(page.Events); i++ {
		p := &page.Events[i]
		bytes += carried(p)
		if i > 0 && bytes > maxReply {
			break
		}
		res.Publications = append(res.Publications, wirePublication(p))
	}
	return res
}

// carried is about how many bytes a publication is on the wire.
func carried(p *store.Publication) int {
	n := len(p.Data) + len(p.User) + len(p.Client) + len(p.ConnInfo) + len(p.ChanInfo) + 128
	for name, value := range p.Tags {
		n += len(name) + len(value) + 8
	}
	return n
}

// presenceCommand tells who is in a room.
func (l *loop) presenceCommand(c *conn, id uint32, req *protocol.PresenceRequest) {
	l.askPresence(c, id, req.Channel, (*database).presence, func(all *presence) (*protocol.Reply, *protocol.Error) {
		if all.bytes > maxPresence {
			return nil, errLimitExceeded
		}
		return &protocol.Reply{Id: id, Presence: &protocol.PresenceResult{Presence: all.clients}}, nil
	})
}

// presenceStatsCommand tells how many are in a room.
func (l *loop) presenceStatsCommand(c *conn, id uint32, req *protocol.PresenceStatsRequest) {
	l.askPresence(c, id, req.Channel, (*database).presenceStats, func(all *presence) (*protocol.Reply, *protocol.Error) {
		return &protocol.Reply{Id: id, PresenceStats: all.stats()}, nil
	})
}

// askPresence asks all loops about a room, if c may know, and answers.
func (l *loop) askPresence(c *conn, id uint32, room string,
	ask func(*database, string, func(*presence, *protocol.Error)),
	reply func(*presence) (*protocol.Reply, *protocol.Error)) {
	if e := l.mayAskPresence(c, room); e != nil {
		l.fail(c, id, e)
		return
	}
	c.begin(true)
	ask(c.db, room, func(all *presence, e *protocol.Error) {
		l.later(c, func() {
			var r *protocol.Reply
			if e == nil {
				r, e = reply(all)
			}
			if e != nil {
				l.fail(c, id, e)
			} else {
				l.reply(c, r)
			}
			l.finish(c)
		})
	})
}

func (l *loop) mayAskPresence(c *conn, room string) *protocol.Error {
	ns, e := c.db.namespace(room)
	if e == nil {
		e = l.permit(c, room, ns.PresenceInfo, auth.Presence, "presence_info")
	}
	if e == nil && !ns.Presence {
		e = errNotAvailable
	}
	return e
}
