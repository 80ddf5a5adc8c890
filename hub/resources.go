package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"hub/store"
)

// Reads of resources block: for a socket they run on the database's workers, after
// its loop has seen that it may; for HTTP in the request.

// resource is a resource as clients see it.
type resource struct {
	Key     string `json:"key"`
	Version uint64 `json:"version"`
	// Value is as it was sent, without insignificant space; nil when there is none.
	Value   json.RawMessage `json:"value,omitempty"`
	Deleted bool            `json:"deleted,omitempty"` // in place of Value
}

func newResource(r *store.Resource) resource {
	return resource{Key: r.Key, Version: r.Version, Value: r.Value, Deleted: r.Value == nil}
}

func newResources(all []store.Resource) []resource {
	resources := make([]resource, len(all)) // not nil, which would be null
	for i := range all {
		resources[i] = newResource(&all[i])
	}
	return resources
}

// resourceQuery asks for a page of resources.
type resourceQuery struct {
	prefix string // of the keys
	after  string // the page begins behind this key
	limit  int    // 1 to maxResources; 0: defaultResources
}

const (
	defaultResources = 100
	maxResources     = 1000
	// maxResourceReply bounds a page, and a snapshot over a socket, in bytes: what
	// one message holds.
	maxResourceReply = 256 << 10
)

// resourcePage is a part of a room's resources, by key in byte order, and the
// position that they belong to.
//
// Pages come from different moments. A client that reads all of them has live state
// when it subscribes from the position of the first one, and applies a change in an
// event only when its version is above the version that it has of that key: a page
// may be ahead of the position, and what it already shows comes again. A snapshot is
// from one moment, so every event behind its position is news. Where an SDK cannot
// subscribe from a position, subscribe first, then read a snapshot, and leave out
// the events up to its offset.
type resourcePage struct {
	Resources []resource `json:"resources"`
	// Next is the after of the next page; empty at the end.
	Next   string `json:"next,omitempty"`
	Offset uint64 `json:"offset"`
	Epoch  string `json:"epoch"`
}

// mayReadResources says why w may not read resources of a room; nil if it may.
func (db *database) mayReadResources(w *caller, room string) *problem {
	ns, e := db.namespace(room)
	if e == nil {
		e = db.permitRead(w, room)
	}
	switch {
	case e != nil:
		return protocolProblem(e)
	case !ns.Durable:
		return newProblem("not_durable", "")
	}
	return nil
}

// getResource returns one resource of a room to w, which is no connection.
func (db *database) getResource(ctx context.Context, w *caller, room, key string) (*resource, *problem) {
	if p := db.mayReadResources(w, room); p != nil {
		return nil, p
	}
	return db.readResource(ctx, room, key)
}

// listResources returns a page to w, which is no connection: at most
// maxResourceReply bytes, one resource excepted.
func (db *database) listResources(ctx context.Context, w *caller, room string, q resourceQuery) (*resourcePage, *problem) {
	if p := db.mayReadResources(w, room); p != nil {
		return nil, p
	}
	return db.readResources(ctx, room, q)
}

// snapshot returns all resources of a room, with the position that they belong to,
// to w, which is no connection; too_large when they take more than maxBytes.
func (db *database) snapshot(ctx context.Context, w *caller, room string, maxBytes int) (*resourcePage, *problem) {
	if p := db.mayReadResources(w, room); p != nil {
		return nil, p
	}
	return db.readSnapshot(ctx, room, maxBytes)
}

func (db *database) readResource(ctx context.Context, room, key string) (*resource, *problem) {
	if err := checkKey(key); err != nil {
		return nil, badBody("key %s", err)
	}
	found, err := db.store.Resource(ctx, room, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, newProblem("not_found", "there is no such resource")
	case err != nil:
		return nil, db.readProblem(ctx, "resource", err)
	}
	r := newResource(&found)
	return &r, nil
}

