package hub

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
	"github.com/gobwas/ws"

	"hub/auth"
	"hub/hub/wire"
)

const (
	testSecret = "0123456789abcdef0123456789abcdef"
	testAPIKey = "an-api-key-for-tests"
	// patience is how long a test waits for what must happen; only a failing test
	// waits so long.
	patience = 20 * time.Second
)

// openNamespace lets every user do everything.
func openNamespace() Namespace {
	ns := DefaultNamespace()
	ns.Subscribe, ns.Publish, ns.History, ns.PresenceInfo = AccessUser, AccessUser, AccessUser, AccessUser
	ns.Presence = true
	return ns
}

// testOptions are those of a server on a free port with two loops and no limit of
// messages or requests: namespaces "default" (closed), "open" and "live" (without history).
func testOptions(t testing.TB) Options {
	o := DefaultOptions()
	o.Server.Listen = "127.0.0.1:0"
	o.Server.DataDir = t.TempDir()
	o.Server.Loops = 2
	o.Server.DrainWindow = 10 * time.Millisecond
	o.Admin.Listen = ""
	o.Auth.HMACSecret = testSecret
	o.API.Key = testAPIKey
	o.Limits.Messages = Rate{}
	o.Limits.Read, o.Limits.Mutation, o.Limits.Handshake, o.Limits.Database = Rate{}, Rate{}, Rate{}, RequestLimits{}
	o.Database.Readers = 4
	live := openNamespace()
	live.Durable, live.HistorySize, live.HistoryTTL = false, 0, 0
	o.Namespaces = map[string]Namespace{"default": DefaultNamespace(), "open": openNamespace(), "live": live}
	return o
}

// testServer is a server that runs until stop, or the end of the test.
type testServer struct {
	*Server
	stop func()
}

func startServer(t testing.TB, o Options, tune func(*Server)) *testServer {
	t.Helper()
	level := slog.LevelError
	if os.Getenv("HUB_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return startLogging(t, o, tune, slog.New(slog.NewTextHandler(&testLog{t: t}, &slog.HandlerOptions{Level: level})))
}

// startLogging is startServer with a log whose errors the test expects.
func startLogging(t testing.TB, o Options, tune func(*Server), log *slog.Logger) *testServer {
	t.Helper()
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	s, err := newServer(o, log, tune)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	until(t, "the server serves", s.serving.Load)
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the server ended with %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return &testServer{s, stop}
}

// testLog fails the test for each error that the server logs.
type testLog struct{ t testing.TB }

func (l *testLog) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "level=ERROR") {
		l.t.Errorf("the server logged: %s", line)
	} else {
		l.t.Logf("%s", line)
	}
	return len(line), nil
}

// backends runs a test with each backend that works on real sockets.
func backends(t *testing.T, test func(t *testing.T, backend string)) {
	for _, name := range []string{"auto", "portable"} {
		t.Run(name, func(t *testing.T) { test(t, name) })
	}
}

// until waits for a condition.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// onLoop runs f on a loop and waits.
func onLoop(l *loop, f func()) {
	done := make(chan struct{})
	l.post(func() { defer close(done); f() })
	<-done
}

// token mints a token of user that is good for an hour.
func token(t testing.TB, user string, change ...func(*auth.Claims)) string {
	t.Helper()
	c := auth.Claims{User: user, ExpiresAt: time.Now().Add(time.Hour).Unix(), Databases: []string{"default", "other"}}
	for _, f := range change {
		f(&c)
	}
	s, err := auth.Mint([]byte(testSecret), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// closed is the error of a client whose server sent a close frame.
type closed struct {
	code   uint16 // 0: an empty close frame
	reason string
}

func (c *closed) Error() string { return fmt.Sprintf("closed with %d %q", c.code, c.reason) }

// wsClient is a client of one socket, for one goroutine. It answers no ping by
// itself.
type wsClient struct {
	conn   net.Conn
	in     *bufio.Reader
	enc    wire.Encoding
	lastID uint32 // of the last command

	replies []*protocol.Reply // of a frame, not returned yet
	wait    time.Duration     // for a frame; 0: patience
}

const upgradeLines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

// upgradeRequest is an upgrade to path with more header lines.
func upgradeRequest(path string, lines ...string) string {
	r := "GET " + path + " HTTP/1.1\r\nHost: hub.test\r\n" + upgradeLines
	for _, line := range lines {
		r += line + "\r\n"
	}
	return r + "\r\n"
}

// upgrade makes conn a client. A refusal is an error that names its status.
func upgrade(conn net.Conn, enc wire.Encoding, path string, lines ...string) (*wsClient, error) {
	if enc == wire.Protobuf {
		lines = append(lines, "Sec-WebSocket-Protocol: centrifuge-protobuf")
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, upgradeRequest(path, lines...)); err != nil {
		return nil, err
	}
	c := &wsClient{conn: conn, in: bufio.NewReader(conn), enc: enc}
	r, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return nil, err
	}
	if r.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(r.Body)
		return nil, fmt.Errorf("upgrade: %s %s", r.Status, body)
	}
	return c, nil
}

