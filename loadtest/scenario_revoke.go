package loadtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"hub/auth"
	"hub/loadtest/report"
)

const (
	// revokeShare and expireShare of the connections are revoked and expire: one in so
	// many.
	revokeShare = 10
	expireShare = 20
	// revokeCallers ask for revocations at the same time.
	revokeCallers = 4
	// expireAfter is how long the tokens that expire last, besides the time of a stream.
	expireAfter = 3 * time.Second
	// rotateRounds before a key is removed, and as many from then on, rotateGap apart:
	// together they outlast checkPeriod.
	rotateRounds = 8
	rotateGap    = 400 * time.Millisecond
)

// revoke takes connections their right to be there: first by revocations and by
// expiry, then by the removal of their key.
func (st *stage) revoke(ctx context.Context) error {
	if err := st.revokeUsers(ctx); err != nil {
		return err
	}
	if err := st.finishSwarm(ctx); err != nil {
		return err
	}
	return st.rotate(ctx)
}

// revocation is what the admin API revokes: a user, a token, or a user's tokens that
// were issued before a time.
type revocation struct {
	User         string `json:"user,omitempty"`
	ID           string `json:"jti,omitempty"`
	IssuedBefore int64  `json:"issued_before,omitempty"`
}

// revoke asks the admin API for a revocation; when it returns, that is in force.
func (m *metricsSource) revoke(ctx context.Context, what revocation) error {
	body, err := json.Marshal(what)
	if err == nil {
		_, err = m.ask(ctx, http.MethodPost, "/admin/v1/revocations", body, http.StatusCreated, metricsTimeout)
	}
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	return nil
}

// revokeRun is the first part of the scenario.
type revokeRun struct {
	stage   *stage
	pending atomic.Int64 // leavers that something is waited for
	issued  int64        // Unix seconds, of all tokens
	expiry  time.Time    // of those that expire

	expiring, revoked []*leaver
	asked, took       []int64 // of each revoked: when the admin API was asked, and how long it took
}

// tokenID is the jti of a connection's token.
func tokenID(n int) string { return "token-" + strconv.Itoa(n) }

// expires says whether the token of a connection does: not that of a publisher, which
// is the first of its room.
func expires(n int, first bool) bool { return n%expireShare == expireShare-1 && !first }

func (st *stage) revokeUsers(ctx context.Context) error {
	o := &st.r.options
	m := &revokeRun{stage: st, issued: time.Now().Unix(), expiry: time.Now().Add(o.stream + expireAfter).Truncate(time.Second)}
	err := st.open(ctx, layout{conns: o.Conns, rooms: o.Rooms, watched: true, credentials: func(n int, r *room, c *auth.Claims) string {
		c.ID, c.IssuedAt = tokenID(n), m.issued
		if expires(n, r.publisher == nil) {
			c.ExpiresAt = m.expiry.Unix()
			if o.expiring != nil {
				o.expiring(c)
			}
		}
		return ""
	}})
	if err != nil {
		return err
	}
	s := st.swarm
	expiry := int64(m.expiry.Sub(s.start))
	for _, c := range s.conns {
		if expires(c.number, c.room.publisher == c) {
			l := leave(c, closeExpired, &m.pending)
			l.over(expiry + int64(checkPeriod))
			m.expiring = append(m.expiring, l)
		}
	}
	publishing, stop := context.WithCancel(ctx)
	defer stop()
	published := make(chan error, 1)
	go func() {
		rate := min(mixedDeliveries/float64(o.Conns)*float64(o.Rooms), mixedEvents)
		published <- s.steady(publishing, s.published(), rate, 24*time.Hour, s.now())
	}()
	err = m.revokeAll(ctx)
	if err == nil {
		err = st.leave(ctx, append(slices.Clone(m.revoked), m.expiring...), max(0, time.Until(m.expiry)))
	}
	stop()
	if cause := <-published; err == nil && ctx.Err() == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err == nil {
		err = st.waitAll(ctx)
	}
	if err != nil {
		return err
	}
	m.checkLeft(expiry)
	return m.checkReturns(ctx)
}

// revokeAll revokes a tenth of the users, one after the other for each caller.
func (m *revokeRun) revokeAll(ctx context.Context) error {
	st, s := m.stage, m.stage.swarm
	var all []*conn
	for _, c := range s.conns {
		if c.leaver == nil { // which nobody changes now
			all = append(all, c)
		}
	}
	victims := some(all, len(s.conns)/revokeShare)
	st.phase(fmt.Sprintf("revoke %d", len(victims)))
	m.revoked, m.asked, m.took = make([]*leaver, len(victims)), make([]int64, len(victims)), make([]int64, len(victims))
	errs := make([]error, revokeCallers)
	var callers sync.WaitGroup
	for caller := range revokeCallers {
		callers.Go(func() {
			for i := caller; i < len(victims) && errs[caller] == nil; i += revokeCallers {
				errs[caller] = m.revokeOne(ctx, i, victims[i])
			}
		})
	}
	callers.Wait()
	return errors.Join(errs...)
}

