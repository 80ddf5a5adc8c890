package poll

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// sendBuffer is what a connection may have written and the network not taken:
	// SO_SNDBUF of a raw socket, the queue of a portable one.
	sendBuffer = 64 << 10
	// readChunk is what a portable socket reads ahead of its loop.
	readChunk = 4 << 10
	// writePiece is the most that a portable socket gives its connection at once:
	// a TLS record, and the grain in which progress is seen.
	writePiece = 16 << 10
	// spareBuffer is what an idle portable socket keeps for its next write.
	spareBuffer = 4 << 10

	// closeTimeout is how long what was written before Close may take to leave.
	closeTimeout = 5 * time.Second
	// lingerTimeout is how long the peer may then take to close its side.
	lingerTimeout = 500 * time.Millisecond
	// stallTimeout is how long a portable socket that makes no progress counts as
	// alive; package net does not tell what the peer's host acknowledges.
	stallTimeout = 5 * time.Minute
)

// What a socket of either backend waits for.
const (
	wantRead = 1 << iota
	wantWrite
)

// duplex is a net.Conn with the goroutine that reads it and the one that writes
// it, from its first Attach on. It is both the Handle and the Socket of the
// portable backend: detached, it goes on reading and writing up to its bounds.
type duplex struct {
	// Fixed after new.
	conn        net.Conn
	remote      netip.AddrPort
	readerEnded chan struct{}
	writerEnded chan struct{}

	mu sync.Mutex
	// readerTurn and writerTurn, on mu, say that there is something to do.
	readerTurn sync.Cond
	writerTurn sync.Cond

	// Guarded by mu: who owns it.
	phase  phase
	queue  *queue // of the poller it is attached to, or nil
	owner  any
	queued bool // queue holds it
	want   uint8

	// Guarded by mu: what was read. The reader waits until chunk is empty.
	chunk   []byte
	readErr error // follows chunk; the reader has ended

	// Guarded by mu: what is to be written.
	out      []byte // not taken by the writer yet
	unsent   int    // out and what the writer has in hand
	writeErr error
	progress time.Time // when unsent last shrank or began

	// force cuts off what takes too long after Close. Guarded by mu.
	force *time.Timer
}

// phase is the life of a duplex.
type phase uint8

const (
	fresh   phase = iota // no goroutines yet
	running              // both goroutines serve it
	leaving              // becoming a net.Conn again: the goroutines end
	closed               // the writer sends the rest and closes conn
)

func newDuplex(c net.Conn, read []byte) *duplex {
	d := &duplex{
		conn:        c,
		remote:      addrPort(c.RemoteAddr()),
		chunk:       read,
		readerEnded: make(chan struct{}),
		writerEnded: make(chan struct{}),
	}
	d.readerTurn.L = &d.mu
	d.writerTurn.L = &d.mu
	return d
}

func (d *duplex) attach(q *queue, owner any) (Socket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.phase > running || d.queue != nil {
		return nil, fmt.Errorf("attach: %w", net.ErrClosed)
	}
	d.queue, d.owner, d.want = q, owner, wantRead
	if d.phase == fresh {
		d.phase = running
		go d.reader()
		go d.writer()
	}
	d.post()
	return d, nil
}

func (d *duplex) detach(q *queue) (Handle, error) {
	d.mu.Lock()
	if d.queue != q {
		d.mu.Unlock()
		return nil, fmt.Errorf("detach: %w", net.ErrClosed)
	}
	d.queue, d.owner, d.queued = nil, nil, false
	d.mu.Unlock()
	q.remove(d)
	return d, nil
}

// readiness says which of the wanted events are due. Called with mu held.
func (d *duplex) readiness() (readable, writable bool) {
	readable = d.want&wantRead != 0 && (len(d.chunk) > 0 || d.readErr != nil)
	writable = d.want&wantWrite != 0 && (d.unsent <= sendBuffer/2 || d.writeErr != nil)
	return readable, writable
}

// post puts d into its queue if an event is due. Called with mu held.
func (d *duplex) post() {
	if d.queue == nil || d.queued {
		return
	}
	if readable, writable := d.readiness(); readable || writable {
		d.queued = true
		d.queue.post(d)
	}
}

// event is called by the loop of q, which drops d if nothing is due.
func (d *duplex) event(q *queue) (Event, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue != q {
		return Event{}, false
	}
	readable, writable := d.readiness()
	d.queued = readable || writable
	return Event{d.owner, readable, writable}, d.queued
}

// reader hands over one chunk after the other. After Close it reads on and
// throws away, so that the peer's bytes do not turn the close into a reset.
func (d *duplex) reader() {
	defer close(d.readerEnded)
	buf := make([]byte, readChunk)
	for d.drained() {
		n, err := d.conn.Read(buf)
		d.mu.Lock()
		if d.phase != closed {
			d.chunk, d.readErr = buf[:n], err
			d.post()
		}
		d.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// drained waits until the chunk was taken; it is false when the reader must end.
func (d *duplex) drained() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.chunk) > 0 && d.phase == running {
		d.readerTurn.Wait()
	}
	return d.phase != leaving
}

