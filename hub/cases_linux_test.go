package hub

import (
	"net"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
	"golang.org/x/sys/unix"

	"hub/hub/wire"
)

// mute makes the host of conn drop every packet for it, as an unplugged cable does.
func mute(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
}

// Case G8: a client whose cable is cut, in a room where publishing goes on: the
// others see it leave after ping interval and pong timeout, and nothing of it is
// left, long before the system gives the connection up.
func TestHalfOpenConnectionEnds(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		t.Parallel()
		o := testOptions(t)
		o.Server.Backend = backend
		o.Server.PingInterval, o.Server.PongTimeout = 2*time.Second, 1500*time.Millisecond
		party := o.Namespaces["live"]
		party.JoinLeave = true
		o.Namespaces["party"] = party
		s := startServer(t, o, nil)
		watcher, victim := s.connect(t, wire.JSON, "watcher"), s.connect(t, wire.Protobuf, "victim")
		cmd := subscribeTo("party:a")
		cmd.Subscribe.JoinLeave = true
		watcher.ok(cmd)
		victim.ok(subscribeTo("party:a"))
		victim.ok(subscribeTo("open:alone"))
		on := watcher.frame(publishTo("party:a", `"on it goes"`))
		go func() { // whatever it sends answers the server's pings
			for watcher.write(on) == nil {
				time.Sleep(20 * time.Millisecond)
			}
		}()
		mute(t, victim.conn)
		cut := time.Now()
		for left := false; !left; {
			p, err := watcher.push()
			if err != nil || time.Since(cut) > patience {
				t.Fatalf("waiting for the leave: %v after %v", err, time.Since(cut))
			}
			left = p.Leave != nil && p.Leave.Info.User == "victim"
		}
		r := watcher.ok(&protocol.Command{PresenceStats: &protocol.PresenceStatsRequest{Channel: "party:a"}})
		if r.PresenceStats.NumClients != 1 {
			t.Errorf("%d are present, want the watcher alone", r.PresenceStats.NumClients)
		}
		db := s.databases.get("default")
		if db.live("open:alone") != nil || db.connections.Load() != 1 || len(s.connectionsOf("victim")) != 0 {
			t.Errorf("after the leave: room %v, %d connections", db.live("open:alone"), db.connections.Load())
		}
		until(t, "slot and socket are free", func() bool { n, _ := s.slots.Counts(); return n == 1 && s.sockets() == 1 })
	})
}
