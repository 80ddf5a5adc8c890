package hub

import (
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
)

// A namespace that is taken out of the configuration keeps what its rooms hold,
// however old, until it is declared again.
func TestUndeclaredNamespaceKeepsHistory(t *testing.T) {
	dir := t.TempDir()
	declared := func(old bool) func(*Options) {
		return func(o *Options) {
			o.Server.DataDir = dir
			if old {
				o.Namespaces["old"] = openNamespace()
			}
		}
	}
	const events = 20
	history := func(s *clockwork, room string) []*protocol.Publication {
		t.Helper()
		c, _ := s.connect(wire.JSON, token(t, "u"))
		return c.ok(historyOf(room, -1)).History.Publications
	}
	withClock(t, declared(true), func(s *clockwork) {
		c, _ := s.connect(wire.JSON, token(t, "u"))
		for range events {
			c.ok(publishTo("old:a", `1`))
			c.ok(publishTo("open:a", `1`))
		}
	})
	withClock(t, func(o *Options) {
		declared(false)(o)
		time.Sleep(DefaultNamespace().HistoryTTL + time.Hour)
	}, func(s *clockwork) {
		time.Sleep(time.Minute) // the store walks over its rooms every few seconds
		c, _ := s.connect(wire.JSON, token(t, "u"))
		c.fails(errUnknownChannel.Code, historyOf("old:a", -1))
	})
	withClock(t, declared(true), func(s *clockwork) { // on a clock by which nothing is old
		if n := len(history(s, "open:a")); n != 0 {
			t.Errorf("%d publications of a declared namespace were not deleted in time", n)
		}
		if n := len(history(s, "old:a")); n != events {
			t.Errorf("%d publications of the undeclared namespace are left, want %d", n, events)
		}
	})
	s := &Server{}
	s.policy.Store(&policy{})
	if got := (&database{server: s}).retention("old:a"); got.Size < 1<<62 || got.TTL != 0 {
		t.Errorf("retention %+v of an undeclared namespace, want everything", got)
	}
}
