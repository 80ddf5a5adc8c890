package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// ErrInvalid wraps what is wrong with a value given to a [Registry].
var ErrInvalid = errors.New("store: invalid")

// Bounds of what a [Registry] takes.
const (
	maxRegistryName = 255               // bytes of a user, a token id or a database's name; no token has longer ones
	maxRegistryNote = 1024              // bytes
	maxUnixTime     = 253_402_300_799   // the last second of the year 9999; milliseconds are above it
	maxCap          = 1<<31 - 1         // connections
	registryID      = 0x68756272        // "hubr", the application_id of its file
	registryWrite   = "BEGIN IMMEDIATE" // takes the write lock first, so nothing fails halfway
)

// registrySchema is that of {data_dir}/_hub.db. A released step is never changed.
var registrySchema = schema{registryID, []string{
	// The ids of revocations are never used again. Whether issued_before is set is
	// part of what a revocation is about: see Revocation.
	`CREATE TABLE revocations (
		id            INTEGER PRIMARY KEY AUTOINCREMENT,
		database      TEXT    NOT NULL,
		user          TEXT    NOT NULL,
		token_id      TEXT    NOT NULL,
		issued_before INTEGER NOT NULL,
		until         INTEGER NOT NULL,
		created       INTEGER NOT NULL,
		note          TEXT    NOT NULL
	) STRICT;
	CREATE UNIQUE INDEX revocations_target ON revocations (database, user, token_id, issued_before > 0);

	CREATE TABLE caps (
		scope       TEXT    NOT NULL,
		database    TEXT    NOT NULL,
		connections INTEGER NOT NULL,
		PRIMARY KEY (scope, database)
	) STRICT, WITHOUT ROWID;

	CREATE TABLE databases (
		name    TEXT    PRIMARY KEY,
		created INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;`,
}}

// A power cut loses nothing that was acknowledged: each commit is synced.
var registryPragmas = []pragma{
	{"busy_timeout", "5000", "5000"},
	{"synchronous", "FULL", "2"},
	{"trusted_schema", "0", "0"},
}

// Registry is what the server itself must remember, in a file of its own:
// revocations, caps set while running, databases created while running. Writes
// are rare. One that succeeded survives a kill -9 and a power cut; one that
// failed changed nothing, and the next call opens the file anew, so that the
// Registry recovers without a restart. The exception is that of
// [ErrUnavailable]: the disk failed during COMMIT, and the process was killed
// before the next success; what was asked for may then be in force after all,
// and asking again is harmless. All errors but [ErrInvalid], [ErrNotFound],
// [ErrClosed] and those of a context wrap [ErrUnavailable].
//
// It is safe for concurrent use.
type Registry struct {
	// fixed after OpenRegistry
	path string
	log  *slog.Logger

	mu sync.Mutex
	// guarded by mu
	link   *link // nil after a failure
	closed bool
}

// OpenRegistry opens or creates the registry's file, {data_dir}/_hub.db, mode
// 0600. A foreign file, and one of a newer version, is refused without writing:
// [ErrForeign], [ErrNewer]. Only one Registry at a time may have it open: see
// [LockDir]. log defaults to slog.Default().
func OpenRegistry(path string, log *slog.Logger) (_ *Registry, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open registry %s: %w", path, err)
		}
	}()
	if log == nil {
		log = slog.Default()
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	r := &Registry{path: full, log: log}
	if err := create(r.path); err != nil {
		return nil, err
	}
	ctx := context.Background() // nobody waits for it with a deadline
	if err := registrySchema.checkHeader(ctx, r.path); err != nil {
		return nil, err
	}
	if err := r.connectLocked(ctx); err != nil {
		return nil, err
	}
	if err := r.prepareLocked(ctx); err != nil {
		return nil, errors.Join(err, r.link.close())
	}
	return r, nil
}

// prepareLocked brings the file to the current schema and into WAL mode, and its
// name onto the disk.
func (r *Registry) prepareLocked(ctx context.Context) error {
	if err := registrySchema.migrate(ctx, r.link.conn); err != nil {
		return err
	}
	if err := useWAL(ctx, r.link.conn); err != nil {
		return err
	}
	return syncDir(filepath.Dir(r.path))
}

// Close closes the file. Calls after it get [ErrClosed].
func (r *Registry) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.link == nil {
		return nil
	}
	err := r.link.close()
	r.link = nil
	if err != nil {
		return fmt.Errorf("close registry %s: %w", r.path, err)
	}
	return nil
}

func (r *Registry) connectLocked(ctx context.Context) (err error) {
	if r.link == nil {
		r.link, err = connect(ctx, dsn(r.path, []string{"mode=rw"}, registryPragmas), registryPragmas)
	}
	return err
}

// do runs f in one transaction, which begins with begin. Once it has begun, ctx
// does not end it: whoever asks is told the outcome.
func (r *Registry) do(ctx context.Context, begin string, f func(ctx context.Context, c *sql.Conn) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := r.transactLocked(ctx, begin, f); err != nil {
		return fmt.Errorf("%w: registry %s: %w", ErrUnavailable, r.path, err)
	}
	return nil
}

