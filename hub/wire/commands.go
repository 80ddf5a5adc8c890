package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/centrifugal/protocol"
	"github.com/centrifugal/protocol/cfjson"
)

// ErrCommandTooLarge is returned by [CommandReader.Next] for a command over the limit.
var ErrCommandTooLarge = errors.New("wire: command too large")

// CommandReader yields the commands of one message in order; see
// [Encoding.Commands].
type CommandReader struct {
	rest       []byte
	maxCommand int
	encoding   Encoding
}

// Commands returns a reader of the commands in payload, each of at most
// maxCommand bytes.
//
// The reader points into payload, commands never do: the decoders of the protocol
// module (0.23.1) copy every string and raw field, and a test holds them to it.
func (e Encoding) Commands(payload []byte, maxCommand int) CommandReader {
	return CommandReader{rest: payload, maxCommand: maxCommand, encoding: e}
}

// Rest returns the bytes that were not decoded yet, so that the rest of a
// message can be put aside and read later by another reader. It points into the
// payload.
func (r *CommandReader) Rest() []byte { return r.rest }

// Next returns the next command, io.EOF when there is none left,
// [ErrCommandTooLarge], or another error when the bytes are no command. After
// an error nothing is left. An empty command is a pong.
func (r *CommandReader) Next() (*protocol.Command, error) {
	b, err := r.split()
	if err != nil {
		r.rest = nil
		return nil, err
	}
	c := new(protocol.Command)
	if r.encoding == Protobuf {
		err = c.UnmarshalCF(b)
	} else {
		err = cfjson.Unmarshal(b, c, 0)
	}
	if err != nil {
		r.rest = nil
		return nil, fmt.Errorf("decode command: %w", err)
	}
	return c, nil
}

// split takes the bytes of the next command off the rest.
func (r *CommandReader) split() (b []byte, err error) {
	if r.encoding == Protobuf {
		return r.splitDelimited()
	}
	for len(r.rest) > 0 {
		b, r.rest, _ = bytes.Cut(r.rest, []byte{'\n'})
		if cfjson.SkipSpace(b, 0) == len(b) {
			continue // blank, whatever its length
		}
		if len(b) > r.maxCommand {
			return nil, ErrCommandTooLarge
		}
		return b, nil
	}
	return nil, io.EOF
}

func (r *CommandReader) splitDelimited() (b []byte, err error) {
	if len(r.rest) == 0 {
		return nil, io.EOF
	}
	length, n := binary.Uvarint(r.rest)
	if n <= 0 {
		return nil, errors.New("decode command: malformed length")
	}
	if length > uint64(max(r.maxCommand, 0)) {
		return nil, ErrCommandTooLarge
	}
	if length > uint64(len(r.rest)-n) {
		return nil, fmt.Errorf("decode command: %w", io.ErrUnexpectedEOF)
	}
	end := n + int(length)
	b, r.rest = r.rest[n:end], r.rest[end:]
	return b, nil
}
