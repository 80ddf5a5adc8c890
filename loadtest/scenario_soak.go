package loadtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"hub/loadtest/report"
)

// soakStep is the time between two looks at the latency, and two reconnects.
const soakStep = 10 * time.Second

// soak is steady traffic with connections that are dropped and come back.
func (st *stage) soak(ctx context.Context) error {
	o := &st.r.options
	rooms := o.Rooms
	if o.Scenario == "delivery" {
		rooms = 1
	}
	if err := st.openAndIdle(ctx, layout{conns: o.Conns, rooms: rooms, watched: true}); err != nil {
		return err
	}
	s := st.swarm
	s.reset()
	before, at := st.usage(), s.now()
	rate := float64(o.Events) / max(o.Gap.Seconds(), 0.1) * float64(len(s.rooms))
	st.r.progress.set(s, fmt.Sprintf("%s: %.0f events/s", st.name, rate), time.Now().Add(o.Duration))
	sent := make(chan error, 1)
	go func() { sent <- s.steady(ctx, s.rooms, rate, o.Duration, at) }()
	total, err := st.soakSteps(ctx, sent)
	if err != nil {
		return err
	}
	st.phase("wait for everything")
	if err := st.waitAll(ctx); err != nil {
		return err
	}
	after, c := st.usage(), s.counts()
	s.each(func(sh *shard) { total.Merge(sh.latency) })
	round := report.Round{N: 1, Part: "steady traffic", Started: st.out.Started,
		Shape:  report.Shape{Conns: o.Conns, Rooms: rooms, Events: int(float64(o.Events) * o.Duration.Seconds() / max(o.Gap.Seconds(), 0.1))},
		WallMS: milliseconds(c.last - at), Deliveries: c.got, Latency: report.Summarize(total, microsecond), Faults: s.faults()}
	st.account(&round, before, after)
	st.out.Rounds = append(st.out.Rounds, round)
	st.deliveryFigures(round.Shape, "", "")
	metric := report.SustainedRate
	metric.Title, metric.Definition = "deliveries", "Events received, all connections together, divided by the time from when the first was due until the last one arrived."
	st.figure(metric.Of(float64(c.got)/(round.WallMS/1000), 0), 0)
	st.flatness()
	return st.allReady()
}

// soakSteps drops connections and notes latency step by step until everything
// was sent. It returns the latency of the steps.
func (st *stage) soakSteps(ctx context.Context, sent <-chan error) (*hdrhistogram.Histogram, error) {
	s, o := st.swarm, &st.r.options
	total := hdrhistogram.New(1, slowest, 3)
	random := rand.New(rand.NewPCG(o.Seed, 2))
	members := some(s.conns, len(s.conns))
	latency := report.Series{Name: "delivery p95", Unit: "ms", Chart: "latency"}
	defer func() { st.out.Series = append(st.out.Series, latency) }()
	begin := time.Now()
	tick := time.NewTicker(min(soakStep, max(o.Duration/10, 100*time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case err := <-sent:
			return total, err
		case <-ctx.Done():
			return total, context.Cause(ctx)
		case <-tick.C:
		}
		step := hdrhistogram.New(1, slowest, 3)
		s.each(func(sh *shard) {
			step.Merge(sh.latency)
			sh.latency.Reset()
		})
		total.Merge(step)
		if step.TotalCount() > 0 {
			latency.Points = append(latency.Points, report.Point{T: time.Since(begin).Seconds(), V: float64(step.ValueAtQuantile(95)) / 1000})
		}
		if o.Reconnects == 0 || len(members) == 0 {
			continue
		}
		list := make([]*conn, min(o.Reconnects, len(members)))
		for i := range list {
			list[i] = members[random.IntN(len(members))]
		}
		if err := s.reconnect(ctx, list); err != nil {
			return total, err
		}
	}
}

// flatness notes how what the server holds grew from the first to the last
// quarter of the time.
func (st *stage) flatness() {
	for _, q := range []struct{ name, figure, title, unit string }{
		{serverMemory, "memory_growth_ratio", "server memory, last quarter ÷ second", "x"},
		{serverDescriptors, "descriptor_growth_ratio", "server descriptors, last quarter ÷ second", "x"},
		{serverGoroutines, "goroutine_growth_ratio", "server goroutines, last quarter ÷ second", "x"},
	} {
		points := st.sampler.points(q.name)
		n := len(points) / 4
		if n == 0 {
			continue
		}
		first, last := mean(points[n:2*n]), mean(points[len(points)-n:])
		if first > 0 {
			st.figure(report.Figure{Name: q.figure, Title: q.title, Unit: q.unit, Better: report.Lower, Value: last / first,
				Definition: "Mean over the last quarter of the samples divided by that over the second quarter: 1 is flat."}, 0)
		}
	}
}

func mean(points []report.Point) float64 {
	sum := 0.0
	for _, p := range points {
		sum += p.V
	}
	return sum / float64(len(points))
}
