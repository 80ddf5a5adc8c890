package store_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"hub/store"
)

// What a read tells of a room is never ahead of what the subscribers' logs know:
// a client that goes on from there would be refused.
func TestReadsAwaitDelivery(t *testing.T) {
	var told atomic.Bool
	entered, release := make(chan struct{}), make(chan struct{})
	o := options(t)
	o.Committed = func(events []store.Event) {
		if events[0].Room == "r" && events[0].Publication.Offset == 2 {
			close(entered)
			<-release
			told.Store(true)
		}
	}
	db := open(t, o)
	ctx := context.Background()
	operation := func(id string) store.Operation {
		return store.Operation{Room: "r", Caller: "u", ID: id, Steps: []store.Step{{Op: store.StepSet, Key: "k", Value: []byte("1")}}}
	}
	done := make(chan error, 2)
	answer := func(_ store.OperationResult, err error) { done <- err }
	db.Operate(operation("1"), answer)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	publish(t, db, message("other", "1"))
	db.Operate(operation("2"), answer)
	<-entered // committed, and not told yet

	reads := map[string]func(context.Context) error{
		"position":  func(ctx context.Context) error { _, err := db.Position(ctx, "r"); return err },
		"history":   func(ctx context.Context) error { _, err := db.Page(ctx, "r", 0, 10, 0); return err },
		"resources": func(ctx context.Context) error { _, err := db.Resources(ctx, "r", store.ResourceQuery{}); return err },
		"operation": func(ctx context.Context) error { _, err := db.FindOperation(ctx, "r", "u", "2"); return err },
	}
	type outcome struct {
		what string
		err  error
		told bool
	}
	outcomes := make(chan outcome, len(reads))
	for what, read := range reads {
		go func() {
			err := read(ctx)
			outcomes <- outcome{what, err, told.Load()}
		}()
	}
	// Nothing else waits: other rooms, what was told before, a single resource.
	for range 20 {
		position(t, db, "other")
		if _, err := db.FindOperation(ctx, "r", "u", "1"); err != nil {
			t.Error(err)
		}
		if r, err := db.Resource(ctx, "r", "k"); err != nil || r.Version != 2 {
			t.Errorf("resource %+v, %v", r, err)
		}
	}
	canceled, cancel := context.WithCancel(ctx)
	impatient := make(chan error, 1)
	go func() { _, err := db.Position(canceled, "r"); impatient <- err }()
	cancel()
	if err := <-impatient; !errors.Is(err, context.Canceled) {
		t.Errorf("a read that was given up ended with %v", err)
	}
	close(release)
	for range reads {
		if o := <-outcomes; o.err != nil || !o.told {
			t.Errorf("%s: %v, told before it: %v", o.what, o.err, o.told)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
