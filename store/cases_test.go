package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hub/store"
)

// Case G25: somebody else writes for a moment (a backup, an operator's shell): the
// batch waits for its turn and is stored as a whole, once.
func TestWriterWaitsForAnother(t *testing.T) {
	var l ledger
	var begun atomic.Int64
	o := options(t)
	o.Committed = l.committed
	o.SetMaintenance(time.Hour)
	o.SetFault(func(stage string) error {
		if stage == "begin" {
			begun.Add(1)
		}
		return nil
	})
	db := open(t, o)
	raw := must(sql.Open("sqlite", store.DSN(o.Path)))
	defer raw.Close()
	other := must(raw.Conn(t.Context()))
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	answers := map[string]<-chan answer{}
	for _, data := range []string{`"1"`, `"2"`, `"3"`} {
		answers[data] = ask(db, message("a", data))
	}
	until(t, "a batch has begun", func() bool { return begun.Load() == 1 })
	select {
	case a := <-answers[`"1"`]:
		t.Fatalf("answered %+v while another writes", a)
	case <-time.After(100 * time.Millisecond):
	}
	if _, err := other.ExecContext(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	acknowledged := map[string]store.Result{}
	for data, c := range answers {
		a := wait(t, c)
		if a.err != nil {
			t.Errorf("%s: %v", data, a.err)
		}
		acknowledged[data] = a.Result
	}
	verify(t, db, &l, []string{"a"}, acknowledged, nil)
	if n := db.Stats().Failed; n != 0 {
		t.Errorf("%d batches failed", n)
	}
}

// Case G26 and G27: every connection has a bound for what a WAL keeps on the disk.
func TestWALKeepsNoMoreThanItsLimit(t *testing.T) {
	db := open(t, options(t))
	values, err := db.Pragma(t.Context(), "journal_size_limit")
	if got := strings.Join(values, " "); err != nil || got != "8388608 8388608 8388608" {
		t.Errorf("journal_size_limit %s, %v, want 8 MiB of the writer and both readers", got, err)
	}
}

// Case G27: the operator is told of a WAL that a reader keeps from being emptied,
// not with every batch, and it shrinks by itself when the reader leaves.
func TestLargeWALIsTold(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer // written by the writer alone, read when it has ended
	o := options(t)
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	o.SetMaintenance(time.Hour)
	db := open(t, o)
	publish(t, db, message("a", `1`))
	ctx, release := context.WithCancel(t.Context())
	held, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- db.HoldReader(ctx, held) }()
	<-held
	data := `"` + strings.Repeat("x", 2<<20) + `"`
	for range 45 { // 90 MB
		publish(t, db, message("a", data))
	}
	release()
	<-done
	for range 8 {
		publish(t, db, message("a", data))
	}
	if wal := db.Stats().WAL; wal > 32<<20 {
		t.Errorf("WAL of %d bytes after the reader left", wal)
	}
	shut(t, db)
	// One a minute; the machine may be slow.
	if n := strings.Count(log.String(), "write-ahead log is large"); n < 1 || n > 2 {
		t.Errorf("%d lines about the WAL, want one:\n%.2000s", n, log.String())
	}
}

// Case G48: whether a database can write is asked without making files: where its
// file has gone, readiness says so and no empty one takes its place.
func TestProbeMakesNoFile(t *testing.T) {
	f := &faults{}
	o := options(t)
	o.SetFault(f.fault)
	db, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // there is nothing to leave clean
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = db.Close(ctx)
	})
	publish(t, db, message("a", `1`))
	if err := db.Ready(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(o.Path)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(o.Path + suffix); err != nil {
			t.Fatal(err)
		}
	}
	f.set(1, 1, "begin") // the connection is given up
	if a := wait(t, ask(db, message("a", `2`))); !errors.Is(a.err, store.ErrUnavailable) {
		t.Errorf("publish without a file: %+v", a)
	}
	for range 3 {
		if err := db.Ready(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("ready without a file: %v", err)
		}
	}
	if left := must(os.ReadDir(dir)); len(left) != 0 {
		t.Errorf("files were made: %v", left)
	}
}
