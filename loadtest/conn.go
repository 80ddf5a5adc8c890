package loadtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"hub/loadtest/model"
)

// conn is one client: a socket, a user and a subscription to one room. Whatever
// arrives for it is checked at once.
type conn struct {
	// fixed after new
	number int // among the connections of the swarm
	shard  *shard
	room   *room
	user   string
	token  string
	source netip.Addr // zero: the system's choice
	// receives is the size of its socket's receive buffer in bytes, for connections
	// that will stop reading; 0: the system's choice. It is set before the first dial.
	receives int

	// guarded by shard.mu
	state     state
	part      []byte // of a frame or head that is not complete
	fragments []byte // of a message that is not complete
	replies   int    // still to come for the first two commands
	was       bool   // subscribed before: offset and the room's epoch say where
	next      uint64 // number of the event that is due
	offset    uint64 // of the event before
	missing   map[uint64]struct{}
	dialed    int64       // when it was dropped, or dialled first, on the swarm's clock; 0: neither
	attempts  int         // dials since it was last subscribed
	stalled   bool        // does not read
	leaving   bool        // waits for the answer to unsubscribe
	view      model.State // in a room with a ledger: what events made of its resources
	leaver    *leaver     // of one that loses its right to be there; else nil
	// ready, unless nil, is called each time that the connection is subscribed.
	ready func()

	// mu guards the rest. It is taken inside every other lock.
	mu    sync.Mutex
	sock  socket // nil: not connected
	live  bool   // subscribed
	last  uint32 // id of the last call
	calls map[uint32]called
}

// state is how far a connection has come.
type state uint8

const (
	idle        state = iota
	opening           // connect(2) is under way
	upgrading         // the request is sent
	subscribing       // so is the frame with connect and subscribe
	subscribed
)

// socket is what a [network] makes of a connection's transport.
type socket interface {
	// send writes b or keeps what the system does not take. Its caller holds conn.mu.
	send(b []byte) error
	// close ends it without another callback; reset leaves no TIME_WAIT behind.
	// Its caller holds conn.mu.
	close(reset bool)
	// read stops and resumes reading. Its caller holds shard.mu.
	read(on bool) error
	// unread is how many bytes have come that nobody read, and the address of this
	// end; false where the system does not tell. Its caller holds conn.mu.
	unread() (n int, local netip.AddrPort, ok bool)
}

var (
	errNotConnected = errors.New("not connected")
	// errEOF is a connection that ended without a close frame.
	errEOF = errors.New("connection lost")
)

// send writes whole frames; any goroutine may call it.
func (c *conn) send(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return errNotConnected
	}
	return c.sock.send(b)
}

// drop closes the socket, if there is one. Its caller holds shard.mu.
func (c *conn) drop(reset bool) {
	c.mu.Lock()
	sock := c.sock
	c.sock, c.live = nil, false
	if sock != nil {
		sock.close(reset)
	}
	calls := c.calls
	c.calls = nil
	c.mu.Unlock()
	for _, done := range calls {
		done(nil, c.shard.swarm.now())
	}
	c.shard.left(c)
	c.state, c.part, c.fragments, c.stalled = idle, nil, nil, false
}

// The key is the sample of RFC 6455 section 1.3, and so is its answer: nothing
// here caches responses.
const (
	handshakeKey    = "dGhlIHNhbXBsZSBub25jZQ=="
	handshakeAccept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
)

// maxHead bounds the answer to the upgrade request.
const maxHead = 8 << 10

// opened is called when the transport is connected; the caller of this and the
// next two holds shard.mu.
func (c *conn) opened() error {
	c.state = upgrading
	c.shard.t.seen++
	o := &c.shard.swarm.options
	request := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Key: "+handshakeKey+"\r\nSec-WebSocket-Version: 13\r\nUser-Agent: hub-loadtest\r\n", socketPath(c.room.db), o.host, o.origin())
	if name := o.codec.subprotocol(); name != "" {
		request = fmt.Appendf(request, "Sec-WebSocket-Protocol: %s\r\n", name)
	}
	return c.send(append(request, "\r\n"...))
}

