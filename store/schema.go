package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// applicationID marks our files in the SQLite header ("hub!"), see
// sqlite.org/pragma.html#pragma_application_id.
const applicationID = 0x68756221

// Why a file is not opened.
var (
	// ErrForeign: the file is not a database of hub.
	ErrForeign = errors.New("store: not a hub database")
	// ErrNewer: a newer version of hub has written the file.
	ErrNewer = errors.New("store: written by a newer version")
)

// migrations[i] leads from schema version i to i+1, the user_version of the
// file. Each runs in one transaction with the version bump; a released one is
// never changed.
var migrations = []string{
	// Rooms are never deleted, so that an id and an offset never come twice.
	// top is the last offset given, never derived from events; offsets below
	// first are gone, whatever of them is still stored. Tables with data have a
	// rowid, so that rows of all rooms are appended and one of up to 4 KiB needs no
	// page of its own: WITHOUT ROWID took 4.4 KB for 1 KB of data.
	`CREATE TABLE meta (
		key   TEXT PRIMARY KEY,
		value TEXT NOT NULL
	) STRICT, WITHOUT ROWID;

	CREATE TABLE rooms (
		id          INTEGER PRIMARY KEY,
		name        TEXT    NOT NULL UNIQUE,
		incarnation INTEGER NOT NULL,
		top         INTEGER NOT NULL,
		first       INTEGER NOT NULL,
		time        INTEGER NOT NULL
	) STRICT;

	CREATE TABLE events (
		room_id   INTEGER NOT NULL REFERENCES rooms(id),
		offset    INTEGER NOT NULL,
		time      INTEGER NOT NULL,
		user      TEXT    NOT NULL,
		client    TEXT    NOT NULL,
		conn_info BLOB,
		chan_info BLOB,
		tags      TEXT,
		data      BLOB,
		PRIMARY KEY (room_id, offset)
	) STRICT;

	CREATE TABLE idempotency (
		room_id INTEGER NOT NULL REFERENCES rooms(id),
		caller  TEXT    NOT NULL,
		id      TEXT    NOT NULL,
		hash    BLOB    NOT NULL,
		offset  INTEGER NOT NULL,
		epoch   TEXT    NOT NULL,
		time    INTEGER NOT NULL,
		PRIMARY KEY (room_id, caller, id)
	) STRICT;
	CREATE INDEX idempotency_time ON idempotency (time);`,

	// A deleted resource keeps its row, with value NULL, so that a version never
	// comes twice. Keys compare byte for byte. result is what an operation
	// changed, NULL for a publication.
	`CREATE TABLE resources (
		room_id INTEGER NOT NULL REFERENCES rooms(id),
		key     TEXT    NOT NULL,
		version INTEGER NOT NULL,
		value   BLOB,
		PRIMARY KEY (room_id, key)
	) STRICT;

	ALTER TABLE idempotency ADD COLUMN result BLOB;`,

	// What was deleted lies apart, so that lists need not step over it.
	`CREATE TABLE deleted (
		room_id INTEGER NOT NULL REFERENCES rooms(id),
		key     TEXT    NOT NULL,
		version INTEGER NOT NULL,
		PRIMARY KEY (room_id, key)
	) STRICT, WITHOUT ROWID;

	INSERT INTO deleted SELECT room_id, key, version FROM resources WHERE value IS NULL;
	DELETE FROM resources WHERE value IS NULL;`,
}

// schema is what the files of one kind hold, and how to get there.
type schema struct {
	applicationID int
	steps         []string // see migrations
}

var databaseSchema = schema{applicationID, migrations}

