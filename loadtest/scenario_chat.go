package loadtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"hub/loadtest/report"
)

// chatRates are the requests a second that one client offers.
var chatRates = []float64{1000, 2000, 5000, 10_000, 20_000, 40_000}

const (
	chatTime = 2 * time.Second
	// pipeline is how many publications of one publisher wait for their answers.
	pipeline = 16
)

// chatPublishers are the numbers of publishers that publish as fast as they get
// answers.
var chatPublishers = []int{1, 64, 256}

// chat measures durable publications: one client at rising rates, then many.
func (st *stage) chat(ctx context.Context) error {
	if err := st.open(ctx, layout{conns: 1, rooms: 1, watched: true}); err != nil {
		return err
	}
	if err := st.warm(ctx); err != nil {
		return err
	}
	curve := report.Series{Name: "requests completed", Unit: "1/s", XName: "requests offered", XUnit: "1/s"}
	for _, rate := range chatRates {
		completed, err := st.chatAt(ctx, rate)
		if err != nil {
			return err
		}
		curve.Points = append(curve.Points, report.Point{T: rate, V: completed})
	}
	st.out.Series = append(st.out.Series, curve)
	st.knee(curve.Points)
	sizes := slices.Clone(chatPublishers)
	for i := range sizes {
		sizes[i] = min(sizes[i], st.r.options.Conns)
	}
	for _, n := range slices.Compact(sizes) {
		if err := st.finishSwarm(ctx); err != nil {
			return err
		}
		if err := st.publishers(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// kneeAt is the part of the requests offered below which not all were completed:
// what is offered last within the time has no time for its answer.
const kneeAt = 0.95

// knee adds the figures of a curve of requests completed over those offered, both
// a second. The knee is where completed falls behind offered.
func (st *stage) knee(curve []report.Point) {
	best, met := 0.0, false
	for _, p := range curve {
		best, met = max(best, p.V), met || p.V < kneeAt*p.T
	}
	last := curve[len(curve)-1]
	metric := report.ChatKnee
	if !met {
		metric.Title = fmt.Sprintf("requests completed, no knee up to %.0f offered", last.T)
		st.figure(metric.Of(best, 1), 0)
		return
	}
	st.figure(metric.Of(best, 1), 0)
	st.figure(report.Figure{Name: "chat_beyond_knee", Title: "completed at the highest rate offered ÷ at the knee", Unit: "x", Better: report.Higher,
		Value:      last.V / best,
		Definition: "Requests completed per second at the highest rate offered, divided by the best of all rates: 1 means no fall beyond the knee."}, 0)
}

// chatAt offers requests at a rate and returns how many were completed a second:
// answered within the time in which they were offered.
func (st *stage) chatAt(ctx context.Context, rate float64) (completed float64, err error) {
	s := st.swarm
	main := s.rooms[0]
	st.r.progress.set(s, fmt.Sprintf("%s: %.0f requests/s", st.name, rate), time.Now().Add(chatTime))
	total := int(rate * chatTime.Seconds())
	t := traffic{part: fmt.Sprintf("%.0f requests/s", rate), shape: report.Shape{Conns: 1, Rooms: 1, Events: total},
		events: int64(total), answers: int64(total)}
	t.send = func(at int64) error {
		sent := 0
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for sent < total {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			now := s.now()
			due := min(total, int(float64(now-at)*rate/1e9))
			if due > sent {
				// The one that waited longest stands for all of the tick.
				if err := main.publish(due-sent, at+int64(float64(sent)*1e9/rate)); err != nil {
					return err
				}
				sent = due
			}
		}
		c := s.counts()
		completed = float64(min(c.acks, c.got)) / chatTime.Seconds()
		return nil
	}
	_, err = st.round(ctx, t)
	return completed, err
}

// publishers lets n clients, each in a room of its own, publish as fast as they
// get answers.
func (st *stage) publishers(ctx context.Context, n int) error {
	if err := st.open(ctx, layout{conns: n, rooms: n, watched: true}); err != nil {
		return err
	}
	if err := st.warm(ctx); err != nil {
		return err
	}
	s := st.swarm
	st.r.progress.set(s, fmt.Sprintf("%s: %d publishers", st.name, n), time.Now().Add(chatTime))
	depth := pipeline
	if n == 1 {
		depth = 1 // waits for each answer
	}
	s.reset()
	begin := s.now()
	s.each(func(sh *shard) {
		sh.onAck = func(c *conn) {
			if now := s.now(); now-begin < int64(chatTime) {
				_ = c.room.publish(1, now) // what fails is not acknowledged, and told as that
			}
		}
	})
	for _, r := range s.rooms {
		if err := r.publish(depth, s.now()); err != nil {
			return err
		}
	}
	before := st.usage()
	if err := st.pause(ctx, chatTime-time.Duration(s.now()-begin), fmt.Sprintf("%d publishers", n)); err != nil {
		return err
	}
	answered, took := s.counts().acks, time.Duration(s.now()-begin)
	after := st.usage()
	if err := st.waitAll(ctx); err != nil {
		return err
	}
	metric := report.Publications
	if n < chatPublishers[len(chatPublishers)-1] {
		metric.Target = 0 // one that waits for each commit has nothing to share it with
		metric = metric.Named(fmt.Sprint(n), fmt.Sprintf("%d publishers", n))
	}
	st.figure(metric.Of(float64(answered)/took.Seconds(), n), 0)
	if after.serverKnown && answered > 0 {
		st.figure(report.Figure{Name: fmt.Sprintf("server_cpu_us_per_publication_%d", n), Title: fmt.Sprintf("server CPU per publication, %d publishers", n),
			Unit: "us", Better: report.Lower, Value: micro(after.server-before.server) / float64(answered),
			Definition: "User and system time of the server divided by the publications acknowledged in it."}, 0)
	}
	return nil
}
