package hub

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"hub/hub/wire"
)

func TestResources(t *testing.T) {
	s := startServer(t, operateOptions(t), nil)
	for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
		room := "game:" + enc.String()
		c := s.connect(t, enc, "u")
		if got := rpc[resourcePage](c, "snapshot", `{"room":"`+room+`"}`); got.Offset != 0 || got.Epoch == "" || got.Resources == nil || len(got.Resources) != 0 {
			t.Errorf("%s: snapshot of a new room %+v", enc, got)
		}
		steps := `{"op":"set","key":"gone","value":1},{"op":"delete","key":"gone"}`
		for _, key := range []string{"b/2", "a", "b/1", "b/é", "c"} {
			steps += fmt.Sprintf(`,{"op":"set","key":%q,"value":{"of" : %[1]q}}`, key)
		}
		done := rpc[operationReply](c, "operate", operation(room, "1", steps))
		get := rpc[resource](c, "get", `{"room":"`+room+`","key":"b/é"}`)
		if want := (resource{Key: "b/é", Version: 1, Value: json.RawMessage(`{"of":"b/é"}`)}); !reflect.DeepEqual(get, want) {
			t.Errorf("%s: get %+v, want %+v", enc, get, want)
		}
		c.refuses("not_found", "get", `{"room":"`+room+`","key":"gone"}`)
		for _, x := range []struct{ query, keys, next string }{
			{``, "a b/1 b/2 b/é c", ""},
			{`,"limit":5`, "a b/1 b/2 b/é c", ""},
			{`,"limit":2`, "a b/1", "b/1"},
			{`,"limit":2,"after":"b/1"`, "b/2 b/é", "b/é"},
			{`,"limit":2,"after":"b/é"`, "c", ""},
			{`,"prefix":"b/"`, "b/1 b/2 b/é", ""},
			{`,"prefix":"b/","limit":1,"after":"b/2"`, "b/é", ""},
			{`,"prefix":"b","after":"a"`, "b/1 b/2 b/é", ""},
			{`,"prefix":"x"`, "", ""},
			{`,"after":"x"`, "", ""},
		} {
			page := rpc[resourcePage](c, "list", `{"room":"`+room+`"`+x.query+`}`)
			if keys := keysOf(page.Resources); keys != x.keys || page.Next != x.next || page.Offset != done.Offset || page.Epoch != done.Epoch {
				t.Errorf("%s: list %s: %q, next %q at %d, want %q, %q at %d", enc, x.query, keys, page.Next, page.Offset, x.keys, x.next, done.Offset)
			}
		}
		all := rpc[resourcePage](c, "snapshot", `{"room":"`+room+`"}`)
		if keysOf(all.Resources) != "a b/1 b/2 b/é c" || all.Offset != done.Offset || all.Epoch != done.Epoch {
			t.Errorf("%s: snapshot %+v", enc, all)
		}
	}
	c := s.connect(t, wire.JSON, "u")
	for method, bodies := range map[string][]string{
		"get":      {`{"room":"game:a"}`, `{"room":"game:a","key":""}`, `{"room":"game:a","key":"\u0007"}`, `{"room":"game:a","KEY":"a"}`, `{"key":"a"}`},
		"list":     {`{"room":"game:a","limit":-1}`, `{"room":"game:a","limit":1001}`, `{"room":"game:a","limit":1.0}`, `{"room":"game:a","since":1}`, `{"room":"game:a","prefix":"` + strings.Repeat("x", 256) + `"}`},
		"snapshot": {`{"room":"game:a","limit":1}`, `{}`, `1`},
	} {
		for _, body := range bodies {
			c.refuses("error 107", method, body)
		}
		c.refuses("not_durable", method, `{"room":"live:a"`+map[bool]string{true: `,"key":"a"`}[method == "get"]+`}`)
		c.refuses("error 102", method, `{"room":"nowhere:a"`+map[bool]string{true: `,"key":"a"`}[method == "get"]+`}`)
	}
}

