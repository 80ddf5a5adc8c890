package model_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hub/loadtest/model"
)

// history is what a right server answers to clients whose operations overlap: each
// takes effect at its own time, between sent and answered.
func history(seed uint64, n int) (attempts []model.Attempt) {
	r := rand.New(rand.NewPCG(seed, 0))
	state, offset := model.State{}, uint64(10)
	done := map[*model.Operation]*model.Result{}
	var ops []*model.Operation
	for i := range n {
		at := int64(1000 * (i + 1))
		a := model.Attempt{Sent: at - r.Int64N(8000), Answered: at + r.Int64N(8000)}
		key := fmt.Sprintf("k%d", r.IntN(4))
		if a.Of = operation(r, i, key); i > 0 && r.IntN(10) == 0 {
			a.Of = ops[r.IntN(i)]
		}
		ops = append(ops, a.Of)
		switch known := done[a.Of]; {
		case known != nil:
			again := *known
			again.Replayed = true
			a.Result = &again
		default:
			changes, refusal := state.Apply(a.Of.Steps)
			if a.Refusal = refusal; refusal == nil {
				offset++
				a.Result = &model.Result{ID: a.Of.ID, Offset: offset, Epoch: "e", Resources: changes}
				done[a.Of] = a.Result
			}
		}
		attempts = append(attempts, a)
	}
	r.Shuffle(len(attempts), func(i, j int) { attempts[i], attempts[j] = attempts[j], attempts[i] })
	return attempts
}

func operation(r *rand.Rand, i int, key string) *model.Operation {
	one, none, version := int64(1), int64(0), uint64(r.IntN(4))
	op := &model.Operation{ID: fmt.Sprint("op", i)}
	switch r.IntN(6) {
	case 0:
		op.Steps = []model.Step{{Op: "create", Key: key, Value: json.RawMessage(`{"n":2}`)}}
	case 1:
		op.Steps = []model.Step{{Op: "set", Key: key, Value: json.RawMessage(`{"n":7,"s":"x"}`), IfVersion: &version}}
	case 2:
		op.Steps = []model.Step{{Op: "delete", Key: key}}
	case 3:
		op.Steps = []model.Step{{Op: "merge", Key: key, Value: json.RawMessage(`{"n":3,"s":null}`)}}
	default:
		minus := -one
		op.Steps = []model.Step{{Op: "add", Key: key, Path: "/n", By: &minus, Min: &none}}
	}
	return op
}

// TestJudgeAcquits: what a right server says is right, whatever overlaps.
func TestJudgeAcquits(t *testing.T) {
	refused, replayed := 0, 0
	for seed := range uint64(50) {
		attempts := history(seed, 200)
		v := model.Judge(10, attempts)
		if len(v.Wrong) > 0 {
			t.Fatalf("seed %d: %q", seed, v.Wrong)
		}
		refused, replayed = refused+v.Refused, replayed+v.Replayed
	}
	if refused < 1000 || replayed < 100 {
		t.Errorf("%d refused, %d replayed: the histories are too tame", refused, replayed)
	}
}