// revokeOne revokes the user or the token of a connection.
func (m *revokeRun) revokeOne(ctx context.Context, i int, c *conn) error {
	s, what, want := m.stage.swarm, revocation{User: c.user}, uint16(closeInvalidToken)
	switch {
	case i%5 == 3, !m.stage.r.options.DistinctUsers:
		what, want = revocation{ID: tokenID(c.number)}, closeExpired
	case i%5 == 4:
		what, want = revocation{User: c.user, IssuedBefore: m.issued + 1}, closeExpired
	}
	if misdirect := m.stage.r.options.revoking; misdirect != nil {
		misdirect(&what)
	}
	l := leave(c, want, &m.pending)
	m.revoked[i], m.asked[i] = l, s.now()
	if err := m.stage.source.revoke(ctx, what); err != nil {
		return err
	}
	returned := s.now()
	l.over(returned)
	m.took[i] = returned - m.asked[i]
	return nil
}

// leave waits until all have been closed, which the server must begin with within so
// long. What has not been, a check tells.
func (st *stage) leave(ctx context.Context, all []*leaver, within time.Duration) error {
	st.phase(fmt.Sprintf("wait for %d to be closed", len(all)))
	waiting, cancel := context.WithTimeout(ctx, within+checkPeriod+st.r.options.stall)
	defer cancel()
	err := st.swarm.gone(waiting, all)
	if ctx.Err() == nil && (waiting.Err() != nil || errors.Is(err, errStalled)) {
		err = nil
		eachLeaver(all, (*leaver).arrivedLocked)
	}
	eachLeaver(all, func(l *leaver) {
		if l.end != nil { // who may not be there is not asked to be ready in the end
			st.asked--
		}
	})
	return err
}

// checkLeft judges how the connections ended.
func (m *revokeRun) checkLeft(expiry int64) {
	st := m.stage
	st.checkLeavers("revoked: nothing comes that was published after the call returned", m.revoked, func(l *leaver) bool { return l.late == 0 })
	st.checkLeavers("revoked: closed with the code of a user (3500) or a token (3005)", m.revoked, (*leaver).closedWith)
	st.checkLeavers("expired: nothing comes later than a period of revalidation", m.expiring, func(l *leaver) bool { return l.late == 0 })
	st.checkLeavers("expired: closed with 3005", m.expiring, (*leaver).closedWith)
	n := len(st.swarm.conns)
	if h := closings(m.revoked, func(i int) int64 { return m.asked[i] }); h.TotalCount() > 0 {
		count := int(h.TotalCount())
		st.figure(report.RevokeClose.Of(float64(h.ValueAtQuantile(95))/1000, n), count)
		f := report.Figure{Name: "revoke_close_p50_ms", Title: "the same, p50", Unit: "ms", Better: report.Lower, Value: float64(h.ValueAtQuantile(50)) / 1000, Definition: "Median of the same."}
		st.figure(f, count)
		f.Name, f.Title, f.Value, f.Definition = "revoke_close_max_ms", "the same, at most", float64(h.Max())/1000, "The longest of the same."
		st.figure(f, count)
		took := newHistogram()
		for _, t := range m.took {
			_ = took.RecordValue(max(1, t/1000))
		}
		st.figure(report.Figure{Name: "revoke_call_p95_ms", Title: "revocation, answered, p95", Unit: "ms", Better: report.Lower, Value: float64(took.ValueAtQuantile(95)) / 1000,
			Definition: fmt.Sprintf("From the request to the admin API until its answer, when the revocation is on disk and in force; %d callers at once.", revokeCallers)}, len(m.took))
	}
	if h := closings(m.expiring, func(int) int64 { return expiry }); h.TotalCount() > 0 {
		st.figure(report.ExpiryClose.Of(float64(h.Max())/1e6, n), int(h.TotalCount()))
	}
}

// checkLeavers makes a check of all of some connections.
func (st *stage) checkLeavers(name string, all []*leaver, good func(*leaver) bool) {
	if len(all) == 0 {
		st.notChecked(name, "there were none")
		return
	}
	var wrong []string
	eachLeaver(all, func(l *leaver) {
		if !good(l) {
			how := "still there"
			if l.end != nil {
				how = l.end.Error()
			}
			wrong = append(wrong, fmt.Sprintf("connection %d: %d events too late, %s", l.conn.number, l.late, how))
		}
	})
	st.check(name, len(wrong) == 0, "%s", orText(examples(wrong), fmt.Sprintf("%d of %d", len(all), len(all))))
}

