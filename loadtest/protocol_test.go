package loadtest

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/centrifugal/protocol"
)

// TestEventRoundTrip: what is written is read back, with the size asked for.
func TestEventRoundTrip(t *testing.T) {
	for _, want := range []event{{seq: 1}, {seq: 9_999_999_999, room: 999_999, by: 123_456, due: 9_999_999_999_999_999}, {seq: 42, room: 7, by: 8, due: 9}} {
		data := appendEvent([]byte("before"), want, "game", 150)[len("before"):]
		got, db, ok := parseEvent(data)
		if !ok || got != want || string(db) != "game" || len(data) != 150 {
			t.Errorf("%+v: got %+v, database %q, %v, %d bytes in %s", want, got, db, ok, len(data), data)
		}
	}
}

func TestEventRefusesOthers(t *testing.T) {
	good := appendEvent(nil, event{seq: 3, room: 1, by: 2, due: 5}, "default", 150)
	for i := range good[:dbAt] {
		bad := bytes.Clone(good)
		bad[i] ^= 0x80
		if _, _, ok := parseEvent(bad); ok {
			t.Errorf("byte %d may be anything", i)
		}
	}
	for n := range len(good) {
		if _, _, ok := parseEvent(good[:n]); ok {
			t.Errorf("%d of %d bytes are taken for all", n, len(good))
		}
	}
}

