package store_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"hub/store"
)

// BenchmarkPublish measures durable publications with as many publishers, each
// waiting for its acknowledgement, in 10 rooms. op/s is the figure of DESIGN.md section 14.
func BenchmarkPublish(b *testing.B) {
	for _, id := range []bool{false, true} {
		for _, n := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("publishers=%d/id=%t", n, id), func(b *testing.B) { benchmarkPublish(b, n, id) })
		}
	}
}

func benchmarkPublish(b *testing.B, publishers int, withID bool) {
	db, err := store.Open(store.Options{
		Path:      filepath.Join(b.TempDir(), "b.db"),
		Retention: func(string) store.Retention { return store.Retention{Size: 10_000} },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(b.Context())
	data := []byte(`{"text":"a chat message of a common length, neither long nor short","n":123456}`)
	b.ReportAllocs()
	b.ResetTimer()
	work := make(chan int, b.N)
	for i := range b.N {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			ack := make(chan error, 1)
			room := fmt.Sprintf("chat:%d", p%10)
			for i := range work {
				req := store.Publish{Room: room, Caller: "u1", Publication: store.Publication{Data: data, User: "u1", Client: "c1"}}
				if withID {
					req.ID = fmt.Sprint(i)
				}
				db.Publish(req, func(_ store.Result, err error) { ack <- err })
				if err := <-ack; err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

// BenchmarkOperate measures operations with as many callers, each waiting for its
// result: an add on one of 100 resources, a reward that is created, an event and
// an id, in 10 rooms.
func BenchmarkOperate(b *testing.B) {
	for _, n := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", n), func(b *testing.B) { benchmarkOperate(b, n) })
	}
}

func benchmarkOperate(b *testing.B, callers int) {
	db, err := store.Open(store.Options{
		Path:      filepath.Join(b.TempDir(), "b.db"),
		Retention: func(string) store.Retention { return store.Retention{Size: 10_000} },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(b.Context())
	seed := make(chan error, 1)
	for i := range 10 {
		o := store.Operation{Room: fmt.Sprintf("shop:%d", i), Caller: "u1", ID: "seed"}
		for j := range 10 {
			o.Steps = append(o.Steps, store.Step{Op: store.StepSet, Key: fmt.Sprintf("stock/%d", j), Value: []byte(`{"name":"a thing","amount":1000000000}`)})
		}
		db.Operate(o, func(_ store.OperationResult, err error) { seed <- err })
		if err := <-seed; err != nil {
			b.Fatal(err)
		}
	}
	least := int64(0)
	reward := []byte(`{"to":"u1","of":"a thing"}`)
	b.ReportAllocs()
	b.ResetTimer()
	work := make(chan int, b.N)
	for i := range b.N {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			ack := make(chan error, 1)
			room := fmt.Sprintf("shop:%d", c%10)
			for i := range work {
				id := fmt.Sprint(i)
				o := store.Operation{Room: room, Caller: "u1", ID: id, Publisher: store.Publication{User: "u1", Client: "c1"}, Steps: []store.Step{
					{Op: store.StepAdd, Key: fmt.Sprintf("stock/%d", i%10), Path: "/amount", By: -1, Min: &least},
					{Op: store.StepCreate, Key: "rewards/" + id, Value: reward},
				}}
				db.Operate(o, func(_ store.OperationResult, err error) { ack <- err })
				if err := <-ack; err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

// BenchmarkResource measures reads by key, one after the other on each core.
func BenchmarkResource(b *testing.B) {
	db, err := store.Open(store.Options{Path: filepath.Join(b.TempDir(), "b.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(b.Context())
	o := store.Operation{Room: "shop:1", Caller: "u1", ID: "seed"}
	for i := range 1_000 {
		o.Steps = append(o.Steps, store.Step{Op: store.StepSet, Key: fmt.Sprintf("stock/%d", i), Value: []byte(`{"name":"a thing","amount":1000000000}`)})
	}
	seed := make(chan error, 1)
	db.Operate(o, func(_ store.OperationResult, err error) { seed <- err })
	if err := <-seed; err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := db.Resource(b.Context(), "shop:1", o.Steps[i%1_000].Key); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}
