package hub

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/auth"
	"hub/hub/wire"
)

// Case G12: "expired, get another" is for genuine tokens. An expired forgery is
// forged wherever a token comes in: SDKs would ask for tokens for ever otherwise.
func TestExpiredForgeryIsForged(t *testing.T) {
	encodings(t, nil, func(t *testing.T, s *testServer, enc wire.Encoding) {
		const another = "another-secret-of-at-least-32-bytes"
		past := time.Now().Add(-time.Hour).Unix()
		forged := must(auth.Mint([]byte(another), auth.Claims{User: "u", ExpiresAt: past}))
		genuine := token(t, "u", func(c *auth.Claims) { c.ExpiresAt = past })
		sub := func(secret string) string {
			return must(auth.MintSubscription([]byte(secret), auth.SubscriptionClaims{User: "u", Channel: "private", ExpiresAt: past}))
		}

		c := s.open(t, enc)
		c.fails(errTokenExpired.Code, connectWith(genuine)) // what the others are not
		c = s.open(t, enc)
		if err := c.send(connectWith(forged)); err != nil {
			t.Fatal(err)
		}
		c.closes(closeInvalidToken.code)
		c = s.connect(t, enc, "u")
		if err := c.send(&protocol.Command{Refresh: &protocol.RefreshRequest{Token: forged}}); err != nil {
			t.Fatal(err)
		}
		c.closes(closeInvalidToken.code)
		c = s.connect(t, enc, "u")
		for tok, want := range map[string]uint32{sub(testSecret): errTokenExpired.Code, sub(another): errPermissionDenied.Code} {
			c.fails(want, &protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: "private", Token: tok}})
		}
	})
}

// Case G15: nothing that is published after a token's end reaches its connection,
// however busy that is; the ends of many tokens do not delay each other, nor
// anybody's events.
func TestNothingAfterTheTokenEnds(t *testing.T) {
	withClock(t, func(o *Options) { o.Server.PingInterval = time.Hour }, func(s *clockwork) {
		exp := time.Now().Add(5 * time.Second).Unix()
		end := time.Unix(s.endOf(exp), 0)
		short := token(t, "short", func(c *auth.Claims) { c.ExpiresAt = exp })
		const n = 40
		var clients []*tester
		for i := range n {
			c, _ := s.connect(wire.Encoding(i%2), short)
			c.ok(subscribeTo("open:a"))
			clients = append(clients, c)
		}
		stays, _ := s.connect(wire.JSON, token(t, "stays"))
		stays.ok(subscribeTo("open:a"))
		publisher, _ := s.connect(wire.JSON, token(t, "publisher"))
		published := 0
		for time.Now().Before(end.Add(3 * time.Second)) {
			publisher.ok(publishTo("open:a", strconv.FormatInt(time.Now().UnixMilli(), 10)))
			published++
			time.Sleep(50 * time.Millisecond)
		}
		last := end.Add(time.Second + 2*wheelTick) // exp is in whole seconds, and a tick late is in time
		for i, c := range clients {
			got := 0
			for {
				r, err := c.read()
				if closedWith(err, closeExpired.code) {
					break
				}
				if err != nil || r.Push == nil || r.Push.Pub == nil {
					t.Fatalf("connection %d got %v, %v, want publications and then 3005", i, r, err)
				}
				got++
				if at, err := strconv.ParseInt(string(r.Push.Pub.Data), 10, 64); err != nil || time.UnixMilli(at).After(last) {
					t.Fatalf("connection %d got what was published %v after its token's end (%v)", i, time.UnixMilli(at).Sub(end), err)
				}
			}
			if got < 50 {
				t.Errorf("connection %d got %d publications before its end", i, got)
			}
		}
		for offset := uint64(1); offset <= uint64(published); offset++ {
			if _, p := stays.publication(); p.Offset != offset {
				t.Fatalf("the one that stays got %d, want %d", p.Offset, offset)
			}
		}
	})
}

// Case G16: the Origin is checked where the upgrade is, by whichever route and
// way it comes.
func TestOriginOnEveryWay(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		for _, origin := range []string{"http://evil.test", "null", "https://hub.test", "http://hub.test:8080"} {
			for _, kept := range []bool{false, true} {
				for _, path := range []string{defaultSocketPath, defaultSocketPath + "?x=/healthz", "/v1/default/websocket"} {
					// The victim's cookie and its token change nothing.
					status := s.attemptAt(t, kept, path, "Origin: "+origin, "Cookie: session=1", "Authorization: Bearer "+token(t, "victim"))
					if status != http.StatusForbidden {
						t.Errorf("Origin %s at %s, kept %v: status %d, want 403", origin, path, kept, status)
					}
				}
			}
		}
		if n, _ := s.slots.Counts(); n != 0 {
			t.Errorf("%d slots are taken", n)
		}
	})
}

// attemptAt is attemptAfter for any path; it returns the status of the upgrade.
func (s *testServer) attemptAt(t *testing.T, kept bool, path string, lines ...string) int {
	t.Helper()
	c := &wsClient{conn: s.dial(t)}
	if kept {
		if _, err := c.exchange("GET /healthz HTTP/1.1\r\nHost: hub.test\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	r, err := c.exchange(upgradeRequest(path, lines...))
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode
}
