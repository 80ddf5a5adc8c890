package ratelimit

import (
	"fmt"
	"net/netip"
	"strings"
)

// AddrKey returns the address under which limits count ip: an IPv6 address by
// its /64, since that is what one host is given (RFC 6177), an IPv4-mapped one
// as the IPv4 address (case G20).
func AddrKey(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}

// Proxies are the peers whose forwarding headers count. The zero value trusts
// nobody. Immutable.
type Proxies struct {
	prefixes []netip.Prefix
}

// ParseProxies reads a list of addresses and CIDR prefixes.
func ParseProxies(list []string) (Proxies, error) {
	var p Proxies
	for _, s := range list {
		prefix, err := parsePrefix(s)
		if err != nil {
			return Proxies{}, err
		}
		p.prefixes = append(p.prefixes, prefix)
	}
	return p, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		ip, err := netip.ParseAddr(s)
		if err != nil || ip.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%.80q is not an address or a prefix like 10.0.0.0/8", s)
		}
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil || prefix.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%.80q is not an address or a prefix like 10.0.0.0/8", s)
	}
	if prefix.Bits() == 0 {
		return netip.Prefix{}, fmt.Errorf("%.80q trusts everybody, so any client could name its own address", s)
	}
	return prefix.Masked(), nil
}

// Trusts reports whether ip is one of the proxies.
func (p Proxies) Trusts(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	for _, prefix := range p.prefixes {
		if prefix.Contains(ip) {
			return true
		}
	}
	return false
}

// ClientAddr returns the address of the client behind a connection from remote
// with these X-Forwarded-For values (one per header line, each a comma list).
// Every limiter, log and audit line uses it.
//
// The values count only when remote is a trusted proxy. Each proxy appends the
// address that it saw, so the walk goes from the right over trusted addresses
// to the first that is not (RFC 7239 section 8.1, case G19): what stands further
// left was written by the client. A value that is no address ends the walk at
// the proxy that sent it.
func ClientAddr(remote netip.Addr, forwardedFor []string, trusted Proxies) netip.Addr {
	client := remote.Unmap().WithZone("")
	for i := len(forwardedFor) - 1; i >= 0; i-- {
		for rest, more := forwardedFor[i], true; more; {
			if !trusted.Trusts(client) {
				return client
			}
			var hop string
			rest, hop, more = cutLast(rest)
			ip, ok := parseHop(hop)
			if !ok {
				return client
			}
			client = ip
		}
	}
	return client
}

// cutLast splits the last element off a comma list.
func cutLast(list string) (before, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	if i < 0 {
		return "", list, false
	}
	return list[:i], list[i+1:], true
}

// parseHop reads an address with or without a port.
func parseHop(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		s = strings.TrimSuffix(inner, "]")
	}
	ip, err := netip.ParseAddr(s)
	return ip.Unmap().WithZone(""), err == nil
}
