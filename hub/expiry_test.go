package hub

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// farExpiries are times (exp, unix seconds) that some issuers give for "never":
// the end of the year 9999, eleven nines, beyond 32 bits of seconds from now.
func farExpiries() []int64 {
	return []int64{253402300799, 99999999999, time.Now().Unix() + 1<<32 + 5}
}

// longestWait is what a JavaScript timer can wait, 2^31-1 ms, in whole seconds.
const longestWait = 2147483

// A token that never ends costs no timer, and its client is told a time that it
// can wait for.
func TestFarExpiry(t *testing.T) {
	for _, exp := range farExpiries() {
		b := newBench(t)
		s := b.member(b.room("default", "r"), wire.JSON, func(_ *sub, p []byte) (int, error) { return len(p), nil })
		c := s.conn
		c.setSession(b.server.policy.Load(), &auth.Claims{User: c.session.user, ExpiresAt: exp}, "client")
		s.expires = b.endOf(exp)
		c.nextPing = 1000 * time.Hour
		fires := 0
		b.now = time.Hour
		b.wheel.advance(b.now, b.fire)
		b.schedule(c)
		for end := b.now + 30*time.Hour; b.now < end; b.now += time.Minute {
			b.wheel.advance(b.now, func(c *conn) {
				fires++
				b.fire(c)
			})
		}
		if fires > 2 || !c.open() || len(c.subs) != 1 {
			t.Errorf("exp %d: the timer fired %d times in 30 hours, want once a day; open %v", exp, fires, c.open())
		}
		if ttl := b.server.ttl(exp); ttl != longestWait {
			t.Errorf("exp %d: ttl %d s, want %d", exp, ttl, longestWait)
		}
	}
}

func TestFarExpiryIsTold(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	for _, exp := range farExpiries() {
		c := s.open(t, wire.JSON)
		user := fmt.Sprint("u", exp)
		r := c.ok(connectWith(token(t, user, func(c *auth.Claims) { c.ExpiresAt = exp })))
		if r.Connect.Ttl != longestWait {
			t.Errorf("exp %d: ttl %d s in the connect reply, want %d", exp, r.Connect.Ttl, longestWait)
		}
		s.result(t, "refresh", fmt.Sprintf(`{"user":%q,"expire_at":%d}`, user, exp))
		if p, err := c.push(); err != nil || p.Refresh == nil || p.Refresh.Ttl != longestWait {
			t.Errorf("exp %d: push %v, %v, want a refresh with ttl %d", exp, p, err, longestWait)
		}
		r = c.ok(&protocol.Command{Refresh: &protocol.RefreshRequest{Token: token(t, user, func(c *auth.Claims) { c.ExpiresAt = exp })}})
		if r.Refresh.Ttl != longestWait {
			t.Errorf("exp %d: ttl %d s in the refresh reply, want %d", exp, r.Refresh.Ttl, longestWait)
		}
	}
}

// The server API takes no time that a token could not say.
func TestAPIExpiry(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	s.connect(t, wire.JSON, "u")
	for _, at := range []string{"-1", "1", "253402300800", "9223372036854775807"} {
		for _, method := range []string{"refresh", "subscribe"} {
			body := `{"user":"u","channel":"live:r","expire_at":` + at + `}`
			if method == "refresh" {
				body = `{"user":"u","expire_at":` + at + `}`
			}
			if got := fmt.Sprint(s.api(t, method, body)["error"]); !strings.Contains(got, "expire_at") {
				t.Errorf("%s with expire_at %s: %s, want an error that names it", method, at, got)
			}
		}
	}
}
