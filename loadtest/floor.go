package loadtest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"hub/loadtest/report"
)

// FloorCommand is the first argument, after the name of the command, that makes
// this program the floor's writer: an address and a number of connections follow.
const FloorCommand = "floor-writer"

const (
	// floorRounds is how many bursts one measurement of the floor has.
	floorRounds = 3
	// maxFloorGap bounds the time before each of them.
	maxFloorGap = 5 * time.Second
)

// measureFloor measures what the machine can do at best for a shape: the same
// bytes to as many sockets, all events of a burst in one write(2) each, read as
// those of a server are. Sockets are idle for gap before each burst, as they are
// between the rounds of a server: what was used a moment ago is cheaper. It also
// returns the bytes of one event.
func (r *runner) measureFloor(ctx context.Context, shape report.Shape, gap time.Duration) (*report.FloorRun, float64, error) {
	host := r.host()
	w, err := r.startFloor(host, shape.Conns)
	if err != nil {
		return nil, 0, err
	}
	defer w.close()
	o := r.swarmOptions(w.addr, shape.Conns)
	o.tls = nil
	s, err := newSwarm(o, []roomPlan{{name: r.roomName(0), db: defaultDatabase, members: shape.Conns}}, userName,
		func(int, *room) (string, error) { return strings.Repeat("x", 300), nil })
	if err != nil {
		return nil, 0, err
	}
	defer s.close(true)
	r.show(s, "floor")
	if _, err := s.open(ctx); err != nil {
		return nil, 0, fmt.Errorf("floor: %w", err)
	}
	if c := s.counts(); c.ready != int64(shape.Conns) {
		return nil, 0, fmt.Errorf("floor: %d of %d connections ready: %s", c.ready, shape.Conns, strings.Join(s.problems(), "; "))
	}
	runs := make([]report.FloorRun, floorRounds)
	for i := range runs {
		if err := sleep(ctx, min(gap, maxFloorGap)); err != nil {
			return nil, 0, err
		}
		s.reset()
		before := w.usage()
		at := s.now()
		if err := w.send(s.floorMessage(shape.Events, at)); err != nil {
			return nil, 0, w.fail(err)
		}
		want := int64(shape.Events * shape.Conns)
		if err := s.wait(ctx, func(c *counts) bool { return c.got+c.missing >= want }); err != nil {
			return nil, 0, fmt.Errorf("floor: %w", err)
		}
		after := w.usage()
		runs[i] = report.FloorRun{WallMS: milliseconds(s.counts().last - at), Latency: report.Summarize(s.latency(), microsecond)}
		runs[i].WriterCPU, runs[i].GeneratorCPU = after.per(before, want)
	}
	c := s.counts()
	if f := s.faults(); f.Total() != 0 {
		return nil, 0, fmt.Errorf("floor: %d events did not arrive in order and once, so the reader is broken: %s", f.Total(), strings.Join(s.problems(), "; "))
	}
	slices.SortFunc(runs, func(a, b report.FloorRun) int { return cmp.Compare(a.Latency.P95MS, b.Latency.P95MS) })
	return &runs[len(runs)/2], float64(c.bytes) / float64(max(1, c.got)), nil
}

// floorMessage is what a server would write to a member of the only room for so
// many events.
func (s *swarm) floorMessage(events int, due int64) (message []byte) {
	r, codec := s.rooms[0], s.options.codec
	for range events {
		e := event{seq: r.given.Add(1), room: r.number, by: r.publisher.number, due: due}
		p := publication{data: appendEvent(nil, e, r.db, s.options.size), user: []byte(r.publisher.user), offset: e.seq}
		message = appendServerFrame(message, codec.op(), codec.appendPublication(nil, r.name, &p, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
	}
	return message
}

// floorWriter is the process that writes.
type floorWriter struct {
	process   *process
	in        io.WriteCloser
	addr      netip.AddrPort
	complaint strings.Builder // of the process; to be read when it has ended
	closed    bool
}

func (r *runner) startFloor(host netip.Addr, conns int) (_ *floorWriter, err error) {
	cmd := r.options.command("loadtest", FloorCommand, host.String(), strconv.Itoa(conns))
	w := &floorWriter{}
	cmd.Stderr = &w.complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if w.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if w.process, err = run(cmd); err != nil {
		return nil, fmt.Errorf("start the floor's writer: %w", err)
	}
	defer func() {
		if err != nil {
			err = w.fail(err)
		}
	}()
	codec := r.codec()
	switching := "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: " + handshakeAccept + "\r\n"
	if name := codec.subprotocol(); name != "" {
		switching += "Sec-WebSocket-Protocol: " + name + "\r\n"
	}
	hello := appendServerFrame(nil, codec.op(), codec.appendConnected(nil, idConnect))
	hello = appendServerFrame(hello, codec.op(), codec.appendSubscribed(nil, idSubscribe, "floor"))
	for _, message := range [][]byte{[]byte(switching + "\r\n"), hello} {
		if err := w.send(message); err != nil {
			return nil, err
		}
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(strings.TrimSpace(line), 10, 16)
	if err != nil {
		return nil, err
	}
	w.addr = netip.AddrPortFrom(host, uint16(port))
	return w, nil
}

func (w *floorWriter) usage() (u usage) {
	u.server, u.serverKnown = processCPU(w.process.pid)
	u.own, u.ownKnown = ownCPU()
	return u
}

func (w *floorWriter) send(message []byte) error {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(message)), uint32(len(message)))
	_, err := w.in.Write(append(b, message...))
	return err
}

// fail ends the process, which may just be about to complain, and returns err with
// what it had to say.
func (w *floorWriter) fail(err error) error {
	_ = w.in.Close()
	select {
	case <-w.process.ended:
	case <-time.After(floorPatience):
	}
	w.close()
	return fmt.Errorf("floor's writer: %w %s", err, strings.TrimSpace(w.complaint.String()))
}

// floorPatience is how long a process that failed may take to say why.
const floorPatience = time.Second

func (w *floorWriter) close() {
	if w.closed {
		return
	}
	w.closed = true
	close(w.process.asked)
	_ = w.in.Close()
	_ = w.process.handle.Kill()
	<-w.process.ended
}
