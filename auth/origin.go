package auth

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Origins says which web pages may open a socket: those of the server's own
// host and those of a list. The zero value has an empty list. Immutable.
type Origins struct {
	list     []origin
	null     bool // "null" is listed: sandboxed frames, file: pages
	loopback bool
}

// origin is a scheme, a host and a port (RFC 6454 section 4), in lower case
// and with the scheme's default port filled in.
type origin struct {
	scheme string
	host   string // with a leading dot when it stands for all its subdomains
	port   string
}

// ParseOrigins reads a list of "scheme://host[:port]", "scheme://*.host[:port]"
// (every subdomain, at any depth, not the host itself) and "null".
func ParseOrigins(list []string) (Origins, error) {
	var all Origins
	for _, s := range list {
		if s == "null" {
			all.null = true
			continue
		}
		o, ok := parseOrigin(s, true)
		if !ok {
			return Origins{}, fmt.Errorf("%.80q is not an origin: write scheme://host[:port], scheme://*.host[:port] or null", s)
		}
		all.list = append(all.list, o)
	}
	return all, nil
}

// WithLoopback returns the same origins with http and https pages of this
// machine added, whatever their port: localhost, 127.0.0.0/8 and [::1].
func (o Origins) WithLoopback() Origins {
	o.loopback = true
	return o
}

// Allow reports whether a page of this origin may open a socket on a server
// that was addressed as host (the Host header), over TLS or not. Scheme, host
// and port must all be equal. Whether a request without an Origin header may
// pass is the caller's business: here "" is refused.
//
// Behind a proxy that ends TLS the server's own host has another scheme than
// the page, so the page's origin must be listed.
func (o Origins) Allow(from, host string, https bool) bool {
	if from == "null" {
		return o.null
	}
	page, ok := parseOrigin(from, false)
	if !ok {
		return false
	}
	scheme := "http"
	if https {
		scheme = "https"
	}
	if self, ok := parseOrigin(scheme+"://"+host, false); ok && self == page {
		return true
	}
	for i := range o.list {
		if o.list[i].matches(page) {
			return true
		}
	}
	return o.loopback && page.isLoopback()
}

// SameHost reports whether a page of this origin comes from another port, the one
// given, of the host that was addressed as host (the Host header).
func SameHost(from, host, port string) bool {
	page, ok := parseOrigin(from, false)
	self, valid := parseOrigin("http://"+host, false)
	return ok && valid && (page.scheme == "http" || page.scheme == "https") && page.host == self.host && page.port == port
}

func (o *origin) matches(page origin) bool {
	if o.scheme != page.scheme || o.port != page.port {
		return false
	}
	if o.host[0] == '.' {
		return strings.HasSuffix(page.host, o.host) // no valid host begins with a dot
	}
	return o.host == page.host
}

func (o *origin) isLoopback() bool {
	if o.scheme != "http" && o.scheme != "https" {
		return false
	}
	if o.host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(o.host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}

// parseOrigin reads an origin as browsers send it: no user, path, query or
// fragment. pattern allows "*." before the host.
func parseOrigin(s string, pattern bool) (o origin, ok bool) {
	scheme, rest, ok := strings.Cut(strings.ToLower(s), "://")
	if !ok || !validScheme(scheme) {
		return o, false
	}
	dot := ""
	if after, found := strings.CutPrefix(rest, "*."); found && pattern {
		dot, rest = ".", after
	}
	host, port, ok := splitPort(rest)
	if !ok {
		return o, false
	}
	if port == "" {
		port = defaultPort(scheme)
	}
	if host[0] == '[' && dot != "" {
		return o, false
	}
	return origin{scheme: scheme, host: dot + host, port: port}, true
}

func defaultPort(scheme string) string {
	switch scheme {
	case "http":
		return "80"
	case "https":
		return "443"
	}
	return ""
}

// splitPort splits host[:port], where an IPv6 address is in brackets and put
// into its canonical form.
func splitPort(s string) (host, port string, ok bool) {
	if strings.HasPrefix(s, "[") {
		addr, rest, found := strings.Cut(s[1:], "]")
		ip, err := netip.ParseAddr(addr)
		if !found || err != nil || !ip.Is6() || ip.Zone() != "" {
			return "", "", false
		}
		host, s = "["+ip.String()+"]", rest
		if s != "" && s[0] != ':' {
			return "", "", false
		}
		port, found = strings.CutPrefix(s, ":")
		return host, port, !found || validPort(port)
	}
	host, port, found := strings.Cut(s, ":")
	if !validHost(host) || found && !validPort(port) {
		return "", "", false
	}
	return host, port, true
}

func validPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0 && s[0] != '0'
}

// validScheme follows RFC 3986 section 3.1; s is in lower case.
func validScheme(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' {
			continue
		}
		if i == 0 || (c < '0' || c > '9') && c != '+' && c != '-' && c != '.' {
			return false
		}
	}
	return s != ""
}

// validHost accepts letters, digits, '-', '_' and '.'; international names come
// as punycode. s is in lower case.
func validHost(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return s != "" && s[0] != '.'
}
