package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"hub/store"
)

const killRooms = 4

// childPublish publishes from 16 goroutines until it is killed, each publication
// with an id, and prints a line for each acknowledgement.
func childPublish(path string) {
	db, err := store.Open(store.Options{Path: path, Retention: keep(1<<40, 0), WriteTimeout: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	run := os.Getenv("STORE_TEST_RUN")
	var mu sync.Mutex
	for g := range 16 {
		go func() {
			room := fmt.Sprintf("room%d", g%killRooms)
			acked := make(chan store.Result)
			for i := 0; ; i++ {
				id := fmt.Sprintf("%s-%d-%d", run, g, i)
				p := message(room, fmt.Sprintf("%q", id))
				p.Caller, p.ID = "child", id
				db.Publish(p, func(r store.Result, err error) {
					if err != nil {
						log.Fatal(err)
					}
					acked <- r
				})
				r := <-acked
				mu.Lock()
				fmt.Printf("%s %s %d %s\n", room, id, r.Offset, r.Epoch)
				mu.Unlock()
			}
		}()
	}
	select {}
}

// killed runs a child, kills it after so many acknowledgements and returns all
// that it printed.
func killed(t *testing.T, child, path string, run, after int) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], path)
	cmd.Env = append(os.Environ(), "STORE_TEST_CHILD="+child, fmt.Sprintf("STORE_TEST_RUN=%d", run))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadString('\n')
		if err != nil { // the last line may be half
			break
		}
		lines = append(lines, line)
		if len(lines) == after {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd.Wait()
	if len(lines) < after {
		t.Fatalf("child ended after %d lines", len(lines))
	}
	return lines
}

// After kill -9 in the middle of concurrent publishing, each acknowledged
// publication is there once at its offset, under the same epoch; offsets are
// contiguous; and what was not acknowledged is there with its idempotency
// record or not at all.
func TestKill(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Retention = keep(1<<40, 0)
	acknowledged := map[string]string{} // id → room, offset and epoch
	for run := range 8 {
		for _, line := range killed(t, "publish", o.Path, run, 1+run*97) {
			var room, id, offset, epoch string
			if _, err := fmt.Sscan(line, &room, &id, &offset, &epoch); err != nil {
				t.Fatal(err)
			}
			acknowledged[id] = room + " " + offset + " " + epoch
		}
		if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
			t.Fatalf("run %d: %v", run, err)
		}
		db, err := store.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		checkKilled(t, db, acknowledged)
		if events, ids := count(t, o.Path, "SELECT count(*) FROM events"), count(t, o.Path, "SELECT count(*) FROM idempotency"); events != ids {
			t.Errorf("%d events, %d ids", events, ids)
		}
		shut(t, db)
	}
}

func checkKilled(t *testing.T, db *store.DB, acknowledged map[string]string) {
	t.Helper()
	stored := map[string]string{}
	for i := range killRooms {
		room := fmt.Sprintf("room%d", i)
		page := history(t, db, room)
		for j, p := range page.Events {
			id := strings.Trim(string(p.Data), `"`)
			if p.Offset != uint64(j+1) || stored[id] != "" {
				t.Fatalf("%s: %s at %d, after %d others; before at %q", room, id, p.Offset, j, stored[id])
			}
			stored[id] = fmt.Sprintf("%s %d %s", room, p.Offset, page.Top.Epoch)
		}
		if page.Top.Offset != uint64(len(page.Events)) {
			t.Errorf("%s: top is %d with %d events", room, page.Top.Offset, len(page.Events))
		}
	}
	for id, want := range acknowledged {
		if stored[id] != want {
			t.Errorf("%s: acknowledged at %s, stored at %q", id, want, stored[id])
		}
	}
	again := map[string]<-chan answer{}
	for id, at := range stored {
		room, _, _ := strings.Cut(at, " ")
		p := message(room, fmt.Sprintf("%q", id))
		p.Caller, p.ID = "child", id
		again[id] = ask(db, p)
	}
	for id, c := range again {
		a := wait(t, c)
		room, _, _ := strings.Cut(stored[id], " ")
		if got := fmt.Sprintf("%s %d %s", room, a.Offset, a.Epoch); got != stored[id] || !a.Replayed {
			t.Fatalf("%s: again gave %s, replayed %t, error %v; want %s", id, got, a.Replayed, a.err, stored[id])
		}
	}
}

// childLock takes the directory, says so and keeps it until its input ends.
func childLock(dir string) {
	if _, err := store.LockDir(dir); err != nil {
		log.Fatal(err)
	}
	fmt.Println("locked")
	io.Copy(io.Discard, os.Stdin)
}

func TestLockDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], dir)
	cmd.Env = append(os.Environ(), "STORE_TEST_CHILD=lock")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	if _, err := store.LockDir(dir); !errors.Is(err, store.ErrLocked) {
		t.Errorf("second process: %v", err)
	}
	in.Close()
	cmd.Wait()
	l, err := store.LockDir(dir)
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	if _, err := store.LockDir(dir); !errors.Is(err, store.ErrLocked) {
		t.Errorf("second in one process: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
