package loadtest

import (
	"encoding/binary"
	"fmt"
)

// protobufCodec is the Protobuf encoding: messages behind their length. Field
// numbers are those of client.proto of the Centrifuge protocol.
type protobufCodec struct{}

const (
	commandID, commandConnect, commandSubscribe, commandPublish, commandRPC = 1, 4, 5, 7, 13
	commandUnsubscribe, unsubscribeChannel                                  = 6, 1
	connectToken, connectName                                               = 1, 4
	subscribeChannel, subscribeRecover, subscribeEpoch, subscribeOffset     = 1, 3, 6, 7
	publishChannel, publishData                                             = 1, 2
	rpcData, rpcMethod                                                      = 1, 2

	replyID, replyError, replyPush, replyConnect, replySubscribe, replyRPC = 1, 2, 4, 5, 6, 13
	errorCode, errorMessage                                                = 1, 2
	pushChannel, pushPub, pushUnsubscribe                                  = 2, 4, 7
	pubData, pubInfo, pubOffset                                            = 4, 5, 6
	infoUser, infoClient                                                   = 1, 2
	unsubscribeCode, unsubscribeReason                                     = 2, 3
	resultRecoverable, resultEpoch, resultPublications                     = 3, 6, 7
	resultRecovered, resultOffset, resultPositioned, resultWasRecovering   = 8, 9, 10, 12
)

func (protobufCodec) subprotocol() string { return "centrifuge-protobuf" }
func (protobufCodec) op() byte            { return opBinary }
func (protobufCodec) separator() string   { return "" }
func (protobufCodec) pong() []byte        { return []byte{0} }

func (protobufCodec) appendConnect(dst []byte, id uint32, token string) []byte {
	var req []byte
	req = appendBytesField(req, connectToken, token)
	req = appendBytesField(req, connectName, "loadtest")
	return appendCommand(dst, id, commandConnect, req)
}

func (protobufCodec) appendSubscribe(dst []byte, id uint32, room string, from *position) []byte {
	req := appendBytesField(nil, subscribeChannel, room)
	if from != nil {
		req = appendVarintField(req, subscribeRecover, 1)
		req = appendBytesField(req, subscribeEpoch, from.epoch)
		req = appendVarintField(req, subscribeOffset, from.offset)
	}
	return appendCommand(dst, id, commandSubscribe, req)
}

func (protobufCodec) appendUnsubscribe(dst []byte, id uint32, room string) []byte {
	return appendCommand(dst, id, commandUnsubscribe, appendBytesField(nil, unsubscribeChannel, room))
}

func (protobufCodec) appendPublish(dst []byte, id uint32, room string, data []byte) []byte {
	req := appendBytesField(nil, publishChannel, room)
	return appendCommand(dst, id, commandPublish, appendBytesField(req, publishData, data))
}

func (protobufCodec) appendRPC(dst []byte, id uint32, method string, data []byte) []byte {
	req := appendBytesField(nil, rpcData, data)
	return appendCommand(dst, id, commandRPC, appendBytesField(req, rpcMethod, method))
}

func appendCommand(dst []byte, id uint32, field int, request []byte) []byte {
	command := appendVarintField(nil, commandID, uint64(id))
	command = appendBytesField(command, field, request)
	return append(binary.AppendUvarint(dst, uint64(len(command))), command...)
}

func appendVarintField(dst []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(field)<<3), v)
}

func appendBytesField[T string | []byte](dst []byte, field int, v T) []byte {
	dst = binary.AppendUvarint(dst, uint64(field)<<3|2)
	return append(binary.AppendUvarint(dst, uint64(len(v))), v...)
}

// cut implements codec.
func (c protobufCodec) cut(payload []byte, m *message) ([]byte, error) {
	size, n := binary.Uvarint(payload)
	if n <= 0 || size > uint64(len(payload)-n) {
		return nil, fmt.Errorf("%w: a length that exceeds its frame", errMessage)
	}
	body, rest := payload[n:n+int(size)], payload[n+int(size):]
	*m = message{kind: reply}
	if len(body) == 0 {
		m.kind = ping
		return rest, nil
	}
	err := eachField(body, func(field int, v uint64, value []byte) error {
		switch field {
		case replyID:
			m.id = uint32(v)
		case replyError:
			return c.readCode(value, m, errorCode, errorMessage)
		case replySubscribe:
			m.subscribe = value
			if value == nil {
				m.subscribe = []byte{}
			}
		case replyRPC:
			return eachField(value, func(field int, _ uint64, value []byte) error {
				if field == rpcData {
					m.rpc = value
				}
				return nil
			})
		case replyPush:
			m.kind = other
			return c.readPush(value, m)
		}
		return nil
	})
	return rest, err
}

