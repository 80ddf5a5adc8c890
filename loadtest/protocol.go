package loadtest

import (
	"errors"
	"fmt"
)

// The Centrifuge client protocol as a client of one room needs it. Messages are
// read where they lie: slices of a message are valid until the next read.

// kind is what a message from the server is.
type kind uint8

const (
	other kind = iota // a push that this client has no use for
	ping
	reply
	pub
	unsubscribe
)

// message is one reply or push.
type message struct {
	kind kind

	id        uint32 // of a reply: that of its command
	code      uint32 // of an error or an unsubscribe push; 0 means success
	text      []byte // what goes with code
	subscribe []byte // of a reply: a SubscribeResult not read yet, see codec.subscription
	rpc       []byte // of a reply: the data of an RPCResult

	room []byte // of a push
	pub  publication
}

// publication is one event as the wire has it.
type publication struct {
	data, user []byte
	offset     uint64
}

// subscription is what a SubscribeResult tells.
type subscription struct {
	epoch                                 []byte
	offset                                uint64
	recoverable, wasRecovering, recovered bool
}

// position is the place in a room from which a subscription goes on.
type position struct {
	epoch  string
	offset uint64
}

// codec is one of the protocol's two encodings. It keeps no state.
type codec interface {
	// subprotocol is what the upgrade asks for; empty for none.
	subprotocol() string
	op() byte
	// separator stands between the commands of a frame; it may be empty.
	separator() string
	// pong is the payload of the answer to a ping.
	pong() []byte

	appendConnect(dst []byte, id uint32, token string) []byte
	// appendSubscribe asks to recover from a position unless that is nil.
	appendSubscribe(dst []byte, id uint32, room string, from *position) []byte
	appendUnsubscribe(dst []byte, id uint32, room string) []byte
	appendPublish(dst []byte, id uint32, room string, data []byte) []byte
	appendRPC(dst []byte, id uint32, method string, data []byte) []byte

	// cut reads the first message of a frame's payload and returns the rest.
	cut(payload []byte, m *message) (rest []byte, err error)
	// subscription reads a SubscribeResult and calls each for its publications.
	subscription(result []byte, s *subscription, each func(*publication)) error

	// appendConnected, appendSubscribed and appendPublication write what a server
	// would: the floor's messages, which have the size of real ones.
	appendConnected(dst []byte, id uint32) []byte
	appendSubscribed(dst []byte, id uint32, epoch string) []byte
	appendPublication(dst []byte, room string, p *publication, client string) []byte
}

var errMessage = errors.New("unreadable message")

// appendPublishOnce publishes by rpc under an idempotency key.
func appendPublishOnce(c codec, dst []byte, id uint32, room, key string, data []byte) []byte {
	return c.appendRPC(dst, id, "publish", fmt.Appendf(nil, `{"room":"%s","id":"%s","data":%s}`, room, key, data))
}

// codecs are the encodings by whether they are Protobuf.
var codecs = map[bool]codec{false: jsonCodec{}, true: protobufCodec{}}
