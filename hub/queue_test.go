package hub

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A fifo against a slice. What was taken is not kept, nor much room for it.
func TestFIFO(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	for seed := base; seed < base+100; seed++ {
		random := rand.New(rand.NewPCG(seed, 0))
		var f fifo[*int]
		var model []*int
		for range 500 {
			if random.IntN(10) < pick(random, 3, 5, 7) {
				item := new(int)
				f.push(item)
				model = append(model, item)
			} else if len(model) > 0 {
				if got := f.pop(); got != model[0] {
					t.Fatalf("seed %d: another item than the oldest of %d", seed, len(model))
				}
				model = model[1:]
			}
			if f.len() != len(model) || len(f.items) > 2*len(model)+32 {
				t.Fatalf("seed %d: length %d in %d, want %d", seed, f.len(), len(f.items), len(model))
			}
			for i, item := range f.items[:cap(f.items)] {
				if (i < f.head || i >= len(f.items)) && item != nil {
					t.Fatalf("seed %d: an item that was taken is kept", seed)
				}
			}
		}
	}
}

// sweepModel is what a sweepQueue is to hold: databases in turn, rooms in theirs.
type sweepModel struct {
	turns  []*database
	shards map[*database][]*shard
}

func (m *sweepModel) add(sh *shard) {
	db := sh.room.db
	if len(m.shards[db]) == 0 {
		m.turns = append(m.turns, db)
	}
	m.shards[db] = append(m.shards[db], sh)
}

func (m *sweepModel) next() *shard {
	db := m.turns[0]
	m.turns = m.turns[1:]
	sh := m.shards[db][0]
	if m.shards[db] = m.shards[db][1:]; len(m.shards[db]) > 0 {
		m.turns = append(m.turns, db)
	}
	return sh
}

func TestSweepQueueModel(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	for seed := base; seed < base+100; seed++ {
		random := rand.New(rand.NewPCG(seed, 0))
		var shards []*shard
		for range 1 + random.IntN(4) {
			db := new(database)
			for range 1 + random.IntN(60) {
				shards = append(shards, &shard{room: &room{db: db}})
			}
		}
		q := sweepQueue{byDB: make(map[*database]*dirtyRooms)}
		m := sweepModel{shards: make(map[*database][]*shard)}
		for range 600 {
			if random.IntN(10) < pick(random, 3, 5, 7) {
				sh := shards[random.IntN(len(shards))]
				sh.pos = 7
				if sh.queued { // it keeps its turn
					q.add(sh)
					if !sh.again || sh.pos != 7 {
						t.Fatalf("seed %d: a queued room: again %v, position %d", seed, sh.again, sh.pos)
					}
				} else {
					m.add(sh)
					if q.add(sh); !sh.queued || sh.pos != 0 {
						t.Fatalf("seed %d: a new room: queued %v, position %d", seed, sh.queued, sh.pos)
					}
				}
			} else if q.busy() {
				if got, want := q.next(), m.next(); got != want || got.queued {
					t.Fatalf("seed %d: another room than the one whose turn it is", seed)
				}
			}
			if q.busy() != (len(m.turns) > 0) {
				t.Fatalf("seed %d: busy %v with %d databases dirty", seed, q.busy(), len(m.turns))
			}
		}
	}
}

// Taking many dirty rooms off the queue moves each of them but a few times.
func TestManyDirtyRooms(t *testing.T) {
	const n = 100_000
	q := sweepQueue{byDB: make(map[*database]*dirtyRooms)}
	r := &room{db: new(database)}
	shards := make([]shard, n)
	for i := range shards {
		shards[i].room = r
		q.add(&shards[i])
	}
	rooms := &q.byDB[r.db].shards
	moved := 0
	for i := range shards {
		if q.next() != &shards[i] {
			t.Fatalf("room %d has lost its place", i)
		}
		if rooms.head == 0 { // the rest was moved to the front
			if moved += rooms.len(); moved > 2*n {
				t.Fatalf("%d moves for the first %d of %d rooms", moved, i+1, n)
			}
		}
	}
	if q.busy() {
		t.Error("it is busy with nothing")
	}
}
