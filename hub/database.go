package hub

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
	"hub/store"
)

// database is a tenant: its store, its live rooms, its readers. Safe for
// concurrent use.
type database struct {
	// fixed after new
	server *Server
	name   string
	store  *store.DB
	// queries answers history requests and room positions, pages reads for those
	// who catch up.
	queries, pages workers

	stats       []databaseStats // by loop
	connections atomic.Int64
	ephemeral   atomic.Uint64 // publications in rooms without history
	operations  atomic.Uint64 // applied
	batches     window        // operations of a commit
	commits     window        // microseconds that they took

	mu    sync.RWMutex
	rooms map[string]*room // live ones; guarded by mu
}

// pageReaders bounds the readers that serve catching up, so that a stampede
// leaves some for everything else.
const pageReaders = 4

func newDatabase(s *Server, name string) *database {
	return &database{server: s, name: name, stats: make([]databaseStats, len(s.loops)), rooms: make(map[string]*room)}
}

func openDatabase(s *Server, name string) (*database, error) {
	db := newDatabase(s, name)
	o := &s.opts.Database
	db.queries.max = max(1, o.Readers)
	db.pages.max = max(1, min(pageReaders, o.Readers-1))
	db.queries.recovered, db.pages.recovered = s.panicked, s.panicked
	var err error
	db.store, err = store.Open(store.Options{
		Path:           databasePath(s.opts.Server.DataDir, name),
		Synchronous:    o.Synchronous,
		Readers:        o.Readers,
		Queue:          orOff(o.Queue, math.MaxInt),
		WriteTimeout:   orOff(o.WriteTimeout, math.MaxInt64),
		MaxRooms:       o.MaxRooms,
		IdempotencyTTL: o.IdempotencyTTL,
		Retention:      db.retention,
		Committed:      db.committed,
		Observe:        db.observeBatch,
		Logger:         s.log.With(slog.String("database", name)),
	})
	return db, err
}

// observeBatch takes in the size of a batch and how long its commit took.
func (db *database) observeBatch(batch int, commit time.Duration) {
	now := time.Since(db.server.start)
	db.server.metrics.observeBatch(batch, commit)
	db.batches.add(now, int64(batch))
	db.commits.addTime(now, commit)
}

// orOff is what stands for a limit that is off in the store, which takes 0 for
// "the default".
func orOff[T ~int | ~int64](limit, off T) T {
	if limit == 0 {
		return off
	}
	return limit
}

// retention tells the store what a room keeps.
func (db *database) retention(name string) store.Retention {
	ns, e := db.namespace(name)
	if e != nil { // no longer declared: keep what is there
		return store.Retention{Size: math.MaxInt64}
	}
	return store.Retention{Size: ns.HistorySize, TTL: ns.HistoryTTL}
}

// namespace returns the options of a room, or why the name is no room's.
func (db *database) namespace(name string) (*Namespace, *protocol.Error) {
	return db.server.policy.Load().namespace(name)
}

// namespace returns the options of a room, or why the name is no room's.
func (p *policy) namespace(name string) (*Namespace, *protocol.Error) {
	if err := ValidRoom(name); err != nil {
		return nil, badRequest(err.Error())
	}
	prefix, _, found := strings.Cut(name, ":")
	if !found {
		prefix = "default"
	}
	if ns := p.namespaces[prefix]; ns != nil {
		return ns, nil
	}
	if ns := p.namespaces[anyNamespace]; ns != nil && p.Development {
		return ns, nil
	}
	return nil, errUnknownChannel
}

// anyNamespace is the table that serves undeclared namespaces in development.
const anyNamespace = "*"

// committed hands what the store has committed to the live rooms, in order.
func (db *database) committed(events []store.Event) {
	if see := db.server.committing; see != nil {
		see(events)
	}
	for i := range events {
		db.committedOne(&events[i])
	}
}

// committedOne keeps a panic to its event, whose receivers then read it from the store.
func (db *database) committedOne(e *store.Event) {
	defer db.server.rescue()
	r := db.live(e.Room)
	switch {
	case r == nil:
	case e.Removed:
		r.removed(e)
	default:
		r.committed(e)
	}
}

