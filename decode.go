package main

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"hub/hub"
)

// entry is one key of a TOML file: a table or a value, and its line.
type entry struct {
	key   toml.Key
	line  int
	table map[string]*entry // nil for a value
	value any               // nil for a table
}

// parseTOML reads the syntax of a file and nothing else.
func parseTOML(text string) (*entry, error) {
	var top map[string]toml.Primitive
	md, err := toml.Decode(text, &top)
	if err != nil {
		return nil, err
	}
	return &entry{table: parseTable(&md, nil, top)}, nil
}

func parseTable(md *toml.MetaData, parent toml.Key, values map[string]toml.Primitive) map[string]*entry {
	table := make(map[string]*entry, len(values))
	for name, value := range values {
		e := &entry{key: append(slices.Clone(parent), name)}
		var at locator
		var where toml.ParseError
		if errors.As(md.PrimitiveDecode(value, &at), &where) {
			e.line = where.Position.Line
		}
		e.value = at.value
		var children map[string]toml.Primitive
		if _, ok := at.value.(map[string]any); ok && md.PrimitiveDecode(value, &children) == nil {
			e.value, e.table = nil, parseTable(md, e.key, children)
		}
		if e.line == 0 { // only implied, as "a" is by [a.b]
			for _, child := range e.sorted() {
				e.line = child.line
				break
			}
		}
		table[name] = e
	}
	return table
}

// locator takes any value and fails: package toml tells a key's line in nothing
// but the error of its value.
type locator struct{ value any }

func (l *locator) UnmarshalTOML(v any) error {
	l.value = v
	return errors.New("the value is here")
}

// sorted returns the keys of a table in the order of the file.
func (e *entry) sorted() []*entry {
	list := make([]*entry, 0, len(e.table))
	for _, child := range e.table {
		list = append(list, child)
	}
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.line, b.line), slices.Compare(a.key, b.key))
	})
	return list
}

// find returns the entry of a dotted key or its nearest parent in the file.
func (e *entry) find(key string) *entry {
	for name := range strings.SplitSeq(key, ".") {
		child := e.table[name]
		if child == nil {
			break
		}
		e = child
	}
	return e
}

// decoder fills options from a file, strictly, and collects what is wrong.
type decoder struct {
	problems []problem
}

func (d *decoder) fail(e *entry, format string, args ...any) {
	d.problems = append(d.problems, problem{line: e.line, key: e.key.String(), text: fmt.Sprintf(format, args...)})
}

var (
	durationType   = reflect.TypeFor[time.Duration]()
	namespacesType = reflect.TypeFor[map[string]hub.Namespace]()
)

