package wire_test

import (
	"encoding/json"
	"strings"
	"testing"

	"hub/hub/wire"
)

func TestValidJSON(t *testing.T) {
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	objects := func(depth int) string { return strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth) }
	tests := []struct {
		data string
		want bool
	}{
		{`{}`, true}, {`null`, true}, {`1`, true}, {` {"a": [1, "\u00fc"]}` + "\n", true}, {`"ü"`, true}, {`-1.5e+3`, true},
		{``, false}, {` `, false}, {`{`, false}, {`{}{}`, false}, {`{} 1`, false}, {`nul`, false}, {`01`, false}, {`NaN`, false},
		{`'a'`, false}, {`{"a":1,}`, false}, {`{a:1}`, false}, {"\"\xff\"", false}, {"\"\xed\xa0\x80\"", false}, {"\"\n\"", false},
		{"\xef\xbb\xbf{}", false}, {`"\x"`, false}, {`1,"b":2`, false},
		{`{"a":1,"b":{"a":1}}`, true}, {`{"a":1,"a":1}`, false}, {`[{"b":{"a":1,"c":2,"a":1}}]`, false}, {`{"a":1,"\u0061":1}`, false}, {`{"":1,"":1}`, false},
		{`"\ud83d"`, true}, {`{"\ud83d":1,"\ud83c":1}`, false},
		{nested(wire.MaxDepth), true}, {nested(wire.MaxDepth + 1), false}, {nested(100_000), false},
		{objects(wire.MaxDepth), true}, {objects(wire.MaxDepth + 1), false},
		{`[` + strings.Repeat(`[],{},`, wire.MaxDepth) + `"\"` + strings.Repeat("[", wire.MaxDepth) + `\\"]`, true},
		{`["` + strings.Repeat(`]`, 10) + `",` + nested(wire.MaxDepth) + `]`, false},
	}
	for _, tt := range tests {
		if got := wire.ValidJSON([]byte(tt.data)); got != tt.want {
			t.Errorf("%.40q: %v", tt.data, got)
		}
	}
}

func TestStripNewlines(t *testing.T) {
	data := []byte("{\n\"a\":\n 1}\n")
	if got := string(wire.StripNewlines(data)); got != `{"a": 1}` {
		t.Errorf("got %q", got)
	}
	if string(data) != "{\n\"a\":\n 1}\n" {
		t.Errorf("the input was changed to %q", data)
	}
	plain := []byte(`{"a":"\n"}`)
	if got := wire.StripNewlines(plain); &got[0] != &plain[0] {
		t.Error("data without line feeds is copied")
	}
}

func FuzzValidJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,2.5e3,"\u00fc",null,true]}`))
	f.Add([]byte("[[[\n]]]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if !wire.ValidJSON(b) {
			return
		}
		if !json.Valid(b) {
			t.Fatalf("%q is not valid", b)
		}
		stripped := wire.StripNewlines(b)
		var was, is any
		if json.Unmarshal(b, &was) != nil || json.Unmarshal(stripped, &is) != nil {
			return // a number out of range
		}
		x, _ := json.Marshal(was)
		y, _ := json.Marshal(is)
		if string(x) != string(y) {
			t.Fatalf("stripped %q means %s, not %s", b, y, x)
		}
	})
}

func TestEncodingString(t *testing.T) {
	if wire.JSON.String() != "json" || wire.Protobuf.String() != "protobuf" {
		t.Errorf("got %v and %v", wire.JSON, wire.Protobuf)
	}
}

func BenchmarkValidJSON(b *testing.B) {
	data := []byte(`{"text":"a chat message of a common length, neither long nor short","n":123456}`)
	b.ReportAllocs()
	for b.Loop() {
		if !wire.ValidJSON(data) {
			b.Fatal("not valid")
		}
	}
}
