package ratelimit

// slack, in tokens, is what rounding may cost before a token that is due counts
// as missing. A bucket is exact to it however long it lives, since it is never
// forgiven: it stays in what is spent.
const slack = 1e-6

// Bucket is the token bucket of one connection's messages. The zero value is
// full. It belongs to one goroutine.
//
// It is not an x/time/rate.Limiter because there is one per connection, used by
// an event loop alone and with limits that may change while it lives: 16 bytes
// without a lock against 88, no allocation, and a meaning of 0 that does not
// depend on which of rate and burst is zero (case G24).
type Bucket struct {
	spent float64 // tokens missing from a full bucket at the time last
	last  int64   // nanoseconds of the caller's clock
}

// Allow takes a token and reports whether there was one. perSecond tokens come
// back every second, up to burst. now is in nanoseconds of any steady clock; a
// clock that steps back refills nothing.
//
// perSecond 0 means no limit. A negative or NaN rate and a burst below 1, which
// no valid configuration has, allow nothing.
func (b *Bucket) Allow(perSecond float64, burst int, now int64) bool {
	if perSecond == 0 {
		return true
	}
	if !(perSecond > 0) {
		return false
	}
	b.refill(perSecond, now)
	if b.spent+1 > float64(burst)+slack {
		return false
	}
	b.spent++
	return true
}

// refill gives back what has come in since last.
func (b *Bucket) refill(perSecond float64, now int64) {
	if elapsed := now - b.last; elapsed > 0 && b.spent > 0 {
		b.spent = max(0, b.spent-float64(elapsed)*1e-9*perSecond)
	}
	b.last = now
}