// checkReturns lets those who have left try to come back, before and after a restart
// of the server.
func (m *revokeRun) checkReturns(ctx context.Context) error {
	st, s := m.stage, m.stage.swarm
	all := append(slices.Clone(m.revoked), m.expiring...)
	try := func(name string) error {
		st.phase(name)
		if err := s.comeBack(ctx, all); err != nil {
			return err
		}
		st.checkLeavers(name, all, (*leaver).refused)
		return nil
	}
	if err := try("revoked and expired: refused when they come back"); err != nil {
		return err
	}
	st.phase("restart the server")
	s.resume.Store(true)
	_, err := st.startAgain(ctx, st.server.stop, int64(len(s.conns)-len(all)))
	s.resume.Store(false)
	if err != nil {
		return err
	}
	return try("revoked and expired: refused after a restart")
}

// keyRemoved is the check of those whose key is removed.
const keyRemoved = "key removed: its connections are closed with 3005"

// rotate removes the key of the connections of every other room.
func (st *stage) rotate(ctx context.Context) error {
	o := &st.r.options
	if o.Rooms < 2 || hangup == nil {
		st.notChecked(keyRemoved, "it takes two rooms, and a signal to reload")
		return nil
	}
	both := checkedOften + exactly + fmt.Sprintf("\nprevious_secrets = [\"file:%s\"]", st.server.retiredFile())
	if err := st.server.reload(ctx, both); err != nil {
		return err
	}
	// The users are others than those before, of whom some are revoked.
	err := st.open(ctx, layout{conns: o.Conns, rooms: o.Rooms, firstUser: o.Conns + o.Rooms + 2*watchers, credentials: func(_ int, r *room, _ *auth.Claims) string {
		if r.number%2 == 0 {
			return ""
		}
		return st.server.retired
	}})
	if err != nil {
		return err
	}
	var stay []*room
	var gone []*leaver
	var pending atomic.Int64
	for _, r := range st.swarm.rooms {
		if r.number%2 == 0 {
			stay = append(stay, r)
			continue
		}
		for _, c := range r.members {
			gone = append(gone, leave(c, closeExpired, &pending))
		}
	}
	one := checkedOften + exactly
	if o.keepKey {
		one = both
	}
	removed, err := st.removeKey(ctx, one, stay)
	if err != nil {
		return err
	}
	if err := st.leave(ctx, gone, 0); err != nil {
		return err
	}
	st.checkLeavers(keyRemoved, gone, (*leaver).closedWith)
	if h := closings(gone, func(int) int64 { return removed }); h.TotalCount() > 0 {
		st.figure(report.Figure{Name: "rotation_close_max_s", Title: "from the reload until the last connection of the removed key is closed", Unit: "s", Better: report.Lower,
			Value: float64(h.Max()) / 1e6, Definition: "From the moment at which the server has reloaded its configuration until the client read the close frame; the longest one. A connection is checked every 2 s here."}, int(h.TotalCount()))
	}
	if err := st.swarm.comeBack(ctx, gone); err != nil {
		return err
	}
	st.checkLeavers("key removed: refused when they come back", gone, (*leaver).refused)
	return nil
}

// removeKey makes rounds to the rooms that stay, gives the server lines of [auth] with
// one key less, and makes rounds again. It returns when the lines were in force, on
// the swarm's clock.
func (st *stage) removeKey(ctx context.Context, one string, stay []*room) (removed int64, err error) {
	o := &st.r.options
	shape := report.Shape{Rooms: len(stay), Events: o.Events}
	for _, r := range stay {
		shape.Conns += len(r.members)
	}
	rounds := func(part string) error {
		for i := range rotateRounds {
			if _, err := st.burstIn(ctx, part, shape, stay, o.Events); err != nil {
				return err
			}
			if err := st.pause(ctx, min(rotateGap, holdGap(o)), fmt.Sprintf("round %d of %d, %s", i+1, rotateRounds, part)); err != nil {
				return err
			}
		}
		return nil
	}
	const before, after = "with both keys", "a key is removed"
	if err := rounds(before); err != nil {
		return 0, err
	}
	if err := st.server.reload(ctx, one); err != nil {
		return 0, err
	}
	removed = st.swarm.now()
	if err := rounds(after); err != nil {
		return 0, err
	}
	st.figure(report.RotationRatio.Of(medianOf(st.roundsOf(shape, after), p95)/medianOf(st.roundsOf(shape, before), p95), len(st.swarm.conns)), rotateRounds)
	return removed, nil
}
