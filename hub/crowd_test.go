package hub

import (
	"slices"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
)

// Above presence_max members a room tells of no more joins and leaves, and not who
// is there, but how many.
func TestPresenceMax(t *testing.T) {
	o := testOptions(t)
	ns := openNamespace()
	ns.JoinLeave, ns.PresenceMax = true, 3
	o.Namespaces["crowd"] = ns
	s := startServer(t, o, nil)
	join := func(user string) *tester {
		c := s.connect(t, wire.JSON, user)
		c.ok(subscribeTo("crowd:a"))
		return c
	}
	watcher := s.connect(t, wire.Protobuf, "watcher")
	cmd := subscribeTo("crowd:a")
	cmd.Subscribe.JoinLeave = true
	watcher.ok(cmd)
	// told returns the joins and leaves up to the next one of user.
	told := func(user string) (all []string) {
		for {
			p, err := watcher.push()
			switch {
			case err != nil:
				t.Fatalf("waiting for a signal of %s after %q: %v", user, all, err)
			case p.Join != nil && p.Join.Info.User != "watcher":
				all = append(all, "+"+p.Join.Info.User)
			case p.Leave != nil:
				all = append(all, "-"+p.Leave.Info.User)
			}
			if n := len(all); n > 0 && all[n-1][1:] == user {
				return all
			}
		}
	}
	var ends []*tester
	leave := func(n int) {
		for range n {
			ends[0].ok(unsubscribeFrom("crowd:a"))
			ends = ends[1:]
		}
	}
	ends = append(ends, join("b"), join("c"))
	if got := told("c"); !slices.Equal(got, []string{"+b", "+c"}) {
		t.Errorf("up to three members: %q", got)
	}
	watcher.ok(&protocol.Command{Presence: &protocol.PresenceRequest{Channel: "crowd:a"}})
	ends = append(ends, join("d"), join("e"))
	watcher.fails(errLimitExceeded.Code, &protocol.Command{Presence: &protocol.PresenceRequest{Channel: "crowd:a"}})
	if e := apiCode(s.api(t, "presence", `{"channel":"crowd:a"}`)); e != int(errLimitExceeded.Code) {
		t.Errorf("presence of the server API: error %d, want 106", e)
	}
	if r := watcher.ok(&protocol.Command{PresenceStats: &protocol.PresenceStatsRequest{Channel: "crowd:a"}}).PresenceStats; r.NumClients != 5 || r.NumUsers != 5 {
		t.Errorf("presence_stats %v, want 5", r)
	}
	leave(1) // b, of five
	leave(2) // c and d, of four and three
	ends = append(ends, join("f"))
	if got := told("f"); got[len(got)-1] != "+f" || slices.ContainsFunc(got, func(s string) bool { return s == "+d" || s == "+e" || s == "-b" }) {
		t.Errorf("after a crowd: %q; it must not tell what happened above the limit", got)
	}
	if r := watcher.ok(&protocol.Command{Presence: &protocol.PresenceRequest{Channel: "crowd:a"}}).Presence.Presence; len(r) != 3 {
		t.Errorf("presence %v, want three", r)
	}
}
