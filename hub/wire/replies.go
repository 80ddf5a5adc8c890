package wire

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"
	"strconv"

	"github.com/centrifugal/protocol"
	"github.com/centrifugal/protocol/cfjson"
)

// Field tags of client.proto that are written here: number<<3 | 2, for a value
// behind its length.
const (
	tagReplyPush          = 4<<3 | 2
	tagReplyConnect       = 5<<3 | 2
	tagReplySubscribe     = 6<<3 | 2
	tagPushChannel        = 2<<3 | 2
	tagPushPub            = 4<<3 | 2
	tagResultPublications = 7<<3 | 2
	tagConnectSubs        = 6<<3 | 2
	tagEntryKey           = 1<<3 | 2
	tagEntryValue         = 2<<3 | 2
	tagReplyID            = 1 << 3 // a varint
)

// pings are the empty replies that a client answers with an empty command.
var pings = [Encodings][]byte{
	JSON:     {0x81, 2, '{', '}'},
	Protobuf: {0x82, 1, 0},
}

// Ping returns the complete frame of a server ping. It is shared: never write to it.
func (e Encoding) Ping() []byte { return pings[e] }

// AppendReply appends one frame with one reply. Raw fields must be JSON values
// when e is JSON: otherwise the error is [ErrInvalidJSON] and dst is returned as
// it was, as with every error of the Append methods.
func (e Encoding) AppendReply(dst []byte, r *protocol.Reply) ([]byte, error) {
	if e == Protobuf {
		size := r.SizeCF()
		out, err := appendMessage(appendDelimited(dst, size), r, size)
		if err != nil {
			return dst, err
		}
		return out, nil
	}
	b, err := protocol.DefaultJsonReplyEncoder.Encode(r)
	if err != nil {
		return dst, ErrInvalidJSON // the one fault the encoder knows
	}
	return AppendFrame(dst, e.opCode(), b), nil
}

// AppendPush appends one frame with a reply that holds p.
func (e Encoding) AppendPush(dst []byte, p *protocol.Push) ([]byte, error) {
	return e.AppendReply(dst, &protocol.Reply{Push: p})
}

// AppendPublication appends one frame with a reply that pushes p to the
// subscribers of room. The bare publication is out[start:end]: what
// [Encoding.AppendSubscribeReply] takes.
func (e Encoding) AppendPublication(dst []byte, room string, p *protocol.Publication) (out []byte, start, end int, err error) {
	if e == Protobuf {
		size := p.SizeCF()
		out = appendReplyHead(dst, 0, tagReplyPush, fieldSize(len(room))+fieldSize(size))
		out = append(appendField(out, tagPushChannel, len(room)), room...)
		out = appendField(out, tagPushPub, size)
		if out, err = appendMessage(out, p, size); err != nil {
			return dst, 0, 0, err
		}
		return out, len(out) - size, len(out), nil
	}
	if !validRaw(p) {
		return dst, 0, 0, ErrInvalidJSON
	}
	const tail = "}}"
	out, mark := openFrame(dst)
	out = cfjson.AppendString(append(out, `{"push":{"channel":`...), room)
	out = append(out, `,"pub":`...)
	before := len(out)
	out = p.AppendJSON(out)
	size := len(out) - before
	out = closeFrame(append(out, tail...), mark, e.opCode())
	end = len(out) - len(tail)
	return out, end - size, end, nil
}

// validRaw reports whether the raw fields of p may stand in JSON.
func validRaw(p *protocol.Publication) bool {
	info := p.GetInfo()
	return cfjson.ValidRaw(p.Data) && cfjson.ValidRaw(p.PrevData) &&
		cfjson.ValidRaw(info.GetConnInfo()) && cfjson.ValidRaw(info.GetChanInfo())
}

// Subscription is a subscription that a connect reply tells of.
type Subscription struct {
	Room   string
	Result *protocol.SubscribeResult
	// Publications are bare publications in the encoding of the reply.
	Publications [][]byte
}

// errSpliced guards the fields that are spliced in, which would be there twice,
// and map state, which is not part of the product.
var errSpliced = errors.New("wire: the result holds publications, state or subs of its own")

// AppendSubscribeReply appends one frame with the reply to subscribe command id.
// pubs are bare publications of e, in order, which stand in for
// r.Publications; that must be empty.
func (e Encoding) AppendSubscribeReply(dst []byte, id uint32, r *protocol.SubscribeResult, pubs [][]byte) ([]byte, error) {
	s := Subscription{Result: r, Publications: pubs}
	if err := s.check(e); err != nil {
		return dst, err
	}
	if e == Protobuf {
		out, err := s.append(appendReplyHead(dst, id, tagReplySubscribe, s.size()))
		if err != nil {
			return dst, err
		}
		return out, nil
	}
	out, mark := openFrame(dst)
	out = appendJSONHead(out, id, `"subscribe":`)
	out = s.appendJSON(out)
	out = append(out, '}')
	return closeFrame(out, mark, e.opCode()), nil
}

