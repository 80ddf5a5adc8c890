package hub

import (
	"errors"
	"io"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
)

// commands handles the commands of one message, in order. What cannot begin
// before those in flight are finished is parked, and the socket is not read.
func (l *loop) commands(c *conn, payload []byte) {
	l.commandsOf(c, payload, false)
}

// commandsOf is commands; owned says that payload stays as it is.
func (l *loop) commandsOf(c *conn, payload []byte, owned bool) {
	r := c.enc.Commands(payload, maxCommand)
	for c.open() && c.state != stateRefused {
		cmd, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return
		case errors.Is(err, wire.ErrCommandTooLarge):
			l.disconnect(c, disconnectCode{closeBadRequest.code, "command larger than 64 KiB"})
			return
		case err != nil:
			l.disconnect(c, disconnectCode{closeBadRequest.code, "malformed command"})
			return
		}
		if !l.mayBegin(c, cmd) {
			rest := r.Rest()
			if !owned {
				rest = append([]byte(nil), rest...)
			}
			c.parked = &parked{cmd, rest}
			c.setPaused(true)
			return
		}
		l.command(c, cmd)
	}
}

// mayBegin keeps the commands of a connection in order: each waits for those
// before it, except that durable publications and operations may follow each other
// into the write queue, which keeps the order within each room. (Acknowledgements
// of different rooms, and refusals, may then overtake each other.)
func (l *loop) mayBegin(c *conn, cmd *protocol.Command) bool {
	switch {
	case isPong(cmd):
		return true
	case len(c.out) > unsentPause: // it does not read its replies
		return false
	case c.flight == 0:
		return true
	}
	limit := l.server.policy.Load().Limits.Waiting
	return !c.serial && (limit == 0 || int(c.flight) < limit) && c.queues(cmd)
}

// queues says whether a command is a publication or an operation for the write queue.
func (c *conn) queues(cmd *protocol.Command) bool {
	var room string
	switch {
	case cmd.Publish != nil:
		room = cmd.Publish.Channel
	case cmd.Rpc != nil && (cmd.Rpc.Method == "publish" || cmd.Rpc.Method == "operate"):
		room = roomOf(cmd.Rpc.Data)
	default:
		return false
	}
	ns, e := c.db.namespace(room)
	return e == nil && ns.Durable
}

func isPong(cmd *protocol.Command) bool {
	return cmd.Id == 0 && cmd.Connect == nil && cmd.Subscribe == nil && cmd.Unsubscribe == nil &&
		cmd.Publish == nil && cmd.Presence == nil && cmd.PresenceStats == nil && cmd.History == nil &&
		cmd.Ping == nil && cmd.Send == nil && cmd.Rpc == nil && cmd.Refresh == nil && cmd.SubRefresh == nil
}

// begin counts a command as in flight; finish must follow, on the loop.
func (c *conn) begin(serial bool) {
	c.flight++
	c.serial = c.serial || serial
}

// finish ends a command in flight.
func (l *loop) finish(c *conn) {
	if c.flight--; c.flight == 0 {
		c.serial = false
	}
	l.ripen(c)
}

// ripen has what waits looked at again in this iteration.
func (l *loop) ripen(c *conn) {
	if (c.parked != nil || c.paused) && !c.ripe {
		c.ripe = true
		l.ripe = append(l.ripe, c)
	}
}

// unparkAll goes on with the parked commands whose predecessors have finished.
func (l *loop) unparkAll() {
	for len(l.ripe) > 0 {
		c := l.ripe[len(l.ripe)-1]
		l.ripe = l.ripe[:len(l.ripe)-1]
		c.ripe = false
		l.guard(c, func() { l.unpark(c) })
	}
}

func (l *loop) unpark(c *conn) {
	if !c.open() || l.stopping {
		return
	}
	if p := c.parked; p != nil {
		if !l.mayBegin(c, p.next) {
			return
		}
		c.parked = nil
		l.command(c, p.next)
		if c.open() {
			l.commandsOf(c, p.rest, true)
		}
	}
	if c.open() && c.parked == nil {
		l.goOn(c)
	}
}

