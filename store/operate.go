package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Operation asks for an atomic change of a room's resources. What it refers to
// must not be changed any more.
type Operation struct {
	Room string
	// Caller and ID identify the operation; ID is not empty.
	Caller, ID string
	// Digest stands for what was asked: the same id with another one is refused.
	Digest [32]byte
	Steps  []Step
	// Publisher is the origin of the event (User, Client, ConnInfo, ChanInfo); its
	// Data, unless empty, is the "data" member of the event.
	Publisher Publication
	// MaxEvent bounds the event's data, in bytes; 0 = no bound.
	MaxEvent int
}

// bytes is the size of what an operation carries.
func (o *Operation) bytes() int {
	n := len(o.Room) + len(o.Caller) + len(o.ID) + o.Publisher.bytes()
	for i := range o.Steps {
		s := &o.Steps[i]
		n += stepBytes + len(s.Key) + len(s.Value) + len(s.Path)
	}
	return n
}

// stepBytes is about what a step takes besides its key, value and path.
const stepBytes = 128

// OperationResult is the outcome of an operation.
type OperationResult struct {
	Result
	// Resources holds each changed resource once, in the order of the first step on
	// it, as the operation left it.
	Resources []Resource
}

// Operate queues o and never blocks; done is called as by [DB.Publish]. The event
// is a publication in the room, with the next offset, in the same commit as the
// changes and the record of the id. Its data is
//
//	{"operation":ID,"user":…,"changes":[{"key":…,"version":…,"value":…},
//	{"key":…,"version":…,"deleted":true}],"data":…}
//
// with "user" and "data" only when there are. Refusals are a [*StepError],
// [ErrTooLarge], [ErrIDReused] and [ErrRoomLimit]: they change nothing and leave
// the id free. An id that a publication of the caller has used is reused too, and
// the other way round.
func (db *DB) Operate(o Operation, done func(OperationResult, error)) {
	op := &operate{Operation: o}
	db.submit(op, o.bytes(), func(r Result, err error) {
		var resources []Resource
		if err == nil {
			resources, err = op.resources()
		}
		if err != nil {
			done(OperationResult{}, err)
			return
		}
		done(OperationResult{Result: r, Resources: resources}, nil)
	})
}

// operate changes resources.
type operate struct {
	Operation
	// the outcome of the last run: one of the two
	changes []change
	known   []byte // what an earlier operation with the id changed
}

func (o *operate) in() string { return o.Room }

func (o *operate) apply(w *writer, b *batch) (Result, error) {
	o.changes, o.known = nil, nil
	r, err := w.room(o.Room)
	if err != nil {
		return Result{}, err
	}
	known, found, err := w.recall(r, o.Caller, o.ID)
	switch {
	case err != nil:
		return Result{}, err
	case found && (known.changes == nil || !bytes.Equal(known.hash, o.Digest[:])):
		return Result{}, ErrIDReused
	case found:
		o.known = known.changes
		b.produced += len(o.known)
		return known.Result, nil
	}
	changes, err := w.applySteps(r, o.Steps)
	if e, ok := errors.AsType[*StepError](err); ok {
		b.produced += len(e.Current.Value)
	}
	if err != nil {
		return Result{}, err
	}
	data, list := o.event(changes)
	if o.MaxEvent > 0 && len(data) > o.MaxEvent {
		return Result{}, fmt.Errorf("%w: the event has %d bytes, at most %d are allowed", ErrTooLarge, len(data), o.MaxEvent)
	}
	for i := range changes {
		b.produced += len(changes[i].Value)
		if err := w.save(r, &changes[i]); err != nil {
			return Result{}, err
		}
	}
	result := Result{Offset: r.top + 1, Epoch: r.epoch}
	err = w.exec(replaceID, r.id, o.Caller, o.ID, o.Digest[:], int64(result.Offset), result.Epoch, w.now, list)
	if err != nil {
		return Result{}, err
	}
	b.produced += len(list)
	o.changes = changes
	pub := o.Publisher
	pub.Data = data
	return result, w.add(b, r, pub)
}

// save stores a change. A deleted resource leaves its version, so that none comes
// twice.
func (w *writer) save(r *room, c *change) error {
	if c.Value == nil {
		if err := w.exec(deleteResource, r.id, c.Key); err != nil {
			return err
		}
		return w.exec(putDeleted, r.id, c.Key, int64(c.Version))
	}
	if c.before.Value == nil && c.before.Version > 0 {
		if err := w.exec(dropDeleted, r.id, c.Key); err != nil {
			return err
		}
	}
	return w.exec(putResource, r.id, c.Key, int64(c.Version), c.Value)
}

// findResource returns what the room holds under key; version 0 means that it
// never held anything.
func (w *writer) findResource(r *room, key string) (Resource, error) {
	res := Resource{Key: key}
	var version int64
	_, err := w.query(findResource, []any{r.id, key}, &version, &res.Value)
	res.Version = uint64(version)
	return res, err
}

// resources is the outcome that the caller gets.
func (o *operate) resources() ([]Resource, error) {
	if o.known != nil {
		return decodeChanges(o.known)
	}
	resources := make([]Resource, len(o.changes))
	for i := range o.changes {
		resources[i] = o.changes[i].Resource
	}
	return resources, nil
}

// event returns the data of the event, and the part of it that lists the changes:
// that is kept under the id as the result.
func (o *operate) event(changes []change) (data, list []byte) {
	size := len(`{"operation":"","user":"","changes":[],"data":}`) + len(o.ID) + len(o.Publisher.User) + len(o.Publisher.Data)
	for i := range changes {
		size += len(`{"key":"","version":,"deleted":true},`) + 20 + len(changes[i].Key) + len(changes[i].Value)
	}
	data = append(make([]byte, 0, size), `{"operation":`...)
	data = appendString(data, o.ID)
	if o.Publisher.User != "" {
		data = appendString(append(data, `,"user":`...), o.Publisher.User)
	}
	data = append(data, `,"changes":`...)
	start := len(data)
	data = appendChanges(data, changes)
	list = data[start:len(data):len(data)]
	if len(o.Publisher.Data) > 0 {
		data = append(append(data, `,"data":`...), o.Publisher.Data...)
	}
	return append(data, '}'), list
}

func appendChanges(b []byte, changes []change) []byte {
	b = append(b, '[')
	for i := range changes {
		c := &changes[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"key":`...), c.Key)
		b = strconv.AppendUint(append(b, `,"version":`...), c.Version, 10)
		if c.Value == nil {
			b = append(b, `,"deleted":true}`...)
			continue
		}
		b = append(append(b, `,"value":`...), c.Value...)
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendString appends a JSON string. What is not UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// decodeChanges is the inverse of appendChanges.
func decodeChanges(list []byte) ([]Resource, error) {
	var changes []struct {
		Key     string
		Version uint64
		Value   json.RawMessage
	}
	if err := json.Unmarshal(list, &changes); err != nil {
		return nil, fmt.Errorf("%w: decode the stored result: %w", ErrUnavailable, err)
	}
	resources := make([]Resource, len(changes))
	for i, c := range changes {
		resources[i] = Resource{Key: c.Key, Version: c.Version, Value: c.Value}
	}
	return resources, nil
}
