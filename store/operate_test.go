package store_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"hub/store"
)

type operated struct {
	store.OperationResult
	err error
}

// start starts an operation and returns where its outcome arrives.
func start(db *store.DB, o store.Operation) <-chan operated {
	c := make(chan operated, 2) // a second answer must be seen, not block
	db.Operate(o, func(r store.OperationResult, err error) { c <- operated{r, err} })
	return c
}

func await(t testing.TB, c <-chan operated) operated {
	t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(time.Minute):
		t.Fatal("no answer")
		return operated{}
	}
}

func operate(t testing.TB, db *store.DB, o store.Operation) store.OperationResult {
	t.Helper()
	a := await(t, start(db, o))
	if a.err != nil {
		t.Fatalf("operation %s in %s: %v", o.ID, o.Room, a.err)
	}
	return a.OperationResult
}

// operation is one of the caller "u"; its digest stands for its steps.
func operation(room, id string, steps ...store.Step) store.Operation {
	var text strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&text, "%d %q %s %q %d", s.Op, s.Key, s.Value, s.Path, s.By)
	}
	return store.Operation{Room: room, Caller: "u", ID: id, Steps: steps, Digest: sha256.Sum256([]byte(text.String()))}
}

func create(key, value string) store.Step {
	return store.Step{Op: store.StepCreate, Key: key, Value: []byte(value)}
}

func set(key, value string) store.Step {
	return store.Step{Op: store.StepSet, Key: key, Value: []byte(value)}
}

func merge(key, patch string) store.Step {
	return store.Step{Op: store.StepMerge, Key: key, Value: []byte(patch)}
}

func del(key string) store.Step { return store.Step{Op: store.StepDelete, Key: key} }

func add(key, path string, by int64) store.Step {
	return store.Step{Op: store.StepAdd, Key: key, Path: path, By: by}
}

func ifVersion(v uint64, s store.Step) store.Step {
	s.IfVersion = &v
	return s
}

func within(min, max int64, s store.Step) store.Step {
	s.Min, s.Max = &min, &max
	return s
}

// list prints resources: "key version value".
func list(resources []store.Resource) string {
	var b []string
	for _, r := range resources {
		value := string(r.Value)
		if r.Value == nil {
			value = "-"
		}
		b = append(b, fmt.Sprintf("%s %d %s", r.Key, r.Version, value))
	}
	return strings.Join(b, "; ")
}

// state prints all of a room.
func state(t testing.TB, db *store.DB, room string) string {
	t.Helper()
	page, err := db.Resources(t.Context(), room, store.ResourceQuery{})
	if err != nil || page.More {
		t.Fatalf("resources of %s: more %t, %v", room, page.More, err)
	}
	return list(page.Resources)
}

// seed gives a room the resources that the tables begin with.
func seed(t testing.TB, db *store.DB, room string) string {
	t.Helper()
	operate(t, db, operation(room, "seed", set("n", `5`), set("o", `{"b":1,"a":{"x":1e400}}`), set("s", `0`), set("s", `"text"`),
		create("gone", `1`), del("gone"), set("max", `9007199254740991`)))
	return state(t, db, room)
}

