package wire_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/centrifugal/protocol"
	"github.com/gobwas/ws"
	"google.golang.org/protobuf/proto"

	"hub/hub/wire"
)

// open returns the only reply in the only frame of b, decoded by the protocol
// module as a client would.
func open(t *testing.T, e wire.Encoding, b []byte) *protocol.Reply {
	t.Helper()
	r := bytes.NewReader(b)
	h, err := ws.ReadHeader(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.CheckHeader(h, ws.StateClientSide); err != nil {
		t.Fatal(err)
	}
	opCode := map[wire.Encoding]ws.OpCode{wire.JSON: ws.OpText, wire.Protobuf: ws.OpBinary}[e]
	if h.OpCode != opCode || !h.Fin || h.Length != int64(r.Len()) {
		t.Fatalf("header is %+v before %d bytes", h, r.Len())
	}
	data := b[len(b)-r.Len():]
	var d protocol.ReplyDecoder = protocol.NewJSONReplyDecoder(data)
	if e == wire.Protobuf {
		d = protocol.NewProtobufReplyDecoder(data)
	} else if bytes.IndexByte(data, '\n') >= 0 {
		t.Fatalf("line feed in %q", data)
	}
	reply, err := d.Decode()
	if err != nil {
		t.Fatalf("%.200q: %v", data, err)
	}
	if more, err := d.Decode(); err == nil {
		t.Fatalf("a second reply: %v", more)
	}
	return reply
}

func wantReply(t *testing.T, got, want *protocol.Reply) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got %.300v\nwant %.300v", got, want)
	}
}

