package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

// TestCrowd: a thousand users enter one room at once. Nobody is disconnected,
// presence is complete, and those who were there before are told of everybody,
// in few writes.
func TestCrowd(t *testing.T) {
	s := startSDKServer(t)
	const total, early = 1000, 10
	const room = "room:crowd"
	token := func(i int) string { return s.token(fmt.Sprint("u", i)) }

	var mu sync.Mutex
	seen := make([]map[string]int, early) // joins by user
	watchers := make([]*goClient, early)
	for i := range early {
		seen[i] = make(map[string]int)
		watchers[i] = connectedClient(t, []string{"json", "protobuf"}[i%2], s.url(""), token(i))
		sub := watchers[i].newSub(room, centrifuge.SubscriptionConfig{JoinLeave: true})
		sub.OnJoin(func(e centrifuge.JoinEvent) {
			mu.Lock()
			defer mu.Unlock()
			seen[i][e.User]++
		})
		sub.begin()
	}
	crowd := make([]*socket, total-early)
	for i := range crowd {
		crowd[i] = newSocket(t, s.url(""), token(early+i), socketOptions{})
	}
	announced := func(first, last int) {
		t.Helper()
		eventually(t, patience, func() string {
			mu.Lock()
			defer mu.Unlock()
			for i, users := range seen {
				for u := first; u < last; u++ {
					if n := users[fmt.Sprint("u", u)]; n != 1 {
						return fmt.Sprintf("watcher %d was told %d times of user %d", i, n, u)
					}
				}
			}
			return ""
		})
	}
	// Most ask at once and read their replies then.
	together, alone := crowd[:len(crowd)-200], crowd[len(crowd)-200:]
	for _, c := range together {
		c.send(fmt.Sprintf(`{"id":2,"subscribe":{"channel":%q}}`, room))
	}
	for _, c := range together {
		if r := c.reply(2); r.Error != nil {
			t.Fatalf("subscribe: %v", r.Error)
		}
	}
	announced(early, early+len(together))
	// The others come one after the other. They cost a write each, and each
	// watcher one per 100 ms; one per join and watcher would be ten times as many.
	before, start := s.metric("hub_socket_writes_total"), time.Now()
	for _, c := range alone {
		c.subscribe(2, room)
	}
	announced(early+len(together), total)
	took := time.Since(start)
	writes := s.metric("hub_socket_writes_total") - before
	t.Logf("%d entered one by one and were announced in %v, %.0f writes", len(alone), took, writes)
	if limit := 1.5*float64(len(alone)) + early*(2+took.Seconds()*10); writes > limit {
		t.Errorf("%.0f writes to sockets, want at most %.0f", writes, limit)
	}

	for i, w := range watchers {
		if len(w.disconnected) != 0 || len(w.connecting) != 1 {
			t.Errorf("watcher %d was disconnected", i)
		}
	}
	crowdPresence(t, s, watchers[0], room, total)
	// Everybody is still there: a publication reaches all.
	if _, err := s.publish("", room, "hello"); err != nil {
		t.Fatal(err)
	}
	for _, c := range crowd {
		if p := c.publication(); string(p.Data) != `"hello"` {
			t.Fatalf("got %s", p.Data)
		}
	}
	s.healthy()
}

// crowdPresence checks the presence of a room that is as full as presence_max
// allows, and one fuller.
func crowdPresence(t *testing.T, s *sdkServer, g *goClient, room string, total int) {
	t.Helper()
	all, err := g.Presence(timeout(t), room)
	if err != nil || len(all.Clients) != total {
		t.Fatalf("presence has %d of %d members, %v", len(all.Clients), total, err)
	}
	users := make(map[string]bool)
	for _, info := range all.Clients {
		users[info.User] = true
	}
	if len(users) != total {
		t.Errorf("presence has %d of %d users", len(users), total)
	}
	if stats, err := g.PresenceStats(timeout(t), room); err != nil || stats.NumClients != total || stats.NumUsers != total {
		t.Errorf("presence stats: %+v, %v", stats, err)
	}
	// One more than presence_max: numbers go on, names do not.
	last := newSocket(t, s.url(""), s.token("last"), socketOptions{})
	last.subscribe(2, room)
	if _, err := g.Presence(timeout(t), room); errorCode(err) != 106 {
		t.Errorf("presence above presence_max: %v, want error 106", err)
	}
	if stats, err := g.PresenceStats(timeout(t), room); err != nil || stats.NumClients != total+1 {
		t.Errorf("presence stats above presence_max: %+v, %v", stats, err)
	}
}

