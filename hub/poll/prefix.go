package poll

import (
	"errors"
	"net"
	"net/netip"
)

// prefixConn is a connection of which some bytes were read ahead. It hides the
// methods of Conn that would bypass them.
type prefixConn struct {
	net.Conn
	prefix []byte
}

// withPrefix returns c with a copy of the given bytes in front.
func withPrefix(c net.Conn, first, second []byte) net.Conn {
	if len(first)+len(second) == 0 {
		return c
	}
	prefix := make([]byte, 0, len(first)+len(second))
	prefix = append(prefix, first...)
	return &prefixConn{c, append(prefix, second...)}
}

func (c *prefixConn) Read(p []byte) (int, error) {
	if len(c.prefix) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.prefix)
	c.prefix = c.prefix[n:]
	if len(c.prefix) == 0 {
		c.prefix = nil
	}
	return n, nil
}

// CloseWrite is what net/http looks for to let a last answer arrive.
func (c *prefixConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return errors.ErrUnsupported
}

// addrPort is zero for addresses that are none of IP (net.Pipe).
func addrPort(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
