package store

import (
	"errors"
	"time"
)

const (
	maintenanceEvery = 200 * time.Millisecond // between two steps
	sweepSteps       = 50                     // between the starts of two sweeps over all rooms, at least
	sweepRooms       = 256                    // rooms looked at in one step
	pruneRows        = 1_000                  // rows deleted at once
	busySlack        = 64                     // rows above the size that a busy room may keep at least
)

// floor returns the lowest offset that size and removal leave of a room.
func floor(first, top, size uint64) uint64 {
	if size <= top {
		return max(first, top-size+1)
	}
	return first
}

// cutoff returns the time that publications must be younger than, in Unix milliseconds.
func cutoff(now int64, ttl time.Duration) int64 {
	if ttl <= 0 {
		return -1 << 63
	}
	return now - ttl.Milliseconds()
}

// pruneBusy deletes rows of a room that is more than 10 % above its size, inside
// the user's transaction: a writer that is never idle prunes too. budget is the
// rows that this transaction may still delete.
func (w *writer) pruneBusy(r *room, budget *uint64) error {
	size := w.options.Retention(r.name).Size
	low := floor(r.first, r.top, size)
	if *budget == 0 || r.oldest == 0 || r.oldest >= low || low-r.oldest <= max(size/10, busySlack) {
		return nil
	}
	end := min(low, r.oldest+*budget)
	*budget -= end - r.oldest
	return w.prune(r.id, r, r.oldest, end)
}

// prune deletes the rows of a room from oldest up to end, which is not deleted.
// r is its counters when they are cached.
func (w *writer) prune(id int64, r *room, oldest, end uint64) error {
	if err := w.exec(deleteEvents, id, int64(oldest), int64(end)); err != nil {
		return err
	}
	if r != nil {
		r.oldest = end
		if end > r.top {
			r.oldest = 0
		}
	}
	return nil
}

// sweep is a walk over all rooms in the order of their ids, a step at a time, so
// that each room gets its turn whatever the others do.
type sweep struct {
	due     bool      // begin the next one now
	running bool      // after is a room of this one
	began   time.Time // when the last one did
	after   int64     // id of the last room looked at
	left    bool      // something was left behind: begin again soon
}

// maintain does one bounded step of deleting what retention and idempotency
// have given up, in a transaction of its own. It reports whether there was more
// than that to delete: then the next step should come soon.
func (w *writer) maintain() (more bool) {
	if w.link == nil {
		return false // after a failure: the next batch or probe finds out
	}
	s := &w.sweep
	if !s.running && !s.due && time.Since(s.began) < sweepSteps*w.options.maintenance {
		return false
	}
	if !s.running {
		*s = sweep{running: true, began: time.Now()}
	}
	more, err := w.sweepStep()
	if err != nil {
		w.options.Logger.Warn("delete expired rows", "path", w.options.Path, "error", err)
		w.health.note(err)
		w.disconnect()
		s.running = false
		return false
	}
	return more
}

func (w *writer) sweepStep() (more bool, err error) {
	if err := w.exec(begin); err != nil {
		return false, err
	}
	w.now = w.options.Now().UnixMilli()
	result, err := w.execResult(expireIDs, w.now-w.options.IdempotencyTTL.Milliseconds(), pruneRows)
	if err != nil {
		return false, err
	}
	expired, err := result.RowsAffected()
	if err != nil {
		return false, err
	}
	s := &w.sweep
	rooms, err := w.roomsAfter(s.after)
	if err != nil {
		return false, err
	}
	last := len(rooms) < sweepRooms
	budget := uint64(pruneRows)
	for len(rooms) > 0 && budget > 0 {
		n, err := w.pruneRoom(&rooms[0], budget)
		if err != nil {
			return false, err
		}
		budget -= n
		s.after = rooms[0].id
		rooms = rooms[1:]
	}
	more = budget == 0 || expired == pruneRows
	s.left = s.left || more
	if last && len(rooms) == 0 {
		s.running, s.due = false, s.due || s.left
	}
	return more, w.exec(commit)
}

// roomsAfter reads the next rooms of a sweep.
func (w *writer) roomsAfter(id int64) (_ []room, err error) {
	if err := w.fail(statements[nextRooms].stage); err != nil {
		return nil, err
	}
	rows, err := w.link.stmts[nextRooms].Query(id, sweepRooms)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var rooms []room
	for rows.Next() {
		var r room
		var top, first int64
		if err := rows.Scan(&r.id, &r.name, &top, &first); err != nil {
			return nil, err
		}
		r.top, r.first = uint64(top), uint64(first)
		rooms = append(rooms, r)
	}
	return rooms, rows.Err()
}

// pruneRoom deletes up to budget rows that r does not retain, oldest first.
func (w *writer) pruneRoom(r *room, budget uint64) (uint64, error) {
	var oldest, at int64
	found, err := w.query(oldestEvent, []any{r.id}, &oldest, &at)
	if err != nil || !found {
		return 0, err
	}
	retention := w.options.Retention(r.name)
	from, low := uint64(oldest), floor(r.first, r.top, retention.Size)
	if cut := cutoff(w.now, retention.TTL); at <= cut {
		// Times never decrease, so what expired is the beginning.
		var n int64
		if _, err := w.query(expiredEvents, []any{r.id, oldest, int64(from + budget), cut}, &n); err != nil {
			return 0, err
		}
		low = max(low, from+uint64(n))
	}
	if low <= from {
		return 0, nil
	}
	end := min(low, from+budget)
	return end - from, w.prune(r.id, w.rooms[r.name], from, end)
}
