package loadtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hub/loadtest/report"
)

// deliverySizes are the sizes of the one room, smallest first.
func deliverySizes(o *Options) []int {
	sizes := []int{max(1, o.Conns/2), max(1, o.Conns*3/4), o.Conns}
	return slices.Compact(sizes)
}

func deliveryShapes(o *Options) (shapes []report.Shape) {
	for _, n := range deliverySizes(o) {
		shapes = append(shapes, report.Shape{Conns: n, Rooms: 1, Events: o.Events})
	}
	return shapes
}

// delivery puts everybody into one room.
func (st *stage) delivery(ctx context.Context) error {
	o := &st.r.options
	for _, shape := range deliveryShapes(o) {
		if err := st.finishSwarm(ctx); err != nil {
			return err
		}
		l := layout{conns: shape.Conns, rooms: 1, watched: true}
		largest := shape.Conns == o.Conns
		open, name, title := st.open, fmt.Sprint(shape.Conns), fmt.Sprintf("%d connections", shape.Conns)
		if largest {
			open, name, title = st.openAndIdle, "", ""
		}
		if err := open(ctx, l); err != nil {
			return err
		}
		err := st.bursts(ctx, "", shape, o.Rounds, o.Gap)
		st.deliveryFigures(shape, name, title)
		if err != nil {
			return err
		}
	}
	return st.stream(ctx)
}

// streamRate is that of steady streams, in events a second: at 10,000 connections
// a million deliveries a second.
const streamRate = 100

// streamEnd is the time at the end of a stream that shows whether its rate was
// held: a backlog that grows is longest there.
const streamEnd = time.Second

// stream sends events to the largest room at a steady rate. Latency counts from
// the time at which an event was due, whenever it was sent.
func (st *stage) stream(ctx context.Context) error {
	s, d := st.swarm, st.r.options.stream
	main := s.rooms[0]
	st.r.progress.set(s, st.name+": steady stream", time.Now().Add(d))
	events := int(streamRate * d.Seconds())
	shape := report.Shape{Conns: len(main.members), Rooms: 1, Events: events}
	t := traffic{part: "steady stream", shape: shape, events: int64(events * len(main.members)), answers: int64(events)}
	t.send = func(at int64) error {
		s.watchEnd(at + int64(d-min(streamEnd, d/5)))
		return s.steady(ctx, s.rooms[:1], streamRate, d, at)
	}
	profiled := st.profile(ctx, "stream", d)
	round, err := st.round(ctx, t)
	if err := errors.Join(err, profiled()); err != nil {
		return err
	}
	st.sustained(round, float64(s.ending().ValueAtQuantile(95))/1000, d)
	return nil
}

// sustained adds the figures of a steady stream that lasted for d: end is the p95
// of its last second, in ms. Where the rate was not held, what was received is told
// by the time that it took.
func (st *stage) sustained(round *report.Round, end float64, d time.Duration) {
	n := round.Conns
	rate, took := report.SustainedRate, d.Seconds()
	if end > 2*round.Latency.P95MS && end > report.SustainedP95.Target {
		took = max(took, round.WallMS/1000)
		rate.Title = "deliveries at a rate that was not held"
		st.r.problem("scenario %s: the rate of the steady stream was not held: its p95 was %.0f ms, that of its last second %.0f ms", st.name, round.Latency.P95MS, end)
	}
	st.figure(rate.Of(float64(round.Deliveries)/took, n), 0)
	st.figure(report.SustainedP95.Of(round.Latency.P95MS, n), 0)
	st.figure(report.SustainedEnd.Of(end, n), 0)
	if round.ServerCPU > 0 {
		st.figure(report.ServerCPU.Named("steady", "steady stream").Of(round.ServerCPU, n), 0)
	}
}

// fanoutRepeats is how often the message is sent to each room, and fanoutGap the
// time between.
const (
	fanoutRepeats = 5
	fanoutGap     = 200 * time.Millisecond
)

// fanoutSizes are the sizes of the room that there are connections for.
func fanoutSizes(o *Options) []int {
	sizes := []int{100, 500, 1000, 2000, 5000, 10_000}
	sizes = slices.DeleteFunc(sizes, func(n int) bool { return n > o.Conns })
	if len(sizes) == 0 || o.Conns > sizes[len(sizes)-1] && o.Conns < 10_000 {
		sizes = append(sizes, o.Conns)
	}
	return sizes
}

func fanoutShapes(o *Options) []report.Shape {
	sizes := fanoutSizes(o)
	return []report.Shape{{Conns: sizes[len(sizes)-1], Rooms: 1, Events: 1}}
}

// fanout sends one durable message to rooms of growing size.
func (st *stage) fanout(ctx context.Context) error {
	sizes := fanoutSizes(&st.r.options)
	points := report.Series{Name: "until the last has it", Unit: "ms", XName: "subscribers"}
	for i, n := range sizes {
		if err := st.finishSwarm(ctx); err != nil {
			return err
		}
		if err := st.open(ctx, layout{conns: n, rooms: 1, watched: true}); err != nil {
			return err
		}
		shape := report.Shape{Conns: n, Rooms: 1, Events: 1}
		// The room's first event makes its log and its row; it is not measured.
		if err := st.warm(ctx); err != nil {
			return err
		}
		if err := st.bursts(ctx, fmt.Sprintf("%d subscribers", n), shape, fanoutRepeats, fanoutGap); err != nil {
			return err
		}
		rounds := st.roundsOf(shape, "")
		last := medianOf(rounds, func(r *report.Round) float64 { return r.WallMS })
		points.Points = append(points.Points, report.Point{T: float64(n), V: last})
		metric := report.FanoutLast
		if i < len(sizes)-1 {
			metric = metric.Named(fmt.Sprint(n), fmt.Sprintf("%d subscribers", n))
		}
		st.figure(metric.Of(last, n), len(rounds))
	}
	st.out.Series = append(st.out.Series, points)
	return nil
}

// warm sends one event to every room without measuring it.
func (st *stage) warm(ctx context.Context) error {
	s := st.swarm
	for _, r := range s.rooms {
		if err := r.publish(1, s.now()); err != nil {
			return err
		}
	}
	return st.waitAll(ctx)
}
