package poll_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"hub/hub/poll"
)

// A request that is not for the loop goes to net/http with what was read of it,
// and a connection that net/http gives back comes to the loop with what it read.
func TestToHTTPAndBack(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		conns := make(connListener)
		sockets := make(chan poll.Socket, 1)
		mux := http.NewServeMux()
		mux.HandleFunc("GET /plain", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "plain answer") })
		mux.HandleFunc("GET /upgrade", func(w http.ResponseWriter, r *http.Request) {
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
			read, _ := rw.Reader.Peek(rw.Reader.Buffered())
			sockets <- l.attach(take(t, b, c, string(read)), echo)
		})
		srv := &http.Server{Handler: mux}
		go srv.Serve(conns)
		defer srv.Close()

		client, server := pair(t, b)
		l.attach(take(t, b, server, ""), func(s poll.Socket, ev poll.Event) {
			var buf [10]byte // part of the request only
			n, err := s.Read(buf[:])
			if err != nil {
				return
			}
			h, err := l.poller.Detach(s)
			if err != nil {
				t.Error(err)
				return
			}
			c, err := h.Conn(buf[:n])
			if err != nil {
				t.Error(err)
				return
			}
			conns <- c
		})
		io.WriteString(client, "GET /plain HTTP/1.1\r\nHost: x\r\n\r\n")
		r := bufio.NewReader(client)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(res.Body); string(body) != "plain answer" {
			t.Errorf("answer %q", body)
		}
		// Two bytes of the next protocol right behind the request.
		io.WriteString(client, "GET /upgrade HTTP/1.1\r\nHost: x\r\n\r\nab")
		if res, err = http.ReadResponse(r, nil); err != nil || res.StatusCode != 101 {
			t.Fatalf("upgrade: %v, %v", res, err)
		}
		io.WriteString(client, "cd")
		got := make([]byte, 4)
		if _, err := io.ReadFull(r, got); err != nil || string(got) != "abcd" {
			t.Errorf("echo after the upgrade %q, %v, want abcd", got, err)
		}
		s := receive(t, sockets)
		l.do(s.Close)
	})
}

// A socket moves from one loop to another with bytes unread and unsent.
func TestDetachMoves(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		first, second := newLoop(t, b), newLoop(t, b)
		client, server := pair(t, b)
		handles := make(chan poll.Handle, 1)
		first.attach(take(t, b, server, "abc"), func(s poll.Socket, ev poll.Event) {
			var buf [1]byte
			s.Read(buf[:])
			s.Write(buf[:])
			h, err := first.poller.Detach(s)
			if err != nil {
				t.Error(err)
			}
			handles <- h
		})
		s := second.attach(receive(t, handles), echo)
		defer second.do(s.Close)
		io.WriteString(client, "d")
		got := make([]byte, 4)
		if _, err := io.ReadFull(client, got); err != nil || string(got) != "abcd" {
			t.Errorf("got %q, %v, want abcd", got, err)
		}
	})
}

// What a connection made from a handle has not yielded yet goes along when the
// backend takes it back.
func TestTakeBack(t *testing.T) {
	each(t, func(t *testing.T, b poll.Backend) {
		l := newLoop(t, b)
		client, server := pair(t, b)
		c, err := take(t, b, server, "bc").Conn([]byte("a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		s := l.attach(take(t, b, c, "a"), echo)
		defer l.do(s.Close)
		got := make([]byte, 3)
		if _, err := io.ReadFull(client, got); err != nil || string(got) != "abc" {
			t.Errorf("echo %q, %v, want abc", got, err)
		}
	})
}

// connListener is a net.Listener of connections that come from a loop.
type connListener chan net.Conn

func (l connListener) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l connListener) Close() error   { close(l); return nil }
func (l connListener) Addr() net.Addr { return &net.TCPAddr{} }
