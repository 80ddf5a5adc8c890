package wire_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"hub/hub/wire"
)

const upgrade = "GET /connection/websocket?x=1 HTTP/1.1\r\n" +
	"Host: hub.example:8000\r\n" +
	"Upgrade: websocket\r\n" +
	"Connection: Upgrade\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
	"Sec-WebSocket-Version: 13\r\n" +
	"\r\n"

// status parses and checks b: 101, or the status of the refusal.
func status(t *testing.T, b string) (status int, e wire.Encoding, r *http.Request) {
	t.Helper()
	r, n, err := wire.ParseRequest([]byte(b))
	if err != nil {
		var h *wire.HandshakeError
		if !errors.As(err, &h) || r != nil || n != 0 {
			t.Fatalf("got %v, %d, %v", r, n, err)
		}
		return h.Status, 0, nil
	}
	if n == 0 {
		return 0, 0, nil
	}
	e, refusal := wire.CheckUpgrade(r)
	if refusal != nil {
		return refusal.Status, 0, r
	}
	return 101, e, r
}

func TestParseRequest(t *testing.T) {
	const behind = "\x81\x80\x00\x00\x00\x00"
	b := []byte(upgrade + behind)
	r, n, err := wire.ParseRequest(b)
	if err != nil || n != len(upgrade) {
		t.Fatalf("took %d of %d, %v", n, len(upgrade), err)
	}
	for i := range b {
		b[i] = 'Z' // the buffer is used again
	}
	if r.Method != "GET" || r.Host != "hub.example:8000" || r.URL.Path != "/connection/websocket" || r.URL.RawQuery != "x=1" {
		t.Errorf("got %s %q %v", r.Method, r.Host, r.URL)
	}
	if got := r.Header.Get("Sec-WebSocket-Key"); got != "dGhlIHNhbXBsZSBub25jZQ==" {
		t.Errorf("key is %q", got)
	}
	for i := range len(upgrade) {
		if r, n, err := wire.ParseRequest([]byte(upgrade[:i])); r != nil || n != 0 || err != nil {
			t.Fatalf("first %d bytes: got %v, %d, %v", i, r, n, err)
		}
	}
}

// A request with a body is left whole for net/http.
func TestParseRequestWithBody(t *testing.T) {
	const head = "POST /api/publish HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"
	r, n, err := wire.ParseRequest([]byte(head + "hello"))
	if err != nil || n != len(head) || r.ContentLength != 5 || wire.IsUpgrade(r) {
		t.Fatalf("took %d of %d, %v", n, len(head), err)
	}
	// The pooled reader serves the next request meanwhile.
	if _, _, err := wire.ParseRequest([]byte(upgrade)); err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(r.Body); err != nil || len(body) != 0 {
		t.Errorf("body is %q, %v", body, err)
	}
}

