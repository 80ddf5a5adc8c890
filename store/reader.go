package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
)

// Page is a part of a room's history with the position that it was read at.
type Page struct {
	// Top is the room's position; it and the events are from one read transaction.
	Top Position
	// Events belong to the caller.
	Events []Publication
	// Pruned: the publication after the one asked for is not retained any more.
	Pruned bool
}

// Query is a question about a room's history.
type Query struct {
	// Since is the offset that the answer begins after, or before with Reverse,
	// when HasSince.
	Since    uint64
	HasSince bool
	// Limit bounds the publications: 0 = only the position, negative = no bound.
	Limit int
	// Reverse: newest first.
	Reverse bool
	// MaxBytes bounds what the publications carry, at least one excepted; 0 = no bound.
	MaxBytes int
}

const columns = "offset, time, user, client, conn_info, chan_info, tags, data"

// The statements of a reader.
const (
	readBegin = iota
	readCommit
	readRollback
	readRoomRow
	readForward
	readBackward
	readResource
	readResources
	readID
	readRooms
)

var readStatements = [...]string{
	readBegin:    "BEGIN",
	readCommit:   "COMMIT",
	readRollback: "ROLLBACK",
	readRoomRow:  "SELECT id, incarnation, top, first FROM rooms WHERE name = ?",
	readForward: "SELECT " + columns + ` FROM events
		WHERE room_id = ? AND offset >= ? AND offset < ? AND time > ? ORDER BY offset LIMIT ?`,
	readBackward: "SELECT " + columns + ` FROM events
		WHERE room_id = ? AND offset >= ? AND offset < ? AND time > ? ORDER BY offset DESC LIMIT ?`,
	readResource: `SELECT version, value FROM rooms JOIN resources ON room_id = rooms.id
		WHERE name = ? AND key = ?`,
	readResources: `SELECT key, version, value FROM resources
		WHERE room_id = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?`,
	readID: `SELECT offset, epoch, idempotency.time, result FROM rooms JOIN idempotency ON room_id = rooms.id
		WHERE name = ? AND caller = ? AND idempotency.id = ?`,
	readRooms: "SELECT name, incarnation, top, first, time FROM rooms WHERE name >= ? AND name < ? ORDER BY name LIMIT ?",
}

// reader is one query-only connection. It belongs to whoever took it from the pool.
type reader struct{ link *link }

// readers is the pool of query-only connections.
type readers struct {
	// fixed after new
	options *Options
	epoch   string
	idle    chan *reader
	closing chan struct{}

	once sync.Once
}

func newReaders(o *Options, epoch string) *readers {
	rs := &readers{
		options: o, epoch: epoch,
		idle: make(chan *reader, o.Readers), closing: make(chan struct{}),
	}
	for range o.Readers {
		rs.idle <- &reader{}
	}
	return rs
}

// open opens all connections, so that a bad one fails the start.
func (rs *readers) open() error {
	for range rs.options.Readers {
		r := <-rs.idle
		err := rs.connect(r)
		rs.idle <- r
		if err != nil {
			return err
		}
	}
	return nil
}

func (rs *readers) connect(r *reader) (err error) {
	if r.link == nil {
		ctx := context.Background() // the connection outlives the request that opens it
		r.link, err = connect(ctx, dsn(rs.options.Path, []string{"mode=rw"}, readerPragmas), readerPragmas, readStatements[:]...)
	}
	return err
}

func (rs *readers) inUse() int { return cap(rs.idle) - len(rs.idle) }

// close waits for the reads under way, which are short, and closes the connections.
func (rs *readers) close() {
	rs.once.Do(func() { close(rs.closing) })
	for range cap(rs.idle) {
		if r := <-rs.idle; r.link != nil {
			if err := r.link.close(); err != nil {
				rs.options.Logger.Warn("close reader connection", "path", rs.options.Path, "error", err)
			}
		}
	}
}

// do runs read with a reader, inside one read transaction.
func (rs *readers) do(ctx context.Context, read func(*reader) error) error {
	return rs.use(ctx, func(r *reader) error { return r.transact(read) })
}

// use runs read with a reader. A single statement is a transaction of its own.
func (rs *readers) use(ctx context.Context, read func(*reader) error) error {
	select {
	case <-rs.closing:
		return ErrClosed
	default:
	}
	var r *reader
	select {
	case r = <-rs.idle:
	case <-rs.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { rs.idle <- r }()
	if err := ctx.Err(); err != nil {
		return err
	}
	err := rs.connect(r)
	if err == nil {
		err = read(r)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(err, r.drop()))
	}
}

// drop closes a connection that is not to be trusted; the next read opens another.
func (r *reader) drop() error {
	if r.link == nil {
		return nil
	}
	err := r.link.close()
	r.link = nil
	return err
}