// TestNothingLeft: after a thousand connections that ended without a word,
// nothing of them is left.
func TestNothingLeft(t *testing.T) {
	s := startSDKServer(t)
	const rounds, each = 2, 500
	figures := []string{"hub_sockets", "hub_connections", "hub_subscriptions", "hub_rooms_live", "go_goroutines", "process_open_fds"}
	// What the first clients bring up and stays: readers of the database, idle
	// connections of the server API.
	slack := map[string]float64{"go_goroutines": 24, "process_open_fds": 24}
	before := make(map[string]float64)
	for _, name := range figures {
		before[name] = s.metric(name)
	}
	for range rounds {
		sockets := make([]*socket, each)
		for i := range sockets {
			c := newSocket(t, s.url(""), s.token(fmt.Sprint("u", i)), socketOptions{})
			c.send(fmt.Sprintf(`{"id":2,"subscribe":{"channel":"room:left"}}
{"id":3,"subscribe":{"channel":"live:left"}}
{"id":4,"subscribe":{"channel":"room:left-%d"}}
{"id":5,"publish":{"channel":"room:left-%d","data":1}}`, i, i))
			sockets[i] = c
		}
		for _, c := range sockets {
			for id := uint32(2); id <= 5; id++ {
				if r := c.reply(id); r.Error != nil {
					t.Fatal(r.Error)
				}
			}
		}
		if n := s.metric("hub_connections") - before["hub_connections"]; n != each {
			t.Fatalf("%v connections, want %d", n, each)
		}
		if n := s.metric("hub_rooms_live"); n != each+2 {
			t.Errorf("%v live rooms, want %d", n, each+2)
		}
		for i, c := range sockets {
			if i%2 == 0 {
				c.reset()
			} else {
				_ = c.tcp.Close()
			}
			if i%10 == 0 { // some end in the middle of what they get
				if _, err := s.publish("", "room:left", strings.Repeat("x", 1000)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	eventually(t, patience, func() string {
		var left []string
		for _, name := range figures {
			if n := s.metric(name); n > before[name]+slack[name] {
				left = append(left, fmt.Sprintf("%s is %v, at the start it was %v", name, n, before[name]))
			}
		}
		return strings.Join(left, "; ")
	})
	var present struct {
		Presence map[string]any `json:"presence"`
	}
	if err := s.api("", "presence", object{"channel": "room:left"}, &present); err != nil || len(present.Presence) != 0 {
		t.Errorf("presence: %d members, %v", len(present.Presence), err)
	}
	s.healthy()
}

// TestStalledReader: clients that do not read for longer than a pong may take,
// while megabytes flow in their room, are not disconnected and get all of it in
// order later. The others get everything meanwhile.
func TestStalledReader(t *testing.T) {
	s := startSDKServer(t, `ping_interval = "2s"`, `pong_timeout = "1500ms"`)
	const room, total = "room:stalled", 4000
	const stall = 8 * time.Second
	// One closes its window. The other's buffer is smaller than a segment, so its
	// system acknowledges retransmissions, rarer and rarer, without taking them.
	stalled := []*socket{
		newSocket(t, s.url(""), s.token("stalled"), socketOptions{}),
		newSocket(t, s.url(""), s.token("stalled"), socketOptions{readBuffer: 16 << 10}),
	}
	for _, c := range stalled {
		c.subscribe(2, room)
	}
	start := time.Now()
	reader, _ := connectedClient(t, "json", s.url(""), s.token("reader")).
		collect(room, centrifuge.SubscriptionConfig{})

	padding := strings.Repeat("x", 2000)
	for n := 0; n < total; n += 500 {
		commands := make([]object, 500)
		for i := range commands {
			commands[i] = object{"publish": object{"channel": room, "data": object{"n": n + i + 1, "padding": padding}}}
		}
		if err := s.batch(commands); err != nil {
			t.Fatal(err)
		}
	}
	contiguous(t, "the reader", 1, reader.await(t, total, patience))
	eventually(t, 2*stall, func() string {
		if time.Since(start) < stall {
			return "the stall goes on"
		}
		return ""
	})
	if n := s.metric("hub_connections"); n != 3 {
		t.Errorf("%v connections, want 3", n)
	}
	var reading sync.WaitGroup
	for _, c := range stalled {
		// With the small buffer the rest would take a retransmission every few segments.
		if err := c.tcp.SetReadBuffer(4 << 20); err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			if err := resumeReading(s, c, room, total); err != nil {
				t.Error(err)
			}
		})
	}
	reading.Wait()
	s.healthy()
}

// resumeReading reads the publications 1 to total that wait for c, and then one
// that is published now.
func resumeReading(s *sdkServer, c *socket, room string, total uint64) error {
	last := total
	for n := uint64(1); n <= last; n++ {
		line, err := c.line(patience)
		if err != nil {
			return fmt.Errorf("after %d publications: %w", n-1, err)
		}
		var push struct {
			Push struct {
				Pub struct {
					Offset uint64
					Data   struct{ N uint64 }
				}
			}
		}
		if err := json.Unmarshal(line, &push); err != nil || push.Push.Pub.Offset != n || n <= total && push.Push.Pub.Data.N != n {
			return fmt.Errorf("got %.80s, want publication %d (%v)", line, n, err)
		}
		if n == total {
			if last, err = s.publish("", room, object{"end": true}); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestSlowInRoomWithoutHistory: who does not read in a room without history is
// disconnected once more waits for it than limits.unsent, and counted.
func TestSlowInRoomWithoutHistory(t *testing.T) {
	s := startSDKServer(t)
	const room, total = "live:slow", 4000
	slow := newSocket(t, s.url(""), s.token("slow"), socketOptions{readBuffer: 16 << 10})
	slow.subscribe(2, room)
	g := connectedClient(t, "protobuf", s.url(""), s.token("reader"))
	reader, _ := g.collect(room, centrifuge.SubscriptionConfig{})
	padding := strings.Repeat("x", 2000)
	for n := range total {
		if _, err := s.publish("", room, object{"n": n, "padding": padding}); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range reader.await(t, total, patience) {
		if !strings.HasPrefix(string(r.Data), fmt.Sprintf(`{"n":%d,`, i)) {
			t.Fatalf("publication %d is %.30s", i, r.Data)
		}
	}
	eventually(t, patience, func() string {
		if s.metric("hub_slow_disconnects_total") != 1 || s.metric("hub_connections") != 1 {
			return "the slow connection is there"
		}
		return ""
	})
	if _, _, before := slow.closed(); len(before) == 0 || len(before) >= total {
		t.Errorf("the slow client got %d of %d publications before its end", len(before), total)
	}
	s.healthy()
}
