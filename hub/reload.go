package hub

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"
)

// watchKeys puts each new set of keys in force, until the source is closed.
func (s *Server) watchKeys() {
	for range s.source.Changed() {
		s.update(func(p *policy) { p.verifier = s.verifier(p.Admin.Key) })
		s.log.Info("token keys have changed")
	}
}

// Reload puts other options in force: all that may change while running, or nothing
// and an error that begins with the key at fault. The caller has validated o. A key
// set (auth.jwks) is looked at again, which takes at most 10 s.
//
// restart names the keys whose new value takes a restart, such as server.listen, or
// durable of a namespace that this server has had; they keep the old one, and so do
// [Options].Development and Version. Live connections meet the new rules at their
// next revalidation, new requests and commands at once.
func (s *Server) Reload(ctx context.Context, o Options) (restart []string, err error) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	before := s.policy.Load()
	eff := s.reloadable(&before.Options, &o)
	if err := eff.Validate(); err != nil { // of old and new together
		return nil, err
	}
	next, err := newPolicy(eff)
	if err != nil {
		return nil, err
	}
	if err := s.source.Reload(ctx, eff.Auth); err != nil {
		return nil, err
	}
	// From here on nothing fails.
	s.updating.Lock()
	s.updateLocked(func(p *policy) {
		next.generation, next.revocations = p.generation, p.revocations
		next.verifier = s.verifier(eff.Admin.Key)
		*p = *next
	})
	s.gates.setLimits(&eff.Limits)
	s.applyCapsLocked()
	s.updating.Unlock()
	maps.Copy(s.declared, eff.Namespaces)
	for _, db := range s.databases.all() {
		db.adoptNamespaces()
	}
	if period := eff.Auth.Revalidate; period < before.Auth.Revalidate {
		s.scan(func(l *loop, c *conn) { l.hasten(c, period) })
	}
	restart = differing(reflect.ValueOf(&eff).Elem(), reflect.ValueOf(&o).Elem(), "")
	s.log.Info("configuration reloaded", slog.Int("restart_needed", len(restart)))
	return restart, nil
}

// reloadable returns the old options with what may change of the new ones.
func (s *Server) reloadable(old, o *Options) Options {
	eff := *old
	eff.Auth = o.Auth
	eff.API.Key, eff.Admin.Key = o.API.Key, o.Admin.Key
	if (old.Admin.Listen == "") != (o.Admin.Listen == "") {
		eff.Admin.Key = old.Admin.Key
	}
	eff.Limits = o.Limits
	eff.Limits.Unsent, eff.Limits.LogMemory = old.Limits.Unsent, old.Limits.LogMemory
	eff.Server.Origins, eff.Server.TrustedProxies = o.Server.Origins, o.Server.TrustedProxies
	if (old.Server.TLSCert == "") == (o.Server.TLSCert == "") {
		eff.Server.TLSCert, eff.Server.TLSKey = o.Server.TLSCert, o.Server.TLSKey
	}
	eff.Namespaces = make(map[string]Namespace, len(o.Namespaces))
	for name, ns := range o.Namespaces {
		if was, known := s.declared[name]; known && was.Durable != ns.Durable {
			ns.Durable, ns.HistorySize, ns.HistoryTTL = was.Durable, was.HistorySize, was.HistoryTTL
		}
		eff.Namespaces[name] = ns
	}
	return eff
}

// hasten makes the next revalidation of c come within a period.
func (l *loop) hasten(c *conn, period time.Duration) {
	if next := spread(l.now, period); next < c.nextCheck {
		c.nextCheck = next
		l.schedule(c)
	}
}

// differing returns the keys of hub.toml by which two options differ.
func differing(a, b reflect.Value, key string) (keys []string) {
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			if name := a.Type().Field(i).Tag.Get("toml"); name != "-" {
				keys = append(keys, differing(a.Field(i), b.Field(i), joinKey(key, name))...)
			}
		}
	case reflect.Map: // of namespaces; both have the same
		for _, name := range a.MapKeys() {
			keys = append(keys, differing(a.MapIndex(name), b.MapIndex(name), joinKey(key, name.String()))...)
		}
		slices.Sort(keys)
	case reflect.Slice:
		if a.Len()+b.Len() > 0 && !reflect.DeepEqual(a.Interface(), b.Interface()) {
			keys = append(keys, key)
		}
	default:
		if !a.Equal(b) {
			keys = append(keys, key)
		}
	}
	return keys
}

func joinKey(table, name string) string {
	if table == "" {
		return name
	}
	return table + "." + name
}
