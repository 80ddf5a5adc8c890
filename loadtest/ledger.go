package loadtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hub/loadtest/fleet"
	"hub/loadtest/model"
)

// ledger is all that is known about the resources of a room: what was asked for and
// answered, and the events that its members got. The room begins empty with the run.
type ledger struct {
	// fixed after new
	number int // of the room

	// mu guards the rest. It is taken inside a shard's.
	mu       sync.Mutex
	made     int // operations
	asked    []*entry
	open     int                  // of them wait for an answer
	top      uint64               // highest offset that was answered
	streamed map[uint64]*streamed // by offset
	versions map[string]uint64    // of what exists, as members have seen it
	verdict  *model.Verdict       // of what was asked when it was judged
}

// entry is one time that an operation was asked for. Who asks owns it until it is
// answered.
type entry struct {
	model.Attempt
	body []byte // the answer; nil while there is none
}

// streamed is an event as its first receiver got it.
type streamed struct {
	data []byte
	user string
	model.Event
}

func newLedger(number int) *ledger {
	return &ledger{number: number, streamed: make(map[uint64]*streamed), versions: make(map[string]uint64)}
}

// operation is a new operation of a user; its id tells the room.
func (l *ledger) operation(user string, steps ...model.Step) *model.Operation {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	return &model.Operation{ID: fmt.Sprintf("%d-%d", l.number, l.made), User: user, Steps: steps}
}

// roomOf reads the number of the room in an operation's id, -1 for another's.
func roomOfOperation(id string) int {
	number, _, ok := strings.Cut(id, "-")
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		return -1
	}
	return n
}

// ask notes that an operation is asked for at a time.
func (l *ledger) ask(op *model.Operation, at int64) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &entry{Attempt: model.Attempt{Of: op, Sent: at}}
	l.asked = append(l.asked, e)
	l.open++
	return e
}

// lost notes that the connection ended before the answer.
func (l *ledger) lost(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Lost = true
	l.open--
}

// answered notes the answer to an entry, the body of a result or problem, and
// returns whether it was applied.
func (l *ledger) answered(e *entry, body []byte, at int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Answered, e.body = at, append(make([]byte, 0, len(body)), body...)
	l.open--
	offset := rpcOffset(body) // of a problem: 0
	l.top = max(l.top, offset)
	return offset > 0
}

// replied notes the answer to a call; m is nil when there was none.
func (l *ledger) replied(e *entry, m *message, at int64) (applied bool) {
	switch {
	case m == nil:
		l.lost(e)
		return false
	case m.code != 0: // no refusal that an operation can meet, so the judge will tell
		return l.answered(e, fmt.Appendf(nil, `{"code":%q}`, fmt.Sprintf("error %d %s", m.code, m.text)), at)
	}
	return l.answered(e, m.rpc, at)
}

// last is the offset up to which events are known to be there.
func (l *ledger) last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.top
}

// begun returns an error when nothing that was asked for so far was applied.
func (l *ledger) begun() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.top > 0 || len(l.asked) == 0 {
		return nil
	}
	return fmt.Errorf("the first operation was not applied: %.200s; the namespace needs operate = \"token\" for it", l.asked[0].body)
}

// waiting is how many entries have no answer yet.
func (l *ledger) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// event takes the event at an offset from one of its receivers. It returns what it
// is, and what is wrong with it: nothing where another one got the same.
func (l *ledger) event(offset uint64, user, data []byte) (e *streamed, wrong string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e = l.streamed[offset]; e != nil {
		if !bytes.Equal(e.data, data) || e.user != string(user) {
			wrong = fmt.Sprintf("the event at offset %d is %.200s for one and %.200s for another", offset, e.data, data)
		}
		return e, wrong
	}
	e = &streamed{data: bytes.Clone(data), user: string(user)}
	if err := json.Unmarshal(data, &e.Event); err != nil || e.Operation == "" {
		wrong = fmt.Sprintf("the event at offset %d is that of no operation: %.200s", offset, data)
	}
	l.streamed[offset] = e
	for _, c := range e.Changes {
		if l.versions[c.Key] = c.Version; c.Deleted {
			delete(l.versions, c.Key)
		}
	}
	return e, wrong
}

// judge decides about all that was asked for; nothing waits any more.
func (l *ledger) judge() *model.Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.judgeLocked()
}

func (l *ledger) judgeLocked() *model.Verdict {
	if l.verdict != nil {
		return l.verdict
	}
	attempts := make([]model.Attempt, 0, len(l.asked))
	for _, e := range l.asked {
		if e.body != nil && e.Result == nil && e.Refusal == nil {
			e.decode()
		}
		attempts = append(attempts, e.Attempt)
	}
	v := model.Judge(0, attempts)
	if len(l.streamed) > 0 {
		v.Wrong = append(v.Wrong, l.wrongEventsLocked(v)...)
	}
	l.verdict = v
	return v
}

// decode reads the answer.
func (e *entry) decode() {
	var answer struct {
		model.Result
		model.Refusal
	}
	err := json.Unmarshal(e.body, &answer)
	switch {
	case err != nil:
		e.Refusal = &model.Refusal{Code: fmt.Sprintf("an answer that is no JSON: %.100q", e.body)}
	case answer.Code != "" || answer.Offset == 0:
		e.Refusal = &answer.Refusal
	default:
		e.Result = &answer.Result
	}
}

// wrongEventsLocked says which events are not those of the operations that were
// applied. What did not come at all is told as lost.
func (l *ledger) wrongEventsLocked(v *model.Verdict) (wrong []string) {
	seen := 0
	for i, op := range v.Applied {
		r := v.Results[i]
		e := l.streamed[r.Offset]
		if e == nil {
			continue
		}
		seen++
		if text := wrongEvent(op, r, &e.Event, e.user); text != "" {
			wrong = append(wrong, text)
		}
	}
	if more := len(l.streamed) - seen; more > 0 {
		wrong = append(wrong, fmt.Sprintf("%d events belong to no operation that was answered as applied", more))
	}
	return wrong
}

