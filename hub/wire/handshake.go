package wire

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/centrifugal/protocol/cfjson"
)

// Limits of a request's head; beyond them the answer is 431 (RFC 6585 section 5).
const (
	// MaxHead is the bytes of request line and header lines together.
	MaxHead = 16 << 10
	// MaxHeaderLines is the number of header lines.
	MaxHeaderLines = 100
)

// HandshakeError is the refusal of a request before its upgrade, to be sent by
// [AppendErrorResponse]. It never contains text of the request.
type HandshakeError struct {
	// Status is the HTTP status, 400 and up.
	Status int
	// Code is the stable name of the problem; empty means the status text in
	// snake case.
	Code string
	// Reason is for people: the problem's detail.
	Reason string
	// Header holds more header lines, such as Retry-After; may be nil.
	Header http.Header
}

func (e *HandshakeError) Error() string {
	return fmt.Sprintf("handshake: %s (%d)", e.Reason, e.Status)
}

func badRequest(reason string) *HandshakeError {
	return &HandshakeError{Status: http.StatusBadRequest, Reason: reason}
}

func headTooLarge() *HandshakeError {
	return &HandshakeError{Status: http.StatusRequestHeaderFieldsTooLarge, Reason: "request head too large"}
}

// headReader is what http.ReadRequest reads a head from.
type headReader struct {
	head bytes.Reader
	buf  *bufio.Reader
}

var headReaders = sync.Pool{New: func() any {
	hr := new(headReader)
	hr.buf = bufio.NewReader(&hr.head)
	return hr
}}

// ParseRequest parses the head of an HTTP/1 request at the head of b. n is the
// bytes it takes; bytes behind them are not looked at. With n == 0 and no error
// the head is incomplete. The request does not point into b, and its Body is
// empty whatever its head announces: a request with one is for net/http, which
// gets the bytes from the start.
//
// It is stricter than net/http, so that two readers of a request never see two
// requests: lines end in CRLF, names are tokens directly before their colon, no
// line is folded, Host is there once and well formed (RFC 9112 sections 2.2, 3.2,
// 5). err is a *[HandshakeError], as soon as the bytes that prove the fault are there.
func ParseRequest(b []byte) (r *http.Request, n int, err error) {
	n, host, refusal := scanHead(b)
	if refusal != nil {
		return nil, 0, refusal
	}
	if n == 0 {
		return nil, 0, nil
	}
	hr := headReaders.Get().(*headReader)
	hr.head.Reset(b[:n])
	hr.buf.Reset(&hr.head)
	r, err = http.ReadRequest(hr.buf)
	hr.head.Reset(nil)
	if err == nil {
		r.Body = http.NoBody // it would read from hr
	}
	headReaders.Put(hr)
	if err != nil {
		return nil, 0, badRequest("malformed request")
	}
	if !host && r.ProtoAtLeast(1, 1) { // two of them http.ReadRequest refuses
		return nil, 0, badRequest("a Host header is required")
	}
	if !isHost(r.Host) {
		return nil, 0, badRequest("malformed Host header")
	}
	return r, n, nil
}

