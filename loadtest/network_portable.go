package loadtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// portableNetwork reads each connection in a goroutine of its own, through
// package net: for TLS, and where there is no epoll.
type portableNetwork struct {
	shard   *shard
	tls     *tls.Config
	done    sync.WaitGroup
	context context.Context // of dials that are under way
	cancel  context.CancelFunc
}

// portableSocket is one connection of package net.
type portableSocket struct {
	network *portableNetwork
	conn    *conn

	// mu guards the rest
	mu     sync.Mutex
	more   *sync.Cond // signalled when paused or closed change
	net    net.Conn
	tcp    *net.TCPConn // below net
	closed bool
	paused bool
}

// portableWrite bounds a write, which blocks everything of a shard.
const portableWrite = 10 * time.Second

func newPortable(sh *shard, config *tls.Config) *portableNetwork {
	n := &portableNetwork{shard: sh, tls: config}
	n.context, n.cancel = context.WithCancel(context.Background())
	return n
}

func (n *portableNetwork) dial(c *conn) (socket, error) {
	k := &portableSocket{network: n, conn: c}
	k.more = sync.NewCond(&k.mu)
	n.done.Go(k.run)
	return k, nil
}

func (n *portableNetwork) close() {
	n.cancel()
	n.done.Wait()
}

// run connects and reads until the socket ends.
func (k *portableSocket) run() {
	sh := k.network.shard
	err := k.connect()
	if err == nil {
		err = k.receive()
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !k.isClosed() {
		sh.ended(k.conn, err)
	}
	sh.publish()
}

func (k *portableSocket) connect() error {
	o := &k.network.shard.swarm.options
	var d net.Dialer
	if k.conn.source.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: k.conn.source.AsSlice()}
	}
	conn, err := d.DialContext(k.network.context, "tcp", o.addr.String())
	if err != nil {
		return err
	}
	tcp := conn.(*net.TCPConn)
	if n := k.conn.receives; n > 0 {
		if err := tcp.SetReadBuffer(n); err != nil {
			_ = conn.Close()
			return err
		}
	}
	if k.network.tls != nil {
		secure := tls.Client(conn, k.network.tls)
		if err := secure.HandshakeContext(k.network.context); err != nil {
			_ = conn.Close()
			return fmt.Errorf("TLS handshake: %w", err)
		}
		conn = secure
	}
	k.mu.Lock()
	closed := k.closed
	k.net, k.tcp = conn, tcp
	k.mu.Unlock()
	if closed {
		return conn.Close()
	}
	sh := k.network.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if k.isClosed() {
		return net.ErrClosed
	}
	return k.conn.opened()
}

// receive reads until the connection ends.
func (k *portableSocket) receive() error {
	sh, c := k.network.shard, k.conn
	buf := make([]byte, 8<<10)
	held := 0
	for {
		if held > len(buf)/2 {
			buf = append(buf, make([]byte, len(buf))...)
		}
		n, err := k.net.Read(buf[held:])
		if err != nil {
			return fmt.Errorf("%w: %w", errEOF, err)
		}
		k.mayHandle()
		sh.mu.Lock()
		if k.isClosed() { // what follows would go to the connection's next socket
			sh.mu.Unlock()
			return net.ErrClosed
		}
		sh.t.bytes += int64(n)
		rest, err := c.received(buf[:held+n], sh.swarm.now())
		sh.publish()
		sh.mu.Unlock()
		if err != nil {
			return err
		}
		held = copy(buf, rest)
	}
}

// mayHandle waits while the socket is paused.
func (k *portableSocket) mayHandle() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.paused && !k.closed {
		k.more.Wait()
	}
}

func (k *portableSocket) isClosed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.closed
}

func (k *portableSocket) send(b []byte) error {
	k.mu.Lock()
	conn := k.net
	k.mu.Unlock()
	if conn == nil {
		return errNotConnected
	}
	if err := conn.SetWriteDeadline(time.Now().Add(portableWrite)); err != nil {
		return err
	}
	_, err := conn.Write(b)
	return err
}

func (k *portableSocket) read(on bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.paused = !on
	k.more.Broadcast()
	return nil
}

func (k *portableSocket) unread() (n int, local netip.AddrPort, ok bool) {
	k.mu.Lock()
	tcp := k.tcp
	k.mu.Unlock()
	if tcp == nil {
		return 0, local, false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, local, false
	}
	n, ok = unreadBytes(raw)
	local = tcp.LocalAddr().(*net.TCPAddr).AddrPort()
	return n, netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), ok
}

func (k *portableSocket) close(reset bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	k.closed = true
	k.more.Broadcast()
	if k.net == nil {
		return
	}
	if tcp, ok := k.net.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = k.net.Close() // the peer may be gone already
}
