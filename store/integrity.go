package store

import (
	"context"
	"errors"
	"fmt"
)

// CheckIntegrity checks the file of a database that is not open, without
// writing to it: SQLite's own integrity_check and foreign_key_check, and that
// the stored publications of each room are contiguous up to its top.
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
		rows, err := l.conn.QueryContext(ctx, check.query)
		if err != nil {
			return fmt.Errorf("%s: %w", check.name, err)
		}
		for rows.Next() {
			var finding string
			if err := errors.Join(rows.Scan(&finding), rows.Close()); err != nil {
				return fmt.Errorf("%s: %w", check.name, err)
			}
			return fmt.Errorf("%s: %s", check.name, finding)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return fmt.Errorf("%s: %w", check.name, err)
		}
	}
	return nil
}
