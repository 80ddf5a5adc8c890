package auth

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Periods of a key set.
const (
	lookGap    = 10 * time.Second // least time between two looks at a server
	filePeriod = 2 * time.Second  // between two looks at a file
	firstRetry = 30 * time.Second // longest time between two looks when none succeeded yet
)

// maxAsked bounds the key ids that wait for a look, 64 KiB of them. Tokens of
// more are told to wait as well, but not remembered.
const maxAsked = 256

// keySet looks at a JSON Web Key Set again and again. A look that fails, or
// finds a set that parseSet refuses, leaves the keys of the last good one in
// force, for as long as it takes.
//
// Tokens whose kid is unknown hasten the next look, but nobody waits for it and
// there is never more than one at a time, nor two within the gap. So forged
// tokens cost a server of keys one request in 10 s, and a kid is called unknown
// only after a look that began when it had been asked for.
type keySet struct {
	// fixed after new
	at        location
	every     time.Duration // between two looks
	gap       time.Duration // the least
	transport http.RoundTripper
	log       *slog.Logger
	wake      chan struct{} // holds a signal when asked is no longer empty

	// owned by whoever calls look: the opener, then the goroutine of run
	raw      []byte // what the last look read
	keys     []key  // of the last good set
	verdict  error  // on raw
	lastText string // of the last error, so that the log has each once

	mu       sync.Mutex
	loaded   bool                // guarded by mu: there was a good look
	looked   time.Time           // guarded by mu: the end of the last look
	failures int                 // guarded by mu: looks since the last good one
	asked    map[string]struct{} // guarded by mu: key ids that tokens named since the last look began
	absent   map[string]struct{} // guarded by mu: those that the last look did not find
}

// newKeySet makes the set of options that were checked. It has not looked yet.
func newKeySet(o *Options, transport http.RoundTripper, log *slog.Logger) *keySet {
	at, err := parseLocation(o.JWKS)
	if err != nil {
		panic("auth: options were not checked: " + err.Error())
	}
	s := &keySet{
		at:        at,
		every:     o.JWKSRefresh,
		gap:       lookGap,
		transport: transport,
		log:       log.With("jwks", at.String()),
		wake:      make(chan struct{}, 1),
	}
	if at.url == nil {
		s.every, s.gap = filePeriod, filePeriod
	}
	return s
}

// awaits reports whether the key of a token that no key verified may still come:
// then it makes sure that somebody looks. unknown says that the token names a
// kid which no key has.
func (s *keySet) awaits(h header, unknown bool) bool {
	if !maybeInSet(h) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !unknown {
		return h.kid == "" && !s.loaded
	}
	if _, ok := s.absent[h.kid]; ok && time.Since(s.looked) < s.gap {
		return false
	}
	if len(s.asked) < maxAsked {
		if s.asked == nil {
			s.asked = make(map[string]struct{})
		}
		s.asked[h.kid] = struct{}{}
	}
	select {
	case s.wake <- struct{}{}:
	default: // it is awake already
	}
	return true
}

// run looks when it is time, until ctx is done. changed is called with the keys
// of each set that differs from the one before.
func (s *keySet) run(ctx context.Context, changed func([]key)) {
	for ctx.Err() == nil {
		timer := time.NewTimer(time.Until(s.due()))
		select {
		case <-ctx.Done():
		case <-s.wake: // due may be sooner now
		case <-timer.C:
			if err := s.look(ctx, changed); ctx.Err() == nil {
				s.note(err)
			}
		}
		timer.Stop()
	}
}

// due returns when to look next.
func (s *keySet) due() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := s.every
	if s.failures > 0 {
		wait = min(wait, s.gap<<min(s.failures-1, 10))
		if !s.loaded {
			wait = min(wait, firstRetry)
		}
	}
	if len(s.asked) > 0 {
		wait = min(wait, s.gap)
	}
	return s.looked.Add(wait)
}

// look reads the set and tells changed of new keys, before any kid is called
// absent.
func (s *keySet) look(ctx context.Context, changed func([]key)) error {
	s.mu.Lock()
	asked := s.asked
	s.asked = nil
	s.mu.Unlock()

	raw, err := s.at.read(ctx, s.transport)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && (s.raw == nil || !bytes.Equal(raw, s.raw)) {
		s.read(raw, changed)
	}
	if err == nil {
		err = s.verdict
	}
	s.settle(asked, err == nil)
	return err
}

// read makes the keys of a set that is new.
func (s *keySet) read(raw []byte, changed func([]key)) {
	keys, ignored, err := parseSet(raw)
	s.raw, s.verdict = raw, err
	if err != nil {
		return
	}
	for _, why := range ignored {
		s.log.Info("key of the key set ignored", "reason", why)
	}
	s.log.Info("key set loaded", "keys", len(keys), "ignored", len(ignored))
	s.keys = keys
	changed(keys)
}

// note logs an error when it is another than before, and its end.
func (s *keySet) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == s.lastText:
	case err == nil:
		s.log.Info("key set can be read again")
	case s.keys == nil:
		s.log.Warn("key set not loaded, tokens of its keys wait", "error", err)
	default:
		s.log.Warn("key set not refreshed, its last keys stay in force", "error", err)
	}
	s.lastText = text
}

// settle ends a look. What was asked for before it began has its answer now.
func (s *keySet) settle(asked map[string]struct{}, good bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = time.Now()
	if !good {
		s.failures++
		return
	}
	s.loaded, s.failures = true, 0
	for i := range s.keys {
		delete(asked, s.keys[i].kid)
		delete(s.asked, s.keys[i].kid)
	}
	for kid := range asked {
		delete(s.asked, kid)
	}
	s.absent = asked
}

// inherit takes over what an older look at the same place, whose goroutine has
// ended, had found.
func (s *keySet) inherit(old *keySet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw, s.keys, s.verdict, s.loaded = old.raw, old.keys, old.verdict, old.keys != nil
}
