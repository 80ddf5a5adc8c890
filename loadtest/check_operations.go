package loadtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"hub/loadtest/model"
)

// checkOperations says how a room in a stopped database is not what the operations
// that were answered as applied have made of it: events, resources with the
// versions of those that were deleted, and the record of each id, once. compared is
// the number of events that it looked at.
func checkOperations(ctx context.Context, db *sql.DB, name string, want *stored, retention uint64) (wrong []string, compared uint64, err error) {
	c := operationsCheck{ctx: ctx, db: db, want: want.operations, unanswered: want.given - want.acked,
		where: fmt.Sprintf("database %s, room %s", name, want.room)}
	var first uint64
	err = db.QueryRowContext(ctx, "SELECT id, top, first FROM rooms WHERE name = ?", want.room).Scan(&c.id, &c.top, &first)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, 0, nil // told already
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read database %s: %w", name, err)
	}
	if acked := uint64(len(c.want.Applied)); c.top < acked || c.top > acked+c.unanswered {
		c.bad("%d operations were committed, %d answered as applied", c.top, acked)
	}
	kept := uint64(1)
	if c.top > retention {
		kept = c.top - retention + 1
	}
	if err := errors.Join(c.events(max(kept, first)), c.resources(), c.ids()); err != nil {
		return c.wrong, c.compared, fmt.Errorf("read database %s: %w", name, err)
	}
	if first > kept {
		c.bad("history begins at %d, it should reach back to %d", first, kept)
	}
	return c.wrong, c.compared, nil
}

// operationsCheck is the check of one room.
type operationsCheck struct {
	ctx        context.Context
	db         *sql.DB
	where      string
	id         int64
	top        uint64
	want       *model.Verdict
	unanswered uint64 // operations that may have been committed
	wrong      []string
	compared   uint64
}

func (c *operationsCheck) bad(format string, args ...any) {
	c.wrong = append(c.wrong, c.where+": "+fmt.Sprintf(format, args...))
}

// rows calls each for every row of a query about the room.
func (c *operationsCheck) rows(query string, each func(scan func(...any) error) error) (err error) {
	rows, err := c.db.QueryContext(c.ctx, query, c.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// events compares those from an offset on.
func (c *operationsCheck) events(from uint64) error {
	next := from
	err := c.rows("SELECT offset, user, data FROM events WHERE room_id = ? ORDER BY offset", func(scan func(...any) error) error {
		var offset uint64
		var user string
		var data []byte
		if err := scan(&offset, &user, &data); err != nil || offset < from {
			return err
		}
		if offset != next {
			c.bad("the event at offset %d is missing", next)
		}
		next = offset + 1
		c.compared++
		if offset > uint64(len(c.want.Applied)) {
			return nil // one without an answer, or too many: told by top
		}
		var e model.Event
		_ = json.Unmarshal(data, &e) // what is no JSON differs
		if text := wrongEvent(c.want.Applied[offset-1], c.want.Results[offset-1], &e, user); text != "" {
			c.bad("%s", text)
		}
		return nil
	})
	if err == nil && next <= c.top {
		c.bad("events from offset %d on are missing", next)
	}
	return err
}

// resources compares what the operations have left.
func (c *operationsCheck) resources() error {
	got := model.State{}
	err := c.rows("SELECT key, version, value FROM resources WHERE room_id = ?1 UNION ALL SELECT key, version, NULL FROM deleted WHERE room_id = ?1", func(scan func(...any) error) error {
		var r model.Resource
		var value []byte
		err := scan(&r.Key, &r.Version, &value)
		r.Value, r.Deleted = value, value == nil
		got[r.Key] = r
		return err
	})
	if d := c.want.State.Difference(got); err == nil && d != "" && c.unanswered == 0 {
		c.bad("stored resources: %s", d)
	}
	return err
}

// ids compares the records that make a repeat harmless.
func (c *operationsCheck) ids() error {
	type id struct{ user, id string }
	got := make(map[id]uint64)
	err := c.rows("SELECT caller, id, offset FROM idempotency WHERE room_id = ?", func(scan func(...any) error) error {
		var i id
		var offset uint64
		err := scan(&i.user, &i.id, &offset)
		got[i] = offset
		return err
	})
	if err != nil {
		return err
	}
	for i, op := range c.want.Applied {
		at := id{op.User, op.ID}
		if offset, ok := got[at]; !ok || offset != c.want.Results[i].Offset {
			c.bad("the record of id %s of user %s is missing or of offset %d, not %d", op.ID, op.User, offset, c.want.Results[i].Offset)
		}
		delete(got, at)
	}
	if more := uint64(len(got)); more > c.unanswered {
		c.bad("%d ids are recorded that were not answered as applied", more)
	}
	return nil
}
