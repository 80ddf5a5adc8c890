package hub

import (
	"fmt"
	"strings"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// A history reply is no larger than SDKs take, be its publications tiny and many
// or by users of whom much is told, and asking on from its last one yields
// everything.
func TestHistoryPages(t *testing.T) {
	for _, test := range []struct{ events, info int }{{4000, 2}, {800, 900}} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			o := testOptions(t)
			o.Limits.Waiting = 0
			s := startServer(t, o, nil)
			publisher := s.open(t, wire.JSON)
			publisher.ok(connectWith(token(t, "u", func(c *auth.Claims) {
				c.Info = []byte(`"` + strings.Repeat("i", test.info-2) + `"`)
			})))
			const frame = 400
			for n := 0; n < test.events; n += frame {
				commands := make([]*protocol.Command, frame)
				for i := range commands {
					commands[i] = publishTo("open:h", `1`)
				}
				if err := publisher.send(commands...); err != nil {
					t.Fatal(err)
				}
				if r, err := publisher.reply(commands[frame-1].Id); err != nil || r.Error != nil {
					t.Fatal(r, err)
				}
			}
			for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
				for _, reverse := range []bool{false, true} {
					pages := s.connect(t, enc, "reader").allHistory(test.events, test.info, reverse)
					if pages > 8 {
						t.Errorf("%s, reverse %v: %d pages for %d publications", enc, reverse, pages, test.events)
					}
				}
			}
		})
	}
}

// allHistory asks for the history of open:h until it has all of its events, which
// are 1 to events, each with so many bytes of info.
func (c *tester) allHistory(events, info int, reverse bool) (pages int) {
	c.t.Helper()
	var since *protocol.StreamPosition
	want, step := uint64(1), uint64(1)
	if reverse {
		want, step = uint64(events), ^uint64(0)
	}
	for got := 0; got < events; pages++ {
		cmd := historyOf("open:h", -1)
		cmd.History.Since, cmd.History.Reverse = since, reverse
		if err := c.send(cmd); err != nil {
			c.t.Fatal(err)
		}
		f, err := c.readFrame()
		if most := 256<<10 + info + 200; err != nil || len(f.Payload) > most {
			c.t.Fatalf("%s: a frame of %d bytes, %v, want at most %d", c.enc, len(f.Payload), err, most)
		}
		if err := c.decode(f.Payload); err != nil {
			c.t.Fatal(err)
		}
		r, err := c.read()
		if err != nil || r.Id != cmd.Id || r.Error != nil || r.History.Offset != uint64(events) || len(r.History.Publications) == 0 {
			c.t.Fatalf("%s: page %d after %d publications: %v, %v", c.enc, pages, got, r, err)
		}
		for _, p := range r.History.Publications {
			if p.Offset != want || len(p.Info.ConnInfo) != info {
				c.t.Fatalf("%s, reverse %v: offset %d with %d bytes of info, want %d with %d", c.enc, reverse, p.Offset, len(p.Info.ConnInfo), want, info)
			}
			since = &protocol.StreamPosition{Offset: want, Epoch: r.History.Epoch}
			want += step
			got++
		}
	}
	return pages
}
