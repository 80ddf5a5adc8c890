package model_test

import (
	"encoding/json"
	"testing"

	"hub/loadtest/model"
)

func steps(t *testing.T, text string) (list []model.Step) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return list
}

// TestApply: each step does what the documents say.
func TestApply(t *testing.T) {
	const big = `9007199254740991`
	for _, test := range []struct {
		before, steps string // before is a value of k at version 1; empty: none
		want          string // the value of k; empty: deleted
		version       uint64
		refused       string
	}{
		{"", `[{"op":"create","key":"k","value":{"b":1,"a":[1, 2]}}]`, `{"a":[1,2],"b":1}`, 1, ""},
		{`1`, `[{"op":"create","key":"k","value":2}]`, "", 0, "exists"},
		{"", `[{"op":"set","key":"k","value":2}]`, `2`, 1, ""},
		{`1`, `[{"op":"set","key":"k","value":2}]`, `2`, 2, ""},
		{`1`, `[{"op":"set","key":"k","value":2,"if_version":1}]`, `2`, 2, ""},
		{`1`, `[{"op":"set","key":"k","value":2,"if_version":2}]`, "", 0, "version_conflict"},
		{`1`, `[{"op":"create","key":"k","value":2,"if_version":0}]`, "", 0, "version_conflict"},
		{"", `[{"op":"set","key":"k","value":2,"if_version":0}]`, `2`, 1, ""},
		{"", `[{"op":"delete","key":"k","if_version":1}]`, "", 0, "version_conflict"},
		{`1`, `[{"op":"delete","key":"k"}]`, "", 2, ""},
		{"", `[{"op":"delete","key":"k"}]`, "", 0, "not_found"},
		{`1`, `[{"op":"delete","key":"k"},{"op":"create","key":"k","value":3,"if_version":0}]`, `3`, 3, ""},
		{`1`, `[{"op":"delete","key":"k"},{"op":"merge","key":"k","value":{}}]`, "", 0, "not_found"},
		{`{"a":"b"}`, `[{"op":"merge","key":"k","value":{"a":"c"}}]`, `{"a":"c"}`, 2, ""}, // and on: RFC 7396, appendix A
		{`{"a":"b"}`, `[{"op":"merge","key":"k","value":{"b":"c"}}]`, `{"a":"b","b":"c"}`, 2, ""},
		{`{"a":"b","b":"c"}`, `[{"op":"merge","key":"k","value":{"a":null}}]`, `{"b":"c"}`, 2, ""},
		{`{"a":[{"b":"c"}]}`, `[{"op":"merge","key":"k","value":{"a":[1]}}]`, `{"a":[1]}`, 2, ""},
		{`["a","b"]`, `[{"op":"merge","key":"k","value":["c","d"]}]`, `["c","d"]`, 2, ""},
		{`[1,2]`, `[{"op":"merge","key":"k","value":{"a":"b","c":null}}]`, `{"a":"b"}`, 2, ""},
		{`{}`, `[{"op":"merge","key":"k","value":{"a":{"bb":{"ccc":null}}}}]`, `{"a":{"bb":{}}}`, 2, ""},
		{`5`, `[{"op":"add","key":"k","by":-2}]`, `3`, 2, ""},
		{`{"a":[{"n":5}]}`, `[{"op":"add","key":"k","path":"/a/0/n","by":1}]`, `{"a":[{"n":6}]}`, 2, ""},
		{`{"a/b~":5}`, `[{"op":"add","key":"k","path":"/a~1b~0","by":1}]`, `{"a/b~":6}`, 2, ""},
		{`{"a":[5]}`, `[{"op":"add","key":"k","path":"/a/00","by":1}]`, "", 0, "not_found"},
		{`{"a":[5]}`, `[{"op":"add","key":"k","path":"/a/-","by":1}]`, "", 0, "not_found"},
		{`{"a":5}`, `[{"op":"add","key":"k","path":"/b","by":1}]`, "", 0, "not_found"},
		{`{"a":5}`, `[{"op":"add","key":"k","path":"/a/b","by":1}]`, "", 0, "not_found"},
		{`{"a":5}`, `[{"op":"add","key":"k","by":1}]`, "", 0, "not_integer"},
		{`5.0`, `[{"op":"add","key":"k","by":1}]`, "", 0, "not_integer"},
		{`9007199254740992`, `[{"op":"add","key":"k","by":-1}]`, "", 0, "not_integer"},
		{big, `[{"op":"add","key":"k","by":1}]`, "", 0, "out_of_range"},
		{big, `[{"op":"add","key":"k","by":` + big + `}]`, "", 0, "out_of_range"},
		{`1`, `[{"op":"add","key":"k","by":-2,"min":0}]`, "", 0, "out_of_range"},
		{`1`, `[{"op":"add","key":"k","by":-1,"min":0}]`, `0`, 2, ""},
		{`1`, `[{"op":"add","key":"k","by":2,"max":2}]`, "", 0, "out_of_range"},
	} {
		s := model.State{}
		if test.before != "" {
			s["k"] = model.Resource{Key: "k", Version: 1, Value: json.RawMessage(test.before)}
		}
		before := s.Living()
		list := steps(t, test.steps)
		changes, refusal := s.Apply(list)
		if test.refused != "" {
			if refusal == nil || refusal.Code != test.refused || *refusal.Step != len(list)-1 || before.Difference(s) != "" {
				t.Errorf("%s on %s: %v, %v left", test.steps, test.before, refusal, s)
			}
			if got := refusal.Current; test.before == "" && got.Version != 0 || test.before != "" && !got.Same(before["k"]) {
				t.Errorf("%s on %s: current is %v", test.steps, test.before, got)
			}
			continue
		}
		want := model.Resource{Key: "k", Version: test.version, Value: json.RawMessage(test.want), Deleted: test.want == ""}
		if refusal != nil || len(changes) != 1 || !changes[0].Same(want) || !s["k"].Same(want) {
			t.Errorf("%s on %s: %v, %v, want %v", test.steps, test.before, changes, refusal, want)
		}
	}
}

