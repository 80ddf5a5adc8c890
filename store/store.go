package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// What callers of the store branch on.
var (
	// ErrQueueFull: too much is waiting; nothing was queued.
	ErrQueueFull = errors.New("store: write queue full")
	// ErrWriteTimeout: it waited longer than Options.WriteTimeout and was never applied.
	ErrWriteTimeout = errors.New("store: write timeout")
	// ErrIDReused: the idempotency id belongs to other content.
	ErrIDReused = errors.New("store: idempotency id reused with other content")
	// ErrRoomLimit: a new room would exceed Options.MaxRooms.
	ErrRoomLimit = errors.New("store: too many rooms")
	// ErrClosed: the database is closed or closing; nothing was applied.
	ErrClosed = errors.New("store: closed")
	// ErrUnavailable wraps what kept the database from writing or reading (disk
	// full, I/O). A write that gets it is not stored.
	ErrUnavailable = errors.New("store: unavailable")
	// ErrUnknownOutcome: the disk failed during COMMIT and again until Close gave up,
	// so the write may be stored or not. It is no ErrUnavailable. A repeat with the
	// same idempotency id is safe.
	ErrUnknownOutcome = errors.New("store: outcome unknown")
)

// Options is what [Open] needs to know. Zero values get the defaults of DESIGN.md.
type Options struct {
	// Path is the database file, {data_dir}/{database}.db. Only one DB at a time
	// may have it open: see [LockDir] for other processes.
	Path string
	// Synchronous is "normal" (a commit survives a killed process; the default)
	// or "full" (it survives a power cut too).
	Synchronous string
	// Readers is the number of read connections; default 8.
	Readers int
	// Queue is the number of writes that may wait; default 10,000. Their bytes
	// are bounded too, by 64 MiB.
	Queue int
	// WriteTimeout is how long a write may wait for its turn; default 4 s. Once
	// a batch has begun, the caller is told its outcome, however long it takes.
	WriteTimeout time.Duration
	// MaxRooms bounds the rooms ever published to; 0 = no bound.
	MaxRooms int
	// IdempotencyTTL is how long an id is remembered; default 7 days.
	IdempotencyTTL time.Duration
	// Retention returns what a room keeps. It may change its mind at any time
	// and is called from the writer and from any reader; nil keeps everything.
	Retention func(room string) Retention
	// Committed gets the events of each successful COMMIT, in commit order, from
	// the writer goroutine, before the callers get their acknowledgements: a
	// publisher that is told of its own event finds it in the room's log. It
	// must not block. The slice and all that it holds are immutable and may be kept.
	Committed func([]Event)
	// Observe, if set, is told the number of operations of each batch and the
	// time from BEGIN to the end of COMMIT. It must not block.
	Observe func(batch int, commit time.Duration)
	// Logger defaults to slog.Default().
	Logger *slog.Logger

	// BootID identifies the boot of the machine; default
	// /proc/sys/kernel/random/boot_id. Empty (other systems) counts as another boot.
	BootID string
	// Now is the clock of publications, retention and idempotency; default time.Now.
	Now func() time.Time

	// For tests; fixed after Open.
	fault       func(stage string) error // fails a statement of the writer before it runs
	maxPages    func() int64             // max_page_count of the writer's next connection
	maintenance time.Duration            // time between two maintenance steps
}

// Retention is what a room keeps of its history. It holds at once in every read.
type Retention struct {
	// Size is the number of publications; 0 retains none, though offsets go on.
	Size uint64
	// TTL is their age; 0 = for ever.
	TTL time.Duration
}

// Publication is one event of a room as it is stored.
type Publication struct {
	// Offset starts at 1, is contiguous in its room and never used again.
	Offset uint64
	// Time is in Unix milliseconds and never decreases within a room.
	Time int64
	Data []byte
	// User and Client name the publisher, ConnInfo and ChanInfo describe it.
	User, Client       string
	ConnInfo, ChanInfo []byte
	Tags               map[string]string
}

