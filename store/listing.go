package store

import (
	"context"
	"errors"
)

// StoredRoom is a room that was published to at some time.
type StoredRoom struct {
	Name string
	Position
	// First: publications below it are gone. What [Options].Retention says may hide
	// more.
	First uint64
	Time  int64 // of the last publication, Unix milliseconds
}

// Rooms returns stored rooms whose names begin with prefix and come after another
// name, in byte order of the names, at most limit of them (0 = all).
func (db *DB) Rooms(ctx context.Context, prefix, after string, limit int) (rooms []StoredRoom, err error) {
	if limit <= 0 {
		limit = -1
	}
	low, end := keyRange(prefix, after)
	err = db.readers.use(ctx, func(r *reader) (err error) {
		rows, err := r.link.stmts[readRooms].QueryContext(ctx, low, end, limit)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var room StoredRoom
			var incarnation, top, first int64
			if err := rows.Scan(&room.Name, &incarnation, &top, &first, &room.Time); err != nil {
				return err
			}
			room.Position = Position{Offset: uint64(top), Epoch: roomEpoch(db.epoch, incarnation)}
			room.First = uint64(first)
			rooms = append(rooms, room)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	return rooms, nil
}

// Room returns one stored room, or [ErrNotFound].
func (db *DB) Room(ctx context.Context, name string) (StoredRoom, error) {
	rooms, err := db.Rooms(ctx, name, "", 1)
	if err == nil && (len(rooms) == 0 || rooms[0].Name != name) {
		err = ErrNotFound
	}
	if err != nil {
		return StoredRoom{}, err
	}
	return rooms[0], nil
}
