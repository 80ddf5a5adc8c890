// Package wire turns bytes into WebSocket messages and protocol commands, and
// replies and publications into bytes. It does no I/O and keeps no goroutine:
// an event loop hands it what it has read and writes what it is given.
//
// The way in is [ParseRequest] and [CheckUpgrade], then [Decoder.Next] for
// messages, then [Encoding.Commands] for the commands in a message. The way out
// is [AppendUpgradeResponse], then the Append methods of [Encoding], each of
// which appends one complete WebSocket frame that holds one reply.
//
// Nothing in the package is safe for concurrent use unless it says so; plain
// functions and the methods of Encoding share no state.
package wire

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// Status codes of RFC 6455 section 7.4.1 that this package decides on.
const (
	// StatusProtocolError is for bytes that break the rules of framing.
	StatusProtocolError = 1002
	// StatusNoStatus stands for an empty close frame; never on the wire.
	StatusNoStatus = 1005
	// StatusInvalidData is for text that is not UTF-8.
	StatusInvalidData = 1007
	// StatusMessageTooBig is for a message over the limit.
	StatusMessageTooBig = 1009
)

// CloseError says why a connection must be closed: the code and the reason for
// its close frame, see [AppendClose]. It never contains bytes of the client.
type CloseError struct {
	// Code is 1002, 1007 or 1009.
	Code uint16
	// Reason is a short constant text.
	Reason string
}

func (e *CloseError) Error() string {
	return fmt.Sprintf("websocket: %s (%d)", e.Reason, e.Code)
}

var errLongLength = protocolError("length in more bytes than it takes")

func protocolError(reason string) *CloseError {
	return &CloseError{Code: StatusProtocolError, Reason: reason}
}

// MessageKind says what a [Message] is; the zero value is no message.
type MessageKind uint8

// Kinds of messages: data first, then control frames.
const (
	Text   MessageKind = iota + 1 // UTF-8
	Binary                        // any bytes
	Ping                          // to be answered by a pong with the same payload
	Pong                          // needs no answer
	Close                         // see ParseClose
)

// Message is a complete data message or a control frame.
type Message struct {
	Kind MessageKind
	// Payload is unmasked; of a Text it is valid UTF-8. It points into the bytes
	// given to [Decoder.Next], so it is valid until they change, or, for a message
	// that came in fragments, into memory of its own. Its capacity is its length.
	Payload []byte
}

// Decoder assembles the messages of one client connection (RFC 6455 section
// 5). The zero value is ready. It holds memory only while a fragmented message
// is under way, at most the limit given to Next.
type Decoder struct {
	// fragments is the payload so far of the message under way, kind its kind; 0 when none is.
	fragments []byte
	kind      MessageKind
}

// Fragmented reports whether a message has begun whose last fragment has not
// come, so that the caller can put a deadline on it.
func (d *Decoder) Fragmented() bool { return d.kind != 0 }

// Next takes the first frame off b, unmasking it in place, and returns the
// number of bytes it took. limit is the largest data message in bytes.
//
// With n == 0 b holds no complete frame: call again with more bytes behind
// these. With n > 0 and m.Kind == 0 the frame was a fragment that completed no
// message. Control frames come out between the fragments of a message. Call Next
// until n is 0 before waiting for more bytes.
//
// err is a *[CloseError] as soon as the bytes that prove the fault are there: a
// frame that is too long fails by its header. The decoder must not be used
// after an error or a Close.
func (d *Decoder) Next(b []byte, limit int) (m Message, n int, err error) {
	h, size, err := d.header(b, limit)
	if err != nil || size == 0 || len(b)-size < int(h.Length) {
		return Message{}, 0, err
	}
	n = size + int(h.Length)
	payload := b[size:n:n]
	ws.Cipher(payload, h.Mask, 0)
	switch h.OpCode {
	case ws.OpPing:
		return Message{Ping, payload}, n, nil
	case ws.OpPong:
		return Message{Pong, payload}, n, nil
	case ws.OpClose:
		return Message{Close, payload}, n, nil
	case ws.OpText:
		m.Kind = Text
	case ws.OpBinary:
		m.Kind = Binary
	default: // continuation, the header check leaves nothing else
		m.Kind = d.kind
	}
	if !h.Fin {
		d.kind = m.Kind
		d.fragments = append(d.fragments, payload...)
		return Message{}, n, nil
	}
	if h.OpCode == ws.OpContinuation {
		payload = append(d.fragments, payload...)
		payload = payload[:len(payload):len(payload)]
		d.fragments, d.kind = nil, 0
	}
	if m.Kind == Text && !utf8.Valid(payload) {
		return Message{}, 0, &CloseError{Code: StatusInvalidData, Reason: "text is not valid UTF-8"}
	}
	m.Payload = payload
	return m, n, nil
}

// Need returns how many bytes the frame at the head of b takes in all, or 0
// when b does not tell yet, so that the caller can size its buffer. What it
// returns has passed the limit; err is as in [Decoder.Next].
func (d *Decoder) Need(b []byte, limit int) (n int, err error) {
	h, size, err := d.header(b, limit)
	if err != nil || size == 0 {
		return 0, err
	}
	return size + int(h.Length), nil
}

