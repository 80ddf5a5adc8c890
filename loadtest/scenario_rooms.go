package loadtest

import (
	"context"
	"fmt"

	"hub/loadtest/report"
)

// rooms is the default scenario: rounds, idle time, reconnects, rounds again.
func (st *stage) rooms(ctx context.Context) error {
	o := &st.r.options
	shape := roomsShape(o)
	if err := st.openAndIdle(ctx, layout{conns: o.Conns, rooms: o.Rooms, watched: true}); err != nil {
		return err
	}
	defer st.deliveryFigures(shape, "", "")
	if err := st.bursts(ctx, "", shape, o.Rounds, o.Gap); err != nil {
		return err
	}
	if err := st.pause(ctx, o.Hold, "hold"); err != nil {
		return err
	}
	if err := st.reconnects(ctx, o.Reconnects); err != nil {
		return err
	}
	return st.bursts(ctx, "after reconnects", shape, o.Rounds, o.Gap)
}

// reconnects drops connections in the middle of a burst: they miss some of it,
// and must have all when they are back.
func (st *stage) reconnects(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	st.phase(fmt.Sprintf("%d reconnects", n))
	s := st.swarm
	members := some(s.conns, n)
	if len(members) == 0 {
		return nil
	}
	s.reset()
	at := s.now()
	for _, r := range s.rooms {
		if err := r.publish(1, at); err != nil {
			return err
		}
	}
	if err := s.reconnect(ctx, members); err != nil {
		return fmt.Errorf("reconnects: %w", err)
	}
	resumed := s.resumed()
	st.figure(report.ReconnectP95.Of(float64(resumed.ValueAtQuantile(95))/1000, len(members)), len(members))
	if err := st.waitAll(ctx); err != nil {
		return fmt.Errorf("reconnects: %w", err)
	}
	return st.allReady()
}

// crowd opens as many connections as descriptors and -conns allow.
func (st *stage) crowd(ctx context.Context) error {
	o := &st.r.options
	n := crowdSize(o, st.r.limit)
	rooms := min(o.Rooms, n)
	if err := st.openAndIdle(ctx, layout{conns: n, rooms: rooms}); err != nil {
		return err
	}
	st.figure(report.Figure{Name: "connections_held", Title: "connections held", Value: float64(n), Better: report.Higher,
		Definition: "Connections that were open, authenticated and subscribed at the same time: as many as descriptors of one process allow, and no more than were asked for."}, 0)
	if err := st.pause(ctx, o.Hold, "hold"); err != nil {
		return err
	}
	shape := report.Shape{Conns: n, Rooms: rooms, Events: 1}
	_, err := st.burst(ctx, "all still there", shape, 1)
	return err
}

// maxConnect bounds a machine that allows a million descriptors.
const maxConnect = 100_000

// crowdSize is how many connections a process makes that has so many descriptors, 0
// if that is not known.
func crowdSize(o *Options, descriptors int64) int {
	n := maxConnect
	if descriptors > 0 {
		n = int(min(max(1, descriptors-spareDescriptors), maxConnect))
	} else if o.Most == 0 {
		n = o.Conns
	}
	if o.Most > 0 {
		n = min(n, o.Most)
	}
	return n
}
