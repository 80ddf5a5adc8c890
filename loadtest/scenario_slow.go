package loadtest

import (
	"context"
	"fmt"
	"time"

	"hub/loadtest/report"
)

const (
	slowShare = 20   // one of so many connections stalls
	slowSize  = 1000 // bytes of an event, so that stalled sockets fill up
)

// slow lets some clients stop reading in one room with all connections.
func (st *stage) slow(ctx context.Context) error {
	o := &st.r.options
	if err := st.open(ctx, layout{conns: o.Conns, rooms: 1, watched: true, size: slowSize}); err != nil {
		return err
	}
	shape := report.Shape{Conns: o.Conns, Rooms: 1, Events: o.Events}
	if err := st.warm(ctx); err != nil {
		return err
	}
	const without, with = "everybody reads", "some are stalled"
	if err := st.bursts(ctx, without, shape, o.Rounds, o.Gap); err != nil {
		return err
	}
	before, _ := st.server.memory("VmRSS")
	stalled := st.stall(max(1, o.Conns/slowShare))
	if err := st.fillStalled(ctx); err != nil {
		return err
	}
	if err := st.bursts(ctx, with, shape, o.Rounds, o.Gap); err != nil {
		return err
	}
	st.slowMemory(before)
	st.phase("the stalled read again")
	began := time.Now()
	for _, c := range stalled {
		if err := c.setReading(true); err != nil {
			return err
		}
	}
	st.swarm.reset()
	if err := st.waitAll(ctx); err != nil {
		return fmt.Errorf("the stalled get everything later: %w", err)
	}
	st.figure(report.Figure{Name: "catch_up_s", Title: "until the stalled had everything", Unit: "s", Better: report.Lower, Value: time.Since(began).Seconds(),
		Definition: "From the moment at which the stalled clients read again until each had every event that it had missed."}, 0)
	if err := st.bursts(ctx, without, shape, o.Rounds, o.Gap); err != nil {
		return err
	}
	quiet, loud := st.roundsOf(shape, without), st.roundsOf(shape, with)
	st.figure(report.SlowRatio.Of(medianOf(loud, p95)/medianOf(quiet, p95), o.Conns), len(loud))
	return st.allReady()
}

// setReading makes a connection read, or stop that.
func (c *conn) setReading(on bool) error {
	c.shard.mu.Lock()
	defer c.shard.mu.Unlock()
	c.stalled = !on
	c.mu.Lock()
	sock := c.sock
	c.mu.Unlock()
	if sock == nil {
		return fmt.Errorf("connection %d: %w", c.number, errNotConnected)
	}
	return sock.read(on)
}

// stall stops n clients.
func (st *stage) stall(n int) []*conn {
	list := st.swarm.some(n)
	for i, c := range list {
		if err := c.setReading(false); err != nil {
			st.r.problem("scenario %s: %v", st.name, err)
			return list[:i]
		}
	}
	return list
}

// fillStalled sends so much that the sockets of the stalled are full.
func (st *stage) fillStalled(ctx context.Context) error {
	s, d := st.swarm, st.r.options.stream
	st.phase("fill the sockets of the stalled")
	events := int(streamRate * d.Seconds())
	main := s.rooms[0]
	readers := 0
	for _, c := range main.members {
		if !c.stalled {
			readers++
		}
	}
	t := traffic{part: "filling stalled sockets", shape: report.Shape{Conns: len(main.members), Rooms: 1, Events: events},
		events: int64(events * readers), answers: int64(events)}
	t.send = func(at int64) error {
		return s.steady(ctx, s.rooms[:1], streamRate, d, at)
	}
	_, err := st.round(ctx, t)
	return err
}

// slowMemory notes what stalled readers cost the server and the kernel.
func (st *stage) slowMemory(before int64) {
	if peak, ok := st.server.memory("VmHWM"); ok {
		st.figure(report.Figure{Name: "server_memory_growth_bytes", Title: "server memory, growth with stalled readers", Unit: "bytes", Better: report.Lower, Value: float64(max(0, peak-before)),
			Definition: "Peak resident set of the server up to the end of the rounds with stalled readers, less what it had before they stalled."}, 0)
	}
	if held, ok := socketMemory(); ok {
		st.figure(report.Figure{Name: "kernel_socket_memory_bytes", Title: "kernel memory of all TCP sockets, stalled readers", Unit: "bytes", Better: report.Lower, Value: float64(held),
			Definition: "Memory of all TCP sockets of this machine, of both ends, as /proc/net/sockstat tells, when the readers had everything and the stalled had not."}, 0)
	}
}
