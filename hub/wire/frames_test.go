package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
	"unsafe"

	"github.com/gobwas/ws"

	"hub/hub/wire"
)

const limit = 256 << 10

// unhex returns the bytes of hexadecimal digits, spaces aside.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// masked returns a client's frame: the first byte as given, the rest of the
// header made for payload.
func masked(first byte, payload string) []byte {
	mask := [4]byte{0x37, 0xfa, 0x21, 0x3d}
	var b bytes.Buffer
	h := ws.Header{Fin: first&0x80 != 0, Rsv: first >> 4 & 7, OpCode: ws.OpCode(first & 0xf), Masked: true, Mask: mask, Length: int64(len(payload))}
	if err := ws.WriteHeader(&b, h); err != nil {
		panic(err)
	}
	p := []byte(payload)
	ws.Cipher(p, mask, 0)
	b.Write(p)
	return b.Bytes()
}

type message struct {
	Kind    wire.MessageKind
	Payload string
}

// decodeAll feeds b to a new decoder in pieces of step bytes, as a loop does.
func decodeAll(b []byte, step, limit int) (got []message, err error) {
	var d wire.Decoder
	var buf []byte
	for len(b) > 0 {
		k := min(step, len(b))
		buf = append(buf, b[:k]...)
		b = b[k:]
		for {
			m, n, err := d.Next(buf, limit)
			if err != nil {
				return got, err
			}
			if n == 0 {
				break
			}
			if m.Kind != 0 {
				got = append(got, message{m.Kind, string(m.Payload)})
			}
			clear(buf[:n]) // a loop uses its buffer again
			buf = buf[n:]
		}
	}
	return got, nil
}

func wantClose(t *testing.T, err error, code uint16) {
	t.Helper()
	var c *wire.CloseError
	if !errors.As(err, &c) || c.Code != code {
		t.Errorf("error is %v, want a close with %d", err, code)
	}
}

func TestDecoderVectors(t *testing.T) {
	tests := []struct {
		name   string
		stream string
		want   []message
	}{
		{"RFC 6455 5.7: masked text", "818537fa213d7f9f4d5158", []message{{wire.Text, "Hello"}}},
		{"RFC 6455 5.7: masked pong", "8a8537fa213d7f9f4d5158", []message{{wire.Pong, "Hello"}}},
		{"empty text", "8180 00000000", []message{{wire.Text, ""}}},
		{"empty close", "8880 01020304", []message{{wire.Close, ""}}},
		{"two frames in one segment", "8980 00000000 8281 00000000 41", []message{{wire.Ping, ""}, {wire.Binary, "A"}}},
		{"fragments", "0183 00000000 68656c 8082 00000000 6c6f", []message{{wire.Text, "hello"}}},
		{"ping inside a fragmented message", "0183 00000000 68656c 8983 00000000 6d6964 8082 00000000 6c6f",
			[]message{{wire.Ping, "mid"}, {wire.Text, "hello"}}},
		{"empty fragments", "0280 00000000 0080 00000000 0081 00000000 41 8080 00000000", []message{{wire.Binary, "A"}}},
		{"a character cut by a fragment", "0181 00000000 c3 8081 00000000 bc", []message{{wire.Text, "ü"}}},
		{"two fragmented messages", "0181 00000000 41 8081 00000000 42 0281 00000000 43 8081 00000000 44",
			[]message{{wire.Text, "AB"}, {wire.Binary, "CD"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := unhex(t, tt.stream)
			for _, step := range []int{len(b), 1, 2, 3, 7} {
				got, err := decodeAll(b, step, limit)
				if err != nil || !slices.Equal(got, tt.want) {
					t.Errorf("in pieces of %d: got %v, %v, want %v", step, got, err, tt.want)
				}
			}
		})
	}
}

func TestDecoderRefuses(t *testing.T) {
	tests := []struct {
		name   string
		stream string
		code   uint16
	}{
		{"unmasked text", "8102", 1002},
		{"unmasked ping", "8900", 1002},
		{"unmasked close", "8800", 1002},
		{"rsv1", "c180", 1002},
		{"rsv2", "a180", 1002},
		{"rsv3", "9180", 1002},
		{"rsv1 of a ping", "c980", 1002},
		{"op code 3", "8380", 1002},
		{"op code 7", "8780", 1002},
		{"op code 11", "8b80", 1002},
		{"op code 15", "8f80", 1002},
		{"fragmented ping", "0980", 1002},
		{"fragmented close", "0880", 1002},
		{"ping of 126", "89fe", 1002},
		{"close with a 64-bit length", "88ff", 1002},
		{"continuation of nothing", "8080", 1002},
		{"unfinished continuation of nothing", "0080", 1002},
		{"continuation after a whole message", "8180 00000000 8080", 1002},
		{"text inside a fragmented message", "0180 00000000 8180", 1002},
		{"binary inside a fragmented message", "0180 00000000 0280", 1002},
		{"top bit of a length", "82ff 8000000000000001", 1002},
		{"length of 125 in two bytes", "82fe 007d", 1002},
		{"length of 65535 in eight bytes", "82ff 000000000000ffff", 1002},
		{"length of 2^62", "82ff 4000000000000000", 1009},
		{"length of 2^63-1", "82ff 7fffffffffffffff", 1009},
		{"fragments past 2^63", "0281 00000000 41 80ff 7fffffffffffffff", 1009},
		{"length over the limit", "82ff 0000000000040001", 1009},
		{"bad UTF-8", "8182 00000000 c328", 1007},
		{"surrogate", "8183 00000000 eda080", 1007},
		{"character cut at the end of the message", "0181 00000000 41 8081 00000000 c3", 1007},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := unhex(t, tt.stream)
			for _, step := range []int{len(b), 1} {
				_, err := decodeAll(b, step, limit)
				wantClose(t, err, tt.code)
			}
			// The last byte is the one that proves the fault: not a byte earlier.
			if _, err := decodeAll(b[:len(b)-1], len(b), limit); err != nil {
				t.Errorf("refused a byte early: %v", err)
			}
		})
	}
}

