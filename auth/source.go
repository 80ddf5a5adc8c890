package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
)

// maxRetired bounds the removed keys that are remembered, the latest first.
const maxRetired = 16

var errClosed = errors.New("the source of keys is closed")

// Source makes the verifiers of a server: with the keys of its options, and
// with those of a key set that is refreshed in the background. Safe for
// concurrent use.
type Source struct {
	log       *slog.Logger      // fixed after open
	transport http.RoundTripper // fixed after open; nil outside of tests
	changed   chan struct{}     // holds a signal; closed by Close
	current   atomic.Pointer[Verifier]

	turn   sync.Mutex // one Reload or Close at a time
	closed bool       // guarded by turn
	stop   func()     // guarded by turn: ends the goroutine of set and waits for it

	mu      sync.Mutex
	options Options // guarded by mu; written in turn only
	own     []key   // guarded by mu: of options
	set     *keySet // guarded by mu: nil without one; written in turn only
	shared  []key   // guarded by mu: of set
	retired []key   // guarded by mu: what verified once and does no longer
}

// Open checks o as [New] does and returns a source that keeps auth.jwks fresh
// until Close.
//
// The first look at a key set happens here and takes at most 10 s. A file that
// cannot be used is an error, like any other mistake in a configuration. A
// server that cannot be reached or has no good set is none, since it may be
// back before the next token comes: the log says so, and tokens that no other
// key verifies are answered with [ErrKeysPending] until a look succeeds, which
// is tried again every 10 to 30 s.
func Open(ctx context.Context, o Options, log *slog.Logger) (*Source, error) {
	return open(ctx, o, log, nil)
}

func open(ctx context.Context, o Options, log *slog.Logger, transport http.RoundTripper) (*Source, error) {
	s := &Source{
		log:       log,
		transport: transport,
		changed:   make(chan struct{}, 1),
		stop:      func() {},
	}
	own, err := o.check()
	if err != nil {
		return nil, err
	}
	set, err := s.firstLook(ctx, &o)
	if err != nil {
		if set.at.url == nil || ctx.Err() != nil {
			return nil, fmt.Errorf("auth.jwks: %w", err)
		}
		set.note(err)
	}
	s.adopt(o, own, set)
	<-s.changed // nobody has seen another verifier
	s.start(ctx, set)
	return s, nil
}

// firstLook returns the key set of o, which was checked, and the error of the
// first look; nil when there is no set.
func (s *Source) firstLook(ctx context.Context, o *Options) (*keySet, error) {
	if o.JWKS == "" {
		return nil, nil
	}
	set := newKeySet(o, s.transport, s.log)
	return set, set.look(ctx, func([]key) {})
}

// Verifier returns the verifier of the present keys: one atomic load.
func (s *Source) Verifier() *Verifier { return s.current.Load() }

// Changed receives after Verifier has changed; one signal may stand for several
// changes. It is made for one receiver and closed by Close.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Reload changes to other options, all or nothing: on an error everything is as
// it was. The key set is looked at again, which takes at most 10 s; that it
// cannot be used now is an error unless it is at the same URL as before, where
// its last good keys stay in force.
func (s *Source) Reload(ctx context.Context, o Options) error {
	own, err := o.check()
	if err != nil {
		return err
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.closed {
		return errClosed
	}
	set, err := s.firstLook(ctx, &o)
	if err != nil && (set.at.url == nil || o.JWKS != s.options.JWKS || ctx.Err() != nil) {
		return fmt.Errorf("auth.jwks: %w", err)
	}
	s.stop()
	if err != nil {
		set.inherit(s.set)
		set.note(err)
	}
	s.adopt(o, own, set)
	s.start(ctx, set)
	return nil
}

// start runs the set's goroutine until s.stop is called.
func (s *Source) start(ctx context.Context, set *keySet) {
	if set == nil {
		s.stop = func() {}
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the call
	var running sync.WaitGroup
	running.Go(func() { set.run(ctx, s.refreshed) })
	s.stop = func() {
		cancel()
		running.Wait()
	}
}

// adopt publishes a verifier of other options.
func (s *Source) adopt(o Options, own []key, set *keySet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.options, s.own, s.set, s.shared = o, own, set, nil
	if set != nil {
		s.shared = set.keys
	}
	s.publishLocked()
}

// refreshed publishes a verifier of other keys in the set.
func (s *Source) refreshed(keys []key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.EqualFunc(s.shared, keys, sameKey) {
		return
	}
	s.shared = keys
	s.publishLocked()
}

func (s *Source) publishLocked() {
	grants, before := &sharedGrants{}, []key(nil)
	if old := s.current.Load(); old != nil {
		grants, before = old.grants, old.keys
	}
	v := newVerifier(&s.options, slices.Concat(s.own, s.shared), grants)
	v.set = s.set
	s.retired = retire(v, slices.Concat(before, s.retired))
	v.retired = s.retired
	s.current.Store(v)
	select {
	case s.changed <- struct{}{}:
	default: // one signal stands for both
	}
}

// retire returns those of the keys that v does not have, the first maxRetired
// of them.
func retire(v *Verifier, keys []key) (retired []key) {
	for _, k := range keys {
		if !v.Trusts(k.id) && len(retired) < maxRetired {
			retired = append(retired, k)
		}
	}
	return retired
}

// sameKey reports whether two keys verify the same tokens.
func sameKey(a, b key) bool {
	return a.id == b.id && a.named == b.named && len(a.methods) == len(b.methods) && a.methods[0] == b.methods[0]
}

// Close ends the refreshing and waits for its end. The last verifier can still
// be used.
func (s *Source) Close() {
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.stop()
	close(s.changed)
}
