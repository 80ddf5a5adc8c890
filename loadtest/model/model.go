// Package model is what operations on resources must do, told again from their
// documentation and without the server's code: steps applied to a state, and a
// judge of what many clients were told about operations that they had done at the
// same time.
package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
)

// Operation is what a client asks for.
type Operation struct {
	ID    string          `json:"id"`
	Steps []Step          `json:"steps"`
	Data  json.RawMessage `json:"data,omitempty"`

	User string `json:"-"` // who asks
}

// Step is one change of an operation. Op is add, create, set, merge or delete.
type Step struct {
	Op        string          `json:"op"`
	Key       string          `json:"key"`
	Value     json.RawMessage `json:"value,omitempty"`
	IfVersion *uint64         `json:"if_version,omitempty"`
	Path      string          `json:"path,omitempty"`
	By        *int64          `json:"by,omitempty"`
	Min       *int64          `json:"min,omitempty"`
	Max       *int64          `json:"max,omitempty"`
}

// Resource is a value under a key. A deleted one keeps its version.
type Resource struct {
	Key     string          `json:"key"`
	Version uint64          `json:"version"`
	Value   json.RawMessage `json:"value,omitempty"`
	Deleted bool            `json:"deleted,omitempty"`
}

// Result is the answer to an operation that was applied.
type Result struct {
	ID        string     `json:"id"`
	Offset    uint64     `json:"offset"`
	Epoch     string     `json:"epoch"`
	Resources []Resource `json:"resources"`
	Replayed  bool       `json:"replayed"`
}

// Refusal is the answer to one that was not: a problem document.
type Refusal struct {
	Status  int       `json:"status"`
	Code    string    `json:"code"`
	Detail  string    `json:"detail"`
	Step    *int      `json:"step"`
	Current *Resource `json:"current"`
}

// Event is the data of the publication of an operation.
type Event struct {
	Operation string          `json:"operation"`
	User      string          `json:"user"`
	Changes   []Resource      `json:"changes"`
	Data      json.RawMessage `json:"data"`
}

// Snapshot is all resources of a room with the position that they belong to.
type Snapshot struct {
	Resources []Resource `json:"resources"`
	Offset    uint64     `json:"offset"`
	Epoch     string     `json:"epoch"`
}

// maxInteger is the largest integer that every client holds exactly, 2^53-1.
const maxInteger = 1<<53 - 1

// Normal writes a JSON value in one way: members by name, without space, numbers as
// they are. It returns what is no JSON unchanged.
func Normal(value []byte) string {
	v, err := decode(value)
	if err != nil {
		return string(value)
	}
	return encode(v)
}

func decode(value []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // it was decoded
	}
	return string(text)
}

// Same says whether both are the same resource.
func (r Resource) Same(s Resource) bool {
	return r.Key == s.Key && r.Version == s.Version && r.Deleted == s.Deleted &&
		(bytes.Equal(r.Value, s.Value) || Normal(r.Value) == Normal(s.Value))
}

func (r Resource) String() string {
	if r.Deleted {
		return fmt.Sprintf("%s version %d deleted", r.Key, r.Version)
	}
	return fmt.Sprintf("%s version %d %.100s", r.Key, r.Version, r.Value)
}

// SameAll says whether both are the same resources in the same order.
func SameAll(a, b []Resource) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].Same(b[i]) {
			return false
		}
	}
	return true
}

// State is the resources of a room, those that were deleted included.
type State map[string]Resource

// Put takes changes over.
func (s State) Put(changes []Resource) {
	for _, c := range changes {
		s[c.Key] = c
	}
}

// Living is the resources that are not deleted.
func (s State) Living() State {
	living := maps.Clone(s)
	maps.DeleteFunc(living, func(_ string, r Resource) bool { return r.Deleted })
	return living
}

// Difference says in words how t is not s; empty when they are the same.
func (s State) Difference(t State) string {
	for key, want := range s {
		if got, ok := t[key]; !ok {
			return fmt.Sprintf("%s is missing", want)
		} else if !want.Same(got) {
			return fmt.Sprintf("%s should be %s", got, want)
		}
	}
	for key, got := range t {
		if _, ok := s[key]; !ok {
			return fmt.Sprintf("%s should not be there", got)
		}
	}
	return ""
}

