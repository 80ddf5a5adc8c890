package hub

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
	"github.com/gobwas/ws"

	"hub/hub/wire"
)

// pong reads until a pong and returns its payload and what came before it.
func (c *tester) pong() (payload string, before []ws.Frame) {
	c.t.Helper()
	for {
		f, err := c.readFrame()
		if err != nil {
			c.t.Fatalf("waiting for a pong: %v", err)
		}
		if f.Header.OpCode == ws.OpPong {
			return string(f.Payload), before
		}
		before = append(before, f)
	}
}

func (c *tester) raw(b []byte) {
	c.t.Helper()
	if err := c.write(b); err != nil {
		c.t.Fatal(err)
	}
}

// A ping between two fragments is answered at once and is no part of the message.
func TestPingInsideFragments(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		c := s.open(t, wire.JSON)
		connect := fmt.Sprintf(`{"id":1,"connect":{"token":%q}}`, token(t, "u"))
		c.raw(rawFrame(false, ws.OpText, []byte(connect[:10])))
		c.raw(rawFrame(true, ws.OpPing, []byte("mid")))
		if payload, before := c.pong(); payload != "mid" || len(before) > 0 {
			t.Errorf("pong %q after %d frames, want mid at once", payload, len(before))
		}
		c.raw(rawFrame(false, ws.OpContinuation, nil))
		c.raw(rawFrame(true, ws.OpContinuation, []byte(connect[10:])))
		if r, err := c.read(); err != nil || r.Connect == nil {
			t.Errorf("got %v, %v, want the connect reply", r, err)
		}
	})
}

// Frames that break the protocol end the connection with a code that says why.
func TestBadFrames(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		length := func(first byte, n uint64) []byte {
			return append(binary.BigEndian.AppendUint64([]byte{first, 0xff}, n), 1, 2, 3, 4)
		}
		for name, test := range map[string]struct {
			bytes []byte
			codes []uint16
		}{
			"unmasked text":       {[]byte{0x81, 0x02, 'h', 'i'}, []uint16{1002}},
			"unmasked ping":       {[]byte{0x89, 0x00}, []uint16{1002}},
			"unmasked close":      {[]byte{0x88, 0x00}, []uint16{1002}},
			"length with top bit": {append(length(0x82, 1<<63|1), 'A'), []uint16{1002, 1009}},
			"length of 2^62":      {length(0x82, 1<<62), []uint16{1009}},
			"lengths that wrap":   {append(rawFrame(false, ws.OpBinary, []byte("A")), length(0x80, 1<<63-1)...), []uint16{1009}},
			"reserved bit":        {[]byte{0xc1, 0x80, 1, 2, 3, 4}, []uint16{1002}},
			"lone continuation":   {rawFrame(true, ws.OpContinuation, nil), []uint16{1002}},
			"no UTF-8":            {rawFrame(true, ws.OpText, []byte{0xff}), []uint16{1007}},
			"message too big":     {length(0x81, maxFrame+1), []uint16{1009}},
			"not a command":       {rawFrame(true, ws.OpText, []byte("foo")), []uint16{3501}},
			"command without id":  {rawFrame(true, ws.OpText, []byte(`{"connect":{}}`)), []uint16{3501}},
			"command too large":   {rawFrame(true, ws.OpText, []byte(`{"id":1,"connect":{"name":"`+strings.Repeat("x", maxCommand)+`"}}`)), []uint16{3501}},
			"empty close":         {rawFrame(true, ws.OpClose, nil), []uint16{0, 1000}},
			"close 1000":          {rawFrame(true, ws.OpClose, []byte{0x03, 0xe8, 'b', 'y', 'e'}), []uint16{1000}},
			"close 1005":          {rawFrame(true, ws.OpClose, []byte{0x03, 0xed}), []uint16{1002}},
			"close of one byte":   {rawFrame(true, ws.OpClose, []byte{0x03}), []uint16{1002}},
		} {
			t.Run(name, func(t *testing.T) {
				c := s.open(t, wire.JSON)
				c.raw(test.bytes)
				err := c.end()
				var end *closed
				if !errors.As(err, &end) {
					t.Fatalf("ended with %v, want a close frame %v", err, test.codes)
				}
				for _, code := range test.codes {
					if end.code == code {
						return
					}
				}
				t.Errorf("closed with %d %q, want %v", end.code, end.reason, test.codes)
			})
		}
	})
}

