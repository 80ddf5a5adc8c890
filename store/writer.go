package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	batchEntries = 512     // operations of one transaction, at most
	batchLeast   = 16      // as many it may always have
	batchBytes   = 4 << 20 // bytes that a transaction takes, and that it produces; one operation may have more
	// batchTime is what the operations of one transaction may take, or as long as its
	// COMMIT takes, if that is longer. Who comes behind them waits for that, so a busy
	// machine has smaller batches, and a slow disk larger ones.
	batchTime = 4 * time.Millisecond
)

// nextBatch is how many operations the next transaction may have, when one of n had
// such times.
func nextBatch(n int, applying, committing time.Duration) int {
	return int(min(max(max(batchTime, committing)*time.Duration(n)/max(applying, 1), batchLeast), batchEntries))
}

// statement names a prepared statement of the writer.
type statement int

const (
	begin statement = iota
	savepoint
	release
	rollbackTo
	commit
	rollback
	roomByName
	insertRoom
	updateRoom
	oldestEvent
	insertEvent
	deleteEvents
	insertID
	findID
	replaceID
	expireIDs
	findResource
	putResource
	deleteResource
	putDeleted
	dropDeleted
	expiredEvents
	nextRooms
	touch
)

// statements holds the stage by which tests fail a statement, and its text.
var statements = [...]struct{ stage, query string }{
	begin:       {"begin", "BEGIN IMMEDIATE"},
	savepoint:   {"savepoint", "SAVEPOINT operation"},
	release:     {"release", "RELEASE operation"},
	rollbackTo:  {"rollback to", "ROLLBACK TO operation"},
	commit:      {"commit", "COMMIT"},
	rollback:    {"rollback", "ROLLBACK"},
	roomByName:  {"room", "SELECT id, incarnation, top, first, time FROM rooms WHERE name = ?"},
	insertRoom:  {"insert room", "INSERT INTO rooms (name, incarnation, top, first, time) VALUES (?, 0, 0, 1, 0)"},
	updateRoom:  {"counter", "UPDATE rooms SET incarnation = ?, top = ?, first = ?, time = ? WHERE id = ?"},
	oldestEvent: {"oldest", "SELECT offset, time FROM events WHERE room_id = ? ORDER BY offset LIMIT 1"},
	insertEvent: {"insert", "INSERT INTO events (room_id, offset, time, user, client, conn_info, chan_info, tags, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"},
	deleteEvents: {"prune",
		"DELETE FROM events WHERE room_id = ? AND offset >= ? AND offset < ?"},
	insertID: {"insert id",
		"INSERT INTO idempotency (room_id, caller, id, hash, offset, epoch, time) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"},
	findID: {"find id",
		"SELECT hash, offset, epoch, time, result FROM idempotency WHERE room_id = ? AND caller = ? AND id = ?"},
	replaceID: {"replace id",
		"REPLACE INTO idempotency (room_id, caller, id, hash, offset, epoch, time, result) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"},
	expireIDs: {"expire ids",
		"DELETE FROM idempotency WHERE (room_id, caller, id) IN (SELECT room_id, caller, id FROM idempotency WHERE time <= ? ORDER BY time LIMIT ?)"},
	findResource: {"resource",
		"SELECT version, value FROM resources WHERE room_id = ?1 AND key = ?2 UNION ALL SELECT version, NULL FROM deleted WHERE room_id = ?1 AND key = ?2 LIMIT 1"},
	putResource: {"put resource",
		"INSERT INTO resources (room_id, key, version, value) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET version = excluded.version, value = excluded.value"},
	deleteResource: {"delete resource",
		"DELETE FROM resources WHERE room_id = ? AND key = ?"},
	putDeleted: {"put deleted",
		"REPLACE INTO deleted (room_id, key, version) VALUES (?, ?, ?)"},
	dropDeleted: {"drop deleted",
		"DELETE FROM deleted WHERE room_id = ? AND key = ?"},
	expiredEvents: {"expired",
		"SELECT count(*) FROM events WHERE room_id = ? AND offset >= ? AND offset < ? AND time <= ?"},
	nextRooms: {"sweep", "SELECT id, name, top, first FROM rooms WHERE id > ? ORDER BY id LIMIT ?"},
	touch:     {"probe", "INSERT INTO meta (key, value) VALUES ('probe', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"},
}

// counts are the figures that Stats reports.
type counts struct {
	rooms                      atomic.Int64
	commits, failed, published atomic.Uint64
}

// writer is the only one that writes to the database file. It owns one
// connection and the counters of the rooms that it met.
type writer struct {
	// fixed after new
	options *Options
	epoch   string
	queue   *queue
	abort   chan struct{} // closed when Close gives up waiting

	health health
	counts counts
	// delivering is nil outside the time from before COMMIT to the delivery of a
	// batch's events; readers look at it.
	delivering atomic.Pointer[delivery]

	// owned by the writer goroutine
	link     *link            // nil after a failure until the next attempt
	rooms    map[string]*room // cache; empty whenever link is nil
	roomRows int64            // rows of the table rooms, as the open transaction sees it
	now      int64            // Unix milliseconds, read once per transaction
	created  *room            // by the operation under way
	most     int              // operations of the next transaction, at most
	sweep    sweep
	wal      walState
}

