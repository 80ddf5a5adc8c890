package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/centrifugal/protocol"
	"google.golang.org/protobuf/proto"

	"hub/hub/wire"
)

// commands are one of each kind, with every string set.
func commands() []*protocol.Command {
	filter := &protocol.FilterNode{Op: "and", Nodes: []*protocol.FilterNode{{Key: "key", Cmp: "in", Val: "val", Vals: []string{"v1", "v2"}}}}
	subscribe := func() *protocol.SubscribeRequest {
		return &protocol.SubscribeRequest{Channel: "chat:lobby", Token: "subscription token", Recover: true, Epoch: "epoch", Offset: 7,
			Data: protocol.Raw(`{"d":1}`), Delta: "fossil", Cursor: "cursor", Tf: filter}
	}
	return []*protocol.Command{
		{Id: 1, Connect: &protocol.ConnectRequest{Token: "connection token", Data: protocol.Raw(`{"a":1}`), Name: "js", Version: "1.0", Profile: "profile", Dict: "dict",
			Subs: map[string]*protocol.SubscribeRequest{"room one": subscribe(), "room two": {}}, Headers: map[string]string{"name": "value"}}},
		{Id: 2, Subscribe: subscribe()},
		{Id: 3, Unsubscribe: &protocol.UnsubscribeRequest{Channel: "chat:lobby"}},
		{Id: 4, Publish: &protocol.PublishRequest{Channel: "chat:lobby", Data: protocol.Raw(`"text"`), Key: "the key"}},
		{Id: 5, Presence: &protocol.PresenceRequest{Channel: "chat:lobby"}},
		{Id: 6, PresenceStats: &protocol.PresenceStatsRequest{Channel: "chat:lobby"}},
		{Id: 7, History: &protocol.HistoryRequest{Channel: "chat:lobby", Limit: 3, Since: &protocol.StreamPosition{Offset: 3, Epoch: "epoch"}}},
		{Id: 8, Ping: &protocol.PingRequest{}},
		{Send: &protocol.SendRequest{Data: protocol.Raw(`[]`)}},
		{Id: 9, Rpc: &protocol.RPCRequest{Method: "operate", Data: protocol.Raw(`{}`)}},
		{Id: 10, Refresh: &protocol.RefreshRequest{Token: "refresh token"}},
		{Id: 11, SubRefresh: &protocol.SubRefreshRequest{Channel: "chat:lobby", Token: "subscription token", Untrack: []string{"untracked"},
			Track: []*protocol.TrackBatch{{Signature: "signature", Items: []*protocol.KeyedItem{{Key: "item key"}}}}}},
		{},
	}
}

// payload encodes commands as a client does.
func payload(t testing.TB, e wire.Encoding, commands ...*protocol.Command) []byte {
	t.Helper()
	var lines [][]byte
	for _, c := range commands {
		var b []byte
		var err error
		if e == wire.Protobuf {
			b, err = protocol.NewProtobufCommandEncoder().Encode(c)
		} else {
			b, err = protocol.NewJSONCommandEncoder().Encode(c)
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, b)
	}
	if e == wire.Protobuf {
		return bytes.Join(lines, nil)
	}
	return bytes.Join(lines, []byte{'\n'})
}

func readAll(r wire.CommandReader) (got []*protocol.Command, err error) {
	for {
		c, err := r.Next()
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		got = append(got, c)
	}
}

func wantCommands(t *testing.T, got, want []*protocol.Command) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d commands, want %d", len(got), len(want))
	}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("command %d is %v, want %v", i, got[i], want[i])
		}
	}
}

func TestCommands(t *testing.T) {
	for e := range wire.Encoding(wire.Encodings) {
		t.Run(e.String(), func(t *testing.T) {
			b := payload(t, e, commands()...)
			got, err := readAll(e.Commands(b, 64<<10))
			if err != nil {
				t.Fatal(err)
			}
			wantCommands(t, got, commands())

			// The rest can be put aside after any command.
			for k := range commands() {
				r := e.Commands(b, 64<<10)
				for range k {
					if _, err := r.Next(); err != nil {
						t.Fatal(err)
					}
				}
				got, err := readAll(e.Commands(bytes.Clone(r.Rest()), 64<<10))
				if err != nil {
					t.Fatal(err)
				}
				wantCommands(t, got, commands()[k:])
			}
		})
	}
}

func TestCommandsByHand(t *testing.T) {
	connect := &protocol.Command{Id: 1, Connect: &protocol.ConnectRequest{}}
	subscribe := &protocol.Command{Id: 2, Subscribe: &protocol.SubscribeRequest{Channel: "r"}}
	pong := &protocol.Command{}
	tests := []struct {
		name    string
		e       wire.Encoding
		payload string
		want    []*protocol.Command
	}{
		{"json", wire.JSON, `{"id":1,"connect":{}}` + "\n" + `{"id":2,"subscribe":{"channel":"r"}}`, []*protocol.Command{connect, subscribe}},
		{"json, blank lines", wire.JSON, "\n \n\r\n{\"id\":1,\"connect\":{}}\r\n\n{}\n\n", []*protocol.Command{connect, pong}},
		{"json, nothing", wire.JSON, "", nil},
		{"protobuf", wire.Protobuf, "\x04\x08\x01\x22\x00\x07\x08\x02\x2a\x03\x0a\x01r\x00", []*protocol.Command{connect, subscribe, pong}},
		{"protobuf, nothing", wire.Protobuf, "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readAll(tt.e.Commands([]byte(tt.payload), 100))
			if err != nil {
				t.Fatal(err)
			}
			wantCommands(t, got, tt.want)
		})
	}
}