// into stores an entry in v, which keeps its default where the file is wrong.
func (d *decoder) into(e *entry, v reflect.Value) {
	switch {
	case v.Type() == durationType:
		d.duration(e, v)
		return
	case v.Type() == namespacesType:
		d.namespaces(e, v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.table(e, v)
	case reflect.Slice:
		d.list(e, v)
	case reflect.String:
		if s, ok := d.text(e, e.value, "a string"); ok {
			v.SetString(s)
		}
	case reflect.Bool:
		if b, ok := e.value.(bool); ok {
			v.SetBool(b)
		} else {
			d.wrongType(e, "true or false")
		}
	case reflect.Float64:
		switch n := e.value.(type) {
		case float64:
			v.SetFloat(n)
		case int64:
			v.SetFloat(float64(n))
		default:
			d.wrongType(e, "a number")
		}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		d.integer(e, v)
	default:
		panic("option of unknown type " + v.Type().String())
	}
}

func (d *decoder) table(e *entry, v reflect.Value) {
	if e.table == nil {
		d.wrongType(e, "a table")
		return
	}
	fields := optionFields(v.Type())
	for _, child := range e.sorted() {
		name := child.key[len(child.key)-1]
		i := slices.IndexFunc(fields, func(f reflect.StructField) bool { return f.Tag.Get("toml") == name })
		if i < 0 {
			d.fail(child, "unknown key%s", suggestion(child, fields))
			continue
		}
		d.into(child, v.FieldByIndex(fields[i].Index))
	}
}

func (d *decoder) namespaces(e *entry, v reflect.Value) {
	if e.table == nil {
		d.wrongType(e, "tables named [namespace.NAME]")
		return
	}
	all := make(map[string]hub.Namespace, len(e.table))
	for _, child := range e.sorted() {
		ns := hub.DefaultNamespace()
		d.table(child, reflect.ValueOf(&ns).Elem())
		all[child.key[len(child.key)-1]] = ns
	}
	v.Set(reflect.ValueOf(all))
}

func (d *decoder) list(e *entry, v reflect.Value) {
	values, ok := e.value.([]any)
	if !ok {
		d.wrongType(e, "a list of strings")
		return
	}
	list := make([]string, 0, len(values))
	for _, value := range values {
		s, ok := d.text(e, value, "a list of strings")
		if !ok {
			return
		}
		list = append(list, s)
	}
	v.Set(reflect.ValueOf(list))
}

// text returns a string of the file with its reference resolved.
func (d *decoder) text(e *entry, value any, want string) (string, bool) {
	s, ok := value.(string)
	if !ok {
		d.wrongType(e, want)
		return "", false
	}
	s, err := resolve(s)
	if err != nil {
		d.fail(e, "%v", err)
		return "", false
	}
	return s, true
}

func (d *decoder) duration(e *entry, v reflect.Value) {
	const want = `a duration such as "25s" or "1m30s"`
	s, ok := d.text(e, e.value, want)
	if !ok {
		return
	}
	t, err := time.ParseDuration(s)
	switch {
	case err == nil:
		v.SetInt(int64(t))
	case s == e.value:
		d.fail(e, "%q is not %s", s, want)
	default: // came from a reference, so it is not shown
		d.fail(e, "what %s holds is not %s", e.value, want)
	}
}

func (d *decoder) integer(e *entry, v reflect.Value) {
	n, ok := e.value.(int64)
	if !ok {
		d.wrongType(e, "an integer")
		return
	}
	switch {
	case v.CanUint() && n < 0:
		d.fail(e, "must not be negative, got %d", n)
	case v.CanUint():
		v.SetUint(uint64(n))
	case v.OverflowInt(n):
		d.fail(e, "%d is too large", n)
	default:
		v.SetInt(n)
	}
}

// wrongType never shows the value: it may be a secret without its quotes.
func (d *decoder) wrongType(e *entry, want string) {
	got := "a table"
	switch e.value.(type) {
	case nil:
	case string:
		got = "a string"
	case bool:
		got = "true or false"
	case int64:
		got = "an integer"
	case float64:
		got = "a number with a fraction"
	case []any, []map[string]any:
		got = "a list"
		if want == "a list of strings" {
			got = "a list of something else"
		}
	default:
		got = "a date or time"
	}
	d.fail(e, "must be %s, got %s", want, got)
}

// optionFields returns the fields of an options struct that are keys of the file.
func optionFields(t reflect.Type) []reflect.StructField {
	var fields []reflect.StructField
	for f := range t.Fields() {
		if tag := f.Tag.Get("toml"); tag != "" && tag != "-" {
			fields = append(fields, f)
		}
	}
	return fields
}

// optionKeys lists every key of the file as a path; the name of a namespace is
// written NAME.
func optionKeys(t reflect.Type, parent []string) [][]string {
	var keys [][]string
	for _, f := range optionFields(t) {
		key := append(slices.Clone(parent), f.Tag.Get("toml"))
		keys = append(keys, key)
		switch {
		case f.Type == namespacesType:
			key = append(slices.Clone(key), "NAME")
			keys = append(keys, optionKeys(namespacesType.Elem(), key)...)
		case f.Type.Kind() == reflect.Struct:
			keys = append(keys, optionKeys(f.Type, key)...)
		}
	}
	return keys
}

// suggestion says which known key an unknown one may have meant: the one whose
// last word is most alike and, among equals, whose whole path is. Where none is
// alike it lists the keys that its table has.
func suggestion(e *entry, siblings []reflect.StructField) string {
	word := strings.ToLower(e.key[len(e.key)-1])
	best, bestWord, bestPath := "", (len(word)+2)/3+1, 0
	for _, key := range optionKeys(reflect.TypeFor[hub.Options](), nil) {
		if len(key) > 1 && key[0] == "namespace" && e.key[0] == "namespace" && len(e.key) > 1 {
			key[1] = e.key[1]
		}
		path := strings.Join(key, ".")
		w := distance(word, key[len(key)-1])
		p := distance(strings.Join(e.key, "."), path)
		if w < bestWord || w == bestWord && best != "" && p < bestPath {
			best, bestWord, bestPath = path, w, p
		}
	}
	if best != "" {
		return "; did you mean " + best + "?"
	}
	names := make([]string, len(siblings))
	for i, f := range siblings {
		names[i] = f.Tag.Get("toml")
	}
	return "; known here are " + strings.Join(names, ", ")
}

// distance is the Levenshtein distance of two short ASCII words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