func newWriter(o *Options, epoch string, q *queue) *writer {
	return &writer{
		options: o, epoch: epoch, queue: q,
		abort: make(chan struct{}),
		rooms: map[string]*room{}, most: batchEntries,
	}
}

// loop runs until the queue is closed and empty.
func (w *writer) loop() {
	every := w.options.maintenance
	due := time.NewTimer(every)
	defer due.Stop()
	var taken, rest []entry // rest of what was taken is still to be run
	for {
		open := true
		if len(rest) == 0 {
			taken, open = w.queue.take(taken[:0], w.most, batchBytes)
			rest = taken
		}
		if len(rest) > 0 {
			n := w.run(rest)
			clear(rest[:n])
			rest = rest[n:]
			w.checkpointIfLarge()
			// A writer that is never idle maintains too.
			select {
			case <-due.C:
				due.Reset(w.maintainSoon(every))
			default:
			}
			continue
		}
		if !open {
			return
		}
		select {
		case <-w.queue.wake:
		case <-due.C:
			next := w.maintainSoon(every)
			w.checkpointWhenIdle()
			due.Reset(next)
		}
	}
}

// maintainSoon does a step of maintenance and returns the time until the next:
// none when rows expire faster than one step at a time.
func (w *writer) maintainSoon(every time.Duration) time.Duration {
	if w.maintain() {
		return 0
	}
	return every
}

// run applies the first entries in one transaction; when that fails, each in its
// own. It returns the number of those that it answered.
func (w *writer) run(entries []entry) int {
	n, err := w.attempt(entries)
	if err == nil {
		return n
	}
	for i := range n {
		alone := entries[i : i+1]
		if w.aborted() { // what became of the batch may be unknown: do not store it twice
			refuse(alone, failure(err))
			continue
		}
		if _, err := w.attempt(alone); err != nil {
			refuse(alone, failure(err))
		}
	}
	return n
}

// failure is what a caller is told of an attempt that ended with err.
func failure(err error) error {
	if errors.Is(err, ErrUnknownOutcome) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// aborted reports whether Close has given up waiting.
func (w *writer) aborted() bool {
	select {
	case <-w.abort:
		return true
	default:
		return false
	}
}

// attempt applies the first n of entries in one transaction and answers them; an
// error means that nobody is answered and, unless it is ErrUnknownOutcome, that
// nothing is stored.
func (w *writer) attempt(entries []entry) (n int, err error) {
	start := time.Now()
	w.health.begin(start)
	b := newBatch(entries)
	defer w.delivered() // also when it failed
	committing, err := w.transact(b)
	if err != nil {
		w.disconnect()
		if committing {
			err = w.settle(b, err)
		}
	}
	if recovered, failed := w.health.end(err); failed {
		w.options.Logger.Error("database cannot write", "path", w.options.Path, "error", err)
	} else if recovered {
		w.options.Logger.Info("database writes again", "path", w.options.Path)
	}
	if err != nil {
		w.counts.failed.Add(1)
		return len(b.entries), err
	}
	w.committed(b, time.Since(start))
	return len(b.entries), nil
}

// transact runs b from BEGIN to COMMIT. committing tells whether COMMIT was
// attempted, so that b may be stored in spite of an error.
func (w *writer) transact(b *batch) (committing bool, err error) {
	if err := w.connect(); err != nil {
		return false, err
	}
	if err := w.exec(begin); err != nil {
		return false, err
	}
	w.now = w.options.Now().UnixMilli()
	start := time.Now()
	for i := 0; i < len(b.entries); i++ {
		if err := w.apply(b, i); err != nil {
			return false, err
		}
		if b.produced >= batchBytes {
			b.cut(i + 1)
		}
	}
	if err := w.saveRooms(b); err != nil {
		return false, err
	}
	w.deliver(b)
	applied := time.Now()
	if err := w.exec(commit); err != nil {
		return true, err
	}
	w.most = nextBatch(len(b.entries), applied.Sub(start), time.Since(applied))
	return true, w.fail("committed")
}

// apply runs one operation inside its savepoint. What the operation refuses is
// its own outcome; an error is the batch's.
func (w *writer) apply(b *batch, i int) error {
	if err := w.exec(savepoint); err != nil {
		return err
	}
	w.created = nil
	result, refusal := b.entries[i].op.apply(w, b)
	if refusal == nil {
		b.results[i].Result = result
		return w.exec(release)
	}
	switch {
	case isRefusal(refusal):
	case isConstraint(refusal):
		w.options.Logger.Error("write breaks a constraint", "path", w.options.Path, "error", refusal)
		refusal = fmt.Errorf("%w: %w", ErrUnavailable, refusal)
	default:
		return refusal
	}
	b.results[i].err = refusal
	if w.created != nil {
		w.forget(w.created)
	}
	if err := w.exec(rollbackTo); err != nil {
		return err
	}
	return w.exec(release)
}

// settle decides what became of b when COMMIT failed, and returns nil when it is
// stored nevertheless. As long as the file cannot be read the question is open:
// then it waits, because an answer would be a guess, until Close gives up too:
// ErrUnknownOutcome.
func (w *writer) settle(b *batch, cause error) error {
	if len(b.dirty) == 0 {
		return cause // nothing that matters to anyone was written
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		stored, err := w.stands(b.dirty[0])
		if err == nil && stored {
			return nil
		}
		if err == nil {
			return cause
		}
		w.disconnect()
		w.health.note(err)
		retry := time.NewTimer(wait)
		select {
		case <-retry.C:
		case <-w.abort:
			retry.Stop()
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, errors.Join(cause, err))
		}
	}
}