func TestSteps(t *testing.T) {
	db := open(t, options(t))
	for _, c := range []struct {
		name  string
		steps []store.Step
		want  string // the result
	}{
		{"add", []store.Step{add("n", "", -7)}, `n 2 -2`},
		{"add inside, the rest untouched", []store.Step{add("o", "/b", 1)}, `o 2 {"b":2,"a":{"x":1e400}}`},
		{"add nothing", []store.Step{add("n", "", 0)}, `n 2 5`},
		{"add to the border", []store.Step{within(0, 9, add("n", "", -5)), within(0, 9, add("n", "", 9))}, `n 3 9`},
		{"create", []store.Step{create("new", `null`)}, `new 1 null`},
		{"create what was deleted", []store.Step{create("gone", `2`)}, `gone 3 2`},
		{"create what must not exist", []store.Step{ifVersion(0, create("new", `{}`))}, `new 1 {}`},
		{"set", []store.Step{set("n", `"other"`)}, `n 2 "other"`},
		{"set what is new", []store.Step{set("new", `[]`)}, `new 1 []`},
		{"set the same", []store.Step{set("n", `5`)}, `n 2 5`},
		{"set what must not exist", []store.Step{ifVersion(0, set("gone", `3`))}, `gone 3 3`},
		{"set a version", []store.Step{ifVersion(2, set("s", `1`))}, `s 3 1`},
		{"merge", []store.Step{merge("o", `{"a":{"y":2},"b":null,"c":1.0}`)}, `o 2 {"a":{"x":1e400,"y":2},"c":1.0}`},
		{"merge into no object", []store.Step{merge("n", `{"a":1,"b":null}`)}, `n 2 {"a":1}`},
		{"merge no object", []store.Step{merge("o", `null`)}, `o 2 null`},
		{"delete", []store.Step{del("n")}, `n 2 -`},
		{"delete a version", []store.Step{ifVersion(2, del("s"))}, `s 3 -`},
		{"delete and create", []store.Step{del("n"), create("n", `6`)}, `n 3 6`},
		{"create and delete", []store.Step{create("new", `6`), del("new")}, `new 2 -`},
		{"delete, then it must not exist", []store.Step{del("n"), ifVersion(0, set("n", `1`)), ifVersion(3, add("n", "", 1))}, `n 4 2`},
		{"a later step sees an earlier one", []store.Step{create("new", `{"a":1}`), add("new", "/a", 2), merge("new", `{"b":0}`),
			ifVersion(3, add("new", "/b", 1))}, `new 4 {"a":3,"b":1}`},
		{"each once, in the order of the first step", []store.Step{add("n", "", 1), create("new", `1`), add("n", "", 1), del("new"), set("a", `1`)},
			`n 3 7; new 2 -; a 1 1`},
		{"nothing", nil, ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			room := c.name
			before := seed(t, db, room)
			got := operate(t, db, operation(room, "1", c.steps...))
			if list(got.Resources) != c.want || got.Offset != 2 || got.Replayed {
				t.Errorf("%+v %s, want %s at offset 2", got.Result, list(got.Resources), c.want)
			}
			want := map[string]string{}
			for _, r := range strings.Split(before+"; "+c.want, "; ") {
				if key, rest, _ := strings.Cut(r, " "); strings.HasSuffix(rest, " -") {
					delete(want, key)
				} else if key != "" {
					want[key] = r
				}
			}
			var all []string
			for _, r := range want {
				all = append(all, r)
			}
			slices.Sort(all)
			if got := state(t, db, room); got != strings.Join(all, "; ") {
				t.Errorf("the room has %s\nwant %s", got, strings.Join(all, "; "))
			}
		})
	}
}