func (r *Registry) transactLocked(ctx context.Context, begin string, f func(ctx context.Context, c *sql.Conn) error) error {
	if err := r.connectLocked(ctx); err != nil {
		return err
	}
	_, err := r.link.conn.ExecContext(ctx, begin)
	if err == nil {
		err = f(ctx, r.link.conn)
	}
	if err == nil {
		_, err = r.link.conn.ExecContext(ctx, "COMMIT")
	}
	if err == nil {
		return nil
	}
	// What SQLite undid by itself is not worth finding out: closing the
	// connection undoes the rest.
	if cerr := r.link.close(); cerr != nil {
		r.log.Warn("close registry connection", "path", r.path, "error", cerr)
	}
	r.link = nil
	return err
}

// Revocation ends tokens. It names at least one of User, TokenID and
// IssuedBefore, and covers the tokens to which everything that it names applies:
//
//	User                  all of a user, later ones too: the user is banned
//	TokenID               the one with this jti
//	User, TokenID         the one with this jti, if it is the user's
//	User, IssuedBefore    those of a user issued before a time
//	IssuedBefore          those of everybody issued before a time
//
// Two revocations are about the same when they agree in Database, User, TokenID
// and in whether IssuedBefore is set: a ban and an end of sessions are taken
// back separately.
type Revocation struct {
	ID       int64  // given by Revoke, never used again
	Database string // where it holds; "" = in all databases
	User     string // the sub of the tokens, at most 255 bytes
	TokenID  string // their jti, at most 255 bytes
	// IssuedBefore, in Unix seconds, covers tokens whose iat is less; 0 = no
	// matter when. A jti needs no such bound and takes none.
	IssuedBefore int64
	// Until, in Unix seconds, is when no token that it covers can be valid any
	// more, the leeway for clocks included: after it the revocation may be swept.
	// 0 = it stays for ever, which a ban needs.
	Until   int64
	Created int64  // Unix seconds; Revoke sets it when it is 0
	Note    string // for people, at most 1024 bytes
}

func (v *Revocation) check() error {
	if v.User == "" && v.TokenID == "" && v.IssuedBefore == 0 {
		return fmt.Errorf("%w: a revocation needs a user, a token id or a time", ErrInvalid)
	}
	if v.TokenID != "" && v.IssuedBefore != 0 {
		return fmt.Errorf("%w: a token id with a time", ErrInvalid)
	}
	for _, t := range []struct {
		name, text string
		bound      int
	}{
		{"database", v.Database, maxRegistryName},
		{"user", v.User, maxRegistryName},
		{"token id", v.TokenID, maxRegistryName},
		{"note", v.Note, maxRegistryNote},
	} {
		if err := checkText(t.name, t.text, t.bound); err != nil {
			return err
		}
	}
	for _, t := range []struct {
		name string
		time int64
	}{{"issued-before", v.IssuedBefore}, {"until", v.Until}, {"created", v.Created}} {
		if t.time < 0 || t.time > maxUnixTime {
			return fmt.Errorf("%w: %s is %d, want Unix seconds", ErrInvalid, t.name, t.time)
		}
	}
	return nil
}

// checkText refuses what could not be compared byte for byte or would end early.
func checkText(name, text string, bound int) error {
	switch {
	case len(text) > bound:
		return fmt.Errorf("%w: %s has %d bytes, at most %d are allowed", ErrInvalid, name, len(text), bound)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return fmt.Errorf("%w: %s is not text", ErrInvalid, name)
	}
	return nil
}

const revocationColumns = "id, database, user, token_id, issued_before, until, created, note"

// Revoke stores v and returns it as stored. When there is one about the same
// already, that one stays, and becomes as wide as both: the later IssuedBefore,
// the later Until, the newer note unless that is empty. To narrow one, [Registry.Restore]
// it first. [ErrInvalid] when v names nothing, or has a bad field.
func (r *Registry) Revoke(ctx context.Context, v Revocation) (Revocation, error) {
	if err := v.check(); err != nil {
		return Revocation{}, err
	}
	if v.Created == 0 {
		v.Created = time.Now().Unix()
	}
	var stored Revocation
	err := r.do(ctx, registryWrite, func(ctx context.Context, c *sql.Conn) error {
		row := c.QueryRowContext(ctx, `
			INSERT INTO revocations (database, user, token_id, issued_before, until, created, note)
			VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (database, user, token_id, issued_before > 0) DO UPDATE SET
				issued_before = max(issued_before, excluded.issued_before),
				until = iif(until = 0 OR excluded.until = 0, 0, max(until, excluded.until)),
				note = iif(excluded.note = '', note, excluded.note)
			RETURNING `+revocationColumns,
			v.Database, v.User, v.TokenID, v.IssuedBefore, v.Until, v.Created, v.Note)
		return scanRevocation(row, &stored)
	})
	if err != nil {
		return Revocation{}, err
	}
	return stored, nil
}

