package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/centrifugal/centrifuge-go"

	"hub/auth"
)

// goRefresh: the SDK refreshes the tokens of a connection and of a subscription
// in time, so both outlive tokens of a few seconds without an interruption.
func goRefresh(t *testing.T, s *sdkServer, protocol string) {
	const ttl = 3 * time.Second
	var connections, subscriptions atomic.Int32
	g := newGoClient(t, protocol, s.url(""), centrifuge.Config{
		GetToken: func(centrifuge.ConnectionTokenEvent) (string, error) {
			if connections.Add(1) > 1 {
				return s.token("u"), nil
			}
			return s.mint(auth.Claims{User: "u", ExpiresAt: time.Now().Add(ttl).Unix()}), nil
		},
	})
	start := time.Now()
	g.connect()
	sub := g.sub("closed:refresh-"+protocol, centrifuge.SubscriptionConfig{
		GetToken: func(e centrifuge.SubscriptionTokenEvent) (string, error) {
			if subscriptions.Add(1) > 1 {
				return s.mintSubscription("u", e.Channel, time.Hour), nil
			}
			return s.mintSubscription("u", e.Channel, ttl), nil
		},
	})
	eventually(t, patience, func() string {
		if connections.Load() < 2 || subscriptions.Load() < 2 {
			return fmt.Sprintf("tokens asked for: %d, %d", connections.Load(), subscriptions.Load())
		}
		if time.Since(start) < ttl+time.Second {
			return "the first tokens are not over yet"
		}
		return ""
	})
	if _, err := s.publish("", sub.Channel, 7); err != nil {
		t.Fatal(err)
	}
	if p := sub.next(); string(p.Data) != "7" {
		t.Errorf("got %s", p.Data)
	}
	if n := len(g.connecting); n != 1 {
		t.Errorf("connected %d times, want once", n)
	}
	if len(sub.unsubscribed)+len(sub.subscribed)+len(sub.errors) != 0 {
		t.Error("the subscription was interrupted")
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
// token, unless that is for another room or user or of another kind.
func goSubscriptionToken(t *testing.T, s *sdkServer, protocol string) {
	g := connectedClient(t, protocol, s.url(""), s.token("u"))
	g.sub("closed:mine", centrifuge.SubscriptionConfig{Token: s.mintSubscription("u", "closed:mine", time.Hour)})
	for room, token := range map[string]string{
		"closed:none":         "",
		"closed:other-room":   s.mintSubscription("u", "closed:b", time.Hour),
		"closed:other-user":   s.mintSubscription("v", "closed:other-user", time.Hour),
		"closed:connection":   s.token("u"),
		"closed:forged":       s.mintSubscription("u", "closed:forged", time.Hour) + "x",
		"closed:not-a-token!": "abc",
	} {
		sub := g.newSub(room, centrifuge.SubscriptionConfig{Token: token})
		if err := sub.Subscribe(); err != nil {
			t.Fatal(err)
		}
		if e := receive(t, sub.unsubscribed, "refusal in "+room); e.Code != 103 {
			t.Errorf("%s: code %d, want 103", room, e.Code)
		}
	}
	// An expired one makes the SDK ask for another.
	var minted atomic.Int32
	g.sub("closed:expired", centrifuge.SubscriptionConfig{
		Token: s.mintSubscription("u", "closed:expired", -time.Minute),
		GetToken: func(e centrifuge.SubscriptionTokenEvent) (string, error) {
			minted.Add(1)
			return s.mintSubscription("u", e.Channel, time.Hour), nil
		},
	})
	if minted.Load() != 1 {
		t.Errorf("getToken was called %d times, want once", minted.Load())
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
