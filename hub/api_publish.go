package hub

import (
	"encoding/json"

	"github.com/centrifugal/protocol"

	"hub/store"
)

// apiPublication is the part of a publish request that broadcast shares.
type apiPublication struct {
	Data           json.RawMessage   `json:"data"`
	B64Data        []byte            `json:"b64data"`
	Tags           map[string]string `json:"tags"`
	IdempotencyKey string            `json:"idempotency_key"`
}

// apiPublishRequest is the request of publish. Fields that would change what a
// publication means and are not supported are unknown here, thus refused.
type apiPublishRequest struct {
	Channel string `json:"channel"`
	apiPublication
}

type apiBroadcastRequest struct {
	Channels []string `json:"channels"`
	apiPublication
}

// apiPublished is the result of publish.
type apiPublished struct {
	Offset uint64 `json:"offset,omitempty"`
	Epoch  string `json:"epoch,omitempty"`
}

func apiPublish(db *database, body []byte) func() (any, *protocol.Error) {
	return decoded(body, func(req *apiPublishRequest) func() (any, *protocol.Error) {
		return db.apiPublish(req.Channel, &req.apiPublication)
	})
}

// apiPublish submits a publication of a server.
func (db *database) apiPublish(room string, req *apiPublication) func() (any, *protocol.Error) {
	ns, e := db.namespace(room)
	if e != nil {
		return refused(e)
	}
	data := []byte(req.Data)
	if len(req.B64Data) > 0 {
		data = req.B64Data
	}
	switch data, e = checkData(ns, data); {
	case e != nil:
		return refused(e)
	case tagBytes(req.Tags) > ns.MaxMessage-len(data):
		return refused(errLimitExceeded)
	case len(req.IdempotencyKey) > maxOperationID:
		return refused(badRequest("idempotency_key is longer than 255 bytes"))
	case req.IdempotencyKey != "" && !ns.Durable:
		return refused(errNotAvailable)
	}
	type outcome struct {
		res store.Result
		err error
	}
	done := make(chan outcome, 1)
	db.server.metrics.publications.api.Inc()
	// Users cannot have an empty name, so a server's ids are its own.
	db.publish(ns, store.Publish{Room: room, ID: req.IdempotencyKey,
		Publication: store.Publication{Data: data, Tags: req.Tags},
	}, func(res store.Result, err error) { done <- outcome{res, err} })
	return func() (any, *protocol.Error) {
		o := <-done
		if e := db.server.storeError(o.err); e != nil {
			return nil, e
		}
		return apiPublished{Offset: o.res.Offset, Epoch: o.res.Epoch}, nil
	}
}

// tagBytes is the size of tags, which count with the data.
func tagBytes(tags map[string]string) (n int) {
	for name, value := range tags {
		n += len(name) + len(value)
	}
	return n
}

func apiBroadcast(db *database, body []byte) func() (any, *protocol.Error) {
	return decoded(body, func(req *apiBroadcastRequest) func() (any, *protocol.Error) {
		if len(req.Channels) == 0 {
			return refused(badRequest("channels is empty"))
		}
		waits := make([]func() (any, *protocol.Error), len(req.Channels))
		for i, room := range req.Channels {
			waits[i] = db.apiPublish(room, &req.apiPublication)
		}
		return func() (any, *protocol.Error) {
			responses := make([]apiReply, len(waits))
			for i, wait := range waits {
				result, e := wait()
				responses[i] = apiReply{Error: apiErrorOf(e), Result: result}
			}
			return map[string]any{"responses": responses}, nil
		}
	})
}

func apiHistoryRemove(db *database, body []byte) func() (any, *protocol.Error) {
	return decoded(body, func(req *apiChannelRequest) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			ns, e := db.namespace(req.Channel)
			switch {
			case e != nil:
				return nil, e
			case !ns.Durable:
				return nil, errNotAvailable
			}
			done := make(chan error, 1)
			db.store.RemoveHistory(req.Channel, func(_ store.Result, err error) { done <- err })
			if e := db.server.storeError(<-done); e != nil {
				return nil, e
			}
			return struct{}{}, nil
		}
	})
}
