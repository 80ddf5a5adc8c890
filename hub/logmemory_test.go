package hub

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"hub/hub/wire"
)

// The limit of all logs bounds the memory that they really take, and nothing of
// them is left when the rooms end.
func TestLogMemoryIsFreed(t *testing.T) {
	const limit = 1 << 20
	b := newBench(t)
	b.server.memory = newLogMemory(limit)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	data := `"` + strings.Repeat("x", 60<<10) + `"`
	before := heap()
	var rooms []*room
	for i := range 60 {
		r := b.room("default", fmt.Sprint("r", i))
		r.join(b.loop, wire.JSON)
		for range 16 { // 60 MiB in all
			b.publish(r, data)
		}
		rooms = append(rooms, r)
	}
	if n := b.server.memory.bytes(); n > limit || n < limit/2 {
		t.Errorf("%d bytes accounted for, want at most %d and most of it", n, limit)
	}
	if grown := heap() - before; grown > 8*limit {
		t.Errorf("the heap has grown by %d KiB, with logs limited to %d KiB", grown>>10, limit>>10)
	}
	for _, r := range rooms {
		r.leave(b.loop, wire.JSON)
	}
	if n := b.server.memory.bytes(); n != 0 {
		t.Errorf("%d bytes accounted for after the end of all rooms", n)
	}
	if n := len(b.databases["default"].rooms); n != 0 {
		t.Errorf("%d rooms are left", n)
	}
}
