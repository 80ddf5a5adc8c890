package hub

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/poll/polltest"
	"hub/hub/wire"
)

// clockwork is a server on a network in memory, in a bubble with a clock of its own.
type clockwork struct {
	*testServer
	t        *testing.T
	listener *polltest.Listener
}

// withClock runs a test in a bubble where hours pass in no time.
func withClock(t *testing.T, change func(*Options), test func(*clockwork)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(t)
		if change != nil {
			change(&o)
		}
		network := polltest.New(1, polltest.Faults{})
		c := &clockwork{t: t, listener: network.NewListener()}
		c.testServer = startServer(t, o, func(s *Server) { s.backend, s.listener = network, c.listener })
		test(c)
		c.stop()
	})
}

func (c *clockwork) dial() *polltest.Peer {
	c.t.Helper()
	p, err := c.listener.Dial()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { p.Close() })
	return p
}

func (c *clockwork) open(enc wire.Encoding) (*tester, *polltest.Peer) {
	c.t.Helper()
	p := c.dial()
	ws, err := upgrade(p, enc, defaultSocketPath)
	if err != nil {
		c.t.Fatal(err)
	}
	ws.wait = 24 * time.Hour
	return &tester{ws, c.t}, p
}

func (c *clockwork) connect(enc wire.Encoding, token string) (*tester, *polltest.Peer) {
	c.t.Helper()
	ws, p := c.open(enc)
	ws.ok(connectWith(token))
	return ws, p
}

// near says whether something took as long as it should, give or take a tick.
func near(got, want time.Duration) bool { return got >= want && got <= want+2*wheelTick }

func TestPings(t *testing.T) {
	for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
		t.Run(enc.String(), func(t *testing.T) {
			withClock(t, nil, func(s *clockwork) {
				o := s.opts.Server
				c, _ := s.connect(enc, token(t, "u"))
				begin := time.Now()
				var last time.Time
				for i := range 20 {
					r, err := c.read()
					if err != nil || !isPing(r) {
						t.Fatalf("got %v, %v, want a ping", r, err)
					}
					switch gap := time.Since(last); {
					case i == 0 && (time.Since(begin) < o.PingInterval/2 || time.Since(begin) > o.PingInterval+2*wheelTick):
						t.Errorf("the first ping comes after %v", time.Since(begin))
					case i > 0 && !near(gap, o.PingInterval):
						t.Errorf("ping after %v, want %v", gap, o.PingInterval)
					}
					last = time.Now()
					if err := c.send(&protocol.Command{Id: 1, Unsubscribe: &protocol.UnsubscribeRequest{Channel: "open:x"}}); err != nil {
						t.Fatal(err)
					}
					if _, err := c.reply(1); err != nil {
						t.Fatal(err)
					}
				}
				for { // no answer any more
					if r, err := c.read(); err != nil || isPing(r) {
						last = time.Now()
						break
					}
				}
				c.closes(closeNoPong.code)
				if gap := time.Since(last); !near(gap, o.PongTimeout) {
					t.Errorf("closed %v after the ping, want %v", gap, o.PongTimeout)
				}
			})
		})
	}
}

// A client that does not read is not a dead one; one whose host does not answer is.
func TestStalledIsNotDead(t *testing.T) {
	withClock(t, nil, func(s *clockwork) {
		stalled, peer := s.connect(wire.JSON, token(t, "stalled"))
		stalled.ok(subscribeTo("open:a"))
		peer.Pause()
		publisher, _ := s.connect(wire.JSON, token(t, "publisher"))
		big := `"` + padding + padding + padding + padding + `"`
		for range 300 { // far more than its window
			publisher.ok(publishTo("open:a", big))
		}
		publisher.conn.Close()
		time.Sleep(10 * time.Minute)
		if peer.Hung() {
			t.Fatal("a client that does not read was closed")
		}
		peer.Resume()
		for offset := uint64(1); offset <= 300; offset++ {
			if _, p := stalled.publication(); p.Offset != offset {
				t.Fatalf("offset %d, want %d", p.Offset, offset)
			}
		}
		peer.Pause()
		publisher, _ = s.connect(wire.JSON, token(t, "publisher"))
		for range 300 {
			publisher.ok(publishTo("open:a", big))
		}
		peer.Die()
		o := s.opts.Server
		time.Sleep(2*o.PingInterval + o.PongTimeout)
		if !peer.Hung() {
			t.Error("a client whose host does not answer is still there")
		}
	})
}

