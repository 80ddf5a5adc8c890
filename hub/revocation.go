package hub

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"hub/auth"
	"hub/store"
)

// revocationList is what the registry holds of revocations, in memory. A change is
// durable first, then in the list, then in the policy, then on live connections.
type revocationList struct {
	mu      sync.Mutex               // held across a write of the registry, so that both change in one order
	byID    map[int64]heldRevocation // guarded by mu
	changes uint64                   // how often byID has changed; guarded by mu

	// published is the changes that the policy knows; guarded by Server.updating.
	published uint64
}

// heldRevocation is a revocation and when it may be forgotten: by both clocks,
// since one that jumps ahead for a moment must let nobody in.
type heldRevocation struct {
	store.Revocation
	until expiry
}

// revocationSweep is how often revocations that nobody needs any more are looked for.
const revocationSweep = time.Minute

// loadRevocations puts what earlier runs have revoked in force.
func (s *Server) loadRevocations() error {
	all, err := s.registry.Revocations(s.context)
	if err != nil {
		return err
	}
	list := &s.revocations
	list.mu.Lock()
	list.byID = make(map[int64]heldRevocation, len(all))
	for _, v := range all {
		list.byID[v.ID] = s.held(v)
	}
	list.changes++
	list.mu.Unlock()
	s.publishRevocations()
	return nil
}

func (s *Server) held(v store.Revocation) heldRevocation {
	return heldRevocation{v, s.expiry(time.Since(s.start), v.Until)}
}

// revoke ends tokens as v says (see [store.Revocation]) and returns what is stored.
// When it returns, live connections with those tokens are closed and subscriptions
// made with them have ended: what is published from then on does not reach them.
// New ones are refused from a moment before. Without an error it survives a restart;
// [store.ErrInvalid] tells what is wrong with v, and nothing has changed then.
func (s *Server) revoke(ctx context.Context, v store.Revocation) (store.Revocation, error) {
	list := &s.revocations
	list.mu.Lock()
	stored, err := s.registry.Revoke(ctx, v)
	if err == nil {
		list.byID[stored.ID] = s.held(stored)
		list.changes++
	}
	list.mu.Unlock()
	if err != nil {
		return store.Revocation{}, err
	}
	s.publishRevocations()
	s.endRevoked(&stored)
	return stored, nil
}

// restore takes a revocation back, or returns [store.ErrNotFound]. Connections that
// it has closed may come back.
func (s *Server) restore(ctx context.Context, id int64) error {
	list := &s.revocations
	list.mu.Lock()
	err := s.registry.Restore(ctx, id)
	if err == nil {
		delete(list.byID, id)
		list.changes++
	}
	list.mu.Unlock()
	if err != nil {
		return err
	}
	s.publishRevocations()
	return nil
}

// revoked returns all revocations in force, the oldest first.
func (s *Server) revoked() []store.Revocation {
	list := &s.revocations
	list.mu.Lock()
	defer list.mu.Unlock()
	all := make([]store.Revocation, 0, len(list.byID))
	for _, id := range slices.Sorted(maps.Keys(list.byID)) {
		all = append(all, list.byID[id].Revocation)
	}
	return all
}

// publishRevocations puts the list in force. Of callers who wait for each other one
// does the work of all: the set is made anew each time (20 ms for 100,000).
func (s *Server) publishRevocations() {
	list := &s.revocations
	s.updating.Lock()
	defer s.updating.Unlock()
	list.mu.Lock()
	changes := list.changes
	if changes == list.published {
		list.mu.Unlock()
		return
	}
	all := make([]auth.Revocation, 0, len(list.byID))
	for _, v := range list.byID {
		all = append(all, auth.Revocation{
			Database: v.Database, User: v.User, TokenID: v.TokenID, IssuedBefore: v.IssuedBefore, Until: v.Until,
		})
	}
	list.mu.Unlock()
	list.published = changes
	s.updateLocked(func(p *policy) {
		p.revocations = nil // which costs a check nothing
		if len(all) > 0 {
			p.revocations = auth.NewRevocations(all)
		}
	})
}

