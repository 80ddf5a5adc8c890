package loadtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"hub/loadtest/report"
)

const (
	slowShare = 20   // one of so many connections stalls
	slowSize  = 1000 // bytes of an event, so that stalled sockets fill up
	// slowReceive is the receive buffer of those that stall: what they do not read
	// is soon the server's to keep. The kernel doubles it (socket(7)).
	slowReceive = 16 << 10
)

// What stalled connections may cost. A server that keeps SO_SNDBUF at 64 KiB or
// sets TCP_NOTSENT_LOWAT costs the kernel some 100 to 200 KiB for each, one that
// leaves it to the system more than a megabyte. Its own memory holds an event once,
// not once for each of them.
const (
	maxKernelMemory = 256 << 10 // of a stalled connection
	maxServerGrowth = 64 << 20  // of the server's resident set
)

// slow lets some clients stop reading in one room with all connections.
func (st *stage) slow(ctx context.Context) error {
	o := &st.r.options
	if err := st.newSwarm(layout{conns: o.Conns, rooms: 1, watched: true, size: slowSize}); err != nil {
		return err
	}
	chosen := some(st.swarm.rooms[0].members, max(1, o.Conns/slowShare))
	for _, c := range chosen {
		c.receives = slowReceive
	}
	if err := st.connect(ctx); err != nil {
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
	since := time.Now()
	before, _ := st.server.memory("VmRSS")
	stalled, err := st.stall(chosen)
	if err != nil {
		return err
	}
	if err := st.fillStalled(ctx); err != nil {
		return err
	}
	if err := st.bursts(ctx, with, shape, o.Rounds, o.Gap); err != nil {
		return err
	}
	st.checkStalled(stalled)
	st.slowMemory(stalled, before, since)
	if err := st.resume(ctx, stalled); err != nil {
		return err
	}
	if err := st.bursts(ctx, without, shape, o.Rounds, o.Gap); err != nil {
		return err
	}
	quiet, loud := st.roundsOf(shape, without), st.roundsOf(shape, with)
	st.figure(report.SlowRatio.Of(medianOf(loud, p95)/medianOf(quiet, p95), o.Conns), len(loud))
	return st.allReady()
}

// stalledConn is a connection that does not read any more.
type stalledConn struct {
	*conn
	due uint64 // number of the event that it waited for when it stopped
}

// stall makes connections stop reading.
func (st *stage) stall(conns []*conn) (list []stalledConn, err error) {
	for _, c := range conns {
		if err := c.setReading(false); err != nil {
			return nil, err
		}
		c.shard.mu.Lock()
		list = append(list, stalledConn{c, c.next})
		c.shard.mu.Unlock()
		if st.r.options.stalling != nil {
			if err := st.r.options.stalling(c); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// resume makes the stalled read again and waits until they have everything.
func (st *stage) resume(ctx context.Context, stalled []stalledConn) error {
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
	return nil
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

// checkStalled judges whether those that should not read did not: each is still
// there, has taken no event since, and data waits in its socket.
func (st *stage) checkStalled(stalled []stalledConn) {
	const name = "the stalled read nothing"
	if len(stalled) == 0 {
		st.notChecked(name, "there was nobody to stall")
		return
	}
	still, waiting := 0, 0
	for _, c := range stalled {
		unread, _, known := c.unread()
		if !known {
			st.notChecked(name, "the system does not tell what waits in a socket")
			return
		}
		waiting += unread
		c.shard.mu.Lock()
		if c.state == subscribed && c.next == c.due && unread > 0 {
			still++
		}
		c.shard.mu.Unlock()
	}
	st.check(name, still == len(stalled), "%d of %d; %s wait in their sockets", still, len(stalled), sizeText(int64(waiting)))
}

// unread is that of the connection's socket.
func (c *conn) unread() (n int, local netip.AddrPort, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return 0, local, true
	}
	return c.sock.unread()
}

// slowMemory notes and judges what stalled readers cost the server, since a time at
// which it had so much memory, and the kernel.
func (st *stage) slowMemory(stalled []stalledConn, before int64, since time.Time) {
	growth := "server memory grows by at most " + sizeText(maxServerGrowth)
	kernel := "kernel memory of a stalled connection is at most " + sizeText(maxKernelMemory)
	if now, ok := st.server.memory("VmRSS"); ok {
		grown := max(0, int64(st.sampler.peak(serverMemory, since))-before, now-before)
		st.figure(report.Figure{Name: "server_memory_growth_bytes", Title: "server memory, growth with stalled readers", Unit: "bytes", Better: report.Lower, Value: float64(grown),
			Definition: "Highest resident set of the server, looked at four times a second, from when the stalled stopped reading to the end of the rounds with them, less what it had before."}, 0)
		st.bounded(growth, grown, maxServerGrowth)
	} else {
		st.notChecked(growth, "the memory of the server's process is not known")
	}
	if held, ok := socketMemory(); ok {
		st.figure(report.Figure{Name: "kernel_socket_memory_bytes", Title: "kernel memory of all TCP sockets, stalled readers", Unit: "bytes", Better: report.Lower, Value: float64(held),
			Definition: "Memory of all TCP sockets of this machine, of both ends, as /proc/net/sockstat tells, when the readers had everything and the stalled had not."}, 0)
	}
	most, err := st.kernelMemory(stalled)
	if err != nil {
		st.notChecked(kernel, err.Error())
		return
	}
	st.figure(report.Figure{Name: "kernel_bytes_per_stalled_connection", Title: "kernel memory of a stalled connection", Unit: "bytes", Better: report.Lower, Value: float64(most),
		Definition: "The most that the server's end of any stalled connection used, queues and reserve, as sock_diag(7) tells, at the same time."}, 0)
	st.bounded(kernel, most, maxKernelMemory)
}

// kernelMemory is the most that the server's end of a stalled connection uses.
func (st *stage) kernelMemory(stalled []stalledConn) (most int64, err error) {
	sockets, err := socketMemories(st.swarm.options.addr)
	if err != nil {
		return 0, err
	}
	found := false
	for _, c := range stalled {
		_, local, _ := c.unread()
		if bytes, ok := sockets[local]; ok {
			found, most = true, max(most, bytes)
		}
	}
	if !found {
		return 0, errors.New("the server's sockets are not among this machine's")
	}
	return most, nil
}

func (st *stage) bounded(name string, found, most int64) {
	st.check(name, found <= most, "%s", sizeText(found))
}

// sizeText is a number of bytes for people.
func sizeText(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", (n+1023)>>10)
	}
	return fmt.Sprintf("%.3g MiB", float64(n)/(1<<20))
}
