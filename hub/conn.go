package hub

import (
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/centrifugal/protocol"
	"github.com/gobwas/ws"

	"hub/auth"
	"hub/hub/poll"
	"hub/hub/wire"
	"hub/ratelimit"
)

// conn is one connection. Everything in it is owned by its loop; it holds no
// buffer and no goroutine while it is idle.
type conn struct {
	// fixed after adopt
	loop *loop
	sock poll.Socket
	slot *ratelimit.Slot // from the upgrade on
	db   *database       // from the upgrade on
	enc  wire.Encoding   // from the upgrade on

	state connState
	// blocked: the socket takes no more; it says when it does.
	// held: no publication may be written yet (the connect reply is to come first).
	// unflushed: in the loop's list of that name.
	// paused: the socket is not read, something waits.
	// pongDue: a ping is unanswered.
	// ripe: in the loop's list of that name, since what waits may go on.
	// serial: the command in flight must be finished before the next begins.
	blocked, held, unflushed, paused, pongDue, ripe, serial bool

	index  int32        // in loop.conns
	flight int32        // commands in flight
	turn   int32        // the subscription that was served last when lagging
	in     []byte       // bytes received and not handled yet
	out    []byte       // bytes that precede everything else on the socket
	dec    wire.Decoder // frames
	parked *parked      // commands that wait for those in flight
	setup  *setup       // until the connect reply, if there is anything in it

	messages, subscribes ratelimit.Bucket

	// who it is, from the connect command on
	session            *session
	userPrev, userNext *conn         // others of the same user in this loop
	number             uint64        // in the order in which they connected
	since              time.Duration // of that, on the loops' clock

	subs []*sub

	timer      timer
	deadline   time.Duration // of the handshake, the closing, or the drain; 0: none
	frameUntil time.Duration // of the frame that has begun to arrive; 0: none
	nextPing   time.Duration
	pongUntil  time.Duration
	nextCheck  time.Duration // of the revalidation
	checked    uint64        // generation of the policy at the last one
	expires    expiry        // of the token, or as the server API said
}

type connState uint8

const (
	stateHandshake connState = iota // the HTTP upgrade is to come
	stateConnect                    // the connect command is to come
	stateRefused                    // it failed; the client is to close
	stateConnected
	stateClosing // a close frame has been sent; the client is to close
	stateGone    // the socket is closed
)

// session is who a connection is, and what it keeps of its token: what permissions and
// revalidation need, and not the token.
type session struct {
	credential
	client  string // id of the connection
	info    json.RawMessage
	grants  auth.Grants
	rooms   []string // server-side subscriptions (channels)
	expires int64    // exp, unix seconds
	// operator: the token is one of the console
	operator bool
}

// setup is what a connection needs until its connect reply.
type setup struct {
	token    string   // from the Authorization header
	deferred []func() // wait for the reply, since they may push
}

// parked are commands that cannot begin yet.
type parked struct {
	next *protocol.Command
	rest []byte // of the same message, not decoded yet
}

// sub is a subscription: a cursor into a room's log. Owned by the connection's loop.
type sub struct {
	conn  *conn
	shard *shard
	index int // in shard.subs; -1 while it is not live

	cursor     uint64 // offset of the last publication that was written, or begun
	signal     uint64 // the same of joins and leaves
	generation uint32 // of the room's history

	joinLeave bool // wants joins and leaves
	waiting   bool // in shard.behind
	recovery  *subscribing
	doomed    *unsubscribeCode // to be unsubscribed as soon as it is live

	made    maker           // what allows it
	token   *credential     // of the subscription token, if that is what does
	info    json.RawMessage // of the subscription token
	expires expiry
}

const (
	// maxCommand and maxFrame bound what comes in: a reconnect frame may hold 128
	// subscriptions with tokens.
	maxCommand = 64 << 10
	maxFrame   = 256 << 10
	// maxReply bounds the publications of a history reply: Swift and Python cap a
	// message at 1 MiB.
	maxReply = 192 << 10
	// maxRecovered bounds those of a subscribe or connect reply. They are copied for
	// one client, the rest comes from bytes that all share: so little fits the
	// socket at once, and a stampede of recoveries needs no memory.
	maxRecovered = 16 << 10
	// maxPresence bounds a presence reply.
	maxPresence = 256 << 10
	// unsentPause is the unsent bytes at which a connection is not read any more.
	unsentPause = 64 << 10
	// closeWait is how long a client may take to answer a close frame.
	closeWait = 3 * time.Second
)

func (c *conn) open() bool { return c.state < stateClosing }
func (c *conn) gone() bool { return c.state == stateGone }

func (c *conn) block() {
	c.blocked = true
	c.sock.Interest(!c.paused, true)
}

func (c *conn) unblock() {
	c.blocked = false
	c.sock.Interest(!c.paused, false)
}