func TestGoldenReplies(t *testing.T) {
	info := &protocol.ClientInfo{User: "u1", Client: "c1", ConnInfo: protocol.Raw(`{"n":1}`)}
	tests := []struct {
		name     string
		reply    *protocol.Reply
		json     string
		protobuf string
	}{
		{"ping", &protocol.Reply{}, `{}`, "\x00"},
		{"publish", &protocol.Reply{Id: 3, Publish: &protocol.PublishResult{}}, `{"id":3,"publish":{}}`, "\x04\x08\x03\x42\x00"},
		{"error", &protocol.Reply{Id: 300, Error: &protocol.Error{Code: 109, Message: "token expired"}},
			`{"id":300,"error":{"code":109,"message":"token expired"}}`, "\x16\x08\xac\x02\x12\x11\x08\x6d\x12\x0dtoken expired"},
		{"rpc", &protocol.Reply{Id: 1, Rpc: &protocol.RPCResult{Data: protocol.Raw(`[1]`)}}, `{"id":1,"rpc":{"data":[1]}}`, "\x09\x08\x01\x6a\x05\x0a\x03[1]"},
		{"join", &protocol.Reply{Push: &protocol.Push{Channel: "r", Join: &protocol.Join{Info: info}}},
			`{"push":{"channel":"r","join":{"info":{"user":"u1","client":"c1","conn_info":{"n":1}}}}}`,
			"\x1a\x22\x18\x12\x01r\x2a\x13\x0a\x11\x0a\x02u1\x12\x02c1\x1a\x07" + `{"n":1}`},
		{"unsubscribe", &protocol.Reply{Push: &protocol.Push{Channel: "r", Unsubscribe: &protocol.Unsubscribe{Code: 2500, Reason: "x"}}},
			`{"push":{"channel":"r","unsubscribe":{"code":2500,"reason":"x"}}}`, "\x0d\x22\x0b\x12\x01r\x3a\x06\x10\xc4\x13\x1a\x01x"},
		{"message", &protocol.Reply{Push: &protocol.Push{Message: &protocol.Message{Data: protocol.Raw(`"hi"`)}}},
			`{"push":{"message":{"data":"hi"}}}`, "\x0a\x22\x08\x42\x06\x0a\x04" + `"hi"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for e, want := range map[wire.Encoding]string{wire.JSON: tt.json, wire.Protobuf: tt.protobuf} {
				want = string(rune(len(want))) + want
				first := "\x81"
				if e == wire.Protobuf {
					first = "\x82"
				}
				got, err := e.AppendReply([]byte("<"), tt.reply)
				if err != nil || string(got) != "<"+first+want {
					t.Errorf("%v: got %q, %v, want %q", e, got, err, first+want)
				}
				if push := tt.reply.Push; push != nil {
					if pushed, err := e.AppendPush([]byte("<"), push); err != nil || !bytes.Equal(pushed, got) {
						t.Errorf("%v: pushed %q, %v", e, pushed, err)
					}
				}
				if tt.name == "ping" && string(e.Ping()) != first+want {
					t.Errorf("%v: ping is %q", e, e.Ping())
				}
			}
		})
	}
}

func TestBigReplies(t *testing.T) {
	for e := range wire.Encoding(wire.Encodings) {
		for _, size := range []int{1, 90, 100, 127, 1000, 65500, 65536, 256 << 10} {
			want := &protocol.Reply{Id: 1, Rpc: &protocol.RPCResult{Data: protocol.Raw(`"` + strings.Repeat("x", size) + `"`)}}
			b, err := e.AppendReply(nil, want)
			if err != nil {
				t.Fatal(err)
			}
			wantReply(t, open(t, e, b), want)
		}
	}
}

// publications are such as a room may hold; none encodes to nothing.
func publications() []*protocol.Publication {
	return []*protocol.Publication{
		{Data: protocol.Raw(`{"n":1}`), Offset: 1},
		{Data: protocol.Raw(`"ü"`), Offset: 1 << 40, Info: &protocol.ClientInfo{User: "u", Client: "c", ConnInfo: protocol.Raw(`1`), ChanInfo: protocol.Raw(`{}`)}},
		{Data: protocol.Raw(`"` + strings.Repeat("x", 200) + `"`)},
		{Data: protocol.Raw(`"` + strings.Repeat("x", 70_000) + `"`), Offset: 4, Tags: map[string]string{"a": "b"}},
		{},
	}
}

func TestPublication(t *testing.T) {
	rooms := []string{"r", "chat:lobby", strings.Repeat("ü", 127), `<"&\>`}
	for e := range wire.Encoding(wire.Encodings) {
		for _, room := range rooms {
			for _, p := range publications() {
				b, start, end, err := e.AppendPublication([]byte("before"), room, p)
				if err != nil {
					t.Fatal(err)
				}
				frame, ok := bytes.CutPrefix(b, []byte("before"))
				if !ok {
					t.Fatalf("dst is lost: %q", b[:6])
				}
				wantReply(t, open(t, e, frame), &protocol.Reply{Push: &protocol.Push{Channel: room, Pub: p}})
				bare := new(protocol.Publication)
				if e == wire.Protobuf {
					err = bare.UnmarshalCF(b[start:end])
				} else if n := bare.DecodeJSON(b[start:end], 0, 0); n != end-start {
					t.Errorf("%v: bare publication ends at %d of %d", e, n, end-start)
				}
				if err != nil || !proto.Equal(bare, p) {
					t.Errorf("%v: bare publication is %.200v, %v, want %.200v", e, bare, err, p)
				}
			}
		}
	}
}

func TestGoldenPublication(t *testing.T) {
	p := &protocol.Publication{Data: protocol.Raw("{\n\"n\": 1}"), Offset: 300}
	b, start, end, err := wire.JSON.AppendPublication(nil, "chat:a", p)
	if want := "\x81\x3e" + `{"push":{"channel":"chat:a","pub":{"data":{"n": 1},"offset":300}}}`; err != nil || string(b) != "\x81"+string(rune(len(want)-2))+want[2:] {
		t.Errorf("got %q, %v, want %q", b, err, want)
	}
	if got, want := string(b[start:end]), `{"data":{"n": 1},"offset":300}`; got != want {
		t.Errorf("bare: got %q, want %q", got, want)
	}
	p.Data = protocol.Raw(`{}`)
	b, start, end, err = wire.Protobuf.AppendPublication(nil, "r", p)
	if want := "\x82\x0f\x0e\x22\x0c\x12\x01r\x22\x07\x22\x02{}\x30\xac\x02"; err != nil || string(b) != want {
		t.Errorf("got %q, %v, want %q", b, err, want)
	}
	if got, want := string(b[start:end]), "\x22\x02{}\x30\xac\x02"; got != want {
		t.Errorf("bare: got %q, want %q", got, want)
	}
}

// bare encodes publications one by one, as a room's log holds them.
func bare(t *testing.T, e wire.Encoding, pubs []*protocol.Publication) (out [][]byte) {
	t.Helper()
	for _, p := range pubs {
		b, start, end, err := e.AppendPublication(nil, "other", p)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b[start:end])
	}
	return out
}

func results() []*protocol.SubscribeResult {
	return []*protocol.SubscribeResult{
		{},
		{Recoverable: true, Positioned: true, Epoch: "e1", Offset: 12, Recovered: true, WasRecovering: true},
		{Expires: true, Ttl: 60, Data: protocol.Raw(`{"d":[1]}`), Epoch: `"<`},
	}
}

func TestSubscribeReply(t *testing.T) {
	for e := range wire.Encoding(wire.Encodings) {
		for _, r := range results() {
			for n := range len(publications()) + 1 {
				for _, id := range []uint32{0, 1, 1 << 31} {
					pubs := publications()[:n]
					got, err := e.AppendSubscribeReply([]byte("<"), id, r, bare(t, e, pubs))
					if err != nil || got[0] != '<' {
						t.Fatalf("%v: %v", e, err)
					}
					want := proto.Clone(r).(*protocol.SubscribeResult)
					want.Publications = pubs
					wantReply(t, open(t, e, got[1:]), &protocol.Reply{Id: id, Subscribe: want})
				}
			}
		}
	}
}

func TestConnectReply(t *testing.T) {
	connects := []*protocol.ConnectResult{
		{},
		{Client: "c1", Version: "hub 1.0", Expires: true, Ttl: 300, Data: protocol.Raw(`{"x":1}`), Ping: 25, Pong: true},
	}
	rooms := []string{"a", `odd"<room`, strings.Repeat("ü", 127)}
	for e := range wire.Encoding(wire.Encodings) {
		for _, r := range connects {
			for n := range len(rooms) + 1 {
				want := proto.Clone(r).(*protocol.ConnectResult)
				var subs []wire.Subscription
				for i, room := range rooms[:n] {
					pubs := publications()[:2*i]
					subs = append(subs, wire.Subscription{Room: room, Result: results()[i], Publications: bare(t, e, pubs)})
					if want.Subs == nil {
						want.Subs = map[string]*protocol.SubscribeResult{}
					}
					want.Subs[room] = proto.Clone(results()[i]).(*protocol.SubscribeResult)
					want.Subs[room].Publications = pubs
				}
				got, err := e.AppendConnectReply([]byte("<"), 1, r, subs)
				if err != nil || got[0] != '<' {
					t.Fatalf("%v: %v", e, err)
				}
				wantReply(t, open(t, e, got[1:]), &protocol.Reply{Id: 1, Connect: want})
			}
		}
	}
}

// Bytes that are no JSON value never reach a JSON client, in whichever field;
// dst stays as it was.
func TestInvalidRaw(t *testing.T) {
	dst := []byte("dst")
	for _, bad := range []protocol.Raw{protocol.Raw(`{`), protocol.Raw(`1,"b":2`), protocol.Raw("\"\xff\"")} {
		checks := map[string]func() ([]byte, error){
			"reply": func() ([]byte, error) {
				return wire.JSON.AppendReply(dst, &protocol.Reply{Rpc: &protocol.RPCResult{Data: bad}})
			},
			"push": func() ([]byte, error) {
				return wire.JSON.AppendPush(dst, &protocol.Push{Message: &protocol.Message{Data: bad}})
			},
			"publication": func() ([]byte, error) {
				b, _, _, err := wire.JSON.AppendPublication(dst, "r", &protocol.Publication{Data: bad})
				return b, err
			},
			"publisher": func() ([]byte, error) {
				b, _, _, err := wire.JSON.AppendPublication(dst, "r", &protocol.Publication{Info: &protocol.ClientInfo{ConnInfo: bad}})
				return b, err
			},
			"subscribe": func() ([]byte, error) {
				return wire.JSON.AppendSubscribeReply(dst, 1, &protocol.SubscribeResult{Data: bad}, nil)
			},
			"connect": func() ([]byte, error) {
				return wire.JSON.AppendConnectReply(dst, 1, &protocol.ConnectResult{Data: bad}, nil)
			},
			"connect's subscription": func() ([]byte, error) {
				return wire.JSON.AppendConnectReply(dst, 1, &protocol.ConnectResult{},
					[]wire.Subscription{{Room: "r", Result: &protocol.SubscribeResult{Data: bad}}})
			},
		}
		for name, check := range checks {
			if b, err := check(); !errors.Is(err, wire.ErrInvalidJSON) || string(b) != "dst" {
				t.Errorf("%s with %q: got %q, %v", name, bad, b, err)
			}
		}
	}
}

func TestSplicedTwice(t *testing.T) {
	full := &protocol.SubscribeResult{Publications: publications()[:1]}
	for e := range wire.Encoding(wire.Encodings) {
		if _, err := e.AppendSubscribeReply(nil, 1, full, nil); err == nil {
			t.Errorf("%v: publications of the result's own are accepted", e)
		}
		if _, err := e.AppendConnectReply(nil, 1, &protocol.ConnectResult{}, []wire.Subscription{{Room: "r", Result: full}}); err == nil {
			t.Errorf("%v: publications of a subscription's result are accepted", e)
		}
		if _, err := e.AppendConnectReply(nil, 1, &protocol.ConnectResult{Subs: map[string]*protocol.SubscribeResult{"r": {}}}, nil); err == nil {
			t.Errorf("%v: subs of the result's own are accepted", e)
		}
	}
}

func TestPublicationAllocations(t *testing.T) {
	p := publications()[1]
	buf := make([]byte, 0, 1024)
	for e := range wire.Encoding(wire.Encodings) {
		if n := testing.AllocsPerRun(100, func() {
			if _, _, _, err := e.AppendPublication(buf, "chat:lobby", p); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations", e, n)
		}
	}
}

func BenchmarkAppendPublication(b *testing.B) {
	p := &protocol.Publication{Data: protocol.Raw(`{"text":"` + strings.Repeat("x", 100) + `"}`), Offset: 12345,
		Info: &protocol.ClientInfo{User: "user-1", Client: "6bd5a3c2"}}
	for e := range wire.Encoding(wire.Encodings) {
		b.Run("encoding="+e.String(), func(b *testing.B) {
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if buf, _, _, err = e.AppendPublication(buf[:0], "chat:lobby", p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendReply(b *testing.B) {
	r := &protocol.Reply{Id: 12, Publish: &protocol.PublishResult{}}
	for e := range wire.Encoding(wire.Encodings) {
		b.Run("encoding="+e.String(), func(b *testing.B) {
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if buf, err = e.AppendReply(buf[:0], r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