func socketPath(db string) string {
	if db == defaultDatabase {
		return "/connection/websocket"
	}
	return "/v1/" + db + "/websocket"
}

// received handles what was read at a time on the swarm's clock and returns the
// part that is not complete yet.
func (c *conn) received(data []byte, at int64) ([]byte, error) {
	if c.state == upgrading {
		end := bytes.Index(data, []byte("\r\n\r\n"))
		if end < 0 {
			if len(data) > maxHead {
				return nil, errors.New("the answer to the upgrade has no end")
			}
			return data, nil
		}
		if err := c.upgraded(string(data[:end+2])); err != nil {
			return nil, err
		}
		data = data[end+4:]
	}
	for {
		f, rest, ok, err := cutFrame(data)
		if err != nil || !ok {
			return data, err
		}
		if err := c.frame(f, at); err != nil {
			return nil, err
		}
		data = rest
	}
}

// upgraded checks the answer to the upgrade and sends the first commands, in
// one frame as the JavaScript client does.
func (c *conn) upgraded(head string) error {
	o := &c.shard.swarm.options
	status, fields, _ := strings.Cut(head, "\r\n")
	if !strings.HasPrefix(status, "HTTP/1.1 101 ") {
		status = strings.TrimPrefix(status, "HTTP/1.1 ")
		if after := field(fields, "Retry-After"); after != "" {
			status += ", retry after " + after + " s"
		}
		return fmt.Errorf("upgrade refused: %.100s", status)
	}
	if field(fields, "Sec-WebSocket-Accept") != handshakeAccept {
		return errors.New("upgrade answered without the right Sec-WebSocket-Accept")
	}
	if got := field(fields, "Sec-WebSocket-Protocol"); got != o.codec.subprotocol() {
		return fmt.Errorf("upgrade answered with subprotocol %.40q", got)
	}
	c.state, c.replies = subscribing, 2
	c.shard.t.seen++
	hello := o.codec.appendConnect(nil, idConnect, c.token)
	hello = append(hello, o.codec.separator()...)
	hello = o.codec.appendSubscribe(hello, idSubscribe, c.room.name, c.position())
	return c.send(appendFrame(nil, o.codec.op(), hello))
}

// position is where the subscription left off, nil for a new one.
func (c *conn) position() *position {
	if !c.was {
		return nil
	}
	return c.room.position(c.offset)
}