// TestJudgeConvicts: each way in which a server can be wrong is found.
func TestJudgeConvicts(t *testing.T) {
	applied := func(all []model.Attempt) *model.Attempt {
		i := slices.IndexFunc(all, func(a model.Attempt) bool { return a.Result != nil && !a.Result.Replayed })
		copied := *all[i].Result
		copied.Resources = slices.Clone(copied.Resources)
		all[i].Result = &copied
		return &all[i]
	}
	refused := func(all []model.Attempt) *model.Attempt {
		i := slices.IndexFunc(all, func(a model.Attempt) bool { return a.Refusal != nil })
		copied := *all[i].Refusal
		all[i].Refusal = &copied
		return &all[i]
	}
	for says, spoil := range map[string]func(all []model.Attempt) []model.Attempt{
		"was answered with": func(all []model.Attempt) []model.Attempt {
			applied(all).Result.Resources[0].Version++
			return all
		},
		"an offset is missing or was given twice": func(all []model.Attempt) []model.Attempt {
			applied(all).Result.Offset += 1000
			return all
		},
		"was applied at offset": func(all []model.Attempt) []model.Attempt { // where it must be refused
			a := refused(all)
			a.Result, a.Refusal = &model.Result{ID: a.Of.ID, Offset: 11, Epoch: "e"}, nil
			for i := range all { // everything else comes later by one
				if r := all[i].Result; r != nil && &all[i] != a {
					later := *r
					later.Offset++
					all[i].Result = &later
				}
			}
			return all
		},
		"was said to be applied 2 times": func(all []model.Attempt) []model.Attempt {
			return append(all, *applied(all))
		},
		"was said to be applied 0 times": func(all []model.Attempt) []model.Attempt {
			applied(all).Result.Replayed = true
			return all
		},
		"has no answer": func(all []model.Attempt) []model.Attempt {
			return append(all, model.Attempt{Of: &model.Operation{ID: "mute"}})
		},
		"which it was at no offset": func(all []model.Attempt) []model.Attempt {
			current := *refused(all).Refusal.Current
			current.Version += 1000
			refused(all).Refusal.Current = &current
			return all
		},
		"but nothing else had its id": func(all []model.Attempt) []model.Attempt {
			refused(all).Refusal.Code = "id_reused"
			return all
		},
		"was answered before it was sent": func(all []model.Attempt) []model.Attempt {
			applied(all).Sent = 1 << 40
			return all
		},
	} {
		for seed := range uint64(5) {
			all := history(seed, 200)
			v := model.Judge(10, spoil(all))
			if !slices.ContainsFunc(v.Wrong, func(w string) bool { return strings.Contains(w, says) }) {
				t.Errorf("%q, seed %d: %.300q", says, seed, v.Wrong)
			}
		}
	}
}

// TestJudgeRefusalInTime: a refusal that was right before it was asked for, or will
// be, is wrong.
func TestJudgeRefusalInTime(t *testing.T) {
	step := 0
	create := &model.Operation{ID: "a", Steps: []model.Step{{Op: "create", Key: "k", Value: json.RawMessage(`1`)}}}
	remove := &model.Operation{ID: "b", Steps: []model.Step{{Op: "delete", Key: "k"}}}
	again := &model.Operation{ID: "c", Steps: []model.Step{{Op: "create", Key: "k", Value: json.RawMessage(`2`)}}}
	for name, test := range map[string]struct {
		sent, answered int64
		right          bool
	}{
		"before":   {1, 5, false},
		"overlaps": {1, 15, true},
		"between":  {25, 28, true},
		"to late":  {45, 50, false},
		"just yet": {35, 50, true},
	} {
		v := model.Judge(0, []model.Attempt{
			{Of: create, Sent: 10, Answered: 20, Result: &model.Result{ID: "a", Offset: 1, Resources: []model.Resource{{Key: "k", Version: 1, Value: json.RawMessage(`1`)}}}},
			{Of: remove, Sent: 30, Answered: 40, Result: &model.Result{ID: "b", Offset: 2, Resources: []model.Resource{{Key: "k", Version: 2, Deleted: true}}}},
			{Of: again, Sent: test.sent, Answered: test.answered, Refusal: &model.Refusal{Status: 409, Code: "exists", Step: &step,
				Current: &model.Resource{Key: "k", Version: 1, Value: json.RawMessage(`1`)}}},
		})
		if (len(v.Wrong) == 0) != test.right {
			t.Errorf("%s: %q", name, v.Wrong)
		}
	}
}

// TestJudgeLost: an attempt whose connection was lost may have been applied: then
// all that came after is a replay.
func TestJudgeLost(t *testing.T) {
	op := &model.Operation{ID: "a", Steps: []model.Step{{Op: "create", Key: "k", Value: json.RawMessage(`1`)}}}
	result := &model.Result{ID: "a", Offset: 1, Replayed: true, Resources: []model.Resource{{Key: "k", Version: 1, Value: json.RawMessage(`1`)}}}
	v := model.Judge(0, []model.Attempt{{Of: op, Sent: 1, Lost: true}, {Of: op, Sent: 5, Answered: 6, Result: result}})
	if len(v.Wrong) > 0 {
		t.Errorf("%q", v.Wrong)
	}
}
