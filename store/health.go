package store

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// errStalled: a batch does not come to its end, so a probe would only wait behind it.
var errStalled = fmt.Errorf("%w: writer is stalled", ErrUnavailable)

// health is how the last batch ended and whether one is under way.
type health struct {
	mu    sync.Mutex
	last  error     // of the last batch, or a trouble since
	since time.Time // when the batch under way began; zero = none
}

func (h *health) begin(now time.Time) {
	h.mu.Lock()
	h.since = now
	h.mu.Unlock()
}

// end notes the outcome of the batch and reports the changes worth a log line.
func (h *health) end(err error) (recovered, failed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	recovered, failed = h.last != nil && err == nil, h.last == nil && err != nil
	h.since, h.last = time.Time{}, err
	return recovered, failed
}

// note keeps a trouble outside the outcome of a batch, so that Ready looks closer.
func (h *health) note(err error) {
	h.mu.Lock()
	h.last = err
	h.mu.Unlock()
}

// problem returns what is wrong: a batch that takes longer than limit, or the
// failure of the last one.
func (h *health) problem(now time.Time, limit time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.since.IsZero() && now.Sub(h.since) > limit:
		return errors.Join(errStalled, h.last)
	case h.last != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, h.last)
	}
	return nil
}
