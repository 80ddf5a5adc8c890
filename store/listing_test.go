package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"hub/store"
)

// Pages of rooms, asked for one after the other, have each room once, in byte order.
func TestRoomsByPage(t *testing.T) {
	db := open(t, options(t))
	names := []string{"a", "a:", "a:1", "a:%", "a:_", "a:ß", "a:\U0010ffff", "a;", "B", "é", "zz"}
	for i := range 40 {
		names = append(names, fmt.Sprint("a:room-", i))
	}
	for _, name := range names {
		fill(t, db, name, 2)
	}
	remove(t, db, "a:1")
	slices.Sort(names)
	for _, prefix := range []string{"", "a", "a:", "a:room-1", "a:\U0010ffff", "é", "\xc3", "nobody"} {
		var want []string
		for _, name := range names {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		for _, limit := range []int{0, 1, 3, 100} {
			var got []string
			for after := ""; ; {
				page, err := db.Rooms(t.Context(), prefix, after, limit)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range page {
					got = append(got, r.Name)
					if p := position(t, db, r.Name); r.Position != p || r.Time == 0 || r.First != (map[bool]uint64{true: 3, false: 1})[r.Name == "a:1"] {
						t.Errorf("%+v, want position %+v", r, p)
					}
				}
				if limit == 0 || len(page) < limit {
					break
				}
				after = page[len(page)-1].Name
			}
			if !slices.Equal(got, want) {
				t.Errorf("prefix %q by %d: %q, want %q", prefix, limit, got, want)
			}
		}
	}
	if r, err := db.Room(t.Context(), "a:room-1"); err != nil || r.Offset != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := db.Room(t.Context(), "a:room-"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a room that begins another's name: %+v, %v", r, err)
	}
}

// A database in use is checked as it is, and goes on.
func TestIntegrityWhileWriting(t *testing.T) {
	o := options(t)
	db := open(t, o)
	fill(t, db, "a", 5)
	ctx, cancel := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for ctx.Err() == nil {
			if a := <-ask(db, message("b", "1")); a.err != nil {
				t.Error(a.err)
			}
		}
	})
	for range 10 {
		if err := db.CheckIntegrity(t.Context()); err != nil {
			t.Error(err)
		}
	}
	cancel()
	writer.Wait()
	change(t, o.Path, "DELETE FROM events WHERE offset = 3")
	if err := db.CheckIntegrity(t.Context()); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("a publication is missing: %v", err)
	}
	if err := db.CheckIntegrity(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context: %v", err)
	}
	fill(t, db, "a", 1)
	shut(t, db)
	if err := db.CheckIntegrity(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := store.CheckIntegrity(t.Context(), o.Path); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("the stopped database: %v", err)
	}
}
