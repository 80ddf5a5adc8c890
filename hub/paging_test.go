package hub

import (
	"strings"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// Small publications by users of whom much is told: a history reply is no larger
// than SDKs take all the same, and asking on from its last one yields everything.
func TestHistoryPages(t *testing.T) {
	const events, info = 800, 900
	s := startServer(t, testOptions(t), nil)
	publisher := s.open(t, wire.JSON)
	publisher.ok(connectWith(token(t, "u", func(c *auth.Claims) {
		c.Info = []byte(`"` + strings.Repeat("i", info) + `"`)
	})))
	for n := 0; n < events; n += 50 {
		var commands []*protocol.Command
		for range 50 {
			commands = append(commands, publishTo("open:h", `1`))
		}
		if err := publisher.send(commands...); err != nil {
			t.Fatal(err)
		}
		if r, err := publisher.reply(commands[49].Id); err != nil || r.Error != nil {
			t.Fatal(r, err)
		}
	}
	for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
		for _, reverse := range []bool{false, true} {
			c := s.connect(t, enc, "reader")
			var since *protocol.StreamPosition
			want, step := uint64(1), uint64(1)
			if reverse {
				want, step = events, ^uint64(0)
			}
			pages := 0
			for got := 0; got < events; pages++ {
				cmd := historyOf("open:h", -1)
				cmd.History.Since, cmd.History.Reverse = since, reverse
				if err := c.send(cmd); err != nil {
					t.Fatal(err)
				}
				f, err := c.readFrame()
				if err != nil || len(f.Payload) > 256<<10+2*info {
					t.Fatalf("%s: a frame of %d bytes, %v, want at most 256 KiB and a publication", enc, len(f.Payload), err)
				}
				if err := c.decode(f.Payload); err != nil {
					t.Fatal(err)
				}
				r, err := c.read()
				if err != nil || r.Id != cmd.Id || r.Error != nil || r.History.Offset != events || len(r.History.Publications) == 0 {
					t.Fatalf("%s: page %d after %d publications: %v, %v", enc, pages, got, r, err)
				}
				for _, p := range r.History.Publications {
					if p.Offset != want || len(p.Info.ConnInfo) != info+2 {
						t.Fatalf("%s, reverse %v: offset %d, want %d", enc, reverse, p.Offset, want)
					}
					since = &protocol.StreamPosition{Offset: want, Epoch: r.History.Epoch}
					want += step
					got++
				}
			}
			if pages > 8 {
				t.Errorf("%s, reverse %v: %d pages for %d KiB", enc, reverse, pages, events*info>>10)
			}
		}
	}
}
