package loadtest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"hub/loadtest/model"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// stored is what a database must hold for one room: the events that were made
// there, in order and without those that were refused.
type stored struct {
	room       string
	number, by int // in every event, see event
	user       string
	size       int
	// acked of the given events were acknowledged, each once. The rest, except the
	// refused, have no answer: the first of them may have been committed.
	given, acked uint64
	refused      map[uint64]struct{} // numbers
	// operations, unless nil, are what was done in the room; there are no events but
	// theirs.
	operations *model.Verdict
}

// checkDatabase opens the file of a database that no process has open, without
// writing to it, and returns what is wrong with it: SQLite's own integrity_check,
// and for every room the events from 1 up to the number acknowledged, without a
// gap as far as history is kept, each byte for byte as it was made; compared is
// their number. It knows the schema but shares no code with the server.
func checkDatabase(ctx context.Context, path, name string, want []stored, retention uint64) (integrity, events []string, compared uint64, err error) {
	db, err := openStopped(path)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("open database %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	integrity, err = column(ctx, db, "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok' LIMIT 10")
	if err != nil {
		// A file that is damaged enough cannot even be checked.
		return []string{fmt.Sprintf("integrity_check of %s: %v", name, err)}, []string{"not readable"}, 0, nil
	}
	if len(integrity) > 0 {
		return integrity, []string{"the file is damaged"}, 0, nil
	}
	expected := make(map[string]stored, len(want))
	for _, w := range want {
		expected[w.room] = w
	}
	events, compared, err = checkRooms(ctx, db, name, expected, retention)
	if err != nil {
		return nil, events, compared, err
	}
	for _, w := range want {
		if w.operations != nil && w.acked > 0 {
			wrong, n, err := checkOperations(ctx, db, name, &w, retention)
			if err != nil {
				return nil, events, compared, err
			}
			events, compared = append(events, wrong...), compared+n
		}
	}
	return nil, events, compared, nil
}

// openStopped opens a file read-only. Without a write-ahead log that holds
// anything it is opened as immutable, so that no file is made beside it.
func openStopped(path string) (*sql.DB, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	path, err := filepath.Abs(path)
	if err != nil {
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

// eventQuery reads the stored events of each room at and above its first offset.
const eventQuery = `SELECT id, name, top, first, offset, user, data
	FROM rooms LEFT JOIN events ON room_id = id AND offset >= first ORDER BY id, offset`

// checkRooms returns what the rooms of a database lack, and how many events it
// compared; those that are found are
// taken out of expected.
func checkRooms(ctx context.Context, db *sql.DB, name string, expected map[string]stored, retention uint64) (wrong []string, compared uint64, err error) {
	rows, err := db.QueryContext(ctx, eventQuery)
	if err != nil {
		return nil, 0, fmt.Errorf("read database %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	bad := func(room, what string) {
		if what != "" {
			wrong = append(wrong, fmt.Sprintf("database %s, room %s: %s", name, room, what))
		}
	}
	var r *roomRows
	for rows.Next() {
		var id int64
		var next roomRows
		var offset sql.NullInt64
		var user sql.NullString
		var data sql.RawBytes
		if err := rows.Scan(&id, &next.room, &next.top, &next.first, &offset, &user, &data); err != nil {
			return nil, 0, fmt.Errorf("read database %s: %w", name, err)
		}
		if r == nil || r.id != id {
			if r != nil {
				bad(r.room, r.wrong(retention))
			}
			r = &next
			r.id, r.db = id, name
			r.want, r.asked = expected[r.room]
			delete(expected, r.room)
		}
		if offset.Valid && r.want.operations == nil {
			compared++
			r.event(uint64(offset.Int64), user.String, data)
		}
	}
	if r != nil {
		bad(r.room, r.wrong(retention))
	}
	if err := rows.Err(); err != nil {
		return nil, 0, fmt.Errorf("read database %s: %w", name, err)
	}
	for room, w := range expected {
		if w.acked > 0 {
			bad(room, fmt.Sprintf("%d events were acknowledged, the room is not stored", w.acked))
		}
	}
	return wrong, compared, nil
}

// roomRows is what was read of one room.
type roomRows struct {
	id         int64
	room, db   string
	top, first uint64
	want       stored
	asked      bool

	count, low, high uint64 // of the offsets
	at, seq          uint64 // an offset and the number of its event
	strange          uint64 // events that are not those which were made
	made             []byte
}

// event takes the next event.
func (r *roomRows) event(offset uint64, user string, data []byte) {
	if r.count++; r.count == 1 {
		r.low = offset
	}
	r.high = offset
	if offset > r.want.given {
		return // wrong says so
	}
	for r.at < offset {
		r.at++
		r.seq++
		for r.refused(r.seq) {
			r.seq++
		}
	}
	sent, _, ok := parseEvent(data)
	r.made = appendEvent(r.made[:0], event{seq: r.seq, room: r.want.number, by: r.want.by, due: sent.due}, r.db, r.want.size)
	if !ok || user != r.want.user || !bytes.Equal(data, r.made) {
		r.strange++
	}
}

func (r *roomRows) refused(seq uint64) bool {
	_, refused := r.want.refused[seq]
	return refused
}

// wrong says what is wrong with the room, once all of it is read; empty for nothing.
func (r *roomRows) wrong(retention uint64) string {
	// What history_size keeps may not be pruned.
	kept := uint64(1)
	if r.top > retention {
		kept = r.top - retention + 1
	}
	most := r.want.given - uint64(len(r.want.refused))
	switch {
	case !r.asked:
		return "nobody published there"
	case r.want.operations != nil:
		return "" // checkOperations says it
	case r.top < r.want.acked || r.top > most:
		return fmt.Sprintf("%d events were committed, %d acknowledged", r.top, r.want.acked)
	case r.first > kept || r.top > 0 && (r.count == 0 || r.low > kept):
		return fmt.Sprintf("history begins at %d, it should reach back to %d", max(r.first, r.low), kept)
	case r.count > 0 && (r.high != r.top || r.count != r.top-r.low+1):
		return fmt.Sprintf("%d events stored from %d to %d, there should be all up to %d", r.count, r.low, r.high, r.top)
	case r.strange > 0:
		return fmt.Sprintf("%d events hold other data than was sent under their number", r.strange)
	}
	return ""
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
