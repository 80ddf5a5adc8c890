package loadtest

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// progress tells what goes on while a run is under way: one line that is
// rewritten on a terminal, a line now and then elsewhere.
type progress struct {
	// fixed after new
	out      io.Writer
	terminal bool
	start    time.Time
	stop     chan struct{}
	done     sync.WaitGroup
	unread   func() // called when nobody reads out any more

	faults atomic.Int64 // of the rounds so far

	// mu guards the rest
	mu     sync.Mutex
	phase  string
	until  time.Time // when the phase will be over; zero when that is not known
	swarm  *swarm    // nil between two
	got    int64
	seen   time.Time
	shown  bool      // a line stands on the terminal
	told   string    // the phase of the last line elsewhere
	toldAt time.Time // and its time
}

const (
	progressRedraw = 200 * time.Millisecond
	// Elsewhere a line comes when something else goes on, and else less often.
	progressLook  = time.Second
	progressLines = 5 * time.Second
)

func newProgress(out io.Writer, terminal bool, unread func()) *progress {
	p := &progress{out: out, terminal: terminal, start: time.Now(), stop: make(chan struct{}), unread: unread}
	p.done.Go(p.run)
	return p
}

func (p *progress) run() {
	every := progressLook
	if p.terminal {
		every = progressRedraw
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.draw()
		case <-p.stop:
			return
		}
	}
}

// set names what goes on from now: with which swarm, and until when, if known.
func (p *progress) set(s *swarm, phase string, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.swarm != s {
		p.got, p.seen = 0, time.Time{}
	}
	p.swarm, p.phase, p.until = s, phase, until
}

// stopping tells at once that the user was heard: what is left to do takes a moment.
func (p *progress) stopping() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintln(p.out, "stopping…")
}

// close ends the telling.
func (p *progress) close() {
	close(p.stop)
	p.done.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase == "" {
		return
	}
	now := time.Now()
	if !p.terminal && p.phase == p.told && now.Sub(p.toldAt) < progressLines {
		return
	}
	line := p.line(now)
	p.told, p.toldAt = p.phase, now
	var err error
	if p.terminal {
		_, err = fmt.Fprint(p.out, "\r", line, "\x1b[K")
		p.shown = true
	} else {
		_, err = fmt.Fprintln(p.out, line)
	}
	if errors.Is(err, syscall.EPIPE) {
		p.unread()
	}
}

// line describes the moment. Its caller holds mu.
func (p *progress) line(now time.Time) string {
	line := fmt.Sprintf("%4.0fs  %s", now.Sub(p.start).Seconds(), p.phase)
	problems := int(p.faults.Load())
	if s := p.swarm; s != nil {
		c := s.counts()
		line += fmt.Sprintf("  %d/%d ready", c.ready, len(s.conns))
		if d := now.Sub(p.seen).Seconds(); !p.seen.IsZero() && d > 0 && c.got >= p.got {
			line += fmt.Sprintf("  %.0f events/s", float64(c.got-p.got)/d)
		}
		p.got, p.seen = c.got, now
		problems += int(c.missing + c.refused)
		if !s.resume.Load() { // those that come back by themselves are not one
			problems += int(c.ended)
		}
	}
	if left := p.until.Sub(now); !p.until.IsZero() && left > 0 {
		line += fmt.Sprintf("  %.0fs left", left.Seconds())
	}
	if problems == 0 {
		return line + "  no problems"
	}
	return line + fmt.Sprintf("  %d problems", problems)
}
