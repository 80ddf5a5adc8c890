package loadtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"hub/loadtest/fleet"
	"hub/loadtest/model"
	"hub/loadtest/report"
)

// The server's defaults, but for databaseReads: at 20,000 a second it would be the
// machine that is tested, and not the bucket.
var (
	readLimit      = bucket{500, 1200}
	mutationLimit  = bucket{200, 500}
	handshakeLimit = bucket{200, 500}
	messageLimit   = bucket{50, 100}
	databaseReads  = bucket{3000, 6000}
)

const (
	limitAddresses = 4
	// limitDatabaseAddresses have more tokens of their own than their database has.
	limitDatabaseAddresses = 8
	// limitPerAddress is how many requests of an address are under way at once.
	limitPerAddress = 2
	limitTime       = 4 * time.Second
	// limitRefused is how many refusals of a bucket prove that it was empty.
	limitRefused = 20
	// limitMessages is how many a connection sends at once, every limitEvery.
	limitMessages = 2
	limitEvery    = 5 * time.Millisecond

	counterKey = "counter"
)

var limitsChanged = report.Setting{Name: "limits.database.read of scenario limits, alone", Value: "3000/s, burst 6000", Default: "20000/s, burst 30000"}

// limitsPlan leaves the limits at their defaults, but for that of databaseReads; a
// test has them all smaller.
func limitsPlan(o *Options) serverPlan {
	limits := map[string]bucket{"database.read": databaseReads}
	if o.share > 1 {
		limits["read"], limits["mutation"], limits["handshake"], limits["messages"] = readLimit, mutationLimit, handshakeLimit, messageLimit
	}
	text := ""
	for name, b := range limits {
		b = b.divided(o)
		text += fmt.Sprintf("[limits.%s]\nper_second = %.3f\nburst = %.0f\n", name, b.rate, b.burst)
	}
	return serverPlan{limits: text}
}

// hammer is a class of requests that are sent as fast as they are answered.
type hammer struct {
	stage *stage
	name  string
	bucket
	room      *room
	addresses int
	together  bool // one bucket for all addresses
	once      bool // a connection for each request
	passes    int  // status of what passes
	// request appends a client's next request.
	request func(h *hammer, i int, dst []byte) []byte
	// answered, unless nil, is called for what passed.
	answered func(h *hammer, i int, a *fleet.Answer)

	host    string
	pending []pendingMutation // of each client
	tries   []*trial          // of each address, or one
}

// pendingMutation is an operation that is asked for until it passes.
type pendingMutation struct {
	entry *entry
	body  []byte
}

// limits hammers a server that has the default limits from a few addresses.
func (st *stage) limits(ctx context.Context) error {
	// The other room is in the other database: its bucket is full when its turn comes.
	if err := st.open(ctx, layout{conns: 2 * limitAddresses, rooms: 2, operated: true}); err != nil {
		return err
	}
	rooms := st.swarm.rooms
	if err := st.createCounters(ctx); err != nil {
		return err
	}
	var wrong []string
	passed := 0
	for _, h := range []*hammer{
		{name: "reads of an address", bucket: readLimit, room: rooms[0], addresses: limitAddresses, passes: 200, request: (*hammer).read},
		{name: "mutations of an address", bucket: mutationLimit, room: rooms[0], addresses: limitAddresses, passes: 200, request: (*hammer).mutation,
			answered: func(h *hammer, i int, a *fleet.Answer) {
				passed++
				h.room.ledger.answered(h.pending[i].entry, httpBody(a), a.At)
				h.pending[i].entry = nil
			}},
		{name: "handshakes of an address", bucket: handshakeLimit, room: rooms[0], addresses: limitAddresses, once: true, passes: 101, request: (*hammer).handshake},
		{name: "reads of a database", bucket: databaseReads, room: rooms[1], addresses: limitDatabaseAddresses, together: true, passes: 200, request: (*hammer).read},
	} {
		h.stage, h.bucket = st, h.bucket.divided(&st.r.options)
		if err := h.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
		for _, t := range h.tries {
			wrong = append(wrong, t.wrong...)
		}
		st.checkTrials(h.name, h.bucket, h.tries)
	}
	const refusals = "what is over a limit gets 429, Retry-After and a problem document"
	st.check(refusals, len(wrong) == 0, "%s", orText(examples(wrong), "nothing else came"))
	if err := st.limitMessages(ctx); err != nil {
		return err
	}
	// Reading what was counted needs tokens.
	if err := st.pause(ctx, time.Second, "tokens come back"); err != nil {
		return err
	}
	return st.checkCounter(ctx, passed)
}

