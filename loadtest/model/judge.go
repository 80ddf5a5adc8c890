package model

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Attempt is one time that an operation was asked for, and the answer.
type Attempt struct {
	// Of is the operation; attempts of the same one share it.
	Of *Operation
	// Sent and Answered are on one clock. An attempt whose connection was lost has
	// no answer, and says nothing but that its operation may have been applied.
	Sent, Answered int64
	Result         *Result  // applied, now or before; nil otherwise
	Refusal        *Refusal // not applied; nil otherwise
	Lost           bool
}

// Verdict is what a judge found.
type Verdict struct {
	State    State        // after all operations that were applied
	Applied  []*Operation // in the order of their offsets
	Results  []*Result    // theirs
	Refused  int          // attempts
	Replayed int          // attempts
	// Wrong are the sentences on what cannot be; none is right.
	Wrong []string
}

// judge looks through the attempts on one room.
type judge struct {
	Verdict
	base    uint64 // offset before the first operation
	history map[string][]placed
	outcome map[*Operation]*outcome
	byID    map[string][]*Operation
	acks    []mark // by rising time: the highest offset that was known then
	sends   []mark // by rising time: the lowest offset that was asked for from then on
}

// placed is a resource from an offset on.
type placed struct {
	offset uint64
	Resource
}

// mark is an offset at a time.
type mark struct {
	at     int64
	offset uint64
}

// outcome is what became of one operation.
type outcome struct {
	op          *Operation
	result      *Result // the first
	fresh, lost int     // attempts that were applied, and that have no answer
	sent        int64   // first
	answered    int64   // first with a result
}

// Judge decides whether the answers to attempts can all be true: that the
// operations were applied one after the other, from an empty state and the offset
// base on, in the order of their offsets, each once and with the result told; that
// this order is that of real time where one was answered before another was sent;
// and that each refusal was right at some moment while it was asked for.
func Judge(base uint64, attempts []Attempt) *Verdict {
	j := &judge{base: base, history: make(map[string][]placed), outcome: make(map[*Operation]*outcome), byID: make(map[string][]*Operation)}
	j.State = State{}
	for i := range attempts {
		j.collect(&attempts[i])
	}
	j.order()
	j.replay()
	j.marks()
	for i := range attempts {
		if a := &attempts[i]; a.Refusal != nil {
			j.refusal(a)
		}
	}
	for i, op := range j.Applied {
		if o := j.outcome[op]; j.known(o.sent) >= j.Results[i].Offset {
			j.wrong("operation %s got offset %d, but offset %d was answered before it was sent", op.ID, o.result.Offset, j.known(o.sent))
		}
	}
	return &j.Verdict
}

// maxWrong bounds what is told.
const maxWrong = 100

func (j *judge) wrong(format string, args ...any) {
	if len(j.Wrong) < maxWrong {
		j.Wrong = append(j.Wrong, fmt.Sprintf(format, args...))
	}
}

// collect notes what an attempt says about its operation.
func (j *judge) collect(a *Attempt) {
	o := j.outcome[a.Of]
	if o == nil {
		o = &outcome{op: a.Of, sent: a.Sent, answered: math.MaxInt64}
		j.outcome[a.Of] = o
		j.byID[a.Of.ID] = append(j.byID[a.Of.ID], a.Of)
	}
	o.sent = min(o.sent, a.Sent)
	switch {
	case a.Refusal != nil:
		j.Refused++
	case a.Lost:
		o.lost++
	case a.Result == nil:
		j.wrong("operation %s has no answer", a.Of.ID)
	default:
		if o.result == nil {
			o.result = a.Result
		}
		if r := a.Result; r.ID != a.Of.ID || r.Offset != o.result.Offset || r.Epoch != o.result.Epoch || !SameAll(r.Resources, o.result.Resources) {
			j.wrong("operation %s was answered with different results: offset %d, then %d of %q with %v", a.Of.ID, o.result.Offset, r.Offset, r.ID, r.Resources)
		}
		o.answered = min(o.answered, a.Answered)
		if a.Result.Replayed {
			j.Replayed++
		} else {
			o.fresh++
		}
	}
}

// order sorts the operations that were applied.
func (j *judge) order() {
	for _, o := range j.outcome {
		if o.result == nil {
			continue
		}
		j.Applied = append(j.Applied, o.op)
		if o.fresh > 1 || o.fresh == 0 && o.lost == 0 {
			j.wrong("operation %s was said to be applied %d times", o.op.ID, o.fresh)
		}
	}
	slices.SortFunc(j.Applied, func(a, b *Operation) int {
		return cmp.Compare(j.outcome[a].result.Offset, j.outcome[b].result.Offset)
	})
	for i, op := range j.Applied {
		r := j.outcome[op].result
		j.Results = append(j.Results, r)
		if want := j.base + uint64(i) + 1; r.Offset != want {
			j.wrong("operation %s has offset %d, want %d: an offset is missing or was given twice", op.ID, r.Offset, want)
			j.Applied = j.Applied[:len(j.Results)] // what comes behind cannot be judged
			return
		}
	}
}

