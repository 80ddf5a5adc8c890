package hub

import (
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"hub/hub/poll"
	"hub/hub/wire"
)

// loop is one event loop: a goroutine that owns a poller and its connections,
// with their subscriptions and timers. It never waits for anything but its
// poller. Others hand it work through post and postDirty.
type loop struct {
	// fixed after new
	server *Server
	index  int
	poller poll.Poller

	// stats are written by the loop, read by anyone.
	stats loopStats

	mu    sync.Mutex
	tasks []func() // guarded by mu
	dirty []*shard // guarded by mu
	// mail is set while tasks or dirty may hold something.
	mail atomic.Bool

	// owned by the loop:

	events    []poll.Event
	buf       []byte        // what one read returns
	scratch   []byte        // what one write joins
	spare     [][]byte      // buffers for unsent bytes, to be used again
	now       time.Duration // since server.start, set once per iteration
	wallAt    time.Duration // the now for which wallClock was read
	wallClock int64         // unix seconds; see wall
	wheel     *wheel
	conns     []*conn
	users     map[userKey]*conn // first connection of each user
	unflushed []*conn           // connections with replies to write
	ripe      []*conn           // connections whose parked commands may go on
	queue     sweepQueue
	resting   []*shard // out of the queue until their time
	// views of the room being visited, per encoding
	pubs     [wire.Encodings]view
	signals  [wire.Encodings]view
	acceptor poll.Acceptor // in one loop only
	// acceptFailing is set from a failed accept to the next good one.
	acceptFailing bool
	stopping      bool
	taskSpare     []func()
	dirtSpare     []*shard
}

const (
	readSize    = 64 << 10
	eventsSize  = 512
	acceptBatch = 64
	// spareBuffers and spareSize bound the buffers that a loop keeps.
	spareBuffers = 256
	spareSize    = 16 << 10
)

func newLoop(s *Server, index int, p poll.Poller) *loop {
	return &loop{
		server: s, index: index, poller: p,
		events: make([]poll.Event, eventsSize),
		buf:    make([]byte, readSize),
		wheel:  newWheel(0),
		users:  make(map[userKey]*conn),
		queue:  sweepQueue{byDB: make(map[*database]*dirtyRooms)},
	}
}

// post makes the loop call f. Any goroutine may call it; it never blocks.
func (l *loop) post(f func()) {
	l.mu.Lock()
	l.tasks = append(l.tasks, f)
	l.mu.Unlock()
	if !l.mail.Swap(true) {
		l.poller.Wake()
	}
}

// postDirty tells the loop that there is something new for a shard.
func (l *loop) postDirty(sh *shard) {
	l.mu.Lock()
	l.dirty = append(l.dirty, sh)
	l.mu.Unlock()
	if !l.mail.Swap(true) {
		l.poller.Wake()
	}
}

// run is the loop. It ends when it has been told to stop and its last
// connection is gone. The poller stays open for late wakes.
func (l *loop) run() error {
	for {
		n, err := l.poller.Wait(l.events, l.timeout())
		if err != nil {
			return err
		}
		l.now = time.Since(l.server.start)
		for i := range l.events[:n] {
			l.event(&l.events[i])
			l.events[i] = poll.Event{}
		}
		l.collect()
		l.unparkAll()
		l.wakeRested()
		l.wheel.advance(l.now, l.fire)
		if l.queue.busy() {
			// With a loop per core, the writer that makes the next event would wait for
			// the scheduler's 10 ms slice, and every receiver be visited once more for it.
			runtime.Gosched()
			l.collect()
			l.sweep()
		}
		l.flushAll()
		if l.stopping && len(l.conns) == 0 && !l.mail.Load() {
			return nil
		}
	}
}

// timeout is how long the poller may wait.
func (l *loop) timeout() time.Duration {
	if l.queue.busy() || l.mail.Load() || len(l.ripe) > 0 || l.stopping && len(l.conns) == 0 {
		return 0
	}
	now := time.Since(l.server.start)
	wait := l.wheel.wait(now)
	for _, sh := range l.resting {
		if rest := max(0, sh.until-now); wait < 0 || rest < wait {
			wait = rest
		}
	}
	return wait
}