// prepare makes the file of o ready for its writer and readers: it exists, is
// ours, has the current schema, is in WAL mode, and its epoch is settled and on
// the disk. It returns the database's epoch.
func prepare(o Options) (epoch string, err error) {
	if err := create(o.Path); err != nil {
		return "", err
	}
	ctx := context.Background() // nobody waits for Open with a deadline
	if err := databaseSchema.checkHeader(ctx, o.Path); err != nil {
		return "", err
	}
	l, err := connect(ctx, dsn(o.Path, nil, setupPragmas), setupPragmas)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := migrate(ctx, l.conn, migrations); err != nil {
		return "", err
	}
	// After the first migration, so that the identity of a new file is in its
	// header from the first transaction on and not in a WAL.
	if err := useWAL(ctx, l.conn); err != nil {
		return "", err
	}
	if epoch, err = settleEpoch(ctx, l.conn, o.BootID, o.Synchronous); err != nil {
		return "", err
	}
	return epoch, checkpointAll(ctx, l.conn)
}

// useWAL switches the file to WAL mode, where it stays.
func useWAL(ctx context.Context, conn *sql.Conn) error {
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode=WAL").Scan(&mode); err != nil {
		return fmt.Errorf("switch to WAL: %w", err)
	}
	if mode != "wal" {
		return fmt.Errorf("switch to WAL: journal mode is %q", mode)
	}
	return nil
}

// create makes an empty file that only its owner may read, if there is none.
// SQLite gives the WAL the same mode. An existing file is not opened.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// checkHeader refuses a foreign or newer file before anything could write to it:
// an immutable connection takes no lock, reads no WAL and leaves no file behind.
func (s schema) checkHeader(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: not a regular file", ErrForeign)
	}
	if info.Size() == 0 {
		return nil
	}
	l, err := connect(ctx, dsn(path, []string{"mode=ro", "immutable=1"}, nil), nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	id, version, err := identity(ctx, l.conn)
	if err := errors.Join(err, l.close()); err != nil {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if id != s.applicationID {
		return fmt.Errorf("%w: application_id is %#x, want %#x", ErrForeign, id, s.applicationID)
	}
	if version > len(s.steps) {
		return newer(version, len(s.steps))
	}
	return nil
}

func newer(found, known int) error {
	return fmt.Errorf("%w: schema version is %d, this program knows up to %d", ErrNewer, found, known)
}

// querier is a connection, or a transaction on it.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func identity(ctx context.Context, q querier) (id, version int, err error) {
	if err = q.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return 0, 0, err
	}
	err = q.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version)
	return id, version, err
}

// migrate brings a database up to the last of steps.
func migrate(ctx context.Context, conn *sql.Conn, steps []string) error {
	return schema{applicationID, steps}.migrate(ctx, conn)
}

// migrate brings a file up to the last step.
func (s schema) migrate(ctx context.Context, conn *sql.Conn) error {
	for {
		done, err := s.migrateOne(ctx, conn)
		if err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		if done {
			return nil
		}
	}
}

// migrateOne runs the next step, if any. Version and identity are read inside
// its transaction, so neither a killed nor a simultaneous migration can make
// one run twice.
func (s schema) migrateOne(ctx context.Context, conn *sql.Conn) (done bool, err error) {
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			_, rerr := conn.ExecContext(ctx, "ROLLBACK")
			err = errors.Join(err, rerr)
		}
	}()
	id, version, err := identity(ctx, conn)
	if err != nil {
		return false, err
	}
	if id != s.applicationID {
		var objects int
		if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&objects); err != nil {
			return false, err
		}
		if id != 0 || version != 0 || objects != 0 {
			return false, fmt.Errorf("%w: application_id is %#x, want %#x", ErrForeign, id, s.applicationID)
		}
	}
	if version > len(s.steps) {
		return false, newer(version, len(s.steps))
	}
	if version < len(s.steps) {
		script := s.steps[version] + fmt.Sprintf(";PRAGMA application_id=%d;PRAGMA user_version=%d", s.applicationID, version+1)
		if _, err := conn.ExecContext(ctx, script); err != nil {
			return false, fmt.Errorf("to version %d: %w", version+1, err)
		}
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return version >= len(s.steps), err
}
