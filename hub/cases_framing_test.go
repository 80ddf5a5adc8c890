package hub

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
	"github.com/gobwas/ws"

	"hub/hub/poll"
	"hub/hub/wire"
	"hub/store"
)

// Case G2: what an unmasked frame says is not done, and the connection ends, not
// only the conversation.
func TestUnmaskedFrameIsNotObeyed(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		other, c := s.connect(t, wire.JSON, "other"), s.connect(t, wire.JSON, "u")
		other.ok(subscribeTo("open:a"))
		unmasked := ws.MustCompileFrame(ws.NewTextFrame([]byte(`{"id":2,"publish":{"channel":"open:a","data":"unmasked"}}`)))
		c.raw(unmasked)
		c.closes(1002)
		c.raw(rawFrame(true, ws.OpClose, ws.NewCloseFrameBody(1002, "")))
		if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("behind the close frames: %v, want the end of the stream", err)
		}
		s.connect(t, wire.JSON, "third").ok(publishTo("open:a", `"masked"`))
		if _, p := other.publication(); p.Offset != 1 || string(p.Data) != `"masked"` {
			t.Errorf("publication %d %s, want the masked one alone", p.Offset, p.Data)
		}
	})
	withClock(t, nil, func(s *clockwork) { // whoever does not answer the close frame is cut off
		c, peer := s.connect(wire.JSON, token(t, "u"))
		c.raw([]byte{0x81, 0x02, 'h', 'i'})
		c.closes(1002)
		time.Sleep(closeWait + 2*wheelTick)
		if !peer.Hung() {
			t.Errorf("the connection is open %v after the close frame", closeWait)
		}
	})
}

// slowConn takes a little at a time, and rests between.
type slowConn struct {
	net.Conn
	reads int
}

func (c *slowConn) Read(p []byte) (int, error) {
	if c.reads++; c.reads%20 == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	return c.Conn.Read(p)
}

// Case G7: publications of others, acknowledgements, pongs, the server's pings and
// at last its close frame share one slow socket. Each frame comes whole, each
// kind in its order.
func TestFramesOfAllKindsOnASlowSocket(t *testing.T) {
	const events, own = 120, 120
	encodings(t, func(o *Options) {
		o.Server.PingInterval, o.Server.PongTimeout = 500*time.Millisecond, 400*time.Millisecond
	}, func(t *testing.T, s *testServer, enc wire.Encoding) {
		room := "open:slow-" + enc.String()
		conn := s.dial(t)
		// Not less: a segment of loopback has 64 KiB.
		_ = conn.(*net.TCPConn).SetReadBuffer(96 << 10)
		slow, err := upgrade(&slowConn{Conn: conn}, enc, defaultSocketPath)
		if err != nil {
			t.Fatal(err)
		}
		c := &tester{slow, t}
		c.ok(connectWith(token(t, "slow-"+enc.String())))
		c.ok(subscribeTo(room))
		data := func(n int) string {
			return fmt.Sprintf(`{"n":%d,"pad":"%s"}`, n, strings.Repeat(string(rune('a'+n%26)), 10<<10))
		}
		db := s.databases.get("default")
		ns, _ := db.namespace(room)
		for n := range events {
			db.publish(ns, store.Publish{Room: room, Publication: store.Publication{Data: []byte(data(n))}}, func(_ store.Result, err error) {
				if err != nil {
					t.Errorf("publish: %v", err)
				}
			})
		}
		first := c.lastID + 1
		var writer sync.WaitGroup
		t.Cleanup(writer.Wait)
		writer.Go(func() {
			for n := range own {
				frames := append(rawFrame(true, ws.OpPing, fmt.Append(nil, n)), c.frame(publishTo("open:elsewhere", `1`))...)
				if err := c.write(frames); err != nil {
					t.Errorf("writing: %v", err)
					return
				}
			}
		})
		seen := &order{t: t, enc: enc, data: data, reply: first}
		for seen.event < events || seen.pong < own || seen.reply < first+own {
			f, err := c.readFrame()
			if err != nil {
				t.Fatalf("after %d publications, %d pongs and %d replies: %v", seen.event, seen.pong, seen.reply-first, err)
			}
			seen.frame(c, f)
		}
		writer.Wait()
		s.result(t, "disconnect", fmt.Sprintf(`{"user":%q}`, "slow-"+enc.String()))
		c.closes(closeForced.code)
		if _, err := c.in.ReadByte(); err == nil {
			t.Error("something follows the close frame")
		}
	})
}