// writer sends what Write queued; after Close it closes the connection.
func (d *duplex) writer() {
	defer close(d.writerEnded)
	var spare []byte
	for {
		buf := d.takeOut(spare)
		if buf == nil {
			break
		}
		for rest := buf; len(rest) > 0; {
			piece := rest[:min(len(rest), writePiece)]
			_, err := d.conn.Write(piece)
			rest = rest[len(piece):]
			if !d.sent(len(piece), err) {
				break
			}
		}
		spare = nil
		if cap(buf) <= spareBuffer {
			spare = buf[:0]
		}
	}
	if d.closing() {
		d.hangUp()
	}
}

func (d *duplex) closing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.phase == closed
}

// takeOut waits for bytes to send and leaves spare in their place; it is nil
// when the writer must end.
func (d *duplex) takeOut(spare []byte) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.out) == 0 && d.phase == running {
		d.writerTurn.Wait()
	}
	if len(d.out) == 0 {
		return nil
	}
	buf := d.out
	d.out = spare
	return buf
}

// sent notes how a piece went; it is false when nothing more can be sent.
func (d *duplex) sent(n int, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unsent -= n
	d.progress = time.Now()
	if err != nil {
		d.writeErr = err
		d.out, d.unsent = nil, 0
	}
	d.post()
	return err == nil
}

func (d *duplex) Read(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.phase != running:
		return 0, net.ErrClosed
	case len(p) == 0:
		return 0, nil
	case len(d.chunk) > 0:
		n := copy(p, d.chunk)
		d.chunk = d.chunk[n:]
		if len(d.chunk) == 0 {
			d.readerTurn.Signal()
		}
		return n, nil
	case d.readErr != nil:
		return 0, d.readErr
	}
	return 0, ErrAgain
}

func (d *duplex) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.phase != running:
		return 0, net.ErrClosed
	case d.writeErr != nil:
		return 0, d.writeErr
	}
	n := min(len(p), sendBuffer-d.unsent)
	if n > 0 {
		if d.unsent == 0 {
			d.progress = time.Now()
		}
		d.out = append(d.out, p[:n]...)
		d.unsent += n
		d.writerTurn.Signal()
	}
	if n < len(p) {
		return n, ErrAgain
	}
	return n, nil
}

func (d *duplex) Interest(read, write bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.want = 0
	if read {
		d.want |= wantRead
	}
	if write {
		d.want |= wantWrite
	}
	d.post()
}

// Stalled cannot see acknowledgements: it gives a peer stallTimeout from the last
// progress, whatever idle is.
func (d *duplex) Stalled(time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.phase == running && d.writeErr == nil &&
		(d.unsent == 0 || time.Since(d.progress) < stallTimeout)
}

func (d *duplex) RemoteAddr() netip.AddrPort { return d.remote }

// Conn ends the goroutines. Bytes that were written and not sent hold it up, for
// closeTimeout at most; a connection that was not written to yet returns at once.
func (d *duplex) Conn(read []byte) (net.Conn, error) {
	d.mu.Lock()
	was := d.phase
	if was > running || d.queue != nil {
		d.mu.Unlock()
		return nil, net.ErrClosed
	}
	d.phase = leaving
	d.readerTurn.Signal()
	d.writerTurn.Signal()
	d.mu.Unlock()
	if was == running {
		if err := d.leave(); err != nil {
			d.conn.Close()
			return nil, fmt.Errorf("socket to connection: %w", err)
		}
	}
	return withPrefix(d.conn, read, d.chunk), nil
}

// leave waits for the end of both goroutines, the reader interrupted by a
// deadline in the past.
func (d *duplex) leave() error {
	force := time.AfterFunc(closeTimeout, func() { d.conn.Close() })
	defer force.Stop()
	if err := d.conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	<-d.readerEnded
	<-d.writerEnded
	if d.writeErr != nil {
		return d.writeErr
	}
	return d.conn.SetReadDeadline(time.Time{})
}

// Close leaves the rest to the writer, which has closeTimeout for it.
func (d *duplex) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.phase
	if was > running {
		return
	}
	d.phase = closed
	d.queue, d.owner, d.chunk = nil, nil, nil
	if was == fresh {
		d.conn.Close()
		return
	}
	d.force = time.AfterFunc(closeTimeout, func() { d.conn.Close() })
	d.readerTurn.Signal()
	d.writerTurn.Signal()
}

// hangUp closes the connection after the last write. The peer gets a moment to
// see the end and close too, since closing a TCP socket that has unread bytes
// resets it and destroys what the peer has not read yet; net/http does the same.
func (d *duplex) hangUp() {
	d.mu.Lock()
	force, failed := d.force, d.readErr != nil || d.writeErr != nil
	d.mu.Unlock()
	if half, ok := d.conn.(interface{ CloseWrite() error }); ok && !failed && half.CloseWrite() == nil {
		linger := time.NewTimer(lingerTimeout)
		select {
		case <-d.readerEnded:
		case <-linger.C:
		}
		linger.Stop()
	}
	d.conn.Close()
	force.Stop()
}
