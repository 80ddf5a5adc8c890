package loadtest

import (
	"bytes"
	"fmt"
	"strconv"
)

// jsonCodec is the JSON encoding: one object per line. Names of rooms, users and
// databases of a run need no escaping.
type jsonCodec struct{}

func (jsonCodec) subprotocol() string { return "" }
func (jsonCodec) op() byte            { return opText }
func (jsonCodec) separator() string   { return "\n" }
func (jsonCodec) pong() []byte        { return []byte("{}") }

func (jsonCodec) appendConnect(dst []byte, id uint32, token string) []byte {
	return fmt.Appendf(dst, `{"id":%d,"connect":{"token":"%s","name":"loadtest"}}`, id, token)
}

func (jsonCodec) appendSubscribe(dst []byte, id uint32, room string, from *position) []byte {
	if from == nil {
		return fmt.Appendf(dst, `{"id":%d,"subscribe":{"channel":"%s"}}`, id, room)
	}
	return fmt.Appendf(dst, `{"id":%d,"subscribe":{"channel":"%s","recover":true,"epoch":"%s","offset":%d}}`, id, room, from.epoch, from.offset)
}

func (jsonCodec) appendUnsubscribe(dst []byte, id uint32, room string) []byte {
	return fmt.Appendf(dst, `{"id":%d,"unsubscribe":{"channel":"%s"}}`, id, room)
}

func (jsonCodec) appendPublish(dst []byte, id uint32, room string, data []byte) []byte {
	dst = strconv.AppendUint(append(dst, `{"id":`...), uint64(id), 10)
	dst = append(append(dst, `,"publish":{"channel":"`...), room...)
	dst = append(append(dst, `","data":`...), data...)
	return append(dst, "}}"...)
}

func (jsonCodec) appendRPC(dst []byte, id uint32, method string, data []byte) []byte {
	return fmt.Appendf(dst, `{"id":%d,"rpc":{"method":"%s","data":%s}}`, id, method, data)
}

// cut implements codec. A publication as servers usually write it is read
// without walking its JSON; anything else takes the general way.
func (c jsonCodec) cut(payload []byte, m *message) ([]byte, error) {
	line, rest := payload, []byte(nil)
	if i := bytes.IndexByte(payload, '\n'); i >= 0 {
		line, rest = payload[:i], payload[i+1:]
	}
	*m = message{}
	if string(line) == "{}" {
		m.kind = ping
		return rest, nil
	}
	if c.cutPublication(line, m) {
		return rest, nil
	}
	return rest, c.walk(line, m)
}

const (
	pushHead = `{"push":{"channel":"`
	pubHead  = `","pub":{"data":`
	userHead = `,"info":{"user":"`
	posHead  = `"offset":`
	pushTail = `}}}`
)

// cutPublication reads {"push":{"channel":…,"pub":{"data":…,"info":…,"offset":…}}}
// in this order, and reports false if that is not what line is.
func (jsonCodec) cutPublication(line []byte, m *message) bool {
	rest, ok := bytes.CutPrefix(line, []byte(pushHead))
	if !ok {
		return false
	}
	end := bytes.IndexByte(rest, '"')
	if end < 0 || !bytes.HasPrefix(rest[end:], []byte(pubHead)) {
		return false
	}
	room, rest := rest[:end], rest[end+len(pubHead):]
	// The data is an event, an object without objects or braces in it.
	end = bytes.IndexByte(rest, '}')
	if end < 0 || rest[0] != '{' || bytes.IndexByte(rest[1:end], '{') >= 0 || !bytes.HasPrefix(rest[end+1:], []byte(userHead)) {
		return false
	}
	data, rest := rest[:end+1], rest[end+1+len(userHead):]
	end = bytes.IndexByte(rest, '"')
	if end < 0 {
		return false
	}
	user, rest := rest[:end], rest[end+1:]
	rest, ok = bytes.CutSuffix(rest, []byte(pushTail))
	if !ok {
		return false
	}
	from := len(rest)
	for from > 0 && rest[from-1] >= '0' && rest[from-1] <= '9' {
		from--
	}
	offset, ok := digits(rest[from:])
	// No key of the info may follow: then the number is not the publication's.
	if !ok || !bytes.HasSuffix(rest[:from], []byte(`},`+posHead)) {
		return false
	}
	m.kind, m.room = pub, room
	m.pub = publication{data: data, user: user, offset: offset}
	return true
}

// walk reads any reply or push.
func (c jsonCodec) walk(line []byte, m *message) error {
	m.kind = reply
	return eachMember(line, func(key, value []byte) error {
		switch string(key) {
		case "id":
			id, ok := digits(value)
			if !ok {
				return fmt.Errorf("%w: id %.40q", errMessage, value)
			}
			m.id = uint32(id)
		case "error", "unsubscribe":
			return c.walkCode(value, m)
		case "subscribe":
			m.subscribe = value
		case "rpc":
			return eachMember(value, func(key, value []byte) error {
				if string(key) == "data" {
					m.rpc = value
				}
				return nil
			})
		case "push":
			m.kind = other
			return eachMember(value, func(key, value []byte) error { return c.walkPush(key, value, m) })
		}
		return nil
	})
}

func (c jsonCodec) walkPush(key, value []byte, m *message) error {
	switch string(key) {
	case "channel":
		m.room = unquoted(value)
	case "pub":
		m.kind = pub
		return c.walkPublication(value, &m.pub)
	case "unsubscribe":
		m.kind = unsubscribe
		return c.walkCode(value, m)
	}
	return nil
}

