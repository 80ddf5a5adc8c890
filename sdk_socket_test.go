package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
	"github.com/coder/websocket"
)

// socket is a WebSocket of coder/websocket that speaks the JSON protocol by hand.
type socket struct {
	*websocket.Conn
	t     *testing.T
	tcp   *net.TCPConn
	lines [][]byte // of the last message, not returned yet
}

// socketOptions are how a socket differs from a plain one.
type socketOptions struct {
	protobuf bool
	header   http.Header
	// readBuffer is the size of the client's receive buffer; 0 is the system's.
	readBuffer int
}

// dialSocket opens a socket that is not connected in the protocol's sense.
func dialSocket(t *testing.T, url string, o socketOptions) (*socket, error) {
	t.Helper()
	s := &socket{t: t}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			s.tcp = c.(*net.TCPConn)
			if o.readBuffer > 0 {
				err = s.tcp.SetReadBuffer(o.readBuffer)
			}
			return c, err
		},
	}
	options := &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}, HTTPHeader: o.header}
	if o.protobuf {
		options.Subprotocols = []string{"centrifuge-protobuf"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, res, err := websocket.Dial(ctx, url, options)
	if err != nil {
		if res != nil {
			return nil, fmt.Errorf("status %d: %w", res.StatusCode, err)
		}
		return nil, err
	}
	c.SetReadLimit(-1)
	s.Conn = c
	t.Cleanup(func() { _ = c.CloseNow() })
	return s, nil
}

// newSocket opens a socket and connects with a token, unless that is empty.
func newSocket(t *testing.T, url, token string, o socketOptions) *socket {
	t.Helper()
	s, err := dialSocket(t, url, o)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		s.send(fmt.Sprintf(`{"id":1,"connect":{"token":%q}}`, token))
		if r := s.reply(1); r.Error != nil {
			t.Fatalf("connect: %v", r.Error)
		}
	}
	return s
}

// send sends one message.
func (s *socket) send(text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

// line returns the next reply or push; pings are answered and left out.
func (s *socket) line(within time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for {
		for len(s.lines) == 0 {
			_, message, err := s.Read(ctx)
			if err != nil {
				return nil, err
			}
			lines := bufio.NewScanner(bytes.NewReader(message))
			lines.Buffer(nil, 2<<20)
			for lines.Scan() {
				s.lines = append(s.lines, bytes.Clone(lines.Bytes()))
			}
		}
		line := s.lines[0]
		s.lines = s.lines[1:]
		if string(line) != "{}" {
			return line, nil
		}
		if err := s.Write(ctx, websocket.MessageText, []byte("{}")); err != nil {
			return nil, err
		}
	}
}

// next returns the next reply or push.
func (s *socket) next() *protocol.Reply {
	s.t.Helper()
	line, err := s.line(patience)
	if err != nil {
		s.t.Fatal(err)
	}
	r := new(protocol.Reply)
	if err := json.Unmarshal(line, r); err != nil {
		s.t.Fatalf("%v in %s", err, line)
	}
	return r
}

// reply returns the reply to a command; pushes before it are left out.
func (s *socket) reply(id uint32) *protocol.Reply {
	s.t.Helper()
	for {
		if r := s.next(); r.Id == id {
			return r
		}
	}
}

// subscribe subscribes to a room.
func (s *socket) subscribe(id uint32, room string) {
	s.t.Helper()
	s.send(fmt.Sprintf(`{"id":%d,"subscribe":{"channel":%q}}`, id, room))
	if r := s.reply(id); r.Error != nil {
		s.t.Fatalf("subscribe to %s: %v", room, r.Error)
	}
}

// publication returns the next publication; other pushes are left out.
func (s *socket) publication() *protocol.Publication {
	s.t.Helper()
	for {
		if r := s.next(); r.Push != nil && r.Push.Pub != nil {
			return r.Push.Pub
		}
	}
}

// closed waits for the server's close frame and returns its code, and the lines
// that came before. 0 is an end without a close frame.
func (s *socket) closed() (code websocket.StatusCode, reason string, before [][]byte) {
	s.t.Helper()
	for {
		line, err := s.line(patience)
		if err == nil {
			before = append(before, line)
			continue
		}
		var closing websocket.CloseError
		if errors.As(err, &closing) {
			return closing.Code, closing.Reason, before
		}
		if errors.Is(err, context.DeadlineExceeded) {
			s.t.Fatalf("the server does not close; it said %q", before)
		}
		return 0, err.Error(), before
	}
}

// reset ends the connection with a TCP reset.
func (s *socket) reset() {
	_ = s.tcp.SetLinger(0)
	_ = s.tcp.Close()
}
