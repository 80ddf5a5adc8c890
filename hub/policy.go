package hub

import (
	"crypto/tls"
	"errors"
	"fmt"

	"hub/auth"
	"hub/ratelimit"
)

// policy is what may change while the server runs: keys, revocations, namespaces,
// limits, origins, proxies, the certificate. It is an immutable snapshot; a change
// makes another one. Whoever needs it loads it once for a piece of work.
type policy struct {
	// Options are those in force. What takes a restart is as it was at the start.
	Options
	// generation is above that of every policy before: a connection that was checked
	// under this one need not be checked again.
	generation uint64

	verifier    *auth.Verifier
	revocations *auth.Revocations
	namespaces  map[string]*Namespace
	origins     auth.Origins
	proxies     ratelimit.Proxies
	certificate *tls.Certificate // nil without TLS
}

// newPolicy makes the parts of a policy that follow from valid options alone.
func newPolicy(o Options) (_ *policy, err error) {
	p := &policy{Options: o, namespaces: make(map[string]*Namespace, len(o.Namespaces))}
	for name, ns := range o.Namespaces {
		p.namespaces[name] = &ns
	}
	if p.origins, err = auth.ParseOrigins(o.Server.Origins); err != nil {
		return nil, fmt.Errorf("server.origins: %w", err)
	}
	if o.Development {
		p.origins = p.origins.WithLoopback()
	}
	if p.proxies, err = ratelimit.ParseProxies(o.Server.TrustedProxies); err != nil {
		return nil, fmt.Errorf("server.trusted_proxies: %w", err)
	}
	if o.Server.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(o.Server.TLSCert, o.Server.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("server.tls_cert: %w", err)
		}
		p.certificate = &pair
	}
	return p, nil
}

// update puts another policy in force: the present one with a change. What change
// sets must not be altered afterwards.
func (s *Server) update(change func(*policy)) {
	s.updating.Lock()
	defer s.updating.Unlock()
	s.updateLocked(change)
}

func (s *Server) updateLocked(change func(*policy)) {
	next := *s.policy.Load()
	next.generation++
	change(&next)
	s.policy.Store(&next)
}

// credential is all that is kept of a token once its claims were read: what removed
// keys and revocations name.
type credential struct {
	user      string // sub
	id, keyID string // jti; which key verified it
	issuedAt  int64  // iat, unix seconds
}

// standing is what a token is worth now.
type standing uint8

const (
	tokenGood    standing = iota
	tokenPending          // its key may be about to be loaded: the same token may be good soon
	tokenExpired          // its time is over, or its key was removed: a new one is welcome
	tokenRevoked          // it was revoked: a new one is welcome
	userRevoked           // the user may not come back
	tokenInvalid          // forged, malformed or of no use here
)

// standing says what a token is worth in a database, and which rule says so. err is
// that of its verification; without one, c is its credential. Nothing is verified
// again, so it may be asked at any later time (20 ns while nothing is revoked).
func (p *policy) standing(database string, c *credential, err error) (standing, string) {
	switch {
	case err == nil:
	case errors.Is(err, auth.ErrKeysPending):
		return tokenPending, err.Error()
	case errors.Is(err, auth.ErrExpired):
		return tokenExpired, err.Error()
	default:
		return tokenInvalid, err.Error()
	}
	if why, kind, ok := p.revocations.Revokes(database, c.user, c.id, c.issuedAt); ok {
		if kind == auth.RevokedUser {
			return userRevoked, why
		}
		return tokenRevoked, why
	}
	if !p.verifier.Trusts(c.keyID) {
		return tokenExpired, "its key was removed"
	}
	return tokenGood, ""
}

// connection is standing for a connection token.
func (p *policy) connection(database string, claims *auth.Claims, err error) (standing, string) {
	if err != nil {
		return p.standing(database, nil, err)
	}
	if !claims.AllowsDatabase(database) {
		return tokenInvalid, "the token is not good for this database (claim db)"
	}
	c := credentialOf(claims)
	return p.standing(database, &c, nil)
}

func credentialOf(c *auth.Claims) credential {
	return credential{user: c.User, id: c.ID, keyID: c.KeyID, issuedAt: c.IssuedAt}
}