// replay does all over again, one after the other.
func (j *judge) replay() {
	for i, op := range j.Applied {
		r := j.Results[i]
		changes, refusal := j.State.Apply(op.Steps)
		if refusal != nil {
			j.wrong("operation %s was applied at offset %d, where its step %d must be refused: %s", op.ID, r.Offset, *refusal.Step, refusal.Code)
			changes = r.Resources // or everything behind it would be wrong too
			j.State.Put(changes)
		} else if !SameAll(changes, r.Resources) {
			j.wrong("operation %s at offset %d was answered with %v, should be %v", op.ID, r.Offset, r.Resources, changes)
		}
		for _, c := range changes {
			j.history[c.Key] = append(j.history[c.Key], placed{r.Offset, c})
		}
	}
}

// marks prepares known and possible.
func (j *judge) marks() {
	for i, op := range j.Applied {
		o, offset := j.outcome[op], j.Results[i].Offset
		j.acks = append(j.acks, mark{o.answered, offset})
		j.sends = append(j.sends, mark{o.sent, offset})
	}
	byTime := func(a, b mark) int { return cmp.Compare(a.at, b.at) }
	slices.SortFunc(j.acks, byTime)
	slices.SortFunc(j.sends, byTime)
	for i := 1; i < len(j.acks); i++ {
		j.acks[i].offset = max(j.acks[i].offset, j.acks[i-1].offset)
	}
	for i := len(j.sends) - 2; i >= 0; i-- {
		j.sends[i].offset = min(j.sends[i].offset, j.sends[i+1].offset)
	}
}

// known is the highest offset that had been answered before a time.
func (j *judge) known(at int64) uint64 {
	i, _ := slices.BinarySearchFunc(j.acks, at, func(m mark, at int64) int { return cmp.Compare(m.at, at) })
	if i == 0 {
		return j.base
	}
	return j.acks[i-1].offset
}

// possible is the highest offset that can have been given until a time: those of
// operations sent later are above it.
func (j *judge) possible(at int64) uint64 {
	i, _ := slices.BinarySearchFunc(j.sends, at+1, func(m mark, at int64) int { return cmp.Compare(m.at, at) })
	if i == len(j.sends) {
		return j.base + uint64(len(j.Results))
	}
	return j.sends[i].offset - 1
}

// refusal judges one: some state while it was asked for must refuse it like that.
func (j *judge) refusal(a *Attempt) {
	low, high := j.known(a.Sent), j.possible(a.Answered)
	if o := j.outcome[a.Of]; o.result != nil { // from then on it is a replay
		high = min(high, o.result.Offset-1)
	}
	if a.Refusal.Code == "id_reused" {
		for _, other := range j.byID[a.Of.ID] {
			if o := j.outcome[other]; other != a.Of && o.result != nil && o.result.Offset <= j.possible(a.Answered) {
				return
			}
		}
		j.wrong("operation %s was refused as id_reused, but nothing else had its id", a.Of.ID)
		return
	}
	for at := low; at <= high; at++ {
		view := State{}
		for i := range a.Of.Steps {
			if r, ok := j.at(a.Of.Steps[i].Key, at); ok {
				view[r.Key] = r
			}
		}
		if _, r := view.Apply(a.Of.Steps); r != nil && r.same(a.Refusal) {
			return
		}
	}
	j.wrong("operation %s was refused with %s, which it was at no offset from %d to %d", a.Of.ID, a.Refusal, low, high)
}

// at is a resource after an offset.
func (j *judge) at(key string, offset uint64) (Resource, bool) {
	list := j.history[key]
	i, _ := slices.BinarySearchFunc(list, offset+1, func(p placed, offset uint64) int { return cmp.Compare(p.offset, offset) })
	if i == 0 {
		return Resource{}, false
	}
	return list[i-1].Resource, true
}

func (r *Refusal) same(s *Refusal) bool {
	return r.Status == s.Status && r.Code == s.Code && s.Step != nil && *r.Step == *s.Step && s.Current != nil && r.Current.Same(*s.Current)
}

func (r *Refusal) String() string {
	text := fmt.Sprintf("%d %s", r.Status, r.Code)
	if r.Step != nil {
		text += fmt.Sprintf(" at step %d", *r.Step)
	}
	if r.Current != nil {
		text += " on " + r.Current.String()
	}
	return text
}
