package hub

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
)

// Everything that can end a connection or a subscription, at the same moments
// and while publications go on: kicks, unsubscribes, removals of history,
// hang-ups, slow readers, and at last the end of the server. Run with -race.
func TestEndsOfAllKindsAtOnce(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		for range 2 {
			endAtOnce(t, backend)
		}
	})
}

func endAtOnce(t *testing.T, backend string) {
	o := testOptions(t)
	o.Server.Backend = backend
	o.Limits.Unsent = 64 << 10 // slow readers lose their place soon
	o.Server.DrainWindow = 50 * time.Millisecond
	o.Namespaces["live"] = crowded(o.Namespaces["live"])
	o.Namespaces["open"] = crowded(o.Namespaces["open"])
	s := startServer(t, o, nil)
	stop := make(chan struct{})
	var group sync.WaitGroup
	forever := func(n int, f func(i int, random *rand.Rand)) {
		for i := range n {
			group.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 41))
				for {
					select {
					case <-stop:
						return
					default:
						f(i, random)
					}
				}
			})
		}
	}
	var connected, refused atomic.Int64
	rooms := []string{"open:a", "open:b", "live:a", "live:b"}
	forever(16, func(i int, random *rand.Rand) {
		if s.comeAndGo(t, fmt.Sprint("u", i%6), wire.Encoding(i%2), rooms, random) {
			connected.Add(1)
		} else {
			refused.Add(1)
		}
	})
	calls := []string{
		`disconnect {"user":%q}`,
		`unsubscribe {"user":%q,"channel":"open:a"}`,
		`unsubscribe {"user":%q,"channel":"live:a"}`,
		`subscribe {"user":%q,"channel":"live:b"}`,
		`refresh {"user":%q,"expired":true}`,
	}
	forever(4, func(_ int, random *rand.Rand) {
		method, body, _ := strings.Cut(calls[random.IntN(len(calls))], " ")
		s.callAnyhow(method, fmt.Sprintf(body, fmt.Sprint("u", random.IntN(6))))
	})
	forever(2, func(_ int, random *rand.Rand) {
		s.callAnyhow("broadcast", `{"channels":["open:a","open:b","live:a","live:b"],"data":"`+strings.Repeat("x", 30_000)+`"}`)
		if random.IntN(20) == 0 {
			s.callAnyhow("history_remove", `{"channel":"open:a"}`)
		}
	})
	until(t, "enough has happened", func() bool {
		return connected.Load() > 60 && s.counted(t, "hub_slow_disconnects_total") > 1
	})
	s.stop() // in the middle of it all
	close(stop)
	group.Wait()
	if n, _ := s.slots.Counts(); n != 0 {
		t.Errorf("%d slots are taken", n)
	}
	if n := s.counted(t, "hub_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
	db := s.databases.get("default")
	if n, rooms := db.connections.Load(), db.liveCount(); n != 0 || rooms != 0 {
		t.Errorf("%d connections and %d live rooms are left", n, rooms)
	}
	for _, l := range s.loops {
		if len(l.users) != 0 || len(l.conns) != 0 || db.stats[l.index].subscriptions.Load() != 0 || l.stats.sockets.Load() != 0 {
			t.Errorf("loop %d: %d users, %d connections, %d subscriptions, %d sockets", l.index, len(l.users), len(l.conns),
				db.stats[l.index].subscriptions.Load(), l.stats.sockets.Load())
		}
	}
	if n := s.memory.bytes(); n != 0 {
		t.Errorf("the logs of ended rooms hold %d bytes", n)
	}
}

func crowded(ns Namespace) Namespace {
	ns.JoinLeave = true
	return ns
}

// comeAndGo is one connection that does a few things and leaves in some way,
// whatever the server does to it meanwhile. It reports whether it got in.
func (s *testServer) comeAndGo(t *testing.T, user string, enc wire.Encoding, rooms []string, random *rand.Rand) bool {
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		return false
	}
	defer conn.Close()
	way := random.IntN(4)
	if way == 1 {
		user = "slow" // whom nobody kicks
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	}
	c, err := upgrade(conn, enc, defaultSocketPath)
	if err != nil {
		return false
	}
	cmds := []*protocol.Command{connectWith(token(t, user))}
	for _, i := range random.Perm(len(rooms))[:1+random.IntN(3)] {
		cmds = append(cmds, subscribeTo(rooms[i]), publishTo(rooms[i], `1`))
	}
	if c.send(cmds...) != nil {
		return false
	}
	switch way {
	case 0: // reads until the server ends it
		c.wait = 200 * time.Millisecond
		_ = c.end()
	case 1: // reads nothing
		time.Sleep(time.Duration(100+random.IntN(200)) * time.Millisecond)
	case 2: // leaves at once
	case 3: // reads and acts
		c.wait = 100 * time.Millisecond
		for range 20 {
			if _, err := c.read(); err != nil || c.send(unsubscribeFrom(rooms[0]), subscribeTo(rooms[0])) != nil {
				break
			}
		}
	}
	return true
}

// callAnyhow calls the server API and does not mind that the server is going.
func (s *testServer) callAnyhow(method, body string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.Addr()+"/api/"+method, strings.NewReader(body))
	req.Header.Set("X-API-Key", testAPIKey)
	req.Close = true
	if res, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// counted is the value of a counter or gauge, summed over its labels.
func (s *testServer) counted(t testing.TB, name string) (sum float64) {
	t.Helper()
	families, err := s.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
