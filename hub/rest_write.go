package hub

import (
	"encoding/json"

	"hub/auth"
	"hub/store"
)

// restPublished is the result of a publication. Offset and epoch are absent in a
// room without history.
type restPublished struct {
	Offset   uint64 `json:"offset,omitempty"`
	Epoch    string `json:"epoch,omitempty"`
	Replayed bool   `json:"replayed"`
}

func restPublish(c *call) *problem {
	ns, e := c.db.namespace(c.room)
	if e == nil {
		e = c.db.permit(&c.caller, c.room, ns.Publish, auth.Publish, "publish")
	}
	if e != nil {
		return protocolProblem(e)
	}
	body, p := c.body()
	if p != nil {
		return p
	}
	var req struct {
		ID   string          `json:"id"`
		Data json.RawMessage `json:"data"`
	}
	if err := decodeStrict(body, &req); err != nil {
		return newProblem("bad_request", err.Error())
	}
	switch {
	case len(req.ID) > maxOperationID:
		return newProblem("bad_request", "id is longer than 255 bytes")
	case req.ID != "" && !ns.Durable:
		return newProblem("not_durable", "the room has no history, so ids are not remembered")
	}
	data, e := checkData(ns, req.Data)
	if e == errLimitExceeded {
		return newProblem("too_large", "data is larger than max_message of the room's namespace")
	}
	if e != nil {
		return protocolProblem(e)
	}
	type outcome struct {
		result store.Result
		err    error
	}
	done := make(chan outcome, 1)
	w := &c.caller
	c.db.server.metrics.publications.http.Inc()
	c.db.publish(ns, store.Publish{Room: c.room, Caller: w.user, ID: req.ID,
		Publication: store.Publication{Data: data, User: w.user, ConnInfo: w.info},
	}, func(result store.Result, err error) { done <- outcome{result, err} })
	o := <-done
	if p := c.db.server.storeProblem(o.err); p != nil {
		return p
	}
	return c.answer(restPublished{Offset: o.result.Offset, Epoch: o.result.Epoch, Replayed: o.result.Replayed})
}

func restOperate(c *call) *problem {
	body, p := c.body()
	if p != nil {
		return p
	}
	var result *operationReply
	done := make(chan struct{})
	c.db.operate(&c.caller, c.room, body, func(r *operationReply, refusal *problem) {
		result, p = r, refusal
		close(done)
	})
	<-done
	if p != nil {
		return p
	}
	return c.answer(result)
}
