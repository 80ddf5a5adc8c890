package loadtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hub/loadtest/report"
)

// holdRounds, and holdGap between them: connections are held for a minute. A short
// -hold makes a short test.
const holdRounds = 12

func holdGap(o *Options) time.Duration { return min(5*time.Second, max(o.Hold, 10*time.Millisecond)) }

// Lines of [auth]: how often connections are checked.
const (
	checkedNever = `revalidate = "24h"`
	checkedOften = `revalidate = "2s"`
	// checkPeriod is that of checkedOften.
	checkPeriod = 2 * time.Second
	// exactly makes tokens end when they say.
	exactly = "\nleeway = \"0s\""
)

// authChanged tells of them.
var authChanged = []struct {
	scenario string
	report.Setting
}{
	{"hold", report.Setting{Name: "auth.revalidate of scenario hold", Value: "24h and 2s in turn", Default: "30s"}},
	{"revoke", report.Setting{Name: "auth.revalidate and auth.leeway of scenario revoke", Value: "2s and 0s", Default: "30s and 5s"}},
}

// Parts of scenario hold.
const (
	partChecked   = "while all are checked"
	partUnchecked = "while none is"
)

// hold keeps connections for long, with events now and then. Every other round
// overlaps a check of all connections, where the server is the test's own and can be
// told to reload its configuration.
func (st *stage) hold(ctx context.Context) error {
	o := &st.r.options
	shape := roomsShape(o)
	if err := st.open(ctx, layout{conns: o.Conns, rooms: o.Rooms, watched: true}); err != nil {
		return err
	}
	defer st.deliveryFigures(shape, "", "")
	if st.server == nil || hangup == nil {
		if err := st.bursts(ctx, "", shape, holdRounds, holdGap(o)); err != nil {
			return err
		}
	} else if err := st.checkedRounds(ctx, shape); err != nil {
		return err
	}
	return st.reconnects(ctx, o.Reconnects)
}

// checkedRounds makes rounds of two kinds in turn. For those of the one kind each
// connection is checked every checkPeriod, and what it must be checked against changes
// in the middle of the round, by a revocation of nobody: so all of them are looked at
// thoroughly, at once and again in their turn. For the others none is checked.
func (st *stage) checkedRounds(ctx context.Context, shape report.Shape) error {
	gap := holdGap(&st.r.options)
	idle := map[bool][]float64{} // processors used in the pauses
	for i := range holdRounds {
		// Either kind comes first as often, so that a machine that grows faster or
		// slower does neither a favour.
		checked := i%4 == 1 || i%4 == 2
		auth, part := checkedNever, partUnchecked
		if checked {
			auth, part = checkedOften, partChecked
		}
		if err := st.server.reload(ctx, auth); err != nil {
			return err
		}
		before, begin := st.usage(), time.Now()
		if err := st.pause(ctx, gap, fmt.Sprintf("round %d of %d, %s", i+1, holdRounds, part)); err != nil {
			return err
		}
		if after := st.usage(); before.serverKnown && after.serverKnown {
			idle[checked] = append(idle[checked], (after.server-before.server).Seconds()/time.Since(begin).Seconds())
		}
		revoked := make(chan error, 1)
		go func() {
			if !checked {
				revoked <- nil
				return
			}
			revoked <- st.source.revoke(ctx, revocation{User: fmt.Sprintf("nobody-%d", i)})
		}()
		_, err := st.burst(ctx, part, shape, shape.Events)
		if err := errors.Join(err, <-revoked); err != nil {
			return err
		}
	}
	st.r.revalidated = true
	st.checkedFigures(shape, idle)
	return st.profileBursts(ctx, shape)
}

func (st *stage) checkedFigures(shape report.Shape, idle map[bool][]float64) {
	with, without := st.roundsOf(shape, partChecked), st.roundsOf(shape, partUnchecked)
	n := min(len(with), len(without))
	if n == 0 {
		return
	}
	var pairs []float64
	for i := range n { // neighbours
		pairs = append(pairs, p95(&with[i])/p95(&without[i]))
	}
	ratio := report.RevalidationRatio.Of(report.Median(pairs), shape.Conns)
	ratio.Low, ratio.High = slices.Min(pairs), slices.Max(pairs)
	st.figure(ratio, n)
	if len(idle[true]) > 0 && len(idle[false]) > 0 {
		st.figure(report.RevalidationCPU.Of(report.Median(idle[true])-report.Median(idle[false]), shape.Conns), len(idle[true]))
	}
}
