package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"hub/store"
)

func TestResource(t *testing.T) {
	db := open(t, options(t))
	operate(t, db, operation("a", "1", set("k", `[1.0]`), set("k", `[2.0]`), set("gone", `1`), del("gone"), set("null", `null`)))
	for key, want := range map[string]string{"k": "k 2 [2.0]", "null": "null 1 null"} {
		if r, err := db.Resource(t.Context(), "a", key); err != nil || list([]store.Resource{r}) != want {
			t.Errorf("%s: %s, %v; want %s", key, list([]store.Resource{r}), err, want)
		}
	}
	for _, at := range [][2]string{{"a", "gone"}, {"a", "K"}, {"a", ""}, {"A", "k"}, {"never", "k"}} {
		if r, err := db.Resource(t.Context(), at[0], at[1]); !errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%q: %+v, %v", at, r, err)
		}
	}
	page, err := db.Resources(t.Context(), "never", store.ResourceQuery{})
	if err != nil || page.Resources != nil || page.More || page.Top.Offset != 0 || !strings.HasPrefix(page.Top.Epoch, db.Epoch()) {
		t.Errorf("a room that never was: %+v, %v", page, err)
	}
	if n := db.Stats().Rooms; n != 1 {
		t.Errorf("reading made %d rooms", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := db.Resource(ctx, "a", "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A read that fails says so, and the next one is none the worse.
func TestResourceReadFails(t *testing.T) {
	o := options(t)
	o.Readers = 1
	db := open(t, o)
	operate(t, db, operation("a", "1", set("k", `1`)))
	reads := func() []error {
		_, one := db.Resource(t.Context(), "a", "k")
		_, all := db.Resources(t.Context(), "a", store.ResourceQuery{})
		_, id := db.FindOperation(t.Context(), "a", "u", "1")
		return []error{one, all, id}
	}
	for _, name := range []string{"resources", "idempotency"} {
		change(t, o.Path, "ALTER TABLE "+name+" RENAME TO away")
		failed := 0
		for _, err := range reads() {
			if err != nil {
				failed++
				if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNotFound) {
					t.Errorf("without %s: %v", name, err)
				}
			}
		}
		if failed == 0 {
			t.Errorf("without %s all reads succeed", name)
		}
		change(t, o.Path, "ALTER TABLE away RENAME TO "+name)
		for i, err := range reads() {
			if err != nil {
				t.Errorf("read %d afterwards: %v", i, err)
			}
		}
	}
}

// Pages agree with a naive model for each prefix of each key, cut anywhere, behind
// each key.
func TestResourcePages(t *testing.T) {
	o := options(t)
	db := open(t, o)
	keys := []string{"a", "a%", "a_", "ab", "a/b", "a/b/c", "a/c", "A", "b", "z", "\x00", "a\x00", "a\x00b", "\x7f", "ü", "üü", "ý", "a\u00ff",
		"\u07ff", "\u0800", "\ud7ff", "\uffff", "a\uffff", "\U0010ffff", "\U0010ffff\U0010ffff", "\U0010ffffa", "\U0010fffe", "🙂", "%", "*", "["}
	op, other := operation("a", "1"), operation("b", "1")
	for _, k := range keys {
		op.Steps = append(op.Steps, set(k, `1`), create(k+"gone", `1`), del(k+"gone"))
		other.Steps = append(other.Steps, set(k+"other", `1`))
	}
	top := store.Position{Offset: 1, Epoch: operate(t, db, op).Epoch}
	operate(t, db, other)
	// Keys that no operation takes, at the upper border of bytes.
	for _, k := range []string{"\xff", "\xff\x00", "\xffa", "\xff\xff", "\xff\xffa", "a\xff", "a\xffb", "\xf4\x8f\xbf\xff"} {
		change(t, o.Path, "INSERT INTO resources SELECT id, ?, 1, x'31' FROM rooms WHERE name = 'a'", k)
		keys = append(keys, k)
	}
	slices.Sort(keys)
	prefixes := map[string]bool{"\xff\xff\xff": true, "\xf5": true, "nothing": true}
	for _, k := range keys {
		for i := range len(k) + 1 {
			prefixes[k[:i]] = true
		}
	}
	afters := append([]string{"", "\x01", "a0", "\U0010ffff\xff"}, keys...)
	queries := 0
	for prefix := range prefixes {
		for _, after := range afters {
			var want []string
			for _, k := range keys {
				if strings.HasPrefix(k, prefix) && k > after {
					want = append(want, k)
				}
			}
			// Each limit has its turn with many of the pairs.
			limit := []int{0, 1, 3, len(want), len(want) + 1}[queries%5]
			queries++
			q := store.ResourceQuery{Prefix: prefix, After: after, Limit: limit}
			page, err := db.Resources(t.Context(), "a", q)
			if err != nil {
				t.Fatal(err)
			}
			n := len(want)
			if limit > 0 {
				n = min(limit, n)
			}
			var got []string
			for _, r := range page.Resources {
				got = append(got, r.Key)
			}
			if !slices.Equal(got, want[:n]) || page.More != (n < len(want)) || page.Top != top {
				t.Fatalf("%+v: %q, more %t, top %+v; want %q of %q", q, got, page.More, page.Top, want[:n], want)
			}
		}
	}
}

func TestResourcesMaxBytes(t *testing.T) {
	db := open(t, options(t))
	operate(t, db, operation("a", "1", set("a", `123`), set("b", `12345`), set("c", `1`))) // 4, 6 and 2 bytes
	for _, c := range []struct {
		limit, bytes, want int
	}{{0, 1, 1}, {0, 4, 1}, {0, 9, 1}, {0, 10, 2}, {0, 11, 2}, {0, 12, 3}, {0, 1000, 3}, {2, 1000, 2}, {2, 4, 1}, {3, 12, 3}} {
		page, err := db.Resources(t.Context(), "a", store.ResourceQuery{Limit: c.limit, MaxBytes: c.bytes})
		if err != nil || len(page.Resources) != c.want || page.More != (c.want < 3) {
			t.Errorf("limit %d, %d bytes: %d resources, more %t, %v; want %d", c.limit, c.bytes, len(page.Resources), page.More, err, c.want)
		}
	}
}

// room is a naive model of a room's resources.
type room map[string]store.Resource

func (m room) String() string {
	var all []store.Resource
	for _, r := range m {
		if r.Value != nil {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b store.Resource) int { return strings.Compare(a.Key, b.Key) })
	return list(all)
}

// fold applies an event, if it is one of an operation.
func (m room) fold(t testing.TB, data []byte) {
	t.Helper()
	var event struct {
		Operation string
		Changes   []struct {
			Key     string
			Version uint64
			Value   json.RawMessage
			Deleted bool
		}
	}
	if err := json.Unmarshal(data, &event); err != nil {
		t.Fatalf("event %s: %v", data, err)
	}
	for _, c := range event.Changes {
		if c.Deleted != (c.Value == nil) {
			t.Errorf("deleted %t with value %s", c.Deleted, c.Value)
		}
		m[c.Key] = store.Resource{Key: c.Key, Version: c.Version, Value: c.Value}
	}
}

// run does the steps of an operation that succeeded and returns its result. Values
// are integers.
func (m room) run(t testing.TB, steps []store.Step) string {
	t.Helper()
	var order []string
	for _, s := range steps {
		r := m[s.Key]
		if exists := r.Value != nil; exists == (s.Op == store.StepCreate) && s.Op != store.StepSet {
			t.Errorf("step %d on %s should have been refused", s.Op, list([]store.Resource{r}))
		}
		switch s.Op {
		case store.StepAdd:
			var n int64
			if err := json.Unmarshal(r.Value, &n); err != nil {
				t.Fatal(err)
			}
			r.Value = fmt.Append(nil, n+s.By)
		case store.StepDelete:
			r.Value = nil
		default:
			r.Value = s.Value
		}
		r.Key = s.Key
		r.Version++
		m[s.Key] = r
		if !slices.Contains(order, s.Key) {
			order = append(order, s.Key)
		}
	}
	var result []store.Resource
	for _, key := range order {
		result = append(result, m[key])
	}
	return list(result)
}

// randomSteps is one to four steps on few keys.
func randomSteps(r *rand.Rand) (steps []store.Step) {
	for range 1 + r.IntN(4) {
		key := string(rune('a' + r.IntN(6)))
		value := fmt.Sprint(r.IntN(100))
		steps = append(steps, []store.Step{
			add(key, "", int64(r.IntN(10))), create(key, value), set(key, value), set(key, value), merge(key, value), del(key),
		}[r.IntN(6)])
	}
	return steps
}

// While eight callers change two rooms at random and read them: each result is
// what a naive model gives when the operations run one by one in the order of
// their offsets; each snapshot is the state that the events up to its position
// make; refusals leave no trace.
func TestConcurrentOperations(t *testing.T) {
	t.Parallel()
	const callers, each = 8, 80
	var l ledger
	o := options(t)
	o.Committed, o.Readers = l.committed, 4
	db := open(t, o)
	rooms := []string{"a", "b"}
	type key struct {
		room   string
		offset uint64
	}
	var (
		mu        sync.Mutex
		applied   = map[key]store.Operation{}
		results   = map[key]string{}
		snapshots = map[key]string{}
		refusals  int
		all       sync.WaitGroup
	)
	for c := range callers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c), 1))
			for i := range each {
				op := operation(rooms[r.IntN(2)], fmt.Sprintf("%d-%d", c, i), randomSteps(r)...)
				answer := start(db, op)
				if i%10 == 0 {
					publish(t, db, message(op.Room, `{}`))
				}
				page, err := db.Resources(t.Context(), op.Room, store.ResourceQuery{})
				if err != nil {
					t.Error(err)
				}
				a := <-answer
				mu.Lock()
				at, got := key{op.Room, page.Top.Offset}, list(page.Resources)
				if before, ok := snapshots[at]; ok && before != got {
					t.Errorf("at %v: %s, before %s", at, got, before)
				}
				snapshots[at] = got
				at.offset = a.Offset
				var refusal *store.StepError
				switch {
				case errors.As(a.err, &refusal):
					refusals++
				case a.err != nil:
					t.Error(a.err)
				default:
					applied[at], results[at] = op, list(a.Resources)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if refusals < callers*each/10 || len(applied) < callers*each/10 || len(snapshots) < 10 {
		t.Fatalf("%d refusals, %d applied, %d snapshots: too few to say anything", refusals, len(applied), len(snapshots))
	}
	seen, compared := 0, 0
	for _, name := range rooms {
		model, folded := room{}, room{}
		for i, p := range history(t, db, name).Events {
			at := key{name, uint64(i + 1)}
			if op, ok := applied[at]; ok {
				seen++
				if got := model.run(t, op.Steps); got != results[at] {
					t.Fatalf("%v: %s, want %s", at, results[at], got)
				}
			}
			folded.fold(t, p.Data)
			if got, ok := snapshots[at]; ok {
				compared++
				if got != folded.String() {
					t.Fatalf("snapshot at %v: %s, the events make %s", at, got, folded)
				}
			}
		}
		if got := state(t, db, name); got != model.String() || got != folded.String() {
			t.Errorf("%s ends as %s\nthe model as %s\nthe events as %s", name, got, model, folded)
		}
	}
	if seen != len(applied) || compared < len(snapshots)-len(rooms) { // those of position 0
		t.Errorf("%d of %d operations and %d of %d snapshots have an event at their offset", seen, len(applied), compared, len(snapshots))
	}
}
