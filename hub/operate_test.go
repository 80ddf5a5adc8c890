package hub

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// operateOptions are testOptions with namespaces in which users may operate:
// "game" for all, "grant" with a grant, "member" for subscribers, "closed" for servers.
func operateOptions(t testing.TB) Options {
	o := testOptions(t)
	for name, access := range map[string]Access{"game": AccessUser, "grant": AccessToken, "member": AccessSubscriber, "closed": AccessServer} {
		ns := DefaultNamespace()
		ns.Operate, ns.Publish = access, access
		if access == AccessUser || access == AccessSubscriber {
			ns.Subscribe = AccessUser
		}
		o.Namespaces[name] = ns
	}
	live := o.Namespaces["live"]
	live.Operate = AccessUser
	o.Namespaces["live"] = live
	return o
}

func rpcTo(method, data string) *protocol.Command {
	return &protocol.Command{Rpc: &protocol.RPCRequest{Method: method, Data: protocol.Raw(data)}}
}

// operation is the payload of an operate.
func operation(room, id, steps string) string {
	return fmt.Sprintf(`{"room":%q,"id":%q,"steps":[%s]}`, room, id, steps)
}

// rpc calls a method that must give a result, and decodes it.
func rpc[T any](c *tester, method, data string) (result T) {
	c.t.Helper()
	r := c.ok(rpcTo(method, data))
	if err := json.Unmarshal(r.Rpc.Data, &result); err != nil {
		c.t.Fatalf("%s %s: %s: %v", method, data, r.Rpc.Data, err)
	}
	return result
}

// refuses calls a method that must be refused with this code: that of a problem, or
// "error N" of the protocol.
func (c *tester) refuses(code, method, data string) (p problem) {
	c.t.Helper()
	r, err := c.call(rpcTo(method, data))
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, data, err)
	}
	got := ""
	if r.Error != nil {
		got = fmt.Sprint("error ", r.Error.Code)
		p.Detail = r.Error.Message
	} else {
		if err := json.Unmarshal(r.Rpc.Data, &p); err != nil {
			c.t.Fatal(err)
		}
		got = p.Code
	}
	if got != code {
		c.t.Errorf("%s %s: got %v, want %s", method, data, r, code)
	}
	return p
}

// event is the data of an operation's event.
type event struct {
	Operation string          `json:"operation"`
	User      string          `json:"user"`
	Changes   []resource      `json:"changes"`
	Data      json.RawMessage `json:"data"`
}

// event waits for the next publication and returns its event.
func (c *tester) event() (p *protocol.Publication, e event) {
	c.t.Helper()
	_, p = c.publication()
	if err := json.Unmarshal(p.Data, &e); err != nil {
		c.t.Fatalf("event %s: %v", p.Data, err)
	}
	return p, e
}

