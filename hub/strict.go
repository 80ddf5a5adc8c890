package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// decodeStrict decodes one JSON value into a struct and refuses what
// encoding/json lets pass: unknown fields, names in other letters ("ROOM" would
// fill room), names given twice (the last would win), and anything behind the value.
func decodeStrict(data []byte, into any) error {
	if err := checkNames(data, reflect.TypeOf(into).Elem()); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // of the values inside
	if err := d.Decode(into); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// checkNames checks the names of an object's members against the fields of t.
func checkNames(data []byte, t reflect.Type) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return errors.New("a JSON object is needed")
	}
	known := fieldNames(t, make(map[string]bool))
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return errors.New("malformed JSON")
		}
		switch seen, ok := known[name.(string)]; {
		case !ok:
			return fmt.Errorf("unknown field %.80q", name)
		case seen:
			return fmt.Errorf("field %q is given twice", name)
		}
		known[name.(string)] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return errors.New("malformed JSON")
		}
	}
	return nil
}

// fieldNames adds the JSON names of t, embedded structs included, to names.
func fieldNames(t reflect.Type, names map[string]bool) map[string]bool {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			fieldNames(f.Type, names)
		case name != "":
			names[name] = false
		}
	}
	return names
}