// live returns a room if anybody is subscribed to it.
func (db *database) live(name string) *room {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.rooms[name]
}

// liveCount is the number of live rooms.
func (db *database) liveCount() int {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return len(db.rooms)
}

// roomSlice is the live rooms that are taken from the table in one go: some tens of
// microseconds, after which loops that want it get it.
const roomSlice = 1024

// liveRooms yields the live rooms in no order: each that lives all the while, and
// perhaps some that come or go meanwhile.
func (db *database) liveRooms() iter.Seq[*room] {
	return func(yield func(*room) bool) {
		taken := make([]*room, 0, min(roomSlice, db.liveCount()+1))
		pass := func() (more bool) {
			for _, r := range taken {
				if !yield(r) {
					return false
				}
			}
			taken = taken[:0]
			return true
		}
		db.mu.RLock()
		for _, r := range db.rooms { // which may change between two steps, as by a body
			if taken = append(taken, r); len(taken) == cap(taken) {
				db.mu.RUnlock()
				if !pass() {
					return
				}
				db.mu.RLock()
			}
		}
		db.mu.RUnlock()
		pass()
	}
}

// room returns a live room, bringing it to life if need be.
func (db *database) room(name string, ns *Namespace) *room {
	if r := db.live(name); r != nil {
		return r
	}
	db.mu.Lock()
	r := db.rooms[name]
	fresh := r == nil
	if fresh {
		if now, e := db.namespace(name); e == nil { // a reload may have passed
			ns = now
		}
		r = newRoom(db, name, ns)
		db.rooms[name] = r
	}
	db.mu.Unlock()
	if fresh && r.durable() {
		db.queries.do(func() { r.load() })
	}
	return r
}

// adoptNamespaces gives the live rooms the options of now. Those whose namespace is
// declared no more keep theirs; they end when their subscriptions are checked.
func (db *database) adoptNamespaces() {
	db.mu.Lock()
	defer db.mu.Unlock()
	for name, r := range db.rooms {
		if ns, e := db.namespace(name); e == nil {
			r.options.Store(ns)
		}
	}
}

// load has the store tell where the room stands.
func (r *room) load() {
	var p store.Position
	err := errPanicked
	defer func() { r.loaded(p, err) }()
	if p, err = r.db.store.Position(r.db.server.context, r.name); err != nil {
		r.db.readFailed(r.db.server.context, "position", err)
	}
}

// errPanicked stands for an outcome that a panic prevented.
var errPanicked = errors.New("panicked")

// reap ends a room that nobody is subscribed to any more.
func (db *database) reap(r *room) {
	db.mu.Lock()
	defer db.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users == 0 && r.state != roomDead {
		r.state = roomDead
		if db.rooms[r.name] == r {
			delete(db.rooms, r.name)
		}
	}
}

// forget takes a dead room out of the table.
func (db *database) forget(r *room) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.rooms[r.name] == r {
		delete(db.rooms, r.name)
	}
}

// requestPage has the publications after cursor read into the room's feeds, one
// reading at a time; the loops are told when it is there.
func (r *room) requestPage(cursor uint64) {
	r.mu.Lock()
	begin := !r.reading
	r.reading = true
	r.mu.Unlock()
	if begin {
		r.db.pages.do(func() { r.readPage(cursor) })
	}
}

func (r *room) readPage(cursor uint64) {
	err := errPanicked
	var page store.Page
	var pages [wire.Encodings]*segment
	defer func() { r.pageRead(page, pages, err) }()
	sizes := &r.db.server.sizes
	page, err = r.db.store.Page(r.db.server.context, r.name, cursor, sizes.pageEvents, sizes.pageBytes)
	if err != nil {
		r.db.readFailed(r.db.server.context, "page", err)
		return
	}
	r.db.server.metrics.pages.Inc()
	// What the log does not know yet is not handed out: the room would deny a
	// position that a client has.
	for head := r.head.Load(); len(page.Events) > 0 && page.Events[len(page.Events)-1].Offset > head; {
		page.Events = page.Events[:len(page.Events)-1]
	}
	for enc, used := range r.encodings() {
		if used && len(page.Events) > 0 {
			pages[enc] = r.frame(wire.Encoding(enc), page.Events)
		}
	}
}