func (db *database) readResources(ctx context.Context, room string, q resourceQuery) (*resourcePage, *problem) {
	switch {
	case q.limit < 0 || q.limit > maxResources:
		return nil, badBody("limit must be 1 to %d", maxResources)
	case len(q.prefix) > maxKey || len(q.after) > maxKey:
		return nil, badBody("prefix and after are at most %d bytes long", maxKey)
	case q.limit == 0:
		q.limit = defaultResources
	}
	page, err := db.store.Resources(ctx, room, store.ResourceQuery{
		Prefix: q.prefix, After: q.after, Limit: q.limit, MaxBytes: maxResourceReply})
	if err != nil {
		return nil, db.readProblem(ctx, "resources", err)
	}
	n := fitting(page.Resources, maxResourceReply)
	if n == 0 {
		n = min(1, len(page.Resources))
	}
	res := newResourcePage(&page, n)
	if n < len(page.Resources) || page.More {
		res.Next = page.Resources[n-1].Key
	}
	return res, nil
}

func (db *database) readSnapshot(ctx context.Context, room string, maxBytes int) (*resourcePage, *problem) {
	page, err := db.store.Resources(ctx, room, store.ResourceQuery{MaxBytes: maxBytes})
	if err != nil {
		return nil, db.readProblem(ctx, "snapshot", err)
	}
	if page.More || fitting(page.Resources, maxBytes) < len(page.Resources) {
		return nil, newProblem("too_large", fmt.Sprintf("the room's resources take more than %d bytes here: "+
			"list them by pages and subscribe from the position of the first one", maxBytes))
	}
	return newResourcePage(&page, len(page.Resources)), nil
}

func newResourcePage(page *store.ResourcePage, n int) *resourcePage {
	return &resourcePage{Resources: newResources(page.Resources[:n]), Offset: page.Top.Offset, Epoch: page.Top.Epoch}
}

// resourceOverhead and pageOverhead are at least the bytes of a resource's JSON
// without key and value, and of a page's without resources (next is a key).
const (
	resourceOverhead = 64
	pageOverhead     = 2*maxKey + 256
)

// fitting returns how many of these resources take at most maxBytes in JSON.
func fitting(all []store.Resource, maxBytes int) int {
	left := maxBytes - pageOverhead
	for i := range all {
		if left -= len(all[i].Value) + escaped(all[i].Key) + resourceOverhead; left < 0 {
			return i
		}
	}
	return len(all)
}

// escaped is the size of a key in a JSON string. Keys have no control characters.
func escaped(key string) int {
	n := len(key)
	for i := range len(key) {
		if key[i] == '"' || key[i] == '\\' {
			n++
		}
	}
	return n
}

// readProblem is the problem that a failed read is. It has been logged.
func (db *database) readProblem(ctx context.Context, what string, err error) *problem {
	db.readFailed(ctx, what, err)
	return newProblem("unavailable", "the database cannot read")
}

func (l *loop) rpcGet(c *conn, id uint32, data []byte) {
	var req struct {
		Room string `json:"room"`
		Key  string `json:"key"`
	}
	if !l.decodeRPC(c, id, data, &req) {
		return
	}
	readRPC(l, c, id, req.Room, func() (*resource, *problem) {
		return c.db.readResource(l.server.context, req.Room, req.Key)
	})
}

func (l *loop) rpcList(c *conn, id uint32, data []byte) {
	var req struct {
		Room   string `json:"room"`
		Prefix string `json:"prefix"`
		After  string `json:"after"`
		Limit  int    `json:"limit"`
	}
	if !l.decodeRPC(c, id, data, &req) {
		return
	}
	q := resourceQuery{prefix: req.Prefix, after: req.After, limit: req.Limit}
	readRPC(l, c, id, req.Room, func() (*resourcePage, *problem) {
		return c.db.readResources(l.server.context, req.Room, q)
	})
}

func (l *loop) rpcSnapshot(c *conn, id uint32, data []byte) {
	var req struct {
		Room string `json:"room"`
	}
	if !l.decodeRPC(c, id, data, &req) {
		return
	}
	readRPC(l, c, id, req.Room, func() (*resourcePage, *problem) {
		return c.db.readSnapshot(l.server.context, req.Room, maxResourceReply)
	})
}

// readRPC answers an rpc with what read says, on a worker, if c may read the room.
func readRPC[T any](l *loop, c *conn, id uint32, room string, read func() (*T, *problem)) {
	w := c.caller()
	if p := c.db.mayReadResources(&w, room); p != nil {
		l.refuseRPC(c, id, p)
		return
	}
	l.async(c, &c.db.queries, func() func() {
		found, p := read()
		return func() {
			if p != nil {
				l.refuseRPC(c, id, p)
				return
			}
			l.rpcResult(c, id, found)
		}
	})
}
