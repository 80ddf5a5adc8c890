package loadtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"hub/auth"
	"hub/loadtest/report"
)

// Connections that do not end when they must fail the checks, and those alone.
func TestNotEnded(t *testing.T) {
	if hangup == nil {
		t.Skip("no signal to reload here")
	}
	var revoked, expired atomic.Int32
	for name, test := range map[string]struct {
		change func(o *Options)
		failed []string
	}{
		"one not revoked": {
			change: func(o *Options) {
				o.revoking = func(r *revocation) {
					if revoked.Add(1) == 1 {
						*r = revocation{User: "somebody else"}
					}
				}
			},
			failed: []string{
				"revoked: nothing comes that was published after the call returned",
				"revoked: closed with the code of a user (3500) or a token (3005)",
				"revoked and expired: refused when they come back",
				"revoked and expired: refused after a restart",
			},
		},
		"one not expired": {
			change: func(o *Options) {
				o.expiring = func(c *auth.Claims) {
					if expired.Add(1) == 1 {
						c.ExpiresAt += 3600
					}
				}
			},
			failed: []string{
				"expired: nothing comes later than a period of revalidation",
				"expired: closed with 3005",
				"revoked and expired: refused when they come back",
				"revoked and expired: refused after a restart",
			},
		},
		"key not removed": {
			change: func(o *Options) { o.keepKey = true },
			failed: []string{
				"key removed: its connections are closed with 3005",
				"key removed: refused when they come back",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := ownServer(t)
			o.Scenario, o.Conns, o.Rooms = "revoke", 60, 4
			test.change(&o)
			r, table := runTest(t, context.Background(), o)
			onlyFailed(t, r, test.failed...)
			if t.Failed() {
				t.Log(table)
			}
		})
	}
}

// What becomes of connections is judged by their code, by what they got and by whether
// they came back.
func TestLeaver(t *testing.T) {
	closed := func(code uint16) error { return &closedError{code: code} }
	for name, test := range map[string]struct {
		do                     func(l *leaver)
		late                   int
		closedWith, refused, w bool
	}{
		"closed":                        {do: func(l *leaver) { l.ended(closed(3500), 5) }, closedWith: true, refused: true},
		"closed as another":             {do: func(l *leaver) { l.ended(closed(3005), 5) }},
		"cut":                           {do: func(l *leaver) { l.ended(errors.New("reset"), 5) }},
		"still there":                   {do: func(*leaver) {}, w: true},
		"an event in time":              {do: func(l *leaver) { l.over(10); l.got(10); l.ended(closed(3500), 20) }, closedWith: true, refused: true},
		"an event too late":             {do: func(l *leaver) { l.over(10); l.got(11); l.ended(closed(3500), 20) }, late: 1, closedWith: true, refused: true},
		"an event before that is known": {do: func(l *leaver) { l.got(11); l.over(10); l.ended(closed(3500), 20) }, late: 1, closedWith: true, refused: true},
		"told that the token is over":   {do: func(l *leaver) { l.ended(&refusedError{"connect", 109, "token expired"}, 5) }, refused: true},
		"another error":                 {do: func(l *leaver) { l.ended(&refusedError{"connect", 100, "internal"}, 5) }},
		"it came back":                  {do: func(l *leaver) { l.ended(closed(3500), 5); l.admitted(); l.ended(closed(3500), 9) }, closedWith: true},
	} {
		var pending atomic.Int64
		c := &conn{shard: newShard(&swarm{})}
		l := leave(c, 3500, &pending)
		if pending.Load() != 1 || c.leaver != l {
			t.Errorf("%s: it is not waited for", name)
		}
		test.do(l)
		if l.late != test.late || l.closedWith() != test.closedWith || l.refused() != test.refused || (pending.Load() > 0) != test.w {
			t.Errorf("%s: late %d, closed as it must be %t, refused %t, %d waited for", name, l.late, l.closedWith(), l.refused(), pending.Load())
		}
	}
}

// The rounds of scenario hold say what revalidation costs.
func TestCheckedFigures(t *testing.T) {
	st := unrun()
	shape := report.Shape{Conns: 10_000, Rooms: 100, Events: 10}
	for i, p95 := range []float64{50, 60, 130, 100, 60, 60} { // unchecked, checked, checked, unchecked, …
		part := partUnchecked
		if i%4 == 1 || i%4 == 2 {
			part = partChecked
		}
		st.out.Rounds = append(st.out.Rounds, report.Round{Part: part, Shape: shape, Deliveries: 1, Latency: report.Latency{P95MS: p95}})
	}
	st.checkedFigures(shape, map[bool][]float64{true: {0.03, 0.05, 0.04}, false: {0.01, 0.02, 0.01}})
	figure := func(name string) report.Figure {
		i := slices.IndexFunc(st.out.Figures, func(f report.Figure) bool { return f.Name == name })
		if i < 0 {
			t.Fatalf("no figure %s", name)
		}
		return st.out.Figures[i]
	}
	if f := figure("revalidation_ratio"); f.Value != 60.0/50 || f.Low != 1 || f.High != 1.3 || !missed(f) {
		t.Errorf("ratio %+v", f)
	}
	if f := figure("revalidation_cores"); f.Value < 0.029 || f.Value > 0.031 || !missed(f) {
		t.Errorf("processors %+v", f)
	}
}

func missed(f report.Figure) bool {
	reached, judged := f.Reached()
	return judged && !reached
}

// The settings that a scenario changes are printed, and only then.
func TestSettingsOf(t *testing.T) {
	for name, want := range map[string]int{"rooms": 0, "hold": 1, "revoke": 1} {
		n := 0
		for _, s := range settingsOf([]string{name}) {
			if strings.HasPrefix(s.Name, "auth.") {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d settings of auth, want %d", name, n, want)
		}
	}
}