// Every step, its result and its event, in both encodings. The operator that is
// subscribed gets the event like everybody else.
func TestOperate(t *testing.T) {
	s := startServer(t, operateOptions(t), nil)
	for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
		room := "game:" + enc.String()
		c, other := s.open(t, enc), s.connect(t, enc, "other")
		c.ok(connectWith(token(t, "u", func(c *auth.Claims) { c.Info = json.RawMessage(`{"n":1}`) })))
		rpc[operationReply](c, "operate", operation(room, "0", `{"op":"create","key":"stock","value":{ "amount" : 5, "price":1.0 }},
			{"op":"set","key":"draft","value":null}, {"op":"set","key":"profile","value":{"a":1,"b":2}}`))
		sub := subscribeTo(room)
		sub.Subscribe.Token = subscriptionToken(t, "u", room, func(c *auth.SubscriptionClaims) { c.Info = json.RawMessage(`{"s":1}`) })
		c.ok(sub)
		other.ok(subscribeTo(room))
		cmd := rpcTo("operate", `{"room":"`+room+`","id":"1","steps":[
			{"op":"add","key":"stock","path":"/amount","by":-1,"min":0,"max":9},
			{"op":"create","key":"rewards/1","value":{"to":"<u1>"}},
			{"op":"set","key":"board","value":[1],"if_version":0},
			{"op":"merge","key":"profile","value":{"a":null,"c":3}},
			{"op":"delete","key":"draft","if_version":1},
			{"op":"add","key":"stock","path":"/amount","by":-1}],
			"data": {"why": "<x>" }}`)
		if err := c.send(cmd); err != nil {
			t.Fatal(err)
		}
		var result operationReply
		var own *protocol.Publication
		for own == nil || result.ID == "" { // in either order
			r, err := c.read()
			switch {
			case err != nil:
				t.Fatal(err)
			case r.Id == cmd.Id:
				if err := json.Unmarshal(r.Rpc.Data, &result); err != nil {
					t.Fatal(err)
				}
			case r.Push != nil && r.Push.Pub != nil:
				own = r.Push.Pub
			}
		}
		want := operationReply{ID: "1", Offset: 2, Epoch: result.Epoch, Resources: []resource{
			{Key: "stock", Version: 3, Value: json.RawMessage(`{"amount":3,"price":1.0}`)},
			{Key: "rewards/1", Version: 1, Value: json.RawMessage(`{"to":"<u1>"}`)},
			{Key: "board", Version: 1, Value: json.RawMessage(`[1]`)},
			{Key: "profile", Version: 2, Value: json.RawMessage(`{"b":2,"c":3}`)},
			{Key: "draft", Version: 2, Deleted: true},
		}}
		if !reflect.DeepEqual(result, want) || result.Epoch == "" {
			t.Errorf("%s: result\n%+v, want\n%+v", enc, result, want)
		}
		p, e := other.event()
		if p.String() != own.String() {
			t.Errorf("%s: the operator got %v, another %v", enc, own, p)
		}
		if e.Operation != "1" || e.User != "u" || string(e.Data) != `{"why":"<x>"}` || !reflect.DeepEqual(e.Changes, want.Resources) || p.Offset != 2 {
			t.Errorf("%s: event %v %s, want that of %+v", enc, p, p.Data, want)
		}
		if i := p.Info; i == nil || i.User != "u" || i.Client == "" || string(i.ConnInfo) != `{"n":1}` || string(i.ChanInfo) != `{"s":1}` {
			t.Errorf("%s: publisher %v", enc, p.Info)
		}
	}
}

