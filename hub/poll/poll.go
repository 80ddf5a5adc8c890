// Package poll is the seam between an event loop and the sockets of its
// connections. Two backends serve the same loop: epoll on raw descriptors
// (Linux) and a portable one that gives each connection two goroutines.
//
// A [Poller] and its [Socket]s belong to one loop: nobody else calls their
// methods, [Poller.Wake] excepted. Nothing here blocks but [Poller.Wait].
package poll

import (
	"errors"
	"net"
	"net/netip"
	"time"
)

// ErrAgain is returned by [Socket.Read] and [Socket.Write] when the call would
// block; an [Event] tells when to try again.
var ErrAgain = errors.New("poll: would block")

// Event says what a socket, an acceptor or nobody (a wake) is ready for.
type Event struct {
	// Owner is the value given to Attach: the identity of the connection, so an
	// event of a closed descriptor never reaches the next one with its number.
	Owner any
	// Readable is set when a Read gets bytes, an end of file or an error. With TLS
	// it may get ErrAgain: what arrived was less than a record, or no data.
	Readable bool
	// Writable is set when a Write that met ErrAgain may go on.
	Writable bool
}

// Backend makes pollers and takes sockets over for them. Safe for concurrent use.
type Backend interface {
	// Name is "epoll" or "portable".
	Name() string
	// NewPoller returns the poller of one loop.
	NewPoller() (Poller, error)
	// Take takes c over, with bytes that were read from it already (copied). On
	// success c must not be used again; on error it is closed, except that
	// errors.ErrUnsupported leaves it as it was: Portable takes it then, and the
	// pollers of every backend attach the handle that comes of that.
	Take(c net.Conn, read []byte) (Handle, error)
	// Listen makes l acceptable inside a loop; errors.ErrUnsupported when the
	// backend cannot (then net/http accepts and Take takes over). On success l
	// must not be used again.
	Listen(l net.Listener) (Acceptor, error)
}

// Handle is a socket between two owners: taken from one, not yet attached to a
// poller. Whoever drops it closes it.
type Handle interface {
	RemoteAddr() netip.AddrPort
	// Conn turns the socket into a net.Conn that yields read first (copied), then
	// the bytes that the handle itself carries, for a request that is not ours. The
	// handle must not be used again; on error it is closed. A portable socket with
	// unsent bytes is flushed, which may take up to five seconds.
	Conn(read []byte) (net.Conn, error)
	Close()
}

// Acceptor is a listening socket. Pollers of several loops may attach it; it is
// safe for concurrent use.
type Acceptor interface {
	// Accept returns one more connection, ErrAgain when none waits, or what
	// accept(2) failed with. Out of descriptors (EMFILE, ENFILE), the Readable
	// event stays: detach the acceptor for a while. TCP_NODELAY and the buffer
	// sizes of package poll are set on what it returns.
	Accept() (Handle, error)
	// Close is idempotent. Detach the acceptor from its pollers before.
	Close()
}

// Poller waits for the sockets of one loop.
type Poller interface {
	// Attach adopts h; its events carry owner. Reading is of interest, writing
	// is not. If bytes came with the handle, or with TLS may have, a Readable event
	// is due at once. On error h still belongs to the caller.
	Attach(h Handle, owner any) (Socket, error)
	// Detach gives s back as a handle that another owner may take; s must not be
	// used again. Bytes that came with its handle and were not read go along.
	Detach(s Socket) (Handle, error)
	// AttachAcceptor makes a yield Readable events with this owner;
	// DetachAcceptor ends that, until it is attached again.
	AttachAcceptor(a Acceptor, owner any) error
	DetachAcceptor(a Acceptor) error
	// Wait fills events with what is ready and returns their number: after at
	// most timeout, never before a wake or an event when timeout is negative, at
	// once when it is 0. A wake is consumed silently. What stays ready is reported
	// again by each Wait. A socket closed or detached has no events in later
	// calls; one that this call returned already names an owner who knows.
	Wait(events []Event, timeout time.Duration) (int, error)
	// Wake makes a Wait, or the next one, return. Any goroutine may call it.
	Wake()
	// Close frees what the poller holds; all sockets must be closed or detached before.
	Close() error
}

// Socket is the non-blocking socket of one connection.
type Socket interface {
	// Read reads what is there: at least one byte, or ErrAgain, io.EOF or an error.
	Read(p []byte) (int, error)
	// Write writes what fits: n < len(p) only with ErrAgain or an error. ErrAgain
	// with n == len(p) says that all was taken and is not sent yet (TLS). After any
	// other error the socket is only good for Close. p is not kept.
	Write(p []byte) (int, error)
	// Interest says which events are wanted. The caller asks for writing only
	// after ErrAgain, and for reading no more after an end of file. A connection
	// whose both directions have ended may be reported as Readable, once, though
	// nothing is wanted.
	Interest(read, write bool)
	// Stalled reports whether the peer is alive though it does not take what was
	// written: everything sent is acknowledged or acknowledgements keep arriving,
	// only its window is closed. idle is the silence after which it counts as dead;
	// ask about a socket that has met ErrAgain for about as long, since a first
	// acknowledgement may be under way. The portable backend cannot know and gives
	// each peer five minutes without progress.
	Stalled(idle time.Duration) bool
	RemoteAddr() netip.AddrPort
	// Close closes the socket and forgets its events; idempotent. Bytes that were
	// written are still sent, unless a Write with TLS has just met ErrAgain; what was
	// received and not read is thrown away. Read and Write return net.ErrClosed from
	// then on.
	Close()
}
