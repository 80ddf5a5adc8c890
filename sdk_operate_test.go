package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/centrifugal/centrifuge-go"

	"hub/auth"
)

// stateChange is a resource in what the SDK gets.
type stateChange struct {
	Key     string
	Version int
	Value   json.RawMessage
	Deleted bool
}

// TestGoSDKOperate has the unmodified centrifuge-go change shared state and follow it.
func TestGoSDKOperate(t *testing.T) {
	s := startSDKServer(t, "[namespace.game]\nsubscribe = \"user\"\noperate = \"token\"")
	forProtocols(t, func(t *testing.T, protocol string) {
		room := "game:" + protocol
		grant := auth.Grant{Rooms: []string{room}, Allow: auth.Operate, Keys: []string{"stock", "players/{user}/*"}}
		writer := connectedClient(t, protocol, s.url(""), s.mint(auth.Claims{User: "u", Grants: auth.Grants{grant}}))
		reader := connectedClient(t, protocol, s.url(""), s.token("v"))
		call := func(g *goClient, method, data string, into any) error {
			t.Helper()
			r, err := g.RPC(timeout(t), method, []byte(data))
			if err != nil {
				return err
			}
			return json.Unmarshal(r.Data, into)
		}
		var result struct {
			Offset    uint64
			Epoch     string
			Resources []stateChange
			Replayed  bool
			Status    int
			Code      string
			Current   stateChange
		}
		operate := func(g *goClient, id, steps string) error {
			result.Status, result.Code = 0, ""
			return call(g, "operate", fmt.Sprintf(`{"room":%q,"id":%q,"steps":[%s]}`, room, id, steps), &result)
		}
		if err := operate(writer, "1", `{"op":"create","key":"stock","value":{"amount":1}},{"op":"set","key":"players/u/hp","value":9}`); err != nil || result.Offset != 1 {
			t.Fatalf("%+v, %v", result, err)
		}
		// The reader subscribes, then reads, and leaves out what the snapshot has.
		sub := reader.newSub(room, centrifuge.SubscriptionConfig{Recoverable: true})
		sub.begin()
		if err := operate(writer, "2", `{"op":"add","key":"stock","path":"/amount","by":-1,"min":0}`); err != nil || string(result.Resources[0].Value) != `{"amount":0}` {
			t.Fatalf("%+v, %v", result, err)
		}
		var snapshot struct {
			Resources []stateChange
			Offset    uint64
		}
		if err := call(reader, "snapshot", fmt.Sprintf(`{"room":%q}`, room), &snapshot); err != nil || len(snapshot.Resources) != 2 || snapshot.Offset != 2 {
			t.Fatalf("%+v, %v", snapshot, err)
		}
		if err := operate(writer, "2", `{"op":"add","key":"stock","path":"/amount","by":-1,"min":0}`); err != nil || !result.Replayed || result.Offset != 2 {
			t.Errorf("repeat: %+v, %v", result, err)
		}
		if err := operate(writer, "3", `{"op":"add","key":"stock","path":"/amount","by":-1,"min":0}`); err != nil ||
			result.Status != 422 || result.Code != "out_of_range" || string(result.Current.Value) != `{"amount":0}` {
			t.Errorf("nothing left: %+v, %v", result, err)
		}
		if err := operate(writer, "4", `{"op":"delete","key":"players/v/hp"}`); errorCode(err) != 103 {
			t.Errorf("another's key: %v, want error 103", err)
		}
		if err := operate(reader, "5", `{"op":"delete","key":"stock"}`); errorCode(err) != 103 {
			t.Errorf("without a grant: %v, want error 103", err)
		}
		if err := operate(writer, "6", `{"op":"delete","key":"players/u/hp"}`); err != nil || result.Offset != 3 {
			t.Errorf("%+v, %v", result, err)
		}
		for want := uint64(2); want <= 3; want++ {
			p := sub.next()
			if p.Offset != want {
				t.Fatalf("event %d, want %d", p.Offset, want)
			}
			if p.Offset <= snapshot.Offset {
				continue
			}
			var e struct {
				Operation, User string
				Changes         []stateChange
			}
			if err := json.Unmarshal(p.Data, &e); err != nil || e.Operation != "6" || e.User != "u" || len(e.Changes) != 1 || !e.Changes[0].Deleted || e.Changes[0].Version != 2 {
				t.Errorf("event %s, %v", p.Data, err)
			}
		}
	})
	s.healthy()
}