// AppendConnectReply appends one frame with the reply to connect command id.
// subs stand in for r.Subs; that must be empty.
func (e Encoding) AppendConnectReply(dst []byte, id uint32, r *protocol.ConnectResult, subs []Subscription) ([]byte, error) {
	if len(r.Subs) != 0 {
		return dst, errSpliced
	}
	if e == JSON && !(cfjson.ValidRaw(r.Data) && (r.Dict == nil || cfjson.ValidRaw(r.Dict.Data))) {
		return dst, ErrInvalidJSON
	}
	for i := range subs {
		if err := subs[i].check(e); err != nil {
			return dst, err
		}
	}
	if e == Protobuf {
		out, err := appendProtobufConnect(dst, id, r, subs)
		if err != nil {
			return dst, err
		}
		return out, nil
	}
	out, mark := openFrame(dst)
	out = appendJSONHead(out, id, `"connect":`)
	out = r.AppendJSON(out)
	if len(subs) > 0 {
		out = reopenObject(out)
		out = append(out, `"subs":`...)
		open := len(out)
		for i := range subs {
			out = append(out, ',')
			out = cfjson.AppendString(out, subs[i].Room)
			out = append(out, ':')
			out = subs[i].appendJSON(out)
		}
		out[open] = '{'
		out = append(out, "}}"...)
	}
	out = append(out, '}')
	return closeFrame(out, mark, e.opCode()), nil
}

func appendProtobufConnect(dst []byte, id uint32, r *protocol.ConnectResult, subs []Subscription) ([]byte, error) {
	own := r.SizeCF()
	size := own
	for i := range subs {
		size += fieldSize(subs[i].entrySize())
	}
	dst, err := appendMessage(appendReplyHead(dst, id, tagReplyConnect, size), r, own)
	if err != nil {
		return nil, err
	}
	for i := range subs {
		s := &subs[i]
		dst = appendField(dst, tagConnectSubs, s.entrySize())
		dst = append(appendField(dst, tagEntryKey, len(s.Room)), s.Room...)
		dst = appendField(dst, tagEntryValue, s.size())
		if dst, err = s.append(dst); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// check reports what keeps s from being written in e.
func (s *Subscription) check(e Encoding) error {
	if len(s.Result.Publications) != 0 || len(s.Result.State) != 0 {
		return errSpliced
	}
	if e == JSON && !cfjson.ValidRaw(s.Result.Data) {
		return ErrInvalidJSON
	}
	return nil
}

// appendJSON appends the SubscribeResult, publications included.
func (s *Subscription) appendJSON(dst []byte) []byte {
	dst = s.Result.AppendJSON(dst)
	if len(s.Publications) == 0 {
		return dst
	}
	dst = reopenObject(dst)
	dst = append(dst, `"publications":`...)
	open := len(dst)
	for _, p := range s.Publications {
		dst = append(dst, ',')
		dst = append(dst, p...)
	}
	dst[open] = '['
	return append(dst, "]}"...)
}

// size is the length of the SubscribeResult as a Protobuf message.
func (s *Subscription) size() int {
	n := s.Result.SizeCF()
	for _, p := range s.Publications {
		n += fieldSize(len(p))
	}
	return n
}

// entrySize is the length of the entry in the map of a connect result.
func (s *Subscription) entrySize() int { return fieldSize(len(s.Room)) + fieldSize(s.size()) }

// append appends the SubscribeResult as a Protobuf message, publications included.
func (s *Subscription) append(dst []byte) ([]byte, error) {
	dst, err := appendMessage(dst, s.Result, s.Result.SizeCF())
	if err != nil {
		return nil, err
	}
	for _, p := range s.Publications {
		dst = append(appendField(dst, tagResultPublications, len(p)), p...)
	}
	return dst, nil
}

// appendJSONHead appends a reply up to where the value of its field begins.
func appendJSONHead(dst []byte, id uint32, field string) []byte {
	dst = append(dst, '{')
	if id != 0 {
		dst = append(dst, `"id":`...)
		dst = strconv.AppendUint(dst, uint64(id), 10)
		dst = append(dst, ',')
	}
	return append(dst, field...)
}

// reopenObject makes the object that dst ends with ready for one more field.
func reopenObject(dst []byte) []byte {
	dst = dst[:len(dst)-1]
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	return dst
}

// appendReplyHead appends a frame up to where the value of the reply's only
// field, of size bytes, begins.
func appendReplyHead(dst []byte, id uint32, tag byte, size int) []byte {
	reply := fieldSize(size)
	if id != 0 {
		reply += 1 + varintSize(uint64(id))
	}
	dst = appendDelimited(dst, reply)
	if id != 0 {
		dst = binary.AppendUvarint(append(dst, tagReplyID), uint64(id))
	}
	return appendField(dst, tag, size)
}

// appendDelimited appends the header of a frame for a message of size bytes,
// and the message's length.
func appendDelimited(dst []byte, size int) []byte {
	dst = slices.Grow(dst, maxFrameHeader+varintSize(uint64(size))+size)
	dst = appendFrameHeader(dst, Protobuf.opCode(), varintSize(uint64(size))+size)
	return binary.AppendUvarint(dst, uint64(size))
}

// appendField appends the tag and length of a field.
func appendField(dst []byte, tag byte, length int) []byte {
	return binary.AppendUvarint(append(dst, tag), uint64(length))
}

// fieldSize is the bytes of a field of length bytes with its tag and length.
func fieldSize(length int) int { return 1 + varintSize(uint64(length)) + length }

func varintSize(x uint64) int { return (bits.Len64(x|1) + 6) / 7 }

// message is a generated Protobuf message.
type message interface {
	MarshalToSizedBufferCF(b []byte) (int, error)
}

// appendMessage appends m, which takes size bytes.
func appendMessage(dst []byte, m message, size int) ([]byte, error) {
	n := len(dst)
	dst = slices.Grow(dst, size)[:n+size]
	if _, err := m.MarshalToSizedBufferCF(dst[n:]); err != nil {
		return nil, err
	}
	return dst, nil
}