// field returns the value of an HTTP header field.
func field(fields, name string) string {
	for line := range strings.SplitSeq(fields, "\r\n") {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.EqualFold(k, name) {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Ids of commands; those of publications follow.
const (
	idConnect = 1 + iota
	idSubscribe
	idUnsubscribe
	idPublish // of the event that follows number 0
	// idCall and all above are calls: a run has not so many events.
	idCall = 1 << 31
)

// frame handles one frame of the server.
func (c *conn) frame(f frame, at int64) error {
	op := c.shard.swarm.options.codec.op()
	switch {
	case f.op == opPing:
		return c.send(appendFrame(nil, opPong, f.payload))
	case f.op == opPong:
		return nil
	case f.op == opClose:
		return closeReason(f.payload)
	case f.op == op && f.fin && c.fragments == nil:
		return c.payload(f.payload, at)
	case f.op == op && c.fragments == nil, f.op == opContinuation && c.fragments != nil:
		if len(c.fragments)+len(f.payload) > maxFrame {
			return fmt.Errorf("%w: fragments of more than %d bytes", errFrame, maxFrame)
		}
		c.fragments = append(c.fragments, f.payload...)
		if c.fragments == nil {
			c.fragments = []byte{}
		}
		if !f.fin {
			return nil
		}
		whole := c.fragments
		c.fragments = nil
		return c.payload(whole, at)
	}
	return fmt.Errorf("%w: opcode %d", errFrame, f.op)
}

// closedError is a close frame of the server.
type closedError struct {
	code   uint16
	reason string
}

func (e *closedError) Error() string {
	return fmt.Sprintf("closed by the server: %d %s", e.code, e.reason)
}

// refusedError is an answer to one of the first commands that is an error.
type refusedError struct {
	command string
	code    uint32
	text    string
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("%s answered with error %d %s", e.command, e.code, e.text)
}

func closeReason(payload []byte) error {
	if len(payload) < 2 {
		return &closedError{code: 1005, reason: "no code"}
	}
	return &closedError{code: binary.BigEndian.Uint16(payload), reason: string(payload[2:])}
}

// payload handles the messages of one frame.
func (c *conn) payload(payload []byte, at int64) error {
	codec := c.shard.swarm.options.codec
	var m message
	for len(payload) > 0 {
		rest, err := codec.cut(payload, &m)
		if err != nil {
			return err
		}
		payload = rest
		if m.kind != ping {
			c.shard.t.seen++
		}
		switch m.kind {
		case pub:
			c.published(m.room, &m.pub, at)
		case ping:
			err = c.send(appendFrame(nil, codec.op(), codec.pong()))
		case reply:
			err = c.reply(&m, at)
		case unsubscribe:
			err = c.unsubscribed(&m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reply handles the answer to a command.
func (c *conn) reply(m *message, at int64) error {
	switch {
	case m.id >= idCall:
		c.answered(m, at)
		return nil
	case m.id >= idPublish:
		c.shard.acknowledged(c, m)
		return nil
	case m.code != 0:
		return &refusedError{commandName(m.id), m.code, string(m.text)}
	case m.id == idSubscribe:
		if err := c.subscribedAt(m.subscribe, at); err != nil {
			return err
		}
	case m.id == idUnsubscribe && c.leaving:
		c.leaving = false
		c.shard.t.leaving--
		return nil
	case m.id != idConnect:
		return fmt.Errorf("%w: a reply to no command", errMessage)
	}
	if c.replies--; c.replies == 0 {
		c.state = subscribed
		c.shard.arrived(c, at)
	}
	return nil
}

func commandName(id uint32) string {
	switch id {
	case idConnect:
		return "connect"
	case idSubscribe:
		return "subscribe"
	}
	return "unsubscribe"
}

// leave unsubscribes. Its caller holds shard.mu.
func (c *conn) leave() {
	codec := c.shard.swarm.options.codec
	c.leaving = true
	c.shard.t.leaving++
	if err := c.send(appendFrame(nil, codec.op(), codec.appendUnsubscribe(nil, idUnsubscribe, c.room.name))); err != nil {
		c.shard.ended(c, err)
	}
}

// subscribedAt takes the place in the room from a subscribe reply, and what was
// missed in the meantime.
func (c *conn) subscribedAt(result []byte, at int64) error {
	codec, sh := c.shard.swarm.options.codec, c.shard
	var s subscription
	if err := codec.subscription(result, &s, nil); err != nil {
		return err
	}
	base, same := c.room.joined(&s)
	switch {
	case !s.recoverable:
		return fmt.Errorf("subscription to %s is not recoverable", c.room.name)
	case !c.was:
		c.was, c.next, c.offset = true, s.offset-base+1, s.offset
	case !s.recovered || !same:
		sh.fault(&sh.t.unrecovered, "connection %d: position %d of %s was not recovered", c.number, c.offset, c.room.name)
		if n := s.offset - base + 1; n > c.next && same {
			c.skip(n)
			c.offset = s.offset
		}
	default:
		sh.t.recovered++
		return codec.subscription(result, &s, func(p *publication) { c.published([]byte(c.room.name), p, at) })
	}
	return nil
}

// unsubscribed subscribes again where the server's code says so.
func (c *conn) unsubscribed(m *message) error {
	if m.code < 2500 {
		return fmt.Errorf("unsubscribed from %s: %d %s", m.room, m.code, m.text)
	}
	codec := c.shard.swarm.options.codec
	c.shard.left(c)
	c.state, c.replies = subscribing, 1
	c.shard.inFlight++
	c.shard.reason(fmt.Sprintf("resubscribed after %d %s", m.code, m.text))
	return c.send(appendFrame(nil, codec.op(), codec.appendSubscribe(nil, idSubscribe, c.room.name, c.position())))
}

// published takes an event of a publisher or of an operation.
func (c *conn) published(room []byte, p *publication, at int64) {
	if c.room.ledger != nil {
		c.operated(room, p)
	} else {
		c.publication(room, p, at)
	}
}

// publication checks an event: it must belong here, in this order, once.
func (c *conn) publication(room []byte, p *publication, at int64) {
	sh, r := c.shard, c.room
	e, db, ok := parseEvent(p.data)
	switch {
	case !ok || e.seq == 0:
		sh.fault(&sh.t.malformed, "connection %d: an event in %s that was never sent: %.60q", c.number, room, p.data)
		return
	case string(db) != r.db:
		sh.fault(&sh.t.crossDatabase, "connection %d of database %s got an event of database %s", c.number, r.db, db)
		return
	case e.room != r.number || string(room) != r.name:
		sh.fault(&sh.t.crossRoom, "connection %d of room %s got an event of room number %d in %s", c.number, r.name, e.room, room)
		return
	case e.seq > r.given.Load():
		sh.fault(&sh.t.malformed, "connection %d: event %d of %s was never sent", c.number, e.seq, r.name)
		return
	case e.by != r.publisher.number || string(p.user) != r.publisher.user:
		sh.fault(&sh.t.misattributed, "connection %d: event %d of %s is said to be of user %.40q", c.number, e.seq, r.name, p.user)
	case !intact(p.data, db, sh.swarm.options.size):
		sh.fault(&sh.t.malformed, "connection %d: event %d of %s came with other data than was sent", c.number, e.seq, r.name)
	}
	switch {
	case e.seq == c.next:
		c.next++
		if c.offset++; p.offset != c.offset {
			sh.fault(&sh.t.misplaced, "connection %d: event %d of %s has offset %d, want %d", c.number, e.seq, r.name, p.offset, c.offset)
		}
	case e.seq > c.next:
		// What was refused has no offset, so only events that were lost move it.
		if n := e.seq - c.next + 1; p.offset <= c.offset || p.offset > c.offset+n {
			sh.fault(&sh.t.misplaced, "connection %d: event %d of %s has offset %d after %d", c.number, e.seq, r.name, p.offset, c.offset)
		}
		c.skip(e.seq)
		c.next++
		c.offset = p.offset
	default:
		if _, late := c.missing[e.seq]; !late {
			sh.fault(&sh.t.duplicate, "connection %d: event %d of %s came twice", c.number, e.seq, r.name)
			return
		}
		delete(c.missing, e.seq)
		sh.t.missing--
		sh.fault(&sh.t.outOfOrder, "connection %d: event %d of %s came after %d", c.number, e.seq, r.name, c.next-1)
	}
	if c.leaver != nil {
		c.leaver.got(e.due)
	}
	sh.t.got++
	sh.t.last = at
	sh.record(at, e.due)
}

// lost counts the events that the connection should have and has not, and returns
// the number of the first. Its caller holds shard.mu.
func (c *conn) lost() (n int64, first uint64) {
	if !c.was || c.stalled || c.leaver != nil {
		return 0, 0
	}
	return c.room.lost(c)
}

// skip moves on to the event numbered n and remembers those that did not come.
func (c *conn) skip(n uint64) {
	if c.missing == nil {
		c.missing = make(map[uint64]struct{})
	}
	for ; c.next < n; c.next++ {
		c.missing[c.next] = struct{}{}
		c.shard.t.missing++
	}
}
