package hub

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/centrifugal/protocol"

	"hub/hub/wire"
)

// Connections come, use a room of their own and vanish at any moment, so that
// descriptors and buffers change hands all the time. Whatever a client gets is of
// its own room and as it was sent, though the server overwrites each read buffer
// after use.
func TestBuffersAndDescriptorsChangeHands(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		s := startServer(t, o, func(s *Server) {
			s.poison = true
			s.sizes.min, s.sizes.max, s.sizes.keepDurable = 100, 1000, 2000
			s.sizes.pageEvents = 3
		})
		seed := uint64(time.Now().UnixNano())
		end := time.Now().Add(1500 * time.Millisecond)
		var workers sync.WaitGroup
		failed := make(chan error, 16)
		for i := range 16 {
			workers.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				for visit := 0; time.Now().Before(end); visit++ {
					g := &guest{server: s, random: random, name: fmt.Sprintf("%d-%d", i, visit), enc: wire.Encoding(visit % 2)}
					if err := g.visit(token(t, g.name)); err != nil {
						failed <- fmt.Errorf("seed %d: guest %s: %w", seed, g.name, err)
						return
					}
				}
			})
		}
		workers.Wait()
		select {
		case err := <-failed:
			t.Error(err)
		default:
		}
		until(t, "every socket is closed", func() bool { return s.sockets() == 0 })
		if n, _ := s.slots.Counts(); n != 0 {
			t.Errorf("%d slots are taken without a connection", n)
		}
		if s.memory.bytes() != 0 {
			t.Errorf("%d bytes of logs without a room", s.memory.bytes())
		}
	})
}

// sockets is the number of open sockets.
func (s *Server) sockets() (n int64) {
	for _, l := range s.loops {
		n += l.stats.sockets.Load()
	}
	return n
}

// guest is one connection with a room of its own.
type guest struct {
	server *testServer
	random *rand.Rand
	name   string
	enc    wire.Encoding
	room   string
}

// fill is data that only this guest sends.
func (g *guest) fill(n int) []byte {
	line := fmt.Sprintf(`{"of":%q,"n":%d}`, g.room, n)
	all := bytes.Repeat([]byte(line+","), n*n%300)
	return []byte(`{"mine":[` + string(all) + line + `]}`)
}

// visit does a few things and ends at any moment; only something wrong is an error.
func (g *guest) visit(token string) error {
	g.room = pick(g.random, "open:", "live:") + g.name
	conn, err := net.Dial("tcp", g.server.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	c, err := upgrade(conn, g.enc, defaultSocketPath)
	if err != nil {
		return err
	}
	// Everything at once, but for the rest of a frame; some frames hold commands
	// that must wait for those before them.
	commands := []*protocol.Command{{Connect: &protocol.ConnectRequest{Token: token}}, subscribeTo(g.room)}
	published := g.random.IntN(30)
	for n := range published {
		commands = append(commands, publishTo(g.room, string(g.fill(n))))
		if g.random.IntN(4) == 0 {
			commands = append(commands, historyOf(g.room, 0))
		}
	}
	var frame []byte
	for len(commands) > 0 {
		n := min(len(commands), 1+g.random.IntN(5))
		frame = append(frame, c.frame(commands[:n]...)...)
		commands = commands[n:]
	}
	cut := g.random.IntN(len(frame))
	if err := errors.Join(c.write(frame[:cut]), c.write(frame[cut:])); err != nil {
		return err
	}
	leaveAfter := g.random.IntN(2*published + 1)
	for got := 0; got < published; {
		if leaveAfter--; leaveAfter == 0 {
			return g.leave(conn)
		}
		r, err := c.read()
		if err != nil {
			return err
		}
		if r.Error != nil {
			// A room that nobody has published to has no history.
			if r.Error.Code == errNotAvailable.Code && g.room[0] == 'l' {
				continue
			}
			return fmt.Errorf("reply %v", r)
		}
		if r.Push == nil {
			continue
		}
		if err := g.check(r.Push, got); err != nil {
			return err
		}
		got++
	}
	return g.leave(conn)
}

func (g *guest) check(p *protocol.Push, n int) error {
	switch {
	case p.Channel != g.room || p.Pub == nil:
		return fmt.Errorf("push %v in a visit of %s", p, g.room)
	case !bytes.Equal(p.Pub.Data, g.fill(n)):
		return fmt.Errorf("publication %d is %.300q, want %.300q", n, p.Pub.Data, g.fill(n))
	case p.Pub.Info == nil || p.Pub.Info.User != g.name:
		return fmt.Errorf("publication %d is by %v", n, p.Pub.Info)
	}
	return nil
}

// leave ends the connection: in order, by a reset, or in the middle of a frame.
func (g *guest) leave(conn net.Conn) error {
	switch g.random.IntN(4) {
	case 0:
		return conn.(*net.TCPConn).SetLinger(0)
	case 1:
		_, err := conn.Write([]byte{0x82, 0xfe, 0x10})
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			return nil
		}
		return err
	}
	return nil
}
