package hub

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"hub/hub/poll/polltest"
	"hub/hub/wire"
	"hub/store"
)

// The model of the hand-over from commit to log to page to live: clients that
// come and go at random positions, on a network that fails, from a server whose
// logs, pages and histories are tiny. Every client checks that it gets each
// publication of its rooms once and in order, and at the end all of them.
//
// HUB_MODEL_SEED runs one seed, HUB_MODEL_SECONDS runs seeds for so long.
func TestHandover(t *testing.T) {
	if s := os.Getenv("HUB_MODEL_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		handover(t, seed)
		return
	}
	budget := 5 * time.Second
	if s, err := strconv.Atoi(os.Getenv("HUB_MODEL_SECONDS")); err == nil {
		budget = time.Duration(s) * time.Second
	}
	base := uint64(time.Now().UnixNano())
	for i, end := uint64(0), time.Now().Add(budget); time.Now().Before(end) && !t.Failed(); i++ {
		t.Run(fmt.Sprintf("seed=%d", base+i), func(t *testing.T) { handover(t, base+i) })
	}
}

// world is one run of the model.
type world struct {
	t        *testing.T
	server   *testServer
	listener *polltest.Listener
	ledger   *ledger
	durable  []string
	live     string
	mu       sync.Mutex
	last     int // number of the last message to the room without history; guarded by mu
	clients  []*modelClient
	finish   chan struct{} // closed when all is checked
	failed   chan struct{}
	once     sync.Once
}

