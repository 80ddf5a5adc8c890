package main

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/centrifugal/centrifuge-go"

	"hub/auth"
)

const sameRoom = "room:same"

// member is a client in the room of that name of one database.
type member struct {
	*goClient
	db  string
	sub *goSub
	all *collector
}

// TestTwoDatabases: the same room name in two databases is two rooms, the same
// user name two users.
func TestTwoDatabases(t *testing.T) {
	s := startSDKServer(t)
	const room, each = sameRoom, 200
	databases := []string{"default", "game"}
	var members []*member
	for _, db := range databases {
		for _, protocol := range []string{"json", "protobuf"} {
			// One token is good for both, the other for its own alone.
			claims := auth.Claims{User: "same", Databases: databases}
			if protocol == "json" {
				claims.Databases = []string{db}
			}
			m := &member{db: db, goClient: connectedClient(t, protocol, s.url(db), s.mint(claims))}
			m.all, m.sub = m.collect(room, centrifuge.SubscriptionConfig{JoinLeave: true})
			members = append(members, m)
		}
	}
	var work sync.WaitGroup
	publish := func(db string, publish func(data []byte) error) {
		work.Go(func() {
			for n := range each {
				data, _ := json.Marshal(mark{db, n})
				if err := publish(data); err != nil {
					t.Errorf("publish to %s: %v", db, err)
				}
			}
		})
	}
	for _, m := range members {
		publish(m.db, func(data []byte) error {
			_, err := m.sub.Publish(timeout(t), data)
			return err
		})
	}
	for _, db := range databases {
		publish(db, func(data []byte) error {
			_, err := s.publish(db, room, json.RawMessage(data))
			return err
		})
	}
	work.Wait()
	for _, m := range members {
		got := m.all.await(t, 3*each, patience)
		contiguous(t, m.db, 1, got)
		if len(got) != 3*each {
			t.Errorf("%s: %d publications, want %d", m.db, len(got), 3*each)
		}
		for _, r := range got {
			var from mark
			if err := json.Unmarshal(r.Data, &from); err != nil || from.By != m.db {
				t.Fatalf("a subscriber in %s got %s", m.db, r.Data)
			}
		}
		if p, err := m.sub.Presence(timeout(t)); err != nil || len(p.Clients) != 2 {
			t.Errorf("%s: %d members, want 2 (%v)", m.db, len(p.Clients), err)
		}
		var history struct{ Offset uint64 }
		if err := s.api(m.db, "history", object{"channel": room}, &history); err != nil || history.Offset != 3*each {
			t.Errorf("%s: history up to %d, want %d (%v)", m.db, history.Offset, 3*each, err)
		}
	}
	// Positions of one mean nothing in the other.
	epochs := make(map[string]bool)
	for _, m := range members {
		h, err := m.sub.History(timeout(t))
		if err != nil {
			t.Fatal(err)
		}
		epochs[h.Epoch] = true
	}
	if len(epochs) != len(databases) {
		t.Errorf("%d epochs in %d databases", len(epochs), len(databases))
	}
	databasesEndApart(t, s, members)
	s.healthy()
}

// databasesEndApart: what ends in one database goes on in the other.
func databasesEndApart(t *testing.T, s *sdkServer, members []*member) {
	t.Helper()
	const room = sameRoom
	if err := s.api("game", "history_remove", object{"channel": room}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.api("game", "disconnect", object{"user": "same"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if m.db == "game" {
			if e := receive(t, m.disconnected, "disconnect"); e.Code != 3503 {
				t.Errorf("disconnected with %d, want 3503", e.Code)
			}
			continue
		}
		if _, err := m.sub.Publish(timeout(t), []byte(`"on"`)); err != nil {
			t.Errorf("publish: %v", err)
		}
		if len(m.disconnected) != 0 || len(m.sub.unsubscribed) != 0 || len(m.sub.subscribed) != 0 || len(m.sub.leaves) != 0 {
			t.Errorf("a subscriber in %s noticed what happened in game", m.db)
		}
	}
}

// TestDatabaseTokens: a token is good for the databases that it names; without
// names for default alone.
func TestDatabaseTokens(t *testing.T) {
	s := startSDKServer(t)
	for i, c := range []struct {
		db     string
		claim  []string
		refuse bool
	}{
		{"default", nil, false},
		{"game", nil, true},
		{"game", []string{"default"}, true},
		{"default", []string{"game"}, true},
		{"game", []string{"game"}, false},
	} {
		g := newGoClient(t, "json", s.url(c.db), centrifuge.Config{Token: s.mint(auth.Claims{User: fmt.Sprint("u", i), Databases: c.claim})})
		_ = g.Connect()
		if !c.refuse {
			receive(t, g.connected, "connection")
		} else if e := receive(t, g.disconnected, "refusal"); e.Code != 3500 {
			t.Errorf("token for %v in %s: code %d, want 3500", c.claim, c.db, e.Code)
		}
	}
	s.healthy()
}
