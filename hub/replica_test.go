package hub

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
)

// A snapshot, or all pages of a list, and a subscription from its position make live
// state without a gap: whoever does so at any moment of a busy room ends with exactly
// the server's state. Each trial is one client of one room.
func TestSnapshotThenSubscribe(t *testing.T) {
	const (
		rooms   = 50 // and as many writers
		clients = 40
		each    = 25 // rooms of a client, in each round
	)
	rounds := 10
	if raceEnabled || testing.Short() {
		rounds = 1
	}
	s := startServer(t, operateOptions(t), nil)
	db := s.databases.get("default")
	names := make([]string, rooms)
	for i := range names {
		names[i] = fmt.Sprint("game:", i)
	}
	all := make([]*replicas, clients)
	for i := range all {
		all[i] = newReplicas(s, t, []wire.Encoding{wire.JSON, wire.Protobuf}[i%2], uint64(i))
	}
	events := 0
	for round := range rounds {
		var writers, followers sync.WaitGroup
		var progress atomic.Int64 // operations that have ended
		begun := make(chan struct{})
		for i, room := range names {
			w := &roomWriter{db: db, room: room, round: round, random: rand.New(rand.NewPCG(uint64(round), uint64(i)))}
			writers.Go(func() { w.run(t, begun, &progress) })
		}
		for _, r := range all {
			followers.Go(func() { r.begin(names, each, &progress) })
		}
		followers.Wait()
		close(begun)
		writers.Wait()
		final := make(map[string]*resourcePage, rooms)
		for _, room := range names {
			page, p := db.snapshot(t.Context(), &caller{server: true}, room, 1<<20)
			if p != nil {
				t.Fatalf("%s: %+v", room, p)
			}
			final[room] = page
		}
		for _, r := range all {
			followers.Go(func() { r.finish(final) })
		}
		followers.Wait()
		if t.Failed() {
			return
		}
	}
	for _, r := range all {
		events += r.applied
	}
	trials := rounds * clients * each
	t.Logf("%d trials, %d events applied", trials, events)
	if events < trials { // each writer had one more to tell when all had begun
		t.Errorf("only %d events for %d trials", events, trials)
	}
}

// roomWriter changes the resources of a room at random.
type roomWriter struct {
	db     *database
	room   string
	round  int
	random *rand.Rand
}

// run writes until all copies have begun, and once more.
func (w *roomWriter) run(t *testing.T, begun <-chan struct{}, progress *atomic.Int64) {
	for n := 0; ; n++ {
		select {
		case <-begun:
			w.operate(t, n, fmt.Sprintf(`{"op":"set","key":"last","value":%d}`, n))
			return
		default:
			w.operate(t, n, w.steps())
			progress.Add(1)
		}
	}
}

func (w *roomWriter) steps() string {
	steps := make([]string, 1+w.random.IntN(4))
	for i := range steps {
		key := fmt.Sprint("k", w.random.IntN(8))
		guard := ""
		if w.random.IntN(8) == 0 {
			guard = fmt.Sprintf(`,"if_version":%d`, w.random.IntN(20))
		}
		what := fmt.Sprintf([]string{
			`"set","value":{"n":%d}`, `"create","value":{"n":%d}`, `"add","path":"/n","by":%d`, `"merge","value":{"m":%d}`,
		}[w.random.IntN(4)], w.random.IntN(100))
		if w.random.IntN(5) == 0 {
			what = `"delete"`
		}
		steps[i] = fmt.Sprintf(`{"key":%q,"op":%s%s}`, key, what, guard)
	}
	return strings.Join(steps, ",")
}

func (w *roomWriter) operate(t *testing.T, n int, steps string) {
	body := fmt.Sprintf(`{"id":"%d-%d","steps":[%s]}`, w.round, n, steps)
	done := make(chan *problem, 1)
	w.db.operate(&caller{server: true}, w.room, []byte(body), func(_ *operationReply, p *problem) { done <- p })
	if p := <-done; p != nil && p.Status != 404 && p.Status != 409 {
		t.Errorf("%s: %s: %+v", w.room, body, p)
	}
}

// replicas are a client's copies of rooms.
type replicas struct {
	*wsClient
	t       *testing.T
	random  *rand.Rand
	rooms   map[string]*replica
	applied int // events that the copies took
}

// replica is a copy of one room's resources, with the versions of deleted ones.
type replica struct {
	state  map[string]resource
	offset uint64
	paged  bool // begun with pages: events may tell what it has
}

func newReplicas(s *testServer, t *testing.T, enc wire.Encoding, seed uint64) *replicas {
	c := s.connect(t, enc, fmt.Sprint("u", seed))
	return &replicas{wsClient: c.wsClient, t: t, random: rand.New(rand.NewPCG(seed, 1)), rooms: make(map[string]*replica)}
}

