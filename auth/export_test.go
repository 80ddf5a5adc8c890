package auth

import (
	"context"
	"log/slog"
	"net/http"
)

// OpenVia is Open with another transport than that of the system's roots.
func OpenVia(ctx context.Context, o Options, log *slog.Logger, via http.RoundTripper) (*Source, error) {
	return open(ctx, o, log, via)
}

// ParseSet tells how many keys of a set are used and ignored.
func ParseSet(raw []byte) (used, ignored int, err error) {
	keys, other, err := parseSet(raw)
	return len(keys), len(other), err
}

// Asked tells how many key ids wait for a look.
func (s *Source) Asked() int {
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	return len(s.set.asked)
}