// frame encodes commands as one masked frame; those without an id get the next.
func (c *wsClient) frame(commands ...*protocol.Command) []byte {
	op, encoder := ws.OpText, protocol.CommandEncoder(protocol.NewJSONCommandEncoder())
	if c.enc == wire.Protobuf {
		op, encoder = ws.OpBinary, protocol.NewProtobufCommandEncoder()
	}
	var payload []byte
	for _, cmd := range commands {
		b, err := encoder.Encode(c.numbered(cmd))
		if err != nil {
			panic(err)
		}
		payload = append(payload, b...)
		if c.enc == wire.JSON {
			payload = append(payload, '\n')
		}
	}
	return rawFrame(true, op, payload)
}

func (c *wsClient) numbered(cmd *protocol.Command) *protocol.Command {
	if cmd.Id == 0 {
		c.lastID++
		cmd.Id = c.lastID
	}
	return cmd
}

// rawFrame is a masked frame.
func rawFrame(fin bool, op ws.OpCode, payload []byte) []byte {
	f := ws.NewFrame(op, fin, append([]byte(nil), payload...))
	b, err := ws.CompileFrame(ws.MaskFrameInPlaceWith(f, [4]byte{1, 2, 3, 4}))
	if err != nil {
		panic(err)
	}
	return b
}

// send writes commands in one frame.
func (c *wsClient) send(commands ...*protocol.Command) error {
	return c.write(c.frame(commands...))
}

func (c *wsClient) write(b []byte) error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(patience))
	_, err := c.conn.Write(b)
	return err
}

// maxIncoming bounds the frames of a server: a message of 256 KiB and one publication.
const maxIncoming = 256<<10 + maxCommand

// readFrame returns the next frame of the server, which must be neither masked
// nor a fragment nor too large for the SDKs.
func (c *wsClient) readFrame() (ws.Frame, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(cmp.Or(c.wait, patience)))
	h, err := ws.ReadHeader(c.in)
	if err != nil {
		return ws.Frame{}, err
	}
	if h.Masked || !h.Fin || h.Rsv != 0 || h.Length > maxIncoming {
		return ws.Frame{}, fmt.Errorf("frame header %+v", h)
	}
	f := ws.Frame{Header: h, Payload: make([]byte, h.Length)}
	_, err = io.ReadFull(c.in, f.Payload)
	return f, err
}

// read returns the next reply, push or ping. A close frame is a *closed.
func (c *wsClient) read() (*protocol.Reply, error) {
	for len(c.replies) == 0 {
		f, err := c.readFrame()
		if err != nil {
			return nil, err
		}
		switch f.Header.OpCode {
		case ws.OpClose:
			if len(f.Payload) == 0 {
				return nil, &closed{}
			}
			code, reason := ws.ParseCloseFrameData(f.Payload)
			return nil, &closed{uint16(code), reason}
		case ws.OpText, ws.OpBinary:
			if (f.Header.OpCode == ws.OpBinary) != (c.enc == wire.Protobuf) {
				return nil, fmt.Errorf("%s frame with opcode %d", c.enc, f.Header.OpCode)
			}
			if err := c.decode(f.Payload); err != nil {
				return nil, err
			}
		case ws.OpPong:
		default:
			return nil, fmt.Errorf("frame with opcode %d", f.Header.OpCode)
		}
	}
	r := c.replies[0]
	c.replies = c.replies[1:]
	return r, nil
}

