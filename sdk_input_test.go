package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
	"github.com/coder/websocket"

	"hub/auth"
)

// badInput is what one connection sends and what becomes of it.
type badInput struct {
	name string
	// fresh: the connection has not sent its connect command.
	fresh bool
	// send is one message, raw are bytes behind the library's back.
	send string
	raw  []byte
	// error is the code of the reply to command 7, close that of the close frame;
	// the connection goes on where there is only an error.
	error uint32
	close websocket.StatusCode
}

// TestBadInput: whatever a connection sends gets the documented code, and its
// neighbour in the same room notices nothing.
func TestBadInput(t *testing.T) {
	s := startSDKServer(t)
	const room = "room:bad"
	bystander := newSocket(t, s.url(""), s.token("bystander"), socketOptions{})
	bystander.subscribe(2, room)

	for _, c := range append(badFrames(s), append(badTokens(s), badCommands()...)...) {
		t.Run(c.name, func(t *testing.T) { c.run(t, s) })
	}
	bystander.undisturbed(s, room)
}

// badFrames are messages that are no commands: the connection ends.
func badFrames(s *sdkServer) []badInput {
	return []badInput{
		{name: "not JSON", send: `hello`, close: 3501},
		{name: "not JSON before connect", fresh: true, send: `hello`, close: 3501},
		{name: "half an object", send: `{"id":7,"publish":`, close: 3501},
		{name: "array", send: `[]`, close: 3501},
		{name: "two objects in a line", send: `{"id":7,"history":{"channel":"room:a"}}{}`, close: 3501},
		{name: "wrong type of id", send: `{"id":"x","connect":{}}`, close: 3501},
		{name: "negative id", send: `{"id":-1,"history":{}}`, close: 3501},
		{name: "large id", send: `{"id":1e99,"history":{}}`, close: 3501},
		{name: "wrong type of channel", send: `{"id":7,"subscribe":{"channel":5}}`, close: 3501},
		{name: "wrong type of command", send: `{"id":7,"subscribe":[1]}`, close: 3501},
		{name: "no id", send: `{"subscribe":{"channel":"room:a"}}`, close: 3501},
		{name: "no command", send: `{"id":7}`, close: 3501},
		{name: "unknown command", send: `{"id":7,"dance":{}}`, close: 3501},
		{name: "connect twice", send: `{"id":7,"connect":{"token":"` + s.token("u") + `"}}`, close: 3501},
		{name: "command before connect", fresh: true, send: `{"id":7,"subscribe":{"channel":"room:a"}}`, close: 3501},
		{name: "large command", send: `{"id":7,"publish":{"channel":"room:a","data":"` + strings.Repeat("x", 70<<10) + `"}}`, close: 3501},
		{name: "large message", send: strings.Repeat(" ", 300<<10), close: 1009},
		{name: "not UTF-8", raw: masked(0x81, "\xff\xfe"), close: 1007},
		{name: "not UTF-8, in a command", raw: masked(0x81, "{\"id\":7,\"rpc\":{\"method\":\"\xff\"}}"), close: 1007},
		{name: "no mask", raw: []byte{0x81, 2, '{', '}'}, close: 1002},
		{name: "reserved bit", raw: masked(0xC1, "{}"), close: 1002},
		{name: "reserved opcode", raw: masked(0x83, "{}"), close: 1002},
		{name: "continuation of nothing", raw: masked(0x80, "{}"), close: 1002},
		{name: "fragmented ping", raw: masked(0x09, "x"), close: 1002},
		{name: "length with the top bit", raw: []byte{0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5}, close: 1002},
		{name: "length of an exabyte", raw: []byte{0x82, 0xFF, 0x10, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5}, close: 1009},
	}
}

