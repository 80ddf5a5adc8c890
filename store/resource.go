package store

import (
	"context"
	"errors"
)

// What callers of operations and of reads of resources branch on.
var (
	// ErrNotFound: there is no such resource or operation.
	ErrNotFound = errors.New("store: not found")
	// ErrTooLarge: the event of the operation would be larger than its bound.
	ErrTooLarge = errors.New("store: too large")
)

// Resource is a versioned JSON value of a room.
type Resource struct {
	Key string
	// Version is 1 after the first step on the key and grows by one with each;
	// deletion counts and a later creation goes on from there.
	Version uint64
	// Value is JSON without insignificant space, otherwise as it was sent; nil
	// when the resource is deleted. It is immutable.
	Value []byte
}

// ResourceQuery is a question about a room's resources.
type ResourceQuery struct {
	Prefix string // of the keys
	After  string // the page begins behind this key; "" = at the first
	// Limit bounds the resources, MaxBytes their keys and values, at least one
	// resource excepted; 0 = no bound.
	Limit, MaxBytes int
}

// ResourcePage is a part of a room's resources, by key (in byte order), with the
// position that they belong to, from one read transaction.
type ResourcePage struct {
	Top       Position
	Resources []Resource
	More      bool // there are resources behind the last one
}

// Resource returns one resource, or [ErrNotFound].
func (db *DB) Resource(ctx context.Context, room, key string) (Resource, error) {
	res := Resource{Key: key}
	found := false
	err := db.readers.use(ctx, func(r *reader) (err error) {
		var version int64
		found, err = r.row(readResource, []any{room, key}, &version, &res.Value)
		res.Version = uint64(version)
		return err
	})
	switch {
	case err != nil:
		return Resource{}, err
	case !found:
		return Resource{}, ErrNotFound
	}
	return res, nil
}

// Resources returns a page. A room without any has an empty one. Without bounds,
// or with MaxBytes alone, it is a snapshot: all of the room's resources, unless
// More says that they did not fit. The position is never ahead of what
// Options.Committed was told, so a subscription can go on from it.
func (db *DB) Resources(ctx context.Context, room string, q ResourceQuery) (ResourcePage, error) {
	var page ResourcePage
	err := db.readers.do(ctx, func(r *reader) error {
		row, ok, err := r.room(room)
		if err != nil {
			return err
		}
		page = ResourcePage{Top: Position{Offset: row.top, Epoch: roomEpoch(db.epoch, row.incarnation)}}
		if !ok {
			return nil
		}
		return r.resources(ctx, row.id, q, &page)
	})
	if err == nil {
		err = db.awaitDelivery(ctx, room, page.Top)
	}
	if err != nil {
		return ResourcePage{}, err
	}
	return page, nil
}

func (r *reader) resources(ctx context.Context, room int64, q ResourceQuery, page *ResourcePage) (err error) {
	low, end := keyRange(q.Prefix, q.After)
	limit := -1
	if q.Limit > 0 {
		limit = q.Limit + 1 // one more tells that there is more
	}
	rows, err := r.link.stmts[readResources].QueryContext(ctx, room, low, end, limit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for bytes := 0; rows.Next(); {
		var res Resource
		var version int64
		if err := rows.Scan(&res.Key, &version, &res.Value); err != nil {
			return err
		}
		res.Version = uint64(version)
		bytes += len(res.Key) + len(res.Value)
		n := len(page.Resources)
		if q.Limit > 0 && n == q.Limit || q.MaxBytes > 0 && bytes > q.MaxBytes && n > 0 {
			page.More = true
			return nil
		}
		page.Resources = append(page.Resources, res)
	}
	return rows.Err()
}

// keyRange returns the range of the keys with a prefix that come after one: from
// low up to end, which is not part of it. Keys are compared as bytes, so end need
// not be UTF-8.
func keyRange(prefix, after string) (low string, end any) {
	low = prefix
	if after != "" {
		low = max(prefix, after+"\x00") // the next key that there could be
	}
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return low, prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return low, []byte{0} // any text is less than any blob (sqlite.org/datatype3.html, section 4.1)
}

// FindOperation returns the result that an id of a caller stands for, Replayed, or
// [ErrNotFound]. Ids of publications are found too; they have no resources.
func (db *DB) FindOperation(ctx context.Context, room, caller, id string) (OperationResult, error) {
	var (
		result       OperationResult
		offset, time int64
		changes      []byte
		found        bool
	)
	err := db.readers.use(ctx, func(r *reader) (err error) {
		found, err = r.row(readID, []any{room, caller, id}, &offset, &result.Epoch, &time, &changes)
		return err
	})
	switch {
	case err != nil:
		return OperationResult{}, err
	case !found || db.options.forgotten(time, db.options.Now().UnixMilli()):
		return OperationResult{}, ErrNotFound
	}
	if err := db.awaitDelivery(ctx, room, Position{Offset: uint64(offset), Epoch: result.Epoch}); err != nil {
		return OperationResult{}, err
	}
	result.Offset, result.Replayed = uint64(offset), true
	if changes != nil {
		result.Resources, err = decodeChanges(changes)
	}
	if err != nil {
		return OperationResult{}, err
	}
	return result, nil
}
