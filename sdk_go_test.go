package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/centrifugal/centrifuge-go"

	"hub/auth"
)

// goClient is a client of centrifuge-go with its events as channels, which are
// large enough for what a test causes.
type goClient struct {
	*centrifuge.Client
	t            *testing.T
	connected    chan centrifuge.ConnectedEvent
	connecting   chan centrifuge.ConnectingEvent
	disconnected chan centrifuge.DisconnectedEvent
	errors       chan error
}

// newGoClient makes a client that is not connected yet and ends with the test.
func newGoClient(t *testing.T, protocol, url string, c centrifuge.Config) *goClient {
	t.Helper()
	// The SDK's one second is short for a machine that is busy with other tests.
	c.HandshakeTimeout, c.WriteTimeout = patience, patience
	c.MinReconnectDelay, c.MaxReconnectDelay = 20*time.Millisecond, 200*time.Millisecond
	newClient := centrifuge.NewJsonClient
	if protocol == "protobuf" {
		newClient = centrifuge.NewProtobufClient
	}
	g := &goClient{
		Client: newClient(url, c), t: t,
		connected:    make(chan centrifuge.ConnectedEvent, 64),
		connecting:   make(chan centrifuge.ConnectingEvent, 64),
		disconnected: make(chan centrifuge.DisconnectedEvent, 64),
		errors:       make(chan error, 1024),
	}
	t.Cleanup(g.Close)
	g.OnConnected(func(e centrifuge.ConnectedEvent) { g.connected <- e })
	g.OnConnecting(func(e centrifuge.ConnectingEvent) { g.connecting <- e })
	g.OnDisconnected(func(e centrifuge.DisconnectedEvent) { g.disconnected <- e })
	g.OnError(func(e centrifuge.ErrorEvent) { g.errors <- e.Error })
	return g
}

// connect connects and waits for it.
func (g *goClient) connect() centrifuge.ConnectedEvent {
	g.t.Helper()
	if err := g.Connect(); err != nil {
		g.t.Fatal(err)
	}
	return receive(g.t, g.connected, "connection")
}

// connectedClient makes a client and connects it.
func connectedClient(t *testing.T, protocol, url, token string) *goClient {
	t.Helper()
	g := newGoClient(t, protocol, url, centrifuge.Config{Token: token})
	g.connect()
	return g
}

// goSub is a subscription of centrifuge-go with its events as channels.
type goSub struct {
	*centrifuge.Subscription
	t            *testing.T
	subscribed   chan centrifuge.SubscribedEvent
	unsubscribed chan centrifuge.UnsubscribedEvent
	publications chan centrifuge.Publication
	joins        chan centrifuge.ClientInfo
	leaves       chan centrifuge.ClientInfo
	errors       chan error
}

func (g *goClient) newSub(room string, c centrifuge.SubscriptionConfig) *goSub {
	g.t.Helper()
	c.MinResubscribeDelay, c.MaxResubscribeDelay = 20*time.Millisecond, 200*time.Millisecond
	sub, err := g.NewSubscription(room, c)
	if err != nil {
		g.t.Fatal(err)
	}
	s := &goSub{
		Subscription: sub, t: g.t,
		subscribed:   make(chan centrifuge.SubscribedEvent, 64),
		unsubscribed: make(chan centrifuge.UnsubscribedEvent, 64),
		publications: make(chan centrifuge.Publication, 4096),
		joins:        make(chan centrifuge.ClientInfo, 4096),
		leaves:       make(chan centrifuge.ClientInfo, 4096),
		errors:       make(chan error, 1024),
	}
	s.OnSubscribed(func(e centrifuge.SubscribedEvent) { s.subscribed <- e })
	s.OnUnsubscribed(func(e centrifuge.UnsubscribedEvent) { s.unsubscribed <- e })
	s.OnPublication(func(e centrifuge.PublicationEvent) { s.publications <- e.Publication })
	s.OnJoin(func(e centrifuge.JoinEvent) { s.joins <- e.ClientInfo })
	s.OnLeave(func(e centrifuge.LeaveEvent) { s.leaves <- e.ClientInfo })
	s.OnError(func(e centrifuge.SubscriptionErrorEvent) { s.errors <- e.Error })
	return s
}

// sub subscribes and waits for it.
func (g *goClient) sub(room string, c centrifuge.SubscriptionConfig) *goSub {
	g.t.Helper()
	s := g.newSub(room, c)
	s.begin()
	return s
}

func (s *goSub) begin() centrifuge.SubscribedEvent {
	s.t.Helper()
	if err := s.Subscribe(); err != nil {
		s.t.Fatal(err)
	}
	select {
	case e := <-s.subscribed:
		return e
	case e := <-s.unsubscribed:
		s.t.Fatalf("subscribe to %s: %d %s", s.Channel, e.Code, e.Reason)
	case <-time.After(patience):
		s.t.Fatalf("no reply to subscribe to %s", s.Channel)
	}
	panic("unreachable")
}