// event handles one readiness.
func (l *loop) event(ev *poll.Event) {
	switch owner := ev.Owner.(type) {
	case *conn:
		l.guard(owner, func() {
			if ev.Writable && owner.open() {
				l.resume(owner)
			}
			if ev.Readable && !owner.gone() { // a closing client answers
				l.read(owner)
			}
		})
	case poll.Acceptor:
		l.accept(owner)
	}
}

// guard runs f for c. A panic ends this connection alone.
func (l *loop) guard(c *conn, f func()) {
	defer func() {
		if p := recover(); p != nil {
			l.server.panicked(p)
			if c != nil && c.open() {
				l.abandon(c)
			}
		}
	}()
	f()
}

// abandon ends a connection after a panic. What led to it may also keep the
// connection from ending in order: then it is dropped.
func (l *loop) abandon(c *conn) {
	ended := false
	l.guard(nil, func() {
		l.disconnect(c, closeInternal)
		ended = true
	})
	if !ended {
		l.guard(nil, func() { l.drop(c) })
	}
}

// collect takes what others have posted.
func (l *loop) collect() {
	if !l.mail.Swap(false) {
		return
	}
	l.mu.Lock()
	tasks, dirty := l.tasks, l.dirty
	l.tasks, l.dirty = l.taskSpare[:0], l.dirtSpare[:0]
	l.mu.Unlock()
	l.taskSpare, l.dirtSpare = nil, nil // collect is entered again by a sweep, not by a task
	for i, sh := range dirty {
		l.queue.add(sh)
		dirty[i] = nil
	}
	for i, f := range tasks {
		l.guard(nil, f)
		tasks[i] = nil
	}
	l.taskSpare, l.dirtSpare = tasks, dirty
}

// accept takes new connections from a, up to a batch, and spreads them over the loops.
func (l *loop) accept(a poll.Acceptor) {
	for range acceptBatch {
		h, err := a.Accept()
		if errors.Is(err, poll.ErrAgain) {
			return
		}
		if err != nil {
			l.acceptFailed(a, err)
			return
		}
		if l.acceptFailing {
			l.acceptFailing = false
			l.server.log.Warn("accepting connections again")
		}
		target := l.server.nextLoop()
		if target == l {
			l.adoptRaw(h)
		} else {
			target.post(func() { target.adoptRaw(h) })
		}
	}
}

// acceptRetry is how long a loop stops accepting when it cannot, for example
// for want of descriptors: no busy loop, one log line.
const acceptRetry = 200 * time.Millisecond

func (l *loop) acceptFailed(a poll.Acceptor, err error) {
	if !l.acceptFailing {
		l.acceptFailing = true
		l.server.log.Error("cannot accept connections", slog.Any("error", err))
	}
	_ = l.poller.DetachAcceptor(a)
	time.AfterFunc(acceptRetry, func() {
		l.post(func() {
			if l.acceptor == a {
				if err := l.poller.AttachAcceptor(a, a); err != nil {
					l.server.log.Error("cannot accept connections again", slog.Any("error", err))
				}
			}
		})
	})
}

// listen makes this loop the one that accepts.
func (l *loop) listen(a poll.Acceptor) error {
	l.acceptor = a
	return l.poller.AttachAcceptor(a, a)
}

// unlisten ends that.
func (l *loop) unlisten() {
	if a := l.acceptor; a != nil {
		l.acceptor = nil
		_ = l.poller.DetachAcceptor(a)
		a.Close()
	}
}

// takeBuffer returns an empty buffer for unsent bytes.
func (l *loop) takeBuffer() []byte {
	if n := len(l.spare); n > 0 {
		b := l.spare[n-1]
		l.spare = l.spare[:n-1]
		return b
	}
	return make([]byte, 0, 512)
}

// giveBuffer takes one back.
func (l *loop) giveBuffer(b []byte) {
	if cap(b) > 0 && cap(b) <= spareSize && len(l.spare) < spareBuffers {
		l.spare = append(l.spare, b[:0])
	}
}
