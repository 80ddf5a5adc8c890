package hub

import (
	"fmt"
	"testing"

	"hub/auth"
	"hub/hub/wire"
	"hub/store"
)

// typicalOperation is an add with a reward.
const typicalOperation = `{"room":"game:a","id":"01J9ZQ7T4Q","steps":[{"op":"add","key":"stock","path":"/amount","by":-1,"min":0},` +
	`{"op":"create","key":"rewards/01J9ZQ7T4Q","value":{"to":"u1","at":1767225600}}],"data":{"source":"shop"}}`

// What a loop does for an operation before it waits.
func BenchmarkOperationRequest(b *testing.B) {
	o := operateOptions(b)
	s := startServer(b, o, nil)
	db := s.databases.get("default")
	for name, w := range map[string]*caller{
		"server":   {server: true},
		"user":     {user: "u1"},
		"narrowed": {user: "u1", grants: auth.Grants{{Rooms: []string{"grant:*"}, Wildcard: true, Allow: auth.Operate, Keys: []string{"stock", "rewards/*"}}}},
	} {
		room := map[bool]string{true: "grant:a", false: "game:a"}[name == "narrowed"]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var req struct {
					Room string `json:"room"`
					operationRequest
				}
				if err := decodeStrict([]byte(typicalOperation), &req); err != nil {
					b.Fatal(err)
				}
				if _, p := db.operation(w, room, &req.operationRequest); p != nil {
					b.Fatal(p)
				}
			}
		})
	}
}

// Where a command of a busy connection goes is asked before it is decoded.
func BenchmarkRoomOf(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if roomOf([]byte(typicalOperation)) == "" {
			b.Fatal("no room")
		}
	}
}

func BenchmarkOperationReply(b *testing.B) {
	r := newOperationReply("01J9ZQ7T4Q", &store.OperationResult{Result: store.Result{Offset: 123456, Epoch: "0123456789abcdef.0"}, Resources: []store.Resource{
		{Key: "stock", Version: 17, Value: []byte(`{"amount":42}`)}, {Key: "rewards/01J9ZQ7T4Q", Version: 1, Value: []byte(`{"to":"u1","at":1767225600}`)}}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := encodeJSON(r); err != nil {
			b.Fatal(err)
		}
	}
}

// Operations of many connections at once, each waiting for its answer.
func BenchmarkOperateOverSockets(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprint("clients=", clients), func(b *testing.B) {
			s := startServer(b, operateOptions(b), nil)
			all := make([]*tester, clients)
			room := func(i int) string { return fmt.Sprint("game:", i) }
			for i := range all {
				all[i] = s.connect(b, wire.JSON, "u")
				all[i].ok(rpcTo("operate", operation(room(i), "first", `{"op":"set","key":"stock","value":{"amount":0}}`)))
			}
			n := 0
			for b.Loop() {
				for i, c := range all {
					n++
					if err := c.send(rpcTo("operate", operation(room(i), fmt.Sprint(n), `{"op":"add","key":"stock","path":"/amount","by":1}`))); err != nil {
						b.Fatal(err)
					}
				}
				for _, c := range all {
					if r, err := c.reply(c.lastID); err != nil || r.Error != nil {
						b.Fatal(r, err)
					}
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "operations/s")
		})
	}
}
