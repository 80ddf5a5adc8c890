package hub

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"hub/hub/wire"
)

// listedRooms asks for all pages of rooms and returns them in their order.
func (s *testServer) listedRooms(t testing.TB, query string, limit int) (rows []object) {
	t.Helper()
	for after := ""; ; {
		page := s.asks(t, 200, "GET", fmt.Sprintf("rooms?%s&limit=%d&after=%s", query, limit, url.QueryEscape(after)), "")
		list := page["rooms"].([]any)
		for _, row := range list {
			rows = append(rows, row.(object))
		}
		next, more := page["next"].(string)
		if len(list) > limit || more && len(list) != limit {
			t.Fatalf("%s: a page of %d, want at most %d; next %q", query, len(list), limit, next)
		}
		if !more {
			return rows
		}
		after = next
	}
}

func roomNames(rows []object) (names []string) {
	for _, row := range rows {
		names = append(names, row["room"].(string))
	}
	return names
}

// Live and stored rooms are one list, by name, each once.
func TestRoomPages(t *testing.T) {
	o := adminOptions(t)
	o.Database.Names = []string{"default", "other"}
	o.Limits.Subscriptions = 0
	s := startServer(t, o, nil)
	c := s.connect(t, wire.JSON, "ann")
	var stored, live []string
	for i := range 30 {
		room := fmt.Sprint("open:", i)
		if i%2 == 0 {
			s.result(t, "publish", `{"channel":"`+room+`","data":1}`)
			stored = append(stored, room)
		}
		if i%3 == 0 {
			c.ok(subscribeTo(room))
			live = append(live, room)
		}
	}
	for _, room := range []string{"live:ä", "open:%/../x", "live:&b=c"} {
		c.ok(subscribeTo(room))
		live = append(live, room)
	}
	all := slices.Concat(stored, live)
	slices.Sort(all)
	all = slices.Compact(all)
	slices.Sort(live)
	for _, test := range []struct {
		query string
		want  []string
	}{
		{"", all},
		{"database=default&live=false", all},
		{"live=true", live},
		{"prefix=open:1", slices.DeleteFunc(slices.Clone(all), func(r string) bool { return !strings.HasPrefix(r, "open:1") })},
		{"prefix=live:", slices.DeleteFunc(slices.Clone(all), func(r string) bool { return !strings.HasPrefix(r, "live:") })},
		{"prefix=nobody", nil},
		{"database=other", nil},
	} {
		for _, limit := range []int{1, 4, 1000} {
			rows := s.listedRooms(t, test.query, limit)
			if got := roomNames(rows); !slices.Equal(got, test.want) {
				t.Errorf("%q by %d: %q, want %q", test.query, limit, got, test.want)
			}
			for _, row := range rows {
				room := row["room"].(string)
				if row["live"] != slices.Contains(live, room) || row["stored"] != slices.Contains(stored, room) {
					t.Errorf("%q: %v", test.query, row)
				}
			}
		}
	}
	if page := s.asks(t, 200, "GET", "rooms?limit=1", ""); page["live"] != float64(len(live)) || page["stored"] != float64(len(stored)) || page["database"] != "default" {
		t.Errorf("counts %v", page)
	}
}

// What is told of a room is where it stands, and what an ephemeral room's clients
// are not told it does not tell.
func TestRoomDetail(t *testing.T) {
	s := adminServer(t)
	for range 3 {
		s.result(t, "publish", `{"channel":"open:a","data":"`+strings.Repeat("x", 1000)+`"}`)
	}
	get := func(room string) object {
		t.Helper()
		return s.asks(t, 200, "GET", "rooms/default/"+url.PathEscape(room), "")
	}
	a := get("open:a")
	if a["live"] != false || a["stored"] != true || a["subscribers"] != 0. || a["offset"] != 3. || a["first"] != 1. || a["log_bytes"] != 0. ||
		a["declared"] != true || a["durable"] != true || a["history_size"] != 10_000. || a["history_ttl"] != 168.*3600 || a["time"].(float64) <= 0 {
		t.Errorf("a stored room: %v", a)
	}
	c, d := s.connect(t, wire.JSON, "ann"), s.connect(t, wire.Protobuf, "bob")
	for _, c := range []*tester{c, d} {
		c.ok(subscribeTo("open:a"))
		c.ok(subscribeTo("live:a/b"))
	}
	s.result(t, "publish", `{"channel":"open:a","data":"`+strings.Repeat("x", 1000)+`"}`)
	s.result(t, "publish", `{"channel":"live:a/b","data":1}`)
	b := get("open:a")
	if b["live"] != true || b["subscribers"] != 2. || b["offset"] != 4. || b["epoch"] != a["epoch"] || b["log_bytes"].(float64) < 2000 || b["behind"] != 0. {
		t.Errorf("a live room: %v", b)
	}
	e := get("live:a/b")
	if e["live"] != true || e["stored"] != false || e["subscribers"] != 2. || e["offset"] != nil || e["epoch"] != nil || e["log_bytes"].(float64) <= 0 || e["durable"] != false {
		t.Errorf("a room without history: %v", e)
	}
	s.result(t, "history_remove", `{"channel":"open:a"}`)
	if r := get("open:a"); r["offset"] != 4. || r["first"] != 5. || r["epoch"] == b["epoch"] {
		t.Errorf("after removal: %v", r)
	}
	for _, missing := range []string{"open:b", "undeclared:a"} {
		s.asks(t, 404, "GET", "rooms/default/"+missing, "")
	}
}

// The table of live rooms is looked at while rooms come and go: those that stay are
// seen once each.
func TestLiveRoomsWhileTheyChange(t *testing.T) {
	b := newBench(t)
	const stay = 5 * roomSlice
	for i := range stay {
		b.room("default", fmt.Sprint("live:stay-", i)).join(b.loop, wire.JSON)
	}
	db := b.databases["default"]
	var changes sync.WaitGroup
	stop := make(chan struct{})
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				r := b.room("default", fmt.Sprint("live:goes-", i%(2*stay)))
				if r.join(b.loop, wire.JSON) && i%3 > 0 {
					r.leave(b.loop, wire.JSON)
				}
			}
		}
	})
	for range 20 {
		seen := make(map[string]int, 2*stay)
		for r := range db.liveRooms() {
			seen[r.name]++
		}
		for i := range stay {
			if n := seen[fmt.Sprint("live:stay-", i)]; n != 1 {
				t.Fatalf("room %d is seen %d times", i, n)
			}
		}
	}
	for range db.liveRooms() {
		break // leaves the table unlocked
	}
	close(stop)
	changes.Wait()
}

func BenchmarkRoomPage(b *testing.B) {
	s := newBench(b)
	for i := range 100_000 {
		s.room("default", fmt.Sprint("live:", i)).join(s.loop, wire.JSON)
	}
	db := s.databases["default"]
	b.ReportAllocs()
	for b.Loop() {
		all := first[string, roomRow]{limit: 101}
		for r := range db.liveRooms() {
			if all.wants(r.name) {
				row, _ := r.describe()
				all.add(r.name, row)
			}
		}
	}
}