func keysOf(all []resource) string {
	keys := make([]string, len(all))
	for i := range all {
		keys[i] = all[i].Key
	}
	return strings.Join(keys, " ")
}

// No message exceeds what SDKs take: a page ends early, a snapshot is refused, and
// paging reaches everything all the same.
func TestResourcesFitOneMessage(t *testing.T) {
	s := startServer(t, operateOptions(t), nil)
	c := s.connect(t, wire.JSON, "u")
	for name, x := range map[string]struct {
		count int
		key   string
		value string
	}{
		"values":  {8, "k%d", `"` + strings.Repeat("x", 60<<10) + `"`},
		"escapes": {1000, strings.Repeat(`"\`, 125) + "%d", "1"},
		"small":   {1000, "k%d", `{"v":"` + strings.Repeat("x", 250) + `"}`},
	} {
		room := "game:" + name
		for i := 0; i < x.count; {
			var steps []string
			for ; i < x.count && len(steps) < 50 && len(steps)*len(x.value) < 32<<10; i++ {
				key, _ := json.Marshal(fmt.Sprintf(x.key, i))
				steps = append(steps, fmt.Sprintf(`{"op":"set","key":%s,"value":%s}`, key, x.value))
			}
			rpc[operationReply](c, "operate", operation(room, fmt.Sprint(i), strings.Join(steps, ",")))
		}
		if p := c.refuses("too_large", "snapshot", `{"room":"`+room+`"}`); p.Status != 413 || !strings.Contains(p.Detail, "list") {
			t.Errorf("%s: snapshot: %+v", name, p)
		}
		s.call(t, "GET", rooms+room+"/snapshot", "", bearerOf(t, "u")).want(t, "snapshot over HTTP", 200, "")
		seen, pages, last := 0, 0, ""
		for more := true; more; pages++ {
			body, _ := json.Marshal(map[string]any{"room": room, "limit": 1000, "after": last})
			r := c.ok(rpcTo("list", string(body)))
			if n := len(r.Rpc.Data); n > maxResourceReply {
				t.Errorf("%s: a page of %d bytes", name, n)
			}
			var page resourcePage
			if err := json.Unmarshal(r.Rpc.Data, &page); err != nil || len(page.Resources) == 0 {
				t.Fatalf("%s: %d resources, %v", name, len(page.Resources), err)
			}
			for _, res := range page.Resources {
				if res.Key <= last {
					t.Errorf("%s: %q after %q", name, res.Key, last)
				}
				last = res.Key
			}
			seen += len(page.Resources)
			if more = page.Next != ""; more && page.Next != last {
				t.Errorf("%s: next %q after %q", name, page.Next, last)
			}
		}
		if seen != x.count || pages < 2 {
			t.Errorf("%s: %d resources on %d pages, want %d on some", name, seen, pages, x.count)
		}
	}
	// A value grows by merging, up to what one event holds.
	for i := range 4 {
		rpc[operationReply](c, "operate", operation("game:grown", fmt.Sprint(i), fmt.Sprintf(`{"op":"%s","key":"k","value":{"%d":"%s"}}`,
			map[bool]string{true: "set", false: "merge"}[i == 0], i, strings.Repeat("x", 63<<10))))
	}
	rpc[operationReply](c, "operate", operation("game:grown", "l", `{"op":"set","key":"l","value":1}`))
	if got := rpc[resource](c, "get", `{"room":"game:grown","key":"k"}`); len(got.Value) < 250<<10 {
		t.Errorf("a value of %d bytes", len(got.Value))
	}
	page := rpc[resourcePage](c, "list", `{"room":"game:grown"}`)
	if keys := keysOf(page.Resources); keys != "k l" && (keys != "k" || page.Next != "k") {
		t.Errorf("page %s, next %q", keys, page.Next)
	}
}