// sweepRevocations forgets, from time to time, what no token can need any more.
func (s *Server) sweepRevocations() {
	tick := time.NewTicker(revocationSweep)
	defer tick.Stop()
	for {
		select {
		case <-s.context.Done():
			return
		case <-tick.C:
			s.sweepRevoked()
		}
	}
}

func (s *Server) sweepRevoked() {
	defer s.rescue()
	now, wall := time.Since(s.start), s.now().Unix()
	list := &s.revocations
	list.mu.Lock()
	over, before := false, wall
	for _, v := range list.byID {
		switch {
		case v.until.overByBoth(now, wall):
			over = true
		case v.Until > 0:
			before = min(before, v.Until)
		}
	}
	if over {
		s.forgetRevokedLocked(before)
	}
	list.mu.Unlock()
	s.publishRevocations()
}

// forgetRevokedLocked forgets the revocations whose Until lies before a time, in
// unix seconds.
func (s *Server) forgetRevokedLocked(before int64) {
	if _, err := s.registry.SweepRevocations(s.context, before); err != nil {
		if s.context.Err() == nil {
			s.log.Warn("revocations cannot be forgotten", slog.Any("error", err))
		}
		return
	}
	list := &s.revocations
	for id, v := range list.byID {
		if v.Until > 0 && v.Until < before {
			delete(list.byID, id)
			list.changes++
		}
	}
}

// endRevoked closes the live connections that v is about, and returns when that is
// done on every loop.
func (s *Server) endRevoked(v *store.Revocation) {
	if v.User == "" {
		s.scan(func(l *loop, c *conn) {
			if v.Database == "" || v.Database == c.db.name {
				l.endIfRevoked(c, v)
			}
		})()
		return
	}
	databases := s.databasesOf(v.Database)
	s.eachLoop(func(l *loop) {
		for _, db := range databases {
			var next *conn
			for c := l.users[userKey{db, v.User}]; c != nil; c = next {
				next = c.userNext // c may end
				l.endIfRevoked(c, v)
			}
		}
	})
}

// databasesOf returns the database of a name, all for "".
func (s *Server) databasesOf(name string) []*database {
	if name == "" {
		return slices.Collect(maps.Values(s.databases.all()))
	}
	if db := s.databases.get(name); db != nil {
		return []*database{db}
	}
	return nil
}

// endIfRevoked checks c again if v can be about one of its tokens.
func (l *loop) endIfRevoked(c *conn, v *store.Revocation) {
	about := names(v, &c.session.credential)
	for i := 0; i < len(c.subs) && !about; i++ {
		about = c.subs[i].token != nil && names(v, c.subs[i].token)
	}
	if about {
		l.guard(c, func() { l.recheck(c, l.server.policy.Load()) })
	}
}

// names says whether v may be about a token, its database and user aside.
func names(v *store.Revocation, c *credential) bool {
	return (v.TokenID == "" || v.TokenID == c.id) && (v.IssuedBefore == 0 || c.issuedAt < v.IssuedBefore)
}

// scanSlice is the connections that a scan looks at in one go: some tens of
// microseconds, between which the loop does what else is due.
const scanSlice = 1024

// scan calls f on the loops for every connection that has connected by now; f may
// end it. wait returns when that is done, or the loops have ended. Those that
// connect meanwhile may be left out: they have met the policy of now.
func (s *Server) scan(f func(*loop, *conn)) (wait func()) {
	done := make(chan struct{}, len(s.loops))
	for _, l := range s.loops {
		l.post(func() { l.scan(len(l.conns), f, func() { done <- struct{}{} }) })
	}
	return func() { s.awaitLoops(done) }
}

// scan goes on with the connections below index i. It goes down, since whoever
// leaves makes the last one take its place: that one has been seen then.
func (l *loop) scan(i int, f func(*loop, *conn), done func()) {
	for range scanSlice {
		if i = min(i, len(l.conns)); i == 0 {
			done()
			return
		}
		i--
		if c := l.conns[i]; c.state == stateConnected {
			f(l, c)
		}
	}
	l.post(func() { l.scan(i, f, done) })
}