// Whoever does not get as far as a connect command in time is closed.
func TestConnectDeadline(t *testing.T) {
	withClock(t, nil, func(s *clockwork) {
		want := s.opts.Server.HandshakeTimeout
		begin := time.Now()
		var all sync.WaitGroup
		for _, sent := range []string{"", "GET /connection/web", upgradeRequest(defaultSocketPath)[:150]} {
			p := s.dial()
			_, _ = io.WriteString(p, sent)
			all.Go(func() {
				_, _ = bufio.NewReader(p).ReadByte()
				if took := time.Since(begin); !near(took, want) {
					t.Errorf("%.30q: closed after %v, want %v", sent, took, want)
				}
			})
		}
		for _, sent := range [][]byte{nil, {0x81}, rawFrame(false, 1, []byte(`{"id":1,"conn`))} {
			c, _ := s.open(wire.JSON)
			c.raw(sent)
			all.Go(func() {
				if err := c.end(); !closedWith(err, closeStale.code) || !near(time.Since(begin), want) {
					t.Errorf("%q: %v after %v, want %d after %v", sent, err, time.Since(begin), closeStale.code, want)
				}
			})
		}
		c, _ := s.open(wire.JSON)
		c.fails(101, connectWith("")) // refused, and it does not go
		c.closes(closeStale.code)
		all.Wait()
	})
}

// A token ends when it says, whatever the client does meanwhile.
func TestTokenExpiry(t *testing.T) {
	noPings := func(o *Options) { o.Server.PingInterval = time.Hour }
	withClock(t, noPings, func(s *clockwork) {
		exp := time.Now().Add(time.Minute).Truncate(time.Second)
		end := exp.Add(s.opts.Auth.Leeway)
		minute := token(t, "busy", func(c *auth.Claims) { c.ExpiresAt = exp.Unix() })
		idle, _ := s.connect(wire.JSON, minute)
		idle.ok(subscribeTo("open:a"))
		busy, _ := s.connect(wire.Protobuf, minute)
		renewed, _ := s.connect(wire.JSON, minute)
		for time.Until(end) > 500*time.Millisecond {
			busy.ok(publishTo("open:a", `1`))
			time.Sleep(400 * time.Millisecond)
		}
		if r := renewed.ok(&protocol.Command{Refresh: &protocol.RefreshRequest{Token: token(t, "busy")}}).Refresh; !r.Expires || r.Ttl < 3000 {
			t.Errorf("refresh reply %v", r)
		}
		for name, c := range map[string]*tester{"busy": busy, "idle": idle} {
			c.closes(closeExpired.code)
			if late := time.Since(end); late < 0 || late > time.Second+2*wheelTick {
				t.Errorf("the %s one was closed %v after its end", name, late)
			}
		}
		renewed.ok(subscribeTo("open:a"))
		// A refresh that is too late, or another user's, ends the connection.
		if err := renewed.send(&protocol.Command{Refresh: &protocol.RefreshRequest{Token: minute}}); err != nil {
			t.Fatal(err)
		}
		renewed.closes(closeExpired.code)
		other, _ := s.connect(wire.JSON, token(t, "one"))
		if err := other.send(&protocol.Command{Refresh: &protocol.RefreshRequest{Token: token(t, "another")}}); err != nil {
			t.Fatal(err)
		}
		other.closes(closeInvalidToken.code)
	})
}

