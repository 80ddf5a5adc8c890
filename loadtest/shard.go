package loadtest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"hub/loadtest/report"
)

// shard is a part of the swarm's connections that is read by one thread.
type shard struct {
	// fixed after new
	swarm   *swarm
	conns   []*conn
	network network

	// mu is held while what was read is handled.
	mu       sync.Mutex
	queue    []*conn // to be dialled
	inFlight int     // dialled and neither subscribed nor failed
	closing  bool
	t        tally
	latency  *hdrhistogram.Histogram // of events, in microseconds
	ending   *hdrhistogram.Histogram // of those that were due at endFrom or later
	endFrom  int64                   // on the swarm's clock
	resumed  *hdrhistogram.Histogram // of reconnects, in microseconds
	reasons  map[string]int          // why connections ended or failed
	examples []string                // the first faults
	// onAck, unless nil, is called for each publication that is answered.
	onAck func(c *conn)

	// atomic: what others may read of t while it is counted
	now counters
}

// network reads and writes the sockets of a shard. With mu held it calls
// conn.opened, conn.received and, once for a socket that ends by itself, shard.ended.
type network interface {
	// dial begins to connect. Its caller holds mu.
	dial(c *conn) (socket, error)
	// close ends the reading of sockets and waits for that. Its caller does not
	// hold mu.
	close()
}

// tally counts what arrived. Counts of faults go on for the swarm's life, those
// of traffic since the last reset.
type tally struct {
	got, acks, refused, bytes int64
	last                      int64 // when the last event came, on the swarm's clock

	ready     int64 // subscribed now
	ended     int64 // connections that ended or failed without being asked to
	leaving   int64 // wait for the answer to unsubscribe
	seen      int64 // steps of handshakes, and messages other than pings
	recovered int64 // subscriptions continued

	missing                                                                int64 // skipped, not come yet
	duplicate, outOfOrder, crossRoom, crossDatabase                        int64
	misattributed, misplaced, malformed, unrecovered, wrongAcknowledgement int64
}

type counters struct {
	got, acks, refused, bytes, last, ready, ended, leaving, seen, missing atomic.Int64
}

// publish makes the counts visible to [swarm.counts].
func (sh *shard) publish() {
	t := &sh.t
	sh.now.got.Store(t.got)
	sh.now.acks.Store(t.acks)
	sh.now.refused.Store(t.refused)
	sh.now.bytes.Store(t.bytes)
	sh.now.last.Store(t.last)
	sh.now.ready.Store(t.ready)
	sh.now.ended.Store(t.ended)
	sh.now.leaving.Store(t.leaving)
	sh.now.seen.Store(t.seen)
	sh.now.missing.Store(t.missing)
}

const (
	// slowest is the end of the histograms, in microseconds.
	slowest = int64(10 * time.Minute / time.Microsecond)
	// maxExamples bounds the faults that are told in full.
	maxExamples = 5
)

func newShard(s *swarm) *shard {
	return &shard{
		swarm: s, reasons: make(map[string]int),
		latency: hdrhistogram.New(1, slowest, 3), ending: hdrhistogram.New(1, slowest, 3), endFrom: math.MaxInt64, resumed: hdrhistogram.New(1, slowest, 3),
	}
}

// record notes that an event came at a time, and when it was due.
func (sh *shard) record(at, due int64) {
	us := max(1, min((at-due)/1000, slowest))
	_ = sh.latency.RecordValue(us)
	if due >= sh.endFrom {
		_ = sh.ending.RecordValue(us)
	}
}

// fault counts one, and keeps the first ones in words.
func (sh *shard) fault(count *int64, format string, args ...any) {
	*count++
	sh.example(format, args...)
}

func (sh *shard) example(format string, args ...any) {
	if len(sh.examples) < maxExamples {
		sh.examples = append(sh.examples, fmt.Sprintf(format, args...))
	}
}

// maxReasons bounds the texts that may come from a server.
const maxReasons = 50

func (sh *shard) reason(text string) {
	if _, known := sh.reasons[text]; !known && len(sh.reasons) >= maxReasons {
		text = "others"
	}
	sh.reasons[text]++
}

// fill dials connections of the queue while few are under way.
func (sh *shard) fill() {
	for len(sh.queue) > 0 && sh.inFlight < sh.swarm.window() && !sh.closing {
		c := sh.queue[0]
		sh.queue = sh.queue[1:]
		sh.dial(c)
	}
}

