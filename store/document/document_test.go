package document_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"hub/store/document"
)

// nested returns n arrays around inner, or objects where names are given in turn.
func nested(n int, inner string, names ...string) string {
	var open, closing strings.Builder
	for i := range n {
		if len(names) == 0 {
			open.WriteString("[")
			closing.WriteString("]")
		} else {
			open.WriteString(`{"` + names[i%len(names)] + `":`)
			closing.WriteString("}")
		}
	}
	return open.String() + inner + closing.String()
}

func TestCompact(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"numbers keep their digits", ` [ 1.0 , 1e400, -0,123456789012345678901, 1E+5,0.10 ] `, `[1.0,1e400,-0,123456789012345678901,1E+5,0.10]`},
		{"strings keep their escapes", ` "\u00e9\/\ud83d\ude00\u0000\b<>&é " `, `"\u00e9\/\ud83d\ude00\u0000\b<>&é "`},
		{"members keep order and spelling", "{\t\"b\" : 1,\r\n\"\\u0061\":[ ] , \"\" : { } }", `{"b":1,"\u0061":[],"":{}}`},
		{"space in strings stays", `{" a ":" : , "}`, `{" a ":" : , "}`},
		{"null", "null\n", `null`},
		{"true", " true", `true`},
		{"false", "false", `false`},
		{"the same name in other objects", `{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}`, `{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}`},
		{"names in other letters", `{"a":1,"A":2}`, `{"a":1,"A":2}`},
		{"deepest arrays", nested(document.MaxDepth, ""), nested(document.MaxDepth, "")},
		{"deepest objects", nested(document.MaxDepth, "1", "a"), nested(document.MaxDepth, "1", "a")},
		{"many arrays side by side", "[" + strings.Repeat("[],", 300) + "[]]", "[" + strings.Repeat("[],", 300) + "[]]"},
		{"brackets in strings", `"\"` + strings.Repeat("[{", 300) + `"`, `"\"` + strings.Repeat("[{", 300) + `"`},
	} {
		value := []byte(c.value)
		got, err := document.Compact(value)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: Compact(%q) = %s, %v; want %s", c.name, c.value, got, err, c.want)
			continue
		}
		for i := range value {
			value[i] = 'x'
		}
		if string(got) != c.want {
			t.Errorf("%s: the result lies in the caller's memory", c.name)
		}
	}
}

func TestCompactRefuses(t *testing.T) {
	long := strings.Repeat("é", 100)
	for _, c := range []struct{ name, value, say string }{
		{"nothing", "", "ends too early at byte 0"},
		{"space", "  ", "ends too early"},
		{"open object", `{"a":1`, "ends too early at byte 6"},
		{"open string", `"abc`, "ends too early"},
		{"missing value", `{"a":}`, `at byte 5, in "/a"`},
		{"comma at the end", `[1,]`, "byte 3"},
		{"name that is no string", `{1:2}`, "byte 1"},
		{"byte order mark", "\ufeff{}", "byte 0"},
		{"other space", "\u00a01", "byte 0"},
		{"garbage behind", `{} x`, "'x' after top-level value at byte 3"},
		{"two values", `{}{}`, "byte 2"},
		{"NaN", "NaN", "'N'"},
		{"Infinity", "[Infinity]", "byte 1"},
		{"negative Infinity", "-Infinity", "byte 1"},
		{"plus", "+1", "byte 0"},
		{"leading zero", "01", "byte 1"},
		{"hexadecimal", "0x1", "byte 1"},
		{"no digit behind the point", "[1.]", "byte 3"},
		{"no digit before the point", ".5", "byte 0"},
		{"bad literal", "nulx", "byte 3"},
		{"comment", "/**/1", "byte 0"},
		{"single quotes", "'a'", "byte 0"},
		{"bare newline in a string", "\"a\nb\"", "byte 2"},
		{"bad escape", `"\x"`, "byte 1"},
		{"half a surrogate pair", `"\ud800"`, "surrogate"},
		{"half a surrogate pair in a name", `{"\ud800":1}`, "surrogate"},
		{"invalid UTF-8", "\"\xff\"", "invalid UTF-8 at byte 1"},
		{"invalid UTF-8 in a name", "{\"\xc3\":1}", "invalid UTF-8"},
		{"overlong UTF-8", "\"\xc0\x80\"", "invalid UTF-8"},
		{"surrogate in UTF-8", "\"\xed\xa0\x80\"", "invalid UTF-8"},
		{"duplicate name", `{"a":1,"a":1}`, `duplicate name at byte 7, in "/a"`},
		{"duplicate name, escaped", `{"a":1,"\u0061":1}`, `duplicate name`},
		{"duplicate empty name", `{"":1,"":1}`, `duplicate name`},
		{"duplicate name, deep", `{"a":{"b":[1,{"x":1,"y":2,"x":2}]}}`, `duplicate name at byte 26, in "/a/b/1/x"`},
		{"duplicate among many", manyMembers(200, `"n7":1`), `in "/n7"`},
		{"duplicate long name", `{"` + long + `":1,"` + long + `":2}`, "…é"},
		{"arrays too deep", nested(document.MaxDepth+1, ""), "deeper than 128 at byte 128"},
		{"objects too deep", nested(document.MaxDepth, "[]", "a"), "deeper than 128 at byte 640"},
		{"far too deep", strings.Repeat("[", 1<<20), "deeper than 128"},
		{"brackets in a string before a fault", `{"a":"\"` + strings.Repeat("[", 300) + `",[[}`, "byte 310"},
		{"long bad escape", `"\u` + strings.Repeat("z", 300), "byte 1"},
	} {
		got, err := document.Compact([]byte(c.value))
		if err == nil || got != nil {
			t.Errorf("%s: Compact = %q, %v; want an error", c.name, got, err)
			continue
		}
		text := err.Error()
		if !strings.Contains(text, c.say) {
			t.Errorf("%s: the error is %q; want it to say %q", c.name, text, c.say)
		}
		if len(text) > 250 || !utf8.ValidString(text) || strings.Contains(text, "jsontext") {
			t.Errorf("%s: the error is not fit for the user: %q", c.name, text)
		}
		if _, path, ok := strings.Cut(text, ", in "); ok && len(path) > len(`""`)+80 {
			t.Errorf("%s: the error quotes %d bytes: %q", c.name, len(path), text)
		}
	}
}

