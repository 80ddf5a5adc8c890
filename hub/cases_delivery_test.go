package hub

import (
	"fmt"
	"strings"
	"testing"

	"hub/hub/wire"
)

// Case G37: a position counts only in the epoch that it is of, and only up to the
// top. Everything else is "start over", never "all fine", also when the same
// numbers are there again.
func TestPositionsThatDoNotHold(t *testing.T) {
	o := testOptions(t)
	s := startServer(t, o, nil)
	const room = "open:a"
	fill := func(s *testServer, n int) (epoch string) {
		for i := range n {
			epoch = s.result(t, "publish", fmt.Sprintf(`{"channel":%q,"data":%d}`, room, i))["epoch"].(string)
		}
		return epoch
	}
	check := func(s *testServer, when, epoch string, offset uint64, want int) { // want -1: not recovered
		t.Helper()
		for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
			cmd := subscribeTo(room)
			cmd.Subscribe.Recover, cmd.Subscribe.Offset, cmd.Subscribe.Epoch = true, offset, epoch
			r := s.connect(t, enc, "u").ok(cmd).Subscribe
			if !r.WasRecovering || r.Recovered != (want >= 0) || len(r.Publications) != max(0, want) {
				t.Errorf("%s, %s: from %d in %q: recovered %v with %d publications, want %d",
					when, enc, offset, epoch, r.Recovered, len(r.Publications), want)
			}
		}
	}
	first := fill(s, 20)
	check(s, "at 20", first, 20, 0)
	check(s, "at 20", first, 5, 15)
	check(s, "at 20", first, 500, -1)
	check(s, "at 20", first, 1<<63, -1)
	check(s, "at 20", "", 5, -1)
	check(s, "at 20", "", 0, -1)
	check(s, "at 20", strings.ToUpper(first), 5, -1)
	check(s, "at 20", first+"0", 5, -1)

	s.result(t, "history_remove", fmt.Sprintf(`{"channel":%q}`, room))
	check(s, "removed", first, 20, -1)
	second := fill(s, 20)
	check(s, "removed and at 40", first, 20, -1)
	check(s, "removed and at 40", first, 40, -1)
	check(s, "removed and at 40", second, 40, 0)
	s.stop()
	s = startServer(t, o, nil)
	check(s, "after a restart", second, 30, 10)

	o.Server.DataDir = t.TempDir() // the history is lost
	s = startServer(t, o, nil)
	check(s, "lost", second, 40, -1)
	fill(s, 40)
	check(s, "lost and at 40 again", second, 40, -1)
	check(s, "lost and at 40 again", second, 30, -1)
}
