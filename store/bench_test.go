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