// manyMembers returns an object of n members "n0":0, and one more.
func manyMembers(n int, last string) string {
	var b strings.Builder
	b.WriteString("{")
	for i := range n {
		b.WriteString(`"n` + itoa(i) + `":` + itoa(i) + ",")
	}
	return b.String() + last + "}"
}

// FuzzCompact compares Compact with encoding/json, which refuses less.
func FuzzCompact(f *testing.F) {
	for _, s := range []string{
		`{"a" : [1.0, 1e400, -0, "\u00e9\ud83d\ude00\/", null, true, false], "b":{}}`, ` [ ] `, `{"a":1,"\u0061":2}`,
		`"\ud800"`, "\"\xff\"", "[[[[1", `{"a":1}x`, "\ufeff1", "NaN", nested(document.MaxDepth+1, "1"), nested(document.MaxDepth, "1", "a", "b"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		got, err := document.Compact(value)
		var want bytes.Buffer
		wrong := json.Compact(&want, value)
		switch {
		case err != nil && wrong == nil && !stricter(value):
			t.Fatalf("Compact(%q): %v", value, err)
		case err != nil:
			return
		case wrong != nil:
			t.Fatalf("Compact(%q) = %q; want an error: %v", value, got, wrong)
		case stricter(value) && !halfPair.Match(value):
			t.Fatalf("Compact(%q) = %q; want an error", value, got)
		case !bytes.Equal(got, want.Bytes()):
			t.Fatalf("Compact(%q) = %q; want %q", value, got, want.Bytes())
		}
		if again, err := document.Compact(got); err != nil || !bytes.Equal(again, got) {
			t.Fatalf("Compact(%q) = %q, %v; want it unchanged", got, again, err)
		}
	})
}

// halfPair may match halves of surrogate pairs, and matches all of them.
var halfPair = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

// stricter reports whether Compact may refuse what encoding/json takes: for bytes
// that are not UTF-8, halves of surrogate pairs, depth or a duplicate name.
func stricter(value []byte) bool {
	if !utf8.Valid(value) || halfPair.Match(value) {
		return true
	}
	type level struct {
		names  map[string]bool // nil in an array
		expect bool            // a name
	}
	var levels []level
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return !errors.Is(err, io.EOF)
		}
		var in *level
		if len(levels) > 0 {
			in = &levels[len(levels)-1]
		}
		if name, ok := token.(string); ok && in != nil && in.expect {
			if in.names[name] {
				return true
			}
			in.names[name] = true
			in.expect = false
			continue
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{names: map[string]bool{}, expect: true})
		case json.Delim('['):
			levels = append(levels, level{})
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
		}
		if len(levels) > document.MaxDepth {
			return true
		}
		if token == json.Delim('{') || token == json.Delim('[') {
			continue // its end is the value's
		}
		if len(levels) > 0 && levels[len(levels)-1].names != nil {
			levels[len(levels)-1].expect = true
		}
	}
}
