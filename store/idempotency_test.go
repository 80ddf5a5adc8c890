package store_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"hub/store"
)

func TestOperationIdempotency(t *testing.T) {
	c := newClock()
	o := options(t)
	o.Now, o.IdempotencyTTL = c.now, time.Hour
	o.Retention = keep(1, 0)
	o.SetMaintenance(time.Millisecond)
	db := open(t, o)
	op := operation("a", "x", set("k", `{"a":1.0}`), set("null", `null`), set(`q"ü`, `1`), del(`q"ü`))
	first := operate(t, db, op)
	replayed := first
	replayed.Replayed = true
	again := func(when string) {
		t.Helper()
		if got := operate(t, db, op); !reflect.DeepEqual(got, replayed) {
			t.Errorf("%s: %+v\nwant %+v", when, got, replayed)
		}
		if got, err := db.FindOperation(t.Context(), "a", "u", "x"); err != nil || !reflect.DeepEqual(got, replayed) {
			t.Errorf("%s: found %+v, %v\nwant %+v", when, got, err, replayed)
		}
	}
	again("again")
	// The result is the one of then, whatever became of the resources since.
	operate(t, db, operation("a", "y", del("k"), set("null", `2`)))
	again("after other operations")
	shut(t, db)
	db = open(t, o)
	again("after a restart")
	remove(t, db, "a")
	again("after the history was removed")

	// Digest of what it publishes or not: an id stands for one kind of write.
	p := message("a", `1`)
	p.Caller, p.ID = "u", "p"
	published := publish(t, db, p)
	asOperation := operation("a", "p", set("k", `1`))
	asOperation.Digest = sha256.Sum256(p.Publication.Data)
	asPublication := message("a", `2`)
	asPublication.Caller, asPublication.ID = "u", "z"
	z := operation("a", "z", set("z", `1`))
	z.Digest = sha256.Sum256(asPublication.Publication.Data)
	operate(t, db, z)
	other := op
	other.Digest[0]++
	before := state(t, db, "a")
	for name, err := range map[string]error{
		"other content":              await(t, start(db, other)).err,
		"an operation's publication": wait(t, ask(db, asPublication)).err,
		"a publication's operation":  await(t, start(db, asOperation)).err,
	} {
		if !errors.Is(err, store.ErrIDReused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := state(t, db, "a"); after != before {
		t.Errorf("%s, before %s", after, before)
	}
	published.Replayed = true
	if got, err := db.FindOperation(t.Context(), "a", "u", "p"); err != nil || got.Result != published || got.Resources != nil {
		t.Errorf("found a publication: %+v, %v; want %+v", got, err, published)
	}
	for _, who := range [][3]string{{"b", "u", "x"}, {"a", "v", "x"}, {"a", "u", "X"}, {"a", "", "x"}} {
		if got, err := db.FindOperation(t.Context(), who[0], who[1], who[2]); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%q: %+v, %v", who, got, err)
		}
	}
	mine := op
	mine.Caller = "v"
	if r := operate(t, db, mine); r.Replayed {
		t.Errorf("another caller: %+v", r)
	}

	c.add(time.Hour - time.Millisecond)
	again("until its time is over")
	c.add(time.Millisecond)
	if got, err := db.FindOperation(t.Context(), "a", "u", "x"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("expired: %+v, %v", got, err)
	}
	if r := operate(t, db, operation("a", "x", set("k", `"new"`))); r.Replayed || list(r.Resources) != `k 4 "new"` {
		t.Errorf("expired: %+v", r)
	}
	if r := publish(t, db, asPublication); r.Replayed {
		t.Errorf("expired: %+v", r)
	}
	if r := publish(t, db, asPublication); !r.Replayed {
		t.Errorf("a publication under an id that an operation had: %+v", r)
	}
	c.add(time.Hour)
	until(t, "expired ids are deleted", func() bool { return count(t, o.Path, "SELECT count(*) FROM idempotency") == 0 })
	if got := state(t, db, "a"); got != `k 4 "new"; null 3 null; z 1 1` {
		t.Errorf("resources go with ids: %s", got)
	}
}

// Copies that race, in one batch and over many, are applied once.
func TestOperationIDRace(t *testing.T) {
	for _, batched := range []bool{true, false} {
		t.Run(fmt.Sprintf("batched=%t", batched), func(t *testing.T) {
			g := newGate("begin")
			o := options(t)
			o.SetFault(g.fault)
			db := open(t, o)
			g.hold(t, db, message("a", `0`))
			if !batched {
				close(g.open)
			}
			copies := make(chan (<-chan operated), 200)
			op := operation("a", "x", create("k", `1`))
			for range 20 {
				go func() {
					for range 10 {
						copies <- start(db, op)
					}
				}()
			}
			if batched {
				until(t, "all wait", func() bool { return db.Stats().Queue == cap(copies) })
				close(g.open)
			}
			fresh := 0
			for range cap(copies) {
				a := await(t, <-copies)
				if a.err != nil || a.Offset != 2 || list(a.Resources) != "k 1 1" {
					t.Errorf("copy: %+v", a)
				}
				if !a.Replayed {
					fresh++
				}
			}
			if top := position(t, db, "a").Offset; fresh != 1 || top != 2 {
				t.Errorf("%d fresh, top %d", fresh, top)
			}
		})
	}
}

// A stored result that cannot be read is an error, not a result, and no reason to
// do it again.
func TestDamagedResult(t *testing.T) {
	o := options(t)
	db := open(t, o)
	op := operation("a", "1", create("k", `1`))
	operate(t, db, op)
	change(t, o.Path, "UPDATE idempotency SET result = x'5b'")
	if a := await(t, start(db, op)); !errors.Is(a.err, store.ErrUnavailable) || a.Offset != 0 {
		t.Errorf("again: %+v", a)
	}
	if r, err := db.FindOperation(t.Context(), "a", "u", "1"); !errors.Is(err, store.ErrUnavailable) || r.Offset != 0 {
		t.Errorf("found %+v, %v", r, err)
	}
	if r := operate(t, db, operation("a", "2", add("k", "", 1))); r.Offset != 2 || db.Stats().Failed != 0 {
		t.Errorf("another: %+v, %d batches failed", r, db.Stats().Failed)
	}
}

func TestIDIgnoresInsignificantSpace(t *testing.T) {
	db := open(t, options(t))
	for i, test := range []struct {
		first, again string
		same         bool
	}{
		{`{"a": 1}`, `{"a":1}`, true},
		{`{"a":1}`, "\t{ \"a\" : 1 }", true},
		{`"a b"`, `"ab"`, false},
		{`{"a": 1}`, `{"a": 2}`, false},
		{`{"a": 1}`, `{"a": 1.0}`, false},
		{`no json`, `nojson`, false}, // its bytes count
		{`no json`, `no json`, true},
	} {
		p := message("r", test.first)
		p.Caller, p.ID = "u", fmt.Sprintf("an id %d", i)
		r := publish(t, db, p)
		p.Publication.Data = []byte(test.again)
		a := wait(t, ask(db, p))
		switch {
		case test.same && (a.err != nil || a.Offset != r.Offset || !a.Replayed):
			t.Errorf("%s after %s: %+v, want the first result", test.again, test.first, a)
		case !test.same && !errors.Is(a.err, store.ErrIDReused):
			t.Errorf("%s after %s: %+v, want ErrIDReused", test.again, test.first, a)
		}
	}
	if got := string(history(t, db, "r").Events[0].Data); got != `{"a": 1}` {
		t.Errorf("stored %s, want it as sent", got)
	}
}
