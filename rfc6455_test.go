package main

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
	"google.golang.org/protobuf/proto"
)

// The tests in the files rfc6455_*_test.go hold the running server to RFC 6455,
// in the manner of the Autobahn test suite: every rule of framing, over each way
// in which the server reads sockets. Frames are written and read here, by code
// that shares nothing with the server's. Where Autobahn wants an echo, a case
// publishes to a room without history that the client is subscribed to, and
// wants the acknowledgement and the publication.

// rfcServer is a server under test; trust is nil without TLS.
type rfcServer struct {
	*sdkServer
	name  string
	trust *tls.Config
	token string // of the user of all connections
}

// startRFCServers starts a server for each way in which sockets are read.
func startRFCServers(t *testing.T) []*rfcServer {
	t.Helper()
	secure, trust := startTLSServer(t)
	servers := []*rfcServer{
		{sdkServer: startSDKServer(t), name: "auto"},
		{sdkServer: startSDKServer(t, `backend = "portable"`), name: "portable"},
		{sdkServer: secure, name: "tls", trust: trust},
	}
	for _, s := range servers {
		s.token = s.sdkServer.token("u")
	}
	return servers
}

// dial opens a connection that ends with the test.
func (s *rfcServer) dial() (net.Conn, error) {
	d := &net.Dialer{Timeout: patience}
	c, err := d.Dial("tcp", s.addr)
	if err != nil {
		return nil, err
	}
	if s.trust != nil {
		config := s.trust.Clone()
		config.ServerName = "127.0.0.1"
		c = tls.Client(c, config)
	}
	return c, c.SetDeadline(time.Now().Add(patience))
}

// rfcWay is how the bytes of a case reach the server, and in which encoding.
type rfcWay struct {
	name     string
	step     int // bytes in a write, 0 for all: see rfcClient.deliver
	protobuf bool
}

// rfcCase is one conversation with the server.
type rfcCase struct {
	name string
	// run says what the client sends and what the server has to say to it.
	run func(c *rfcClient)
	// step overrides the way of delivery, if it is not 0.
	step int
}

// rfcClient collects what a case sends and wants, and checks it in turns.
type rfcClient struct {
	server   *rfcServer
	conn     net.Conn
	in       *bufio.Reader
	protobuf bool
	step     int

	room     string
	lastID   uint32
	out      []byte   // to be sent in this turn
	want     []string // to be said by the server in this turn
	heard    []string // said, and not looked at yet
	welcomed bool     // the answers to connect were read
	ended    bool     // the server has closed
	err      error    // the first failure
}

var rfcRooms atomic.Uint64

// TestRFC6455 runs all cases against each server.
func TestRFC6455(t *testing.T) {
	t.Parallel()
	cases := slices.Concat(lengthCases(), pingCases(), headerCases(), limitCases(), choppedCases(),
		fragmentCases(), textCases(), closeCases())
	for _, s := range startRFCServers(t) {
		t.Run(s.name, func(t *testing.T) {
			s.t = t
			s.runAll(t, cases)
			s.handshakes(t)
			s.healthy()
		})
	}
}

func (s *rfcServer) runAll(t *testing.T, cases []rfcCase) {
	ways := []rfcWay{{"at once", 0, false}, {"by bytes", 1, false}, {"in Protobuf", 0, true}}
	if s.name == "auto" {
		ways = append(ways, rfcWay{"in Protobuf, by bytes", 1, true})
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, way := range ways {
		for _, c := range cases {
			way := way
			if c.step != 0 {
				if way.step == 1 {
					continue // it comes once, its own way
				}
				way.step = c.step
			}
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				if err := s.run(c, way); err != nil {
					t.Errorf("%s: %s: %v", way.name, c.name, err)
				}
			})
		}
	}
	all.Wait()
}

// run runs one case on a connection of its own.
func (s *rfcServer) run(rc rfcCase, way rfcWay) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	c := &rfcClient{server: s, conn: conn, in: bufio.NewReader(conn), protobuf: way.protobuf, step: way.step}
	c.room = fmt.Sprint("live:rfc", rfcRooms.Add(1))
	if err := c.connect(); err != nil {
		return err
	}
	rc.run(c)
	c.turn()
	c.finish()
	return c.err
}