// encode writes a reply as servers do, by the protocol's own module.
func encode(t testing.TB, proto bool, r *protocol.Reply) []byte {
	t.Helper()
	if !proto {
		b, err := protocol.DefaultJsonReplyEncoder.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b, err := protocol.DefaultProtobufReplyEncoder.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	return appendDelimited(nil, b)
}

func appendDelimited(dst, b []byte) []byte {
	return append(appendBytesField(dst, 0, b)[1:], []byte(nil)...) // the field's tag is one byte
}

// TestCut: both codecs read what the protocol's module writes.
func TestCut(t *testing.T) {
	data := appendEvent(nil, event{seq: 12, room: 3}, "default", 150)
	for _, proto := range []bool{false, true} {
		c := codecs[proto]
		cut := func(r *protocol.Reply) message {
			t.Helper()
			var m message
			rest, err := c.cut(encode(t, proto, r), &m)
			if err != nil || len(rest) != 0 {
				t.Fatalf("protobuf %v: %v, rest %q", proto, err, rest)
			}
			return m
		}
		if m := cut(&protocol.Reply{}); m.kind != ping {
			t.Errorf("an empty reply is %d, not a ping", m.kind)
		}
		m := cut(&protocol.Reply{Push: &protocol.Push{Channel: "room", Pub: &protocol.Publication{
			Data: data, Offset: 12, Info: &protocol.ClientInfo{User: "u", Client: "c"}}}})
		if m.kind != pub || string(m.room) != "room" || m.pub.offset != 12 || string(m.pub.user) != "u" || !bytes.Equal(m.pub.data, data) {
			t.Errorf("protobuf %v: publication %+v", proto, m)
		}
		m = cut(&protocol.Reply{Id: 7, Error: &protocol.Error{Code: 109, Message: "token expired"}})
		if m.kind != reply || m.id != 7 || m.code != 109 || string(m.text) != "token expired" {
			t.Errorf("protobuf %v: error %+v", proto, m)
		}
		m = cut(&protocol.Reply{Push: &protocol.Push{Channel: "room", Unsubscribe: &protocol.Unsubscribe{Code: 2500, Reason: "insufficient state"}}})
		if m.kind != unsubscribe || m.code != 2500 {
			t.Errorf("protobuf %v: unsubscribe %+v", proto, m)
		}
		m = cut(&protocol.Reply{Push: &protocol.Push{Channel: "room", Join: &protocol.Join{Info: &protocol.ClientInfo{User: "u"}}}})
		if m.kind != other {
			t.Errorf("protobuf %v: join %+v", proto, m)
		}
		m = cut(&protocol.Reply{Id: 9, Rpc: &protocol.RPCResult{Data: []byte(`{"offset":5,"epoch":"e"}`)}})
		if m.id != 9 || rpcOffset(m.rpc) != 5 {
			t.Errorf("protobuf %v: rpc %+v", proto, m)
		}
		m = cut(&protocol.Reply{Id: 2, Subscribe: &protocol.SubscribeResult{Recoverable: true, Positioned: true, Epoch: "ep", Offset: 11,
			WasRecovering: true, Recovered: true, Publications: []*protocol.Publication{{Data: data, Offset: 12}, {Data: data, Offset: 13}}}})
		var s subscription
		var offsets []uint64
		if err := c.subscription(m.subscribe, &s, func(p *publication) { offsets = append(offsets, p.offset) }); err != nil {
			t.Fatal(err)
		}
		if string(s.epoch) != "ep" || s.offset != 11 || !s.recoverable || !s.recovered || !s.wasRecovering || len(offsets) != 2 || offsets[1] != 13 {
			t.Errorf("protobuf %v: subscription %+v, %v", proto, s, offsets)
		}
	}
}

// TestCommands: the protocol's module reads what the codecs write.
func TestCommands(t *testing.T) {
	for _, proto := range []bool{false, true} {
		c := codecs[proto]
		payload := c.appendConnect(nil, 1, "the-token")
		payload = append(payload, c.separator()...)
		payload = c.appendSubscribe(payload, 2, "room", &position{epoch: "ep", offset: 300})
		payload = append(payload, c.separator()...)
		payload = c.appendPublish(payload, 3, "room", []byte(`{"a":1}`))
		payload = append(payload, c.separator()...)
		payload = appendPublishOnce(c, payload, 4, "room", "key", []byte(`{"a":1}`))
		kind := protocol.TypeJSON
		if proto {
			kind = protocol.TypeProtobuf
		}
		decoder := protocol.GetCommandDecoder(kind, payload)
		var got []*protocol.Command
		for {
			cmd, err := decoder.Decode()
			if cmd != nil {
				got = append(got, cmd)
			}
			if err != nil {
				break
			}
		}
		if len(got) != 4 {
			t.Fatalf("protobuf %v: %d commands, want 4", proto, len(got))
		}
		s := got[1].Subscribe
		switch {
		case got[0].Id != 1 || got[0].Connect.Token != "the-token":
			t.Errorf("connect %v", got[0])
		case got[1].Id != 2 || s.Channel != "room" || !s.Recover || s.Epoch != "ep" || s.Offset != 300:
			t.Errorf("subscribe %v", got[1])
		case got[2].Id != 3 || got[2].Publish.Channel != "room" || string(got[2].Publish.Data) != `{"a":1}`:
			t.Errorf("publish %v", got[2])
		case got[3].Id != 4 || got[3].Rpc.Method != "publish" || string(got[3].Rpc.Data) != `{"room":"room","id":"key","data":{"a":1}}`:
			t.Errorf("rpc %v", got[3])
		}
	}
}

// TestFloorIsReal: the floor writes what a server would, byte for byte.
func TestFloorIsReal(t *testing.T) {
	data := appendEvent(nil, event{seq: 12, room: 3}, "default", 150)
	p := publication{data: data, user: []byte("user-1"), offset: 12}
	r := &protocol.Reply{Push: &protocol.Push{Channel: "load:r", Pub: &protocol.Publication{
		Data: data, Offset: 12, Info: &protocol.ClientInfo{User: "user-1", Client: "ABC"}}}}
	for _, proto := range []bool{false, true} {
		got, want := codecs[proto].appendPublication(nil, "load:r", &p, "ABC"), encode(t, proto, r)
		if !bytes.Equal(got, want) {
			t.Errorf("protobuf %v:\n got %q\nwant %q", proto, got, want)
		}
	}
}

// TestReadingDoesNotAllocate: a publication costs no memory.
func TestReadingDoesNotAllocate(t *testing.T) {
	data := appendEvent(nil, event{seq: 12, room: 3}, "default", 150)
	for _, proto := range []bool{false, true} {
		c := codecs[proto]
		payload := c.appendPublication(nil, "load:r", &publication{data: data, user: []byte("user-1"), offset: 12}, "ABC")
		var m message
		if n := testing.AllocsPerRun(100, func() {
			if _, err := c.cut(payload, &m); err != nil || m.kind != pub {
				t.Fatal(err, m.kind)
			}
			if _, _, ok := parseEvent(m.pub.data); !ok {
				t.Fatal("no event")
			}
		}); n != 0 {
			t.Errorf("protobuf %v: %v allocations", proto, n)
		}
	}
}

func TestCutFrame(t *testing.T) {
	for _, n := range []int{0, 1, 125, 126, 65535, 65536} {
		whole := appendServerFrame(nil, opText, bytes.Repeat([]byte("x"), n))
		f, rest, ok, err := cutFrame(append(bytes.Clone(whole), "rest"...))
		if err != nil || !ok || !f.fin || f.op != opText || len(f.payload) != n || string(rest) != "rest" {
			t.Errorf("%d bytes: %v %v %d, rest %q", n, err, ok, len(f.payload), rest)
		}
		for _, cut := range []int{1, len(whole) - 1} {
			if _, _, ok, err := cutFrame(whole[:min(cut, len(whole)-1)]); ok || err != nil {
				t.Errorf("%d bytes of %d: %v %v", cut, len(whole), ok, err)
			}
		}
	}
	for name, frame := range map[string]string{"reserved bit": "\xc1\x00", "masked": "\x81\x80", "endless": "\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff"} {
		if _, _, _, err := cutFrame([]byte(frame)); !errors.Is(err, errFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzCut: no input is too much, and the quick way reads what the general one reads.
func FuzzCut(f *testing.F) {
	data := appendEvent(nil, event{seq: 12, room: 3}, "default", 150)
	p := publication{data: data, user: []byte("user-1"), offset: 12}
	for _, proto := range []bool{false, true} {
		f.Add(codecs[proto].appendPublication(nil, "load:r", &p, "ABC"))
		f.Add(codecs[proto].appendSubscribed(nil, 2, "ep"))
	}
	f.Add([]byte(`{"push":{"channel":"r","pub":{"data":{"a":"}"},"info":{"user":"u","x":1},"offset":7}}}`))
	f.Add([]byte(`{"push":{"channel":"r","pub":{"data":{},"info":{"user":"u"},"offset":7}}}` + "\n{}"))
	f.Add([]byte(`{"id":1,"error":{"code":109,"message":"a \"quoted\" one"}}`))
	f.Add([]byte(strings.Repeat(`{"push":`, 1000)))
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, proto := range []bool{false, true} {
			c := codecs[proto]
			for rest := payload; len(rest) > 0; {
				var m message
				after, err := c.cut(rest, &m)
				if err != nil {
					break
				}
				if len(after) >= len(rest) {
					t.Fatal("no progress")
				}
				var s subscription
				_ = c.subscription(m.subscribe, &s, func(*publication) {})
				_ = rpcOffset(m.rpc)
				rest = after
			}
		}
		var quick, slow message
		j := jsonCodec{}
		line, _, _ := bytes.Cut(payload, []byte{'\n'})
		if j.cutPublication(line, &quick) {
			if err := j.walk(line, &slow); err == nil && (slow.kind != pub || slow.pub.offset != quick.pub.offset ||
				!bytes.Equal(slow.pub.data, quick.pub.data) || !bytes.Equal(slow.pub.user, quick.pub.user) || !bytes.Equal(slow.room, quick.room)) {
				t.Fatalf("quick %+v, walked %+v", quick, slow)
			}
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add(appendServerFrame(nil, opText, []byte("hello")))
	f.Fuzz(func(t *testing.T, data []byte) {
		for {
			_, rest, ok, err := cutFrame(data)
			if err != nil || !ok {
				return
			}
			if len(rest) >= len(data) {
				t.Fatal("no progress")
			}
			data = rest
		}
	})
}