// Apply does all steps, or refuses and does nothing. It returns each changed
// resource once, in the order of the first step on it.
func (s State) Apply(steps []Step) ([]Resource, *Refusal) {
	changed, order := State{}, []string{}
	for i := range steps {
		step := &steps[i]
		r, ok := changed[step.Key]
		if !ok {
			if r, ok = s[step.Key]; !ok {
				r = Resource{Key: step.Key, Deleted: true}
			}
			order = append(order, step.Key)
		}
		next, code := step.apply(r)
		if code != "" {
			return nil, &Refusal{Status: statuses[code], Code: code, Step: &i, Current: s.current(step.Key)}
		}
		changed[step.Key] = next
	}
	list := make([]Resource, len(order))
	for i, key := range order {
		list[i] = changed[key]
	}
	s.Put(list)
	return list, nil
}

// current is a resource as a refusal shows it: what does not exist has version 0.
func (s State) current(key string) *Resource {
	if r, ok := s[key]; ok && !r.Deleted {
		return &r
	}
	return &Resource{Key: key}
}

// statuses are the refusals of steps.
var statuses = map[string]int{
	"version_conflict": http.StatusConflict,
	"exists":           http.StatusConflict,
	"not_found":        http.StatusNotFound,
	"not_integer":      http.StatusUnprocessableEntity,
	"out_of_range":     http.StatusUnprocessableEntity,
}

// apply returns r after the step, or why not.
func (p *Step) apply(r Resource) (next Resource, refused string) {
	version := r.Version
	if r.Deleted {
		version = 0
	}
	switch {
	case p.IfVersion != nil && *p.IfVersion != version:
		return r, "version_conflict"
	case p.Op == "create" && !r.Deleted:
		return r, "exists"
	case (p.Op == "add" || p.Op == "merge" || p.Op == "delete") && r.Deleted:
		return r, "not_found"
	}
	next = Resource{Key: r.Key, Version: r.Version + 1}
	switch p.Op {
	case "create", "set":
		next.Value = json.RawMessage(Normal(p.Value))
	case "delete":
		next.Deleted = true
	case "merge":
		target, _ := decode(r.Value)
		patch, _ := decode(p.Value)
		next.Value = json.RawMessage(encode(merge(target, patch)))
	case "add":
		value, _ := decode(r.Value)
		value, refused = p.add(value, pointer(p.Path))
		next.Value = json.RawMessage(encode(value))
	}
	return next, refused
}

// merge is MergePatch of RFC 7396 section 2.
func merge(target, patch any) any {
	members, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	object, ok := target.(map[string]any)
	if !ok {
		object = map[string]any{}
	}
	for name, value := range members {
		if value == nil {
			delete(object, name)
		} else {
			object[name] = merge(object[name], value)
		}
	}
	return object
}

// pointer splits a JSON pointer (RFC 6901 section 4).
func pointer(path string) []string {
	if path == "" {
		return nil
	}
	tokens := strings.Split(path[1:], "/")
	for i, t := range tokens {
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~")
	}
	return tokens
}

// add returns value with the integer at path changed.
func (p *Step) add(value any, path []string) (sum any, refused string) {
	if len(path) == 0 {
		return p.sum(value)
	}
	switch at := value.(type) {
	case map[string]any:
		inner, ok := at[path[0]]
		if !ok {
			return value, "not_found"
		}
		at[path[0]], refused = p.add(inner, path[1:])
	case []any:
		i, err := strconv.ParseUint(path[0], 10, 31)
		if err != nil || int(i) >= len(at) || len(path[0]) > 1 && path[0][0] == '0' {
			return value, "not_found"
		}
		at[i], refused = p.add(at[i], path[1:])
	default:
		return value, "not_found"
	}
	return value, refused
}

func (p *Step) sum(value any) (sum any, refused string) {
	number, ok := value.(json.Number)
	if !ok {
		return value, "not_integer"
	}
	n, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil || n < -maxInteger || n > maxInteger {
		return value, "not_integer"
	}
	low, high := int64(-maxInteger), int64(maxInteger)
	if p.Min != nil {
		low = max(low, *p.Min)
	}
	if p.Max != nil {
		high = min(high, *p.Max)
	}
	if n += *p.By; n < low || n > high {
		return value, "out_of_range"
	}
	return json.Number(strconv.FormatInt(n, 10)), ""
}
