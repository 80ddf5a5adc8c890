package document_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"hub/store/document"
)

func itoa(n int) string { return strconv.Itoa(n) }

// compact is for what must be valid.
func compact(t testing.TB, value string) []byte {
	t.Helper()
	b, err := document.Compact([]byte(value))
	if err != nil {
		t.Fatalf("Compact(%q): %v", value, err)
	}
	return b
}

func TestAdd(t *testing.T) {
	const (
		deep     = `{"a":{"b":[10,{"c":-7},[1,2]]},"z":1.0}`
		exact    = `{"é":1e400,"n":123456789012345678901,"b":1.0,"s":"\u00e9\/{[","x":5,"a":-0}`
		brackets = `{"\"}":[0,"}]\\"],"\\":[{"]":"["},4]}`
	)
	for _, c := range []struct {
		name, value, path string
		by                int64
		want              string
	}{
		{"whole value", `5`, "", 3, `8`},
		{"whole value, down", `5`, "", -8, `-3`},
		{"by nothing", `5`, "", 0, `5`},
		{"negative zero", `-0`, "", 0, `0`},
		{"member", `{"a":1,"b":2}`, "/b", 1, `{"a":1,"b":3}`},
		{"deep", deep, "/a/b/0", -10, `{"a":{"b":[0,{"c":-7},[1,2]]},"z":1.0}`},
		{"deeper", deep, "/a/b/1/c", 7, `{"a":{"b":[10,{"c":0},[1,2]]},"z":1.0}`},
		{"array in array", deep, "/a/b/2/1", 98, `{"a":{"b":[10,{"c":-7},[1,100]]},"z":1.0}`},
		{"the rest keeps its text", exact, "/x", 95, `{"é":1e400,"n":123456789012345678901,"b":1.0,"s":"\u00e9\/{[","x":100,"a":-0}`},
		{"brackets and quotes in strings", brackets, "/\\/1", 1, `{"\"}":[0,"}]\\"],"\\":[{"]":"["},5]}`},
		{"quote in the path", brackets, `/"}/0`, 1, `{"\"}":[1,"}]\\"],"\\":[{"]":"["},4]}`},
		{"escaped name", `{"\u0061\/":1}`, "/a~1", 1, `{"\u0061\/":2}`},
		{"name beyond the basic plane", `{"\ud83d\ude00":1}`, "/😀", 1, `{"\ud83d\ude00":2}`},
		{"empty names", `{"":{"":{"x":1,"":2}}}`, "///", 1, `{"":{"":{"x":1,"":3}}}`},
		{"escapes are undone once", `{"~1":1,"/":2}`, "/~01", 1, `{"~1":2,"/":2}`},
		{"digits name a member too", `{"01":1,"-":2}`, "/01", 1, `{"01":2,"-":2}`},
		{"minus names a member too", `{"01":1,"-":2}`, "/-", 1, `{"01":1,"-":3}`},
		{"eleventh", `[0,1,2,3,4,5,6,7,8,9,10]`, "/10", 1, `[0,1,2,3,4,5,6,7,8,9,11]`},
		{"prefix of a name", `{"ab":1,"a":2,"abc":3}`, "/a", 1, `{"ab":1,"a":3,"abc":3}`},
		{"to the largest", `9007199254740990`, "", 1, `9007199254740991`},
		{"to the smallest", `-9007199254740990`, "", -1, `-9007199254740991`},
		{"from end to end", `-9007199254740991`, "", 2 * document.MaxInteger, `9007199254740991`},
		{"and back", `9007199254740991`, "", -2 * document.MaxInteger, `-9007199254740991`},
	} {
		value := compact(t, c.value)
		got, err := document.Add(value, c.path, c.by, nil, nil)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: Add(%s, %q, %d) = %s, %v; want %s", c.name, c.value, c.path, c.by, got, err, c.want)
		}
		if string(value) != c.value {
			t.Errorf("%s: Add changed its argument to %s", c.name, value)
		}
	}
}

// TestAddPointers follows RFC 6901 section 5.
func TestAddPointers(t *testing.T) {
	const doc = `{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}`
	for i, path := range []string{"/", "/a~1b", "/c%d", "/e^f", "/g|h", `/i\j`, `/k"l`, "/ ", "/m~0n"} {
		want := strings.Replace(doc, ":"+itoa(i), ":"+itoa(100+i), 1)
		if got, err := document.Add([]byte(doc), path, 100, nil, nil); err != nil || string(got) != want {
			t.Errorf("Add(%q) = %s, %v; want %s", path, got, err, want)
		}
	}
	for _, path := range []string{"", "/foo", "/foo/0"} {
		if got, err := document.Add([]byte(doc), path, 1, nil, nil); !errors.Is(err, document.ErrNotInteger) {
			t.Errorf("Add(%q) = %s, %v; want ErrNotInteger", path, got, err)
		}
	}
}

