package store

// cachedRooms bounds the rooms whose counters the writer remembers (about 200
// bytes each).
const cachedRooms = 65_536

// room is the writer's copy of a room's counters. It is the truth only as long
// as the transaction that it belongs to commits; any failure throws it away.
type room struct {
	name        string
	id          int64
	incarnation int64
	epoch       string // of the incarnation
	top         uint64 // the last offset given
	first       uint64 // offsets below are gone, though rows may remain
	time        int64  // of the last publication, Unix milliseconds
	oldest      uint64 // lowest offset with a row, 0 = none
	dirty       bool   // counters are to be saved by the batch under way
}

// room returns the room of that name and creates it when it is new.
func (w *writer) room(name string) (*room, error) {
	r, err := w.existing(name)
	if r != nil || err != nil {
		return r, err
	}
	if limit := w.options.MaxRooms; limit > 0 && w.roomRows >= int64(limit) {
		return nil, ErrRoomLimit
	}
	result, err := w.execResult(insertRoom, name)
	if err != nil {
		return nil, err
	}
	r = &room{name: name, epoch: roomEpoch(w.epoch, 0), first: 1}
	if r.id, err = result.LastInsertId(); err != nil {
		return nil, err
	}
	w.rooms[name] = r
	w.roomRows++
	w.created = r
	return r, nil
}

// forget undoes the creation of a room.
func (w *writer) forget(r *room) {
	delete(w.rooms, r.name)
	w.roomRows--
}

// existing returns the room of that name, nil when there is none.
func (w *writer) existing(name string) (*room, error) {
	if r := w.rooms[name]; r != nil {
		return r, nil
	}
	r := &room{name: name}
	found, err := w.readRoom(r)
	if err != nil || !found {
		return nil, err
	}
	var offset, time int64
	if _, err := w.query(oldestEvent, []any{r.id}, &offset, &time); err != nil {
		return nil, err
	}
	r.oldest = uint64(offset)
	r.epoch = roomEpoch(w.epoch, r.incarnation)
	w.rooms[name] = r
	return r, nil
}

// readRoom fills r from the row with its name.
func (w *writer) readRoom(r *room) (found bool, err error) {
	var top, first int64
	found, err = w.query(roomByName, []any{r.name}, &r.id, &r.incarnation, &top, &first, &r.time)
	r.top, r.first = uint64(top), uint64(first)
	return found, err
}

// saveRooms writes the counters that b changed and prunes those of its rooms
// that are far above their size.
func (w *writer) saveRooms(b *batch) error {
	budget := uint64(pruneRows)
	for _, r := range b.dirty {
		if err := w.exec(updateRoom, r.incarnation, int64(r.top), int64(r.first), r.time, r.id); err != nil {
			return err
		}
		if err := w.pruneBusy(r, &budget); err != nil {
			return err
		}
	}
	return nil
}

// trimRooms forgets arbitrary rooms when there are too many. None is dirty.
func (w *writer) trimRooms() {
	if len(w.rooms) <= cachedRooms {
		return
	}
	for name := range w.rooms {
		delete(w.rooms, name)
		if len(w.rooms) <= cachedRooms*3/4 {
			return
		}
	}
}