// setPaused stops or resumes reading.
func (c *conn) setPaused(paused bool) {
	if c.paused != paused && !c.gone() {
		c.paused = paused
		c.sock.Interest(!paused, c.blocked)
	}
}

// adoptRaw makes h a connection whose first bytes are to be an HTTP request.
func (l *loop) adoptRaw(h poll.Handle) {
	if l.stopping {
		h.Close()
		return
	}
	c := &conn{loop: l, state: stateHandshake}
	l.adopt(c, h)
}

// adopt attaches h to the loop as c, which may have been upgraded already.
func (l *loop) adopt(c *conn, h poll.Handle) bool {
	sock, err := l.poller.Attach(h, c)
	if err != nil {
		h.Close()
		c.slot.Release()
		return false
	}
	c.sock = sock
	c.timer.conn = c
	c.index = int32(len(l.conns))
	l.conns = append(l.conns, c)
	l.stats.sockets.Add(1)
	c.deadline = l.now + l.server.opts.Server.HandshakeTimeout
	l.schedule(c)
	return true
}

// read handles what has arrived.
func (l *loop) read(c *conn) {
	n, err := c.sock.Read(l.buf)
	if err != nil {
		if !errors.Is(err, poll.ErrAgain) {
			l.drop(c)
		}
		return
	}
	c.pongDue = false // whatever arrives shows that the peer lives
	data := l.buf[:n]
	if len(c.in) > 0 {
		c.in = append(c.in, data...)
		data = c.in
	}
	used := l.handle(c, data)
	l.keep(c, data, used)
	l.watchFrame(c, used > 0)
	if l.server.poison {
		poison(l.buf[:n])
	}
}

// keep remembers the bytes behind the first used ones.
func (l *loop) keep(c *conn, data []byte, used int) {
	switch rest := data[used:]; {
	case c.gone() || len(rest) == 0:
		l.giveBuffer(c.in)
		c.in = nil
	case len(c.in) > 0:
		c.in = append(c.in[:0], rest...)
	default:
		c.in = append(l.takeBuffer(), rest...)
	}
}

// watchFrame gives the rest of an unfinished frame or message a deadline, so
// that nobody holds memory by sending it a byte at a time.
func (l *loop) watchFrame(c *conn, progress bool) {
	// Control frames between the fragments of a message are no progress of it.
	if progress && !c.dec.Fragmented() || c.paused {
		c.frameUntil = 0
	}
	if c.open() && c.state != stateHandshake && c.frameUntil == 0 && !c.paused && (len(c.in) > 0 || c.dec.Fragmented()) {
		o := &l.server.opts.Server
		c.frameUntil = l.now + o.PingInterval + o.PongTimeout
		l.schedule(c)
	}
}

// poison overwrites a buffer that nobody may look at any more, in tests.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xAA
	}
}

// handle takes complete requests and frames off data and returns the bytes used.
func (l *loop) handle(c *conn, data []byte) (used int) {
	for used < len(data) && c.parked == nil && len(c.out) <= unsentPause {
		switch c.state {
		case stateHandshake:
			n := l.handshake(c, data[used:])
			if n == 0 {
				return used
			}
			used += n
		case stateGone:
			return used
		default:
			n, more := l.frame(c, data[used:])
			used += n
			if !more {
				return used
			}
		}
	}
	return used
}

// frame handles the frame at the head of data, if it is complete.
func (l *loop) frame(c *conn, data []byte) (used int, more bool) {
	m, n, err := c.dec.Next(data, maxFrame)
	if err != nil {
		if c.state == stateClosing { // nothing that comes now matters
			return len(data), false
		}
		var bad *wire.CloseError
		code := closeBadRequest
		if errors.As(err, &bad) {
			code = disconnectCode{bad.Code, bad.Reason}
		}
		l.disconnect(c, code)
		return len(data), false
	}
	if n == 0 {
		return 0, false
	}
	switch m.Kind {
	case wire.Text, wire.Binary:
		if c.open() {
			l.commands(c, m.Payload)
		}
	case wire.Ping:
		if c.open() {
			l.queueFrame(c, ws.OpPong, m.Payload)
		}
	case wire.Close:
		l.peerCloses(c, m.Payload)
	}
	return n, !c.gone()
}

// peerCloses answers the client's close frame, or takes its answer to ours.
func (l *loop) peerCloses(c *conn, payload []byte) {
	if c.state == stateClosing {
		l.drop(c)
		return
	}
	answer := disconnectCode{}
	code, _, err := wire.ParseClose(payload)
	var bad *wire.CloseError
	switch {
	case errors.As(err, &bad):
		answer = disconnectCode{bad.Code, bad.Reason}
	case len(payload) > 0:
		answer.code = code
	}
	l.disconnect(c, answer)
	l.drop(c) // both close frames have been sent, so the server closes (RFC 6455 section 7.1.1)
}

