package store

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// A step and its version number are one commit: a step that fails leaves
// nothing, another run does the rest, and nothing runs twice.
func TestMigrate(t *testing.T) {
	l, err := connect(t.Context(), dsn(filepath.Join(t.TempDir(), "m.db"), nil, setupPragmas), setupPragmas)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	version := func() int {
		_, v, err := identity(t.Context(), l.conn)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	steps := []string{"CREATE TABLE a (x)", "CREATE TABLE b (x); INSERT INTO b VALUES (1)", "CREATE TABLE c (x); INSERT INTO nowhere VALUES (1)"}
	if err := migrate(t.Context(), l.conn, steps); err == nil || !strings.Contains(err.Error(), "version 3") {
		t.Errorf("a bad step: %v", err)
	}
	if v := version(); v != 2 {
		t.Errorf("version %d after the third step failed", v)
	}
	var n int
	if err := l.conn.QueryRowContext(t.Context(), "SELECT 1 FROM sqlite_schema WHERE name = 'c'").Scan(&n); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("half a step is left: %v", err)
	}
	steps[2] = "CREATE TABLE c (x)"
	for range 2 {
		if err := migrate(t.Context(), l.conn, steps); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.conn.QueryRowContext(t.Context(), "SELECT count(*) FROM b").Scan(&n); err != nil || n != 1 || version() != 3 {
		t.Errorf("rows %d, version %d, %v", n, version(), err)
	}
	if err := migrate(t.Context(), l.conn, steps[:2]); !errors.Is(err, ErrNewer) {
		t.Errorf("an older program: %v", err)
	}
}
