package document_test

import (
	"reflect"
	"strings"
	"testing"

	"hub/store/document"
)

func TestMerge(t *testing.T) {
	var takeAway strings.Builder // n0 to n98
	for i := range 99 {
		takeAway.WriteString(`"n` + itoa(i) + `":null,`)
	}
	for _, c := range []struct{ name, value, patch, want string }{
		// RFC 7396 appendix A, in its order.
		{"A1", `{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{"A2", `{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{"A3", `{"a":"b"}`, `{"a":null}`, `{}`},
		{"A4", `{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{"A5", `{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{"A6", `{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{"A7", `{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{"A8", `{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{"A9", `["a","b"]`, `["c","d"]`, `["c","d"]`},
		{"A10", `{"a":"b"}`, `["c"]`, `["c"]`},
		{"A11", `{"a":"foo"}`, `null`, `null`},
		{"A12", `{"a":"foo"}`, `"bar"`, `"bar"`},
		{"A13", `{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{"A14", `[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{"A15", `{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{"section 3", `{"title":"Goodbye!","author":{"givenName":"John","familyName":"Doe"},"tags":["example","sample"],"content":"This will be unchanged"}`,
			`{"title":"Hello!","phoneNumber":"+01-123-456-7890","author":{"familyName":null},"tags":["example"]}`,
			`{"title":"Hello!","author":{"givenName":"John"},"tags":["example"],"content":"This will be unchanged","phoneNumber":"+01-123-456-7890"}`},

		{"nothing", `{"a":1}`, `{}`, `{"a":1}`},
		{"nothing onto nothing", `{}`, `{}`, `{}`},
		{"an empty object replaces what is none", `{"a":5,"b":[1]}`, `{"a":{},"b":{}}`, `{"a":{},"b":{}}`},
		{"an empty object changes no object", `{"a":{"b":1}}`, `{"a":{}}`, `{"a":{"b":1}}`},
		{"nulls in arrays stay", `{"a":1}`, `{"a":[null,{"b":null}]}`, `{"a":[null,{"b":null}]}`},
		{"nulls in the value stay", `{"a":{"b":null},"c":null}`, `{"a":{"d":1}}`, `{"a":{"b":null,"d":1},"c":null}`},
		{"order", `{"z":1,"a":2,"m":3}`, `{"y":9,"m":8,"b":7,"z":6}`, `{"z":6,"a":2,"m":8,"y":9,"b":7}`},
		{"order below", `{"o":{"z":1,"a":2}}`, `{"o":{"b":1,"a":3}}`, `{"o":{"z":1,"a":3,"b":1}}`},
		{"first taken away", `{"a":1,"b":2,"c":3}`, `{"a":null}`, `{"b":2,"c":3}`},
		{"middle taken away", `{"a":1,"b":2,"c":3}`, `{"b":null}`, `{"a":1,"c":3}`},
		{"last taken away", `{"a":1,"b":2,"c":3}`, `{"c":null}`, `{"a":1,"b":2}`},
		{"all taken away, one new", `{"a":1,"b":2}`, `{"b":null,"n":1,"a":null}`, `{"n":1}`},
		{"taking away what is not there", `{"a":1}`, `{"x":null,"y":{"z":null}}`, `{"a":1,"y":{}}`},
		{"text stays", `{"n":123456789012345678901,"f":1.0,"e":1e400,"s":"\u00e9\/}","x":1}`, `{"x":2.50}`, `{"n":123456789012345678901,"f":1.0,"e":1e400,"s":"\u00e9\/}","x":2.50}`},
		{"escaped in the value", `{"\u0061":1,"b":2}`, `{"a":3}`, `{"\u0061":3,"b":2}`},
		{"escaped in the patch", `{"a":1,"b":2}`, `{"\u0061":3}`, `{"a":3,"b":2}`},
		{"escaped and new", `{"b":2}`, `{"\u0061\/":3}`, `{"b":2,"\u0061\/":3}`},
		{"escaped and taken away", `{"\u006e":1,"b":2}`, `{"n":null,"\u0062":null}`, `{}`},
		{"empty name", `{"":1}`, `{"":{"":2}}`, `{"":{"":2}}`},
		{"string that says null", `{"a":1}`, `{"a":"null"}`, `{"a":"null"}`},
		{"brackets in strings", `{"a":"}","b":["]\"",{"{":"\\"}]}`, `{"c":1}`, `{"a":"}","b":["]\"",{"{":"\\"}],"c":1}`},
		{"scalars", `1`, `2`, `2`},
		{"deepest", nested(document.MaxDepth, `1`, "a"), nested(document.MaxDepth, `2`, "a"), nested(document.MaxDepth, `2`, "a")},
		{"deepest, beside", nested(document.MaxDepth-1, `{"a":1}`, "a"), nested(document.MaxDepth-1, `{"b":2}`, "a"), nested(document.MaxDepth-1, `{"a":1,"b":2}`, "a")},
		{"many", manyMembers(100, `"z":1`), manyMembers(100, `"y":{"x":null}`), manyMembers(100, `"z":1,"y":{}`)},
		{"many taken away", manyMembers(100, `"z":1`), `{` + takeAway.String() + `"y":1}`, `{"n99":99,"z":1,"y":1}`},
		{"many, escaped", `{"\u006e7":1,"b":2}`, `{` + takeAway.String() + `"\u0062":3}`, `{"b":3}`},
	} {
		value, patch := compact(t, c.value), compact(t, c.patch)
		got, err := document.Merge(value, patch)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: Merge(%s, %s) = %s, %v; want %s", c.name, c.value, c.patch, got, err, c.want)
		}
		if string(value) != c.value || string(patch) != c.patch {
			t.Errorf("%s: Merge changed its arguments to %s, %s", c.name, value, patch)
		}
		for i := range value {
			value[i] = 'x'
		}
		for i := range patch {
			patch[i] = 'x'
		}
		if err == nil && string(got) != c.want {
			t.Errorf("%s: the result lies in the memory of the arguments", c.name)
		}
	}
}

// TestDuplicatesInPatches: a patch comes through Compact as a value does.
func TestDuplicatesInPatches(t *testing.T) {
	for _, patch := range []string{`{"a":1,"a":null}`, `{"a":{"b":null,"\u0062":1}}`, `{"a":[{"b":1,"b":2}]}`} {
		if got, err := document.Compact([]byte(patch)); err == nil {
			t.Errorf("Compact(%s) = %s; want an error", patch, got)
		}
	}
}

// FuzzMerge compares Merge with the pseudocode of RFC 7396 on decoded values.
func FuzzMerge(f *testing.F) {
	for _, s := range [][2]string{
		{`{"a":{"b":"c","d":[1,null]}}`, `{"a":{"b":null,"e":{"f":null,"g":1}},"h":"x"}`},
		{`{"\u0061":1.0,"b":{"":null}}`, `{"a":null,"\u0062":{"":{}}}`},
		{`[1]`, `{"a":[null]}`}, {`{"a":1}`, `null`}, {`"x"`, `{}`},
		{manyMembers(12, `"z":{"n1":1}`), manyMembers(12, `"z":{"n1":null}`)},
	} {
		f.Add([]byte(s[0]), []byte(s[1]))
	}
	f.Fuzz(func(t *testing.T, value, patch []byte) {
		value, err := document.Compact(value)
		if err != nil {
			return
		}
		if patch, err = document.Compact(patch); err != nil {
			return
		}
		got, err := document.Merge(value, patch)
		if err != nil {
			t.Fatalf("Merge(%s, %s): %v", value, patch, err)
		}
		if have, want := decode(t, got), mergeModel(decode(t, value), decode(t, patch)); !reflect.DeepEqual(have, want) {
			t.Fatalf("Merge(%s, %s) = %s; want %v", value, patch, got, want)
		}
		if again := compact(t, string(got)); string(again) != string(got) {
			t.Fatalf("Merge(%s, %s) = %s is not compact", value, patch, got)
		}
	})
}

// mergeModel is RFC 7396 section 2, word for word.
func mergeModel(target, patch any) any {
	members, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	result, ok := target.(map[string]any)
	if !ok {
		result = map[string]any{}
	}
	for name, value := range members {
		if value == nil {
			delete(result, name)
		} else {
			result[name] = mergeModel(result[name], value)
		}
	}
	return result
}

// FuzzMalformed: what did not come through Compact gives an error or nonsense, but
// neither a panic nor a loop.
func FuzzMalformed(f *testing.F) {
	for _, s := range []string{"", `{`, `{"`, `{"a`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1}}`, `{"a\`, `{"\ud800":1}`, `[`, `[1`, `[1,`, `{,}`, `[,]`, `:`, `}`, `{:1}`, `{"a":[}`, nested(300, "", "a")} {
		f.Add([]byte(s), []byte(`{"a":{"a":{"b":1}}}`), "/a/a")
		f.Add([]byte(`{"a":{"a":{"b":1}}}`), []byte(s), "/0")
		f.Add([]byte(s), []byte(s), "")
	}
	f.Fuzz(func(t *testing.T, value, patch []byte, path string) {
		_, _ = document.Add(value, path, 1, nil, nil)
		got, err := document.Merge(value, patch)
		if err == nil && len(got) > len(value)+len(patch)+len("{}") {
			t.Fatalf("Merge(%q, %q) = %q", value, patch, got)
		}
	})
}

// TestMalformed: text that was cut off is noticed where it is read.
func TestMalformed(t *testing.T) {
	const whole = `{"a":{"b":[1,"x"],"c":5}}`
	for n := range len(whole) {
		if got, err := document.Merge([]byte(whole[:n]), []byte(`{"a":{"d":1}}`)); err == nil {
			t.Errorf("Merge into %s = %s; want an error", whole[:n], got)
		}
		if got, err := document.Merge([]byte(`{"a":{"d":1}}`), []byte(whole[:n])); err == nil {
			t.Errorf("Merge of %s = %s; want an error", whole[:n], got)
		}
		if got, err := document.Add([]byte(whole[:n]), "/a/c", 1, nil, nil); err == nil && n < len(whole)-len("}}") {
			t.Errorf("Add to %s = %s; want an error", whole[:n], got)
		}
	}
	for _, patch := range []string{`{}x`, `1}`, `{"a":1}{}`, nested(document.MaxDepth+1, "1", "a")} {
		if got, err := document.Merge([]byte(`{}`), []byte(patch)); err == nil {
			t.Errorf("Merge of %s = %s; want an error", patch, got)
		}
	}
}
