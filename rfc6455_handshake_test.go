package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// handshakeCase is an upgrade request that differs from a plain one.
type handshakeCase struct {
	name string
	// change says what to replace, in pairs.
	change []string
	// extra are more header lines, without the last line end.
	extra string
	// want are the statuses that are right. A loop that accepts sockets is stricter
	// than net/http, which reads requests elsewhere.
	want []int
	// header must be in the answer.
	header map[string]string
}

// handshakeCases are section 4.2.1, and what RFC 9112 says of requests.
func handshakeCases() []handshakeCase {
	const key = "dGhlIHNhbXBsZSBub25jZQ=="
	upgraded := map[string]string{"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Extensions": "", "Sec-WebSocket-Protocol": "",
		"Sec-WebSocket-Accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="} // section 1.3
	offered := func(name string) map[string]string {
		return map[string]string{"Sec-WebSocket-Protocol": name, "Sec-WebSocket-Accept": upgraded["Sec-WebSocket-Accept"]}
	}
	version := map[string]string{"Sec-WebSocket-Version": "13"}
	ok, bad, old, large := []int{101}, []int{400}, []int{426}, []int{431}
	lax := []int{101, 400}
	return []handshakeCase{
		{name: "plain", want: ok, header: upgraded},
		{name: "letter case", change: []string{"Upgrade: websocket", "uPGRADE: WebSocket", "Connection: Upgrade", "connection: upgrade",
			"Sec-WebSocket-Key", "sec-websocket-key", "Sec-WebSocket-Version", "SEC-WEBSOCKET-VERSION"}, want: ok, header: upgraded},
		{name: "lists", change: []string{"Connection: Upgrade", "Connection: keep-alive,\tUpgrade", "Upgrade: websocket", "Upgrade: h2c, websocket"}, want: ok, header: upgraded},
		{name: "extensions offered", extra: "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, x-other", want: ok, header: upgraded},
		{name: "unknown subprotocol", extra: "Sec-WebSocket-Protocol: chat", want: ok, header: upgraded},
		{name: "subprotocols", extra: "Sec-WebSocket-Protocol: chat, centrifuge-protobuf, centrifuge-json", want: ok, header: offered("centrifuge-protobuf")},
		{name: "subprotocols in lines", extra: "Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: centrifuge-json", want: ok, header: offered("centrifuge-json")},
		{name: "another key", change: []string{key, "AQIDBAUGBwgJCgsMDQ4PEC=="}, want: ok, header: map[string]string{"Sec-WebSocket-Accept": "OfS0wDaT5NoxF2gqm7Zj2YtetzM="}},

		{name: "POST", change: []string{"GET", "POST"}, want: []int{405}},
		{name: "HEAD", change: []string{"GET", "HEAD"}, want: []int{405}},
		{name: "get", change: []string{"GET", "get"}, want: []int{405}},
		{name: "OPTIONS", change: []string{"GET", "OPTIONS"}, want: []int{405}},
		{name: "HTTP/1.0", change: []string{"HTTP/1.1", "HTTP/1.0"}, want: []int{505}},
		{name: "HTTP/1.0 without host", change: []string{"HTTP/1.1\r\nHost: HOST", "HTTP/1.0"}, want: []int{505}},
		{name: "HTTP/2.0", change: []string{"HTTP/1.1", "HTTP/2.0"}, want: []int{505}},
		{name: "HTTP/1.2", change: []string{"HTTP/1.1", "HTTP/1.2"}, want: []int{101, 505}},
		{name: "no version of HTTP", change: []string{" HTTP/1.1", ""}, want: bad},
		{name: "other path", change: []string{"/connection/websocket", "/connection/other"}, want: []int{404}},
		{name: "unknown database", change: []string{"/connection/websocket", "/v1/none/websocket"}, want: []int{404}},
		{name: "database out of the way", change: []string{"/connection/websocket", "/v1/../default/websocket"}, want: []int{301, 307, 308, 404}},

		{name: "no Host", change: []string{"Host: HOST\r\n", ""}, want: bad},
		{name: "two Hosts", extra: "Host: other.test", want: bad},
		{name: "malformed Host", change: []string{"Host: HOST", "Host: a b"}, want: bad},
		{name: "no Upgrade", change: []string{"Upgrade: websocket\r\n", ""}, want: []int{400, 426}},
		{name: "other Upgrade", change: []string{"Upgrade: websocket", "Upgrade: websockets"}, want: []int{400, 426}},
		{name: "no Connection", change: []string{"Connection: Upgrade\r\n", ""}, want: bad},
		{name: "Connection without upgrade", change: []string{"Connection: Upgrade", "Connection: keep-alive"}, want: bad},
		{name: "no version", change: []string{"Sec-WebSocket-Version: 13\r\n", ""}, want: old, header: version},
		{name: "version 8", change: []string{"Version: 13", "Version: 8"}, want: old, header: version},
		{name: "version 013", change: []string{"Version: 13", "Version: 013"}, want: old, header: version},
		{name: "two versions", extra: "Sec-WebSocket-Version: 8", want: old, header: version},
		{name: "versions in a list", change: []string{"Version: 13", "Version: 13, 8"}, want: old, header: version},
		{name: "no key", change: []string{"Sec-WebSocket-Key: " + key + "\r\n", ""}, want: bad},
		{name: "empty key", change: []string{key, ""}, want: bad},
		{name: "two keys", extra: "Sec-WebSocket-Key: " + key, want: bad},
		{name: "key of 15 bytes", change: []string{key, "dGhlIHNhbXBsZSBub25j"}, want: bad},
		{name: "key of 17 bytes", change: []string{key, "dGhlIHNhbXBsZSBub25jZWQ="}, want: bad},
		{name: "key that is not base64", change: []string{key, "dGhlIHNhbXBsZSBub25j!Q=="}, want: bad},
		{name: "body", extra: "Content-Length: 3", want: bad},
		{name: "chunked body", extra: "Transfer-Encoding: chunked", want: bad},

		{name: "header injection by a bare CR", extra: "X-A: b\rX-Injected: c", want: bad},
		{name: "header injection in the subprotocol", extra: "Sec-WebSocket-Protocol: centrifuge-json\x00\x0bX-Injected: c", want: bad},
		{name: "header injection in the path", change: []string{"/connection/websocket", "/connection/websocket\rX-Injected:c"}, want: bad},
		{name: "escaped line end in the path", change: []string{"/connection/websocket", "/v1/x%0d%0aX-Injected:c/websocket"}, want: []int{404}},
		{name: "name with a space", extra: "X A: b", want: bad},
		{name: "space before the colon", extra: "X-A : b", want: bad},
		{name: "folded line", extra: "X-A: b\r\n X-B: c", want: lax},
		{name: "line feeds alone", change: []string{"\r\n", "\n"}, want: lax},
		{name: "not HTTP", change: []string{"GET ", "\x16\x03\x01"}, want: bad},
		{name: "too many header lines", extra: strings.TrimSuffix(strings.Repeat("X-A: b\r\n", 20_000), "\r\n"), want: large},
		{name: "a header too large", extra: "X-A: " + strings.Repeat("b", 200<<10), want: large},
		{name: "a path too large", change: []string{"/connection/websocket", "/connection/websocket?" + strings.Repeat("b", 200<<10)}, want: large},
	}
}