func (jsonCodec) walkCode(value []byte, m *message) error {
	return eachMember(value, func(key, value []byte) error {
		switch string(key) {
		case "code":
			code, ok := digits(value)
			if !ok {
				return fmt.Errorf("%w: code %.40q", errMessage, value)
			}
			m.code = uint32(code)
		case "message", "reason":
			m.text = unquoted(value)
		}
		return nil
	})
}

func (jsonCodec) walkPublication(value []byte, p *publication) error {
	return eachMember(value, func(key, value []byte) error {
		switch string(key) {
		case "data":
			p.data = value
		case "offset":
			offset, ok := digits(value)
			if !ok {
				return fmt.Errorf("%w: offset %.40q", errMessage, value)
			}
			p.offset = offset
		case "info":
			return eachMember(value, func(key, value []byte) error {
				if string(key) == "user" {
					p.user = unquoted(value)
				}
				return nil
			})
		}
		return nil
	})
}

// subscription implements codec.
func (c jsonCodec) subscription(result []byte, s *subscription, each func(*publication)) error {
	var publications []byte
	err := eachMember(result, func(key, value []byte) error {
		switch string(key) {
		case "epoch":
			s.epoch = unquoted(value)
		case "offset":
			s.offset, _ = digits(value)
		case "recoverable":
			s.recoverable = string(value) == "true"
		case "was_recovering":
			s.wasRecovering = string(value) == "true"
		case "recovered":
			s.recovered = string(value) == "true"
		case "publications":
			publications = value
		}
		return nil
	})
	if err != nil || each == nil || len(publications) == 0 {
		return err
	}
	return eachElement(publications, func(value []byte) error {
		var p publication
		if err := c.walkPublication(value, &p); err != nil {
			return err
		}
		each(&p)
		return nil
	})
}

func (jsonCodec) appendConnected(dst []byte, id uint32) []byte {
	return fmt.Appendf(dst, `{"id":%d,"connect":{}}`, id)
}

func (jsonCodec) appendSubscribed(dst []byte, id uint32, epoch string) []byte {
	return fmt.Appendf(dst, `{"id":%d,"subscribe":{"recoverable":true,"epoch":"%s","positioned":true}}`, id, epoch)
}

func (jsonCodec) appendPublication(dst []byte, room string, p *publication, client string) []byte {
	return fmt.Appendf(dst, pushHead+"%s"+pubHead+"%s"+userHead+`%s","client":"%s"},`+posHead+"%d"+pushTail, room, p.data, p.user, client, p.offset)
}

// unquoted takes the quotes off a string; escapes stay as they are.
func unquoted(value []byte) []byte {
	if len(value) < 2 || value[0] != '"' {
		return nil
	}
	return value[1 : len(value)-1]
}

// eachMember calls f for every member of a JSON object, with its name unquoted
// and its value as written.
func eachMember(object []byte, f func(key, value []byte) error) error {
	return eachItem(object, '{', '}', func(item []byte) ([]byte, error) {
		end := skipValue(item)
		if end < 2 || item[0] != '"' {
			return nil, fmt.Errorf("%w: %.100q", errMessage, object)
		}
		key := item[1 : end-1]
		item = skipSpace(item[end:])
		if len(item) == 0 || item[0] != ':' {
			return nil, fmt.Errorf("%w: %.100q", errMessage, object)
		}
		item = skipSpace(item[1:])
		if end = skipValue(item); end == 0 {
			return nil, fmt.Errorf("%w: %.100q", errMessage, object)
		}
		return item[end:], f(key, item[:end])
	})
}

// eachElement calls f for every element of a JSON array.
func eachElement(array []byte, f func(value []byte) error) error {
	return eachItem(array, '[', ']', func(item []byte) ([]byte, error) {
		end := skipValue(item)
		if end == 0 {
			return nil, fmt.Errorf("%w: %.100q", errMessage, array)
		}
		return item[end:], f(item[:end])
	})
}

// eachItem calls take for the text from each item on; take returns what follows
// the item.
func eachItem(text []byte, open, closed byte, take func([]byte) ([]byte, error)) error {
	text = skipSpace(text)
	if len(text) < 2 || text[0] != open {
		return fmt.Errorf("%w: %.100q", errMessage, text)
	}
	rest := skipSpace(text[1:])
	if len(rest) > 0 && rest[0] == closed {
		return nil
	}
	for len(rest) > 0 {
		after, err := take(rest)
		if err != nil {
			return err
		}
		after = skipSpace(after)
		if len(after) > 0 && after[0] == closed {
			return nil
		}
		if len(after) == 0 || after[0] != ',' {
			break
		}
		rest = skipSpace(after[1:])
	}
	return fmt.Errorf("%w: %.100q", errMessage, text)
}

func skipSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\n' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}

// skipValue returns the length of the JSON value that b begins with, 0 if it is
// not complete. Objects and arrays are skipped by their brackets.
func skipValue(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			end := skipString(b[i:])
			if end == 0 {
				return 0
			}
			i += end - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
			continue
		default:
			if depth == 0 { // a number or a word goes on
				if i+1 == len(b) {
					return len(b)
				}
				continue
			}
		}
		if depth == 0 {
			return i + 1
		}
	}
	return 0
}

func skipString(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}