// A refusal names the step and the resource as it is in the room; nothing of the
// operation stays, not even what its other steps did, and its id stays free.
func TestRefusals(t *testing.T) {
	db := open(t, options(t))
	t.Cleanup(func() { // when all have run
		if n := db.Stats().Failed; n != 0 {
			t.Errorf("a refusal is no failure: %d batches failed", n)
		}
	})
	const exact = 1<<53 - 1
	for _, c := range []struct {
		name    string
		steps   []store.Step
		reason  store.ConflictReason
		step    int
		current string
	}{
		{"another version", []store.Step{ifVersion(3, set("s", `1`))}, store.VersionConflict, 0, `s 2 "text"`},
		{"an older version", []store.Step{ifVersion(1, del("s"))}, store.VersionConflict, 0, `s 2 "text"`},
		{"the largest version", []store.Step{ifVersion(1<<64-1, add("n", "", 1))}, store.VersionConflict, 0, `n 1 5`},
		{"must not exist", []store.Step{ifVersion(0, set("n", `1`))}, store.VersionConflict, 0, `n 1 5`},
		{"create must not exist", []store.Step{ifVersion(0, create("n", `1`))}, store.VersionConflict, 0, `n 1 5`},
		{"a version of nothing", []store.Step{ifVersion(1, set("new", `1`))}, store.VersionConflict, 0, `new 0 -`},
		{"a version of what is deleted", []store.Step{ifVersion(2, set("gone", `1`))}, store.VersionConflict, 0, `gone 0 -`},
		{"the version before the steps", []store.Step{add("n", "", 1), ifVersion(1, add("n", "", 1))}, store.VersionConflict, 1, `n 1 5`},
		{"a version deleted by a step", []store.Step{del("n"), ifVersion(2, set("n", `1`))}, store.VersionConflict, 1, `n 1 5`},
		{"exists", []store.Step{create("n", `1`)}, store.Exists, 0, `n 1 5`},
		{"exists in that version", []store.Step{ifVersion(1, create("n", `1`))}, store.Exists, 0, `n 1 5`},
		{"created twice", []store.Step{create("new", `1`), create("new", `1`)}, store.Exists, 1, `new 0 -`},
		{"delete nothing", []store.Step{del("new")}, store.Missing, 0, `new 0 -`},
		{"delete nothing, as expected", []store.Step{ifVersion(0, del("new"))}, store.Missing, 0, `new 0 -`},
		{"delete again", []store.Step{del("gone")}, store.Missing, 0, `gone 0 -`},
		{"merge nothing", []store.Step{merge("gone", `{}`)}, store.Missing, 0, `gone 0 -`},
		{"add to nothing", []store.Step{add("new", "", 1)}, store.Missing, 0, `new 0 -`},
		{"add at no path", []store.Step{add("o", "/c", 1)}, store.Missing, 0, `o 1 {"b":1,"a":{"x":1e400}}`},
		{"below the minimum", []store.Step{within(0, 100, add("n", "", -6))}, store.OutOfRange, 0, `n 1 5`},
		{"above the maximum", []store.Step{within(0, 9, add("n", "", 5))}, store.OutOfRange, 0, `n 1 5`},
		{"not exact any more", []store.Step{add("max", "", 1)}, store.OutOfRange, 0, fmt.Sprintf(`max 1 %d`, int64(exact))},
		{"no integer", []store.Step{add("s", "", 1)}, store.NotInteger, 0, `s 2 "text"`},
		{"no exact integer", []store.Step{add("o", "/a/x", 1)}, store.NotInteger, 0, `o 1 {"b":1,"a":{"x":1e400}}`},
		{"no path", []store.Step{add("o", "b", 1)}, store.Invalid, 0, `o 1 {"b":1,"a":{"x":1e400}}`},
		{"no value", []store.Step{set("n", ``)}, store.Invalid, 0, `n 1 5`},
		{"no kind", []store.Step{{Op: 99, Key: "n"}}, store.Invalid, 0, `n 1 5`},
		{"no text", []store.Step{set("\xff", `1`)}, store.Invalid, 0, "\xff 0 -"},
		{"the last of many", []store.Step{set("n", `1`), del("o"), create("new", `1`), add("s", "", 1)}, store.NotInteger, 3, `s 2 "text"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			room := c.name
			before := seed(t, db, room)
			a := await(t, start(db, operation(room, "1", c.steps...)))
			var e *store.StepError
			if !errors.As(a.err, &e) {
				t.Fatalf("%+v, %v", a.OperationResult, a.err)
			}
			if current := list([]store.Resource{e.Current}); e.Reason != c.reason || e.Step != c.step || current != c.current || e.Detail == "" {
				t.Errorf("reason %d in step %d with %s, %q; want %d in %d with %s", e.Reason, e.Step, current, e.Detail, c.reason, c.step, c.current)
			}
			if !reflect.DeepEqual(a.OperationResult, store.OperationResult{}) {
				t.Errorf("result %+v", a.OperationResult)
			}
			if after := state(t, db, room); after != before {
				t.Errorf("the room has %s\nbefore %s", after, before)
			}
			// The same id, now with other content, which is not refused.
			if r := operate(t, db, operation(room, "1", set("n", `0`))); r.Offset != 2 || r.Replayed {
				t.Errorf("afterwards: %+v, want offset 2", r.Result)
			}
		})
	}
}

// The event is a publication like any other, whoever keeps it.
func TestOperationEvent(t *testing.T) {
	var l ledger
	now := newClock()
	o := options(t)
	o.Committed, o.Now = l.committed, now.now
	o.Retention = func(room string) store.Retention {
		if room == "none" {
			return store.Retention{}
		}
		return store.Retention{Size: 100}
	}
	o.SetMaintenance(time.Millisecond)
	db := open(t, o)
	for _, room := range []string{"kept", "none"} {
		publish(t, db, message(room, `"before"`))
		for i, c := range []struct {
			publisher store.Publication
			steps     []store.Step
			data      string
		}{
			{store.Publication{}, []store.Step{set("a", `1.0`)}, `{"operation":"1","changes":[{"key":"a","version":1,"value":1.0}]}`},
			{store.Publication{User: "u<\"ü\n>", Client: "c", ConnInfo: []byte(`{"n":1}`), ChanInfo: []byte(`[]`), Data: []byte(`{"why":null}`)},
				[]store.Step{del("a"), set(`k"\`, `null`)},
				`{"operation":"2","user":"u<\"ü\n>","changes":[{"key":"a","version":2,"deleted":true},{"key":"k\"\\","version":1,"value":null}],"data":{"why":null}}`},
			{store.Publication{User: "\xff"}, nil, `{"operation":"3","user":"` + "\ufffd" + `","changes":[]}`},
		} {
			op := operation(room, fmt.Sprint(i+1), c.steps...)
			op.Publisher = c.publisher
			r := operate(t, db, op)
			want := c.publisher
			want.Offset, want.Time, want.Data = uint64(i+2), now.now().UnixMilli(), []byte(c.data)
			events := l.all()
			if got := events[len(events)-1]; !reflect.DeepEqual(got, store.Event{Room: room, Epoch: r.Epoch, Publication: want}) {
				t.Errorf("event %+v\n%s, want\n%s", got, got.Publication.Data, c.data)
			}
			if page := history(t, db, room); r.Offset != want.Offset || page.Top != (store.Position{Offset: r.Offset, Epoch: r.Epoch}) {
				t.Errorf("result %+v, top %+v, want offset %d", r.Result, page.Top, want.Offset)
			} else if room == "kept" && !reflect.DeepEqual(page.Events[len(page.Events)-1], want) {
				t.Errorf("stored %+v", page.Events)
			}
		}
	}
	// Resources are no history.
	const want = `k"\ 1 null`
	epoch := position(t, db, "kept").Epoch
	removed := remove(t, db, "kept")
	until(t, "the history is deleted", func() bool { return count(t, o.Path, "SELECT count(*) FROM events") == 0 })
	for _, room := range []string{"kept", "none"} {
		if got := state(t, db, room); got != want {
			t.Errorf("%s has %s", room, got)
		}
	}
	r := operate(t, db, operation("kept", "4", set("b", `2`)))
	if removed.Epoch == epoch || r.Offset != 5 || r.Epoch != removed.Epoch {
		t.Errorf("after the removal: %+v, removed %+v in %s", r.Result, removed, epoch)
	}
	if n := db.Stats().Published; n != 9 {
		t.Errorf("%d published", n)
	}
}

