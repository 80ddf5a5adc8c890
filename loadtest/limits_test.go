package loadtest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"hub/loadtest/fleet"
	"hub/loadtest/report"
)

var bucketChecks = []string{
	"reads of an address let through = 300 + 125 a second",
	"mutations of an address let through = 125 + 50 a second",
	"handshakes of an address let through = 125 + 50 a second",
	"reads of a database let through = 1500 + 750 a second",
	"messages of a connection let through = 25 + 12.5 a second",
}

// TestLimits: a server with limits passes; one that lets a tenth more through at first
// fails in each of them.
func TestLimits(t *testing.T) {
	for name, loose := range map[string]bool{"as they are": false, "loose": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := ownServer(t)
			o.Scenario, o.share = "limits", 4
			if loose {
				o.Program = with(looseLimits, "1")
			}
			r, table := runTest(t, context.Background(), o)
			for _, c := range r.Checks {
				want := report.Passed
				if loose && slices.Contains(bucketChecks, c.Name) {
					want = report.Failed
				}
				if c.Result != want && !strings.Contains(c.Detail, "this machine is too slow") {
					t.Errorf("%s: %s (%s), want %s", c.Name, c.Result, c.Detail, want)
				}
			}
			for _, name := range append(bucketChecks, refusalCheck, counterCheck) {
				checkOf(t, r, name)
			}
			if t.Failed() {
				t.Log(table)
			}
		})
	}
}

// TestBucketArithmetic: what may pass depends on when the bucket can have seen the
// requests, not on how fast the machine is.
func TestBucketArithmetic(t *testing.T) {
	b := bucket{rate: 500, burst: 1200}
	const s = 1_000_000_000
	for name, test := range map[string]struct {
		trial
		want report.Result
	}{
		"exact":                    {trial{begun: s, met: s, sent: 5 * s, ended: 5 * s, counted: 3200, refused: 100}, report.Passed},
		"within one per cent":      {trial{begun: s, met: s, sent: 5 * s, ended: 5 * s, counted: 3232, refused: 100}, report.Passed},
		"too many":                 {trial{begun: s, met: s, sent: 5 * s, ended: 5 * s, counted: 3233, refused: 100}, report.Failed},
		"at least":                 {trial{begun: s, met: s, sent: 5 * s, ended: 5 * s, counted: 3168, refused: 100}, report.Passed},
		"too few":                  {trial{begun: s, met: s, sent: 5 * s, ended: 5 * s, counted: 3167, refused: 100}, report.Failed},
		"the last one took 1 s":    {trial{begun: s, met: s, sent: 5 * s, ended: 6 * s, counted: 3700, refused: 100}, report.Passed},
		"the first one took 1 s":   {trial{begun: s, met: 2 * s, sent: 5 * s, ended: 5 * s, counted: 2700, refused: 100}, report.Passed},
		"hardly ever empty":        {trial{begun: s, met: s, sent: 5 * s, ended: 5 * s, counted: 100, refused: limitRefused - 1}, report.NotChecked},
		"nothing passed":           {trial{begun: s, met: s, sent: 5 * s, ended: 5 * s, refused: 100}, report.Failed},
		"nothing refused, no time": {trial{}, report.NotChecked},
	} {
		st := unrun()
		st.checkTrials("x", b, []*trial{&test.trial})
		if c := checkOf(t, st.r.report, "x let through = 1200 + 500 a second"); c.Result != test.want {
			t.Errorf("%s: %s (%s)", name, c.Result, c.Detail)
		}
	}
	var noted trial
	for i, passed := range []bool{true, true, false, true, false, true} {
		noted.note(passed, int64(10*i+1), int64(10*i+5))
	}
	if want := (trial{begun: 1, met: 5, sent: 41, ended: 45, passed: 4, refused: 2, counted: 3}); noted.begun != want.begun || noted.met != want.met ||
		noted.sent != want.sent || noted.ended != want.ended || noted.passed != want.passed || noted.refused != want.refused || noted.counted != want.counted {
		t.Errorf("%+v, want %+v", noted, want)
	}
}

// TestRefusal: everything that a refusal must have is looked for.
func TestRefusal(t *testing.T) {
	good := fleet.Answer{Status: 429, RetryAfter: []byte("1"), ContentType: []byte("application/problem+json"), Body: []byte(`{"status":429,"code":"rate_limited"}`)}
	if wrong := wrongRefusal(&good); wrong != "" {
		t.Error(wrong)
	}
	for name, spoil := range map[string]func(a *fleet.Answer){
		"status":      func(a *fleet.Answer) { a.Status = 503 },
		"no time":     func(a *fleet.Answer) { a.RetryAfter = nil },
		"at once":     func(a *fleet.Answer) { a.RetryAfter = []byte("0") },
		"a date":      func(a *fleet.Answer) { a.RetryAfter = []byte("Wed, 21 Oct 2026 07:28:00 GMT") },
		"type":        func(a *fleet.Answer) { a.ContentType = []byte("text/plain") },
		"no document": func(a *fleet.Answer) { a.Body = []byte("slow down") },
		"other code":  func(a *fleet.Answer) { a.Body = []byte(`{"status":429,"code":"queue_full"}`) },
		"its status":  func(a *fleet.Answer) { a.Body = []byte(`{"status":503,"code":"rate_limited"}`) },
	} {
		a := good
		if spoil(&a); wrongRefusal(&a) == "" {
			t.Errorf("%s: nothing wrong", name)
		}
	}
}
