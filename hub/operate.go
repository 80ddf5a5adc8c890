package hub

import (
	"context"
	"errors"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/store"
)

// An operation comes by rpc from a loop or by HTTP. Both decode it, ask for
// permission and submit it to the database's write queue; what the store answers is
// worded here for both. Its event is an ordinary publication, which an operator that
// is subscribed gets too.

// operationReply is the result of an operation, over HTTP and rpc.
type operationReply struct {
	ID     string `json:"id"`
	Offset uint64 `json:"offset"` // of its event
	Epoch  string `json:"epoch"`
	// Resources holds each changed resource once, as the operation left it.
	Resources []resource `json:"resources"`
	// Replayed: an earlier request with this id was applied, this one was not.
	Replayed bool `json:"replayed"`
}

func newOperationReply(id string, r *store.OperationResult) *operationReply {
	return &operationReply{ID: id, Offset: r.Offset, Epoch: r.Epoch, Resources: newResources(r.Resources), Replayed: r.Replayed}
}

// operate decodes an operation of w, {"id","steps","data"}, and submits it. done is
// called once with its result or why it was refused, before operate returns or by
// the store's goroutine; it must not block. w must not be a connection: its
// permissions belong to its loop.
func (db *database) operate(w *caller, room string, body []byte, done func(*operationReply, *problem)) {
	var req operationRequest
	if err := decodeStrict(body, &req); err != nil {
		done(nil, badBody("%s", err))
		return
	}
	o, p := db.operation(w, room, &req)
	if p != nil {
		done(nil, p)
		return
	}
	db.server.metrics.publications.http.Inc()
	db.store.Operate(o, func(r store.OperationResult, err error) { done(db.operated(w, &o, &r, err)) })
}

// operation checks what w asks for in a room, and whether it may.
func (db *database) operation(w *caller, room string, req *operationRequest) (o store.Operation, p *problem) {
	ns, e := db.namespace(room)
	if e != nil {
		return o, protocolProblem(e)
	}
	if o, p = req.operation(ns.MaxMessage); p != nil {
		return o, p
	}
	if e := db.permitSteps(w, room, o.Steps); e != nil {
		return o, protocolProblem(e)
	}
	if !ns.Durable {
		return o, newProblem("not_durable", "")
	}
	o.Room, o.Caller = room, w.user
	o.Publisher.User, o.Publisher.Client, o.Publisher.ConnInfo = w.user, w.client(), w.info
	if s := w.subscription(room); s != nil {
		o.Publisher.ChanInfo = s.info
	}
	return o, nil
}

// permitSteps decides whether w may have these steps done in a room: where the
// namespace lets it operate, it may do anything, elsewhere its grants decide about
// each step.
func (db *database) permitSteps(w *caller, room string, steps []store.Step) *protocol.Error {
	ns, e := db.namespace(room)
	if e != nil {
		return e
	}
	if ns.Operate == AccessServer || !w.grants.MayOperate(room) {
		return db.permit(w, room, ns.Operate, auth.Operate, "operate")
	}
	if db.may(w, room, ns.Operate, auth.Operate) {
		return nil
	}
	for i := range steps {
		if word := stepWords[steps[i].Op]; !w.grants.AllowStep(room, word, steps[i].Key, w.user) {
			db.denied(w.user, "operate", "no grant for "+word+" on this key in "+room)
			return errPermissionDenied
		}
	}
	return nil
}

// operated is what w is told of an operation. The result of an earlier one needs
// the permission of now: an id is no way around a grant that was lost. Nor is an
// operation a way to read: who may not read the room's resources gets keys and
// versions without values.
func (db *database) operated(w *caller, o *store.Operation, r *store.OperationResult, err error) (*operationReply, *problem) {
	if err != nil {
		p := db.server.storeProblem(err)
		if p.Current != nil && !db.mayRead(w, o.Room) {
			p.Current.Value = nil
		}
		return nil, p
	}
	if !r.Replayed {
		db.operations.Add(1)
	} else if e := db.permitSteps(w, o.Room, o.Steps); e != nil {
		return nil, protocolProblem(e)
	}
	return db.operationReply(w, o.Room, o.ID, r), nil
}

// operationReply is the result of an operation as w may see it.
func (db *database) operationReply(w *caller, room, id string, r *store.OperationResult) *operationReply {
	reply := newOperationReply(id, r)
	if !db.mayRead(w, room) {
		for i := range reply.Resources {
			reply.Resources[i].Value = nil
		}
	}
	return reply
}

// findOperation returns what an id of w stands for, with replayed set; it blocks.
// It shows a result to those who may read the room's resources and to those who may
// still change every resource in it, or, if it was a publication, publish.
func (db *database) findOperation(ctx context.Context, w *caller, room, id string) (*operationReply, *problem) {
	ns, e := db.namespace(room)
	switch {
	case e != nil:
		return nil, protocolProblem(e)
	case id == "" || len(id) > maxOperationID:
		return nil, badBody("id must be 1 to %d bytes long", maxOperationID)
	case !ns.Durable:
		return nil, newProblem("not_durable", "")
	}
	r, err := db.store.FindOperation(ctx, room, w.user, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, newProblem("not_found", "no operation or publication of this caller has this id; it was not applied, or is forgotten")
	case err != nil:
		return nil, db.readProblem(ctx, "operation", err)
	case !db.mayFind(w, room, ns, r.Resources):
		return nil, protocolProblem(db.permitRead(w, room))
	}
	r.Replayed = true
	return db.operationReply(w, room, id, &r), nil
}

// mayFind says whether w may see the result of an operation of its own.
func (db *database) mayFind(w *caller, room string, ns *Namespace, changed []store.Resource) bool {
	switch {
	case len(changed) == 0:
		if db.may(w, room, ns.Publish, auth.Publish) {
			return true
		}
	case db.may(w, room, ns.Operate, auth.Operate):
		return true
	case ns.Operate != AccessServer && db.mayChangeAll(w, room, changed):
		return true
	}
	return db.mayRead(w, room)
}

// mayChangeAll says whether grants of w allow some step on each of these resources.
func (db *database) mayChangeAll(w *caller, room string, changed []store.Resource) bool {
	for i := range changed {
		allowed := false
		for _, word := range stepWords {
			allowed = allowed || word != "" && w.grants.AllowStep(room, word, changed[i].Key, w.user)
		}
		if !allowed {
			return false
		}
	}
	return true
}

// rpcOperate handles rpc operate.
func (l *loop) rpcOperate(c *conn, id uint32, data []byte) {
	var req struct {
		Room string `json:"room"`
		operationRequest
	}
	if !l.decodeRPC(c, id, data, &req) {
		return
	}
	w := c.caller()
	o, p := c.db.operation(&w, req.Room, &req.operationRequest)
	if p != nil {
		l.refuseRPC(c, id, p)
		return
	}
	l.server.metrics.publications.client.Inc()
	c.begin(false)
	c.db.store.Operate(o, func(r store.OperationResult, err error) {
		l.later(c, func() {
			w := c.caller() // with the grants of now
			if reply, p := c.db.operated(&w, &o, &r, err); p != nil {
				l.refuseRPC(c, id, p)
			} else {
				l.rpcResult(c, id, reply)
			}
			l.finish(c)
		})
	})
}
