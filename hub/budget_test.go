package hub

import (
	"fmt"
	"strings"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// The recoveries of one connect reply share a byte budget; what is beyond it
// follows as publications.
func TestRecoveryBudget(t *testing.T) {
	encodings(t, nil, func(t *testing.T, s *testServer, enc wire.Encoding) {
		const size, each, rooms = 2 << 10, 20, 8
		data := `"` + strings.Repeat("x", size-2) + `"`
		var names []string
		req := &protocol.ConnectRequest{Subs: make(map[string]*protocol.SubscribeRequest)}
		for i := range rooms {
			room := fmt.Sprintf("open:budget-%s-%d", enc, i)
			names = append(names, room)
			epoch := s.result(t, "publish", `{"channel":"`+room+`","data":0}`)["epoch"].(string)
			for range each {
				s.result(t, "publish", `{"channel":"`+room+`","data":`+data+`}`)
			}
			req.Subs[room] = &protocol.SubscribeRequest{Recover: true, Offset: 1, Epoch: epoch}
		}
		req.Token = token(t, "u", func(c *auth.Claims) { c.Channels = names })
		c := s.open(t, enc)
		subs := c.ok(&protocol.Command{Connect: req}).Connect.Subs
		next, bytes := make(map[string]uint64), 0
		for _, room := range names {
			r := subs[room]
			if r == nil || !r.Recovered || r.Offset != 1 {
				t.Fatalf("%s: subscribe result %v, want recovered from 1", room, r)
			}
			next[room] = 2
			for _, p := range r.Publications {
				if bytes += len(p.Data); p.Offset != next[room] {
					t.Errorf("%s: offset %d, want %d", room, p.Offset, next[room])
				}
				next[room]++
			}
		}
		if bytes == 0 || bytes > maxRecovered+size {
			t.Errorf("the reply has %d bytes of publications, want some and at most %d and one more", bytes, maxRecovered)
		}
		for left := rooms*each - bytes/size; left > 0; left-- {
			room, p := c.publication()
			if p.Offset != next[room] {
				t.Fatalf("%s: offset %d, want %d", room, p.Offset, next[room])
			}
			next[room]++
		}
	})
}
