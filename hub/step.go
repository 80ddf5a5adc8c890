package hub

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"hub/hub/wire"
	"hub/store"
	"hub/store/document"
)

// Bounds of an operation.
const (
	maxSteps = 64
	maxKey   = 255 // bytes
	// maxEvent bounds the data of the event that an operation publishes, and with it
	// the values of its result: both must fit into one message of a socket.
	maxEvent = 256 << 10
)

// operationRequest is the body of an operation.
type operationRequest struct {
	ID    string         `json:"id"`
	Steps []stepRequest  `json:"steps"`
	Data  jsontext.Value `json:"data"`
}

// stepRequest is a step as it is sent. What only some steps have stays as it is
// until the step is known; nil: absent.
type stepRequest struct {
	Op        string         `json:"op"`
	Key       string         `json:"key"`
	Value     jsontext.Value `json:"value"`
	IfVersion jsontext.Value `json:"if_version"`
	Path      jsontext.Value `json:"path"`
	By        jsontext.Value `json:"by"`
	Min       jsontext.Value `json:"min"`
	Max       jsontext.Value `json:"max"`
}

// stepWords are the steps as they are sent and granted.
var stepWords = [...]string{
	store.StepAdd:    "add",
	store.StepCreate: "create",
	store.StepSet:    "set",
	store.StepMerge:  "merge",
	store.StepDelete: "delete",
}

// operation checks r and makes it what the store takes, Room, Caller and Publisher
// excepted. maxMessage bounds each value, and the data.
func (r *operationRequest) operation(maxMessage int) (o store.Operation, p *problem) {
	switch {
	case r.ID == "":
		return o, badBody("id is missing or empty")
	case len(r.ID) > maxOperationID:
		return o, badBody("id is longer than %d bytes", maxOperationID)
	case len(r.Steps) == 0:
		return o, badBody("steps is missing or empty")
	case len(r.Steps) > maxSteps:
		return o, badBody("steps has more than %d elements", maxSteps)
	}
	o.ID, o.MaxEvent = r.ID, maxEvent
	o.Steps = make([]store.Step, len(r.Steps))
	for i := range r.Steps {
		if p = r.Steps[i].step(&o.Steps[i], maxMessage); p != nil {
			p.Detail = fmt.Sprintf("steps/%d: %s", i, p.Detail)
			return o, p
		}
	}
	if o.Publisher.Data, p = compactData(r.Data, maxMessage); p != nil {
		return o, p
	}
	o.Digest = digest(&o)
	return o, nil
}

// compactData is the data of an operation, by the rules of a publication's, without
// insignificant space.
func compactData(data []byte, maxMessage int) ([]byte, *problem) {
	switch {
	case data == nil:
		return nil, nil
	case len(data) > maxMessage:
		return nil, newProblem("too_large", fmt.Sprintf("data is larger than %d bytes", maxMessage))
	case !wire.ValidJSON(data):
		return nil, badBody("data must be one valid JSON value, no name twice in an object")
	}
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		return nil, badBody("data must be one valid JSON value, no name twice in an object")
	}
	return b.Bytes(), nil
}

// step checks one step and makes s of it.
func (r *stepRequest) step(s *store.Step, maxMessage int) *problem {
	for op, word := range stepWords {
		if word == r.Op && word != "" {
			s.Op = store.StepOp(op)
		}
	}
	if s.Op == 0 {
		return badBody("op must be add, create, set, merge or delete")
	}
	if err := checkKey(r.Key); err != nil {
		return badBody("key %s", err)
	}
	s.Key = r.Key
	adds := s.Op == store.StepAdd
	for _, m := range []struct {
		name             string
		value            jsontext.Value
		allowed, require bool
	}{
		{"value", r.Value, !adds && s.Op != store.StepDelete, true},
		{"path", r.Path, adds, false},
		{"by", r.By, adds, true},
		{"min", r.Min, adds, false},
		{"max", r.Max, adds, false},
	} {
		switch {
		case m.value != nil && !m.allowed:
			return badBody("%s does not belong to %s", m.name, r.Op)
		case m.value == nil && m.allowed && m.require:
			return badBody("%s is missing", m.name)
		}
	}
	if r.IfVersion != nil {
		v, p := integer("if_version", r.IfVersion, 0)
		if p != nil {
			return p
		}
		version := uint64(v)
		s.IfVersion = &version
	}
	if adds {
		return r.addition(s)
	}
	return r.value(s, maxMessage)
}