// badTokens are those with which nobody connects or goes on.
func badTokens(s *sdkServer) []badInput {
	forged := s.token("u")
	forged = forged[:len(forged)-3] + "AAA"
	unsigned := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + strings.Split(s.token("u"), ".")[1] + "."
	connect := func(token string) string { return fmt.Sprintf(`{"id":7,"connect":{"token":%q}}`, token) }
	return []badInput{
		{name: "no token", fresh: true, send: connect(""), error: 101},
		{name: "expired token", fresh: true, send: connect(s.mint(auth.Claims{User: "u", ExpiresAt: time.Now().Unix() - 60})), error: 109},
		{name: "forged token", fresh: true, send: connect(forged), close: 3500},
		{name: "unsigned token", fresh: true, send: connect(unsigned), close: 3500},
		{name: "another database's token", fresh: true, send: connect(s.mint(auth.Claims{User: "u", Databases: []string{"game"}})), close: 3500},
		{name: "subscription token", fresh: true, send: connect(s.mintSubscription("u", "room:a", time.Hour)), close: 3500},
		{name: "not a token", fresh: true, send: connect("..."), close: 3500},
		{name: "long token", fresh: true, send: connect(strings.Repeat("a.b.", 10<<10)), close: 3500},
		{name: "user without a name", fresh: true, send: connect(s.mint(auth.Claims{})), close: 3500},
		{name: "refresh as another user", send: `{"id":7,"refresh":{"token":"` + s.token("v") + `"}}`, close: 3500},
		{name: "refresh with an expired token", send: `{"id":7,"refresh":{"token":"` +
			s.mint(auth.Claims{User: "u", ExpiresAt: time.Now().Unix() - 60}) + `"}}`, close: 3005},
		{name: "refresh without a token", send: `{"id":7,"refresh":{}}`, error: 107},
	}
}

// badCommands are refused one by one: the connection goes on.
func badCommands() []badInput {
	return []badInput{
		{name: "unknown rpc", send: `{"id":7,"rpc":{"method":"dance"}}`, error: 104},
		{name: "rpc without data", send: `{"id":7,"rpc":{"method":"publish"}}`, error: 107},
		{name: "rpc with a wrong type", send: `{"id":7,"rpc":{"method":"publish","data":{"room":1}}}`, error: 107},
		{name: "rpc with an unknown field", send: `{"id":7,"rpc":{"method":"publish","data":{"room":"room:a","data":1,"x":1}}}`, error: 107},
		{name: "rpc with a long id", send: `{"id":7,"rpc":{"method":"publish","data":{"room":"room:a","data":1,"id":"` + strings.Repeat("i", 256) + `"}}}`, error: 107},
		{name: "publish nothing", send: `{"id":7,"publish":{"channel":"room:a"}}`, error: 107},
		{name: "publish to no room", send: `{"id":7,"publish":{"data":1}}`, error: 107},
		{name: "map publication", send: `{"id":7,"publish":{"channel":"room:a","data":1,"key":"k"}}`, error: 107},
		{name: "deep nesting", send: `{"id":7,"publish":{"channel":"room:a","data":` + strings.Repeat("[", 30<<10) + strings.Repeat("]", 30<<10) + `}}`, error: 107},
		{name: "subscribe twice", send: `{"id":6,"subscribe":{"channel":"room:a"}}` + "\n" + `{"id":7,"subscribe":{"channel":"room:a"}}`, error: 105},
		{name: "unknown namespace", send: `{"id":7,"subscribe":{"channel":"nosuch:a"}}`, error: 102},
		{name: "no namespace", send: `{"id":7,"subscribe":{"channel":"a"}}`, error: 102},
		{name: "room with a control character", send: `{"id":7,"subscribe":{"channel":"room:\u0000"}}`, error: 107},
		{name: "room with #", send: `{"id":7,"subscribe":{"channel":"room:a#1"}}`, error: 107},
		{name: "room with $", send: `{"id":7,"subscribe":{"channel":"$room:a"}}`, error: 107},
		{name: "long room", send: `{"id":7,"subscribe":{"channel":"room:` + strings.Repeat("r", 251) + `"}}`, error: 107},
		{name: "no room", send: `{"id":7,"subscribe":{}}`, error: 107},
		{name: "tags filter", send: `{"id":7,"subscribe":{"channel":"room:a","tf":{"op":"eq"}}}`, error: 107},
		{name: "map subscription", send: `{"id":7,"subscribe":{"channel":"room:a","type":1}}`, error: 107},
		{name: "no permission", send: `{"id":7,"subscribe":{"channel":"closed:a"}}`, error: 103},
		{name: "position from nowhere, strictly", send: `{"id":7,"subscribe":{"channel":"room:a","recover":true,"epoch":"x","offset":5,"flag":2}}`, error: 112},
		{name: "reverse history since 0", send: `{"id":7,"history":{"channel":"room:a","limit":1,"reverse":true,"since":{"offset":0,"epoch":""}}}`, error: 107},
		{name: "history where there is none", send: `{"id":7,"history":{"channel":"live:a"}}`, error: 108},
		{name: "presence where there is none", send: `{"id":7,"presence":{"channel":"short:a"}}`, error: 108},
		{name: "presence of an unknown room", send: `{"id":7,"presence_stats":{"channel":"nosuch:a"}}`, error: 102},
		{name: "sub_refresh of nothing", send: `{"id":7,"sub_refresh":{"channel":"room:z","token":"x"}}`, error: 103},
	}
}

