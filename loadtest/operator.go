package loadtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"

	"hub/loadtest/fleet"
	"hub/loadtest/model"
)

// operator is a client that does random operations in a room: over its socket, and
// over HTTP. What had no answer when its connection ended it asks for again.
type operator struct {
	// fixed after new
	conn  *conn
	room  *room // which need not be the connection's
	token string
	depth int // operations under way over the socket

	// mu guards the rest. It is taken inside a shard's and outside a ledger's.
	mu      sync.Mutex
	random  *rand.Rand
	left    int // operations to do over the socket
	http    int // and over HTTP
	flying  int // under way over the socket
	again   []*model.Operation
	applied []*model.Operation
	// uncertain are the operations of which an attempt was lost: it may come to the
	// server after the next one was refused.
	uncertain map[*model.Operation]struct{}
	reused    map[*model.Operation]struct{} // have the id of one that was applied before
}

func newOperator(c *conn, r *room, seed uint64) *operator {
	return &operator{conn: c, room: r, depth: 2, random: rand.New(rand.NewPCG(seed, uint64(c.number))),
		uncertain: make(map[*model.Operation]struct{}), reused: make(map[*model.Operation]struct{})}
}

// add gives the operator more to do over its socket.
func (p *operator) add(n int) {
	p.mu.Lock()
	p.left += n
	p.mu.Unlock()
	p.fill()
}

// repeat asks for everything that was applied once more.
func (p *operator) repeat() {
	p.mu.Lock()
	p.again = append(p.again, p.applied...)
	p.mu.Unlock()
	p.fill()
}

// busy is how much the operator has to do.
func (p *operator) busy() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left + p.flying + len(p.again)
}

// fill sends what there is to do, while the connection stands.
func (p *operator) fill() {
	for {
		p.mu.Lock()
		var op *model.Operation
		switch {
		case p.flying >= p.depth:
		case len(p.again) > 0:
			op, p.again = p.again[0], p.again[1:]
		case p.left > 0:
			op = p.choose()
			p.left--
		}
		if op == nil {
			p.mu.Unlock()
			return
		}
		p.flying++
		p.mu.Unlock()
		if err := p.send(op); err != nil {
			return // it is sent when the connection is back
		}
	}
}

func (p *operator) send(op *model.Operation) error {
	l := p.room.ledger
	e := l.ask(op, p.conn.shard.swarm.now())
	err := p.conn.call("operate", operateCall(p.room.name, op), func(m *message, at int64) {
		p.done(op, m != nil, l.replied(e, m, at))
		if m != nil {
			p.fill()
		}
	})
	if err != nil { // nothing of it was sent, or the connection is broken
		l.lost(e)
		p.done(op, false, false)
	}
	return err
}

func (p *operator) done(op *model.Operation, answered, applied bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flying--
	p.learn(op, applied)
	if !answered {
		p.again = append(p.again, op)
		if _, reused := p.reused[op]; !reused {
			p.uncertain[op] = struct{}{}
		}
	}
}

// learn notes what is known of an operation. Its caller holds mu.
func (p *operator) learn(op *model.Operation, applied bool) {
	if applied {
		p.applied = append(p.applied, op)
		delete(p.uncertain, op)
	}
}

// next appends the operator's next request over HTTP.
func (p *operator) next(dst []byte, host string, at int64) ([]byte, *model.Operation, *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.http == 0 {
		return dst, nil, nil
	}
	p.http--
	op := p.choose()
	return fleet.Request(dst, "POST", roomPath(p.room)+"/operations", host, p.token, "", operateBody(op)), op, p.room.ledger.ask(op, at)
}

// operateBody is an operation over HTTP.
func operateBody(op *model.Operation) []byte {
	body, err := json.Marshal(op)
	if err != nil {
		panic(err) // there is nothing in it that cannot be written
	}
	return body
}

// told takes the answer over HTTP.
func (p *operator) told(op *model.Operation, e *entry, a *fleet.Answer) {
	applied := p.room.ledger.answered(e, httpBody(a), a.At)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learn(op, applied)
}

// httpBody is the body of an answer to an operation, or in its place a refusal that
// cannot be when status or type of the answer say something else.
func httpBody(a *fleet.Answer) []byte {
	applied := rpcOffset(a.Body) > 0
	want, status := "application/json", 200
	if !applied {
		want, status = "application/problem+json", 0
		_ = eachMember(a.Body, func(name, value []byte) error {
			if string(name) == "status" {
				n, _ := digits(value)
				status = int(n)
			}
			return nil
		})
	}
	if string(a.ContentType) != want || a.Status != status {
		return fmt.Appendf(nil, `{"code":%q}`, fmt.Sprintf("status %d of type %s", a.Status, a.ContentType))
	}
	return a.Body
}