func TestEventTooLarge(t *testing.T) {
	db := open(t, options(t))
	op := operation("a", "1", set("k", `"`+strings.Repeat("x", 1_000)+`"`))
	fits := len(`{"operation":"1","changes":[{"key":"k","version":1,"value":}]}`) + 1_002
	op.MaxEvent = fits - 1
	if a := await(t, start(db, op)); !errors.Is(a.err, store.ErrTooLarge) || a.Offset != 0 || a.Resources != nil {
		t.Errorf("one byte too many: %+v, %v", a.OperationResult, a.err)
	}
	if s := db.Stats(); s.Rooms != 0 || state(t, db, "a") != "" {
		t.Errorf("%d rooms, state %s", s.Rooms, state(t, db, "a"))
	}
	op.MaxEvent = fits
	if r := operate(t, db, op); r.Offset != 1 || r.Replayed {
		t.Errorf("%+v", r.Result)
	}
	// A value that grows step by step is stopped too.
	grow := merge("k", `{"a":"`+strings.Repeat("y", 600)+`"}`)
	op = operation("a", "2", set("k", `{"b":"`+strings.Repeat("x", 600)+`"}`), grow)
	op.MaxEvent = fits
	if a := await(t, start(db, op)); !errors.Is(a.err, store.ErrTooLarge) {
		t.Errorf("grown: %v", a.err)
	}
	if n := db.Stats().Failed; n != 0 {
		t.Errorf("a refusal is no failure: %d batches failed", n)
	}
}