// handshakes runs the cases of the opening handshake, each request at once and in
// pieces, and those that are granted with a command in the same write.
func (s *rfcServer) handshakes(t *testing.T) {
	var all sync.WaitGroup
	for _, hc := range handshakeCases() {
		request := strings.ReplaceAll(strings.Replace(upgradeRequest("HOST"), "\r\n\r\n", "\r\n"+hc.extra+"\r\n\r\n", 1), "\r\n\r\n\r\n", "\r\n\r\n")
		request = strings.ReplaceAll(strings.NewReplacer(hc.change...).Replace(request), "HOST", s.addr)
		all.Go(func() {
			for _, step := range []int{len(request), 1 + len(request)/100} {
				if err := s.handshake(hc, request, step); err != nil {
					t.Errorf("handshake, %s, in writes of %d: %v", hc.name, step, err)
				}
			}
		})
	}
	all.Wait()
}

// handshake sends one request, and a command behind it.
func (s *rfcServer) handshake(hc handshakeCase, request string, step int) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	pipelined := rfcFrame(opFin|opPing, "behind the request")
	go func() { // an answer may come before the end
		for rest := request + string(pipelined); len(rest) > 0; {
			n := min(step+len(pipelined), len(rest))
			if _, err := io.WriteString(conn, rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
	}()
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	if !slices.Contains(hc.want, res.StatusCode) {
		return fmt.Errorf("status %d, want %d", res.StatusCode, hc.want)
	}
	for name, want := range hc.header {
		if got := strings.Join(res.Header[http.CanonicalHeaderKey(name)], "|"); got != want {
			return fmt.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if res.Header["X-Injected"] != nil {
		return fmt.Errorf("the answer has a header of the request: %v", res.Header)
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		op, payload, err := readRFCFrame(in)
		if err != nil || op != opPong || string(payload) != "behind the request" {
			return fmt.Errorf("behind the upgrade: frame %x %q, %v, want a pong", op, payload, err)
		}
		return nil
	}
	closeWrite(conn) // net/http waits for a body that was announced
	// What follows a refusal is not read as frames.
	if rest, err := io.ReadAll(in); strings.Contains(string(rest), "behind the request") || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("behind the refusal: %q, %v", rest, err)
	}
	return nil
}
