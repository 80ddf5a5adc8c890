package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/centrifugal/centrifuge-go"

	"hub/auth"
)

// forProtocols runs a test for each protocol of the SDKs.
func forProtocols(t *testing.T, test func(t *testing.T, protocol string)) {
	for _, protocol := range []string{"json", "protobuf"} {
		t.Run(protocol, func(t *testing.T) { test(t, protocol) })
	}
}

// forBackends runs a test for each way in which the server can wait for sockets;
// the argument is a line for [startSDKServer].
func forBackends(t *testing.T, test func(t *testing.T, backend string)) {
	for _, name := range []string{"auto", "portable"} {
		t.Run(name, func(t *testing.T) { test(t, fmt.Sprintf("backend = %q", name)) })
	}
}

// TestGoSDK runs the unmodified centrifuge-go against one server of each backend;
// each scenario has rooms and users of its own.
func TestGoSDK(t *testing.T) { forBackends(t, goSDK) }

func goSDK(t *testing.T, backend string) {
	s := startSDKServer(t, backend)
	scenarios := []struct {
		name string
		test func(*testing.T, *sdkServer, string)
	}{
		{"publish", goPublish},
		{"ephemeral", goEphemeral},
		{"presence", goPresence},
		{"history", goHistory},
		{"join and leave", goJoinLeave},
		{"rpc publish", goRPCPublish},
		{"refresh", goRefresh},
		{"expired token", goExpiredToken},
		{"subscription token", goSubscriptionToken},
		{"server-side subscriptions", goServerSide},
		{"error codes", goErrorCodes},
		{"unsubscribed by the server", goUnsubscribed},
		{"disconnected by the server", goDisconnected},
	}
	// Some wait for tokens to expire, so all run at once; none depends on another.
	t.Run("scenarios", func(t *testing.T) {
		forProtocols(t, func(t *testing.T, protocol string) {
			t.Parallel()
			for _, sc := range scenarios {
				t.Run(sc.name, func(t *testing.T) {
					t.Parallel()
					sc.test(t, s, protocol)
				})
			}
		})
	})
	s.healthy()
}

// samples are JSON values that must arrive as they were sent.
var samples = []string{
	`{"text":"hello"}`, `1`, `-0`, `1e400`, `12345678901234567890.10`, `null`, `true`, `""`, `[]`,
	`{"a":{"b":[1,2,{"c":null}]},"A":1}`, `"\u0000\ud83d\ude00\\\"/\/"`, `"<script>&amp;é😀"`,
	`{"spaced" : [ 1 , 2 ] }`,
	`"` + strings.Repeat("x", 60<<10) + `"`,
}

func goPublish(t *testing.T, s *sdkServer, protocol string) {
	g := connectedClient(t, protocol, s.url(""), s.mint(auth.Claims{User: "u", Info: json.RawMessage(`{"name":"U"}`)}))
	sub := g.newSub("room:publish-"+protocol, centrifuge.SubscriptionConfig{Recoverable: true})
	if e := sub.begin(); !e.Recoverable || !e.Positioned || e.StreamPosition == nil || e.StreamPosition.Epoch == "" || e.WasRecovering {
		t.Errorf("subscribed with %+v", e)
	}
	for i, want := range samples {
		if _, err := sub.Publish(timeout(t), []byte(want)); err != nil {
			t.Fatalf("publish %.40s: %v", want, err)
		}
		p := sub.next()
		if string(p.Data) != want || p.Offset != uint64(i+1) {
			t.Errorf("got %.40s at %d, want %.40s at %d", p.Data, p.Offset, want, i+1)
		}
		if p.Info == nil || p.Info.User != "u" || string(p.Info.ConnInfo) != `{"name":"U"}` {
			t.Errorf("publisher's info is %+v", p.Info)
		}
	}
	if _, err := s.publish("", sub.Channel, object{"by": "server"}); err != nil {
		t.Fatal(err)
	}
	if p := sub.next(); string(p.Data) != `{"by":"server"}` || p.Info != nil {
		t.Errorf("from the server API: %s, info %+v", p.Data, p.Info)
	}
}

