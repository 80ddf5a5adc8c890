package hub

import (
	"strings"
	"testing"
)

func TestDecodeStrict(t *testing.T) {
	for _, c := range []struct{ in, want string }{ // want: part of the error, "" = none
		{`{"channel":"a","data":{"x":1},"tags":{"k":"v"}}`, ""},
		{`{}`, ""},
		{` {"channel":"a"} `, ""},
		{`{"CHANNEL":"a"}`, `unknown field "CHANNEL"`},
		{`{"channel":"a","channel":"b"}`, `"channel" is given twice`},
		{`{"channel":"a","skip_history":true}`, `unknown field "skip_history"`},
		{`{"channel":"a"} {}`, "more than one"},
		{`{"channel":"a"}]`, "more than one"},
		{`{"channel":1}`, "cannot unmarshal number"},
		{`["channel"]`, "object"},
		{`null`, "object"},
		{``, "object"},
		{`{"channel":`, "malformed"},
		{`{"channel":"a","data":}`, "malformed"},
	} {
		var req apiPublishRequest
		err := decodeStrict([]byte(c.in), &req)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.in, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want an error with %q", c.in, err, c.want)
		}
	}
}
