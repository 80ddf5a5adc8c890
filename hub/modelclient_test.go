package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/poll/polltest"
	"hub/hub/wire"
)

// modelClient does random things in random rooms and checks what comes back.
// All but the reading of its socket happens in run.
type modelClient struct {
	w      *world
	name   string
	random *rand.Rand
	enc    wire.Encoding
	token  string
	server []string // rooms that the token subscribes it to

	peer    *polltest.Peer
	ws      *wsClient
	inbox   chan inbound // of the connection
	paused  time.Time    // until when it does not read
	places  map[string]*place
	pending map[uint32]func(*protocol.Reply) // by command
	history []string                         // what it did and saw, for a failure
	final   bool                             // it only follows its rooms

	// atomic: the sum of its offsets when it is at the end of all rooms, else
	// something else; and that it should have been there long ago
	settled atomic.Int64
	lost    atomic.Bool
}

// place is what a client knows of a room. It outlives connections.
type place struct {
	room       string
	subscribed bool
	asked      bool // a subscribe or unsubscribe is under way
	offset     uint64
	epoch      string
	first      uint64 // the lowest offset that the epoch is known to have
	last       int    // number of the last message, in the room without history; 0: unknown

	// of the recovery under way
	since      uint64
	sinceEpoch string
	top        uint64
	removals   int
}

type inbound struct {
	reply *protocol.Reply
	err   error
}

func newModelClient(w *world, i int, random *rand.Rand, enc wire.Encoding) *modelClient {
	c := &modelClient{w: w, name: fmt.Sprintf("client %d (%s)", i, enc), random: random, enc: enc, places: make(map[string]*place)}
	for _, room := range c.rooms() {
		c.places[room] = &place{room: room}
	}
	if i%4 == 3 { // some rooms are the server's choice
		c.server = w.durable[:2]
	}
	c.token = token(w.t, fmt.Sprint("user-", i), func(a *auth.Claims) { a.Channels = c.server })
	return c
}

func (c *modelClient) rooms() []string { return append(slices.Clone(c.w.durable), c.w.live) }

func (c *modelClient) note(format string, args ...any) {
	c.history = append(c.history, fmt.Sprintf(format, args...))
	if len(c.history) > 60 {
		c.history = c.history[1:]
	}
}

func (c *modelClient) fail(format string, args ...any) {
	c.w.fail("%s: %s\nits last steps:\n%s", c.name, fmt.Sprintf(format, args...), join(c.history))
}

func join(lines []string) string {
	all := ""
	for _, line := range lines {
		all += "\t" + line + "\n"
	}
	return all
}

// run does random things until stop, then follows all rooms until the end.
func (c *modelClient) run(stop <-chan struct{}) {
	defer c.hangUp()
	for !c.w.t.Failed() {
		if c.peer == nil && !c.connect() {
			continue
		}
		wait := time.Duration(c.random.IntN(3000)) * time.Microsecond
		if c.final {
			c.settle()
		}
		select {
		case <-c.w.failed:
		case <-c.w.finish:
			return
		case m := <-c.inbox:
			c.receive(m)
		case <-stop:
			stop = nil
			c.final = true
			c.note("publishing has ended")
			c.resume()
		case <-time.After(wait):
			if c.final {
				c.wantAll()
			} else {
				c.step()
			}
		}
		if !c.paused.IsZero() && time.Now().After(c.paused) {
			c.resume()
		}
	}
}

func (c *modelClient) resume() {
	c.paused = time.Time{}
	if c.peer != nil {
		c.peer.Resume()
	}
}

func (c *modelClient) state() string {
	s := ""
	for _, p := range c.places {
		s += fmt.Sprintf("%s: subscribed %v, asked %v, at %d %s, last %d", p.room, p.subscribed, p.asked, p.offset, p.epoch, p.last)
		if r := c.w.ledger.rooms[p.room]; r != nil {
			top, removals := r.now()
			s += fmt.Sprintf(", top %d, removals %d", top, removals)
		}
		s += "; "
	}
	return s
}

// settle notes whether the client is where every room ends.
func (c *modelClient) settle() {
	sum := int64(0)
	for _, p := range c.places {
		if !p.subscribed || p.asked {
			sum = -1
			break
		}
		sum += int64(p.offset)
	}
	if c.settled.Store(sum); c.lost.Load() {
		c.fail("has not caught up: %s", c.state())
	}
}

// wantAll subscribes to what is left, continuing where the client is.
func (c *modelClient) wantAll() {
	for _, p := range c.places {
		if !p.subscribed && !p.asked && c.peer != nil {
			c.subscribe(p, p.epoch != "", p.offset)
		}
	}
}