// createCounters makes what is read and counted up, from another address.
func (st *stage) createCounters(ctx context.Context) error {
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
	var e *entry
	return f.Run(ctx, func(_ int, dst []byte) []byte {
		if at++; at == len(st.swarm.rooms) {
			return dst
		}
		r := st.swarm.rooms[at]
		c := r.members[0]
		op := r.ledger.operation(c.user, model.Step{Op: "create", Key: counterKey, Value: json.RawMessage("0")})
		e = r.ledger.ask(op, st.swarm.now())
		return fleet.Request(dst, "POST", roomPath(r)+"/operations", host, c.token, "", operateBody(op))
	}, func(_ int, a *fleet.Answer) { st.swarm.rooms[at].ledger.answered(e, httpBody(a), a.At) })
}

// member is a client's user and token.
func (h *hammer) member(i int) *conn { return h.room.members[i%len(h.room.members)] }

func (h *hammer) read(i int, dst []byte) []byte {
	return fleet.Request(dst, "GET", roomPath(h.room)+"/resources/"+counterKey, h.host, h.member(i).token, "", nil)
}

// mutation adds one to the counter. One that was refused is asked for again as it is.
func (h *hammer) mutation(i int, dst []byte) []byte {
	p, c := &h.pending[i], h.member(i)
	if p.entry == nil {
		one := int64(1)
		op := h.room.ledger.operation(c.user, model.Step{Op: "add", Key: counterKey, By: &one})
		p.entry, p.body = h.room.ledger.ask(op, h.stage.swarm.now()), operateBody(op)
	}
	return fleet.Request(dst, "POST", roomPath(h.room)+"/operations", h.host, c.token, "", p.body)
}

func (h *hammer) handshake(_ int, dst []byte) []byte {
	return fleet.Request(dst, "GET", socketPath(h.room.db), h.host, "", "Upgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Key: "+handshakeKey+"\r\nSec-WebSocket-Version: 13\r\n", nil)
}

// run hammers until the time is over and every bucket was found empty.
func (h *hammer) run(ctx context.Context) error {
	st := h.stage
	clients := h.addresses * limitPerAddress
	o, host, _, err := st.fleetOptions(clients)
	if err != nil {
		return err
	}
	o.Once, h.host, h.pending = h.once, host, make([]pendingMutation, clients)
	sources := make([]netip.Addr, h.addresses)
	for i := range sources {
		sources[i] = st.r.host()
	}
	o.Source = func(i int) netip.Addr { return sources[i%len(sources)] }
	h.tries = make([]*trial, h.addresses)
	for i := range h.tries {
		if h.tries[i] = (&trial{}); h.together {
			h.tries[i] = h.tries[0]
		}
	}
	f, err := fleet.New(o)
	if err != nil {
		return err
	}
	defer f.Close()
	d := min(limitTime, st.r.options.stream)
	st.r.progress.set(st.swarm, "limits: "+h.name, time.Now().Add(d))
	begin := st.swarm.now()
	err = f.Run(ctx, func(i int, dst []byte) []byte {
		if at := st.swarm.now() - begin; at > int64(d) && (h.exhausted() || at > int64(d+st.r.options.stall)) {
			return dst
		}
		return h.request(h, i, dst)
	}, func(i int, a *fleet.Answer) {
		t := h.tries[i%len(h.tries)]
		passed := a.Status == h.passes
		if !passed {
			if wrong := wrongRefusal(a); wrong != "" {
				t.wrong = append(t.wrong, wrong)
				return
			}
		}
		t.note(passed, a.Sent, a.At)
		if passed && h.answered != nil {
			h.answered(h, i, a)
		}
	})
	for _, p := range h.pending {
		if p.entry != nil {
			h.room.ledger.lost(p.entry) // refused to the end: a gap in the offsets would tell
		}
	}
	if h.together {
		h.tries = h.tries[:1]
	}
	return err
}

