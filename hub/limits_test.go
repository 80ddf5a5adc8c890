package hub

import (
	"fmt"
	"strings"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// A send is never answered, not even one too many: SDKs would take a reply
// without an id for a ping.
func TestSendOverTheLimit(t *testing.T) {
	change := func(o *Options) { o.Limits.Messages = Rate{PerSecond: 0.001, Burst: 2} }
	encodings(t, change, func(t *testing.T, s *testServer, enc wire.Encoding) {
		c := s.connect(t, enc, "u")
		commands := make([]*protocol.Command, 5)
		for i := range commands {
			commands[i] = &protocol.Command{Id: uint32(100 + i), Send: &protocol.SendRequest{Data: protocol.Raw("1")}}
		}
		last := publishTo("open:a", `1`)
		if err := c.send(append(commands, last)...); err != nil {
			t.Fatal(err)
		}
		r, err := c.read()
		if err != nil || r.Id != last.Id || r.Error == nil || r.Error.Code != errTooManyRequests.Code {
			t.Errorf("got %v, %v, want error 111 for command %d", r, err, last.Id)
		}
	})
}

// Subscribes have a bucket of their own, unless the limit of subscriptions is off.
func TestSubscribeLimit(t *testing.T) {
	for _, test := range []struct{ subscriptions, allowed int }{{128, 129}, {10, 11}, {0, 400}} {
		t.Run(fmt.Sprint(test.subscriptions), func(t *testing.T) {
			o := testOptions(t)
			o.Limits.Messages = Rate{PerSecond: 0.001, Burst: 1}
			o.Limits.Subscriptions = test.subscriptions
			s := startServer(t, o, nil)
			c := s.open(t, wire.JSON)
			commands := []*protocol.Command{connectWith(token(t, "u"))}
			for i := range test.allowed + 2 {
				commands = append(commands, subscribeTo(fmt.Sprint("live:", i)))
			}
			if err := c.send(commands...); err != nil {
				t.Fatal(err)
			}
			for i := range commands {
				r, err := c.read()
				if err != nil || r.Id != commands[i].Id {
					t.Fatalf("got %v, %v, want reply %d", r, err, commands[i].Id)
				}
				var got, want uint32
				if r.Error != nil {
					got = r.Error.Code
				}
				switch {
				case test.subscriptions == 0:
				case i > test.allowed: // the bucket is empty
					want = errTooManyRequests.Code
				case i > test.subscriptions:
					want = errLimitExceeded.Code
				}
				if got != want {
					t.Fatalf("reply to subscribe %d: error %d, want %d", i, got, want)
				}
			}
			c.ok(historyOf("open:a", 1)) // the message is still there
			c.fails(errTooManyRequests.Code, historyOf("open:a", 1))
		})
	}
}

// Tags count with the data of a publication.
func TestTagsCount(t *testing.T) {
	s := apiServer(t) // at most 10 bytes in namespace short
	c := s.connect(t, wire.JSON, "u")
	c.ok(subscribeTo("short:a"))
	for body, want := range map[string]int{
		`"data":"12345678"`:                             0,
		`"data":"1234567","tags":{"a":""}`:              0,
		`"data":"12345678","tags":{"a":""}`:             106,
		`"data":1,"tags":{"a":"12345678"}`:              0,
		`"data":1,"tags":{"a":"123456789"}`:             106,
		`"data":1,"tags":{"abcd":"12345678"}`:           106,
		`"data":1,"tags":{"a":"123","b":"1234"}`:        0,
		`"data":1,"tags":{"a":"123","b":"12345"}`:       106,
		`"b64data":"MTIzNDU2Nzg5MA==","tags":{"a":"1"}`: 106,
		`"data":1,"tags":{"a":"` + long(1<<20) + `"}`:   106,
	} {
		if got := apiCode(s.api(t, "publish", `{"channel":"short:a",`+body+`}`)); got != want {
			t.Errorf("publish %.60s: error %d, want %d", body, got, want)
		}
		responses := s.result(t, "broadcast", `{"channels":["short:b","open:b"],`+body+`}`)["responses"].([]any)
		if got := apiCode(responses[0].(map[string]any)); got != want {
			t.Errorf("broadcast %.60s: error %d, want %d", body, got, want)
		}
	}
}

// A presence reply is no larger than SDKs can take; the numbers are still told.
func TestPresenceBytes(t *testing.T) {
	const info = 4000
	for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
		t.Run(enc.String(), func(t *testing.T) {
			withClock(t, nil, func(s *clockwork) {
				var c *tester
				join := func(n int) {
					for range n {
						c, _ = s.connect(enc, token(t, "u", func(c *auth.Claims) {
							c.Info = []byte(`"` + strings.Repeat("i", info-2) + `"`)
						}))
						c.ok(subscribeTo("open:crowd"))
					}
				}
				ask := func() *protocol.Command {
					return &protocol.Command{Presence: &protocol.PresenceRequest{Channel: "open:crowd"}}
				}
				join(60)
				if err := c.send(ask()); err != nil {
					t.Fatal(err)
				}
				f, err := c.readFrame()
				if err != nil || len(f.Payload) > maxPresence || len(f.Payload) < 60*info {
					t.Fatalf("a frame of %d bytes, %v, want at most 256 KiB", len(f.Payload), err)
				}
				join(10)
				c.fails(errLimitExceeded.Code, ask())
				r := c.ok(&protocol.Command{PresenceStats: &protocol.PresenceStatsRequest{Channel: "open:crowd"}})
				if r.PresenceStats.NumClients != 70 || r.PresenceStats.NumUsers != 1 {
					t.Errorf("presence stats %v, want 70 clients of one user", r.PresenceStats)
				}
			})
		})
	}
}
