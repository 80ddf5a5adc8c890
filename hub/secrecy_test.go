package hub

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/gobwas/ws"

	"hub/auth"
	"hub/hub/wire"
)

// Wherever a client puts a token, good or bad, it comes out nowhere: not in the
// log at any level, not in an answer, a close reason or a metric.
func TestTokensStaySecret(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		var seen logText // all that the server says, to whomever
		o := testOptions(t)
		o.Server.Backend = backend
		o.Admin.Listen, o.Admin.Key = "127.0.0.1:0", testAdminKey
		s := startServer(t, o, func(s *Server) {
			s.log = slog.New(slog.NewJSONHandler(&seen, &slog.HandlerOptions{Level: slog.LevelDebug - 4}))
		})
		good := token(t, "u")
		expired := token(t, "u", func(c *auth.Claims) { c.ExpiresAt = 1 })
		tokens := []string{good, expired, good + "x", good[:len(good)/2], must(auth.Mint([]byte(strings.Repeat("y", 32)), auth.Claims{User: "u"}))}
		goodbye := rawFrame(true, ws.OpClose, nil)
		for _, tok := range tokens {
			for _, request := range requestsWith(tok) {
				c := &wsClient{conn: s.dial(t)}
				r, err := c.exchange(request)
				if err != nil {
					t.Fatalf("%.60q: %v", request, err)
				}
				fmt.Fprintln(&seen, r.Status, r.Header)
				if r.StatusCode != http.StatusSwitchingProtocols {
					body, _ := io.ReadAll(r.Body)
					fmt.Fprintf(&seen, "%s\n", body)
					continue
				}
				if p := r.Header.Get("Sec-WebSocket-Protocol"); p != "" && p != "centrifuge-protobuf" {
					t.Errorf("subprotocol %q was chosen", p)
				} else if p != "" {
					c.enc = wire.Protobuf
				}
				_ = c.send(connectWith("")) // the header's, or none
				_ = c.write(goodbye)
				c.tell(&seen)
			}
			for _, payload := range []string{
				`{"id":1,"connect":{"token":"` + tok + `"}}`,
				`{"id":1,"connect":{"token":"` + tok + `"`,
				`{"id":1,"connect":{"token":"` + tok + `","channels":7}}`,
				`{"id":1,"` + tok + `":{}}`,
				tok,
				`{"id":1,"connect":{"token":"` + good + `"}}` + "\n" + `{"id":2,"refresh":{"token":"` + tok + `"}}`,
				`{"id":1,"connect":{"token":"` + good + `"}}` + "\n" + `{"id":2,"subscribe":{"channel":"a","token":"` + tok + `"}}`,
				`{"id":1,"connect":{"token":"` + good + `"}}` + "\n" + `{"id":2,"sub_refresh":{"channel":"a","token":"` + tok + `"}}`,
			} {
				c := s.open(t, wire.JSON)
				c.raw(append(rawFrame(true, ws.OpText, []byte(payload)), goodbye...))
				c.tell(&seen)
			}
		}
		_, _, metrics := ask(t, s.AdminAddr(), "/metrics", map[string]string{"Authorization": "Bearer " + testAdminKey})
		fmt.Fprintln(&seen, metrics)
		s.stop()
		text := seen.String()
		if !strings.Contains(text, `"msg":"denied"`) || !strings.Contains(text, `"msg":"connected"`) {
			t.Fatal("the log is not at debug level: the check cannot fail")
		}
		for line := range strings.Lines(text) {
			for _, tok := range tokens {
				for part := range strings.SplitSeq(tok, ".") {
					if len(part) > 8 && strings.Contains(line, part[:len(part)-1]) {
						t.Fatalf("a part of a token is in %s", line)
					}
				}
			}
			for _, secret := range []string{testSecret, testAPIKey, testAdminKey} {
				if strings.Contains(line, secret) {
					t.Fatalf("a secret is in %s", line)
				}
			}
		}
	})
}

// tell writes down what the server says until the connection ends.
func (c *wsClient) tell(to io.Writer) {
	for {
		r, err := c.read()
		if fmt.Fprintln(to, r, err); err != nil {
			c.conn.Close()
			return
		}
	}
}

// requestsWith are requests that carry a token at every place of an HTTP request.
func requestsWith(tok string) (all []string) {
	with := func(line string, headers ...string) {
		all = append(all, line+" HTTP/1.1\r\nHost: hub.test\r\nConnection: close\r\n"+strings.Join(headers, "")+"\r\n")
	}
	for _, query := range []string{"?token=" + tok, "?access_token=" + tok} {
		all = append(all, upgradeRequest(defaultSocketPath+query), upgradeRequest("/v1/nowhere/websocket"+query),
			upgradeRequest(defaultSocketPath+query, "Origin: http://evil.test"),
			strings.Replace(upgradeRequest(defaultSocketPath+query), "Version: 13", "Version: 12", 1))
		for _, path := range []string{defaultSocketPath, "/nothing", "/healthz", "/v1/nowhere/api/info"} {
			with("GET " + path + query)
			with("POST "+path+query, "Content-Length: 0\r\n")
		}
	}
	with("GET /" + tok)
	with("POST /api/"+tok, "Content-Length: 0\r\n", "X-API-Key: "+testAPIKey+"\r\n")
	with("POST /api/info", "Content-Length: 0\r\n", "X-API-Key: "+tok+"\r\n")
	with("POST /api/info", "Content-Length: 0\r\n", "Authorization: apikey "+tok+"\r\n")
	return append(all,
		upgradeRequest(defaultSocketPath, "Sec-WebSocket-Protocol: centrifuge-protobuf, "+tok),
		upgradeRequest(defaultSocketPath, "Sec-WebSocket-Protocol: bearer, "+tok),
		upgradeRequest(defaultSocketPath, "Authorization: Bearer "+tok),
		upgradeRequest(defaultSocketPath, "Cookie: token="+tok))
}
