package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/hub/poll"
	"hub/hub/poll/polltest"
	"hub/hub/wire"
	"hub/store"
)

// panicking is a backend that fails who sets a connection up: net/http when it
// hands one over, a loop when it answers an upgrade.
type panicking struct {
	poll.Backend
	armed atomic.Bool
}

func (b *panicking) Take(c net.Conn, read []byte) (poll.Handle, error) {
	if b.armed.Load() {
		panic("as a test wants")
	}
	return b.Backend.Take(c, read)
}

func (b *panicking) NewPoller() (poll.Poller, error) {
	p, err := b.Backend.NewPoller()
	return &panickingPoller{p, b}, err
}

type panickingPoller struct {
	poll.Poller
	backend *panicking
}

func (p *panickingPoller) Attach(h poll.Handle, owner any) (poll.Socket, error) {
	s, err := p.Poller.Attach(h, owner)
	if p.backend.armed.Load() && err == nil {
		s = &panickingSocket{s}
	}
	return s, err
}

type panickingSocket struct{ poll.Socket }

func (s *panickingSocket) Write([]byte) (int, error) { panic("as a test wants") }

// Case G22: a panic while a connection is set up costs no slot and no socket,
// though the end of such a connection panics too.
func TestPanicInSetupFreesTheSlot(t *testing.T) {
	const limit = 4
	for _, kept := range []bool{false, true} { // by a loop, and by net/http
		o := testOptions(t)
		o.Limits.Connections = ConnectionLimits{IP: limit}
		b := &panicking{Backend: poll.Default()}
		s := startServer(t, o, func(s *Server) { quiet(s); s.backend = b })
		for i := range 3 * limit {
			b.armed.Store(!kept) // the loop gets the socket at once
			c := &wsClient{conn: s.dial(t)}
			if kept {
				must(c.exchange("GET /healthz HTTP/1.1\r\nHost: hub.test\r\n\r\n"))
			}
			b.armed.Store(true)
			if r, err := c.exchange(upgradeRequest(defaultSocketPath)); err == nil && r.StatusCode == http.StatusSwitchingProtocols {
				t.Errorf("kept %v: upgraded in spite of the panic", kept)
			}
			b.armed.Store(false)
			until(t, "it has panicked", func() bool { return s.metric(t, "hub_panics_total", "") > float64(i) })
			until(t, fmt.Sprintf("slot and socket are back, kept %v", kept), func() bool { n, _ := s.slots.Counts(); return n == 0 && s.sockets() == 0 })
		}
		s.fillUp(t, limit, true)
	}
}

// Case G22: the like once the upgrade is done, in the connect command.
func TestPanicInConnectFreesTheSlot(t *testing.T) {
	const limit = 4
	o := testOptions(t)
	o.Server.Loops = 1
	o.Limits.Connections = ConnectionLimits{Server: limit}
	s := startServer(t, o, quiet)
	verifier := s.policy.Load().verifier
	s.update(func(p *policy) { p.verifier = nil })
	for range 3 * limit {
		c := s.open(t, wire.JSON)
		if err := c.send(connectWith(token(t, "u"))); err != nil {
			t.Fatal(err)
		}
		c.closes(closeInternal.code)
		_ = c.conn.Close()
		until(t, "the slot is back", func() bool { n, _ := s.slots.Counts(); return n == 0 })
	}
	s.update(func(p *policy) { p.verifier = verifier })
	s.fillUp(t, limit, false)
}

// Case G24: 0 is "off" for every limit at once, and a server without limits serves.
func TestEveryLimitIsOff(t *testing.T) {
	encodings(t, func(o *Options) {
		o.Limits = LimitOptions{}
		o.Database.Queue, o.Database.WriteTimeout, o.Database.MaxRooms = 0, 0, 0
	}, func(t *testing.T, s *testServer, enc wire.Encoding) {
		c, stalled := s.connect(t, enc, "u"), s.connect(t, enc, "stalled")
		live := "live:" + enc.String()
		stalled.ok(subscribeTo(live))
		const n = 300
		room := func(i int) string { return fmt.Sprintf("open:%d-%s", i, enc) }
		var subscribes, publishes []*protocol.Command
		for i := range n {
			subscribes = append(subscribes, subscribeTo(room(i)))
			publishes = append(publishes, publishTo(room(i), `1`))
		}
		for _, commands := range [][]*protocol.Command{subscribes, publishes} {
			if err := c.send(commands...); err != nil {
				t.Fatal(err)
			}
			for answered := 0; answered < len(commands); {
				r, err := c.read()
				if err != nil || r.Error != nil {
					t.Fatalf("after %d replies: %v, %v", answered, r, err)
				}
				if r.Id != 0 {
					answered++
				}
			}
		}
		const bytes = 2 << 20 // more than the default of limits.unsent
		data := `"` + strings.Repeat("x", 32<<10) + `"`
		for range bytes / len(data) {
			c.ok(publishTo(live, data))
		}
		for range bytes / len(data) {
			if _, p := stalled.publication(); string(p.Data) != data {
				t.Fatalf("publication of %d bytes, want %d", len(p.Data), len(data))
			}
		}
		stored := 0
		for i := range n {
			stored += len(c.ok(historyOf(room(i), -1)).History.Publications)
		}
		if stored != n {
			t.Errorf("%d publications are stored, want %d", stored, n)
		}
	})
}

