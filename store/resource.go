package store

import (
	"context"
	"errors"
	"fmt"
)

// What callers of operations and of reads of resources branch on.
var (
	// ErrNotFound: there is no such resource, path or operation.
	ErrNotFound = errors.New("store: not found")
	// ErrTooLarge: the event of the operation, or the snapshot, would be larger
	// than its bound.
	ErrTooLarge = errors.New("store: too large")
)

// Resource is a versioned JSON value of a room.
type Resource struct {
	Key string
	// Version is 1 at the first change of the key and grows by one with each;
	// deletion counts and a later creation goes on from there.
	Version uint64
	// Value is JSON without insignificant space, otherwise as it was sent; nil
	// when the resource is deleted.
	Value []byte
}

// StepOp is what a step does.
type StepOp uint8

// The steps of DESIGN.md section 7.
const (
	StepAdd StepOp = 1 + iota
	StepCreate
	StepSet
	StepMerge
	StepDelete
)

// Step is one change of an operation.
type Step struct {
	Op  StepOp
	Key string
	// Value is what StepCreate and StepSet store and StepMerge merges (RFC 7396).
	Value []byte
	// IfVersion, unless nil, is the version that the resource must have; 0 = it
	// must not exist.
	IfVersion *uint64
	// Path (RFC 6901; "" is the whole value), By, Min and Max belong to StepAdd: the
	// integer there plus By, within Min and Max.
	Path     string
	By       int64
	Min, Max *int64
}

// Operation asks for an atomic change of a room's resources.
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

// ConflictReason says why a step was refused.
type ConflictReason uint8

// The reasons.
const (
	// VersionConflict: the resource does not have the version of IfVersion.
	VersionConflict ConflictReason = 1 + iota
	// Exists: StepCreate met a resource.
	Exists
	// Missing: StepAdd, StepMerge or StepDelete met no resource, or StepAdd no
	// value at its path.
	Missing
	// OutOfRange: the sum would leave Min, Max or the exact integers ±(2^53-1).
	OutOfRange
	// NotInteger: what StepAdd met is not an integer in ±(2^53-1).
	NotInteger
)

// StepError is the refusal of an operation: nothing of it was applied.
type StepError struct {
	Reason ConflictReason
	Step   int // index of the step
	// Current is the resource as it stands in the room, before the operation; its
	// Value is nil when it does not exist.
	Current Resource
	Detail  string
}

func (e *StepError) Error() string {
	return fmt.Sprintf("store: step %d on %q: %s", e.Step, e.Current.Key, e.Detail)
}

// OperationResult is the outcome of an operation.
type OperationResult struct {
	Result
	// Resources holds each changed resource once, in the order of the first step on
	// it, as the operation left it.
	Resources []Resource
}

// Operate queues o and never blocks; done is called as by [DB.Publish]. The event
// is a publication in the room, with the next offset, in the same commit as the
// changes and the record of the id.
func (db *DB) Operate(o Operation, done func(OperationResult, error)) {
	done(OperationResult{}, ErrUnavailable)
}

// FindOperation returns the result that an id of a caller stands for, or
// [ErrNotFound]. Ids of publications are found too; they have no resources.
func (db *DB) FindOperation(ctx context.Context, room, caller, id string) (OperationResult, error) {
	return OperationResult{}, ErrUnavailable
}

// Resource returns one resource, or [ErrNotFound].
func (db *DB) Resource(ctx context.Context, room, key string) (Resource, error) {
	return Resource{}, ErrUnavailable
}

// ResourceQuery is a question about a room's resources.
type ResourceQuery struct {
	Prefix string // of the keys
	After  string // the page begins behind this key
	// Limit bounds the resources, MaxBytes what they carry, at least one excepted;
	// 0 = no bound.
	Limit, MaxBytes int
}

// ResourcePage is a part of a room's resources, by key (in byte order), with the
// position that they belong to, from one read transaction.
type ResourcePage struct {
	Top       Position
	Resources []Resource
	More      bool // there are resources behind the last one
}

// Resources returns a page. A room without any has an empty one.
func (db *DB) Resources(ctx context.Context, room string, q ResourceQuery) (ResourcePage, error) {
	return ResourcePage{}, ErrUnavailable
}