// connect upgrades, connects and subscribes; when everything is sent at once,
// what the case sends first follows in the same write.
func (c *rfcClient) connect() error {
	request := upgradeRequest(c.server.addr)
	if c.protobuf {
		request = strings.Replace(request, "\r\n\r\n", "\r\nSec-WebSocket-Protocol: centrifuge-protobuf\r\n\r\n", 1)
	}
	c.out = append(c.out, request...)
	c.data(c.encode(&protocol.Command{Id: 1, Connect: &protocol.ConnectRequest{Token: c.server.token}}))
	c.data(c.encode(&protocol.Command{Id: 2, Subscribe: &protocol.SubscribeRequest{Channel: c.room}}))
	c.lastID = 2
	if c.step != 0 {
		if _, err := c.conn.Write(c.out); err != nil {
			return err
		}
		c.out = nil
		return c.welcome()
	}
	return nil
}

// welcome reads the answers to what connect has sent.
func (c *rfcClient) welcome() error {
	res, err := http.ReadResponse(c.in, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("upgrade: %+v, %w", res, err)
	}
	for _, want := range []string{"reply 1", "reply 2"} {
		if got := c.hear(); got != want {
			return fmt.Errorf("got %s, want %s", got, want)
		}
	}
	c.welcomed = true
	return nil
}

// encode is a command as the payload of a message.
func (c *rfcClient) encode(cmd *protocol.Command) string {
	if c.protobuf {
		b, err := proto.Marshal(cmd)
		if err != nil {
			panic(err)
		}
		return string(append(binary.AppendUvarint(nil, uint64(len(b))), b...))
	}
	b, err := json.Marshal(cmd)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// frame sends one frame: first is its first byte.
func (c *rfcClient) frame(first byte, payload string) {
	c.out = append(c.out, rfcFrame(first, payload)...)
}

// raw sends bytes as they are.
func (c *rfcClient) raw(b ...byte) { c.out = append(c.out, b...) }

// data sends a whole message of the kind that the encoding uses.
func (c *rfcClient) data(payload string) { c.frame(opFin|c.op(), payload) }

func (c *rfcClient) op() byte {
	if c.protobuf {
		return opBinary
	}
	return opText
}

// ping sends a ping that must be answered.
func (c *rfcClient) ping(payload string) {
	c.frame(opFin|opPing, payload)
	c.wants("pong " + payload)
}

// wants adds to what the server has to say in this turn. Pongs, replies and
// publications are in order among their like; close comes last.
func (c *rfcClient) wants(what ...string) { c.want = append(c.want, what...) }

// echo is the payload of a message of n bytes, at least 100, whose publications
// must come back.
func (c *rfcClient) echo(n int) string {
	const most = 60_000 // of one command
	var b strings.Builder
	for left := n; left > 0; left = n - b.Len() {
		size := min(left, most)
		if left-size < 100 {
			size = left
		}
		text := pattern(size)
		excess := len(c.publish(text)) + 1 - size
		command := c.echoes(text[:size-excess])
		b.WriteString(command + c.blank(size-len(command)))
	}
	return b.String()
}

// blank is n bytes of a message that say nothing: line ends, or pongs.
func (c *rfcClient) blank(n int) string {
	if c.protobuf {
		return strings.Repeat("\x00", n)
	}
	return strings.Repeat("\n", n)
}

// publish is a command that publishes text, with the next id.
func (c *rfcClient) publish(text string) string {
	return c.encode(&protocol.Command{Id: c.lastID + 1, Publish: &protocol.PublishRequest{
		Channel: c.room, Data: []byte(`"` + text + `"`)}})
}

// echoes is a command that publishes text, whose echo must come.
func (c *rfcClient) echoes(text string) string {
	b := c.publish(text)
	c.lastID++
	c.wants(fmt.Sprint("reply ", c.lastID), `pub "`+text+`"`)
	return b
}

// acked is a command that must be acknowledged, and brings nothing else: nobody
// hears what it publishes. It suits turns that end with a close frame, before
// which publications may be missing.
func (c *rfcClient) acked() string {
	c.lastID++
	c.wants(fmt.Sprint("reply ", c.lastID))
	return c.encode(&protocol.Command{Id: c.lastID, Publish: &protocol.PublishRequest{Channel: c.room + "-other", Data: []byte("1")}})
}

// pattern is n letters, no two stretches of which are alike for long.
func pattern(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[(i+i/36*7)%36]
	}
	return string(b)
}

