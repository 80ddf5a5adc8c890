package loadtest

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestStandstill: a time in which the whole machine stood still is noted, and is
// not the server's silence.
func TestStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &swarm{options: swarmOptions{stall: 5 * time.Second}}
		begin, looks := time.Now(), 0
		err := s.wait(t.Context(), func(*counts) bool {
			if looks++; looks == 2 {
				time.Sleep(8 * time.Second)
			}
			return false
		})
		if took := time.Since(begin); !errors.Is(err, errStalled) || took < 13*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		if s.slept < 8*time.Second || s.slept > 9*time.Second {
			t.Errorf("slept %v", s.slept)
		}
	})
}

// TestAnsweredOnce: in a room that publishes once, answers come in order, each
// event is acknowledged once and with the offset that follows the one before.
func TestAnsweredOnce(t *testing.T) {
	r := &room{once: true}
	if base, same := r.joined(&subscription{epoch: []byte("e"), offset: 5}); base != 5 || !same {
		t.Fatalf("base %d, same %v", base, same)
	}
	r.given.Store(4)
	r.waiting = []event{{seq: 1}, {seq: 2}, {seq: 3}, {seq: 4}}
	for i, step := range []struct {
		seq          uint64
		code         uint32
		offset       string
		fresh, right bool
	}{
		{seq: 2, offset: "7", fresh: false, right: false}, // out of order
		{seq: 1, offset: "6", fresh: true, right: true},
		{seq: 1, offset: "6", fresh: false, right: true}, // again, from before a reconnect
		{seq: 2, offset: "9", fresh: true, right: false}, // another offset
		{seq: 3, code: 100, fresh: true, right: true},    // refused: it has none
		{seq: 4, offset: "8", fresh: true, right: true},
	} {
		m := &message{code: step.code, rpc: []byte(`{"offset":` + step.offset + `,"epoch":"e"}`)}
		if fresh, right := r.answered(step.seq, m); fresh != step.fresh || right != step.right {
			t.Errorf("step %d: fresh %v, right %v; want %v, %v", i, fresh, right, step.fresh, step.right)
		}
	}
	if acked := r.acked.Load(); acked != 3 || len(r.waiting) != 0 || len(r.refused) != 1 {
		t.Errorf("%d acknowledged, %d waiting, %d refused", acked, len(r.waiting), len(r.refused))
	}
	if _, same := r.joined(&subscription{epoch: []byte("f"), offset: 9}); same {
		t.Error("another epoch is the same")
	}
	member := &conn{next: 3, missing: map[uint64]struct{}{1: {}}}
	if lost, first := r.lost(member); lost != 2 || first != 1 { // 1 and 4: 3 was refused
		t.Errorf("%d lost from %d, want 2 from 1", lost, first)
	}
}
