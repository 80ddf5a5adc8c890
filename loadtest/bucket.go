package loadtest

import (
	"encoding/json"
	"fmt"
	"math"

	"hub/loadtest/fleet"
	"hub/loadtest/report"
)

// bucket is a token bucket of the server: rate tokens a second come back, up to
// burst, and it starts full.
type bucket struct {
	rate, burst float64
}

// divided is the bucket of a test.
func (b bucket) divided(o *Options) bucket {
	n := float64(max(1, o.share))
	return bucket{b.rate / n, b.burst / n}
}

// limitTolerance is how far numbers may be from the arithmetic.
const limitTolerance = 0.01

// trial is what became of the requests to one bucket, until it refused the last
// time: then it was empty, so what it let through is burst + rate × time. It saw the
// first request between begun and met, and that last one between sent and ended, in
// nanoseconds of one clock.
type trial struct {
	begun, met, sent, ended int64
	passed, refused         int
	counted                 int      // of passed, until ended
	wrong                   []string // answers that are neither
}

// note takes the answer that came at a time to a request that was sent at another.
func (t *trial) note(passed bool, sent, at int64) {
	if t.passed+t.refused == 0 {
		t.begun, t.met = sent, at
	}
	if passed {
		t.passed++
		return
	}
	t.refused++
	t.counted = t.passed
	t.sent, t.ended = max(t.sent, sent), max(t.ended, at)
}

// bounds is how many must have passed: at least and at most. Less than one token is
// left in an empty bucket.
func (b bucket) bounds(t *trial) (least, most int) {
	short, long := float64(max(0, t.sent-t.met))/1e9, float64(t.ended-t.begun)/1e9
	return int(math.Ceil((b.burst + b.rate*short - 1) * (1 - limitTolerance))), int(math.Floor((b.burst + b.rate*long) * (1 + limitTolerance)))
}

// expected is how many should have passed, by the middle of the bounds of the time.
func (b bucket) expected(t *trial) float64 {
	return b.burst + b.rate*float64(t.ended-t.begun+max(0, t.sent-t.met))/2e9
}

// checkTrials judges what buckets of one kind let through.
func (st *stage) checkTrials(name string, b bucket, tries []*trial) {
	check := fmt.Sprintf("%s let through = %g + %g a second", name, b.burst, b.rate)
	wrong, counted, refused, expected := []string{}, 0, 0, 0.0
	for _, t := range tries {
		if t.refused < limitRefused {
			st.notChecked(check, fmt.Sprintf("only %d of %d requests were refused: this machine is too slow to empty the bucket", t.refused, t.passed+t.refused))
			return
		}
		least, most := b.bounds(t)
		if t.counted < least || t.counted > most {
			wrong = append(wrong, fmt.Sprintf("%d in %.2f s, should be %d to %d", t.counted, float64(t.ended-t.begun)/1e9, least, most))
		}
		counted, refused, expected = counted+t.counted, refused+t.refused, expected+b.expected(t)
	}
	st.check(check, len(wrong) == 0, "%s", orText(examples(wrong), fmt.Sprintf("%d of %d, the arithmetic says %.0f", counted, counted+refused, expected)))
	st.figure(report.Figure{Name: "limit_ratio_" + figureName(name), Title: name + " let through ÷ the bucket's arithmetic", Unit: "x", Value: float64(counted) / expected,
		Definition: fmt.Sprintf("Requests that passed until the last one that was refused, divided by %g + %g × the seconds from the first request to that one, of all buckets together.", b.burst, b.rate)}, 0)
}

// figureName makes words a part of a figure's name.
func figureName(words string) string {
	name := []byte(words)
	for i, c := range name {
		if c == ' ' {
			name[i] = '_'
		}
	}
	return string(name)
}

// wrongRefusal says how an answer is not what a request over its limit must get; it
// is empty if nothing is wrong.
func wrongRefusal(a *fleet.Answer) string {
	var p struct {
		Status int    `json:"status"`
		Code   string `json:"code"`
	}
	err := json.Unmarshal(a.Body, &p)
	after, ok := digits(a.RetryAfter)
	switch {
	case a.Status != 429:
		return fmt.Sprintf("status %d: %.200s", a.Status, a.Body)
	case !ok || after < 1:
		return fmt.Sprintf("429 with Retry-After %q", a.RetryAfter)
	case string(a.ContentType) != "application/problem+json" || err != nil || p.Status != 429 || p.Code != "rate_limited":
		return fmt.Sprintf("429 with type %q and body %.200s", a.ContentType, a.Body)
	}
	return ""
}