// turn sends what the case has collected and compares what the server says.
func (c *rfcClient) turn() {
	if c.err != nil {
		return
	}
	c.deliver()
	if !c.welcomed {
		if c.err = c.welcome(); c.err != nil {
			return
		}
	}
	var got []string
	for len(got) < len(c.want) && !c.ended {
		got = append(got, c.hear())
	}
	if want := byKind(c.want); !slices.Equal(byKind(got), want) {
		c.err = fmt.Errorf("the server says %.300q, want %.300q", got, want)
	}
	c.out, c.want = nil, nil
}

// byKind sorts what was said by kinds, which keep their order within.
func byKind(said []string) []string {
	kind := func(s string) string { k, _, _ := strings.Cut(s, " "); return k }
	slices.SortStableFunc(said, func(a, b string) int { return strings.Compare(kind(a), kind(b)) })
	return said
}

// deliver writes what was collected. The server may have closed before the end
// of it, which shows in what it says.
func (c *rfcClient) deliver() {
	const single = 64 // bytes at both ends of a large turn that are written one by one
	step := c.step
	if step == 0 {
		step = max(1, len(c.out))
	}
	for at := 0; at < len(c.out); {
		n := min(step, len(c.out)-at)
		if step == 1 && at >= single && len(c.out)-at > 2*single {
			n = min(997, len(c.out)-at-single)
		}
		if _, err := c.conn.Write(c.out[at : at+n]); err != nil {
			return
		}
		at += n
	}
}

// finish proves that the server has said everything: an open connection answers
// once more, a closed one is silent until its end.
func (c *rfcClient) finish() {
	if c.err != nil {
		return
	}
	if !c.ended {
		c.ping("the end")
		c.data(c.echo(100))
		c.turn()
		c.frame(opFin|opClose, "\x03\xe8")
		c.wants("close 1000")
		c.turn()
	}
	if c.err == nil {
		c.err = c.silence()
	}
}

// silence checks that nothing follows the server's close frame, whatever the
// client sends, and that the server closes the connection as the client does.
func (c *rfcClient) silence() error {
	c.out = nil
	c.frame(opFin|opPing, "after the close frame")
	c.data(c.publish("after the close frame"))
	c.frame(opFin|opClose, "\x03\xe8")
	c.deliver()
	closeWrite(c.conn)
	rest, err := io.ReadAll(c.in)
	var timeout net.Error
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q behind the close frame", rest)
	case errors.As(err, &timeout) && timeout.Timeout():
		return errors.New("the server does not close the connection")
	}
	return nil
}

// closeWrite says that no more will come.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// hear returns what the server says next: "pong ...", "reply id", "error id code",
// "pub data", "close code", "close" when the frame is empty, or "end ...".
func (c *rfcClient) hear() string {
	for {
		if len(c.heard) > 0 {
			said := c.heard[0]
			c.heard = c.heard[1:]
			return said
		}
		op, payload, err := readRFCFrame(c.in)
		switch {
		case err != nil:
			c.ended = true
			return "end " + err.Error()
		case op == opPong:
			return "pong " + string(payload)
		case op == opClose && len(payload) == 0:
			c.ended = true
			return "close"
		case op == opClose:
			c.ended = true
			return fmt.Sprint("close ", binary.BigEndian.Uint16(payload))
		case op != c.op():
			c.ended = true
			return fmt.Sprintf("end by a frame of kind %x", op)
		}
		if err := c.decode(payload); err != nil {
			c.ended = true
			return "end " + err.Error()
		}
	}
}

// decode takes the replies of a message, pings aside.
func (c *rfcClient) decode(payload []byte) error {
	next := protocol.NewJSONReplyDecoder(payload).Decode
	if c.protobuf {
		next = protocol.NewProtobufReplyDecoder(payload).Decode
	}
	for {
		r, err := next()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		switch {
		case r == nil:
		case r.Error != nil:
			c.heard = append(c.heard, fmt.Sprintf("error %d %d", r.Id, r.Error.Code))
		case r.Push != nil && r.Push.Pub != nil:
			c.heard = append(c.heard, "pub "+string(r.Push.Pub.Data))
		case r.Id != 0:
			c.heard = append(c.heard, fmt.Sprint("reply ", r.Id))
		}
		if err != nil {
			return nil
		}
	}
}

// upgradeRequest is a plain opening handshake.
func upgradeRequest(host string) string {
	return "GET /connection/websocket HTTP/1.1\r\nHost: " + host + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
}