// next returns the next publication.
func (s *goSub) next() centrifuge.Publication {
	s.t.Helper()
	return receive(s.t, s.publications, "publication in "+s.Channel)
}

func clientErrorCode(err error) uint32 {
	var e *centrifuge.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// forProtocols runs a test for each protocol of the SDKs.
func forProtocols(t *testing.T, test func(t *testing.T, protocol string)) {
	for _, protocol := range []string{"json", "protobuf"} {
		t.Run(protocol, func(t *testing.T) { test(t, protocol) })
	}
}

// TestGoSDK runs the unmodified centrifuge-go against one server; each scenario
// has rooms and users of its own.
func TestGoSDK(t *testing.T) {
	s := startSDKServer(t)
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
		for _, sc := range scenarios {
			t.Run(sc.name, func(t *testing.T) {
				forProtocols(t, func(t *testing.T, protocol string) {
					t.Parallel()
					sc.test(t, s, protocol)
				})
			})
		}
	})
	s.healthy()
}

// samples are JSON values that must arrive as they were sent.
var samples = []string{
	`{"text":"hello"}`, `1`, `-0`, `1e400`, `12345678901234567890.10`, `null`, `true`, `""`, `[]`,
	`{"a":{"b":[1,2,{"c":null}]},"a":1}`, `"\u0000\ud83d\ude00\\\"/\/"`, `"<script>&amp;é😀"`,
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

// goRefresh: the SDK refreshes a token of a few seconds in time, so the
// connection outlives it without a reconnect.
func goRefresh(t *testing.T, s *sdkServer, protocol string) {
	const ttl = 3 * time.Second
	var minted atomic.Int32
	g := newGoClient(t, protocol, s.url(""), centrifuge.Config{
		GetToken: func(centrifuge.ConnectionTokenEvent) (string, error) {
			if minted.Add(1) > 1 {
				return s.token("u"), nil
			}
			return s.mint(auth.Claims{User: "u", ExpiresAt: time.Now().Add(ttl).Unix()}), nil
		},
	})
	start := time.Now()
	g.connect()
	sub := g.sub("room:refresh-"+protocol, centrifuge.SubscriptionConfig{})
	eventually(t, patience, func() string {
		if minted.Load() < 2 {
			return "no new token was asked for"
		}
		if time.Since(start) < ttl+time.Second {
			return "the first token is not over yet"
		}
		return ""
	})
	if _, err := sub.Publish(timeout(t), []byte(`1`)); err != nil {
		t.Errorf("publish after the first token's end: %v", err)
	}
	if n := len(g.connecting); n != 1 {
		t.Errorf("connected %d times, want once", n)
	}
}

func goExpiredToken(t *testing.T, s *sdkServer, protocol string) {
	var minted atomic.Int32
	user := "expired-" + protocol
	g := newGoClient(t, protocol, s.url(""), centrifuge.Config{
		Token: s.mint(auth.Claims{User: user, ExpiresAt: time.Now().Add(-time.Minute).Unix()}),
		GetToken: func(centrifuge.ConnectionTokenEvent) (string, error) {
			minted.Add(1)
			return s.token(user), nil
		},
	})
	g.connect()
	if code := errorCode(receive(t, g.errors, "error")); code != 109 {
		t.Errorf("error %d, want 109", code)
	}
	if minted.Load() != 1 {
		t.Errorf("getToken was called %d times, want once", minted.Load())
	}
	// Expired while connected: 3005, and the SDK comes back with a new token.
	s.must("refresh", object{"user": user, "expired": true})
	receive(t, g.connecting, "first connecting")
	if e := receive(t, g.connecting, "reconnect"); e.Code != 3005 {
		t.Errorf("closed with %d, want 3005", e.Code)
	}
	receive(t, g.connected, "connection")
}

// goSubscriptionToken: a room that asks for a grant is opened by a subscription
// token, refreshed in time; one for another room or user does not open it.
func goSubscriptionToken(t *testing.T, s *sdkServer, protocol string) {
	room := "closed:a-" + protocol
	g := connectedClient(t, protocol, s.url(""), s.token("u"))
	var minted atomic.Int32
	sub := g.newSub(room, centrifuge.SubscriptionConfig{GetToken: func(e centrifuge.SubscriptionTokenEvent) (string, error) {
		if minted.Add(1) > 1 {
			return s.mintSubscription("u", e.Channel, time.Hour), nil
		}
		return s.mintSubscription("u", e.Channel, 3*time.Second), nil
	}})
	start := time.Now()
	sub.begin()
	for name, token := range map[string]string{
		"another room": s.mintSubscription("u", "closed:b", time.Hour),
		"another user": s.mintSubscription("v", "closed:c", time.Hour),
		"a connection": s.token("u"),
	} {
		other := g.newSub(map[string]string{"another room": "closed:x", "another user": "closed:c", "a connection": "closed:y"}[name],
			centrifuge.SubscriptionConfig{Token: token})
		if err := other.Subscribe(); err != nil {
			t.Fatal(err)
		}
		if e := receive(t, other.unsubscribed, "refusal of the token of "+name); e.Code != 103 {
			t.Errorf("token of %s: code %d, want 103", name, e.Code)
		}
	}
	eventually(t, patience, func() string {
		if minted.Load() < 2 || time.Since(start) < 4*time.Second {
			return "the subscription's token was not refreshed"
		}
		return ""
	})
	if _, err := s.publish("", room, 7); err != nil {
		t.Fatal(err)
	}
	if p := sub.next(); string(p.Data) != "7" {
		t.Errorf("got %s", p.Data)
	}
	if len(sub.unsubscribed) != 0 || len(sub.subscribed) != 0 {
		t.Error("the subscription was interrupted")
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
	await := func() centrifuge.ServerSubscribedEvent {
		for range 2 {
			if e := receive(t, subscribed, "server-side subscription"); e.Channel == room {
				return e
			}
		}
		t.Fatal("the room is not among the server-side subscriptions")
		panic("unreachable")
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
	for len(subscribed) > 0 {
		<-subscribed
	}
	g.connect()
	if e := await(); !e.WasRecovering || !e.Recovered {
		t.Errorf("subscribed again with %+v", e)
	}
	expect(4, 303)
	// A subscription that the server API adds and takes away.
	added := "closed:added-" + protocol
	for len(subscribed) > 0 {
		<-subscribed
	}
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

func goErrorCodes(t *testing.T, s *sdkServer, protocol string) {
	g := connectedClient(t, protocol, s.url(""), s.mint(auth.Claims{User: "u",
		Grants: auth.Grants{{Rooms: []string{"closed:mine"}, Allow: auth.Subscribe}}}))
	for room, want := range map[string]uint32{
		"nosuch:a":               102,
		"closed:other":           103,
		"room:a#b":               107,
		"$room:a":                107,
		"room:\x01":              107,
		strings.Repeat("r", 256): 107,
	} {
		sub := g.newSub(room, centrifuge.SubscriptionConfig{})
		if err := sub.Subscribe(); err != nil {
			t.Fatal(err)
		}
		if e := receive(t, sub.unsubscribed, "refusal"); e.Code != want {
			t.Errorf("subscribe to %.20q: code %d, want %d", room, e.Code, want)
		}
		if _, err := g.Publish(timeout(t), room, []byte(`1`)); errorCode(err) != want {
			t.Errorf("publish to %.20q: %v, want error %d", room, err, want)
		}
	}
	mine := g.sub("closed:mine", centrifuge.SubscriptionConfig{})
	if _, err := mine.Publish(timeout(t), []byte(`1`)); errorCode(err) != 103 {
		t.Errorf("publish without the grant: %v, want error 103", err)
	}
	if _, err := mine.Presence(timeout(t)); errorCode(err) != 103 {
		t.Errorf("presence without the grant: %v, want error 103", err)
	}
	if _, err := g.PresenceStats(timeout(t), "short:a"); errorCode(err) != 108 {
		t.Errorf("presence where there is none: %v, want error 108", err)
	}
	if _, err := g.RPC(timeout(t), "nosuch", []byte(`{}`)); errorCode(err) != 104 {
		t.Errorf("unknown rpc: %v, want error 104", err)
	}
	if protocol == "protobuf" { // JSON clients cannot send it
		if _, err := g.Publish(timeout(t), "room:a", []byte(`{`)); errorCode(err) != 107 {
			t.Errorf("publish what is not JSON: %v, want error 107", err)
		}
	}
	// Codes of connect: the SDK gives up.
	for name, c := range map[string]struct {
		token string
		code  uint32
	}{
		"none":             {"", 101},
		"forged":           {s.token("u") + "x", 3500},
		"not a token":      {"abc", 3500},
		"subscription":     {s.mintSubscription("u", "room:a", time.Hour), 3500},
		"another database": {s.mint(auth.Claims{User: "u", Databases: []string{"game"}}), 3500},
	} {
		bad := newGoClient(t, protocol, s.url(""), centrifuge.Config{Token: c.token})
		_ = bad.Connect()
		if e := receive(t, bad.disconnected, "refusal of a token: "+name); e.Code != c.code {
			t.Errorf("token %s: code %d, want %d", name, e.Code, c.code)
		}
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
