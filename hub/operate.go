package hub

import (
	"encoding/json"

	"hub/store"
)

// operationReply is the result of an operation, over HTTP and rpc.
type operationReply struct {
	ID        string     `json:"id"`
	Offset    uint64     `json:"offset"`
	Epoch     string     `json:"epoch"`
	Resources []resource `json:"resources"`
	Replayed  bool       `json:"replayed"`
}

// resource is a resource as clients see it.
type resource struct {
	Key     string `json:"key"`
	Version uint64 `json:"version"`
	// Value is nil when the resource does not exist (any more).
	Value   json.RawMessage `json:"value,omitempty"`
	Deleted bool            `json:"deleted,omitempty"`
}

// operate decodes an operation of w, {"id","steps","data"}, and submits it. done is
// called once with its result or why it was refused, before operate returns or by
// the store's goroutine; it must not block.
func (db *database) operate(w *caller, room string, body []byte, done func(*operationReply, *problem)) {
	done(nil, newProblem("unavailable", ""))
}

// findOperation returns what an id of w stands for, with replayed set; it blocks.
func (db *database) findOperation(w *caller, room, id string) (*operationReply, *problem) {
	return nil, newProblem("unavailable", "")
}

var _ store.Operation