// step does one random thing.
func (c *modelClient) step() {
	p := c.places[pick(c.random, c.rooms()...)]
	switch n := c.random.IntN(40); {
	case p.asked:
	case n < 14 && !p.subscribed:
		recover := p.epoch != "" && c.random.IntN(4) > 0
		since := p.offset
		if recover && c.random.IntN(3) == 0 { // any earlier position is as good
			since = max(p.first, since-min(since, uint64(c.random.IntN(30))))
		} else if recover && c.random.IntN(20) == 0 { // a room that was restored from a copy is behind
			since += 100_000
		}
		c.subscribe(p, recover, since)
	case n < 20 && p.subscribed && !slices.Contains(c.server, p.room):
		c.unsubscribe(p)
	case n < 24:
		c.publish(p)
	case n < 26 && c.paused.IsZero():
		c.note("stop reading")
		c.paused = time.Now().Add(time.Duration(c.random.IntN(80)) * time.Millisecond)
		c.peer.Pause()
	case n < 27:
		c.note("hang up")
		c.hangUp()
	}
}

// connect opens a connection; the network may fail it.
func (c *modelClient) connect() bool {
	for _, p := range c.places {
		p.subscribed, p.asked = false, false
	}
	c.pending = make(map[uint32]func(*protocol.Reply))
	peer, err := c.w.listener.Dial()
	if err != nil {
		c.fail("dial: %v", err)
		return true
	}
	ws, err := upgrade(peer, c.enc, defaultSocketPath)
	if err != nil {
		peer.Close()
		if !errors.Is(err, polltest.ErrInjected) {
			c.fail("upgrade: %v", err)
			return true
		}
		return false
	}
	_ = peer.SetDeadline(time.Time{})
	c.peer, c.ws, c.inbox = peer, ws, make(chan inbound, 1<<16)
	inbox := c.inbox
	go func() {
		for {
			r, err := ws.read()
			inbox <- inbound{r, err}
			if err != nil {
				return
			}
		}
	}()
	c.note("connect")
	req := &protocol.ConnectRequest{Token: c.token, Subs: make(map[string]*protocol.SubscribeRequest)}
	for _, room := range c.server {
		p := c.places[room]
		p.asked = true
		if c.begin(p, p.epoch != "", p.offset) {
			req.Subs[room] = &protocol.SubscribeRequest{Recover: true, Offset: p.since, Epoch: p.sinceEpoch}
		}
	}
	c.send(&protocol.Command{Connect: req}, func(r *protocol.Reply) {
		for _, room := range c.server {
			res := r.Connect.Subs[room]
			if res == nil {
				c.fail("the connect reply has no %s", room)
				return
			}
			c.subscribedTo(c.places[room], res)
		}
	})
	return true
}

// send sends a command; then gets its reply, which must be no error.
func (c *modelClient) send(cmd *protocol.Command, then func(*protocol.Reply)) {
	frame := c.ws.frame(cmd)
	c.pending[cmd.Id] = func(r *protocol.Reply) {
		if r.Error != nil {
			c.fail("%v got error %d %s", cmd, r.Error.Code, r.Error.Message)
			return
		}
		then(r)
	}
	_ = c.peer.SetWriteDeadline(time.Now().Add(patience))
	if _, err := c.peer.Write(frame); err != nil {
		c.hangUp() // its end is in the inbox, or it is paused for too long
	}
}

func (c *modelClient) hangUp() {
	if c.peer != nil {
		c.peer.Close()
		c.peer, c.inbox, c.paused = nil, nil, time.Time{}
	}
}

// begin notes where a subscription begins and reports whether it recovers.
func (c *modelClient) begin(p *place, recover bool, since uint64) bool {
	p.since, p.sinceEpoch = 0, ""
	if r := c.w.ledger.rooms[p.room]; r != nil && recover {
		p.since, p.sinceEpoch = since, p.epoch
		p.top, p.removals = uint64(r.acked.Load()), int(r.removed.Load())
		return true
	}
	return false
}

func (c *modelClient) subscribe(p *place, recover bool, since uint64) {
	p.asked = true
	req := &protocol.SubscribeRequest{Channel: p.room, JoinLeave: c.random.IntN(2) == 0}
	if c.begin(p, recover, since) {
		req.Recover, req.Offset, req.Epoch = true, p.since, p.sinceEpoch
	}
	c.note("subscribe to %s, recover %v since %d %s", p.room, req.Recover, req.Offset, req.Epoch)
	c.send(&protocol.Command{Subscribe: req}, func(r *protocol.Reply) { c.subscribedTo(p, r.Subscribe) })
}