// fail reports the first failure and ends the run.
func (w *world) fail(format string, args ...any) {
	w.once.Do(func() {
		w.t.Errorf(format, args...)
		close(w.failed)
	})
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func handover(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	faults := polltest.Faults{
		Window:     pick(random, 700, 4<<10, 64<<10),
		ShortWrite: pick(random, 0, 0.1, 0.5),
		ShortRead:  pick(random, 0, 0.3),
		Again:      pick(random, 0, 0.02, 0.2),
		Fail:       pick(random, 0, 0, 0.001),
	}
	o := testOptions(t)
	o.Database.Readers = pick(random, 2, 4)
	small, middle := openNamespace(), openNamespace()
	small.HistorySize, middle.HistorySize = pick(random, uint64(1), 5, 20), 60
	memory, sizes := pick(random, int64(300), 60_000, 1<<20), pick(random, 1, 200, 2<<10)
	keep := pick(random, int64(1), 1_000, 10_000)
	// Joins that do not fit the log make everybody subscribe again, and join.
	middle.JoinLeave = true
	o.Namespaces["small"], o.Namespaces["middle"] = small, middle
	w := &world{
		t: t, live: "live:cursor", failed: make(chan struct{}), finish: make(chan struct{}),
		durable: []string{"open:a", "small:b", "middle:c"},
		ledger: newLedger(rand.New(rand.NewPCG(seed, 2)), random.IntN(2) == 0,
			map[string]uint64{"open:a": 10_000, "small:b": small.HistorySize, "middle:c": 60}),
	}
	network := polltest.New(seed, faults)
	w.listener = network.NewListener()
	pageEvents, pageBytes := pick(random, 1, 3, 50), pick(random, 1, 500, 50_000)
	t.Logf("faults %+v, histories %d, memory %d, segments %d, keep %d, pages of %d events and %d bytes, stall %v",
		faults, small.HistorySize, memory, sizes, keep, pageEvents, pageBytes, w.ledger.stall)
	w.server = startServer(t, o, func(s *Server) {
		s.backend, s.listener = network, w.listener
		s.poison = true
		s.memory = newLogMemory(memory)
		s.sizes.min, s.sizes.max = sizes, 2*sizes
		s.sizes.keepDurable, s.sizes.keepEphemeral = keep, 4<<10
		s.sizes.pageEvents, s.sizes.pageBytes = pageEvents, pageBytes
		s.committing = w.ledger.committing
	})
	for _, room := range w.durable { // from here on their epochs are known
		w.publish(room, 0)
	}
	until(t, "the rooms have begun", func() bool {
		for _, room := range w.durable {
			if top, _ := w.ledger.rooms[room].now(); top == 0 {
				return false
			}
		}
		return true
	})

	stop := make(chan struct{})
	var publishers, clients sync.WaitGroup
	for i := range 2 {
		publishers.Go(func() { w.publishAll(rand.New(rand.NewPCG(seed, 10+uint64(i))), i, stop) })
	}
	for i := range 10 {
		c := newModelClient(w, i, rand.New(rand.NewPCG(seed, 100+uint64(i))), wire.Encoding(i%2))
		w.clients = append(w.clients, c)
		clients.Go(func() { c.run(stop) })
	}
	select {
	case <-time.After(700 * time.Millisecond):
	case <-w.failed:
	}
	close(stop)
	publishers.Wait()
	w.pulses(random)
	close(w.finish)
	clients.Wait()
	w.server.stop()
	if n := network.Open(); n != 0 && !t.Failed() {
		t.Errorf("%d sockets are open after the server's end", n)
	}
	if n := w.server.memory.bytes(); n != 0 && !t.Failed() {
		t.Errorf("%d bytes of logs are accounted for after the server's end", n)
	}
}

// pulses waits until every client has caught up, and again after each of a few
// bursts: an event that nobody is told of shows when no other follows.
func (w *world) pulses(random *rand.Rand) {
	for round := 0; round <= 15 && !w.t.Failed(); round++ {
		var acked sync.WaitGroup
		for range round % 4 {
			acked.Add(1)
			w.publishThen(pick(random, w.durable...), 7, acked.Done)
			time.Sleep(time.Duration(random.IntN(300)) * time.Microsecond)
		}
		acked.Wait()
		for deadline := time.Now().Add(patience); !w.settled(); time.Sleep(100 * time.Microsecond) {
			if w.t.Failed() {
				return
			}
			if time.Now().After(deadline) {
				for _, c := range w.clients {
					c.lost.Store(true)
				}
			}
		}
	}
}

// settled says whether every client is at the end of every room.
func (w *world) settled() bool {
	end := int64(0)
	for _, room := range w.durable {
		top, _ := w.ledger.rooms[room].now()
		end += int64(top)
	}
	for _, c := range w.clients {
		if c.settled.Load() != end {
			return false
		}
	}
	return true
}

// message is what is published: where it belongs and which one it is.
type message struct {
	Room string `json:"room"`
	N    int    `json:"n"`
	Pad  string `json:"pad,omitempty"`
}

const padding = "................................................................................................................"

func encodeMessage(room string, n, pad int) []byte {
	data, err := json.Marshal(message{room, n, padding[:pad]})
	if err != nil {
		panic(err)
	}
	return data
}

// publish submits one publication to a durable room.
func (w *world) publish(room string, n int) { w.publishThen(room, n, func() {}) }

// publishThen calls then after the acknowledgement.
func (w *world) publishThen(room string, n int, then func()) {
	w.ledger.rooms[room].asked.Add(1)
	db := w.server.databases.get("default")
	ns, _ := db.namespace(room)
	db.publish(ns, store.Publish{Room: room, Publication: store.Publication{Data: encodeMessage(room, n, n%len(padding))}},
		func(res store.Result, err error) {
			if err != nil {
				w.fail("publish: %v", err)
			}
			w.ledger.rooms[room].acknowledged(res.Offset)
			then()
		})
}

// publishLive sends to the room without history; callers take turns, so that
// numbers rise in the order of delivery.
func (w *world) publishLive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	db := w.server.databases.get("default")
	ns, _ := db.namespace(w.live)
	w.last++
	db.publish(ns, store.Publish{Room: w.live, Publication: store.Publication{Data: encodeMessage(w.live, w.last, 0)}},
		func(store.Result, error) {})
}

// publishAll publishes bursts to all rooms, and removes a history now and then.
func (w *world) publishAll(random *rand.Rand, index int, stop <-chan struct{}) {
	for n := 1; ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(random.IntN(4000)) * time.Microsecond):
		}
		for range 1 + random.IntN(8) {
			w.publish(pick(random, w.durable...), 2*n+index)
			if random.IntN(3) == 0 {
				w.publishLive()
			}
		}
		if random.IntN(60) == 0 {
			room := pick(random, w.durable...)
			w.ledger.rooms[room].removals.Add(1)
			w.server.databases.get("default").store.RemoveHistory(room, func(_ store.Result, err error) {
				if err != nil {
					w.fail("remove history: %v", err)
				}
				w.ledger.rooms[room].removed.Add(1)
			})
		}
	}
}
