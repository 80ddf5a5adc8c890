package hub

import (
	"encoding/json"
	"errors"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/store"
)

// publishCommand handles a client's publish: the reply means committed.
func (l *loop) publishCommand(c *conn, id uint32, req *protocol.PublishRequest) {
	if req.Type != 0 || req.Key != "" || req.Removed {
		l.fail(c, id, badRequest("map publications are not supported"))
		return
	}
	l.publish(c, req.Channel, "", req.Data, func(_ store.Result, e *protocol.Error) {
		if e != nil {
			l.fail(c, id, e)
			return
		}
		l.reply(c, &protocol.Reply{Id: id, Publish: &protocol.PublishResult{}})
	})
}

// publish checks a publication of c and submits it; answer is called on the loop.
func (l *loop) publish(c *conn, room, id string, data []byte, answer func(store.Result, *protocol.Error)) {
	ns, e := c.db.namespace(room)
	if e == nil {
		e = l.permit(c, room, ns.Publish, auth.Publish, "publish")
	}
	if e == nil {
		data, e = checkData(ns, data)
	}
	if e != nil {
		answer(store.Result{}, e)
		return
	}
	p := store.Publish{
		Room: room, Caller: c.session.user, ID: id,
		Publication: store.Publication{Data: data, User: c.session.user, Client: c.session.client, ConnInfo: c.session.info},
	}
	if s := c.find(room); s != nil {
		p.Publication.ChanInfo = s.info
	}
	l.server.metrics.publications.client.Inc()
	if !ns.Durable {
		c.db.publish(ns, p, func(res store.Result, _ error) { answer(res, nil) })
		return
	}
	c.begin(false)
	c.db.publish(ns, p, func(res store.Result, err error) {
		l.later(c, func() {
			answer(res, l.server.storeError(err))
			l.finish(c)
		})
	})
}

// storeError is what the publisher of a publication is told of an error of the store.
func (s *Server) storeError(err error) *protocol.Error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrIDReused): // which has no error of the protocol elsewhere
		return errIDReused
	}
	return s.storeProblem(err).protocolError()
}

// rpcPublish handles rpc publish.
func (l *loop) rpcPublish(c *conn, id uint32, data []byte) {
	var p publishRequest
	if !l.decodeRPC(c, id, data, &p) {
		return
	}
	if len(p.ID) > maxOperationID {
		l.fail(c, id, badRequest("id is longer than 255 bytes"))
		return
	}
	l.publish(c, p.Room, p.ID, p.Data, func(res store.Result, e *protocol.Error) {
		switch e {
		case nil:
			l.rpcResult(c, id, published{Offset: res.Offset, Epoch: res.Epoch, Replayed: res.Replayed})
		case errIDReused:
			l.rpcResult(c, id, l.server.storeProblem(store.ErrIDReused))
		default:
			l.fail(c, id, e)
		}
	})
}

// publishRequest is the payload of rpc publish.
type publishRequest struct {
	Room string          `json:"room"`
	ID   string          `json:"id"`
	Data json.RawMessage `json:"data"`
}

// published is its result. Offset and epoch are absent in a room without history.
type published struct {
	Offset   uint64 `json:"offset,omitempty"`
	Epoch    string `json:"epoch,omitempty"`
	Replayed bool   `json:"replayed,omitempty"`
}

// maxOperationID bounds idempotency ids, in bytes.
const maxOperationID = 255
