package hub

import (
	"context"
	"errors"
	"strings"

	"hub/store"
)

// roomPage is rooms of one database, live and stored ones, in byte order of their names.
type roomPage struct {
	Database string    `json:"database"`
	Rooms    []roomRow `json:"rooms"`
	Live     int       `json:"live"`   // live rooms of the database
	Stored   int64     `json:"stored"` // rooms of the database that were ever published to
	// Next is the after of the next page; empty at the end.
	Next string `json:"next,omitempty"`
}

// roomRow is one room. What clients are not told of rooms without history, it does
// not tell either.
type roomRow struct {
	Room        string `json:"room"`
	Live        bool   `json:"live"`   // somebody is subscribed, or about to be
	Stored      bool   `json:"stored"` // it was published to at some time
	Subscribers int64  `json:"subscribers"`
	Offset      uint64 `json:"offset,omitempty"` // of the last publication
	Epoch       string `json:"epoch,omitempty"`  // empty while a live room is loading
	Time        int64  `json:"time,omitempty"`   // of the last publication, as stored, in unix milliseconds
	LogBytes    int64  `json:"log_bytes"`        // memory of its log
}

// roomDetail is one room with its rules.
type roomDetail struct {
	roomRow
	Database  string `json:"database"`
	Declared  bool   `json:"declared"`        // its namespace is; without it nobody can come
	Durable   bool   `json:"durable"`         // as declared
	Size      uint64 `json:"history_size"`    // as declared
	TTL       int64  `json:"history_ttl"`     // as declared, in seconds; 0 is for ever
	First     uint64 `json:"first,omitempty"` // what is below it is gone; size and ttl may hide more
	Behind    int    `json:"behind"`          // subscribers that wait for pages from the store
	Presence  bool   `json:"presence"`        // as declared
	JoinLeave bool   `json:"join_leave"`      // as declared
}

func adminRooms(c *adminCall) (any, *problem) {
	name := c.query.Get("database")
	if name == "" {
		name = "default"
	}
	db, p := c.database(name)
	if p != nil {
		return nil, p
	}
	limit, p := pageLimit(c.query)
	if p != nil {
		return nil, p
	}
	prefix, after := c.query.Get("prefix"), c.query.Get("after")
	if len(prefix) > maxRoomName || len(after) > maxRoomName {
		return nil, badBody("prefix and after are at most %d bytes long", maxRoomName)
	}
	all := first[string, roomRow]{limit: limit + 1}
	switch c.query.Get("live") {
	case "true":
	case "", "false":
		stored, err := db.store.Rooms(c.r.Context(), prefix, after, limit+1)
		if err != nil {
			return nil, c.failed(err)
		}
		for i := range stored {
			all.add(stored[i].Name, db.storedRoom(&stored[i]))
		}
	default:
		return nil, badBody("live must be true or false")
	}
	for r := range db.liveRooms() {
		if r.name > after && strings.HasPrefix(r.name, prefix) && all.wants(r.name) {
			if row, live := r.describe(); live {
				all.add(r.name, row)
			}
		}
	}
	page := &roomPage{Database: db.name, Live: db.liveCount(), Stored: db.store.Stats().Rooms}
	var more bool
	if page.Rooms, more = all.page(); more {
		page.Next = page.Rooms[limit-1].Room
	}
	return page, nil
}

// storedRoom tells of a room that was stored, and may live too.
func (db *database) storedRoom(stored *store.StoredRoom) roomRow {
	row := roomRow{Room: stored.Name}
	if r := db.live(stored.Name); r != nil {
		row, _ = r.describe()
	}
	row.Stored, row.Time = true, stored.Time
	if row.Offset <= stored.Offset { // else the store was read before
		row.Offset, row.Epoch = stored.Offset, stored.Epoch
	}
	return row
}

// describe tells of a live room, and whether it still is one.
func (r *room) describe() (row roomRow, live bool) {
	row = roomRow{Room: r.name, Subscribers: r.members.Load()}
	durable := r.durable()
	r.mu.Lock()
	defer r.mu.Unlock()
	row.Live = r.state != roomDead
	for _, feeds := range [][]*feed{r.feeds[:], r.signals[:]} {
		for _, f := range feeds {
			row.LogBytes += f.memory()
		}
	}
	if durable {
		row.Offset, row.Epoch = r.head.Load(), r.epoch
		row.Stored = row.Offset > 0
	}
	return row, row.Live
}

// memory is what the feed's segments and pages take; the room's mu is held. A nil
// feed takes nothing.
func (f *feed) memory() (bytes int64) {
	if f == nil {
		return 0
	}
	for _, list := range [][]*segment{f.segments, f.pages} {
		for _, seg := range list {
			bytes += seg.size()
		}
	}
	return bytes
}

func adminRoom(c *adminCall) (any, *problem) {
	db, p := c.database(c.r.PathValue("db"))
	if p != nil {
		return nil, p
	}
	name := c.r.PathValue("room")
	if err := ValidRoom(name); err != nil {
		return nil, invalid(err)
	}
	detail, err := db.describe(c.r.Context(), name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, newProblem("not_found", "nobody is subscribed to the room, and nobody ever published to it")
	case err != nil:
		return nil, c.failed(err)
	}
	return detail, nil
}

// describe tells of one room; [store.ErrNotFound] when it neither lives nor is stored.
func (db *database) describe(ctx context.Context, name string) (*roomDetail, error) {
	d := &roomDetail{roomRow: roomRow{Room: name}, Database: db.name}
	if ns, e := db.namespace(name); e == nil {
		d.Declared, d.Durable, d.Size, d.TTL = true, ns.Durable, ns.HistorySize, int64(ns.HistoryTTL.Seconds())
		d.Presence, d.JoinLeave = ns.Presence, ns.JoinLeave
	}
	live := db.live(name)
	if live != nil {
		d.roomRow, _ = live.describe()
		d.Behind = live.behind()
	}
	stored, err := db.store.Room(ctx, name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if live == nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		d.roomRow, d.First = db.storedRoom(&stored), stored.First
	}
	return d, nil
}

// behind asks the loops how many subscriptions wait for pages.
func (r *room) behind() int {
	waiting := make(chan int, len(r.shards))
	for i := range r.shards {
		sh := &r.shards[i]
		sh.loop.post(func() { waiting <- len(sh.behind) })
	}
	sum := 0
	for range r.shards {
		select {
		case n := <-waiting:
			sum += n
		case <-r.db.server.ended:
			return sum
		}
	}
	return sum
}
