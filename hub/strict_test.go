package hub

import (
	"strings"
	"testing"
)

func TestDecodeStrict(t *testing.T) {
	for _, c := range []struct{ in, want string }{ // want: part of the error, "" = none
		{`{"channel":"a","data":{"x":1},"tags":{"k":"v"}}`, ""},
		{`{}`, ""},
		{" \r\n\t{\"channel\":\"a\"} ", ""},
		{`{"channel":null,"tags":null,"data":null}`, ""}, // as some languages write what is absent
		{`{"channel":"aé😀\n\ud83d\ude00"}`, ""},
		{`{"data":"\ud83d"}`, ""}, // a cut message, passed on unread
		{`{"channel":"\ud83d"}`, `field "channel" must be valid Unicode`},
		{`{"tags":{"k":"\ud83d"}}`, `"/tags/k" must be valid Unicode`},
		{`{"tags":{"\ud83d":"v"}}`, `must be valid Unicode`},
		{"{\"channel\":\"\xff\"}", `field "channel" must be valid Unicode`},
		{`{"CHANNEL":"a"}`, `unknown field "CHANNEL"`},
		{`{"Data":{}}`, `unknown field "Data"`},
		{`{"channel":"a","channel":"b"}`, `"channel" is given twice`},
		{`{"channel":"a","ch\u0061nnel":"b"}`, `"channel" is given twice`},
		{`{"tags":{"k":"v","k":"w"}}`, `"k" is given twice in "/tags"`},
		{`{"data":{"x":{"a":1,"a":2}}}`, `"a" is given twice in "/data/x"`},
		{`{"channel":"a","skip_history":true}`, `unknown field "skip_history"`},
		{`{"channel":"a"} {}`, "more than one"},
		{`{"channel":"a"}]`, "more than one"},
		{`{"channel":"a"}x`, "more than one"},
		{`{"channel":1}`, `field "channel" must be a string`},
		{`{"tags":{"k":1}}`, `"/tags/k" must be a string`},
		{`{"tags":[]}`, `field "tags" must be an object`},
		{`{"b64data":"!"}`, `field "b64data" must be a base64 string`},
		{`["channel"]`, "object"},
		{`null`, "object"},
		{``, "object"},
		{"\ufeff{}", "object"},
		{`{"channel":`, "malformed JSON: it ends too early"},
		{`{"channel":"a`, "malformed JSON: it ends too early"},
		{`{"channel":}`, "malformed JSON at byte 11"},
		{`{"channel":"a","data":}`, "malformed JSON at byte 22"},
		{`{"data":01}`, "malformed JSON at byte"},
		{`{"data":NaN}`, "malformed JSON at byte"},
		{`{"` + strings.Repeat("x", 1000) + `":1}`, "unknown field"},
	} {
		var req apiPublishRequest
		err := decodeStrict([]byte(c.in), &req)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%.100s: %v", c.in, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%.100s: got %v, want an error with %q", c.in, err, c.want)
		case err != nil && len(err.Error()) > 200:
			t.Errorf("%.100s: an error of %d bytes", c.in, len(err.Error()))
		}
	}
}

// Names inside are as strict as those outside.
func TestDecodeStrictInside(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"channel":"a","since":{"offset":1,"epoch":"e"}}`, ""},
		{`{"channel":"a","since":{"Offset":1}}`, `unknown field "Offset" in "/since"`},
		{`{"channel":"a","since":{"offset":1,"offset":2}}`, `"offset" is given twice in "/since"`},
		{`{"channel":"a","since":{"offset":-1}}`, `"/since/offset" must be an integer`},
		{`{"channel":"a","since":{"offset":1.5}}`, `"/since/offset" must be an integer`},
		{`{"channel":"a","limit":1.0}`, `field "limit" must be an integer`},
		{`{"channel":"a","limit":1e1}`, `field "limit" must be an integer`},
		{`{"channel":"a","limit":99999999999}`, `field "limit" must be an integer`},
		{`{"channel":"a","reverse":1}`, `field "reverse" must be true or false`},
	} {
		var req apiHistoryRequest
		err := decodeStrict([]byte(c.in), &req)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.in, err, c.want)
		}
	}
}