func (c *wsClient) decode(payload []byte) error {
	var d protocol.ReplyDecoder = protocol.NewJSONReplyDecoder(payload)
	if c.enc == wire.Protobuf {
		d = protocol.NewProtobufReplyDecoder(payload)
	}
	for {
		r, err := d.Decode()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("decode %q: %w", payload, err)
		}
		c.replies = append(c.replies, r)
	}
}

// isPing says whether r is the server's ping.
func isPing(r *protocol.Reply) bool {
	return r.Id == 0 && r.Push == nil && r.Error == nil
}

// call sends a command and returns its reply; pushes before it are dropped.
func (c *wsClient) call(cmd *protocol.Command) (*protocol.Reply, error) {
	if err := c.send(cmd); err != nil {
		return nil, err
	}
	return c.reply(cmd.Id)
}

// reply returns the reply to a command.
func (c *wsClient) reply(id uint32) (*protocol.Reply, error) {
	for {
		r, err := c.read()
		if err != nil {
			return nil, err
		}
		if r.Id == id {
			return r, nil
		}
	}
}

// push returns the next push.
func (c *wsClient) push() (*protocol.Push, error) {
	for {
		r, err := c.read()
		if err != nil {
			return nil, err
		}
		if r.Push != nil {
			return r.Push, nil
		}
	}
}

// end returns why the connection ended, reading whatever comes before.
func (c *wsClient) end() error {
	for {
		if _, err := c.read(); err != nil {
			return err
		}
	}
}

// tester is a client whose failures fail the test.
type tester struct {
	*wsClient
	t testing.TB
}

// dial opens a TCP connection that the test closes.
func (s *testServer) dial(t testing.TB) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// open upgrades a new connection.
func (s *testServer) open(t testing.TB, enc wire.Encoding, lines ...string) *tester {
	t.Helper()
	c, err := upgrade(s.dial(t), enc, defaultSocketPath, lines...)
	if err != nil {
		t.Fatal(err)
	}
	return &tester{c, t}
}

// connect opens a connection of user.
func (s *testServer) connect(t testing.TB, enc wire.Encoding, user string) *tester {
	t.Helper()
	c := s.open(t, enc)
	c.ok(&protocol.Command{Connect: &protocol.ConnectRequest{Token: token(t, user)}})
	return c
}

// ok sends a command that must not fail and returns its reply.
func (c *tester) ok(cmd *protocol.Command) *protocol.Reply {
	c.t.Helper()
	r, err := c.call(cmd)
	if err != nil {
		c.t.Fatalf("%v: %v", cmd, err)
	}
	if r.Error != nil {
		c.t.Fatalf("%v: error %d %s", cmd, r.Error.Code, r.Error.Message)
	}
	return r
}

// fails sends a command that must fail with code.
func (c *tester) fails(code uint32, cmd *protocol.Command) {
	c.t.Helper()
	r, err := c.call(cmd)
	if err != nil {
		c.t.Fatalf("%v: %v", cmd, err)
	}
	if r.Error == nil || r.Error.Code != code {
		c.t.Fatalf("%v: got %v, want error %d", cmd, r, code)
	}
}

// closes waits for the close frame with this code.
func (c *tester) closes(code uint16) {
	c.t.Helper()
	err := c.end()
	var end *closed
	if !errors.As(err, &end) || end.code != code {
		c.t.Fatalf("the connection ended with %v, want a close frame %d", err, code)
	}
}

// publication waits for the next publication.
func (c *tester) publication() (room string, p *protocol.Publication) {
	c.t.Helper()
	for {
		push, err := c.push()
		if err != nil {
			c.t.Fatalf("waiting for a publication: %v", err)
		}
		if push.Pub != nil {
			return push.Channel, push.Pub
		}
	}
}

func subscribeTo(room string) *protocol.Command {
	return &protocol.Command{Subscribe: &protocol.SubscribeRequest{Channel: room}}
}

func unsubscribeFrom(room string) *protocol.Command {
	return &protocol.Command{Unsubscribe: &protocol.UnsubscribeRequest{Channel: room}}
}

func publishTo(room, data string) *protocol.Command {
	return &protocol.Command{Publish: &protocol.PublishRequest{Channel: room, Data: protocol.Raw(data)}}
}

func historyOf(room string, limit int32) *protocol.Command {
	return &protocol.Command{History: &protocol.HistoryRequest{Channel: room, Limit: limit}}
}

// isEOF says whether a connection ended without a close frame.
func isEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
