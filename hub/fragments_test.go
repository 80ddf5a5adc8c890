package hub

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"hub/hub/wire"
)

// An unfinished message or frame is closed at its deadline, whatever else shows
// that its sender lives: pings, further fragments, a byte now and then.
func TestUnfinishedMessageEnds(t *testing.T) {
	ping := rawFrame(true, ws.OpPing, []byte("there?"))
	fragment := rawFrame(false, ws.OpText, []byte(strings.Repeat(" ", 1000)))
	whole := []byte(strings.Repeat(" ", 4000))
	begun, last := rawFrame(true, ws.OpText, whole)[:8], rawFrame(true, ws.OpContinuation, whole)[:8] // headers alone
	for name, test := range map[string]struct{ begin, then []byte }{
		"a message, then pings":               {fragment, ping},
		"a message, then more fragments":      {fragment, rawFrame(false, ws.OpContinuation, []byte(" "))},
		"a frame, then a byte now and then":   {begun, []byte{' '}},
		"the like in the middle of a message": {slices.Concat(fragment, last), []byte{' '}},
		"a ping, then half a message":         {slices.Concat(ping, fragment), ping},
	} {
		t.Run(name, func(t *testing.T) {
			withClock(t, nil, func(s *clockwork) {
				o := s.opts.Server
				c, peer := s.connect(wire.JSON, token(t, "u"))
				began := time.Now()
				c.raw(test.begin)
				var trickle sync.WaitGroup
				trickle.Go(func() {
					for time.Since(began) < 10*(o.PingInterval+o.PongTimeout) && c.write(test.then) == nil {
						time.Sleep(o.PongTimeout / 4)
					}
				})
				c.closes(closeBadRequest.code)
				if took := time.Since(began); took > o.PingInterval+o.PongTimeout+2*wheelTick {
					t.Errorf("closed after %v, want %v", took, o.PingInterval+o.PongTimeout)
				}
				peer.Close()
				trickle.Wait()
			})
		})
	}
}

// A sender that is slow but finishes each message in time stays.
func TestSlowMessagesAreTaken(t *testing.T) {
	withClock(t, nil, func(s *clockwork) {
		o := s.opts.Server
		c, _ := s.connect(wire.JSON, token(t, "u"))
		for i := range 5 {
			id := uint32(100 + i)
			payload := fmt.Appendf(nil, `{"id":%d,"publish":{"channel":"open:a","data":1}}`, id)
			half := len(payload) / 2
			c.raw(rawFrame(false, ws.OpText, payload[:half]))
			for range 5 {
				time.Sleep((o.PingInterval + o.PongTimeout) / 6)
				c.raw(rawFrame(true, ws.OpPing, nil))
			}
			c.raw(rawFrame(true, ws.OpContinuation, payload[half:]))
			if r, err := c.reply(id); err != nil || r.Error != nil {
				t.Fatalf("message %d: %v, %v", i, r, err)
			}
		}
	})
}