// subscribedTo takes a subscribe result.
func (c *modelClient) subscribedTo(p *place, res *protocol.SubscribeResult) {
	p.asked, p.subscribed = false, true
	p.last = 0
	c.note("subscribed to %s at %d %s, recovered %v, %d publications", p.room, res.Offset, res.Epoch, res.Recovered, len(res.Publications))
	r := c.w.ledger.rooms[p.room]
	if r == nil {
		if res.Recoverable || res.Positioned || res.Epoch != "" || res.Offset != 0 || len(res.Publications) > 0 {
			c.fail("room without history answers %v", res)
		}
		return
	}
	if !res.Recoverable || !res.Positioned || res.Epoch == "" || res.WasRecovering != (p.sinceEpoch != "") {
		c.fail("durable room answers %v", res)
	}
	if p.sinceEpoch != "" {
		if err := r.recoverable(res.Recovered, p.since, p.sinceEpoch, p.top, p.removals); err != nil {
			c.fail("%s: %v", p.room, err)
		}
		if res.Recovered && (res.Offset != p.since || res.Epoch != p.sinceEpoch) {
			c.fail("recovery since %d %s of %s answers %v", p.since, p.sinceEpoch, p.room, res)
		}
	}
	if p.epoch != res.Epoch {
		p.first = res.Offset
	}
	p.offset, p.epoch = res.Offset, res.Epoch
	for _, pub := range res.Publications {
		c.publication(p, pub)
	}
}

func (c *modelClient) unsubscribe(p *place) {
	p.asked = true
	c.note("unsubscribe from %s", p.room)
	c.send(&protocol.Command{Unsubscribe: &protocol.UnsubscribeRequest{Channel: p.room}}, func(*protocol.Reply) {
		p.asked, p.subscribed = false, false
		c.note("unsubscribed from %s", p.room)
	})
}

func (c *modelClient) publish(p *place) {
	r := c.w.ledger.rooms[p.room]
	if r == nil {
		return // its numbers must rise, so it has its own publisher
	}
	r.asked.Add(1)
	c.send(&protocol.Command{Publish: &protocol.PublishRequest{Channel: p.room, Data: encodeMessage(p.room, -1, 7)}},
		func(*protocol.Reply) {})
}

// receive handles what came from the server.
func (c *modelClient) receive(m inbound) {
	if m.err != nil {
		c.note("connection ended: %v", m.err)
		var end *closed
		if errors.As(m.err, &end) && end.code != closeSlow.code {
			c.fail("closed with %d %s", end.code, end.reason)
		}
		if errors.As(m.err, &end) || errors.Is(m.err, polltest.ErrInjected) || isEOF(m.err) {
			c.hangUp()
			return
		}
		c.fail("reading: %v", m.err)
		return
	}
	r := m.reply
	switch {
	case r.Id != 0:
		then := c.pending[r.Id]
		if then == nil {
			c.fail("reply to nothing: %v", r)
			return
		}
		delete(c.pending, r.Id)
		then(r)
	case r.Push == nil: // a ping
	case r.Push.Pub != nil:
		p := c.places[r.Push.Channel]
		if p == nil || !p.subscribed {
			c.fail("publication of %s, which it is not subscribed to", r.Push.Channel)
			return
		}
		c.publication(p, r.Push.Pub)
	case r.Push.Join != nil, r.Push.Leave != nil:
		p := c.places[r.Push.Channel]
		if p == nil || !p.subscribed || p.room != "middle:c" {
			c.fail("push %v, which it is not subscribed to", r.Push)
		}
	case r.Push.Unsubscribe != nil:
		p := c.places[r.Push.Channel]
		c.note("unsubscribed from %s with %d", p.room, r.Push.Unsubscribe.Code)
		if !p.subscribed || r.Push.Unsubscribe.Code != unsubInsufficient.code {
			c.fail("unsubscribe %d from %s, subscribed %v", r.Push.Unsubscribe.Code, p.room, p.subscribed)
		}
		p.subscribed = false
	default:
		c.fail("push %v", r.Push)
	}
}

// publication checks one publication: the next one, of this room, and true.
func (c *modelClient) publication(p *place, pub *protocol.Publication) {
	var m message
	if err := json.Unmarshal(pub.Data, &m); err != nil {
		c.fail("%s: publication %q: %v", p.room, pub.Data, err)
		return
	}
	if m.Room != p.room {
		c.fail("publication of %s in %s", m.Room, p.room)
		return
	}
	if p.room == c.w.live {
		if pub.Offset != 0 || p.last != 0 && m.N != p.last+1 {
			c.fail("room without history: message %d after %d, offset %d", m.N, p.last, pub.Offset)
		}
		p.last = m.N
		return
	}
	if pub.Offset != p.offset+1 {
		c.fail("%s: offset %d after %d", p.room, pub.Offset, p.offset)
	}
	p.offset = pub.Offset
	if err := c.w.ledger.check(seen{p.room, pub.Offset, string(pub.Data)}); err != nil {
		c.fail("%v", err)
	}
}