func scanRevocation(row interface{ Scan(...any) error }, v *Revocation) error {
	return row.Scan(&v.ID, &v.Database, &v.User, &v.TokenID, &v.IssuedBefore, &v.Until, &v.Created, &v.Note)
}

// Restore takes a revocation back, or returns [ErrNotFound].
func (r *Registry) Restore(ctx context.Context, id int64) error {
	var n int
	err := r.do(ctx, registryWrite, func(ctx context.Context, c *sql.Conn) (err error) {
		n, err = affected(c.ExecContext(ctx, "DELETE FROM revocations WHERE id = ?", id))
		return err
	})
	if err == nil && n == 0 {
		return ErrNotFound
	}
	return err
}

// Revocations returns all revocations, the oldest first, those past their Until
// too as long as they have not been swept.
func (r *Registry) Revocations(ctx context.Context) ([]Revocation, error) {
	return list(ctx, r, "SELECT "+revocationColumns+" FROM revocations ORDER BY id",
		func(rows *sql.Rows, v *Revocation) error { return scanRevocation(rows, v) })
}

// SweepRevocations deletes those whose Until lies before now, in Unix seconds,
// and returns how many there were.
func (r *Registry) SweepRevocations(ctx context.Context, now int64) (n int, err error) {
	err = r.do(ctx, registryWrite, func(ctx context.Context, c *sql.Conn) error {
		n, err = affected(c.ExecContext(ctx, "DELETE FROM revocations WHERE until > 0 AND until < ?", now))
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// Cap is a bound on connections that was set while running.
type Cap struct {
	Scope    string // "server", "database" or "ip"
	Database string // for "database": which one, "" = every one; else ""
	Limit    int    // connections; 0 = off
}

func checkScope(scope, database string) error {
	switch {
	case scope != "server" && scope != "database" && scope != "ip":
		return fmt.Errorf("%w: scope %.40q: want server, database or ip", ErrInvalid, scope)
	case scope != "database" && database != "":
		return fmt.Errorf("%w: scope %s with a database", ErrInvalid, scope)
	}
	return checkText("database", database, maxRegistryName)
}

// Caps returns the caps that are set, by scope and database.
func (r *Registry) Caps(ctx context.Context) ([]Cap, error) {
	return list(ctx, r, "SELECT scope, database, connections FROM caps ORDER BY scope, database",
		func(rows *sql.Rows, c *Cap) error { return rows.Scan(&c.Scope, &c.Database, &c.Limit) })
}

// SetCap sets a cap; it replaces the one before. [ErrInvalid] when its scope is
// unknown or its limit negative.
func (r *Registry) SetCap(ctx context.Context, cp Cap) error {
	if err := checkScope(cp.Scope, cp.Database); err != nil {
		return err
	}
	if cp.Limit < 0 || cp.Limit > maxCap {
		return fmt.Errorf("%w: limit %d: want 0 to %d", ErrInvalid, cp.Limit, maxCap)
	}
	return r.do(ctx, registryWrite, func(ctx context.Context, c *sql.Conn) error {
		_, err := c.ExecContext(ctx, "REPLACE INTO caps (scope, database, connections) VALUES (?, ?, ?)", cp.Scope, cp.Database, cp.Limit)
		return err
	})
}

// ResetCap forgets a cap, so that the configuration holds again. There need be none.
func (r *Registry) ResetCap(ctx context.Context, scope, database string) error {
	if err := checkScope(scope, database); err != nil {
		return err
	}
	return r.do(ctx, registryWrite, func(ctx context.Context, c *sql.Conn) error {
		_, err := c.ExecContext(ctx, "DELETE FROM caps WHERE scope = ? AND database = ?", scope, database)
		return err
	})
}

// Databases returns the names of the databases that were added, in their byte order.
func (r *Registry) Databases(ctx context.Context) ([]string, error) {
	return list(ctx, r, "SELECT name FROM databases ORDER BY name",
		func(rows *sql.Rows, name *string) error { return rows.Scan(name) })
}

// AddDatabase remembers a database; it may be there already. The caller has
// checked that the name can be that of a file.
func (r *Registry) AddDatabase(ctx context.Context, name string) error {
	if name == "" {
		return fmt.Errorf("%w: a database without a name", ErrInvalid)
	}
	if err := checkText("database", name, maxRegistryName); err != nil {
		return err
	}
	return r.do(ctx, registryWrite, func(ctx context.Context, c *sql.Conn) error {
		_, err := c.ExecContext(ctx, "INSERT INTO databases (name, created) VALUES (?, ?) ON CONFLICT DO NOTHING", name, time.Now().Unix())
		return err
	})
}

// list returns all rows of a query.
func list[T any](ctx context.Context, r *Registry, query string, scan func(*sql.Rows, *T) error) (all []T, err error) {
	err = r.do(ctx, "BEGIN", func(ctx context.Context, c *sql.Conn) (err error) {
		rows, err := c.QueryContext(ctx, query)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var row T
			if err := scan(rows, &row); err != nil {
				return err
			}
			all = append(all, row)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func affected(result sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}