func TestOperationRoomLimit(t *testing.T) {
	o := options(t)
	o.MaxRooms = 1
	db := open(t, o)
	// A refused operation does not use the room up.
	if a := await(t, start(db, operation("b", "1", del("k")))); a.err == nil {
		t.Error("deleted nothing")
	}
	operate(t, db, operation("a", "1", set("k", `1`)))
	if a := await(t, start(db, operation("b", "1", set("k", `1`)))); !errors.Is(a.err, store.ErrRoomLimit) {
		t.Errorf("second room: %v", a.err)
	}
}

// What waits counts with all its steps.
func TestOperationBytes(t *testing.T) {
	g := newGate("commit")
	o := options(t)
	o.SetFault(g.fault)
	db := open(t, o)
	first := g.hold(t, db, message("a", `1`))
	big := strings.Repeat("x", 5<<20)
	op := operation("a", "1")
	for i := range 13 {
		op.Steps = append(op.Steps, set(fmt.Sprint(i), big))
	}
	if a := await(t, start(db, op)); !errors.Is(a.err, store.ErrQueueFull) {
		t.Errorf("65 MiB: %v", a.err)
	}
	op = operation("a", "1")
	for range 600_000 {
		op.Steps = append(op.Steps, del("k"))
	}
	if a := await(t, start(db, op)); !errors.Is(a.err, store.ErrQueueFull) {
		t.Errorf("600,000 steps: %v", a.err)
	}
	small := start(db, operation("a", "1", set("key", `"value"`)))
	if s := db.Stats(); s.Queue != 1 || s.QueueBytes < len("a1u")+len(`key"value"`) {
		t.Errorf("stats %+v", s)
	}
	close(g.open)
	if a := await(t, small); a.err != nil || wait(t, first).err != nil {
		t.Errorf("afterwards: %v", a.err)
	}
}

// Of a batch with refusals in it, all that is not refused is applied, in order.
func TestBatchWithRefusals(t *testing.T) {
	var l ledger
	g := newGate("begin")
	o := options(t)
	o.Committed = l.committed
	o.SetFault(g.fault)
	db := open(t, o)
	g.hold(t, db, message("a", `"hold"`))
	batches := db.Stats().Commits
	good := []<-chan operated{start(db, operation("a", "1", set("n", `1`)))}
	bad := []<-chan operated{
		start(db, operation("a", "2", set("x", `1`), create("n", `2`))),
		start(db, operation("new", "1", set("x", `1`), del("y"))),
	}
	good = append(good, start(db, operation("a", "3", add("n", "", 1), create("y", `2`))))
	bad = append(bad, start(db, operation("a", "1", set("n", `9`))))
	good = append(good, start(db, operation("new", "1", set("x", `3`))))
	last := ask(db, message("a", `"last"`))
	close(g.open)
	for i, want := range []string{"2 n 1 1", "3 n 2 2; y 1 2", "1 x 1 3"} {
		a := await(t, good[i])
		if got := fmt.Sprintf("%d %s", a.Offset, list(a.Resources)); got != want || a.err != nil || a.Replayed {
			t.Errorf("operation %d: %s, %v; want %s", i, got, a.err, want)
		}
	}
	for i, want := range []store.ConflictReason{store.Exists, store.Missing, 0} {
		a := await(t, bad[i])
		var e *store.StepError
		if errors.As(a.err, &e) != (want != 0) || e != nil && e.Reason != want || want == 0 && !errors.Is(a.err, store.ErrIDReused) {
			t.Errorf("refusal %d: %v", i, a.err)
		}
	}
	if a := wait(t, last); a.Offset != 4 || db.Stats().Commits != batches+2 {
		t.Errorf("last %+v, %d batches", a, db.Stats().Commits-batches)
	}
	if a, n := state(t, db, "a"), state(t, db, "new"); a != "n 2 2; y 1 2" || n != "x 1 3" || len(l.all()) != 5 {
		t.Errorf("a has %s, new has %s, %d events", a, n, len(l.all()))
	}
}