func TestDecoderLengths(t *testing.T) {
	for _, size := range []int{0, 1, 125, 126, 127, 65535, 65536, limit - 1, limit} {
		payload := strings.Repeat("x", size)
		frame := masked(0x82, payload)
		for _, step := range []int{len(frame), 1000} {
			got, err := decodeAll(frame, step, limit)
			if err != nil || len(got) != 1 || got[0] != (message{wire.Binary, payload}) {
				t.Errorf("length %d in pieces of %d: %d messages, %v", size, step, len(got), err)
			}
		}
		var d wire.Decoder
		for k := range 15 {
			if need, err := d.Need(frame[:min(k, len(frame))], limit); err != nil || need != 0 && need != len(frame) {
				t.Errorf("length %d: after %d bytes need %d, %v, want %d", size, k, need, err, len(frame))
			}
		}
		if need, _ := d.Need(frame, limit); need != len(frame) {
			t.Errorf("length %d: need %d of the whole frame", size, need)
		}
	}
	_, err := decodeAll(masked(0x82, strings.Repeat("x", limit+1)), 1<<20, limit)
	wantClose(t, err, 1009)
	// A control frame does not count against the limit of messages.
	if got, err := decodeAll(masked(0x89, strings.Repeat("x", 125)), 200, 10); err != nil || len(got) != 1 {
		t.Errorf("ping of 125: %v, %v", got, err)
	}
}

func TestDecoderLimitsTheSum(t *testing.T) {
	var d wire.Decoder
	for i := range 4 {
		first := byte(0)
		if i == 0 {
			first = 2
		}
		frame := masked(first, strings.Repeat("x", limit/4))
		if _, n, err := d.Next(frame, limit); err != nil || n != len(frame) {
			t.Fatalf("fragment %d: took %d, %v", i, n, err)
		}
	}
	if !d.Fragmented() {
		t.Error("not fragmented in the middle of a message")
	}
	_, err := d.Need(masked(0x80, "x"), limit)
	wantClose(t, err, 1009)
	_, _, err = d.Next(masked(0x80, "x"), limit)
	wantClose(t, err, 1009)
	if m, n, err := d.Next(masked(0x80, ""), limit); n == 0 || err != nil || len(m.Payload) != limit {
		t.Errorf("exactly the limit: took %d, %v, payload %d", n, err, len(m.Payload))
	}
	if d.Fragmented() {
		t.Error("fragmented after the message")
	}
}