func TestAddRefuses(t *testing.T) {
	const doc = `{"a":[1,2],"n":5,"s":"5","o":{}}`
	at := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		name, value, path string
		by                int64
		min, max          *int64
		want              error
	}{
		{"no member", doc, "/x", 1, nil, nil, document.ErrPath},
		{"no member of an empty object", doc, "/o/x", 1, nil, nil, document.ErrPath},
		{"empty name", doc, "/", 1, nil, nil, document.ErrPath},
		{"behind a number", doc, "/n/x", 1, nil, nil, document.ErrPath},
		{"behind a string", doc, "/s/0", 1, nil, nil, document.ErrPath},
		{"behind the whole value", `5`, "/", 1, nil, nil, document.ErrPath},
		{"behind the array", doc, "/a/2", 1, nil, nil, document.ErrPath},
		{"empty array", `[]`, "/0", 1, nil, nil, document.ErrPath},
		{"the place behind the end", doc, "/a/-", 1, nil, nil, document.ErrPath},
		{"leading zero", doc, "/a/01", 1, nil, nil, document.ErrPath},
		{"two zeros", doc, "/a/00", 1, nil, nil, document.ErrPath},
		{"sign", doc, "/a/+1", 1, nil, nil, document.ErrPath},
		{"minus", doc, "/a/-0", 1, nil, nil, document.ErrPath},
		{"empty index", doc, "/a/", 1, nil, nil, document.ErrPath},
		{"index that is none", doc, "/a/1.0", 1, nil, nil, document.ErrPath},
		{"index with a low line", `[0,1,2,3,4,5,6,7,8,9,10]`, "/1_0", 1, nil, nil, document.ErrPath},
		{"huge index", doc, "/a/99999999999999999999", 1, nil, nil, document.ErrPath},
		{"index that wraps around", doc, "/a/18446744073709551616", 1, nil, nil, document.ErrPath},

		{"string", doc, "/s", 1, nil, nil, document.ErrNotInteger},
		{"array", doc, "/a", 1, nil, nil, document.ErrNotInteger},
		{"object", doc, "/o", 1, nil, nil, document.ErrNotInteger},
		{"null", `null`, "", 1, nil, nil, document.ErrNotInteger},
		{"true", `[true]`, "/0", 1, nil, nil, document.ErrNotInteger},
		{"fraction", `5.5`, "", 1, nil, nil, document.ErrNotInteger},
		{"fraction of nothing", `5.0`, "", 1, nil, nil, document.ErrNotInteger},
		{"exponent", `5e0`, "", 1, nil, nil, document.ErrNotInteger},
		{"2^53", `9007199254740992`, "", -1, nil, nil, document.ErrNotInteger},
		{"-2^53", `-9007199254740992`, "", 1, nil, nil, document.ErrNotInteger},
		{"beyond 64 bits", `18446744073709551617`, "", 1, nil, nil, document.ErrNotInteger},
		{"very long", strings.Repeat("9", 10_000), "", 1, nil, nil, document.ErrNotInteger},

		{"beyond the largest", `9007199254740991`, "", 1, nil, nil, document.ErrRange},
		{"beyond the smallest", `-9007199254740991`, "", -1, nil, nil, document.ErrRange},
		{"overflow", `1`, "", math.MaxInt64, nil, nil, document.ErrRange},
		{"overflow down", `-2`, "", math.MinInt64, nil, nil, document.ErrRange},
		{"a little too much by", `-9007199254740991`, "", 2*document.MaxInteger + 1, nil, nil, document.ErrRange},
		{"beyond, though max is", `9007199254740991`, "", 1, nil, at(math.MaxInt64), document.ErrRange},
		{"below min", doc, "/n", -6, at(0), nil, document.ErrRange},
		{"above max", doc, "/n", 6, nil, at(10), document.ErrRange},
		{"towards min, still below", doc, "/n", 1, at(7), nil, document.ErrRange},
		{"nothing between", doc, "/n", 0, at(6), at(4), document.ErrRange},
		{"below the smallest min", `0`, "", -1, at(0), at(0), document.ErrRange},

		{"at min", doc, "/n", -5, at(0), nil, nil},
		{"at max", doc, "/n", 5, at(0), at(10), nil},
		{"at both", doc, "/n", 1, at(6), at(6), nil},
		{"bounds far away", doc, "/n", 1, at(math.MinInt64), at(math.MaxInt64), nil},
	} {
		got, err := document.Add(compact(t, c.value), c.path, c.by, c.min, c.max)
		if !errors.Is(err, c.want) || (err != nil) != (got == nil) {
			t.Errorf("%s: Add = %s, %v; want %v", c.name, got, err, c.want)
		}
		if err != nil && len(err.Error()) > 250 {
			t.Errorf("%s: the error is %d bytes long", c.name, len(err.Error()))
		}
	}
}

