package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

// collector gathers the publications of one subscription.
type collector struct {
	mu  sync.Mutex
	got []receipt // guarded by mu
}

// collect subscribes with centrifuge-go and gathers everything.
func (g *goClient) collect(room string, c centrifuge.SubscriptionConfig) (*collector, *goSub) {
	g.t.Helper()
	all := &collector{}
	s := g.newSub(room, c)
	s.OnPublication(func(e centrifuge.PublicationEvent) {
		all.mu.Lock()
		defer all.mu.Unlock()
		all.got = append(all.got, receipt{e.Offset, e.Data})
	})
	s.begin()
	return all, s
}

func (c *collector) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got)
}

// await waits until n publications have come and returns them.
func (c *collector) await(t *testing.T, n int, within time.Duration) []receipt {
	t.Helper()
	eventually(t, within, func() string {
		if have := c.len(); have < n {
			return fmt.Sprintf("%d of %d publications have arrived", have, n)
		}
		return ""
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got
}

// contiguous fails unless the offsets are first, first+1...
func contiguous(t *testing.T, who string, first uint64, got []receipt) {
	t.Helper()
	for i, r := range got {
		if want := first + uint64(i); r.Offset != want {
			t.Fatalf("%s: publication %d has offset %d, want %d", who, i, r.Offset, want)
		}
	}
}

// TestOneOrder: a hundred publishers to one room, all subscribed to it, see one
// order, that of the offsets, which keeps each publisher's own.
func TestOneOrder(t *testing.T) {
	s := startSDKServer(t)
	const publishers, each = 100, 20
	const room = "room:order"
	clients := make([]*goClient, publishers)
	all := make([]*collector, publishers)
	for i := range clients {
		clients[i] = connectedClient(t, []string{"json", "protobuf"}[i%2], s.url(""), s.token(fmt.Sprint("u", i)))
		all[i], _ = clients[i].collect(room, centrifuge.SubscriptionConfig{})
	}
	var work sync.WaitGroup
	for i, g := range clients {
		work.Go(func() {
			for n := range each {
				data, _ := json.Marshal(mark{fmt.Sprint("u", i), n})
				if _, err := g.Publish(timeout(t), room, data); err != nil {
					t.Errorf("publish: %v", err)
				}
			}
		})
	}
	work.Wait()
	first := all[0].await(t, publishers*each, patience)
	contiguous(t, "u0", 1, first)
	next := make(map[string]int)
	for _, r := range first {
		var m mark
		if err := json.Unmarshal(r.Data, &m); err != nil || m.N != next[m.By] {
			t.Fatalf("%s of %s comes where %d was to (%v)", r.Data, m.By, next[m.By], err)
		}
		next[m.By]++
	}
	for i, c := range all[1:] {
		got := c.await(t, len(first), patience)
		if len(got) != len(first) {
			t.Errorf("client %d received %d publications, want %d", i+1, len(got), len(first))
		}
		for k := range got {
			if got[k].Offset != first[k].Offset || !bytes.Equal(got[k].Data, first[k].Data) {
				t.Fatalf("client %d: publication %d is %s at %d, others have %s at %d",
					i+1, k, got[k].Data, got[k].Offset, first[k].Data, first[k].Offset)
			}
		}
	}
	s.healthy()
}

// TestManyRooms: a client in a hundred rooms gets each room's publications, all
// of them, in order and in no other room.
func TestManyRooms(t *testing.T) {
	s := startSDKServer(t)
	const rooms, each, publishers = 100, 20, 10
	forProtocols(t, func(t *testing.T, protocol string) {
		g := connectedClient(t, protocol, s.url(""), s.token("u"))
		name := func(i int) string { return fmt.Sprintf("room:many-%s-%d", protocol, i) }
		all := make([]*collector, rooms)
		for i := range all {
			all[i], _ = g.collect(name(i), centrifuge.SubscriptionConfig{})
		}
		var work sync.WaitGroup
		for p := range publishers {
			work.Go(func() { // each has ten rooms and takes turns among them
				for n := range each {
					for i := p; i < rooms; i += publishers {
						if _, err := s.publish("", name(i), mark{name(i), n}); err != nil {
							t.Errorf("publish: %v", err)
						}
					}
				}
			})
		}
		work.Wait()
		for i, c := range all {
			got := c.await(t, each, patience)
			contiguous(t, name(i), 1, got)
			for n, r := range got {
				var m mark
				if err := json.Unmarshal(r.Data, &m); err != nil || m != (mark{name(i), n}) {
					t.Errorf("%s: got %s, want number %d", name(i), r.Data, n)
				}
			}
		}
	})
	s.healthy()
}

// TestLongCatchUp: clients that are 50,000 publications of 1 KiB behind get all
// of them in order while others go on publishing, and the server reads them page
// by page: its memory does not grow with what they lack.
func TestLongCatchUp(t *testing.T) {
	s := startSDKServer(t)
	const room = "room:catchup"
	behind := 50_000
	if raceDetector {
		behind = 10_000 // storing them takes a minute otherwise
	}
	padded := func(n uint64) string { return fmt.Sprintf(`{"n":%d,"padding":"%01000d"}`, n, n) }
	publish := func(first uint64, n int) {
		t.Helper()
		commands := make([]object, n)
		for i := range commands {
			commands[i] = object{"publish": object{"channel": room, "data": json.RawMessage(padded(first + uint64(i)))}}
		}
		if err := s.batch(commands); err != nil {
			t.Fatal(err)
		}
	}
	protocols := []string{"json", "protobuf"}
	clients := make([]*goClient, len(protocols))
	subs := make([]*goSub, len(protocols))
	all := make([]*collector, len(protocols))
	for i, protocol := range protocols {
		clients[i] = connectedClient(t, protocol, s.url(""), s.token("u"))
		all[i], subs[i] = clients[i].collect(room, centrifuge.SubscriptionConfig{Recoverable: true})
	}
	publish(1, 1)
	for i, g := range clients {
		all[i].await(t, 1, patience)
		if err := g.Disconnect(); err != nil {
			t.Fatal(err)
		}
		receive(t, g.disconnected, "disconnect")
	}
	for n := 0; n < behind; n += 1000 {
		publish(uint64(2+n), 1000)
	}
	s.stop() // so that its memory is not what publishing took
	s.start()
	before := rss(t, s)

	start := time.Now()
	for i, g := range clients {
		g.connect()
		if e := receive(t, subs[i].subscribed, "subscription"); !e.WasRecovering || !e.Recovered {
			t.Errorf("subscribed again with %+v", e)
		}
	}
	peak, last := before, uint64(1+behind)
	for all[0].len() < 1+behind || all[1].len() < 1+behind {
		if time.Since(start) > 3*patience {
			t.Fatalf("%d and %d of %d publications have arrived", all[0].len(), all[1].len(), 1+behind)
		}
		publish(last+1, 1)
		last++
		peak = max(peak, rss(t, s))
	}
	took := time.Since(start)
	for i, c := range all {
		got := c.await(t, int(last), patience)
		contiguous(t, protocols[i], 1, got)
		for _, r := range got {
			if want := padded(r.Offset); string(r.Data) != want {
				t.Fatalf("%s: got %.40s, want %.40s", protocols[i], r.Data, want)
			}
		}
	}
	t.Logf("%d publications in %v, %d more meanwhile; memory %d MiB before, %d at most",
		behind, took, int(last)-1-behind, before>>20, peak>>20)
	if grown := peak - before; grown > catchUpMemory {
		t.Errorf("the server's memory grew by %d MiB, at most %d MiB allowed", grown>>20, catchUpMemory>>20)
	}
	s.healthy()
}

// catchUpMemory bounds the growth: 40 MiB were measured on a quiet machine and 85
// on a busy one, where the collector is late; with the whole history in one page
// it was 840.
const catchUpMemory = 200 << 20

// rss is the resident memory of the server, in bytes; 0 where it cannot be told.
func rss(t *testing.T, s *sdkServer) int64 {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
