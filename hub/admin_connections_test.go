package hub

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
)

// crowd makes connections without sockets on the loops of a server. It holds them
// until the end of the test.
type crowd struct {
	s *testServer

	mu   sync.Mutex
	here map[string]*conn // by client; guarded by mu
	made int              // guarded by mu
}

func newCrowd(t testing.TB, s *testServer) *crowd {
	c := &crowd{s: s, here: make(map[string]*conn)}
	t.Cleanup(func() { // before the server stops: nobody would answer its close frames
		for _, client := range c.clients() {
			c.leave(client)
		}
	})
	return c
}

// come adds n connections of a database, each of a user of its own, spread over the loops.
func (c *crowd) come(db *database, n int) {
	for _, l := range c.s.loops {
		onLoop(l, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			for range n / len(c.s.loops) {
				c.made++
				client := fmt.Sprint("client-", c.made)
				member := &conn{loop: l, db: db, state: stateConnected, index: int32(len(l.conns)),
					sock:    &tap{write: func(p []byte) (int, error) { return len(p), nil }},
					session: &session{credential: credential{user: fmt.Sprint("user-", c.made)}, client: client}}
				member.timer.conn = member
				l.conns = append(l.conns, member)
				l.stats.sockets.Add(1)
				l.addUser(member)
				c.here[client] = member
			}
		})
	}
}

func (c *crowd) leave(client string) {
	c.mu.Lock()
	member := c.here[client]
	delete(c.here, client)
	c.mu.Unlock()
	onLoop(member.loop, func() { member.loop.drop(member) })
}

func (c *crowd) clients() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.here))
}

// listed asks for all pages of connections and returns the clients in their order.
func (s *testServer) listed(t testing.TB, query string, limit int) (clients []string) {
	t.Helper()
	for after := ""; ; {
		page := s.asks(t, 200, "GET", fmt.Sprintf("connections?%s&limit=%d&after=%s", query, limit, after), "")
		rows := page["connections"].([]any)
		for _, row := range rows {
			clients = append(clients, row.(object)["client"].(string))
		}
		next, more := page["next"].(string)
		if len(rows) > limit {
			t.Fatalf("%s: a page of %d, want at most %d", query, len(rows), limit)
		}
		if !more {
			return clients
		}
		after = next
	}
}

// Paging through 5,000 connections to the end shows each once, in the order in which
// they connected, whoever comes and goes meanwhile.
func TestConnectionPages(t *testing.T) {
	s := adminServer(t)
	db := s.databases.get("default")
	c := newCrowd(t, s)
	c.come(db, 5000)
	stay := c.clients()
	var leave []string // they are between those who stay
	for i := 0; i < len(stay); i += 7 {
		leave = append(leave, stay[i])
	}
	stay = slices.DeleteFunc(stay, func(client string) bool { return slices.Contains(leave, client) })

	var changes sync.WaitGroup
	paging := make(chan struct{})
	changes.Go(func() {
		for _, client := range leave {
			select {
			case <-paging:
				return
			default:
				c.leave(client)
				c.come(db, 2)
			}
		}
	})
	for _, limit := range []int{1000, 100, 333} {
		clients := s.listed(t, "database=default", limit)
		seen := make(map[string]int, len(clients))
		last := uint64(0)
		for _, client := range clients {
			seen[client]++
			if seen[client] > 1 {
				t.Fatalf("limit %d: %s is listed twice", limit, client)
			}
		}
		for _, client := range stay {
			if seen[client] != 1 {
				t.Fatalf("limit %d: %s is not listed", limit, client)
			}
		}
		c.mu.Lock()
		for _, client := range clients {
			if member := c.here[client]; member != nil {
				if member.number <= last {
					t.Errorf("limit %d: %s has number %d after %d", limit, client, member.number, last)
				}
				last = member.number
			}
		}
		c.mu.Unlock()
	}
	close(paging)
	changes.Wait()
	if clients := s.listed(t, "", 1000); len(clients) != len(c.clients()) {
		t.Errorf("%d are listed in the end, want %d", len(clients), len(c.clients()))
	}
	page := s.asks(t, 200, "GET", "connections?limit=1", "")
	if page["total"] != float64(len(c.clients())) {
		t.Errorf("total %v, want %d", page["total"], len(c.clients()))
	}
}

