package store

import (
	"bufio"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"modernc.org/sqlite"
)

// killedSteps are migrations whose second one stops between what it changes and
// its version number.
var killedSteps = []string{"CREATE TABLE a (x); INSERT INTO a VALUES (1)", "ALTER TABLE a ADD COLUMN y DEFAULT 7; SELECT hang()"}

// TestKilledMigrationChild is the process that is killed; it is no test by itself.
func TestKilledMigrationChild(t *testing.T) {
	path := os.Getenv("STORE_TEST_MIGRATE")
	if path == "" {
		return
	}
	err := sqlite.RegisterScalarFunction("hang", 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		fmt.Println("in the middle")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		return nil, errors.New("not killed")
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := connect(t.Context(), dsn(path, nil, setupPragmas), setupPragmas)
	if err != nil {
		t.Fatal(err)
	}
	t.Fatal(migrate(t.Context(), l.conn, killedSteps))
}

// Case G32: a process that is killed between ALTER TABLE and the version number
// leaves the version before; another run does the whole step, once.
func TestKilledMigration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.db")
	for range 2 { // the second child meets what the first has left
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledMigrationChild$")
		cmd.Env = append(os.Environ(), "STORE_TEST_MIGRATE="+path)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err := errors.Join(cmd.Process.Kill(), err); err != nil || line != "in the middle\n" {
			t.Fatalf("child said %q, %v", line, err)
		}
		_ = cmd.Wait()
	}
	l, err := connect(t.Context(), dsn(path, nil, setupPragmas), setupPragmas)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if _, version, err := identity(t.Context(), l.conn); err != nil || version != 1 {
		t.Errorf("version %d, %v, want that of the first step", version, err)
	}
	steps := []string{killedSteps[0], "ALTER TABLE a ADD COLUMN y DEFAULT 7"}
	for range 2 {
		if err := migrate(t.Context(), l.conn, steps); err != nil {
			t.Fatal(err)
		}
	}
	var rows, sum int
	if err := l.conn.QueryRowContext(context.Background(), "SELECT count(*), sum(y) FROM a").Scan(&rows, &sum); err != nil || rows != 1 || sum != 7 {
		t.Errorf("%d rows with sum %d, %v, want one with 7", rows, sum, err)
	}
}