func TestCommandsRefused(t *testing.T) {
	exact := `{"id":1,"rpc":{"data":"` + strings.Repeat("x", 74) + `"}}` // 100 bytes
	tests := []struct {
		name    string
		e       wire.Encoding
		payload string
		good    int
		want    error // nil: any but the two sentinels
	}{
		{"json at the limit", wire.JSON, exact, 1, io.EOF},
		{"json over the limit", wire.JSON, exact + " ", 0, wire.ErrCommandTooLarge},
		{"second json over the limit", wire.JSON, "{}\n" + exact + " \n{}", 1, wire.ErrCommandTooLarge},
		{"many small ones", wire.JSON, strings.Repeat("{}\n", 1000), 1000, io.EOF},
		{"long blank line", wire.JSON, strings.Repeat(" ", 200), 0, io.EOF},
		{"not json", wire.JSON, "foo", 0, nil},
		{"two values on a line", wire.JSON, "{}{}", 0, nil},
		{"an array", wire.JSON, "[]", 0, nil},
		{"wrong type", wire.JSON, `{"id":"1"}`, 0, nil},
		{"negative id", wire.JSON, `{"id":-1}`, 0, nil},
		{"unclosed", wire.JSON, `{"id":1`, 0, nil},
		{"bad UTF-8", wire.JSON, "{\"id\":1,\"connect\":{\"token\":\"\xff\"}}", 0, nil},
		{"protobuf at the limit", wire.Protobuf, "\x64\x6a\x62\x0a\x60" + strings.Repeat("x", 96), 1, io.EOF},
		{"protobuf over the limit", wire.Protobuf, "\x00\x65", 1, wire.ErrCommandTooLarge},
		{"protobuf length of 2^63", wire.Protobuf, string(binary.AppendUvarint(nil, 1<<63)), 0, wire.ErrCommandTooLarge},
		{"protobuf length without end", wire.Protobuf, "\x80", 0, nil},
		{"protobuf length over 64 bits", wire.Protobuf, strings.Repeat("\xff", 10) + "\x01", 0, nil},
		{"protobuf cut", wire.Protobuf, "\x04\x08\x01\x22", 0, nil},
		{"protobuf with bad UTF-8", wire.Protobuf, "\x08\x08\x01\x22\x04\x0a\x02\xc3\x28", 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.e.Commands([]byte(tt.payload), 100)
			for i := range tt.good {
				if c, err := r.Next(); c == nil || err != nil {
					t.Fatalf("command %d: %v", i, err)
				}
			}
			c, err := r.Next()
			if c != nil || err == nil || tt.want != nil && !errors.Is(err, tt.want) ||
				tt.want == nil && (err == io.EOF || errors.Is(err, wire.ErrCommandTooLarge)) {
				t.Errorf("got %v, error %v, want %v", c, err, tt.want)
			}
			if len(r.Rest()) != 0 {
				t.Errorf("%d bytes are left after an error", len(r.Rest()))
			}
			if _, err := r.Next(); err != io.EOF {
				t.Errorf("after the error: %v", err)
			}
		})
	}
}

// The read buffer of a loop is used again as soon as the commands are taken
// off it, so no command may point into it.
func TestCommandsAreCopies(t *testing.T) {
	for e := range wire.Encoding(wire.Encodings) {
		b := payload(t, e, commands()...)
		got, err := readAll(e.Commands(b, 64<<10))
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			b[i] = 'Z'
		}
		wantCommands(t, got, commands())
	}
}

func FuzzCommands(f *testing.F) {
	for e := range wire.Encoding(wire.Encodings) {
		f.Add(payload(f, e, commands()...), e == wire.Protobuf)
		for _, c := range commands() {
			f.Add(payload(f, e, c), e == wire.Protobuf)
		}
	}
	f.Add([]byte("\n{}\r\n\n{\"id\":1}"), false)
	f.Fuzz(func(t *testing.T, b []byte, protobuf bool) {
		e := wire.JSON
		if protobuf {
			e = wire.Protobuf
		}
		const limit = 1000
		before := bytes.Clone(b)
		r := e.Commands(b, limit)
		rest := len(r.Rest())
		var got []*protocol.Command
		for {
			c, err := r.Next()
			if err != nil {
				break
			}
			if len(r.Rest()) >= rest {
				t.Fatal("no progress")
			}
			rest = len(r.Rest())
			got = append(got, c)
		}
		if !bytes.Equal(b, before) {
			t.Fatal("the payload was changed")
		}
		// What decodes is the same after another round.
		encoded := payload(t, e, got...)
		again, err := readAll(e.Commands(encoded, 1<<30))
		if err != nil || len(again) != len(got) {
			t.Fatalf("%d commands became %d, %v", len(got), len(again), err)
		}
		for i := range got {
			if !proto.Equal(got[i], again[i]) {
				t.Fatalf("command %v became %v", got[i], again[i])
			}
		}
	})
}

func BenchmarkCommands(b *testing.B) {
	for e := range wire.Encoding(wire.Encodings) {
		b.Run("encoding="+e.String(), func(b *testing.B) {
			p := payload(b, e, commands()[3])
			b.ReportAllocs()
			for b.Loop() {
				r := e.Commands(p, 64<<10)
				if _, err := r.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
