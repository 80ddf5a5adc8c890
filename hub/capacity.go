package hub

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"hub/store"
)

// Caps of connections come from the configuration. One that was set while running
// beats it, durably, until it is reset.

// capKey is what a cap is about, as in [store.Cap].
type capKey struct{ scope, database string }

// The scopes of caps, as package ratelimit calls them too.
const (
	scopeServer   = "server"
	scopeDatabase = "database"
	scopeIP       = "ip"
)

// capacity tells of one cap.
type capacity struct {
	Scope    string // "server", "database" or "ip"
	Database string // of scope "database": which one, "" for each that has none of its own
	File     int    // what the configuration says; 0 is off
	Override *int   // what was set while running; nil: nothing
	Limit    int    // in force; 0 is off. The server's is bounded by its descriptors
	Present  int    // connections of now; 0 where the row is about many ("" and ip)
}

// loadCaps puts the caps that earlier runs have set in force.
func (s *Server) loadCaps() error {
	all, err := s.registry.Caps(s.context)
	if err != nil {
		return err
	}
	s.updating.Lock()
	defer s.updating.Unlock()
	for _, c := range all {
		s.caps[capKey{c.Scope, c.Database}] = c.Limit
	}
	s.applyCapsLocked()
	return nil
}

// setCap sets a cap, now and durably. Connections above it stay; new ones are
// refused until enough of them are gone. [store.ErrInvalid] when its scope is
// unknown or its limit negative.
func (s *Server) setCap(ctx context.Context, c store.Cap) error {
	s.updating.Lock()
	defer s.updating.Unlock()
	if err := s.registry.SetCap(ctx, c); err != nil {
		return err
	}
	s.caps[capKey{c.Scope, c.Database}] = c.Limit
	s.applyCapsLocked()
	return nil
}

// resetCap makes the configuration hold again. There need be no cap.
func (s *Server) resetCap(ctx context.Context, scope, database string) error {
	s.updating.Lock()
	defer s.updating.Unlock()
	if err := s.registry.ResetCap(ctx, scope, database); err != nil {
		return err
	}
	delete(s.caps, capKey{scope, database})
	s.applyCapsLocked()
	return nil
}

// applyCapsLocked makes the configuration and what was set while running the limits
// of new connections.
func (s *Server) applyCapsLocked() {
	limits := s.policy.Load().Limits.Connections
	of := func(scope string, file int) int {
		if limit, set := s.caps[capKey{scope, ""}]; set {
			return limit
		}
		return file
	}
	databases := make(map[string]int)
	for key, limit := range s.caps {
		if key.database != "" {
			databases[key.database] = limit
		}
	}
	s.slots.SetLimits(s.descriptorCap(of(scopeServer, limits.Server)), of(scopeDatabase, limits.Database), of(scopeIP, limits.IP))
	s.slots.SetDatabaseLimits(databases)
}

// capacities tells of all caps: the server's, each database's that is set or in use,
// that of every other database, and each address's.
func (s *Server) capacities() []capacity {
	s.updating.Lock()
	defer s.updating.Unlock()
	limits := s.policy.Load().Limits.Connections
	server, database, ip := s.slots.Limits()
	total, present := s.slots.Counts()
	rows := []capacity{
		{Scope: scopeServer, File: limits.Server, Limit: server, Present: total},
		{Scope: scopeDatabase, File: limits.Database, Limit: database},
		{Scope: scopeIP, File: limits.IP, Limit: ip},
	}
	for key := range s.caps {
		if _, counted := present[key.database]; key.database != "" && !counted {
			present[key.database] = 0
		}
	}
	for name, n := range present {
		rows = append(rows, capacity{Scope: scopeDatabase, Database: name,
			File: limits.Database, Limit: s.slots.DatabaseLimit(name), Present: n})
	}
	for i := range rows {
		if limit, set := s.caps[capKey{rows[i].Scope, rows[i].Database}]; set {
			rows[i].Override = &limit
		}
	}
	slices.SortFunc(rows, func(a, b capacity) int {
		return cmp.Or(-cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Database, b.Database))
	})
	return rows
}

// descriptorReserve is the descriptors that connections must leave to listeners,
// pollers, requests, backups and the files of a few databases.
const descriptorReserve = 256

// databaseDescriptors is what the files of all databases take: two for each connection
// to one, and what they share.
func (s *Server) databaseDescriptors() int {
	return len(s.databases.all()) * (2*(s.opts.Database.Readers+1) + 2)
}

// descriptorCap is the wanted cap of the server, or what the descriptor limit allows.
func (s *Server) descriptorCap(limit int) int {
	most := descriptorLimit() - max(descriptorReserve, descriptorReserve/2+s.databaseDescriptors())
	if most < 1 {
		most = max(1, descriptorLimit()/2)
	}
	if limit > 0 && limit <= most {
		return limit
	}
	if s.cappedAt != limit {
		s.cappedAt = limit
		s.log.Info("connections are capped by the descriptor limit",
			slog.Int("limits.connections.server", limit), slog.Int("cap", most), slog.Int("descriptors", descriptorLimit()))
	}
	return most
}