// dial makes a new socket for a connection that has none.
func (sh *shard) dial(c *conn) {
	c.state = opening
	if c.dialed == 0 {
		c.dialed = sh.swarm.now()
	}
	c.attempts++
	sh.inFlight++
	sock, err := sh.network.dial(c)
	if err != nil {
		sh.ended(c, err)
		return
	}
	c.mu.Lock()
	c.sock = sock
	c.mu.Unlock()
}

// arrived is called when a connection is subscribed.
func (sh *shard) arrived(c *conn, at int64) {
	if sh.inFlight > 0 {
		sh.inFlight--
	}
	sh.t.ready++
	if c.attempts > 0 {
		_ = sh.resumed.RecordValue(max(1, min((at-c.dialed)/1000, slowest)))
	}
	c.attempts, c.dialed = 0, 0
	c.mu.Lock()
	c.live = c.sock != nil
	c.mu.Unlock()
	if c.ready != nil {
		c.ready()
	}
	if c.leaver != nil {
		c.leaver.admitted()
	}
	if c.room.publisher == c && c.room.once {
		if err := c.room.back(); err != nil {
			sh.reason("publish again: " + err.Error())
		}
	}
	sh.fill()
}

// left is called before a connection stops being subscribed or dialled.
func (sh *shard) left(c *conn) {
	switch c.state {
	case subscribed:
		sh.t.ready--
	case opening, upgrading, subscribing:
		if sh.inFlight > 0 {
			sh.inFlight--
		}
	}
	if c.leaving {
		c.leaving = false
		sh.t.leaving--
	}
	if c.room.publisher == c {
		c.room.gone()
	}
}

// ended is called when a socket ends, or cannot be made, by itself.
func (sh *shard) ended(c *conn, err error) {
	if sh.closing {
		return
	}
	c.drop(true)
	if c.leaver != nil {
		c.leaver.ended(err, sh.swarm.now())
		sh.fill()
		return
	}
	sh.t.ended++
	sh.reason(err.Error())
	var closed *closedError
	terminal := errors.As(err, &closed) && closed.code >= 3500 && closed.code < 4000
	if sh.swarm.resume.Load() && !terminal {
		sh.again(c, sh.swarm.backoff(c.attempts))
	}
	sh.fill()
}

// again dials a connection after d.
func (sh *shard) again(c *conn, d time.Duration) {
	time.AfterFunc(d, func() {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if c.state == idle && !sh.closing {
			sh.queue = append(sh.queue, c)
			sh.fill()
			sh.publish()
		}
	})
}

// backoff is how long a client waits before it dials again: longer each time,
// and never all at once.
func (s *swarm) backoff(attempts int) time.Duration {
	most := s.options.backoff << min(attempts, 3)
	return most/4 + rand.N(most*3/4)
}

// acknowledged handles the answer to a publication.
func (sh *shard) acknowledged(c *conn, m *message) {
	seq := uint64(m.id - idPublish)
	if c.room.publisher != c || seq == 0 || seq > c.room.given.Load() {
		sh.fault(&sh.t.wrongAcknowledgement, "connection %d: an answer to command %d, which it never sent", c.number, m.id)
		return
	}
	fresh, right := c.room.answered(seq, m)
	if !right {
		sh.fault(&sh.t.wrongAcknowledgement, "connection %d: event %d of %s was acknowledged with another offset: %.80q", c.number, seq, c.room.name, m.rpc)
	}
	if !fresh {
		return
	}
	if m.code != 0 {
		sh.t.refused++
		sh.reason(fmt.Sprintf("publish answered with error %d %s", m.code, m.text))
		return
	}
	sh.t.acks++
	if sh.onAck != nil {
		sh.onAck(c)
	}
}

// faults sums up what went wrong so far in the terms of a report.
func (sh *shard) faults() report.Faults {
	f := report.Faults{
		Duplicate: sh.t.duplicate, OutOfOrder: sh.t.outOfOrder,
		CrossRoom: sh.t.crossRoom, CrossDatabase: sh.t.crossDatabase,
	}
	for _, c := range sh.conns {
		n, _ := c.lost()
		f.Lost += n
	}
	return f
}