func (h *hammer) exhausted() bool {
	return !slices.ContainsFunc(h.tries, func(t *trial) bool { return t.refused < limitRefused })
}

// limitMessages lets every connection ask more than it may.
func (st *stage) limitMessages(ctx context.Context) error {
	s, d := st.swarm, min(limitTime, st.r.options.stream)
	st.r.progress.set(s, "limits: messages of a connection", time.Now().Add(d))
	tries := make([]*trial, len(s.conns))
	for i := range tries {
		tries[i] = &trial{}
	}
	asked := 0
	tick := time.NewTicker(limitEvery)
	defer tick.Stop()
	for begin := s.now(); ; {
		at := s.now() - begin
		if _, refused := s.countTrials(tries); at > int64(d) && (refused >= limitRefused || at > int64(d+st.r.options.stall)) {
			break
		}
		for i, c := range s.conns {
			for range limitMessages {
				if err := st.ask(c, tries[i]); err != nil {
					return err
				}
				asked++
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := s.wait(ctx, func(*counts) bool {
		answered, _ := s.countTrials(tries)
		return answered == asked
	})
	if err != nil {
		return err
	}
	st.checkTrials("messages of a connection", messageLimit.divided(&st.r.options), tries)
	var wrong []string
	for _, t := range tries {
		wrong = append(wrong, t.wrong...)
	}
	st.check("a message over the limit gets error 111", len(wrong) == 0, "%s", orText(examples(wrong), "nothing else came"))
	return nil
}

// countTrials says how many answers the connections have got, and how many refusals
// each of them at least.
func (s *swarm) countTrials(tries []*trial) (answered, refused int) {
	refused = math.MaxInt
	for i, c := range s.conns {
		t := tries[i]
		c.shard.mu.Lock()
		answered += t.passed + t.refused + len(t.wrong)
		refused = min(refused, t.refused)
		c.shard.mu.Unlock()
	}
	return answered, refused
}

// tooManyRequests is the protocol's error for what is over a limit.
const tooManyRequests = 111

// ask reads the counter over a socket.
func (st *stage) ask(c *conn, t *trial) error {
	sent := st.swarm.now()
	return c.call("get", fmt.Appendf(nil, `{"room":"%s","key":"%s"}`, c.room.name, counterKey), func(m *message, at int64) {
		switch {
		case m == nil:
			t.wrong = append(t.wrong, "the connection was lost")
		case m.code != 0 && m.code != tooManyRequests:
			t.wrong = append(t.wrong, fmt.Sprintf("error %d %s", m.code, m.text))
		default:
			t.note(m.code == 0, sent, at)
		}
	})
}

// checkCounter looks at what the mutations have done: those that passed, and no
// other.
func (st *stage) checkCounter(ctx context.Context, passed int) error {
	if err := st.waitAll(ctx); err != nil {
		return err
	}
	r := st.swarm.rooms[0]
	v := r.ledger.judge()
	differs, err := st.snapshotDiffers(ctx, r, v)
	if err != nil {
		return err
	}
	wrong := slices.Concat(v.Wrong, r.wrongViews(v))
	if differs != "" {
		wrong = append(wrong, differs)
	}
	if got := string(v.State[counterKey].Value); got != fmt.Sprint(passed) {
		wrong = append(wrong, fmt.Sprintf("the counter is %s, %d mutations passed", got, passed))
	}
	st.check("what passed was applied, what was refused was not", len(wrong) == 0, "%s", orText(examples(wrong), fmt.Sprintf("%d applied", passed)))
	return nil
}
