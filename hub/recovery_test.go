package hub

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/centrifugal/protocol"

	"hub/hub/poll/polltest"
	"hub/hub/wire"
)

// A crowd recovers from the store and does not read, or not any more: what waits
// for each of them is small, since the rest are bytes that all share.
func TestStampedeOfRecoveries(t *testing.T) {
	const clients, events = 300, 300
	withClock(t, nil, func(s *clockwork) {
		s.sizes.keepDurable = 4 << 10 // before there is any room
		host, _ := s.connect(wire.JSON, token(t, "host"))
		sub := host.ok(subscribeTo("open:h")).Subscribe
		for i := range events {
			host.ok(publishTo("open:h", fmt.Sprintf(`"%04d%s"`, i, strings.Repeat("x", 1000))))
		}
		recover := func() *protocol.Command {
			return &protocol.Command{Subscribe: &protocol.SubscribeRequest{
				Channel: "open:h", Recover: true, Offset: sub.Offset, Epoch: sub.Epoch}}
		}
		var crowd []*tester
		var peers []*polltest.Peer
		for i := range clients {
			c, p := s.connect(wire.Encoding(i%2), token(t, fmt.Sprint("u", i)))
			crowd, peers = append(crowd, c), append(peers, p)
			if i%4 < 2 { // the others take as much as fits the network
				p.Pause()
			}
		}
		for _, c := range crowd {
			if err := c.send(recover()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		kept, members := 0, 0
		for _, l := range s.loops {
			onLoop(l, func() {
				for _, c := range l.conns {
					kept += cap(c.out) + cap(c.in)
					members += len(c.subs)
				}
			})
		}
		if members != clients+1 {
			t.Errorf("%d have subscribed, want %d and the host", members, clients)
		}
		if each := kept / clients; each > 32<<10 {
			t.Errorf("%d bytes are kept for each of %d clients that do not read, want at most 32 KiB", each, clients)
		}
		if pages := s.metric(t, "hub_catch_up_pages_total", ""); pages > 40 {
			t.Errorf("%v pages were read from the store for %d recoveries from one position", pages, clients)
		}
		for i, p := range peers {
			if i < 4 { // one of each kind
				p.Resume()
				recovered(t, crowd[i], sub.Offset, events)
			}
		}
	})
}

// recovered reads the reply to a recovery and checks that everything after offset
// comes, up to last, in order and once.
func recovered(t *testing.T, c *tester, offset, last uint64) {
	t.Helper()
	r, err := c.read()
	if err != nil || r.Subscribe == nil || !r.Subscribe.Recovered || r.Subscribe.Offset != offset {
		t.Fatalf("got %v, %v, want a recovery from %d", r, err, offset)
	}
	next := func(p *protocol.Publication) {
		if offset++; p.Offset != offset {
			t.Fatalf("offset %d, want %d", p.Offset, offset)
		}
	}
	for _, p := range r.Subscribe.Publications {
		next(p)
	}
	for offset < last {
		_, p := c.publication()
		next(p)
	}
}
