package wire

import (
	"bytes"
	"errors"

	"github.com/centrifugal/protocol/cfjson"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gobwas/ws"
)

// Encoding is the form in which a connection's commands and replies travel.
// Its methods are safe for concurrent use.
type Encoding uint8

// The encodings; Encodings is their number, for arrays indexed by one.
const (
	JSON      Encoding = 0
	Protobuf  Encoding = 1
	Encodings          = 2
)

// String returns "json" or "protobuf".
func (e Encoding) String() string {
	if e == Protobuf {
		return "protobuf"
	}
	return "json"
}

// opCode is the kind of the frames that carry e.
func (e Encoding) opCode() ws.OpCode {
	if e == Protobuf {
		return ws.OpBinary
	}
	return ws.OpText
}

// ErrInvalidJSON is returned when a raw field that must be embedded in JSON is
// no JSON value.
var ErrInvalidJSON = errors.New("wire: invalid JSON data")

// MaxDepth is how deep [ValidJSON] lets arrays and objects nest. A publication
// is read by whatever parsers the subscribers have, inside of up to six levels of
// the protocol's own; those give up at 255 (Gson), 512 (Foundation) or about
// 1,000 levels (SQLite, Python), and a client that cannot read a publication
// would meet it again at each recovery.
const MaxDepth = 128

// ValidJSON reports whether data is one JSON value as RFC 8259 defines it, in
// valid UTF-8 and no deeper than [MaxDepth], with or without white space around it.
// No object has a name twice: parsers differ in which of the values they take.
func ValidJSON(data []byte) bool {
	// Escapes of half a surrogate pair may stand: people's cut messages have them.
	if !cfjson.Valid(data) || !jsontext.Value(data).IsValid(jsontext.AllowInvalidUTF8(true)) {
		return false
	}
	if bytes.Count(data, []byte{'{'})+bytes.Count(data, []byte{'['}) <= MaxDepth {
		return true // whichever of them stand in strings
	}
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

// StripNewlines returns data without its line feeds: data itself when it has
// none, a copy otherwise. In valid JSON they only stand between tokens, and
// the protocol separates messages by them.
func StripNewlines(data []byte) []byte {
	if bytes.IndexByte(data, '\n') < 0 {
		return data
	}
	return bytes.ReplaceAll(data, []byte{'\n'}, nil)
}