// scanHead returns the length of the head that b begins with, 0 while it is
// incomplete, and whether it has a Host line.
func scanHead(b []byte) (n int, host bool, refusal *HandshakeError) {
	// A method begins with a letter; whoever speaks TLS here learns it at once.
	if len(b) > 0 && !isLetter(b[0]) {
		return 0, false, badRequest("not an HTTP request")
	}
	window := b[:min(len(b), MaxHead)]
	for lines := 0; ; lines++ {
		i := bytes.IndexByte(window[n:], '\n')
		if i < 0 && len(window) < MaxHead {
			return 0, false, nil
		}
		if i < 0 {
			return 0, false, headTooLarge()
		}
		line, crlf := bytes.CutSuffix(window[n:n+i], []byte{'\r'})
		if !crlf {
			return 0, false, badRequest("header lines must end in CRLF")
		}
		n += i + 1
		if len(line) == 0 {
			return n, host, nil // a head of nothing else fails to parse
		}
		if lines == 0 {
			continue // the request line
		}
		if lines > MaxHeaderLines {
			return 0, false, headTooLarge()
		}
		name, _, ok := bytes.Cut(line, []byte{':'})
		if !ok || !isToken(name) {
			return 0, false, badRequest("malformed header line")
		}
		host = host || bytes.EqualFold(name, []byte("Host"))
	}
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// isToken reports whether s is a token of RFC 9110 section 5.6.2.
func isToken(s []byte) bool {
	for _, c := range s {
		if !isLetter(c) && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return len(s) > 0
}

// isHost reports whether s has only characters of a host and a port (RFC 3986
// section 3.2.2); it may be empty.
func isHost(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isLetter(c) && (c < '0' || c > '9') && strings.IndexByte("!$%&'()*+,-.:;=[]_~", c) < 0 {
			return false
		}
	}
	return true
}

// Header names in the canonical form of package http.
const (
	headerKey      = "Sec-Websocket-Key"
	headerVersion  = "Sec-Websocket-Version"
	headerProtocol = "Sec-Websocket-Protocol"
)

// IsUpgrade reports whether r asks for the WebSocket protocol; whether it may
// have it is for [CheckUpgrade].
func IsUpgrade(r *http.Request) bool { return hasToken(r.Header["Upgrade"], "websocket") }

// CheckUpgrade checks an opening handshake by RFC 6455 section 4.2.1, Origin
// excepted, and selects the encoding: that of the first subprotocol the client
// offers which is known, JSON when none is. A request with a body is refused.
func CheckUpgrade(r *http.Request) (Encoding, *HandshakeError) {
	h := r.Header
	switch {
	case r.Method != http.MethodGet:
		return 0, &HandshakeError{Status: http.StatusMethodNotAllowed, Reason: "a WebSocket handshake is a GET",
			Header: http.Header{"Allow": {http.MethodGet}}}
	case r.ProtoMajor != 1 || r.ProtoMinor < 1:
		return 0, &HandshakeError{Status: http.StatusHTTPVersionNotSupported, Reason: "a WebSocket handshake needs HTTP/1.1"}
	case r.Host == "":
		return 0, badRequest("a Host header is required")
	case r.ContentLength != 0 || len(r.TransferEncoding) != 0:
		return 0, badRequest("a WebSocket handshake has no body")
	case !IsUpgrade(r):
		return 0, upgradeRequired("this address speaks WebSocket only")
	case !hasToken(h["Connection"], "upgrade"):
		return 0, badRequest("the Connection header must contain upgrade")
	case len(h[headerVersion]) != 1 || h[headerVersion][0] != "13":
		return 0, upgradeRequired("WebSocket version 13 is required")
	case len(h[headerKey]) != 1 || !validKey(h[headerKey][0]):
		return 0, badRequest("exactly one Sec-WebSocket-Key of 16 bytes in base64 is required")
	}
	e, _ := offered(r)
	return e, nil
}

// upgradeRequired is 426 with what RFC 9110 section 15.5.22 and RFC 6455
// section 4.4 want beside it.
func upgradeRequired(reason string) *HandshakeError {
	return &HandshakeError{Status: http.StatusUpgradeRequired, Reason: reason, Header: http.Header{
		"Connection":  {"Upgrade"},
		"Upgrade":     {"websocket"},
		headerVersion: {"13"},
	}}
}

// validKey reports whether key is the base64 of 16 bytes.
func validKey(key string) bool {
	var nonce [18]byte
	if len(key) != base64.StdEncoding.EncodedLen(16) {
		return false
	}
	n, err := base64.StdEncoding.Decode(nonce[:], []byte(key))
	return err == nil && n == 16
}

// subprotocols are the names of the encodings in the handshake.
var subprotocols = [Encodings]string{JSON: "centrifuge-json", Protobuf: "centrifuge-protobuf"}

// offered returns the encoding of the first known subprotocol that r offers,
// with its name; JSON and "" when there is none.
func offered(r *http.Request) (Encoding, string) {
	for _, line := range r.Header[headerProtocol] {
		for name := range strings.SplitSeq(line, ",") {
			name = strings.Trim(name, " \t")
			if i := slices.Index(subprotocols[:], name); i >= 0 {
				return Encoding(i), name
			}
		}
	}
	return JSON, ""
}

// hasToken reports whether one of the comma-separated lists has token in it,
// letter case aside.
func hasToken(lists []string, token string) bool {
	for _, list := range lists {
		for t := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.Trim(t, " \t"), token) {
				return true
			}
		}
	}
	return false
}

// AppendUpgradeResponse appends the 101 that answers r, which [CheckUpgrade] has
// passed with e. Only a subprotocol that the client offered is named.
func AppendUpgradeResponse(dst []byte, r *http.Request, e Encoding) []byte {
	const guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" // RFC 6455 section 1.3
	var buf [64]byte
	accept := sha1.Sum(append(append(buf[:0], r.Header.Get(headerKey)...), guid...))
	dst = append(dst, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "...)
	dst = base64.StdEncoding.AppendEncode(dst, accept[:])
	if is, name := offered(r); name != "" && is == e {
		dst = append(dst, "\r\nSec-WebSocket-Protocol: "...)
		dst = append(dst, name...)
	}
	return append(dst, "\r\n\r\n"...)
}

// AppendErrorResponse appends a complete HTTP/1.1 response that refuses a
// request with a problem document (RFC 9457) and closes the connection.
func AppendErrorResponse(dst []byte, e *HandshakeError) []byte {
	title := http.StatusText(e.Status)
	code := e.Code
	if code == "" {
		code = strings.ReplaceAll(strings.ToLower(title), " ", "_")
	}
	body := cfjson.AppendString([]byte(`{"type":"about:blank","title":`), title)
	body = strconv.AppendInt(append(body, `,"status":`...), int64(e.Status), 10)
	body = cfjson.AppendString(append(body, `,"detail":`...), e.Reason)
	body = cfjson.AppendString(append(body, `,"code":`...), code)
	body = append(body, '}')
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(e.Status), 10)
	dst = append(dst, ' ')
	dst = append(dst, title...)
	dst = append(dst, "\r\nConnection: close\r\nCache-Control: no-store\r\nContent-Type: application/problem+json\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	dst = append(dst, "\r\n"...)
	for _, name := range slices.Sorted(maps.Keys(e.Header)) {
		for _, value := range e.Header[name] {
			dst = append(dst, name...)
			dst = append(dst, ": "...)
			dst = append(dst, lineBreaks.Replace(value)...)
			dst = append(dst, "\r\n"...)
		}
	}
	dst = append(dst, "\r\n"...)
	return append(dst, body...)
}

// lineBreaks keeps a header value on its line.
var lineBreaks = strings.NewReplacer("\r", " ", "\n", " ")