func goEphemeral(t *testing.T, s *sdkServer, protocol string) {
	g := connectedClient(t, protocol, s.url(""), s.token("u"))
	sub := g.newSub("live:a-"+protocol, centrifuge.SubscriptionConfig{Recoverable: true})
	if e := sub.begin(); e.Recoverable || e.Positioned {
		t.Errorf("subscribed with %+v", e)
	}
	for i := range 20 {
		want := fmt.Sprintf(`{"n":%d}`, i)
		if _, err := sub.Publish(timeout(t), []byte(want)); err != nil {
			t.Fatal(err)
		}
		if p := sub.next(); string(p.Data) != want || p.Offset != 0 {
			t.Errorf("got %s at %d, want %s at 0", p.Data, p.Offset, want)
		}
	}
	if _, err := sub.History(timeout(t)); errorCode(err) != 108 {
		t.Errorf("history of a room without one: %v, want error 108", err)
	}
}

func goPresence(t *testing.T, s *sdkServer, protocol string) {
	room := "room:presence-" + protocol
	ids := make(map[string]string)
	var sub *goSub
	for i, user := range []string{"a", "b", "b"} {
		g := newGoClient(t, protocol, s.url(""), centrifuge.Config{Token: s.mint(auth.Claims{User: user, Info: json.RawMessage(`{"i":1}`)})})
		ids[g.connect().ClientID] = user
		sub = g.sub(room, centrifuge.SubscriptionConfig{})
		stats, err := sub.PresenceStats(timeout(t))
		if err != nil || stats.NumClients != i+1 || stats.NumUsers != min(i+1, 2) {
			t.Errorf("presence stats of %d: %+v, %v", i+1, stats, err)
		}
	}
	all, err := sub.Presence(timeout(t))
	if err != nil || len(all.Clients) != len(ids) {
		t.Fatalf("presence: %+v, %v", all, err)
	}
	for id, info := range all.Clients {
		if info.Client != id || info.User != ids[id] || string(info.ConnInfo) != `{"i":1}` {
			t.Errorf("presence of %s: %+v, want user %q", id, info, ids[id])
		}
	}
	var api struct {
		Presence map[string]struct{ User string }
	}
	if err := s.api("", "presence", object{"channel": room}, &api); err != nil || len(api.Presence) != len(ids) {
		t.Errorf("presence by the server API: %+v, %v", api, err)
	}
}

