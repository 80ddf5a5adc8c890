package hub

import "time"

// schedule sets the connection's one timer to its earliest deadline.
func (l *loop) schedule(c *conn) {
	next := time.Duration(0)
	earlier := func(d time.Duration) {
		if d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	earlier(c.deadline)
	earlier(c.frameUntil)
	if c.state == stateConnected {
		earlier(c.nextPing)
		if c.pongDue {
			earlier(c.pongUntil)
		}
		earlier(c.nextCheck)
		earlier(c.expires.at)
		for _, s := range c.subs {
			earlier(s.expires.at)
		}
	}
	if next == 0 {
		l.wheel.stop(&c.timer)
		return
	}
	l.wheel.set(&c.timer, next)
}

// fire handles whatever of c is due.
func (l *loop) fire(c *conn) {
	l.guard(c, func() { l.due(c) })
	if !c.gone() {
		l.schedule(c)
	}
}

func (l *loop) due(c *conn) {
	if c.deadline > 0 && l.now >= c.deadline {
		l.late(c)
		return
	}
	if c.frameUntil > 0 && l.now >= c.frameUntil {
		c.frameUntil = 0
		if !c.paused && (len(c.in) > 0 || c.dec.Fragmented()) {
			l.disconnect(c, disconnectCode{closeBadRequest.code, "unfinished frame"})
			return
		}
	}
	if c.state != stateConnected {
		return
	}
	if c.expires.over(l.now, l.wall()) {
		l.disconnect(c, closeExpired)
		return
	}
	for i := len(c.subs) - 1; i >= 0; i-- {
		if s := c.subs[i]; s.expires.over(l.now, l.wall()) {
			l.unsubscribe(s, unsubExpired)
			s.expires = expiry{}
		}
	}
	if c.nextCheck > 0 && l.now >= c.nextCheck {
		if l.revalidate(c); !c.open() {
			return
		}
	}
	if c.pongDue && l.now >= c.pongUntil {
		l.pongMissing(c)
	}
	if c.open() && l.now >= c.nextPing {
		l.ping(c)
	}
}

// pongMissing ends a connection whose pong has not come, unless that has a reason.
func (l *loop) pongMissing(c *conn) {
	switch {
	case c.blocked && c.sock.Stalled(l.server.opts.Server.PongTimeout): // its system acknowledges
	case c.paused && !c.blocked: // its pong may be there, but it is not read now
	default:
		l.disconnect(c, closeNoPong)
		return
	}
	c.pongDue = false
}

// late handles a deadline of the connection's state.
func (l *loop) late(c *conn) {
	c.deadline = 0
	switch c.state {
	case stateHandshake, stateClosing:
		l.drop(c)
	case stateConnect, stateRefused:
		l.disconnect(c, closeStale)
	case stateConnected:
		if c.flight > 0 { // its answers come first
			c.deadline = l.now + drainPause
			return
		}
		l.disconnect(c, closeShutdown)
	}
}

// drainPause is how often a draining connection with commands in flight is
// looked at again.
const drainPause = 50 * time.Millisecond

// ping asks whether the client is there. A socket that takes no more is not
// pinged, since the ping would wait behind what the client does not read; it
// counts as alive while its system acknowledges what was sent.
func (l *loop) ping(c *conn) {
	o := &l.server.opts.Server
	c.nextPing = l.now + o.PingInterval
	switch {
	case !c.blocked:
		c.out = append(l.outBuffer(c), c.enc.Ping()...)
		l.flushLater(c)
		c.pongDue, c.pongUntil = true, l.now+o.PongTimeout
	case !c.sock.Stalled(o.PongTimeout):
		l.disconnect(c, closeNoPong)
	}
}