// wrongEvent says how an event is not that of an operation; empty if it is.
func wrongEvent(op *model.Operation, r *model.Result, e *model.Event, user string) string {
	switch {
	case e.Operation != op.ID:
		return fmt.Sprintf("the event at offset %d is that of operation %s, should be %s", r.Offset, e.Operation, op.ID)
	case e.User != op.User || user != op.User:
		return fmt.Sprintf("the event of operation %s is said to be of user %q, %q, should be %q", op.ID, e.User, user, op.User)
	case !model.SameAll(e.Changes, r.Resources):
		return fmt.Sprintf("the event of operation %s has changes %v, should be %v", op.ID, e.Changes, r.Resources)
	case len(e.Data) != len(op.Data) || len(op.Data) > 0 && model.Normal(e.Data) != model.Normal(op.Data):
		return fmt.Sprintf("the event of operation %s has data %.100s, should be %.100s", op.ID, e.Data, op.Data)
	}
	return ""
}

// stored is what a database must hold for the room.
func (l *ledger) stored(name string) stored {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.judgeLocked()
	acked := uint64(len(v.Applied))
	return stored{room: name, number: l.number, given: acked + uint64(l.open), acked: acked, operations: v}
}

// operated checks the event of an operation: it must belong here, in this order,
// once. Its caller holds shard.mu.
func (c *conn) operated(room []byte, p *publication) {
	sh, r := c.shard, c.room
	e, wrong := r.ledger.event(p.offset, p.user, p.data)
	from := r
	if n := roomOfOperation(e.Operation); n >= 0 && n < len(sh.swarm.rooms) {
		from = sh.swarm.rooms[n]
	}
	switch {
	case from.db != r.db:
		sh.fault(&sh.t.crossDatabase, "connection %d of database %s got operation %s of database %s", c.number, r.db, e.Operation, from.db)
		return
	case from != r || string(room) != r.name:
		sh.fault(&sh.t.crossRoom, "connection %d of room %s got operation %s in %s", c.number, r.name, e.Operation, room)
		return
	case wrong != "":
		sh.fault(&sh.t.malformed, "connection %d: %s", c.number, wrong)
	}
	switch {
	case p.offset == c.next:
		c.next++
	case p.offset > c.next:
		c.skip(p.offset)
		c.next++
	default:
		if _, late := c.missing[p.offset]; !late {
			sh.fault(&sh.t.duplicate, "connection %d: the event at offset %d of %s came twice", c.number, p.offset, r.name)
			return
		}
		delete(c.missing, p.offset)
		sh.t.missing--
		sh.fault(&sh.t.outOfOrder, "connection %d: the event at offset %d of %s came after %d", c.number, p.offset, r.name, c.next-1)
	}
	c.offset = max(c.offset, p.offset)
	if c.view == nil {
		c.view = make(model.State)
	}
	c.view.Put(e.Changes)
}

// incomplete says why something was not checked.
const incomplete = "the scenario did not complete"

// wrongViews says which members' own states are not the room's.
func (r *room) wrongViews(v *model.Verdict) (wrong []string) {
	want := v.State.Living()
	for _, c := range r.members {
		c.shard.mu.Lock()
		if d := want.Difference(c.view.Living()); d != "" {
			wrong = append(wrong, fmt.Sprintf("connection %d at offset %d of %s: %s", c.number, c.offset, r.name, d))
		}
		c.shard.mu.Unlock()
	}
	return wrong
}

// wrongSnapshot says how a snapshot, or the answer in its place, is not what the
// operations have made; empty if it is.
func (r *room) wrongSnapshot(v *model.Verdict, a *fleet.Answer) string {
	s, err := readSnapshot(a)
	if err != nil {
		return fmt.Sprintf("%s: %s", r.name, err)
	}
	r.mu.Lock()
	epoch := r.epoch
	r.mu.Unlock()
	if last := uint64(len(v.Applied)); s.Offset != last || s.Epoch != epoch {
		return fmt.Sprintf("the snapshot of %s is of offset %d in epoch %s, should be %d in %s", r.name, s.Offset, s.Epoch, last, epoch)
	}
	if d := v.State.Living().Difference(stateOf(s)); d != "" {
		return fmt.Sprintf("the snapshot of %s: %s", r.name, d)
	}
	return ""
}

func readSnapshot(a *fleet.Answer) (*model.Snapshot, error) {
	var s model.Snapshot
	if a.Status != 200 {
		return nil, fmt.Errorf("snapshot answered with status %d: %.200s", a.Status, a.Body)
	}
	if err := json.Unmarshal(a.Body, &s); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return &s, nil
}

func stateOf(s *model.Snapshot) model.State {
	state := make(model.State, len(s.Resources))
	state.Put(s.Resources)
	return state
}

// examples joins what is wrong for a check, the first of it.
func examples(wrong []string) string {
	text := strings.Join(wrong[:min(len(wrong), maxExamples)], "; ")
	if more := len(wrong) - maxExamples; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// published are the rooms of a swarm in which somebody publishes.
func (s *swarm) published() []*room {
	return slices.DeleteFunc(slices.Clone(s.rooms), func(r *room) bool { return r.ledger != nil })
}

// ledgers are the rooms of a swarm that have one.
func (s *swarm) ledgers() []*room {
	return slices.DeleteFunc(slices.Clone(s.rooms), func(r *room) bool { return r.ledger == nil })
}
