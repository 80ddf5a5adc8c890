package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// pragma is a setting of a connection and the value it must have afterwards.
type pragma struct{ name, set, want string }

// The settings of each kind of connection; they go into its DSN, so that no
// connection can be without them, and are read back when it is open. Cache, mmap
// and checkpoint figures: MEASURED, SQLite.
var (
	commonPragmas = []pragma{
		{"busy_timeout", "5000", "5000"}, // ms; first, so the others may wait for a lock
		{"foreign_keys", "1", "1"},
		{"cache_size", "-16384", "-16384"}, // KiB
		{"mmap_size", "268435456", "268435456"},
		{"wal_autocheckpoint", "0", "0"}, // the writer checkpoints
		{"journal_size_limit", "8388608", "8388608"},
		{"trusted_schema", "0", "0"},
	}
	readerPragmas = append(commonPragmas[:len(commonPragmas):len(commonPragmas)],
		pragma{"query_only", "1", "1"})
	// The setup connection syncs each commit whatever the configuration: the mark
	// "open" must reach the disk before anything that could be lost does.
	setupPragmas = []pragma{
		{"busy_timeout", "5000", "5000"},
		{"synchronous", "FULL", "2"},
		{"foreign_keys", "1", "1"},
		{"wal_autocheckpoint", "0", "0"},
	}
)

func writerPragmas(synchronous string) []pragma {
	p := pragma{"synchronous", "NORMAL", "1"}
	if synchronous == "full" {
		p = pragma{"synchronous", "FULL", "2"}
	}
	// Undoing a savepoint needs its pages as they were: they stay in memory, where no
	// full or missing /tmp can fail a write.
	undo := pragma{"temp_store", "MEMORY", "2"}
	return append(commonPragmas[:len(commonPragmas):len(commonPragmas)], p, undo)
}

// dsn returns the URI of a database file. No character of the path can become a
// parameter (sqlite.org/uri.html).
func dsn(path string, params []string, pragmas []pragma) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/x
	}
	for _, p := range pragmas {
		params = append(params, "_pragma="+p.name+"("+p.set+")")
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: strings.Join(params, "&")}
	return u.String()
}

// link is one physical connection with its prepared statements.
type link struct {
	pool  *sql.DB // of this connection alone
	conn  *sql.Conn
	stmts []*sql.Stmt
}

// connect opens a connection, checks its pragmas and prepares queries.
func connect(ctx context.Context, dsn string, want []pragma, queries ...string) (_ *link, err error) {
	l := &link{}
	if l.pool, err = sql.Open("sqlite", dsn); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	l.pool.SetMaxOpenConns(1)
	if l.conn, err = l.pool.Conn(ctx); err != nil {
		return nil, err
	}
	for _, p := range want {
		var got string
		if err := l.conn.QueryRowContext(ctx, "PRAGMA "+p.name).Scan(&got); err != nil {
			return nil, fmt.Errorf("read back %s: %w", p.name, err)
		}
		if got != p.want {
			return nil, fmt.Errorf("%s is %s, want %s", p.name, got, p.want)
		}
	}
	for _, q := range queries {
		s, err := l.conn.PrepareContext(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("prepare %q: %w", q, err)
		}
		l.stmts = append(l.stmts, s)
	}
	return l, nil
}

// close closes the connection, which rolls an open transaction back.
func (l *link) close() error {
	var errs []error
	for _, s := range l.stmts {
		errs = append(errs, s.Close())
	}
	if l.conn != nil {
		errs = append(errs, l.conn.Close())
	}
	return errors.Join(append(errs, l.pool.Close())...)
}
