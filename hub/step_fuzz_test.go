package hub

import (
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"hub/store"
)

// Whatever comes, an operation is refused or makes steps within their bounds, and
// the same content with other space is the same operation.
func FuzzOperationRequest(f *testing.F) {
	for _, seed := range []string{
		typicalOperation,
		`{"id":"1","steps":[{"op":"merge","key":"k","value":{"a":null},"if_version":9007199254740991}]}`,
		`{"id":"1","steps":[{"op":"delete","key":"\u00e9\ud83d\ude00"}],"data":"\ud83d"}`,
		`{"id":"1","steps":[{"op":"add","key":"k","path":"/a~1b/0","by":-0,"max":-1}]}`,
	} {
		f.Add([]byte(seed))
	}
	decode := func(body []byte) (o store.Operation, ok bool) {
		var req struct {
			Room string `json:"room"`
			operationRequest
		}
		if decodeStrict(body, &req) != nil {
			return o, false
		}
		o, p := req.operation(maxMessage)
		return o, p == nil
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, ok := decode(body)
		if !ok {
			return
		}
		for _, s := range o.Steps {
			if s.Op == 0 || s.Key == "" || len(s.Key) > maxKey || !utf8.ValidString(s.Key) || (s.Op == store.StepAdd || s.Op == store.StepDelete) != (s.Value == nil) {
				t.Errorf("%q makes %+v", body, s)
			}
		}
		if n := len(o.Steps); o.ID == "" || n < 1 || n > maxSteps {
			t.Errorf("%q makes %+v", body, o)
		}
		spaced, err := jsontext.AppendFormat(nil, body, jsontext.Multiline(true), jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true))
		if err != nil {
			t.Fatalf("%q is no JSON: %v", body, err)
		}
		if len(spaced) > maxMessage { // what counts is the size as sent
			return
		}
		if again, ok := decode(spaced); !ok || !reflect.DeepEqual(again, o) {
			t.Errorf("%q makes %+v, with other space %+v, %v", body, o, again, ok)
		}
	})
}