// Case G33: while the disk is stuck, who publishes is told: at once when the queue
// is full, else when the waiting was too long; nothing of that is written later.
// The length of the queue shows in the metrics, and so does its oldest wait.
func TestStuckDiskIsTold(t *testing.T) {
	o := testOptions(t)
	o.Database.Queue, o.Database.WriteTimeout = 3, 3*time.Second
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	s := startServer(t, o, func(s *Server) { s.committing = func([]store.Event) { <-gate } })
	t.Cleanup(release)
	db := s.databases.get("default")
	c := s.connect(t, wire.JSON, "u")
	first := publishTo("open:a", `"first"`)
	if err := c.send(first); err != nil {
		t.Fatal(err)
	}
	until(t, "the first is written", func() bool { return db.store.Stats().Commits == 1 })
	queued := []*protocol.Command{publishTo("open:a", `"late"`), publishTo("open:a", `"late"`), publishTo("open:a", `"late"`)}
	if err := c.send(queued...); err != nil {
		t.Fatal(err)
	}
	until(t, "three wait", func() bool { return s.metric(t, "hub_write_queue_length", "") == 3 })
	until(t, "for some time", func() bool { return s.metric(t, "hub_write_queue_wait_seconds", "default") > 0.01 })
	other := s.connect(t, wire.Protobuf, "v")
	other.fails(errTooManyRequests.Code, publishTo("open:a", `"full"`))
	if code := apiCode(s.api(t, "publish", `{"channel":"open:a","data":"full"}`)); code != int(errTooManyRequests.Code) {
		t.Errorf("server API with a full queue: error %d, want 111", code)
	}
	other.ok(publishTo("live:a", `1`)) // needs no disk
	for _, cmd := range queued {
		if r, err := c.reply(cmd.Id); err != nil || r.Error == nil {
			t.Errorf("one that waited too long got %v, %v, want an error", r, err)
		}
	}
	release()
	c.ok(publishTo("open:a", `"next"`))
	var got []string
	for _, p := range c.ok(historyOf("open:a", -1)).History.Publications {
		got = append(got, string(p.Data))
	}
	if want := []string{`"first"`, `"next"`}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("stored are %v, want %v", got, want)
	}
	if n, wait := s.metric(t, "hub_write_queue_length", ""), s.metric(t, "hub_write_queue_wait_seconds", ""); n != 0 || wait != 0 {
		t.Errorf("%v wait in the end, for %v s", n, wait)
	}
}

// Case G44: a loop that cannot accept does not try again and again, and serves
// those who are there. (A loop that ran hot would stop the clock of the bubble.)
func TestAcceptBacksOff(t *testing.T) {
	lines := new(countingLog)
	withClock(t, nil, func(s *clockwork) {
		onLoop(s.loops[0], func() { s.log = slog.New(slog.NewTextHandler(lines, nil)) })
		c, _ := s.connect(wire.JSON, token(t, "u"))
		s.listener.Fail(syscall.EMFILE)
		var waiting []*polltest.Peer
		for range 5 {
			waiting = append(waiting, s.dial())
		}
		for range 60 {
			time.Sleep(time.Second)
			c.ok(publishTo("open:a", `1`))
		}
		s.listener.Fail(nil)
		for _, p := range waiting {
			if _, err := upgrade(p, wire.JSON, defaultSocketPath); err != nil {
				t.Fatal(err)
			}
		}
		if n := lines.count("cannot accept"); n != 1 {
			t.Errorf("%d lines in a minute, want one", n)
		}
	})
}

// Case G19: nobody locks another address out by naming it.
func TestNamedVictimIsNotLockedOut(t *testing.T) {
	o := testOptions(t)
	o.Limits.Connections = ConnectionLimits{IP: 2}
	s := startServer(t, o, nil)
	attacker := func() (int, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 31, 7)}}
		conn, err := d.Dial("tcp", s.Addr())
		if err != nil {
			return 0, err
		}
		t.Cleanup(func() { conn.Close() })
		r, err := (&wsClient{conn: conn}).exchange(upgradeRequest(defaultSocketPath, "X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1"))
		if err != nil {
			return 0, err
		}
		return r.StatusCode, nil
	}
	if _, err := attacker(); errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip("this system has one loopback address")
	}
	for range 5 {
		if _, err := attacker(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the victim has all that is its own
		s.open(t, wire.JSON)
	}
	if _, status := s.attemptAfter(t, false); status != http.StatusTooManyRequests {
		t.Errorf("the victim's third connection: status %d, want 429", status)
	}
}