// What is malformed is refused before anything happens, with the name of what is wrong.
func TestOperateIsStrict(t *testing.T) {
	o := operateOptions(t)
	small := o.Namespaces["game"]
	small.MaxMessage = 100
	o.Namespaces["small"] = small
	s := startServer(t, o, nil)
	c := s.connect(t, wire.JSON, "u")
	long := strings.Repeat("x", 256)
	add := func(members string) string { return operation("game:a", "1", `{"op":"add","key":"k",`+members+`}`) }
	set := func(key string) string { return operation("game:a", "1", `{"op":"set","key":"`+key+`","value":1}`) }
	for data, want := range map[string]string{
		operation("game:a", "", `{"op":"delete","key":"k"}`):                                                   "id is missing",
		operation("game:a", long, `{"op":"delete","key":"k"}`):                                                 "id is longer",
		operation("game:a", "1", ``):                                                                           "steps is missing or empty",
		operation("game:a", "1", `{"op":"delete","key":"k"}`+strings.Repeat(`,{"op":"delete","key":"k"}`, 64)): "more than 64",
		`{"room":"game:a","id":"1"}`:                                                                           "steps is missing",
		`{"room":"game:a","id":"1","steps":[{"op":"delete","key":"k"}],"when":1}`:                              `unknown field "when"`,
		`{"room":"game:a","id":"1","id":"2","steps":[{"op":"delete","key":"k"}]}`:                              `"id" is given twice`,
		`{"room":"game:a","id":"1","steps":[{"op":"delete","key":"k","Key":"l"}]}`:                             `unknown field "Key" in "/steps/0"`,
		`{"room":"game:a","id":"1","steps":[{"op":"delete","key":"k","key":"l"}]}`:                             `"key" is given twice in "/steps/0"`,
		`{"room":"game:a","id":"1","steps":{"op":"delete","key":"k"}}`:                                         `"steps" must be an array`,
		`{"room":"game:a","id":"1","steps":["delete"]}`:                                                        `"/steps/0" must be an object`,
		`[]`:                                    "object",
		operation("game:a", "1", `{"key":"k"}`): "steps/0: op must be",
		operation("game:a", "1", `{"op":"Add","key":"k","by":1}`): "steps/0: op must be",
		operation("game:a", "1", `{"op":"delete"}`):               "steps/0: key",
		operation("game:a", "1", `{"op":"delete","key":null}`):    "steps/0: key",
		set(long):       "steps/0: key must be 1 to 255 bytes",
		set(`a\u0000b`): "control characters",
		set("a\u0085b"): "control characters",
		set(`a\ud800`):  "valid Unicode",
		operation("game:a", "1", `{"op":"delete","key":"k"},{"op":"set","key":"k"}`):                                     "steps/1: value is missing",
		operation("game:a", "1", `{"op":"delete","key":"k","value":1}`):                                                  "steps/0: value does not belong to delete",
		operation("game:a", "1", `{"op":"merge","key":"k","value":1,"by":1}`):                                            "steps/0: by does not belong to merge",
		operation("game:a", "1", `{"op":"create","key":"k","value":1,"path":""}`):                                        "steps/0: path does not belong to create",
		operation("game:a", "1", `{"op":"set","key":"k","value":{"a":1,"a":1}}`):                                         "given twice",
		operation("game:a", "1", `{"op":"set","key":"k","value":"\ud800"}`):                                              "value:",
		operation("game:a", "1", `{"op":"set","key":"k","value":`+strings.Repeat("[", 129)+strings.Repeat("]", 129)+`}`): "nested deeper",
		add(`"value":1`):                 "steps/0: value does not belong to add",
		add(`"path":""`):                 "steps/0: by is missing",
		add(`"by":null`):                 "by must be an integer",
		add(`"by":1.0`):                  "by must be an integer",
		add(`"by":1e3`):                  "by must be an integer",
		add(`"by":"1"`):                  "by must be an integer",
		add(`"by":9007199254740992`):     "by must be an integer",
		add(`"by":-9007199254740992`):    "by must be an integer",
		add(`"by":99999999999999999999`): "by must be an integer",
		add(`"by":1,"min":0.5`):          "min must be an integer",
		add(`"by":1,"max":null`):         "max must be an integer",
		add(`"by":1,"min":2,"max":1`):    "min is above max",
		add(`"by":1,"path":1`):           "path must be a string",
		add(`"by":1,"path":null`):        "path must be a string",
		add(`"by":1,"path":"a"`):         "path:",
		add(`"by":1,"path":"/~2"`):       "path:",
		add(`"by":1,"if_version":-1`):    "if_version must be an integer between 0",
		add(`"by":1,"if_version":1.0`):   "if_version must be an integer",
		add(`"by":1,"if_version":null`):  "if_version must be an integer",
		`{"room":"game:a","id":"1","steps":[{"op":"set","key":"k","value":1}],"data":` + strings.Repeat("[", 129) + strings.Repeat("]", 129) + `}`: "data must be",
	} {
		if p := c.refuses("error 107", "operate", data); !strings.Contains(p.Detail, want) {
			t.Errorf("%.200s: %q, want %q", data, p.Detail, want)
		}
	}
	c.refuses("error 107", "operate", operation("", "1", `{"op":"delete","key":"k"}`))
	c.refuses("error 102", "operate", operation("nowhere:a", "1", `{"op":"delete","key":"k"}`))
	c.refuses("not_durable", "operate", operation("live:a", "1", `{"op":"delete","key":"k"}`))
	for _, data := range []string{
		operation("small:a", "1", `{"op":"set","key":"k","value":"`+strings.Repeat("x", 99)+`"}`),
		`{"room":"small:a","id":"1","steps":[{"op":"set","key":"k","value":1}],"data":"` + strings.Repeat("x", 99) + `"}`,
	} {
		if p := c.refuses("too_large", "operate", data); p.Status != 413 || !strings.Contains(p.Detail, "100 bytes") {
			t.Errorf("%+v", p)
		}
	}
	// None of it has happened.
	if page := rpc[resourcePage](c, "snapshot", `{"room":"game:a"}`); page.Offset != 0 || len(page.Resources) != 0 {
		t.Errorf("the room has %+v", page)
	}
	rpc[operationReply](c, "operate", operation("game:a", "1", `{"op":"set","key":"k","value":-0},{"op":"add","key":"k","by":-0}`))
}

