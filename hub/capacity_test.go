package hub

import (
	"errors"
	"reflect"
	"testing"

	"hub/hub/wire"
	"hub/store"
)

// Caps that are set while running beat the file until they are reset, survive a
// restart, and close nobody.
func TestCaps(t *testing.T) {
	o := testOptions(t)
	o.Database.Names = []string{"default", "other"}
	o.Limits.Connections = ConnectionLimits{Server: 1000, Database: 500, IP: 400}
	s := startServer(t, o, nil)
	var clients []*tester
	for range 6 {
		clients = append(clients, s.connect(t, wire.JSON, "u"))
	}
	tries := func(path string, want int) {
		t.Helper()
		conn, status, _, err := s.attempt(path)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if status != want {
			t.Errorf("%s: status %d, want %d", path, status, want)
		}
		until(t, "it has gone", func() bool { n, _ := s.slots.Counts(); return n == len(clients) })
	}
	other := "/v1/other/websocket"
	set := func(scope, database string, limit int) {
		t.Helper()
		if err := s.setCap(t.Context(), store.Cap{Scope: scope, Database: database, Limit: limit}); err != nil {
			t.Fatal(err)
		}
	}
	reset := func(scope, database string) {
		t.Helper()
		if err := s.resetCap(t.Context(), scope, database); err != nil {
			t.Fatal(err)
		}
	}
	tries(defaultSocketPath, 101)
	for scope, refused := range map[string]int{"server": 503, "database": 503, "ip": 429} {
		set(scope, "", 3) // of whom there are 6
		tries(defaultSocketPath, refused)
		set(scope, "", 7)
		tries(defaultSocketPath, 101)
		set(scope, "", 6)
		tries(defaultSocketPath, refused)
		reset(scope, "")
		tries(defaultSocketPath, 101)
	}
	set("database", "default", 6) // its own beats that of all
	tries(defaultSocketPath, 503)
	tries(other, 101)
	set("database", "", 1)
	set("database", "default", 0)
	tries(defaultSocketPath, 101)
	for _, c := range clients {
		c.ok(historyOf("open:a", 0))
	}
	if err := s.setCap(t.Context(), store.Cap{Scope: "planet"}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a cap of a planet: %v", err)
	}

	// A reload changes what the file says, and not what was set.
	set("ip", "", 50)
	s.reload(t, func(o *Options) { o.Limits.Connections = ConnectionLimits{Server: 900, Database: 450, IP: 350} })
	one, none, fifty := 1, 0, 50
	want := []capacity{
		{Scope: "server", File: 900, Limit: 900, Present: 6},
		{Scope: "ip", File: 350, Override: &fifty, Limit: 50},
		{Scope: "database", File: 450, Override: &one, Limit: 1},
		{Scope: "database", Database: "default", File: 450, Override: &none, Limit: 0, Present: 6},
	}
	if got := s.capacities(); !reflect.DeepEqual(got, want) {
		t.Errorf("capacities %+v, want %+v", got, want)
	}
	for _, c := range clients { // nobody waits for their answers
		_ = c.conn.Close()
	}
	s.stop()
	s = startServer(t, o, nil)
	if server, database, ip := s.slots.Limits(); server != 1000 || database != 1 || ip != 50 || s.slots.DatabaseLimit("default") != 0 {
		t.Errorf("after a restart: limits %d, %d, %d, default %d", server, database, ip, s.slots.DatabaseLimit("default"))
	}
	reset("database", "")
	reset("database", "default")
	reset("ip", "")
	if _, database, ip := s.slots.Limits(); database != 500 || ip != 400 || s.slots.DatabaseLimit("default") != 500 {
		t.Errorf("reset: limits %d, %d, default %d, want those of the file", database, ip, s.slots.DatabaseLimit("default"))
	}
}

// More connections than descriptors allow are not promised, whoever asks for them.
func TestCapsAndDescriptors(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	most := descriptorLimit() - descriptorReserve
	for limit, want := range map[int]int{0: most, 1 << 30: most, most + 1: most, 7: 7} {
		if err := s.setCap(t.Context(), store.Cap{Scope: "server", Limit: limit}); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := s.slots.Limits(); got != want {
			t.Errorf("a cap of %d is %d in force, want %d", limit, got, want)
		}
	}
}