// undisturbed fails unless the socket is connected and the next thing it gets is
// what is published now.
func (b *socket) undisturbed(s *sdkServer, room string) {
	b.t.Helper()
	offset, err := s.publish("", room, "still here")
	if err != nil {
		b.t.Fatal(err)
	}
	r := b.next()
	if r.Push == nil || r.Push.Pub == nil || r.Push.Pub.Offset != offset || string(r.Push.Pub.Data) != `"still here"` {
		b.t.Errorf("the bystander got %v", r)
	}
	s.healthy()
}

func (c *badInput) run(t *testing.T, s *sdkServer) {
	token := s.token("u")
	if c.fresh {
		token = ""
	}
	conn := newSocket(t, s.url(""), token, socketOptions{})
	if c.raw != nil {
		if _, err := conn.tcp.Write(c.raw); err != nil {
			t.Fatal(err)
		}
	} else {
		conn.send(c.send)
	}
	if c.close != 0 {
		if code, reason, before := conn.closed(); code != c.close {
			t.Errorf("closed with %d %s after %q, want %d", code, reason, before, c.close)
		}
		return
	}
	r := conn.reply(7)
	if r.Error == nil || r.Error.Code != c.error {
		t.Fatalf("got %v, want error %d", r, c.error)
	}
	if c.fresh { // the client is to close; what it says is not heard
		return
	}
	conn.send(`{"id":8,"history":{"channel":"room:a"}}`)
	if r := conn.reply(8); r.Error != nil {
		t.Errorf("the connection does not go on: %v", r.Error)
	}
}

// masked is a client's frame with a first byte of the test's choice.
func masked(first byte, payload string) []byte {
	mask := [4]byte{1, 2, 3, 4}
	b := append([]byte{first, 0x80 | byte(len(payload))}, mask[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^mask[i%4])
	}
	return b
}