// stands reports whether the counters of r are those of the file. A batch
// raises each counter it touches, so one of them answers for all.
func (w *writer) stands(r *room) (bool, error) {
	if err := w.connect(); err != nil {
		return false, err
	}
	stored := room{name: r.name}
	found, err := w.readRoom(&stored)
	return found && stored.top == r.top && stored.incarnation == r.incarnation, err
}

// committed hands out the outcome of b: the events first, then the answers.
func (w *writer) committed(b *batch, took time.Duration) {
	for _, r := range b.dirty {
		r.dirty = false
	}
	w.trimRooms()
	w.counts.rooms.Store(w.roomRows)
	w.counts.commits.Add(1)
	w.counts.published.Add(b.published)
	w.options.Observe(len(b.entries), took)
	if len(b.events) > 0 {
		w.options.Committed(b.events)
	}
	w.delivered()
	for i, e := range b.entries {
		if err := b.results[i].err; err != nil {
			e.done(Result{}, err)
			continue
		}
		e.done(b.results[i].Result, nil)
	}
}

// connect opens the writer's connection unless it is open.
func (w *writer) connect() error {
	if w.link != nil {
		return nil
	}
	if err := w.fail("connect"); err != nil {
		return err
	}
	queries := make([]string, len(statements))
	for i, s := range statements {
		queries[i] = s.query
	}
	pragmas := writerPragmas(w.options.Synchronous)
	// The writer's life is not bound to any caller's.
	ctx := context.Background()
	l, err := connect(ctx, dsn(w.options.Path, []string{"mode=rw"}, pragmas), pragmas, queries...)
	if err != nil {
		return err
	}
	if err := l.conn.QueryRowContext(ctx, "SELECT count(*) FROM rooms").Scan(&w.roomRows); err != nil {
		return errors.Join(err, l.close())
	}
	if w.options.maxPages != nil {
		var got int64
		limit := fmt.Sprintf("PRAGMA max_page_count=%d", w.options.maxPages())
		if err := l.conn.QueryRowContext(ctx, limit).Scan(&got); err != nil {
			return errors.Join(err, l.close())
		}
	}
	w.link = l
	w.counts.rooms.Store(w.roomRows)
	return nil
}

// disconnect throws away the connection, with a transaction that may be open,
// and everything that was concluded from it.
func (w *writer) disconnect() {
	clear(w.rooms)
	if w.link == nil {
		return
	}
	// SQLite may have rolled back already; then this fails, which is as good.
	_ = w.exec(rollback)
	if err := w.link.close(); err != nil {
		w.options.Logger.Warn("close writer connection", "path", w.options.Path, "error", err)
	}
	w.link = nil
}

// finish leaves a clean file. The writer goroutine and all readers have ended.
func (w *writer) finish() error {
	if err := w.connect(); err != nil {
		return err
	}
	ctx := context.Background()
	// One sync covers the mark and, since it is the last in the WAL, all before it.
	_, err := w.link.conn.ExecContext(ctx, "PRAGMA synchronous=FULL")
	if err == nil {
		_, err = w.link.conn.ExecContext(ctx, "UPDATE meta SET value = '' WHERE key = ?", metaOpen)
	}
	if err == nil {
		err = checkpointAll(ctx, w.link.conn)
	}
	err = errors.Join(err, w.link.close())
	w.link = nil
	return err
}

func (w *writer) fail(stage string) error {
	if w.options.fault == nil {
		return nil
	}
	return w.options.fault(stage)
}

func (w *writer) exec(s statement, args ...any) error {
	_, err := w.execResult(s, args...)
	return err
}

func (w *writer) execResult(s statement, args ...any) (sql.Result, error) {
	if err := w.fail(statements[s].stage); err != nil {
		return nil, err
	}
	r, err := w.link.stmts[s].Exec(args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", statements[s].stage, err)
	}
	return r, nil
}

// query scans one row into dest and reports whether there was one.
func (w *writer) query(s statement, args []any, dest ...any) (bool, error) {
	if err := w.fail(statements[s].stage); err != nil {
		return false, err
	}
	err := w.link.stmts[s].QueryRow(args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", statements[s].stage, err)
	}
	return true, nil
}