// bytes is the size of what a publication carries.
func (p *Publication) bytes() int {
	n := len(p.Data) + len(p.User) + len(p.Client) + len(p.ConnInfo) + len(p.ChanInfo)
	for k, v := range p.Tags {
		n += len(k) + len(v)
	}
	return n
}

// Event is one committed change of a room.
type Event struct {
	Room  string
	Epoch string
	// Removed: the history was removed. Epoch is that of the new incarnation and
	// Publication.Offset its top; the publication holds nothing else.
	Removed     bool
	Publication Publication
}

// Publish asks for one publication.
type Publish struct {
	Room string
	// Publication is what to store; the writer sets its offset and time. What it
	// refers to must not be changed any more.
	Publication Publication
	// ID makes repeats harmless: the same ID of the same Caller in the same room,
	// with the same data, gives the first one's result. Empty = none.
	Caller, ID string
}

// Result is the outcome of a write.
type Result struct {
	Offset uint64
	Epoch  string
	// Replayed: an earlier write with this id has this result; nothing was published.
	Replayed bool
}

// Position is a place in a room's stream.
type Position struct {
	Offset uint64
	Epoch  string
}

// Stats is what a database looks like now.
type Stats struct {
	Queue      int           // writes waiting
	QueueBytes int           // bytes waiting
	QueueWait  time.Duration // how long the oldest of them has waited
	WAL        int64         // size of the write-ahead log, in bytes
	Rooms      int64         // rooms ever published to
	Readers    int           // readers in use
	Commits    uint64        // batches committed
	Failed     uint64        // batches abandoned
	Published  uint64        // publications committed
}

// DB is one open database. It is safe for concurrent use.
type DB struct {
	// fixed after Open
	options Options
	epoch   string
	queue   *queue
	writer  *writer
	readers *readers
	ended   chan struct{} // closed when the writer goroutine has ended
	// owned by the writer goroutine until ended is closed
	finished error // how it ended

	backingUp sync.Mutex // held by the backup under way

	closing atomic.Bool
	closed  sync.Once
	err     error // of Close
}

// Open opens or creates the database file of one tenant, migrates it, settles its
// epoch and starts the writer. A foreign file, and one of a newer version, is
// refused without writing: [ErrForeign], [ErrNewer].
func Open(o Options) (*DB, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", o.Path, err)
	}
	if warning := CheckFilesystem(filepath.Dir(o.Path)); warning != "" {
		o.Logger.Warn("unsafe file system", "path", o.Path, "warning", warning)
	}
	epoch, err := prepare(o)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", o.Path, err)
	}
	db := &DB{options: o, epoch: epoch, ended: make(chan struct{})}
	db.queue = newQueue(o.Queue, queueBytes, o.WriteTimeout)
	db.writer = newWriter(&db.options, epoch, db.queue)
	db.readers = newReaders(&db.options, epoch)
	if err = db.writer.connect(); err == nil {
		err = db.readers.open()
	}
	if err != nil {
		db.readers.close()
		db.writer.disconnect()
		return nil, fmt.Errorf("open database %s: %w", o.Path, err)
	}
	go db.run()
	return db, nil
}

// run is the writer goroutine: it serves the queue until that is closed and
// empty, and leaves a clean file.
func (db *DB) run() {
	defer close(db.ended)
	db.writer.loop()
	db.queue.timer.Stop()
	db.readers.close()
	db.finished = db.writer.finish()
}