// TestBadProtobuf is TestBadInput for the binary protocol.
func TestBadProtobuf(t *testing.T) {
	s := startSDKServer(t)
	bystander := newSocket(t, s.url(""), s.token("bystander"), socketOptions{})
	bystander.subscribe(2, "room:bad")
	for name, message := range map[string][]byte{
		"noise":                        {0xff, 0xff, 0xff, 0xff},
		"length without end":           {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80},
		"length beyond the message":    {0x7f, 0x08, 0x01},
		"length of 2^63":               {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"wrong wire type":              {3, 0x22, 0xff, 0x01},
		"JSON":                         []byte(`{"id":1,"connect":{}}`),
		"field of a command cut short": {4, 0x08, 0x01, 0x22, 0x7f},
	} {
		t.Run(name, func(t *testing.T) {
			c := newSocket(t, s.url(""), "", socketOptions{protobuf: true})
			if c.Subprotocol() != "centrifuge-protobuf" {
				t.Fatalf("subprotocol %q", c.Subprotocol())
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := c.Write(ctx, websocket.MessageBinary, message); err != nil {
				t.Fatal(err)
			}
			if code, reason, _ := c.closed(); code != 3501 {
				t.Errorf("closed with %d %s, want 3501", code, reason)
			}
		})
	}
	bystander.undisturbed(s, "room:bad")
}

// TestRefusedConnect: after a failed connect the rest of the frame is not
// answered, and the client is left to close.
func TestRefusedConnect(t *testing.T) {
	s := startSDKServer(t, `handshake_timeout = "1s"`)
	c := newSocket(t, s.url(""), "", socketOptions{})
	c.send(`{"id":1,"connect":{}}
{"id":2,"subscribe":{"channel":"room:a"}}
{"id":3,"publish":{"channel":"room:a","data":1}}`)
	code, _, before := c.closed()
	if code != 3502 || len(before) != 1 {
		t.Errorf("closed with %d after %q, want 3502 after one reply", code, before)
	}
	r := new(protocol.Reply)
	if err := json.Unmarshal(before[0], r); err != nil || r.Id != 1 || r.Error == nil || r.Error.Code != 101 {
		t.Errorf("got %s, want error 101 to command 1", before[0])
	}
	if n, err := s.publish("", "room:a", 1); err != nil || n != 1 {
		t.Errorf("offset %d, %v: the refused client's publication is there", n, err)
	}
}

// TestBadRequests: what the HTTP side refuses, and how.
func TestBadRequests(t *testing.T) {
	s := startSDKServer(t)
	type answer struct {
		Code  string
		Error *apiFailure
	}
	ask := func(method, path, key, body string, header ...string) (int, answer) {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+s.addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			r.Header.Set("X-API-Key", key)
		}
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		res, err := apiClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		var a answer
		_ = json.Unmarshal(text, &a)
		return res.StatusCode, a
	}
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	for _, c := range []struct {
		name, method, path, key, body string
		header                        []string
		status                        int
		error                         uint32
	}{
		{"no key", "POST", "/api/info", "", `{}`, nil, 401, 0},
		{"wrong key", "POST", "/api/info", sdkAPIKey + "x", `{}`, nil, 401, 0},
		{"the admin's key", "POST", "/api/info", sdkAdminKey, `{}`, nil, 401, 0},
		{"unknown method", "POST", "/api/dance", sdkAPIKey, `{}`, nil, 404, 0},
		{"unknown database", "POST", "/v1/nosuch/api/info", sdkAPIKey, `{}`, nil, 404, 0},
		{"not JSON", "POST", "/api/publish", sdkAPIKey, `{`, nil, 200, 107},
		{"wrong type", "POST", "/api/publish", sdkAPIKey, `{"channel":1}`, nil, 200, 107},
		{"unsupported field", "POST", "/api/publish", sdkAPIKey, `{"channel":"room:a","data":1,"skip_history":true}`, nil, 200, 107},
		{"no data", "POST", "/api/publish", sdkAPIKey, `{"channel":"room:a"}`, nil, 200, 107},
		{"bad name", "POST", "/api/publish", sdkAPIKey, `{"channel":"room:#","data":1}`, nil, 200, 107},
		{"unknown namespace", "POST", "/api/publish", sdkAPIKey, `{"channel":"nosuch:a","data":1}`, nil, 200, 102},
		{"large data", "POST", "/api/publish", sdkAPIKey, `{"channel":"room:a","data":"` + strings.Repeat("x", 70<<10) + `"}`, nil, 200, 106},
		{"large request", "POST", "/api/publish", sdkAPIKey, strings.Repeat(" ", 17<<20), nil, 413, 0},
		{"socket of an unknown database", "GET", "/v1/nosuch/websocket", "", ``, upgrade, 404, 0},
		{"socket of a path for a name", "GET", "/v1/..%2Fdefault/websocket", "", ``, upgrade, 404, 0},
		{"foreign origin", "GET", "/connection/websocket", "", ``, append(upgrade, "Origin", "https://evil.example"), 403, 0},
		{"null origin", "GET", "/connection/websocket", "", ``, append(upgrade, "Origin", "null"), 403, 0},
		{"no upgrade", "GET", "/connection/websocket", "", ``, nil, 426, 0},
	} {
		status, a := ask(c.method, c.path, c.key, c.body, c.header...)
		var code uint32
		if a.Error != nil {
			code = a.Error.Code
		}
		if status != c.status || code != c.error {
			t.Errorf("%s: status %d, error %v (code %q), want %d and %d", c.name, status, a.Error, a.Code, c.status, c.error)
		}
	}
	s.healthy()
}