// later runs f on the loop for a command in flight, unless the connection has
// ended. Any goroutine may call it.
func (l *loop) later(c *conn, f func()) {
	l.post(func() {
		if c.open() {
			l.guard(c, f)
		}
	})
}

// async runs work on other goroutines for a command of c, alone in flight, and
// on the loop what work returns. A panic of work ends the connection.
func (l *loop) async(c *conn, pool *workers, work func() func()) {
	c.begin(true)
	pool.do(func() {
		then := func() { l.disconnect(c, closeInternal) }
		defer func() {
			l.later(c, func() {
				then()
				l.finish(c)
			})
		}()
		then = work()
	})
}

// command begins one command.
func (l *loop) command(c *conn, cmd *protocol.Command) {
	switch {
	case isPong(cmd):
		return
	case cmd.Id == 0 && cmd.Send == nil:
		l.disconnect(c, disconnectCode{closeBadRequest.code, "a command needs an id above 0"})
		return
	case (cmd.Connect == nil) == (c.state == stateConnect):
		l.disconnect(c, disconnectCode{closeBadRequest.code, "connect must be the first command, once"})
		return
	}
	if !l.allowed(c, cmd) {
		if cmd.Send == nil { // which is never answered
			l.fail(c, cmd.Id, errTooManyRequests)
		}
		return
	}
	l.dispatch(c, cmd)
}

// allowed applies the connection's message limit. Subscribing has its own
// bucket, so that a reconnect with many rooms never meets the message limit.
func (l *loop) allowed(c *conn, cmd *protocol.Command) bool {
	limits := &l.server.policy.Load().Limits
	switch {
	case cmd.Connect != nil, cmd.Subscribe != nil && limits.Subscriptions == 0:
		return true
	case cmd.Subscribe != nil:
		return c.subscribes.Allow(limits.Messages.PerSecond, limits.Messages.Burst+limits.Subscriptions, int64(l.now))
	default:
		return c.messages.Allow(limits.Messages.PerSecond, limits.Messages.Burst, int64(l.now))
	}
}

func (l *loop) dispatch(c *conn, cmd *protocol.Command) {
	m := l.server.metrics
	switch {
	case cmd.Connect != nil:
		m.commands.connect.Inc()
		l.connect(c, cmd.Id, cmd.Connect)
	case cmd.Subscribe != nil:
		m.commands.subscribe.Inc()
		l.subscribeCommand(c, cmd.Id, cmd.Subscribe)
	case cmd.Unsubscribe != nil:
		m.commands.unsubscribe.Inc()
		l.unsubscribeCommand(c, cmd.Id, cmd.Unsubscribe)
	case cmd.Publish != nil:
		m.commands.publish.Inc()
		l.publishCommand(c, cmd.Id, cmd.Publish)
	case cmd.Rpc != nil:
		m.commands.rpc.Inc()
		l.rpc(c, cmd.Id, cmd.Rpc)
	case cmd.History != nil:
		m.commands.history.Inc()
		l.historyCommand(c, cmd.Id, cmd.History)
	case cmd.Presence != nil:
		m.commands.presence.Inc()
		l.presenceCommand(c, cmd.Id, cmd.Presence)
	case cmd.PresenceStats != nil:
		m.commands.presenceStats.Inc()
		l.presenceStatsCommand(c, cmd.Id, cmd.PresenceStats)
	case cmd.Refresh != nil:
		m.commands.refresh.Inc()
		l.refreshCommand(c, cmd.Id, cmd.Refresh)
	case cmd.SubRefresh != nil:
		m.commands.subRefresh.Inc()
		l.subRefreshCommand(c, cmd.Id, cmd.SubRefresh)
	case cmd.Send != nil: // there is no handler for it
		m.commands.send.Inc()
	default:
		l.disconnect(c, disconnectCode{closeBadRequest.code, "unknown command"})
	}
}