// queueFrame appends a control frame to the unsent bytes.
func (l *loop) queueFrame(c *conn, op ws.OpCode, payload []byte) {
	c.out = wire.AppendFrame(l.outBuffer(c), op, payload)
	l.flushLater(c)
}

// reply appends a reply to the unsent bytes.
func (l *loop) reply(c *conn, r *protocol.Reply) {
	if !c.open() {
		return
	}
	out, err := c.enc.AppendReply(l.outBuffer(c), r)
	l.queued(c, out, err)
}

// push appends a push to the unsent bytes.
func (l *loop) push(c *conn, p *protocol.Push) {
	if !c.open() {
		return
	}
	out, err := c.enc.AppendPush(l.outBuffer(c), p)
	l.queued(c, out, err)
}

// queued takes the unsent bytes back after something was appended to them.
func (l *loop) queued(c *conn, out []byte, err error) {
	if err != nil {
		l.server.log.Error("message cannot be encoded", slog.Any("error", err))
		l.disconnect(c, closeInternal)
		return
	}
	c.out = out
	l.flushLater(c)
}

// fail answers a command with an error.
func (l *loop) fail(c *conn, id uint32, e *protocol.Error) {
	l.server.metrics.errors.WithLabelValues(errorLabel(e.Code)).Inc()
	l.reply(c, &protocol.Reply{Id: id, Error: e})
}

// outBuffer returns the unsent bytes to append to.
func (l *loop) outBuffer(c *conn) []byte {
	if c.out == nil {
		return l.takeBuffer()
	}
	return c.out
}

// flushLater writes the unsent bytes at the end of this iteration, unless a
// visit takes them along.
func (l *loop) flushLater(c *conn) {
	if !c.unflushed {
		c.unflushed = true
		l.unflushed = append(l.unflushed, c)
	}
	c.pauseIfFull()
}

// pauseIfFull stops reading while too much is unsent; afterWrite resumes it.
func (c *conn) pauseIfFull() {
	if len(c.out) > unsentPause {
		c.setPaused(true)
	}
}

// afterWrite goes on with what has waited for the unsent bytes.
func (l *loop) afterWrite(c *conn) {
	if c.open() && len(c.out) <= unsentPause {
		l.ripen(c)
	}
}

// goOn handles what has waited and reads on.
func (l *loop) goOn(c *conn) {
	if l.stopping {
		return
	}
	if in := c.in; len(in) > 0 {
		used := l.handle(c, in)
		l.keep(c, in, used)
	}
	if c.open() && c.parked == nil && len(c.out) <= unsentPause {
		c.setPaused(false)
	}
}

// disconnect sends a close frame and waits a little for the client to close, so
// that the code is not lost to a reset. A socket that takes no more is closed at
// once. The connection's subscriptions end here.
func (l *loop) disconnect(c *conn, code disconnectCode) {
	if !c.open() {
		return
	}
	l.server.metrics.disconnects.WithLabelValues(closeLabel(code.code)).Inc()
	handshaken := c.state > stateHandshake
	l.detach(c)
	c.state = stateClosing
	if !handshaken || c.blocked {
		l.drop(c)
		return
	}
	c.out = wire.AppendClose(l.outBuffer(c), code.code, code.reason)
	l.write(c, nil)
	if c.gone() {
		return
	}
	if c.blocked {
		l.drop(c)
		return
	}
	c.deadline = l.now + closeWait
	l.schedule(c)
	c.setPaused(false)
}

// detach ends what the connection takes part in.
func (l *loop) detach(c *conn) {
	for len(c.subs) > 0 {
		l.removeSub(c.subs[len(c.subs)-1])
	}
	l.forgetUser(c)
	c.parked, c.setup = nil, nil
}

// drop closes the socket and forgets the connection.
func (l *loop) drop(c *conn) {
	if c.gone() {
		return
	}
	if c.open() {
		l.detach(c)
	}
	c.state = stateGone
	l.wheel.stop(&c.timer)
	c.sock.Close()
	l.forget(c)
	c.slot.Release()
	l.giveBuffer(c.out)
	c.out = nil
}

// forget takes the connection off the loop's list.
func (l *loop) forget(c *conn) {
	last := l.conns[len(l.conns)-1]
	l.conns[c.index] = last
	last.index = c.index
	l.conns[len(l.conns)-1] = nil
	l.conns = l.conns[:len(l.conns)-1]
	l.stats.sockets.Add(-1)
}

// find returns the connection's subscription to a room, also one under way.
func (c *conn) find(room string) *sub {
	for _, s := range c.subs {
		if s.shard.room.name == room {
			return s
		}
	}
	return nil
}
