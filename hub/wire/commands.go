package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

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
// STRINGS OF JSON COMMANDS POINT INTO PAYLOAD. They change when it does: call
// [OwnCommand] before the payload's buffer is used again if any string of the
// command is kept or handed to another goroutine. Raw fields are copies.
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

// OwnCommand makes c independent of the payload it was decoded from: its
// strings are cloned. Protobuf commands never need it.
func OwnCommand(c *protocol.Command) {
	if r := c.Connect; r != nil {
		own(&r.Token, &r.Name, &r.Version, &r.Profile, &r.Dict)
		if r.Subs != nil {
			subs := make(map[string]*protocol.SubscribeRequest, len(r.Subs))
			for room, s := range r.Subs {
				ownSubscribe(s)
				subs[strings.Clone(room)] = s
			}
			r.Subs = subs
		}
		if r.Headers != nil {
			headers := make(map[string]string, len(r.Headers))
			for name, value := range r.Headers {
				headers[strings.Clone(name)] = strings.Clone(value)
			}
			r.Headers = headers
		}
	}
	ownSubscribe(c.Subscribe)
	if r := c.Unsubscribe; r != nil {
		own(&r.Channel)
	}
	if r := c.Publish; r != nil {
		own(&r.Channel, &r.Key)
	}
	if r := c.Presence; r != nil {
		own(&r.Channel)
	}
	if r := c.PresenceStats; r != nil {
		own(&r.Channel)
	}
	if r := c.History; r != nil {
		own(&r.Channel)
		if r.Since != nil {
			own(&r.Since.Epoch)
		}
	}
	if r := c.Rpc; r != nil {
		own(&r.Method)
	}
	if r := c.Refresh; r != nil {
		own(&r.Token)
	}
	ownSubRefresh(c.SubRefresh)
}

func own(fields ...*string) {
	for _, f := range fields {
		*f = strings.Clone(*f)
	}
}

func ownSubscribe(r *protocol.SubscribeRequest) {
	if r == nil {
		return
	}
	own(&r.Channel, &r.Token, &r.Epoch, &r.Delta, &r.Cursor)
	ownFilter(r.Tf)
}

func ownSubRefresh(r *protocol.SubRefreshRequest) {
	if r == nil {
		return
	}
	own(&r.Channel, &r.Token)
	for i := range r.Untrack {
		own(&r.Untrack[i])
	}
	for _, t := range r.Track {
		if t == nil {
			continue
		}
		own(&t.Signature)
		for _, item := range t.Items {
			if item != nil {
				own(&item.Key)
			}
		}
	}
}

// ownFilter recurses no deeper than the decoder does (cfjson.MaxDepth).
func ownFilter(n *protocol.FilterNode) {
	if n == nil {
		return
	}
	own(&n.Op, &n.Key, &n.Cmp, &n.Val)
	for i := range n.Vals {
		own(&n.Vals[i])
	}
	for _, child := range n.Nodes {
		ownFilter(child)
	}
}
