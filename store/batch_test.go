package store_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hub/store"
)

// Small operations on a large resource produce large events: a batch ends by
// those bytes too, so that others need not wait for all of them.
func TestBatchEndsByProducedBytes(t *testing.T) {
	const operations, value, bound = 60, 240 << 10, 4 << 20
	g := newGate("begin")
	o := options(t)
	l := &ledger{}
	var batches, largest atomic.Int64
	o.Committed = l.committed
	o.Observe = func(n int, _ time.Duration) {
		batches.Add(1)
		largest.Store(max(largest.Load(), int64(n)))
	}
	o.SetFault(g.fault)
	db := open(t, o)
	held := g.hold(t, db, message("held", `1`))

	answers := []<-chan operated{start(db, operation("big", "seed", create("k", `{"n":0,"s":"`+strings.Repeat("x", value)+`"}`)))}
	var early int64 // batches until the publisher elsewhere had its answer
	elsewhere := make(chan answer, 2)
	for i := range operations {
		answers = append(answers, start(db, operation("big", fmt.Sprint("id", i), add("k", "/n", 1))))
		if i == 10 {
			db.Publish(message("small", `2`), func(r store.Result, err error) {
				early = batches.Load()
				elsewhere <- answer{r, err}
			})
		}
	}
	close(g.open)
	wait(t, held)
	if a := wait(t, elsewhere); a.err != nil {
		t.Fatal(a.err)
	}
	for i, c := range answers {
		if r := await(t, c); r.err != nil || r.Offset != uint64(i+1) || r.Replayed {
			t.Fatalf("operation %d: offset %d, replayed %t, %v", i, r.Offset, r.Replayed, r.err)
		}
	}
	// Each operation produces event, record and value.
	if limit := int64(bound/(3*value) + 2); largest.Load() > limit {
		t.Errorf("a batch held %d operations, want at most %d", largest.Load(), limit)
	}
	if all := batches.Load(); early > all/2 {
		t.Errorf("the publisher elsewhere was in batch %d of %d", early, all)
	}
	if n := len(l.all()); n != operations+3 {
		t.Errorf("%d events were handed out, want %d", n, operations+3)
	}
	for i, c := range answers {
		if len(c) > 0 {
			t.Errorf("operation %d was answered twice", i)
		}
	}
}