// encodings says which encodings are in use.
func (r *room) encodings() (used [wire.Encodings]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for enc, f := range r.feeds {
		used[enc] = f != nil
	}
	return used
}

// frame makes a page of publications.
func (r *room) frame(enc wire.Encoding, events []store.Publication) *segment {
	size := 0
	for i := range events {
		size += carried(&events[i]) + len(r.name)
	}
	seg := newSegment(nil, events[0].Offset, size, len(events))
	var scratch []byte
	for i := range events {
		frame, pub := r.encode(enc, &scratch, wirePublication(&events[i]))
		seg.add(frame, pub, events[i].Time)
	}
	return seg
}

// pageRead keeps what was read and tells the loops. A removal meanwhile makes it
// worthless.
func (r *room) pageRead(page store.Page, pages [wire.Encodings]*segment, err error) {
	r.mu.Lock()
	r.reading = false
	if err == nil && page.Pruned {
		floor := page.Top.Offset
		if len(page.Events) > 0 {
			floor = page.Events[0].Offset - 1
		}
		r.floor.Store(max(r.floor.Load(), floor))
	}
	var kept []*segment
	for enc, f := range r.feeds {
		if seg := pages[enc]; seg != nil && f != nil && page.Top.Epoch == r.epoch {
			seg.feed = f
			f.addPage(seg)
			kept = append(kept, seg)
		}
	}
	victims := r.db.server.memory.add(kept...)
	r.mu.Unlock()
	dropAll(victims)
	for i := range r.shards {
		sh := &r.shards[i]
		sh.loop.post(func() { sh.loop.catchUp(sh, err != nil) })
	}
}

// readFailed logs a read that failed for another reason than that nobody waits for it
// any more.
func (db *database) readFailed(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		db.server.log.Error("read failed", slog.String("database", db.name), slog.String("what", what), slog.Any("error", err))
	}
}

// publish stores or passes on a publication. done is called once, on any
// goroutine, after the commit.
func (db *database) publish(ns *Namespace, p store.Publish, done func(store.Result, error)) {
	if ns.Durable {
		db.store.Publish(p, done)
		return
	}
	if r := db.live(p.Room); r != nil {
		p.Publication.Time = time.Now().UnixMilli()
		r.publish(&p.Publication)
	}
	db.ephemeral.Add(1)
	done(store.Result{}, nil)
}

// checkData makes data what may be published: one JSON value without newlines,
// no larger than the namespace allows.
func checkData(ns *Namespace, data []byte) ([]byte, *protocol.Error) {
	switch {
	case len(data) > ns.MaxMessage:
		return nil, errLimitExceeded
	case !wire.ValidJSON(data):
		return nil, badRequest("data must be one valid JSON value, no name twice in an object")
	}
	return wire.StripNewlines(data), nil
}

// close finishes the writes and closes the file.
func (db *database) close(ctx context.Context) error {
	return db.store.Close(ctx)
}

// workers run functions on at most max goroutines, which end when there is
// nothing to do. What waits is bounded by those who wait for it: a connection
// has one request under way, a room one reading.
type workers struct {
	max       int       // fixed before use
	recovered func(any) // called with a panic of a function; fixed before use
	group     sync.WaitGroup

	mu      sync.Mutex
	queue   []func() // guarded by mu
	running int      // guarded by mu
}

// do runs f soon. It never blocks.
func (w *workers) do(f func()) {
	w.mu.Lock()
	w.queue = append(w.queue, f)
	start := w.running < w.max
	if start {
		w.running++
	}
	w.mu.Unlock()
	if start {
		w.group.Go(w.run)
	}
}

func (w *workers) run() {
	for {
		w.mu.Lock()
		if len(w.queue) == 0 {
			w.running--
			w.mu.Unlock()
			return
		}
		f := w.queue[0]
		w.queue[0] = nil
		w.queue = w.queue[1:]
		w.mu.Unlock()
		w.call(f)
	}
}

func (w *workers) call(f func()) {
	defer func() {
		if p := recover(); p != nil {
			w.recovered(p)
		}
	}()
	f()
}

// wait returns once nothing runs any more; nobody may call do meanwhile.
func (w *workers) wait() { w.group.Wait() }