// value takes the value of a step that has one.
func (r *stepRequest) value(s *store.Step, maxMessage int) *problem {
	if r.Value == nil {
		return nil
	}
	if len(r.Value) > maxMessage {
		return newProblem("too_large", fmt.Sprintf("value is larger than %d bytes", maxMessage))
	}
	value, err := document.Compact(r.Value)
	if err != nil {
		return badBody("value: %s", err)
	}
	s.Value = value
	return nil
}

// addition takes what an add has.
func (r *stepRequest) addition(s *store.Step) (p *problem) {
	if s.By, p = integer("by", r.By, -document.MaxInteger); p != nil {
		return p
	}
	for _, bound := range []struct {
		name  string
		value jsontext.Value
		into  **int64
	}{{"min", r.Min, &s.Min}, {"max", r.Max, &s.Max}} {
		if bound.value == nil {
			continue
		}
		n, p := integer(bound.name, bound.value, -document.MaxInteger)
		if p != nil {
			return p
		}
		*bound.into = &n
	}
	if s.Min != nil && s.Max != nil && *s.Min > *s.Max {
		return badBody("min is above max")
	}
	if r.Path == nil {
		return nil
	}
	path, err := jsontext.AppendUnquote(nil, r.Path)
	if err != nil {
		return badBody("path must be a string")
	}
	if err := document.CheckPath(string(path)); err != nil {
		return badBody("path: %s", err)
	}
	s.Path = string(path)
	return nil
}

// integer reads an integer that every client holds exactly, written as one.
func integer(name string, value jsontext.Value, min int64) (int64, *problem) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || n < min || n > document.MaxInteger {
		return 0, badBody("%s must be an integer between %d and %d, written without fraction or exponent", name, min, int64(document.MaxInteger))
	}
	return n, nil
}

var (
	errKeyLength = fmt.Errorf("must be 1 to %d bytes long", maxKey)
	errKeyText   = errors.New("must be valid UTF-8 without control characters")
)

// checkKey says whether key may be the key of a resource, compared byte for byte.
func checkKey(key string) error {
	switch {
	case key == "" || len(key) > maxKey:
		return errKeyLength
	case !utf8.ValidString(key) || strings.IndexFunc(key, unicode.IsControl) >= 0:
		return errKeyText
	}
	return nil
}

// digest stands for what an operation asks for: the same whatever space, order of
// members or escapes of a key it was sent with.
func digest(o *store.Operation) [sha256.Size]byte {
	b := make([]byte, 0, 1<<10)
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	integer := func(n *int64) {
		if n == nil {
			b = append(b, 0)
			return
		}
		b = binary.AppendVarint(append(b, 1), *n)
	}
	for i := range o.Steps {
		s := &o.Steps[i]
		b = append(b, byte(s.Op))
		text(s.Key)
		text(string(s.Value))
		if s.IfVersion == nil {
			b = append(b, 0)
		} else {
			b = binary.AppendUvarint(append(b, 1), *s.IfVersion)
		}
		if s.Op == store.StepAdd {
			text(s.Path)
			b = binary.AppendVarint(b, s.By)
			integer(s.Min)
			integer(s.Max)
		}
	}
	b = append(b, 0) // no step begins with it
	b = append(b, o.Publisher.Data...)
	return sha256.Sum256(b)
}

// badBody is a bad_request.
func badBody(format string, args ...any) *problem {
	return newProblem("bad_request", fmt.Sprintf(format, args...))
}