// Fifty messages in one segment are answered without further input, also when
// the end of the stream follows them.
func TestManyMessagesInOneSegment(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		for _, half := range []bool{false, true} {
			c := s.open(t, wire.JSON)
			all := c.frame(&protocol.Command{Connect: &protocol.ConnectRequest{Token: token(t, "u")}})
			for range 49 {
				all = append(all, c.frame(unsubscribeFrom("open:x"))...)
			}
			c.raw(all)
			if half {
				// What was answered before the end was seen must arrive.
				if err := c.conn.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			for id := uint32(1); id <= 50; id++ {
				if r, err := c.read(); err != nil || r.Id != id || r.Error != nil {
					t.Fatalf("half closed %v: got %v, %v, want reply %d", half, r, err, id)
				}
			}
		}
	})
}

// Connections that stop in the middle of a frame or of a request hold up nobody.
func TestHalfFramesParkNobody(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		for range 32 {
			s.open(t, wire.JSON).raw([]byte{0x82, 0xfe, 0x10})
			if _, err := io.WriteString(s.dial(t), "GET /connection/websocket HTTP/1.1\r\nHos"); err != nil {
				t.Fatal(err)
			}
		}
		c := s.connect(t, wire.JSON, "u")
		for _, b := range rawFrame(true, ws.OpPing, []byte("byte by byte")) {
			c.raw([]byte{b})
		}
		if payload, _ := c.pong(); payload != "byte by byte" {
			t.Errorf("pong %q", payload)
		}
	})
}

// A frame that never ends has a deadline; one that waits for its turn has none.
func TestUnfinishedFrameEnds(t *testing.T) {
	o := testOptions(t)
	o.Server.PingInterval, o.Server.PongTimeout = 2*time.Second, time.Second
	s := startServer(t, o, nil)
	c := s.connect(t, wire.JSON, "u")
	c.raw([]byte{0x82, 0xfe, 0x10})
	go func() { // it answers pings, in the middle of its frame they are part of it
		for range 40 {
			time.Sleep(100 * time.Millisecond)
			if c.write([]byte{0}) != nil {
				return
			}
		}
	}()
	c.closes(closeBadRequest.code)
}

// A handshake has one deadline in all, and bounded headers.
func TestSlowAndEndlessHandshakes(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		o.Server.HandshakeTimeout = 300 * time.Millisecond
		s := startServer(t, o, nil)
		head := "GET /connection/websocket HTTP/1.1\r\nHost: hub.test\r\n"
		for name, send := range map[string]func(io.Writer) error{
			"nothing": func(io.Writer) error { return nil },
			"half a line": func(w io.Writer) error {
				_, err := io.WriteString(w, head[:40])
				return err
			},
			"line by line": func(w io.Writer) error {
				_, err := io.WriteString(w, head)
				for i := 0; err == nil; i++ {
					time.Sleep(20 * time.Millisecond)
					_, err = fmt.Fprintf(w, "X-%d: y\r\n", i)
				}
				return nil
			},
			"20,000 lines": func(w io.Writer) error {
				_, _ = io.WriteString(w, head+strings.Repeat("A: b\r\n", 20_000))
				return nil // it may be refused before all is sent
			},
			"2 MiB in a line": func(w io.Writer) error {
				_, _ = io.WriteString(w, head+"A: "+strings.Repeat("b", 2<<20))
				return nil
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				conn := s.dial(t)
				started := time.Now()
				sent := make(chan error, 1)
				go func() { sent <- send(conn) }()
				_ = conn.SetReadDeadline(time.Now().Add(patience))
				r, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err == nil && r.StatusCode != http.StatusRequestHeaderFieldsTooLarge && r.StatusCode != http.StatusRequestTimeout &&
					r.StatusCode != http.StatusBadRequest {
					t.Errorf("status %s", r.Status)
				}
				var late net.Error
				if errors.As(err, &late) && late.Timeout() {
					t.Fatal("the connection is still open")
				}
				if took := time.Since(started); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
				conn.Close()
				if err := <-sent; err != nil {
					t.Error(err)
				}
			})
		}
		t.Cleanup(func() {
			until(t, "all sockets are closed", func() bool { return s.sockets() == 0 })
		})
	})
}