// begin begins copies of some rooms, each some operations after the one before.
func (r *replicas) begin(names []string, count int, progress *atomic.Int64) {
	for _, n := range r.random.Perm(len(names))[:count] {
		for moment := progress.Load() + r.random.Int64N(30); progress.Load() < moment; {
			time.Sleep(50 * time.Microsecond)
		}
		if err := r.follow(names[n]); err != nil {
			r.t.Errorf("%s: %v", names[n], err)
			return
		}
	}
}

// follow begins one copy.
func (r *replicas) follow(room string) error {
	c := &replica{state: make(map[string]resource), paged: r.random.IntN(3) == 0}
	first, err := r.page(c, room, "")
	if err != nil {
		return err
	}
	for next := first.Next; next != ""; {
		page, err := r.page(c, room, next)
		if err != nil {
			return err
		}
		next = page.Next
	}
	c.offset = first.Offset
	r.rooms[room] = c
	sub := subscribeTo(room)
	sub.Subscribe.Recover, sub.Subscribe.Offset, sub.Subscribe.Epoch = true, first.Offset, first.Epoch
	reply, err := r.ask(sub)
	if err != nil {
		return err
	}
	if !reply.Subscribe.Recovered {
		return fmt.Errorf("the subscription from %d did not recover", first.Offset)
	}
	for _, p := range reply.Subscribe.Publications {
		if err := r.apply(room, p); err != nil {
			return err
		}
	}
	return nil
}

// page adds a page of a list, or a snapshot, to a copy.
func (r *replicas) page(c *replica, room, after string) (page resourcePage, err error) {
	cmd := rpcTo("snapshot", `{"room":"`+room+`"}`)
	if c.paged {
		cmd = rpcTo("list", fmt.Sprintf(`{"room":%q,"after":%q,"limit":%d}`, room, after, 1+r.random.IntN(3)))
	}
	reply, err := r.ask(cmd)
	if err == nil {
		err = json.Unmarshal(reply.Rpc.Data, &page)
	}
	for _, res := range page.Resources {
		c.state[res.Key] = res
	}
	return page, err
}

// ask sends a command and returns its reply; what comes meanwhile is applied.
func (r *replicas) ask(cmd *protocol.Command) (*protocol.Reply, error) {
	if err := r.send(cmd); err != nil {
		return nil, err
	}
	for {
		reply, err := r.take()
		switch {
		case err != nil:
			return nil, err
		case reply.Id != cmd.Id:
			continue
		case reply.Error != nil:
			return nil, fmt.Errorf("%v: error %v", cmd, reply.Error)
		}
		return reply, nil
	}
}

// take reads one reply or push and applies the publications in it.
func (r *replicas) take() (*protocol.Reply, error) {
	reply, err := r.read()
	if err != nil {
		return nil, err
	}
	if push := reply.Push; push != nil && push.Pub != nil {
		return reply, r.apply(push.Channel, push.Pub)
	}
	return reply, err
}

func (r *replicas) apply(room string, p *protocol.Publication) error {
	c := r.rooms[room]
	if c == nil {
		return nil // the last round's, on its way to the end
	}
	if p.Offset != c.offset+1 {
		return fmt.Errorf("%s: event %d after %d", room, p.Offset, c.offset)
	}
	c.offset = p.Offset
	r.applied++
	var e event
	if err := json.Unmarshal(p.Data, &e); err != nil {
		return err
	}
	for _, change := range e.Changes {
		switch have := c.state[change.Key]; {
		case change.Version > have.Version:
			c.state[change.Key] = change
		case !c.paged:
			return fmt.Errorf("%s: %s has version %d behind the snapshot's position, which has %d", room, change.Key, change.Version, have.Version)
		}
	}
	return nil
}

// finish takes what is left, compares each copy with the server's state, and ends it.
func (r *replicas) finish(final map[string]*resourcePage) {
	for room, c := range r.rooms {
		for c.offset < final[room].Offset {
			if _, err := r.take(); err != nil {
				r.t.Errorf("%s at %d, to %d: %v", room, c.offset, final[room].Offset, err)
				return
			}
		}
		maps.DeleteFunc(c.state, func(_ string, res resource) bool { return res.Deleted })
		want := make(map[string]resource)
		for _, res := range final[room].Resources {
			want[res.Key] = res
		}
		if c.offset != final[room].Offset || !reflect.DeepEqual(c.state, want) {
			r.t.Errorf("%s, paged %v, at %d:\n%v, want at %d\n%v", room, c.paged, c.offset, c.state, final[room].Offset, want)
		}
		if _, err := r.ask(unsubscribeFrom(room)); err != nil {
			r.t.Error(err)
		}
		delete(r.rooms, room)
	}
}