// An idle connection costs no more than the struct, and a header no allocation.
func TestDecoderMemory(t *testing.T) {
	if size := unsafe.Sizeof(wire.Decoder{}); size > 48 {
		t.Errorf("a decoder takes %d bytes", size)
	}
	var d wire.Decoder
	frame := masked(0x82, strings.Repeat("x", 1000))
	if allocs := testing.AllocsPerRun(100, func() {
		if _, n, _ := d.Next(frame, limit); n == 0 {
			t.Error("nothing taken")
		}
		if _, n, _ := d.Next(frame[:13], limit); n != 0 {
			t.Error("half a frame taken")
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
	// The decoder lets go of the payload of a fragmented message with it.
	var fragmented wire.Decoder
	if _, _, err := fragmented.Next(masked(0x02, "abc"), limit); err != nil {
		t.Fatal(err)
	}
	if m, _, err := fragmented.Next(masked(0x80, "def"), limit); err != nil || string(m.Payload) != "abcdef" {
		t.Fatalf("got %q, %v", m.Payload, err)
	}
	if !reflect.DeepEqual(fragmented, wire.Decoder{}) {
		t.Error("the decoder keeps memory after the message")
	}
}

func TestParseClose(t *testing.T) {
	tests := []struct {
		payload string
		code    uint16
		reason  string
		fault   uint16
	}{
		{"", 1005, "", 0},
		{"03e8", 1000, "", 0},
		{"03e9 627965", 1001, "bye", 0},
		{"0f9f c3bc", 3999, "ü", 0},
		{"1387", 4999, "", 0},
		{"03f6", 1014, "", 0},
		{"03", 0, "", 1002},
		{"0000", 0, "", 1002},
		{"03e7", 0, "", 1002}, // 999
		{"03ec", 0, "", 1002}, // 1004
		{"03ed", 0, "", 1002}, // 1005
		{"03ee", 0, "", 1002}, // 1006
		{"03f7", 0, "", 1002}, // 1015
		{"0bb7", 0, "", 1002}, // 2999
		{"1388", 0, "", 1002}, // 5000
		{"ffff", 0, "", 1002},
		{"03e8 c328", 0, "", 1007},
	}
	for _, tt := range tests {
		code, reason, err := wire.ParseClose(unhex(t, tt.payload))
		if tt.fault != 0 {
			wantClose(t, err, tt.fault)
			continue
		}
		if err != nil || code != tt.code || reason != tt.reason {
			t.Errorf("%s: got %d %q %v, want %d %q", tt.payload, code, reason, err, tt.code, tt.reason)
		}
	}
}

func TestAppendClose(t *testing.T) {
	long := strings.Repeat("a", 122)
	tests := []struct {
		code   uint16
		reason string
		want   string // the payload
	}{
		{0, "", ""},
		{0, "ignored", ""},
		{1000, "", "\x03\xe8"},
		{3001, "shutdown", "\x0b\xb9shutdown"},
		{1004, "x", ""},
		{1005, "x", ""},
		{1006, "x", ""},
		{1015, "x", ""},
		{999, "x", ""},
		{2500, "x", ""},
		{5000, "x", ""},
		{65535, "x", ""},
		{3000, long + "b", "\x0b\xb8" + long + "b"},
		{3000, long + "bc", "\x0b\xb8" + long + "b"},
		{3000, long + "ü", "\x0b\xb8" + long}, // 124 bytes: cut before the character
		{3000, long[1:] + "😀", "\x0b\xb8" + long[1:]},
		{3000, "a\xffb", "\x0b\xb8a\uFFFDb"},
	}
	for _, tt := range tests {
		got := wire.AppendClose([]byte("before"), tt.code, tt.reason)
		want := "before\x88" + string(rune(len(tt.want))) + tt.want
		if string(got) != want {
			t.Errorf("%d %q: got %q, want %q", tt.code, tt.reason, got, want)
		}
	}
}

func TestAppendFrame(t *testing.T) {
	if got, want := wire.AppendFrame(nil, ws.OpText, []byte("Hello")), unhex(t, "810548656c6c6f"); !bytes.Equal(got, want) {
		t.Errorf("RFC 6455 5.7 text: got %x, want %x", got, want)
	}
	for _, size := range []int{0, 125, 126, 256, 65535, 65536, limit} {
		payload := bytes.Repeat([]byte{'x'}, size)
		want := ws.MustCompileFrame(ws.NewBinaryFrame(payload))
		if got := wire.AppendFrame([]byte("ab"), ws.OpBinary, payload); !bytes.Equal(got, append([]byte("ab"), want...)) {
			t.Errorf("%d bytes: got a header %x", size, got[2:min(16, len(got))])
		}
	}
}

// model decodes a stream with the library's reader and the rules of RFC 6455.
func model(b []byte, limit int) (got []message, code uint16) {
	r := bytes.NewReader(b)
	var fragments []byte
	var kind wire.MessageKind
	kinds := map[ws.OpCode]wire.MessageKind{ws.OpText: wire.Text, ws.OpBinary: wire.Binary,
		ws.OpPing: wire.Ping, ws.OpPong: wire.Pong, ws.OpClose: wire.Close}
	for {
		left := r.Len()
		h, err := ws.ReadHeader(r)
		if errors.Is(err, ws.ErrHeaderLengthMSB) {
			return got, 1002
		}
		if err != nil {
			return got, 0
		}
		state := ws.StateServerSide
		if kind != 0 {
			state |= ws.StateFragmented
		}
		head := 2 // bytes of a header without mask
		switch {
		case h.Length >= 1<<16:
			head = 10
		case h.Length >= 126:
			head = 4
		}
		if ws.CheckHeader(h, state) != nil || left-r.Len() != head+len(h.Mask) {
			return got, 1002
		}
		if h.OpCode.IsData() && h.Length > int64(limit-len(fragments)) {
			return got, 1009
		}
		payload := make([]byte, h.Length)
		if _, err := io.ReadFull(r, payload); err != nil {
			return got, 0
		}
		ws.Cipher(payload, h.Mask, 0)
		if h.OpCode.IsControl() {
			got = append(got, message{kinds[h.OpCode], string(payload)})
			continue
		}
		if h.OpCode != ws.OpContinuation {
			kind = kinds[h.OpCode]
		}
		fragments = append(fragments, payload...)
		if !h.Fin {
			continue
		}
		if kind == wire.Text && !utf8.Valid(fragments) {
			return got, 1007
		}
		got = append(got, message{kind, string(fragments)})
		fragments, kind = nil, 0
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add([]byte("\x01\x83\x00\x00\x00\x00hel\x89\x83\x00\x00\x00\x00mid\x80\x82\x00\x00\x00\x00lo"), 1)
	f.Add(binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, 1<<63), 3)
	f.Add(masked(0x81, `{"id":1}`), 2)
	f.Add(masked(0x88, "\x03\xe8bye"), 5)
	f.Add(masked(0x82, strings.Repeat("x", 200)), 7)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		const limit = 150
		if step <= 0 {
			step = 1
		}
		want, code := model(b, limit)
		for _, step := range []int{max(len(b), 1), step} {
			got, err := decodeAll(b, step, limit)
			var c *wire.CloseError
			if err != nil && !errors.As(err, &c) {
				t.Fatalf("error is %v", err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("in pieces of %d: got %q, want %q", step, got, want)
			}
			// Faults are seen earlier than by a reader that wants the whole header.
			if code != 0 && (c == nil || c.Code != code && code != 1002) {
				t.Fatalf("in pieces of %d: error is %v, want %d", step, err, code)
			}
		}
		var d wire.Decoder
		if _, n, _ := d.Next(bytes.Clone(b), limit); n > len(b) || n < 0 {
			t.Fatalf("took %d of %d", n, len(b))
		}
	})
}

func BenchmarkDecoder(b *testing.B) {
	for _, size := range []string{"64", "1024", "65536"} {
		b.Run("payload="+size, func(b *testing.B) {
			n := map[string]int{"64": 64, "1024": 1024, "65536": 65536}[size]
			frame := masked(0x81, strings.Repeat("x", n))
			// Masked with zeros, so that unmasking in place can be repeated.
			copy(frame[len(frame)-n-4:], make([]byte, 4))
			copy(frame[len(frame)-n:], strings.Repeat("x", n))
			var d wire.Decoder
			b.ReportAllocs()
			b.SetBytes(int64(len(frame)))
			for b.Loop() {
				if _, n, err := d.Next(frame, limit); n == 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}