// What the state of the room refuses is a result that holds the problem.
func TestOperateConflicts(t *testing.T) {
	s := startServer(t, operateOptions(t), nil)
	c := s.connect(t, wire.JSON, "u")
	first := rpc[operationReply](c, "operate", operation("game:a", "1", `{"op":"set","key":"n","value":5},{"op":"set","key":"o","value":{"a":"x"}},{"op":"set","key":"gone","value":1}`))
	rpc[operationReply](c, "operate", operation("game:a", "2", `{"op":"delete","key":"gone"}`))
	for _, x := range []struct {
		code, steps string
		status      int
		current     *resource
	}{
		{"version_conflict", `{"op":"set","key":"n","value":6,"if_version":2}`, 409, &resource{Key: "n", Version: 1, Value: json.RawMessage("5")}},
		{"version_conflict", `{"op":"set","key":"n","value":6,"if_version":0}`, 409, &resource{Key: "n", Version: 1, Value: json.RawMessage("5")}},
		{"version_conflict", `{"op":"set","key":"gone","value":6,"if_version":2}`, 409, &resource{Key: "gone"}},
		{"exists", `{"op":"create","key":"n","value":6}`, 409, &resource{Key: "n", Version: 1, Value: json.RawMessage("5")}},
		{"not_found", `{"op":"delete","key":"nothing"}`, 404, &resource{Key: "nothing"}},
		{"not_found", `{"op":"add","key":"gone","by":1}`, 404, &resource{Key: "gone"}},
		{"not_found", `{"op":"add","key":"o","path":"/b","by":1}`, 404, &resource{Key: "o", Version: 1, Value: json.RawMessage(`{"a":"x"}`)}},
		{"out_of_range", `{"op":"add","key":"n","by":-6,"min":0}`, 422, &resource{Key: "n", Version: 1, Value: json.RawMessage("5")}},
		{"out_of_range", `{"op":"add","key":"n","by":9007199254740991}`, 422, &resource{Key: "n", Version: 1, Value: json.RawMessage("5")}},
		{"not_integer", `{"op":"add","key":"o","path":"/a","by":1}`, 422, &resource{Key: "o", Version: 1, Value: json.RawMessage(`{"a":"x"}`)}},
	} {
		// The refused step comes second: the first one is undone.
		p := c.refuses(x.code, "operate", operation("game:a", "3", `{"op":"set","key":"undone","value":1},`+x.steps))
		if p.Status != x.status || p.Step == nil || *p.Step != 1 || !reflect.DeepEqual(p.Current, x.current) || !strings.HasPrefix(p.Detail, "steps/1: ") {
			t.Errorf("%s: %+v, current %+v", x.steps, p, p.Current)
		}
	}
	steps := `{"op":"set","key":"undone","value":1}`
	for i := range 5 { // values that make too large an event together
		rpc[operationReply](c, "operate", operation("game:a", fmt.Sprint("big", i),
			fmt.Sprintf(`{"op":"set","key":"big%d","value":{"n":1,"text":"%s"}}`, i, strings.Repeat("x", 60<<10))))
		steps += fmt.Sprintf(`,{"op":"add","key":"big%d","path":"/n","by":1}`, i)
	}
	if p := c.refuses("too_large", "operate", operation("game:a", "3", steps)); p.Status != 413 {
		t.Errorf("%+v", p)
	}
	if got := rpc[resourcePage](c, "list", `{"room":"game:a","prefix":"undone"}`); len(got.Resources) != 0 || got.Epoch != first.Epoch {
		t.Errorf("a refused operation left %+v", got)
	}
}