// Connections are found by database, user and room.
func TestConnectionFilters(t *testing.T) {
	o := adminOptions(t)
	o.Database.Names = []string{"default", "other"}
	s := startServer(t, o, nil)
	connect := func(user, path string, rooms ...string) {
		conn, err := upgrade(s.dial(t), wire.JSON, path)
		if err != nil {
			t.Fatal(err)
		}
		c := &tester{conn, t}
		c.ok(connectWith(token(t, user)))
		for _, room := range rooms {
			c.ok(subscribeTo(room))
		}
	}
	const other = "/v1/other/websocket"
	connect("ann", defaultSocketPath, "open:a", "open:b")
	connect("ann", defaultSocketPath, "open:a")
	connect("ann", defaultSocketPath)
	connect("bob", defaultSocketPath, "open:a")
	connect("ann", other, "open:a")
	connect("a&b=c/ü", other)
	for _, c := range []struct {
		query string
		want  int
	}{
		{"", 6}, {"database=default", 4}, {"database=other", 2}, {"user=ann", 4}, {"user=ann&database=default", 3},
		{"user=nobody", 0}, {"user=" + url.QueryEscape("a&b=c/ü"), 1},
		{"database=default&room=open:a", 3}, {"database=default&room=open:b", 1}, {"database=default&room=open:c", 0},
		{"database=other&room=open:a", 1}, {"database=default&room=open:a&user=ann", 2}, {"database=other&room=open:a&user=bob", 0},
	} {
		for _, limit := range []int{1, 2, 100} {
			if got := s.listed(t, c.query, limit); len(got) != c.want {
				t.Errorf("%q by %d: %d connections, want %d", c.query, limit, len(got), c.want)
			}
		}
		if page := s.asks(t, 200, "GET", "connections?"+c.query, ""); page["total"] != float64(c.want) {
			t.Errorf("%q: total %v, want %d", c.query, page["total"], c.want)
		}
	}
	row := s.asks(t, 200, "GET", "connections?database=default&room=open:b", "")["connections"].([]any)[0].(object)
	for name, want := range map[string]any{"user": "ann", "database": "default", "address": "127.0.0.1", "encoding": "json", "subscriptions": 2., "unsent": 0.} {
		if row[name] != want {
			t.Errorf("%s is %v, want %v", name, row[name], want)
		}
	}
}

// A room's subscribers are shown by pages, each once, while others come and go.
func TestSubscriberPages(t *testing.T) {
	s := adminServer(t)
	db := s.databases.get("default")
	c := newCrowd(t, s)
	subscribe := func(client string) {
		member := c.here[client]
		onLoop(member.loop, func() {
			member.loop.subscribe(member, "live:a", &subscribing{made: byServer, budget: new(int),
				done: func(*loop, *protocol.SubscribeResult, [][]byte, *protocol.Error) {}})
		})
	}
	c.come(db, 3000)
	all := c.clients()
	for _, client := range all {
		subscribe(client)
	}
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := 0; i < 600; i++ {
			member := c.here[all[i*5]]
			onLoop(member.loop, func() {
				if sub := member.find("live:a"); sub != nil {
					member.loop.removeSub(sub)
				}
			})
			subscribe(all[i*5])
		}
	})
	clients := s.listed(t, "database=default&room=live:a", 500)
	changes.Wait()
	seen := make(map[string]bool)
	for _, client := range clients {
		if seen[client] {
			t.Errorf("%s is listed twice", client)
		}
		seen[client] = true
	}
	for i, client := range all {
		if i%5 != 0 && !seen[client] {
			t.Errorf("%s is not listed", client)
		}
	}
	if page := s.asks(t, 200, "GET", "connections?database=default&room=live:a&limit=1", ""); page["total"] != float64(len(all)) {
		t.Errorf("total %v, want %d", page["total"], len(all))
	}
}

// Looking at a hundred thousand connections keeps no loop from its other work for
// longer than a slice takes.
func BenchmarkConnectionPage(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := adminServer(b)
			newCrowd(b, s).come(s.databases.get("default"), n)
			b.ReportAllocs()
			for b.Loop() {
				if page := s.connections(&connectionQuery{limit: 100}); len(page.Connections) != 100 {
					b.Fatal(len(page.Connections))
				}
			}
		})
	}
}