// header parses and checks the header at the head of b as far as it has come.
// size is its length in bytes, 0 while the payload's length is unknown; Mask is
// set only when b holds the whole header.
//
// A length must be in as few bytes as it takes (RFC 6455 section 5.2).
func (d *Decoder) header(b []byte, limit int) (h ws.Header, size int, err error) {
	if len(b) < 2 {
		return h, 0, nil
	}
	h = ws.Header{
		Fin:    b[0]&0x80 != 0,
		Rsv:    b[0] >> 4 & 0x7,
		OpCode: ws.OpCode(b[0] & 0xf),
		Masked: b[1]&0x80 != 0,
		Length: int64(b[1] & 0x7f),
	}
	state := ws.StateServerSide
	if d.kind != 0 {
		state = state.Set(ws.StateFragmented)
	}
	// 126 and 127 announce more bytes of length: too much for a control frame.
	if err := ws.CheckHeader(h, state); err != nil {
		return h, 0, protocolError(err.Error())
	}
	size = 2
	switch h.Length {
	case 126:
		if len(b) < 4 {
			return h, 0, nil
		}
		h.Length = int64(binary.BigEndian.Uint16(b[2:]))
		if h.Length < 126 {
			return h, 0, errLongLength
		}
		size = 4
	case 127:
		if len(b) < 10 {
			return h, 0, nil
		}
		length := binary.BigEndian.Uint64(b[2:])
		if length>>63 != 0 {
			return h, 0, protocolError(ws.ErrHeaderLengthMSB.Error())
		}
		if length>>16 == 0 {
			return h, 0, errLongLength
		}
		h.Length = int64(length)
		size = 10
	}
	if h.OpCode.IsData() && h.Length > int64(limit-len(d.fragments)) {
		return h, 0, &CloseError{Code: StatusMessageTooBig, Reason: "message too big"}
	}
	if size += len(h.Mask); len(b) >= size {
		copy(h.Mask[:], b[size-len(h.Mask):])
	}
	return h, size, nil
}

// ParseClose returns the code and reason of a close frame's payload. An empty
// payload is 1005 (RFC 6455 section 7.1.5), which the answer must not carry:
// [AppendClose] with it makes an empty close frame. err is a *[CloseError].
func ParseClose(payload []byte) (code uint16, reason string, err error) {
	if len(payload) == 0 {
		return StatusNoStatus, "", nil
	}
	if len(payload) == 1 {
		return 0, "", protocolError("close frame of one byte")
	}
	code = binary.BigEndian.Uint16(payload)
	if !validCloseCode(code) {
		return 0, "", protocolError("invalid close code")
	}
	if !utf8.Valid(payload[2:]) {
		return 0, "", &CloseError{Code: StatusInvalidData, Reason: "close reason is not valid UTF-8"}
	}
	return code, string(payload[2:]), nil
}

// validCloseCode reports whether code may stand in a close frame: those
// registered with IANA under RFC 6455 section 7.4, and the ranges for libraries
// and applications. 1004, 1005, 1006 and 1015 are reserved.
func validCloseCode(code uint16) bool {
	switch {
	case code >= 1000 && code <= 1003, code >= 1007 && code <= 1014, code >= 3000 && code <= 4999:
		return true
	}
	return false
}

const (
	// maxFrameHeader is the length of the longest header of an unmasked frame.
	maxFrameHeader = 10
	// maxCloseReason is what a control frame leaves beside the code.
	maxCloseReason = ws.MaxControlFramePayloadSize - 2
)

// AppendFrame appends a complete, unmasked frame. The payload of a control
// frame is at most 125 bytes, as that of a ping that is answered always is.
func AppendFrame(dst []byte, op ws.OpCode, payload []byte) []byte {
	return append(appendFrameHeader(dst, op, len(payload)), payload...)
}

func appendFrameHeader(dst []byte, op ws.OpCode, length int) []byte {
	const fin = 0x80
	dst = append(dst, fin|byte(op))
	switch {
	case length <= 125:
		return append(dst, byte(length))
	case length <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, 126), uint16(length))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 127), uint64(length))
	}
}

// openFrame makes room for the header of a frame whose length is not known
// yet; the payload is appended behind it.
func openFrame(dst []byte) (out []byte, mark int) {
	var header [maxFrameHeader]byte
	return append(dst, header[:]...), len(dst)
}

// closeFrame writes the header at mark and moves the payload up to it.
func closeFrame(dst []byte, mark int, op ws.OpCode) []byte {
	payload := dst[mark+maxFrameHeader:]
	return append(appendFrameHeader(dst[:mark], op, len(payload)), payload...)
}

// AppendClose appends a close frame. The reason is made valid UTF-8 and cut, at a
// character, to the 123 bytes that fit. Code 0, and any that must not be on the
// wire (1005, 1006, 1015, unassigned ones), makes an empty close frame.
func AppendClose(dst []byte, code uint16, reason string) []byte {
	if !validCloseCode(code) {
		return appendFrameHeader(dst, ws.OpClose, 0)
	}
	reason = strings.ToValidUTF8(reason, "\uFFFD")
	if len(reason) > maxCloseReason {
		end := maxCloseReason
		for !utf8.RuneStart(reason[end]) {
			end--
		}
		reason = reason[:end]
	}
	dst = appendFrameHeader(dst, ws.OpClose, 2+len(reason))
	dst = binary.BigEndian.AppendUint16(dst, code)
	return append(dst, reason...)
}