const (
	stateKeys = 8  // that all members of a room share
	oneIn     = 10 // is a repeat of what was applied, and a third as many ids that were used
)

// choose makes an operation, or takes one that was applied. Its caller holds mu.
func (p *operator) choose() *model.Operation {
	if n := len(p.applied); n > 0 {
		old := p.applied[p.random.IntN(n)]
		switch p.random.IntN(3 * oneIn) {
		case 0, 1, 2:
			return old
		case 3:
			reused := *old
			reused.Steps = append(slices.Clone(old.Steps), p.step())
			p.reused[&reused] = struct{}{}
			return &reused
		}
	}
	op := p.room.ledger.operation(p.conn.user, p.step())
	for p.random.IntN(3) == 0 && len(op.Steps) < 5 {
		op.Steps = append(op.Steps, p.step())
	}
	if p.random.IntN(4) == 0 {
		op.Data = p.value()
	}
	return op
}

// step makes a step: likely to be possible, but not sure to be.
func (p *operator) step() model.Step {
	r := p.random
	s := model.Step{Key: fmt.Sprintf("k%d", r.IntN(stateKeys))}
	if r.IntN(5) == 0 {
		s.Key = fmt.Sprintf("own/%d", p.conn.number)
	}
	version := p.room.ledger.version(s.Key)
	switch n := r.IntN(10); {
	case n < 4 && version > 0:
		by := r.Int64N(7) - 3
		s.Op, s.By, s.Path = "add", &by, []string{"/n", "/n", "/n", "/o/n", "/l/1", "", "/s"}[r.IntN(7)]
		if low := int64(0); r.IntN(2) == 0 {
			s.Min = &low
		}
		if high := int64(20); r.IntN(4) == 0 {
			s.Max = &high
		}
	case n < 6 && version > 0:
		s.Op, s.Value = "merge", json.RawMessage(fmt.Sprintf(`{"n":%d,"s":null,"o":{"x%d":%q}}`, r.IntN(10), r.IntN(3), p.conn.user))
	case n < 7 && version > 0:
		s.Op = "delete"
	case n < 8 || version == 0:
		s.Op, s.Value = "create", p.value()
	default:
		s.Op, s.Value = "set", p.value()
	}
	if r.IntN(6) == 0 {
		if r.IntN(3) == 0 {
			version++ // which it is not yet
		}
		s.IfVersion = &version
	}
	return s
}

// value is a value for a resource. Its caller holds mu.
func (p *operator) value() json.RawMessage {
	switch n := p.random.IntN(20); n {
	case 0:
		return json.RawMessage(`"text \u00e9 \"quoted\""`)
	case 1, 2:
		return json.RawMessage(fmt.Sprint(n * 1000))
	default:
		return json.RawMessage(fmt.Sprintf(`{"n":%d,"s":"%d","l":[%d,{"x":1.50}],"o":{"n":%d}}`, n, n, n, n))
	}
}

// version is what a member has seen of a key: its version, 0 when it does not exist.
func (l *ledger) version(key string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.versions[key]
}

// settle asks over HTTP what became of the operations of which an attempt was lost
// and none was answered as applied. Nothing is under way any more.
func (st *stage) settle(ctx context.Context, operators []*operator) error {
	type question struct {
		p  *operator
		op *model.Operation
	}
	var open []question
	for _, p := range operators {
		for op := range p.uncertain {
			open = append(open, question{p, op})
		}
	}
	if len(open) == 0 {
		return nil
	}
	o, host, _, err := st.fleetOptions(1)
	if err != nil {
		return err
	}
	f, err := fleet.New(o)
	if err != nil {
		return err
	}
	defer f.Close()
	at := -1
	return f.Run(ctx, func(_ int, dst []byte) []byte {
		if at++; at == len(open) {
			return dst
		}
		q := open[at]
		return fleet.Request(dst, "GET", roomPath(q.p.room)+"/operations/"+url.PathEscape(q.op.ID), host, q.p.token, "", nil)
	}, func(_ int, a *fleet.Answer) {
		q := open[at]
		if a.Status == 404 {
			return // it was not applied
		}
		q.p.told(q.op, q.p.room.ledger.ask(q.op, a.Sent), a)
	})
}