func (o Options) withDefaults() (Options, error) {
	switch o.Synchronous {
	case "":
		o.Synchronous = "normal"
	case "normal", "full":
	default:
		return o, fmt.Errorf("synchronous %q: want normal or full", o.Synchronous)
	}
	if o.Path == "" {
		return o, errors.New("no path")
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return o, err
	}
	o.Path = path
	if o.Readers <= 0 {
		o.Readers = 8
	}
	if o.Queue <= 0 {
		o.Queue = 10_000
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 4 * time.Second
	}
	if o.IdempotencyTTL <= 0 {
		o.IdempotencyTTL = 7 * 24 * time.Hour
	}
	if o.Retention == nil {
		o.Retention = func(string) Retention { return Retention{Size: 1<<63 - 1} }
	}
	if o.Committed == nil {
		o.Committed = func([]Event) {}
	}
	if o.Observe == nil {
		o.Observe = func(int, time.Duration) {}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.BootID == "" {
		o.BootID = bootID()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.maintenance <= 0 {
		o.maintenance = maintenanceEvery
	}
	return o, nil
}

// Epoch returns the epoch of the database, of which the epoch of each room is made.
func (db *DB) Epoch() string { return db.epoch }

// Publish queues p and never blocks. done is called exactly once: by the writer
// after COMMIT (or after it gave up), by the queue when the waiting was too long,
// or before Publish returns when p is refused. It must not block. Publications
// of one goroutine in one room keep their order; rooms take turns.
func (db *DB) Publish(p Publish, done func(Result, error)) {
	op := &publish{Publish: p}
	if p.ID != "" {
		op.hash = contentHash(p.Publication.Data)
	}
	db.submit(op, len(p.Room)+len(p.Caller)+len(p.ID)+p.Publication.bytes(), done)
}

// RemoveHistory begins a new incarnation of the room: its epoch changes, its
// events are gone at once, its offsets go on. A room never published to has
// nothing to remove: it keeps its epoch, and there is no event. done is called
// as by Publish.
func (db *DB) RemoveHistory(room string, done func(Result, error)) {
	db.submit(&removal{room: room}, len(room), done)
}

func (db *DB) submit(op operation, bytes int, done func(Result, error)) {
	if err := db.queue.push(op, bytes, done); err != nil {
		done(Result{}, err)
	}
}

// Ready returns nil when the database can write. It remembers how the last batch
// ended; when that failed it tries a small write, for at most a second.
func (db *DB) Ready() error {
	if db.closing.Load() {
		return ErrClosed
	}
	err := db.writer.health.problem(time.Now(), db.options.WriteTimeout)
	if err == nil || errors.Is(err, errStalled) {
		return err
	}
	outcome := make(chan error, 1)
	db.submit(probe{}, 0, func(_ Result, err error) { outcome <- err })
	limit := time.NewTimer(time.Second)
	defer limit.Stop()
	select {
	case err := <-outcome:
		return err
	case <-limit.C:
		return err
	}
}

// Stats returns the figures of the database; cheap, without a query.
func (db *DB) Stats() Stats {
	n, bytes, oldest := db.queue.waiting()
	c := &db.writer.counts
	return Stats{
		Queue: n, QueueBytes: bytes, QueueWait: oldest,
		WAL:       walSize(db.options.Path),
		Rooms:     c.rooms.Load(),
		Readers:   db.readers.inUse(),
		Commits:   c.commits.Load(),
		Failed:    c.failed.Load(),
		Published: c.published.Load(),
	}
}

// walSize stats the file and never opens it.
func walSize(path string) int64 {
	info, err := os.Stat(path + "-wal")
	if err != nil {
		return 0
	}
	return info.Size()
}

// Close refuses new work, finishes the queue, checkpoints, marks the file clean
// and closes it. When ctx ends first, what still waits is answered ErrClosed and
// Close returns; the batch under way, and the closing, end by themselves.
// Further calls return the first one's outcome.
func (db *DB) Close(ctx context.Context) error {
	db.closed.Do(func() {
		if err := db.close(ctx); err != nil {
			db.err = fmt.Errorf("close database %s: %w", db.options.Path, err)
		}
	})
	return db.err
}

func (db *DB) close(ctx context.Context) error {
	db.closing.Store(true)
	db.queue.close()
	select {
	case <-db.ended:
		return db.finished
	case <-ctx.Done():
		close(db.writer.abort)
		db.queue.fail(ErrClosed)
		return ctx.Err()
	}
}
