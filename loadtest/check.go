package loadtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// stored is what a database must hold for one room.
type stored struct {
	room  string
	acked uint64 // events that were acknowledged, each once
	// refused says that others were refused: their numbers have no offset.
	refused bool
}

// checkDatabase opens the file of a database that no process has open, without
// writing to it, and returns what is wrong with it: SQLite's own integrity_check,
// and for every room the events from 1 up to the number acknowledged, without a
// gap as far as history is kept, each with the data that was sent under its
// number. It knows the schema but shares no code with the server.
func checkDatabase(ctx context.Context, path, name string, want []stored, retention uint64) (integrity, events []string, err error) {
	db, err := openStopped(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open database %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	integrity, err = column(ctx, db, "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok' LIMIT 10")
	if err != nil {
		// A file that is damaged enough cannot even be checked.
		return []string{fmt.Sprintf("integrity_check of %s: %v", name, err)}, []string{"not readable"}, nil
	}
	if len(integrity) > 0 {
		return integrity, []string{"the file is damaged"}, nil
	}
	expected := make(map[string]stored, len(want))
	for _, w := range want {
		expected[w.room] = w
	}
	events, err = checkRooms(ctx, db, name, expected, retention)
	return nil, events, err
}

// openStopped opens a file read-only. Without a write-ahead log that holds
// anything it is opened as immutable, so that no file is made beside it.
func openStopped(path string) (*sql.DB, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	query := "mode=ro&_pragma=query_only(1)"
	if info, err := os.Stat(path + "-wal"); err != nil || info.Size() == 0 {
		query += "&immutable=1"
	}
	file := filepath.ToSlash(path)
	if !strings.HasPrefix(file, "/") {
		file = "/" + file
	}
	u := url.URL{Scheme: "file", Path: file, RawQuery: query}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// roomQuery counts the stored events of each room at and above its first offset.
const roomQuery = `SELECT name, top, first, count(offset), coalesce(min(offset), 0), coalesce(max(offset), 0),
	count(CASE WHEN CAST(json_extract(data, '$.seq') AS INTEGER) <> offset THEN 1 END),
	count(CASE WHEN json_extract(data, '$.db') <> ? THEN 1 END)
	FROM rooms LEFT JOIN events ON room_id = id AND offset >= first GROUP BY id ORDER BY id`

// checkRooms returns what the rooms of a database lack; those that are found are
// taken out of expected.
func checkRooms(ctx context.Context, db *sql.DB, name string, expected map[string]stored, retention uint64) (wrong []string, err error) {
	rows, err := db.QueryContext(ctx, roomQuery, name)
	if err != nil {
		return nil, fmt.Errorf("read database %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	bad := func(room, format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("database %s, room %s: ", name, room)+fmt.Sprintf(format, args...))
	}
	for rows.Next() {
		var room string
		var top, first, count, low, high, renumbered, strange uint64
		if err := rows.Scan(&room, &top, &first, &count, &low, &high, &renumbered, &strange); err != nil {
			return nil, fmt.Errorf("read database %s: %w", name, err)
		}
		w, asked := expected[room]
		delete(expected, room)
		// What history_size keeps may not be pruned.
		kept := uint64(1)
		if top > retention {
			kept = top - retention + 1
		}
		switch {
		case !asked:
			bad(room, "nobody published there")
		case top != w.acked:
			bad(room, "%d events were committed, %d acknowledged", top, w.acked)
		case first > kept || top > 0 && (count == 0 || low > kept):
			bad(room, "history begins at %d, it should reach back to %d", max(first, low), kept)
		case count > 0 && (high != top || count != top-low+1):
			bad(room, "%d events stored from %d to %d, there should be all up to %d", count, low, high, top)
		case strange > 0 || renumbered > 0 && !w.refused:
			bad(room, "%d events hold other data than was sent under their number", max(strange, renumbered))
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read database %s: %w", name, err)
	}
	for room, w := range expected {
		if w.acked > 0 {
			bad(room, "%d events were acknowledged, the room is not stored", w.acked)
		}
	}
	return wrong, nil
}

// column returns the first column of a query.
func column(ctx context.Context, db *sql.DB, query string) (list []string, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, rows.Err()
}
