package hub

import (
	"context"
	"log/slog"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// settle waits until every loop has done what was posted to it.
func (s *testServer) settle() {
	for _, l := range s.loops {
		onLoop(l, func() {})
	}
}

// While a connect command waits for its rooms, the history of one of them that is
// there already goes, and a server talks to the user. The connect reply comes
// first all the same, and what it says is taken back behind it.
func TestNothingBeforeTheConnectReply(t *testing.T) {
	o := testOptions(t)
	s := startServer(t, o, nil)
	db := s.databases.get("default")
	first := s.connect(t, wire.JSON, "other")
	first.ok(subscribeTo("open:there"))
	first.ok(publishTo("open:there", `1`))

	// From here on no other room's position can be read.
	gate := make(chan struct{})
	for range db.queries.max {
		db.queries.do(func() { <-gate })
	}
	c := s.open(t, wire.JSON)
	if err := c.send(&protocol.Command{Connect: &protocol.ConnectRequest{Token: token(t, "u", func(c *auth.Claims) {
		c.Channels = []string{"open:there", "open:new"}
	})}}, subscribeTo("open:after")); err != nil {
		t.Fatal(err)
	}
	until(t, "the first room has it", func() bool { return db.live("open:there").members.Load() == 2 })
	s.result(t, "history_remove", `{"channel":"open:there"}`)
	s.result(t, "subscribe", `{"user":"u","channel":"live:x"}`)
	s.settle()
	close(gate)

	r, err := c.read()
	if err != nil || r.Connect == nil || len(r.Connect.Subs) != 2 {
		t.Fatalf("first came %v, %v, want the connect reply with 2 rooms", r, err)
	}
	ended, subscribed := false, false
	for !ended || !subscribed {
		p, err := c.push()
		if err != nil {
			t.Fatalf("history gone told %v, subscription told %v: %v", ended, subscribed, err)
		}
		ended = ended || p.Channel == "open:there" && p.Unsubscribe != nil && p.Unsubscribe.Code == unsubInsufficient.code
		subscribed = subscribed || p.Channel == "live:x" && p.Subscribe != nil
	}
	until(t, "the room has only the other", func() bool { return db.live("open:there") == nil || db.live("open:there").members.Load() == 0 })
}

// A room whose position cannot be read takes nobody, and the next one asks anew.
func TestRoomThatCannotBeRead(t *testing.T) {
	o := testOptions(t)
	o.Database.Names = []string{"default", "other"}
	s := startServer(t, o, func(s *Server) { s.log = slog.New(slog.DiscardHandler) })
	db := s.databases.get("other")
	if err := db.store.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	ws, err := upgrade(s.dial(t), wire.JSON, "/v1/other/websocket")
	if err != nil {
		t.Fatal(err)
	}
	c := &tester{ws, t}
	c.ok(connectWith(token(t, "u")))
	for range 20 {
		c.fails(errInternal.Code, subscribeTo("open:a"))
	}
	c.ok(subscribeTo("live:a")) // needs no store
	if db.live("open:a") != nil {
		t.Error("a dead room is still in the table")
	}
	c.fails(errInternal.Code, publishTo("open:a", `1`))
	c.fails(errInternal.Code, historyOf("open:a", 1))

	// The narrow case: the room dies between joining it and asking for its position.
	ns := openNamespace()
	r := newRoom(db, "open:b", &ns)
	r.state = roomDead
	if wait, e := r.whenReady(func(*protocol.Error) {}); wait || e == nil {
		t.Errorf("a dead room answers wait %v, error %v", wait, e)
	}
}

// A connection that is not read because of its unsent replies is read again once
// they are on their way, whoever wrote them.
func TestReadAgainAfterAVisit(t *testing.T) {
	b := newBench(t)
	r := b.room("default", "r")
	s := b.member(r, wire.JSON, func(_ *sub, p []byte) (int, error) { return len(p), nil })
	s.conn.out = append(b.outBuffer(s.conn), make([]byte, unsentPause+1)...)
	b.flushLater(s.conn)
	if !s.conn.paused {
		t.Fatal("a connection with unsent replies is read")
	}
	b.publish(r, `"takes the replies along"`)
	b.step()
	b.unparkAll() // in the next iteration, which begins at once
	if s.conn.paused || len(s.conn.out) != 0 {
		t.Errorf("idle %v with %d bytes unsent", s.conn.paused, len(s.conn.out))
	}
}

// A reader that is slow to take its replies is not taken for one that sends half
// frames.
func TestSlowReaderOfReplies(t *testing.T) {
	withClock(t, nil, func(s *clockwork) {
		c, peer := s.connect(wire.JSON, token(t, "u"))
		big := `"` + padding + padding + padding + padding + padding + padding + padding + padding + padding + `"`
		for range 300 {
			c.ok(publishTo("open:a", big))
		}
		peer.Pause()
		for range 8 { // each asks for far more than it reads
			c.raw(c.frame(historyOf("open:a", -1)))
		}
		s.sleepThrough(4)
		if peer.Hung() {
			t.Fatal("it was closed")
		}
		peer.Resume()
		for id := c.lastID - 7; id <= c.lastID; id++ {
			if r, err := c.reply(id); err != nil || r.Error != nil {
				t.Fatalf("reply %d: %v, %v", id, r, err)
			}
		}
		c.ok(publishTo("open:a", `1`))
	})
}
