package store

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"hub/store/document"
)

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
	// It must come from [document.Compact].
	Value []byte
	// IfVersion, unless nil, is the version that the resource must have, as the
	// steps before left it; 0 = it must not exist.
	IfVersion *uint64
	// Path (RFC 6901; "" is the whole value), By, Min and Max belong to StepAdd: the
	// integer there plus By, within Min and Max.
	Path     string
	By       int64
	Min, Max *int64
}

// ConflictReason says why a step was refused.
type ConflictReason uint8

// The reasons.
const (
	// VersionConflict: the resource does not have the version of IfVersion. This is
	// looked at before everything else.
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
	// Invalid: the step breaks the contract of [Step]. Whoever checks what it
	// submits never meets it.
	Invalid
)

// StepError is the refusal of an operation: nothing of it was applied.
type StepError struct {
	Reason ConflictReason
	Step   int // index of the step
	// Current is the resource as it stands in the room, before the operation. When
	// it does not exist, its Value is nil and its Version 0, which is what IfVersion
	// calls it.
	Current Resource
	Detail  string // for the user
}

func (e *StepError) Error() string {
	return fmt.Sprintf("store: step %d on %q: %s", e.Step, e.Current.Key, e.Detail)
}

// change is what an operation does to one resource.
type change struct {
	Resource          // as the steps so far leave it
	before   Resource // as it stands in the room
}

// applySteps returns what steps change in r, each resource once, in the order of
// the first step on it. It only reads: a refusal leaves nothing to undo.
func (w *writer) applySteps(r *room, steps []Step) ([]change, error) {
	changes := make([]change, 0, len(steps))
	for i := range steps {
		s := &steps[i]
		var c *change
		for j := range changes {
			if changes[j].Key == s.Key {
				c = &changes[j]
				break
			}
		}
		if c == nil {
			stored, err := w.findResource(r, s.Key)
			if err != nil {
				return nil, err
			}
			changes = append(changes, change{stored, stored})
			c = &changes[len(changes)-1]
		}
		value, reason, detail := s.apply(c.Resource)
		if reason != 0 {
			c.before.Version = c.before.current()
			return nil, &StepError{Reason: reason, Step: i, Current: c.before, Detail: detail}
		}
		c.Value = value
		c.Version++
	}
	return changes, nil
}

// current is the version that IfVersion must name.
func (r *Resource) current() uint64 {
	if r.Value == nil {
		return 0
	}
	return r.Version
}

// check returns the reason why the step does not go with a resource of the version
// current, and words for the user; 0 when it does.
func (s *Step) check(current uint64) (reason ConflictReason, detail string) {
	exists := current > 0
	switch {
	case !utf8.ValidString(s.Key):
		return Invalid, "the key is not UTF-8"
	case s.IfVersion != nil && *s.IfVersion != current && !exists:
		return VersionConflict, fmt.Sprintf("version %d was expected, but it does not exist", *s.IfVersion)
	case s.IfVersion != nil && *s.IfVersion != current:
		return VersionConflict, fmt.Sprintf("version %d was expected, it is %d", *s.IfVersion, current)
	case s.Op == StepCreate && exists:
		return Exists, fmt.Sprintf("it exists, with version %d", current)
	case s.Op != StepCreate && s.Op != StepSet && !exists:
		return Missing, "it does not exist"
	}
	return 0, ""
}

// apply returns the value after the step, nil when that deletes; or the reason why
// not, other than 0, with words for the user.
func (s *Step) apply(r Resource) (value []byte, reason ConflictReason, detail string) {
	if reason, detail := s.check(r.current()); reason != 0 {
		return nil, reason, detail
	}
	var err error
	switch s.Op {
	case StepDelete:
		return nil, 0, ""
	case StepAdd:
		value, err = document.Add(r.Value, s.Path, s.By, s.Min, s.Max)
	case StepMerge:
		value, err = document.Merge(r.Value, s.Value)
	case StepCreate, StepSet:
		value = s.Value
	}
	switch {
	case err == nil && len(value) > 0:
		return value, 0, ""
	case errors.Is(err, document.ErrPath):
		return nil, Missing, err.Error()
	case errors.Is(err, document.ErrNotInteger):
		return nil, NotInteger, err.Error()
	case errors.Is(err, document.ErrRange):
		return nil, OutOfRange, err.Error()
	case err != nil:
		return nil, Invalid, err.Error()
	}
	return nil, Invalid, "it has no value, or is of no known kind"
}