func (c protobufCodec) readPush(push []byte, m *message) error {
	return eachField(push, func(field int, _ uint64, value []byte) error {
		switch field {
		case pushChannel:
			m.room = value
		case pushPub:
			m.kind = pub
			return c.readPublication(value, &m.pub)
		case pushUnsubscribe:
			m.kind = unsubscribe
			return c.readCode(value, m, unsubscribeCode, unsubscribeReason)
		}
		return nil
	})
}

func (protobufCodec) readCode(value []byte, m *message, code, text int) error {
	return eachField(value, func(field int, v uint64, value []byte) error {
		switch field {
		case code:
			m.code = uint32(v)
		case text:
			m.text = value
		}
		return nil
	})
}

func (protobufCodec) readPublication(value []byte, p *publication) error {
	return eachField(value, func(field int, v uint64, value []byte) error {
		switch field {
		case pubData:
			p.data = value
		case pubOffset:
			p.offset = v
		case pubInfo:
			return eachField(value, func(field int, _ uint64, value []byte) error {
				if field == infoUser {
					p.user = value
				}
				return nil
			})
		}
		return nil
	})
}

// subscription implements codec.
func (c protobufCodec) subscription(result []byte, s *subscription, each func(*publication)) error {
	return eachField(result, func(field int, v uint64, value []byte) error {
		switch field {
		case resultEpoch:
			s.epoch = value
		case resultOffset:
			s.offset = v
		case resultRecoverable:
			s.recoverable = v != 0
		case resultWasRecovering:
			s.wasRecovering = v != 0
		case resultRecovered:
			s.recovered = v != 0
		case resultPublications:
			if each == nil {
				return nil
			}
			var p publication
			if err := c.readPublication(value, &p); err != nil {
				return err
			}
			each(&p)
		}
		return nil
	})
}

func (protobufCodec) appendConnected(dst []byte, id uint32) []byte {
	return appendReply(dst, id, replyConnect, nil)
}

func (protobufCodec) appendSubscribed(dst []byte, id uint32, epoch string) []byte {
	result := appendVarintField(nil, resultRecoverable, 1)
	result = appendBytesField(result, resultEpoch, epoch)
	return appendReply(dst, id, replySubscribe, appendVarintField(result, resultPositioned, 1))
}

func (protobufCodec) appendPublication(dst []byte, room string, p *publication, client string) []byte {
	info := appendBytesField(nil, infoUser, p.user)
	info = appendBytesField(info, infoClient, client)
	body := appendBytesField(nil, pubData, p.data)
	body = appendBytesField(body, pubInfo, info)
	body = appendVarintField(body, pubOffset, p.offset)
	push := appendBytesField(nil, pushChannel, room)
	return appendReply(dst, 0, replyPush, appendBytesField(push, pushPub, body))
}

func appendReply(dst []byte, id uint32, field int, value []byte) []byte {
	var r []byte
	if id != 0 {
		r = appendVarintField(r, replyID, uint64(id))
	}
	r = appendBytesField(r, field, value)
	return append(binary.AppendUvarint(dst, uint64(len(r))), r...)
}

// eachField calls f for every field of a Protobuf message: v is the value of a
// varint, value that of a length-delimited field. Other wire types are passed over.
func eachField(message []byte, f func(field int, v uint64, value []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return fmt.Errorf("%w: broken tag", errMessage)
		}
		message = message[n:]
		var v uint64
		var value []byte
		switch tag & 7 {
		case 0:
			if v, n = binary.Uvarint(message); n <= 0 {
				return fmt.Errorf("%w: broken varint", errMessage)
			}
			message = message[n:]
		case 1, 5:
			size := 8
			if tag&7 == 5 {
				size = 4
			}
			if len(message) < size {
				return fmt.Errorf("%w: cut short", errMessage)
			}
			message = message[size:]
			continue
		case 2:
			size, n := binary.Uvarint(message)
			if n <= 0 || size > uint64(len(message)-n) {
				return fmt.Errorf("%w: a length that exceeds its message", errMessage)
			}
			value, message = message[n:n+int(size)], message[n+int(size):]
		default:
			return fmt.Errorf("%w: wire type %d", errMessage, tag&7)
		}
		if err := f(int(tag>>3), v, value); err != nil {
			return err
		}
	}
	return nil
}
