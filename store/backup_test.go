package store_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"hub/store"
)

// listing names the files beside path, path's own excepted.
func listing(t *testing.T, path string) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// large opens a database of some 12 MB, so that a copy of it takes many steps.
func large(t *testing.T) (*store.DB, store.Options) {
	t.Helper()
	o := options(t)
	o.Queue = 20_000
	db := open(t, o)
	fill(t, db, "large", 1)
	var last <-chan answer
	data := `"` + strings.Repeat("x", 3000) + `"`
	for range 1500 {
		last = ask(db, message("large", data))
	}
	if a := wait(t, last); a.err != nil {
		t.Fatal(a.err)
	}
	return db, o
}

// A backup is the database as it was between two commits, while four writers
// publish: of each room a prefix without a gap, and of all rooms the same moment.
func TestBackupWhileWriting(t *testing.T) {
	t.Parallel()
	db, o := large(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writers sync.WaitGroup
	busy := make(chan struct{}, 4)
	for g := range 4 {
		writers.Go(func() {
			for i := 1; ctx.Err() == nil; i++ {
				// In turn: room "second" never has more than room "first".
				for _, room := range []string{"first", "second"} {
					a := <-ask(db, message(fmt.Sprint(room, g), fmt.Sprint(i)))
					if a.err != nil {
						t.Error(a.err)
						return
					}
				}
				if i == 5 {
					busy <- struct{}{}
				}
			}
		})
	}
	for range 4 {
		<-busy
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	before := make([]store.Position, 4)
	for g := range before {
		before[g] = position(t, db, fmt.Sprint("second", g))
	}
	info, err := db.Backup(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	after := make([]store.Position, 4)
	for g := range after {
		after[g] = position(t, db, fmt.Sprint("first", g))
	}
	cancel()
	writers.Wait()
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := (store.BackupInfo{Path: path, Bytes: file.Size(), Epoch: db.Epoch(), Rooms: 9, Took: info.Took}); info != want || info.Took <= 0 {
		t.Errorf("info %+v, want %+v", info, want)
	}
	if file.Mode().Perm() != 0o600 || listing(t, path) != "copy.db" {
		t.Errorf("mode %o, files: %s", file.Mode().Perm(), listing(t, path))
	}
	if err := store.CheckIntegrity(t.Context(), path); err != nil {
		t.Error(err)
	}
	restored := o
	restored.Path = path
	copied := open(t, restored)
	for g := range before {
		var tops []uint64
		for _, room := range []string{fmt.Sprint("first", g), fmt.Sprint("second", g)} {
			page := history(t, copied, room)
			for i, p := range page.Events {
				if p.Offset != uint64(i+1) || string(p.Data) != fmt.Sprint(i+1) {
					t.Fatalf("%s: publication %d is %s at %d", room, i+1, p.Data, p.Offset)
				}
			}
			if page.Top.Offset != uint64(len(page.Events)) {
				t.Errorf("%s: top is %d with %d publications", room, page.Top.Offset, len(page.Events))
			}
			tops = append(tops, page.Top.Offset)
		}
		if first, second := tops[0], tops[1]; second > first || first > second+1 || second < before[g].Offset || first > after[g].Offset {
			t.Errorf("writer %d: tops %v, want one moment between %d and %d", g, tops, before[g].Offset, after[g].Offset)
		}
	}
	if n := len(history(t, copied, "large").Events); n != 1501 {
		t.Errorf("room large has %d publications", n)
	}
}

// A restored copy goes on with offsets that the original gave to other
// publications, so no position from before may seem to be its own: neither the
// original's nor that of another restored copy.
func TestRestoredCopyHasAnotherEpoch(t *testing.T) {
	t.Parallel()
	for _, boot := range []string{"boot 1", "boot 2"} {
		o := options(t)
		o.BootID = "boot 1"
		db := open(t, o)
		old := fill(t, db, "a", 5)
		path := filepath.Join(t.TempDir(), "copy.db")
		if _, err := db.Backup(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		copied, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, db, "a", 3)
		seen := map[string]bool{db.Epoch(): true}
		for i := range 2 {
			restored := options(t)
			restored.BootID = boot
			if err := os.WriteFile(restored.Path, copied, 0o600); err != nil {
				t.Fatal(err)
			}
			again := open(t, restored)
			if seen[again.Epoch()] {
				t.Errorf("restored %d: epoch %s is not new", i, again.Epoch())
			}
			seen[again.Epoch()] = true
			page, err := again.Page(t.Context(), "a", old.Offset-1, 100, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if page.Top.Epoch == old.Epoch || page.Top.Offset != old.Offset {
				t.Errorf("restored %d: position %+v, the original's was %+v", i, page.Top, old)
			}
			if next := publish(t, again, message("a", `"next"`)); next.Offset != old.Offset+1 || next.Epoch != page.Top.Epoch {
				t.Errorf("restored %d: next publication at %+v", i, next)
			}
			// From now on it is a database like any other.
			epoch := again.Epoch()
			shut(t, again)
			if again = open(t, restored); again.Epoch() != epoch {
				t.Errorf("restored %d: epoch %s became %s", i, epoch, again.Epoch())
			}
		}
	}
}

func TestBackupRefusesWhatExists(t *testing.T) {
	t.Parallel()
	db := open(t, options(t))
	fill(t, db, "a", 3)
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		path := filepath.Join(t.TempDir(), "copy.db")
		if err := os.WriteFile(path+suffix, []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Backup(t.Context(), path); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), path+suffix) {
			t.Errorf("%s exists: %v", suffix, err)
		}
		if b, err := os.ReadFile(path + suffix); string(b) != "mine" || err != nil || listing(t, path) != "copy.db"+suffix {
			t.Errorf("%s: now %q, %v; files: %s", suffix, b, err, listing(t, path))
		}
	}
}

func TestBackupIntoBadDirectory(t *testing.T) {
	t.Parallel()
	db := open(t, options(t))
	fill(t, db, "a", 3)
	if _, err := db.Backup(t.Context(), filepath.Join(t.TempDir(), "none", "copy.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if os.Getuid() == 0 {
		return // root may write everywhere
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Backup(t.Context(), filepath.Join(dir, "copy.db")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("unwritable directory: %v", err)
	}
}

// What a killed process left under the partial name, a log that would be played
// into the copy included, does not matter.
func TestBackupReplacesLeftovers(t *testing.T) {
	t.Parallel()
	o := options(t)
	db := open(t, o)
	fill(t, db, "a", 3)
	path := filepath.Join(t.TempDir(), "copy.db")
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.WriteFile(path+".test.db.partial"+suffix, []byte(strings.Repeat("left", 5000)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Backup(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if got := listing(t, path); got != "copy.db" {
		t.Errorf("files: %s", got)
	}
	if err := store.CheckIntegrity(t.Context(), path); err != nil {
		t.Error(err)
	}
}

// begin starts a backup and returns when it has copied something and waits at the gate.
func (g *gate) begin(t *testing.T, ctx context.Context, db *store.DB, path string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := db.Backup(ctx, path)
		done <- err
	}()
	select {
	case <-g.reached:
	case err := <-done:
		t.Fatalf("backup ended early: %v", err)
	}
	return done
}

// A backup that fails or is cancelled leaves nothing behind; meanwhile there is
// no second one.
func TestBackupFails(t *testing.T) {
	t.Parallel()
	db, o := large(t)
	shut(t, db)
	g, f := newGate("backup"), &faults{}
	o.SetFault(func(stage string) error { return errors.Join(g.fault(stage), f.fault(stage)) })
	db = open(t, o)
	path := filepath.Join(t.TempDir(), "copy.db")
	ctx, cancel := context.WithCancel(t.Context())
	done := g.begin(t, ctx, db, path)
	if got := listing(t, path); !strings.HasPrefix(got, "copy.db.test.db.partial") {
		t.Errorf("under way: %s", got)
	}
	if _, err := db.Backup(ctx, path+"2"); !errors.Is(err, store.ErrBackupRunning) {
		t.Errorf("second backup: %v", err)
	}
	cancel()
	close(g.open)
	if err := <-done; !errors.Is(err, context.Canceled) || listing(t, path) != "" {
		t.Errorf("cancelled: %v, left: %s", err, listing(t, path))
	}
	if _, err := db.Backup(ctx, path); !errors.Is(err, context.Canceled) || listing(t, path) != "" {
		t.Errorf("with a context that is over: %v, left: %s", err, listing(t, path))
	}
	f.set(3, 3, "backup")
	if _, err := db.Backup(t.Context(), path); !errors.Is(err, errInjected) || listing(t, path) != "" {
		t.Errorf("failed: %v, left: %s", err, listing(t, path))
	}
	if _, err := db.Backup(t.Context(), path); err != nil || listing(t, path) != "copy.db" {
		t.Errorf("after failures: %v, files: %s", err, listing(t, path))
	}
}

// A backup does not hold up the closing of its database.
func TestCloseEndsBackup(t *testing.T) {
	t.Parallel()
	db, o := large(t)
	shut(t, db)
	g := newGate("backup")
	o.SetFault(g.fault)
	db = open(t, o)
	path := filepath.Join(t.TempDir(), "copy.db")
	done := g.begin(t, t.Context(), db, path)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		shut(t, db)
	}()
	<-db.Closing()
	close(g.open)
	<-closed
	if err := <-done; !errors.Is(err, store.ErrClosed) || listing(t, path) != "" {
		t.Errorf("closed: %v, left: %s", err, listing(t, path))
	}
	if _, err := db.Backup(t.Context(), path); !errors.Is(err, store.ErrClosed) || listing(t, path) != "" {
		t.Errorf("after close: %v, left: %s", err, listing(t, path))
	}
	if got := listing(t, o.Path); got != "test.db" {
		t.Errorf("beside the database: %s", got)
	}
	if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
		t.Error(err)
	}
}

// The log cannot be emptied during a backup, and is after it; what was committed
// meanwhile is no part of the copy.
func TestWALShrinksAfterBackup(t *testing.T) {
	t.Parallel()
	db, o := large(t)
	shut(t, db)
	g := newGate("backup")
	o.SetFault(g.fault)
	db = open(t, o)
	path := filepath.Join(t.TempDir(), "copy.db")
	done := g.begin(t, t.Context(), db, path)
	fill(t, db, "b", 2000)
	if db.Stats().WAL == 0 {
		t.Error("nothing holds the log, so the backup is of no one moment")
	}
	close(g.open)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	until(t, "an empty log", func() bool { return db.Stats().WAL == 0 })
	if n := count(t, path, "SELECT count(*) FROM rooms"); n != 1 {
		t.Errorf("%d rooms in the copy", n)
	}
}

// A database that is written to faster than it can be copied does not fill the disk.
func TestBackupGivesUp(t *testing.T) {
	t.Parallel()
	db := open(t, options(t))
	fill(t, db, "a", 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reader sync.WaitGroup
	defer reader.Wait()
	held := make(chan struct{})
	reader.Go(func() { db.HoldReader(ctx, held) })
	<-held
	fill(t, db, "a", 1000)
	path := filepath.Join(t.TempDir(), "copy.db")
	err := db.BackupBounded(t.Context(), path, 64<<10)
	if !errors.Is(err, store.ErrOutrun) || listing(t, path) != "" {
		t.Errorf("outrun: %v, left: %s", err, listing(t, path))
	}
	cancel()
}