// The event loops parse at the same time.
func TestParseRequestConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			key := fmt.Sprintf("%022d==", i) // base64 of 16 bytes, another for each
			b := []byte(strings.Replace(upgrade, "dGhlIHNhbXBsZSBub25jZQ==", key, 1))
			for range 200 {
				if r, n, err := wire.ParseRequest(b); err != nil || n != len(b) || r.Header.Get("Sec-WebSocket-Key") != key {
					t.Errorf("got %v, %d, %v", r, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// The database's name comes as the client wrote it, for the one place that
// checks names.
func TestParseRequestKeepsThePath(t *testing.T) {
	b := strings.Replace(upgrade, "/connection/websocket", "/v1/..%2F..%2Fetc/websocket", 1)
	if _, _, r := status(t, b); r == nil || r.URL.EscapedPath() != "/v1/..%2F..%2Fetc/websocket" {
		t.Errorf("got %v", r)
	}
}

func TestHandshake(t *testing.T) {
	lines := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
	replace := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(upgrade) }
	with := func(extra string) string { return replace("\r\n\r\n", "\r\n"+lines(extra)+"\r\n\r\n") }
	tests := []struct {
		name    string
		request string
		want    int
	}{
		{"plain", upgrade, 101},
		{"lower-case names and upper-case values", replace("Host", "host", "Upgrade: websocket", "upgrade: WebSocket",
			"Connection: Upgrade", "connection: UPGRADE", "Sec-WebSocket-Key", "sec-websocket-key", "Sec-WebSocket-Version", "sec-websocket-version"), 101},
		{"lists over several lines", replace("Connection: Upgrade", "Connection: keep-alive,\tfoo\r\nConnection: x , Upgrade ", "Upgrade: websocket", "Upgrade: h2c, websocket"), 101},
		{"length of 0", with("Content-Length: 0"), 101},
		{"absolute target", replace("GET /", "GET http://hub.example/"), 101},
		{"HTTP/1.0 without Host", replace("HTTP/1.1", "HTTP/1.0", "Host: hub.example:8000\r\n", ""), 505},
		{"POST", replace("GET", "POST"), 405},
		{"HTTP/1.0", replace("HTTP/1.1", "HTTP/1.0"), 505},
		{"HTTP/2.0", replace("HTTP/1.1", "HTTP/2.0"), 505},
		{"HTTP/2 preface", lines("PRI * HTTP/2.0\n\nSM\n\n"), 400},
		{"no Host", replace("Host: hub.example:8000\r\n", ""), 400},
		{"absolute target without Host", replace("GET /", "GET http://hub.example/", "Host: hub.example:8000\r\n", ""), 400},
		{"empty Host", replace("hub.example:8000", ""), 400},
		{"malformed Host", replace("Host: hub.example:8000", "Host: a b"), 400},
		{"malformed Host in the target", replace("GET /", "GET http://a\xffb/"), 400},
		{"address as Host", replace("Host: hub.example:8000", "Host: [::1]:8000"), 101},
		{"two Hosts", with("Host: hub.example:8000"), 400},
		{"two Hosts, letter case apart", with("hOST: other"), 400},
		{"no Upgrade", replace("Upgrade: websocket\r\n", ""), 426},
		{"other Upgrade", replace("websocket\r\n", "websockets\r\n"), 426},
		{"no Connection", replace("Connection: Upgrade\r\n", ""), 400},
		{"Connection without upgrade", replace("Connection: Upgrade", "Connection: keep-alive"), 400},
		{"no key", replace("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""), 400},
		{"two keys", with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 400},
		{"key not base64", replace("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25j!Q=="), 400},
		{"key of 15 bytes", replace("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25j"), 400},
		{"key of 17 bytes", replace("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZWQ="), 400},
		{"empty key", replace("dGhlIHNhbXBsZSBub25jZQ==", ""), 400},
		{"no version", replace("Sec-WebSocket-Version: 13\r\n", ""), 426},
		{"version 8", replace("Version: 13", "Version: 8"), 426},
		{"two versions", with("Sec-WebSocket-Version: 8"), 426},
		{"body", with("Content-Length: 5") + "hello", 400},
		{"chunked body", with("Transfer-Encoding: chunked") + "0\r\n\r\n", 400},
		{"both kinds of body", with("Transfer-Encoding: chunked\nContent-Length: 3") + "0\r\n\r\n", 400},
		{"unknown transfer coding", with("Transfer-Encoding: xchunked"), 400},
		{"two lengths", with("Content-Length: 0\nContent-Length: 5"), 400},
		{"signed length", with("Content-Length: +5"), 400},
		{"space before the colon", with("Transfer-Encoding : chunked"), 400},
		{"folded line", with("X: a\n Transfer-Encoding: chunked"), 400},
		{"folded first line", replace("Host:", " Host:"), 400},
		{"line feed alone", replace("Upgrade: websocket\r\n", "Upgrade: websocket\n"), 400},
		{"line feeds alone at the end", replace("13\r\n\r\n", "13\n\n"), 400},
		{"carriage return inside a line", with("X: a\rTransfer-Encoding: chunked"), 400},
		{"NUL in a value", with("X: a\x00b"), 400},
		{"line without colon", with("nonsense"), 400},
		{"empty name", with(": x"), 400},
		{"name that is no token", with("a(b: x"), 400},
		{"leading blank line", "\r\n" + upgrade, 400},
		{"TLS hello", "\x16\x03\x01\x02\x00\x01", 400},
		{"target with a space", replace("GET /", "GET / "), 400},
		{"no target", replace("GET /connection/websocket?x=1 ", "GET "), 400},
		{"100 header lines", with(strings.TrimSuffix(strings.Repeat("X: y\n", 95), "\n")), 101},
		{"101 header lines", with(strings.TrimSuffix(strings.Repeat("X: y\n", 96), "\n")), 431},
		{"20,000 header lines, unfinished", strings.TrimSuffix(upgrade, "\r\n") + strings.Repeat("X: y\r\n", 20_000), 431},
		{"head of 16 KiB", with("X: " + strings.Repeat("y", wire.MaxHead-len(upgrade)-5)), 101},
		{"head of 16 KiB and 1", with("X: " + strings.Repeat("y", wire.MaxHead-len(upgrade)-4)), 431},
		{"one header of 2 MiB, unfinished", "GET / HTTP/1.1\r\nX: " + strings.Repeat("y", 2<<20), 431},
		{"request line of 16 KiB, unfinished", "GET /" + strings.Repeat("y", wire.MaxHead), 431},
		{"unfinished", "GET /ws HTTP/1.1\r\nHos", 0},
		{"nothing", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, _, _ := status(t, tt.request); got != tt.want {
				t.Errorf("status is %d, want %d", got, tt.want)
			}
		})
	}
}

func TestSubprotocols(t *testing.T) {
	tests := []struct {
		offer []string
		want  wire.Encoding
		named string
	}{
		{nil, wire.JSON, ""},
		{[]string{"centrifuge-protobuf"}, wire.Protobuf, "centrifuge-protobuf"},
		{[]string{"centrifuge-json"}, wire.JSON, "centrifuge-json"},
		{[]string{"other"}, wire.JSON, ""},
		{[]string{"Centrifuge-Protobuf"}, wire.JSON, ""},
		{[]string{"token.eyJhbGciOi, centrifuge-protobuf"}, wire.Protobuf, "centrifuge-protobuf"},
		{[]string{"other", " centrifuge-protobuf ,centrifuge-json"}, wire.Protobuf, "centrifuge-protobuf"},
		{[]string{"centrifuge-json, centrifuge-protobuf"}, wire.JSON, "centrifuge-json"},
	}
	for _, tt := range tests {
		b := upgrade
		for _, line := range tt.offer {
			b = strings.Replace(b, "Upgrade:", "Sec-WebSocket-Protocol: "+line+"\r\nUpgrade:", 1)
		}
		code, e, r := status(t, b)
		if code != 101 || e != tt.want {
			t.Errorf("%q: got %d %v, want %v", tt.offer, code, e, tt.want)
			continue
		}
		want := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" // RFC 6455 section 1.3
		if tt.named != "" {
			want += "Sec-WebSocket-Protocol: " + tt.named + "\r\n"
		}
		if got := string(wire.AppendUpgradeResponse([]byte("<"), r, e)); got != "<"+want+"\r\n" {
			t.Errorf("%q: response is %q", tt.offer, got)
		}
	}
}

func TestErrorResponse(t *testing.T) {
	e := &wire.HandshakeError{Status: 429, Reason: "too fast: \"<script>\"\r\n", Header: http.Header{
		"Retry-After": {"2"}, "X-Odd": {"a\r\nSet-Cookie: b"}}}
	b := wire.AppendErrorResponse([]byte("before"), e)
	b, ok := bytes.CutPrefix(b, []byte("before"))
	if !ok {
		t.Fatalf("dst is lost: %q", b)
	}
	if bytes.Contains(b, []byte("<script>")) {
		t.Errorf("markup is not escaped: %q", b)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.Body.Close() != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 429 || !resp.Close || resp.Header.Get("Retry-After") != "2" || resp.Header.Get("Set-Cookie") != "" ||
		resp.Header.Get("Content-Type") != "application/problem+json" || resp.ContentLength != int64(len(body)) {
		t.Errorf("got %v", resp)
	}
	var got map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"type": "about:blank", "title": "Too Many Requests", "status": 429.0, "detail": e.Reason, "code": "too_many_requests"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}

	e.Code = "connections"
	if b := wire.AppendErrorResponse(nil, e); !bytes.Contains(b, []byte(`"code":"connections"`)) {
		t.Errorf("no code in %q", b)
	}
}

func TestVersionAnswer(t *testing.T) {
	r, _, err := wire.ParseRequest([]byte(strings.Replace(upgrade, "Version: 13", "Version: 25", 1)))
	if err != nil {
		t.Fatal(err)
	}
	_, refusal := wire.CheckUpgrade(r)
	if refusal == nil {
		t.Fatal("version 25 is accepted")
	}
	b := wire.AppendErrorResponse(nil, refusal)
	for _, want := range []string{"HTTP/1.1 426 Upgrade Required\r\n", "Connection: close\r\n", "Connection: Upgrade\r\n",
		"Upgrade: websocket\r\n", "Sec-Websocket-Version: 13\r\n"} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("no %q in %q", want, b)
		}
	}
}

// Neither errors nor responses repeat what the client sent, a token in the
// address least of all.
func TestRefusalsDoNotEcho(t *testing.T) {
	for _, b := range []string{
		"GET /ws?token=eyJsecret HTTP/9.9x\r\nHost: h\r\n\r\n",
		"GET /ws%zz?token=eyJsecret HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /ws?token=eyJsecret HTTP/1.1\r\nHost: h\r\neyJsecret\r\n\r\n",
		"GET /ws?token=eyJsecret HTTP/1.1\r\nHost: h\r\nX: eyJsecret\x01\r\n\r\n",
		"eyJsecret\r\n\r\n",
	} {
		_, _, err := wire.ParseRequest([]byte(b))
		var refusal *wire.HandshakeError
		if !errors.As(err, &refusal) {
			t.Errorf("%q: error is %v", b, err)
			continue
		}
		if out := err.Error() + string(wire.AppendErrorResponse(nil, refusal)); strings.Contains(out, "secret") {
			t.Errorf("%q: echoed in %q", b, out)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(upgrade))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.1\nHost: h\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		r, n, err := wire.ParseRequest(b)
		if !bytes.Equal(b, before) {
			t.Fatal("the input was changed")
		}
		var refusal *wire.HandshakeError
		switch {
		case n < 0 || n > len(b) || n > wire.MaxHead:
			t.Fatalf("took %d of %d", n, len(b))
		case err != nil && (r != nil || n != 0 || !errors.As(err, &refusal)):
			t.Fatalf("got %v, %d, %v", r, n, err)
		case err == nil && (n != 0) != (r != nil):
			t.Fatalf("got %v, %d", r, n)
		case r == nil:
			return
		}
		// net/http sees the same request, ending at the same byte.
		br := bytes.NewReader(b)
		buffered := bufio.NewReaderSize(br, 16)
		same, err := http.ReadRequest(buffered)
		if err != nil {
			t.Fatalf("net/http refuses: %v", err)
		}
		if end := len(b) - br.Len() - buffered.Buffered(); end != n {
			t.Fatalf("took %d, net/http %d", n, end)
		}
		if same.Method != r.Method || same.RequestURI != r.RequestURI || same.Host != r.Host || fmt.Sprint(same.Header) != fmt.Sprint(r.Header) {
			t.Fatalf("got %v, net/http %v", r, same)
		}
		if e, refusal := wire.CheckUpgrade(r); refusal == nil {
			out := wire.AppendUpgradeResponse(nil, r, e)
			if resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(out)), r); err != nil || resp.StatusCode != 101 {
				t.Fatalf("response %q: %v", out, err)
			}
		}
	})
}

// browser is an upgrade as browsers send it.
const browser = "GET /connection/websocket HTTP/1.1\r\nHost: hub.example\r\nConnection: Upgrade\r\nPragma: no-cache\r\n" +
	"Cache-Control: no-cache\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36\r\n" +
	"Upgrade: websocket\r\nOrigin: https://hub.example\r\nSec-WebSocket-Version: 13\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n" +
	"Accept-Language: en-US,en;q=0.9\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
	"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nSec-WebSocket-Protocol: centrifuge-protobuf\r\n\r\n"

func BenchmarkHandshake(b *testing.B) {
	head := []byte(browser)
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		r, n, err := wire.ParseRequest(head)
		if n != len(head) || err != nil {
			b.Fatal(n, err)
		}
		e, refusal := wire.CheckUpgrade(r)
		if refusal != nil {
			b.Fatal(refusal)
		}
		out = wire.AppendUpgradeResponse(out[:0], r, e)
	}
}