// order checks what a connection gets, by kind.
type order struct {
	t     *testing.T
	enc   wire.Encoding
	data  func(n int) string
	event int
	pong  int
	reply uint32
}

func (o *order) frame(c *tester, f ws.Frame) {
	o.t.Helper()
	if f.Header.OpCode == ws.OpPong {
		if want := fmt.Append(nil, o.pong); !bytes.Equal(f.Payload, want) {
			o.t.Fatalf("pong %q, want %q", f.Payload, want)
		}
		o.pong++
		return
	}
	if err := c.decode(f.Payload); err != nil {
		o.t.Fatal(err)
	}
	for _, r := range c.replies {
		switch {
		case r.Id != 0:
			if r.Id != o.reply || r.Error != nil {
				o.t.Fatalf("reply %v, want an acknowledgement of %d", r, o.reply)
			}
			o.reply++
		case r.Push != nil:
			if p := r.Push.Pub; p == nil || p.Offset != uint64(o.event+1) || string(p.Data) != o.data(o.event) {
				o.t.Fatalf("push %.80v, want publication %d", r.Push, o.event+1)
			}
			o.event++
		default:
			pong := rawFrame(true, ws.OpText, []byte("{}"))
			if o.enc == wire.Protobuf {
				pong = rawFrame(true, ws.OpBinary, []byte{0})
			}
			c.raw(pong)
		}
	}
	c.replies = nil
}

// Case G7: after a write that failed in the middle of a frame nothing is written
// any more, whatever there would be to say.
func TestNothingBehindAFailedWrite(t *testing.T) {
	for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
		b := newBench(t)
		r := b.room("default", "r")
		var took []int
		s := b.member(r, enc, func(_ *sub, p []byte) (int, error) {
			took = append(took, len(p))
			switch len(took) {
			case 1:
				return 7, poll.ErrAgain // the middle of a frame
			case 2:
				return 3, errBroken
			}
			return len(p), nil
		})
		c := s.conn
		b.publish(r, `"the first"`)
		b.step()
		if !c.blocked || len(c.out) == 0 {
			t.Fatalf("%s: blocked %v with %d bytes unsent, want the rest of a frame", enc, c.blocked, len(c.out))
		}
		rest := len(c.out)
		b.resume(c)
		b.publish(r, `"the second"`)
		b.reply(c, &protocol.Reply{Id: 1, Publish: &protocol.PublishResult{}})
		b.queueFrame(c, ws.OpPong, nil)
		b.disconnect(c, closeForced)
		b.step()
		b.step()
		if !c.gone() || len(took) != 2 || took[1] != rest {
			t.Errorf("%s: gone %v after writes of %v bytes, want two, the second of %d", enc, c.gone(), took, rest)
		}
	}
}

// Case G9: a client that vanishes is not written to: no close frame, and none with
// a code that stands for "there was no close frame".
func TestVanishedClientGetsNoCode(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, nil)
		for _, last := range [][]byte{nil, {0x81}, rawFrame(false, ws.OpText, []byte("{"))} {
			c := s.connect(t, wire.JSON, "u")
			c.raw(last)
			if err := c.conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_ = c.conn.SetReadDeadline(time.Now().Add(patience))
			if rest, err := io.ReadAll(c.in); err != nil || len(rest) > 0 {
				t.Errorf("after % x and the end: got % x, %v, want the end", last, rest, err)
			}
		}
		until(t, "all are forgotten", func() bool { n, _ := s.slots.Counts(); return n == 0 && s.sockets() == 0 })
	})
}

// Case G46: pongs that nobody asked for are no fault, in any number and form.
func TestUnaskedPongs(t *testing.T) {
	encodings(t, func(o *Options) { o.Limits.Messages = Rate{PerSecond: 1, Burst: 3} }, func(t *testing.T, s *testServer, enc wire.Encoding) {
		c := s.connect(t, enc, "u")
		pong := rawFrame(true, ws.OpText, []byte("{}\n{}\n{}"))
		if enc == wire.Protobuf {
			pong = rawFrame(true, ws.OpBinary, []byte{0, 0, 0})
		}
		both := append(pong, rawFrame(true, ws.OpPong, []byte("unasked"))...)
		c.raw(bytes.Repeat(both, 500))
		c.ok(publishTo("open:a", `1`))
	})
	// Before the connect command too.
	s := startServer(t, testOptions(t), nil)
	c := s.open(t, wire.JSON)
	c.raw(rawFrame(true, ws.OpPong, nil))
	c.ok(connectWith(token(t, "u")))
}