func TestCheckPath(t *testing.T) {
	for path, want := range map[string]bool{
		"": true, "/": true, "//": true, "/a/b": true, "/~0~1": true, "/é/0": true, "/a b": true, "/ ": true, "/\x00": true,
		"a": false, "#/a": false, " /a": false, "/~": false, "/~2": false, "/a~/b": false, "/~~0": false, "/\xff": false,
		"/" + strings.Repeat("k", 1000) + "~": false, "x" + strings.Repeat("é", 1000): false,
		"/é" + strings.Repeat("é", 38) + "~": false, "x" + strings.Repeat("\xbd", 100): false,
	} {
		err := document.CheckPath(path)
		if (err == nil) != want {
			t.Errorf("CheckPath(%q) = %v; want valid: %v", path, err, want)
		}
		if err == nil {
			continue
		}
		if text := err.Error(); len(text) > 250 || !utf8.ValidString(text) {
			t.Errorf("CheckPath: the error is not fit for the user: %q", text)
		}
		_, err = document.Add([]byte(`{}`), path, 1, nil, nil)
		if err == nil || errors.Is(err, document.ErrPath) {
			t.Errorf("Add(%q): %v; want what CheckPath says", path, err)
		}
	}
}

// TestAddAllocations pins the one allocation of an addition: its result.
func TestAddAllocations(t *testing.T) {
	value := compact(t, kilobyte())
	min := int64(0)
	got := testing.AllocsPerRun(100, func() {
		if _, err := document.Add(value, "/stock/amount", -1, &min, nil); err != nil {
			t.Fatal(err)
		}
	})
	if got != 1 {
		t.Errorf("an addition allocates %v times; want 1", got)
	}
}

// FuzzAdd compares Add with a naive model on math/big. Unless path is one that
// pick finds in the document, it is the fuzzer's own.
func FuzzAdd(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":-5}],"~/":{"":9007199254740991}}`), "/a/0", uint8(0), int64(5), int64(0), int64(10), true, true)
	for pick := range uint8(9) {
		f.Add([]byte(`{"a":[1,{"\u0062":-5}],"~/":{"":9007199254740991},"c":1.0}`), "", pick, int64(1), int64(-4), int64(0), pick%2 == 0, pick%3 == 0)
	}
	f.Add([]byte(`-1`), "", uint8(0), int64(math.MinInt64), int64(0), int64(0), false, false)
	f.Add([]byte(`[1]`), "/-", uint8(0), int64(1), int64(0), int64(0), false, false)
	f.Fuzz(func(t *testing.T, value []byte, path string, pick uint8, by, low, high int64, hasMin, hasMax bool) {
		value, err := document.Compact(value)
		if err != nil {
			return
		}
		if pick > 0 {
			if all := pointers(decode(t, value)); int(pick) <= len(all) {
				path = all[pick-1]
			}
		}
		var min, max *int64
		if hasMin {
			min = &low
		}
		if hasMax {
			max = &high
		}
		got, err := document.Add(value, path, by, min, max)
		if document.CheckPath(path) != nil {
			if err == nil {
				t.Fatalf("Add(%s, %q) = %s; want an error", value, path, got)
			}
			return
		}
		want, wrong := addModel(decode(t, value), path, by, min, max)
		if !errors.Is(err, wrong) {
			t.Fatalf("Add(%s, %q, %d) = %s, %v; want %v", value, path, by, got, err, wrong)
		}
		if err != nil {
			return
		}
		if have := decode(t, got); !reflect.DeepEqual(have, want) {
			t.Fatalf("Add(%s, %q, %d) = %s; want %v", value, path, by, got, want)
		}
		if again := compact(t, string(got)); string(again) != string(got) {
			t.Fatalf("Add(%s, %q, %d) = %s is not compact", value, path, by, got)
		}
	})
}

// decode keeps numbers as they are written.
func decode(t testing.TB, value []byte) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(value)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("decode %s: %v", value, err)
	}
	return v
}

// pointers lists the paths of everything in v.
func pointers(v any) []string {
	all := []string{""}
	add := func(token string, inner any) {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1")
		for _, rest := range pointers(inner) {
			all = append(all, "/"+token+rest)
		}
	}
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			add(name, v[name])
		}
	case []any:
		for i, inner := range v {
			add(itoa(i), inner)
		}
	}
	return all
}

// addModel returns v with the sum in place, or the error to expect.
func addModel(v any, path string, by int64, min, max *int64) (any, error) {
	if path == "" {
		number, _ := v.(json.Number)
		n, ok := new(big.Int).SetString(number.String(), 10)
		if !ok || n.CmpAbs(big.NewInt(1<<53-1)) > 0 {
			return nil, document.ErrNotInteger
		}
		n.Add(n, big.NewInt(by))
		if n.CmpAbs(big.NewInt(1<<53-1)) > 0 || min != nil && n.Cmp(big.NewInt(*min)) < 0 || max != nil && n.Cmp(big.NewInt(*max)) > 0 {
			return nil, document.ErrRange
		}
		return json.Number(n.String()), nil
	}
	token, rest, more := strings.Cut(path[1:], "/")
	if more {
		rest = "/" + rest
	}
	token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	switch v := v.(type) {
	case map[string]any:
		inner, ok := v[token]
		if !ok {
			return nil, document.ErrPath
		}
		changed, err := addModel(inner, rest, by, min, max)
		v[token] = changed
		return v, err
	case []any:
		for i, inner := range v {
			if itoa(i) == token {
				changed, err := addModel(inner, rest, by, min, max)
				v[i] = changed
				return v, err
			}
		}
	}
	return nil, document.ErrPath
}