// TestAllOrNothing: a refused step undoes those before it, and changes come in the
// order of the first step on each resource.
func TestAllOrNothing(t *testing.T) {
	s := model.State{}
	if _, r := s.Apply(steps(t, `[{"op":"create","key":"b","value":1},{"op":"add","key":"c","by":1}]`)); r == nil || len(s) != 0 {
		t.Errorf("%v, %v left", r, s)
	}
	changes, _ := s.Apply(steps(t, `[{"op":"create","key":"b","value":1},{"op":"create","key":"a","value":1},{"op":"add","key":"b","by":1}]`))
	want := []model.Resource{{Key: "b", Version: 2, Value: json.RawMessage(`2`)}, {Key: "a", Version: 1, Value: json.RawMessage(`1`)}}
	if !model.SameAll(changes, want) {
		t.Errorf("%v, want %v", changes, want)
	}
}

func TestDifference(t *testing.T) {
	a := model.Resource{Key: "a", Version: 2, Value: json.RawMessage(`{"x":1,"y":2}`)}
	s := model.State{"a": a}
	for want, test := range map[string]model.State{
		"": {"a": {Key: "a", Version: 2, Value: json.RawMessage(`{"y":2, "x":1}`)}},
		"a version 2 {\"x\":1,\"y\":2} is missing":                    {},
		"b version 1 1 should not be there":                           {"a": a, "b": {Key: "b", Version: 1, Value: json.RawMessage(`1`)}},
		"a version 3 1 should be a version 2 {\"x\":1,\"y\":2}":       {"a": {Key: "a", Version: 3, Value: json.RawMessage(`1`)}},
		"a version 2 deleted should be a version 2 {\"x\":1,\"y\":2}": {"a": {Key: "a", Version: 2, Deleted: true}},
	} {
		if got := s.Difference(test); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
