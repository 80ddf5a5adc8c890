package hub

import (
	"errors"
	"net/http"
	"net/netip"
	"time"

	"hub/ratelimit"
)

// requestClass is what the limits of requests tell apart (DESIGN.md section 9).
type requestClass uint8

const (
	classRead requestClass = iota
	classMutation
	classHandshake
	requestClasses
)

// classNames are the keys of the configuration and the labels of metrics.
var classNames = [requestClasses]string{"read", "mutation", "handshake"}

func (c requestClass) String() string { return classNames[c] }

// gateAddresses bounds the addresses that a gate remembers, at about 150 bytes
// each.
const gateAddresses = 100_000

// gates are those of each class.
type gates [requestClasses]*ratelimit.Gate

func newGates(l *LimitOptions) (g gates) {
	for class := range g {
		g[class] = ratelimit.NewGate(ratelimit.Limit{}, ratelimit.Limit{}, gateAddresses)
	}
	g.setLimits(l)
	return g
}

// setLimits changes the limits; what was spent stays spent.
func (g *gates) setLimits(l *LimitOptions) {
	for class, rates := range [requestClasses][2]Rate{
		classRead:      {l.Read, l.Database.Read},
		classMutation:  {l.Mutation, l.Database.Mutation},
		classHandshake: {l.Handshake, l.Database.Handshake},
	} {
		g[class].SetLimits(ratelimit.Limit(rates[0]), ratelimit.Limit(rates[1]))
	}
}

// pass takes a request through the gate of its class, or says why it may not. It
// comes before all other work, but behind what refuses a request that a page of
// somebody else can have a browser send: that must not use up its user's share.
func (s *Server) pass(class requestClass, db *database, addr netip.Addr) *problem {
	err := s.gates[class].Allow(db.name, addr, time.Now())
	if err == nil {
		return nil
	}
	p := newProblem("rate_limited", "too many requests to this database")
	scope := "database"
	var refusal *ratelimit.RateError
	if errors.As(err, &refusal) {
		p.retry = refusal.Retry
		if refusal.Scope == "ip" {
			scope, p.Detail = "ip", "too many requests from this address"
		}
	}
	s.metrics.limited.WithLabelValues(class.String(), scope).Inc()
	return p
}

// clientAddr is the address that the limits of a request count for.
func (s *Server) clientAddr(r *http.Request) netip.Addr {
	remote, _ := netip.ParseAddrPort(r.RemoteAddr)
	return ratelimit.ClientAddr(remote.Addr(), r.Header["X-Forwarded-For"], s.policy.Load().proxies)
}
