package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"hub/store"
)

// TestMain runs a child of the kill and lock tests, or the tests; those may
// leave no goroutine.
func TestMain(m *testing.M) {
	switch os.Getenv("STORE_TEST_CHILD") {
	case "publish":
		childPublish(os.Args[1])
		return
	case "operate":
		childOperate(os.Args[1])
		return
	case "migrate":
		store.MigrateUntilKilled(os.Args[1])
		return
	case "lock":
		childLock(os.Args[1])
		return
	}
	code := m.Run()
	for deadline := time.Now().Add(5 * time.Second); code == 0 && runtime.NumGoroutine() > 1; runtime.Gosched() {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			fmt.Fprintf(os.Stderr, "leaked goroutines:\n%s\n", buf[:runtime.Stack(buf, true)])
			code = 1
		}
	}
	os.Exit(code)
}

// ledger records what Committed was told.
type ledger struct {
	mu     sync.Mutex
	events []store.Event
}

func (l *ledger) committed(events []store.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, events...)
}

func (l *ledger) all() []store.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]store.Event(nil), l.events...)
}

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.UnixMilli(1_800_000_000_000)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func options(t testing.TB) store.Options {
	return store.Options{
		Path:    filepath.Join(t.TempDir(), "test.db"),
		Readers: 2,
		// However slow the machine is.
		WriteTimeout: time.Minute,
		Logger:       slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func keep(size uint64, ttl time.Duration) func(string) store.Retention {
	return func(string) store.Retention { return store.Retention{Size: size, TTL: ttl} }
}

func open(t testing.TB, o store.Options) *store.DB {
	t.Helper()
	db, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, db) })
	return db
}

func shut(t testing.TB, db *store.DB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := db.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

type answer struct {
	store.Result
	err error
}

// ask starts one publication and returns where its outcome arrives.
func ask(db *store.DB, p store.Publish) <-chan answer {
	c := make(chan answer, 2) // a second answer must be seen, not block
	db.Publish(p, func(r store.Result, err error) { c <- answer{r, err} })
	return c
}

func wait(t testing.TB, c <-chan answer) answer {
	t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(time.Minute):
		t.Fatal("no answer")
		return answer{}
	}
}

func message(room, data string) store.Publish {
	return store.Publish{Room: room, Publication: store.Publication{Data: []byte(data)}}
}

func publish(t testing.TB, db *store.DB, p store.Publish) store.Result {
	t.Helper()
	a := wait(t, ask(db, p))
	if a.err != nil {
		t.Fatalf("publish in %s: %v", p.Room, a.err)
	}
	return a.Result
}

func fill(t testing.TB, db *store.DB, room string, n int) store.Result {
	t.Helper()
	var last <-chan answer
	for i := range n {
		last = ask(db, message(room, fmt.Sprintf(`{"n":%d}`, i+1)))
	}
	a := wait(t, last)
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.Result
}

func remove(t testing.TB, db *store.DB, room string) store.Result {
	t.Helper()
	c := make(chan answer, 1)
	db.RemoveHistory(room, func(r store.Result, err error) { c <- answer{r, err} })
	a := wait(t, c)
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.Result
}

func history(t testing.TB, db *store.DB, room string) store.Page {
	t.Helper()
	p, err := db.History(t.Context(), room, store.Query{Limit: -1})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func position(t testing.TB, db *store.DB, room string) store.Position {
	t.Helper()
	p, err := db.Position(t.Context(), room)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// offsets prints the offsets of a page.
func offsets(p store.Page) string {
	var b []string
	for _, e := range p.Events {
		b = append(b, fmt.Sprint(e.Offset))
	}
	return strings.Join(b, " ")
}

// count runs a query that yields one number on a connection of its own.
func count(t testing.TB, path, query string) int {
	t.Helper()
	db, err := sql.Open("sqlite", store.DSN(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// change runs a statement on a connection of its own, behind the writer's back.
func change(t testing.TB, path, query string, args ...any) {
	t.Helper()
	db, err := sql.Open("sqlite", store.DSN(path)+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// gate holds the writer at a stage until it is opened.
type gate struct {
	stage   string
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate(stage string) *gate {
	return &gate{stage: stage, reached: make(chan struct{}), open: make(chan struct{})}
}

func (g *gate) fault(stage string) error {
	if stage == g.stage {
		g.once.Do(func() {
			close(g.reached)
			<-g.open
		})
	}
	return nil
}

// hold makes one publication reach the gate, so that what follows shares a batch.
func (g *gate) hold(t testing.TB, db *store.DB, p store.Publish) <-chan answer {
	t.Helper()
	c := ask(db, p)
	select {
	case <-g.reached:
	case <-time.After(10 * time.Second):
		t.Fatal("gate not reached")
	}
	return c
}

// verify checks the promises on every room: what was acknowledged is stored once
// at its offset, what was refused is not stored, and the ledger holds exactly
// what is stored, in order. Data must be unique.
func verify(t testing.TB, db *store.DB, l *ledger, rooms []string, acknowledged map[string]store.Result, refused []string) {
	t.Helper()
	told := map[string]string{}
	for _, e := range l.all() {
		if !e.Removed {
			told[e.Room] += fmt.Sprintf("%d %s %s\n", e.Publication.Offset, e.Epoch, e.Publication.Data)
		}
	}
	stored := map[string]store.Result{}
	for _, room := range rooms {
		page := history(t, db, room)
		var got string
		for i, p := range page.Events {
			if p.Offset != uint64(i+1) {
				t.Errorf("%s: publication %d has offset %d", room, i+1, p.Offset)
			}
			if _, twice := stored[string(p.Data)]; twice {
				t.Errorf("%s is stored twice", p.Data)
			}
			stored[string(p.Data)] = store.Result{Offset: p.Offset, Epoch: page.Top.Epoch}
			got += fmt.Sprintf("%d %s %s\n", p.Offset, page.Top.Epoch, p.Data)
		}
		if n := uint64(len(page.Events)); page.Top.Offset != n {
			t.Errorf("%s: top is %d, stored are %d", room, page.Top.Offset, n)
		}
		if told[room] != got {
			t.Errorf("%s: told\n%sstored\n%s", room, told[room], got)
		}
	}
	for data, want := range acknowledged {
		want.Replayed = false
		if got := stored[data]; got != want {
			t.Errorf("%s: acknowledged %+v, stored %+v", data, want, got)
		}
	}
	for _, data := range refused {
		if got, ok := stored[data]; ok {
			t.Errorf("%s: refused, but stored at %+v", data, got)
		}
	}
}

var errInjected = errors.New("injected")
