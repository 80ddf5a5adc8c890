package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// numbered is an operation of a room that knows its place.
type numbered struct {
	room string
	n    int
}

func (o numbered) in() string                            { return o.room }
func (o numbered) apply(*writer, *batch) (Result, error) { return Result{}, nil }

// A flood in one room does not keep the others waiting: they take turns.
func TestQueueTurns(t *testing.T) {
	q := newQueue(10_000, queueBytes, time.Minute)
	put := func(room string, n int) {
		if err := q.push(numbered{room, n}, 1, func(Result, error) {}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		put("flood", i)
	}
	put("chat:1", 0)
	put("chat:1", 1)
	put("chat:2", 0)
	var got []string
	for range 2 { // a batch may end within a turn
		taken, _ := q.take(nil, turn/2+2, 1<<20)
		for _, e := range taken {
			o := e.op.(numbered)
			got = append(got, fmt.Sprint(o.room, "#", o.n))
		}
	}
	var want []string
	for i := range turn {
		want = append(want, fmt.Sprint("flood#", i))
	}
	want = append(want, "chat:1#0", "chat:1#1", "chat:2#0", fmt.Sprint("flood#", turn))
	if !slices.Equal(got, want) {
		t.Errorf("taken %v, want %v", got, want)
	}
	if n, bytes, _ := q.waiting(); n != 1003-len(got) || bytes != n {
		t.Errorf("%d entries of %d bytes wait, want %d", n, bytes, 1003-len(got))
	}
}

// Whatever comes and goes, a room's operations keep their order, and each is taken or
// refused once.
func TestQueueOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 256 * time.Millisecond
		random := rand.New(rand.NewPCG(1, 2))
		q := newQueue(60, 1<<20, timeout)
		type place struct {
			room string
			n    int
		}
		pushed, gone := map[string]int{}, map[place]int{}
		last := map[string]int{}
		since := map[place]time.Time{}
		var mu sync.Mutex // the queue's timer calls too
		leave := func(p place, check func(waited time.Duration)) {
			mu.Lock()
			defer mu.Unlock()
			check(time.Since(since[p]))
			gone[p]++
			if p.n <= last[p.room] {
				t.Errorf("%v left after %d", p, last[p.room])
			}
			last[p.room] = p.n
		}
		full := 0
		for range 20_000 {
			switch random.IntN(8) {
			case 0:
				time.Sleep(time.Duration(random.IntN(int(timeout / 16))))
				synctest.Wait()
			case 1, 2:
				taken, _ := q.take(nil, 1+random.IntN(8), 1+random.IntN(64))
				for _, e := range taken {
					o := e.op.(numbered)
					leave(place(o), func(waited time.Duration) {
						if waited >= timeout {
							t.Errorf("%v was taken after %v", o, waited)
						}
					})
				}
			default:
				room := fmt.Sprint(random.IntN(1 + random.IntN(40)))
				p := place{room, pushed[room] + 1}
				mu.Lock()
				since[p] = time.Now()
				mu.Unlock()
				err := q.push(numbered(p), 1+random.IntN(32), func(_ Result, err error) {
					leave(p, func(waited time.Duration) {
						if !errors.Is(err, ErrWriteTimeout) || waited < timeout || waited > timeout+timeout/128 {
							t.Errorf("%v left with %v after %v", p, err, waited)
						}
					})
				})
				switch {
				case errors.Is(err, ErrQueueFull):
					full++
				case err != nil:
					t.Fatal(err)
				default:
					pushed[room]++
				}
			}
		}
		time.Sleep(2 * timeout)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		want := 0
		for _, n := range pushed {
			want += n
		}
		if len(gone) != want || want == 0 || full == 0 {
			t.Errorf("%d of %d left, %d refused", len(gone), want, full)
		}
		for p, n := range gone {
			if n != 1 {
				t.Errorf("%v left %d times", p, n)
			}
		}
		if n, bytes, oldest := q.waiting(); n != 0 || bytes != 0 || oldest != 0 || len(q.lines) != 0 {
			t.Errorf("%d entries of %d bytes in %d lines wait, the oldest for %v", n, bytes, len(q.lines), oldest)
		}
	})
}

// A batch is as large as some milliseconds of work, or as its commit is long.
func TestNextBatch(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		n                    int
		applying, committing time.Duration
		want                 int
	}{
		{100, 4 * ms, 1 * ms, 100},
		{100, 1 * ms, 1 * ms, 400},
		{100, 8 * ms, 1 * ms, 50},
		{100, 8 * ms, 80 * ms, batchEntries},
		{100, 8 * ms, 16 * ms, 200},
		{1, 1 * time.Second, 0, batchLeast},
		{512, 0, 0, batchEntries},
		{0, 0, 0, batchLeast},
	} {
		if got := nextBatch(test.n, test.applying, test.committing); got != test.want {
			t.Errorf("%d in %v, commit in %v: next %d, want %d", test.n, test.applying, test.committing, got, test.want)
		}
	}
}
