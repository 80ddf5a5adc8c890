package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// ErrDamaged wraps what is wrong with the content of a database's file.
var ErrDamaged = errors.New("store: damaged")

// CheckIntegrity checks the file of a database that is not open, without
// writing to it: SQLite's own integrity_check and foreign_key_check, and that
// the stored publications of each room are contiguous up to its top. What it
// finds wraps [ErrDamaged].
func CheckIntegrity(ctx context.Context, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("check database %s: %w", path, err)
		}
	}()
	if err := databaseSchema.checkHeader(ctx, path); err != nil {
		return err
	}
	params := []string{"mode=ro"}
	if walSize(path) == 0 {
		params = append(params, "immutable=1") // creates no -shm
	}
	pragmas := []pragma{{"busy_timeout", "5000", "5000"}, {"query_only", "1", "1"}}
	l, err := connect(ctx, dsn(path, params, pragmas), pragmas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	return l.check(ctx)
}

// CheckIntegrity does what the function of that name does, for this database while
// reads and writes go on, at one moment between two commits. As during
// [DB.Backup], the write-ahead log cannot be emptied meanwhile. [ErrClosed] when the
// database closes; [ErrOutrun] as there.
func (db *DB) CheckIntegrity(ctx context.Context) (err error) {
	if db.closing.Load() {
		return ErrClosed
	}
	ctx, stop := newLongRead(db.options.Path).watch(ctx, db.readers.closing)
	defer stop()
	if err = db.checkIntegrity(ctx); err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("check database %s: %w", db.options.Path, err)
}

func (db *DB) checkIntegrity(ctx context.Context) (err error) {
	// Not a reader of the pool, whose reads are short.
	l, err := connect(ctx, dsn(db.options.Path, []string{"mode=rw"}, readerPragmas), readerPragmas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if _, err := l.conn.ExecContext(ctx, "BEGIN"); err != nil {
		return err
	}
	return l.check(ctx)
}

// check looks for damage and returns the first that it finds.
func (l *link) check(ctx context.Context) error {
	for _, check := range []struct{ name, query string }{
		{"integrity_check", "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok' LIMIT 1"},
		{"foreign_key_check", `SELECT "table" || ' row ' || coalesce(rowid, '?') FROM pragma_foreign_key_check LIMIT 1`},
		{"offsets", `SELECT printf('room %s: %d publications from %d to %d, top is %d', quote(name), n, low, high, top)
			FROM rooms JOIN (
				SELECT room_id, count(*) AS n, min(events.offset) AS low, max(events.offset) AS high
				FROM events JOIN rooms ON rooms.id = room_id
				WHERE events.offset >= first
				GROUP BY room_id) ON id = room_id
			WHERE n <> high - low + 1 OR high <> top LIMIT 1`},
	} {
		var finding string
		switch err := l.conn.QueryRowContext(ctx, check.query).Scan(&finding); {
		case errors.Is(err, sql.ErrNoRows):
		case err == nil:
			return fmt.Errorf("%w: %s: %s", ErrDamaged, check.name, finding)
		case unreadable(err):
			return fmt.Errorf("%w: %s: %w", ErrDamaged, check.name, err)
		default:
			return fmt.Errorf("%s: %w", check.name, err)
		}
	}
	return nil
}

// unreadable says whether SQLite could make no sense of what it read.
func unreadable(err error) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	code := e.Code() & 0xff // without what the extended code adds
	return code == sqlite3.SQLITE_CORRUPT || code == sqlite3.SQLITE_NOTADB
}