func goHistory(t *testing.T, s *sdkServer, protocol string) {
	g := connectedClient(t, protocol, s.url(""), s.token("u"))
	room := "room:history-" + protocol
	s.fill(room, 1, 25)
	top, err := g.History(timeout(t), room)
	if err != nil || len(top.Publications) != 0 || top.Offset != 25 || top.Epoch == "" {
		t.Fatalf("position alone: %+v, %v", top, err)
	}
	at := func(offset uint64) *centrifuge.StreamPosition {
		return &centrifuge.StreamPosition{Offset: offset, Epoch: top.Epoch}
	}
	for _, c := range []struct {
		name        string
		limit       int32
		since       *centrifuge.StreamPosition
		reverse     bool
		first, last int // offsets, 0 when nothing is to come
	}{
		{"limit", 10, nil, false, 1, 10},
		{"all", -1, nil, false, 1, 25},
		{"since", 5, at(7), false, 8, 12},
		{"since, to the end", 100, at(20), false, 21, 25},
		{"since the top", 10, at(25), false, 0, 0},
		{"reverse", 3, nil, true, 25, 23},
		{"reverse since", 3, at(10), true, 9, 7},
		{"reverse since the first", 3, at(1), true, 0, 0},
	} {
		res, err := g.History(timeout(t), room, centrifuge.WithHistoryLimit(c.limit),
			centrifuge.WithHistorySince(c.since), centrifuge.WithHistoryReverse(c.reverse))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got, want []uint64
		for _, p := range res.Publications {
			got = append(got, p.Offset)
			if string(p.Data) != fmt.Sprintf(`{"n":%d}`, p.Offset) {
				t.Errorf("%s: %s at %d", c.name, p.Data, p.Offset)
			}
		}
		for o := c.first; o != 0; {
			want = append(want, uint64(o))
			switch {
			case o == c.last:
				o = 0
			case c.reverse:
				o--
			default:
				o++
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", c.name, got, want)
		}
	}
	_, err = g.History(timeout(t), room, centrifuge.WithHistorySince(&centrifuge.StreamPosition{Offset: 1, Epoch: "other"}))
	if errorCode(err) != 112 {
		t.Errorf("another epoch: %v, want error 112", err)
	}
}

func goJoinLeave(t *testing.T, s *sdkServer, protocol string) {
	room := "room:joins-" + protocol
	watcher := connectedClient(t, protocol, s.url(""), s.token("watcher")).
		sub(room, centrifuge.SubscriptionConfig{JoinLeave: true})
	quiet := connectedClient(t, protocol, s.url(""), s.token("watcher")).sub(room, centrifuge.SubscriptionConfig{})
	receive(t, watcher.joins, "join") // of quiet, or of the watcher itself: both may be told
	guest := newGoClient(t, protocol, s.url(""), centrifuge.Config{Token: s.token("guest")})
	id := guest.connect().ClientID
	visit := guest.sub(room, centrifuge.SubscriptionConfig{})
	for {
		if join := receive(t, watcher.joins, "join"); join.User == "guest" {
			if join.Client != id {
				t.Errorf("client %s joins, want %s", join.Client, id)
			}
			break
		}
	}
	if err := visit.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if leave := receive(t, watcher.leaves, "leave"); leave.Client != id {
		t.Errorf("client %s leaves, want %s", leave.Client, id)
	}
	receive(t, visit.unsubscribed, "unsubscription")
	visit.begin()
	receive(t, watcher.joins, "second join")
	guest.Close()
	if leave := receive(t, watcher.leaves, "leave"); leave.Client != id {
		t.Errorf("client %s leaves, want %s", leave.Client, id)
	}
	// What did not ask hears nothing: a publication comes after all of it.
	if _, err := s.publish("", room, 1); err != nil {
		t.Fatal(err)
	}
	quiet.next()
	if len(quiet.joins)+len(quiet.leaves) != 0 {
		t.Error("joins are told to who did not ask for them")
	}
}

func goRPCPublish(t *testing.T, s *sdkServer, protocol string) {
	g := connectedClient(t, protocol, s.url(""), s.token("u"))
	room := "room:rpc-" + protocol
	sub := g.sub(room, centrifuge.SubscriptionConfig{})
	call := func(id, data string) (answer struct {
		Offset   uint64
		Epoch    string
		Replayed bool
		Status   int
		Code     string
	}) {
		t.Helper()
		res, err := g.RPC(timeout(t), "publish", fmt.Appendf(nil, `{"room":%q,"id":%q,"data":%s}`, room, id, data))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(res.Data, &answer); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	first := call("id-1", `{"n":1}`)
	if first.Offset != 1 || first.Epoch == "" || first.Replayed {
		t.Errorf("first: %+v", first)
	}
	if again := call("id-1", `{"n":1}`); again.Offset != 1 || again.Epoch != first.Epoch || !again.Replayed {
		t.Errorf("again: %+v, want the same, replayed", again)
	}
	if other := call("id-1", `{"n":2}`); other.Status != 409 || other.Code != "id_reused" {
		t.Errorf("other content: %+v, want 409 id_reused", other)
	}
	if second := call("id-2", `{"n":3}`); second.Offset != 2 {
		t.Errorf("second: %+v", second)
	}
	for _, want := range []string{`{"n":1}`, `{"n":3}`} {
		if p := sub.next(); string(p.Data) != want {
			t.Errorf("got %s, want %s", p.Data, want)
		}
	}
}

// goServerSide: rooms of the token's channels claim, recovered after a reconnect.
func goServerSide(t *testing.T, s *sdkServer, protocol string) {
	user, room := "side-"+protocol, "closed:side-"+protocol
	g := newGoClient(t, protocol, s.url(""), centrifuge.Config{
		Token: s.mint(auth.Claims{User: user, Channels: []string{room, "live:side-" + protocol}}),
	})
	subscribed := make(chan centrifuge.ServerSubscribedEvent, 16)
	unsubscribed := make(chan centrifuge.ServerUnsubscribedEvent, 16)
	publications := make(chan centrifuge.ServerPublicationEvent, 1024)
	g.OnSubscribed(func(e centrifuge.ServerSubscribedEvent) { subscribed <- e })
	g.OnUnsubscribed(func(e centrifuge.ServerUnsubscribedEvent) { unsubscribed <- e })
	g.OnPublication(func(e centrifuge.ServerPublicationEvent) { publications <- e })
	// await takes the events of both rooms, which come in any order.
	await := func() (found centrifuge.ServerSubscribedEvent) {
		for range 2 {
			if e := receive(t, subscribed, "server-side subscription"); e.Channel == room {
				found = e
			}
		}
		if found.Channel != room {
			t.Fatal("the room is not among the server-side subscriptions")
		}
		return found
	}
	g.connect()
	if e := await(); !e.Recoverable || e.WasRecovering {
		t.Errorf("subscribed with %+v", e)
	}
	expect := func(first, last uint64) {
		t.Helper()
		for want := first; want <= last; want++ {
			if e := receive(t, publications, "publication"); e.Channel != room || e.Offset != want {
				t.Fatalf("got %d in %s, want %d in %s", e.Offset, e.Channel, want, room)
			}
		}
	}
	s.fill(room, 1, 3)
	expect(1, 3)
	if err := g.Disconnect(); err != nil {
		t.Fatal(err)
	}
	receive(t, g.disconnected, "disconnect")
	s.fill(room, 4, 300)
	g.connect()
	if e := await(); !e.WasRecovering || !e.Recovered {
		t.Errorf("subscribed again with %+v", e)
	}
	expect(4, 303)
	// A subscription that the server API adds and takes away.
	added := "closed:added-" + protocol
	s.must("subscribe", object{"user": user, "channel": added})
	if e := receive(t, subscribed, "subscribe push"); e.Channel != added {
		t.Errorf("subscribed to %s, want %s", e.Channel, added)
	}
	if _, err := s.publish("", added, 1); err != nil {
		t.Fatal(err)
	}
	if e := receive(t, publications, "publication"); e.Channel != added {
		t.Errorf("publication in %s, want %s", e.Channel, added)
	}
	s.must("unsubscribe", object{"user": user, "channel": added})
	if e := receive(t, unsubscribed, "unsubscribe push"); e.Channel != added {
		t.Errorf("unsubscribed from %s, want %s", e.Channel, added)
	}
}

// goUnsubscribed: 2000 is final; after the removal of history (2500) the SDK
// subscribes again and learns that nothing was recovered.
func goUnsubscribed(t *testing.T, s *sdkServer, protocol string) {
	user, room := "unsub-"+protocol, "room:unsub-"+protocol
	g := connectedClient(t, protocol, s.url(""), s.token(user))
	sub := g.sub(room, centrifuge.SubscriptionConfig{Recoverable: true})
	s.fill(room, 1, 2)
	sub.next()
	sub.next()
	s.must("history_remove", object{"channel": room})
	if e := receive(t, sub.subscribed, "resubscription"); !e.WasRecovering || e.Recovered {
		t.Errorf("after the removal of history: subscribed with %+v", e)
	}
	s.must("unsubscribe", object{"user": user, "channel": room})
	if e := receive(t, sub.unsubscribed, "unsubscribe push"); e.Code != 2000 {
		t.Errorf("unsubscribed with %d, want 2000", e.Code)
	}
	if _, err := g.RPC(timeout(t), "nosuch", []byte(`{}`)); errorCode(err) != 104 {
		t.Errorf("the connection does not go on: %v", err)
	}
}

// goDisconnected: a code from 3500 on is final, a lower one is not.
func goDisconnected(t *testing.T, s *sdkServer, protocol string) {
	user := "disc-" + protocol
	g := connectedClient(t, protocol, s.url(""), s.token(user))
	receive(t, g.connecting, "connecting")
	s.must("disconnect", object{"user": user, "disconnect": object{"code": 3001, "reason": "shutdown"}})
	if e := receive(t, g.connecting, "reconnect"); e.Code != 3001 || e.Reason != "shutdown" {
		t.Errorf("reconnects because of %d %q, want 3001 shutdown", e.Code, e.Reason)
	}
	receive(t, g.connected, "connection")
	s.must("disconnect", object{"user": user})
	if e := receive(t, g.disconnected, "disconnect"); e.Code != 3503 {
		t.Errorf("disconnected with %d, want 3503", e.Code)
	}
	if len(g.connecting) != 0 || g.State() != centrifuge.StateDisconnected {
		t.Error("the client reconnects after 3503")
	}
}