// transact runs read in one transaction. A connection that cannot even roll
// back is dropped.
func (r *reader) transact(read func(*reader) error) error {
	_, err := r.link.stmts[readBegin].Exec()
	if err == nil {
		err = read(r)
	}
	if err == nil {
		_, err = r.link.stmts[readCommit].Exec()
	}
	if err == nil {
		return nil
	}
	if _, rerr := r.link.stmts[readRollback].Exec(); rerr != nil {
		err = errors.Join(err, rerr, r.drop())
	}
	return err
}

// roomRow is what a reader sees of a room.
type roomRow struct {
	id          int64
	incarnation int64
	top, first  uint64
}

// room reads a room's row; ok is false for a room never published to.
func (r *reader) room(name string) (row roomRow, ok bool, err error) {
	var top, first int64
	ok, err = r.row(readRoomRow, []any{name}, &row.id, &row.incarnation, &top, &first)
	row.top, row.first = uint64(top), uint64(first)
	return row, ok, err
}

// row scans one row, found by its key, into dest and reports whether there was
// one. That is over before anybody could cancel it, and the driver's watch over a
// context would cost as much as the read (2 µs).
func (r *reader) row(statement int, args []any, dest ...any) (bool, error) {
	err := r.link.stmts[statement].QueryRow(args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// Position returns the top of a room. One never published to has offset 0 and
// the epoch that its first publication will have, so that position stays valid;
// asking creates nothing.
func (db *DB) Position(ctx context.Context, room string) (Position, error) {
	page, err := db.History(ctx, room, Query{})
	return page.Top, err
}

// Page returns publications after the offset after, ascending: up to maxEvents
// and maxBytes (0 = no bound), but at least one if there is any. Pruned means
// that after is below the top and the next one is not retained; the events are
// then the oldest ones that are.
func (db *DB) Page(ctx context.Context, room string, after uint64, maxEvents, maxBytes int) (Page, error) {
	if maxEvents <= 0 {
		maxEvents = -1
	}
	return db.History(ctx, room, Query{Since: after, HasSince: true, Limit: maxEvents, MaxBytes: maxBytes})
}

// History answers q with what the room retains. Page.Pruned is set as by
// [DB.Page] when q goes forward from an offset and may return events. A page is
// never ahead of what Options.Committed was told.
func (db *DB) History(ctx context.Context, room string, q Query) (Page, error) {
	var page Page
	err := db.readers.do(ctx, func(r *reader) error {
		row, ok, err := r.room(room)
		if err != nil {
			return err
		}
		page = Page{Top: Position{Offset: row.top, Epoch: roomEpoch(db.epoch, row.incarnation)}}
		if !ok || q.Limit == 0 {
			return nil
		}
		page.Events, err = r.events(ctx, row, q, db.window(room, row, q))
		return err
	})
	if err == nil {
		err = db.awaitDelivery(ctx, room, page.Top)
	}
	if err != nil {
		return Page{}, err
	}
	if q.HasSince && !q.Reverse && q.Limit != 0 && q.Since < page.Top.Offset {
		page.Pruned = len(page.Events) == 0 || page.Events[0].Offset != q.Since+1
	}
	return page, nil
}

// window is the part of a room that a query may see: offsets from low up to
// end, which is not part of it, with times after cut.
type window struct {
	low, end uint64
	cut      int64
}

func (db *DB) window(room string, row roomRow, q Query) window {
	retention := db.options.Retention(room)
	win := window{
		low: floor(row.first, row.top, retention.Size),
		end: row.top + 1,
		cut: cutoff(db.options.Now().UnixMilli(), retention.TTL),
	}
	switch {
	case !q.HasSince:
	case q.Reverse:
		win.end = min(win.end, q.Since)
	case q.Since >= row.top:
		win.low = win.end
	default:
		win.low = max(win.low, q.Since+1)
	}
	return win
}

func (r *reader) events(ctx context.Context, row roomRow, q Query, win window) (_ []Publication, err error) {
	if win.low >= win.end {
		return nil, nil
	}
	s := readForward
	if q.Reverse {
		s = readBackward
	}
	rows, err := r.link.stmts[s].QueryContext(ctx, row.id, int64(win.low), int64(win.end), win.cut, q.Limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var events []Publication
	bytes := 0
	for rows.Next() {
		p, err := scanPublication(rows)
		if err != nil {
			return nil, err
		}
		bytes += p.bytes()
		if q.MaxBytes > 0 && bytes > q.MaxBytes && len(events) > 0 {
			return events, nil
		}
		events = append(events, p)
	}
	return events, rows.Err()
}

func scanPublication(rows *sql.Rows) (p Publication, err error) {
	var offset int64
	var tags sql.RawBytes
	if err := rows.Scan(&offset, &p.Time, &p.User, &p.Client, &p.ConnInfo, &p.ChanInfo, &tags, &p.Data); err != nil {
		return p, err
	}
	p.Offset = uint64(offset)
	if len(tags) > 0 {
		if err := json.Unmarshal(tags, &p.Tags); err != nil {
			return p, fmt.Errorf("decode tags: %w", err)
		}
	}
	return p, nil
}
