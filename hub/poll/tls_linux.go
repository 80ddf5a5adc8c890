package poll

import (
	"crypto/tls"
	"errors"
	"net"
	"time"
)

const (
	// recordSize is the most plaintext of one TLS record (RFC 8446 section 5.1).
	// Writes go in such pieces, so that this is what a socket that takes no more
	// leaves encrypted and unsent.
	recordSize = 16 << 10
	// sealedMax bounds encrypted and unsent bytes: a record, and what crypto/tls
	// says by itself. A peer that asks for ever new keys and never reads is
	// disconnected here.
	sealedMax = 2 * recordSize
	// spareSealed and spareSealedSize bound the buffers for them that a poller keeps.
	spareSealed     = 64
	spareSealedSize = 20 << 10
	// flushTimeout is how long encrypted bytes may take to leave when a socket
	// becomes a net.Conn again.
	flushTimeout = 5 * time.Second
)

// TLSServer is tls.Server over c, for a connection that the epoll backend can
// Take once its handshake is complete. c is a *net.TCPConn or a wrapper of one, as
// Take has it. Set DynamicRecordSizingDisabled in config: a record is a write.
func TLSServer(c net.Conn, config *tls.Config) *tls.Conn {
	t := &transport{Conn: c}
	t.tls = tls.Server(t, config)
	return t.tls
}

// transport is the net.Conn under a tls.Conn. Outside a loop it is a net.Conn like
// any other. In a loop it is a raw socket that never waits: a Read that finds
// nothing fails with errAgain, after which crypto/tls can be asked again, and what
// a Write cannot send is kept, since crypto/tls does not survive a failed one. It
// goes along when the socket changes hands, and belongs to whoever has that.
type transport struct {
	net.Conn              // nil in a loop, and on the way
	tls      *tls.Conn    // over this
	sock     *epollSocket // in a loop, else nil
	ahead    []byte       // was received before what the socket yields
	sealed   []byte       // encrypted, and not taken by the socket yet
	readErr  error        // what reading ended with
	writeErr error        // what sending unsent bytes ended with
	drained  bool         // the socket had no more when it was last read
}

// again is what crypto/tls takes for an error that may pass: a net.Error that is
// Temporary.
type again struct{}

var errAgain net.Error = again{}

func (again) Error() string   { return ErrAgain.Error() }
func (again) Timeout() bool   { return true }
func (again) Temporary() bool { return true }

var errTooMuchSealed = errors.New("poll: TLS peer asks and does not read")

// Read is for crypto/tls. A read that did not fill p has emptied the socket, so
// the next one in this visit costs no system call; the poller tells of more.
func (t *transport) Read(p []byte) (int, error) {
	switch {
	case len(t.ahead) > 0:
		n := copy(p, t.ahead)
		if t.ahead = t.ahead[n:]; len(t.ahead) == 0 {
			t.ahead = nil
		}
		return n, nil
	case t.sock == nil:
		return t.Conn.Read(p)
	case t.drained:
		return 0, errAgain
	}
	n, err := t.sock.readRaw(p)
	t.drained = n < len(p)
	if err == ErrAgain {
		err = errAgain
	}
	return n, err
}

// Write is for crypto/tls, which gives whole records. In a loop it takes them all.
func (t *transport) Write(p []byte) (n int, err error) {
	if t.sock == nil {
		return t.Conn.Write(p)
	}
	if len(t.sealed) == 0 {
		if n, err = t.sock.writeRaw(p); err != ErrAgain {
			return n, err
		}
	}
	if len(t.sealed)+len(p)-n > sealedMax {
		return n, errTooMuchSealed
	}
	t.seal(append(t.buffer(), p[n:]...))
	return len(p), nil
}

// SetWriteDeadline is what crypto/tls calls around its last alert.
func (t *transport) SetWriteDeadline(d time.Time) error {
	if t.Conn == nil {
		return nil
	}
	return t.Conn.SetWriteDeadline(d)
}

// buffer returns the unsent bytes to append to.
func (t *transport) buffer() []byte {
	p := t.sock.poller
	if last := len(p.spare) - 1; t.sealed == nil && last >= 0 {
		b := p.spare[last]
		p.spare = p.spare[:last]
		return b
	}
	return t.sealed
}

// seal sets the unsent bytes; while there are any, the socket waits to be writable
// whatever its owner wants.
func (t *transport) seal(b []byte) {
	before := t.sock.mask()
	if len(b) == 0 {
		p := t.sock.poller
		if cap(b) > 0 && cap(b) <= spareSealedSize && len(p.spare) < spareSealed {
			p.spare = append(p.spare, b)
		}
		b = nil
	}
	t.sealed = b
	t.sock.rearm(before)
}

// flush sends unsent bytes; ErrAgain says that some are left.
func (t *transport) flush() error {
	if len(t.sealed) == 0 {
		return t.writeErr
	}
	n, err := t.sock.writeRaw(t.sealed)
	switch err {
	case nil:
		t.seal(t.sealed[:0])
	case ErrAgain:
		t.sealed = append(t.sealed[:0], t.sealed[n:]...)
	default:
		t.writeErr = err
		t.seal(t.sealed[:0])
	}
	return err
}

// read is Socket.Read. It reads on until p is full or the socket empty: what
// crypto/tls holds back is nothing the kernel could tell of.
func (t *transport) read(p []byte) (n int, err error) {
	t.drained = false
	for n < len(p) && t.readErr == nil {
		k, err := t.tls.Read(p[n:])
		n += k
		if err == errAgain {
			t.sock.setUnread(false)
			if n == 0 {
				return 0, ErrAgain
			}
			return n, nil
		}
		t.readErr = err
	}
	t.sock.setUnread(true) // the rest, or the error
	if n > 0 {
		return n, nil
	}
	return 0, t.readErr
}

// write is Socket.Write. It takes no byte while encrypted ones are unsent.
func (t *transport) write(p []byte) (n int, err error) {
	if err := t.flush(); err != nil {
		return 0, err
	}
	for n < len(p) {
		piece := p[n:min(len(p), n+recordSize)]
		if _, err := t.tls.Write(piece); err != nil {
			return n, err
		}
		n += len(piece)
		if len(t.sealed) > 0 {
			return n, ErrAgain
		}
	}
	return n, nil
}

// bye tells the peer that nothing follows (RFC 8446 section 6.1), if it hears it
// at once.
func (t *transport) bye() {
	if t.flush() == nil {
		_ = t.tls.CloseWrite()
	}
}

// leave makes t a net.Conn over c, after the unsent bytes were sent.
func (t *transport) leave(c net.Conn) error {
	t.Conn = c
	if len(t.sealed) == 0 {
		return t.writeErr
	}
	if err := c.SetWriteDeadline(time.Now().Add(flushTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(t.sealed); err != nil {
		return err
	}
	t.sealed = nil
	return c.SetWriteDeadline(time.Time{})
}