func TestSubscriptionTokenExpiry(t *testing.T) {
	withClock(t, nil, func(s *clockwork) {
		mint := func(user string, d time.Duration) string {
			tok, err := auth.MintSubscription([]byte(testSecret), auth.SubscriptionClaims{
				User: user, Channel: "private", ExpiresAt: time.Now().Add(d).Unix(), Info: []byte(`{"seat":7}`)})
			if err != nil {
				t.Fatal(err)
			}
			return tok
		}
		with := func(tok string) *protocol.Command {
			return &protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: "private", Token: tok}}
		}
		c, _ := s.connect(wire.JSON, token(t, "u"))
		c.fails(103, subscribeTo("private"))
		c.fails(103, with(mint("another", time.Minute)))
		c.fails(109, with(mint("u", -time.Minute)))
		if r := c.ok(with(mint("u", 12*time.Second))).Subscribe; !r.Expires || r.Ttl == 0 || r.Ttl > 12 {
			t.Errorf("subscribe reply %v", r)
		}
		time.Sleep(5 * time.Second)
		renew := &protocol.Command{SubRefresh: &protocol.SubRefreshRequest{Channel: "private", Token: mint("u", 12*time.Second)}}
		if r := c.ok(renew).SubRefresh; !r.Expires || r.Ttl == 0 {
			t.Errorf("sub_refresh reply %v", r)
		}
		end := time.Now().Truncate(time.Second).Add(12*time.Second + s.opts.Auth.Leeway)
		p, err := c.push()
		if err != nil || p.Unsubscribe == nil || p.Unsubscribe.Code != unsubExpired.code {
			t.Fatalf("push %v, %v, want unsubscribe 2501", p, err)
		}
		if late := time.Since(end); late < 0 || late > time.Second+2*wheelTick {
			t.Errorf("unsubscribed %v after the end", late)
		}
		c.ok(with(mint("u", time.Minute)))
	})
}

// A stopping server closes everybody with 3001, spread over the window, and
// begins no more commands.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(t)
		o.Server.DrainWindow = 4 * time.Second
		network := polltest.New(1, polltest.Faults{})
		w := &clockwork{t: t, listener: network.NewListener()}
		s, err := newServer(o, slog.New(slog.DiscardHandler), func(s *Server) { s.backend, s.listener = network, w.listener })
		if err != nil {
			t.Fatal(err)
		}
		w.testServer = &testServer{Server: s}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		until(t, "it serves", s.serving.Load)
		const n = 60
		var clients []*tester
		for range n {
			c, _ := w.connect(wire.JSON, token(t, "u"))
			clients = append(clients, c)
		}
		early, _ := w.open(wire.JSON)
		begin := time.Now()
		cancel()
		synctest.Wait()
		if err := clients[0].send(publishTo("open:a", `"too late"`)); err != nil {
			t.Fatal(err)
		}
		times := make(chan time.Duration, n)
		for _, c := range clients {
			go func() {
				if r, err := c.read(); !closedWith(err, closeShutdown.code) {
					t.Errorf("got %v, %v, want close 3001", r, err)
				}
				times <- time.Since(begin)
				c.conn.Close()
			}()
		}
		if err := early.end(); !closedWith(err, closeShutdown.code) || time.Since(begin) > time.Second {
			t.Errorf("before its connect command: %v after %v", err, time.Since(begin))
		}
		early.conn.Close()
		quarters := make([]int, 4)
		for range n {
			quarters[min(3, int(<-times/time.Second))]++
		}
		for i, got := range quarters {
			if got < n/20 {
				t.Errorf("%d of %d were closed in quarter %d of the window: %v", got, n, i+1, quarters)
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > o.Server.DrainWindow+time.Second {
			t.Errorf("it took %v", took)
		}
		if _, err := w.listener.Dial(); err == nil {
			t.Error("it still listens")
		} else if !isEOF(err) {
			t.Error(errors.Unwrap(err))
		}
	})
}

// sleepThrough sleeps for n rounds of ping and pong.
func (c *clockwork) sleepThrough(n time.Duration) {
	time.Sleep(n * (c.opts.Server.PingInterval + c.opts.Server.PongTimeout))
}
