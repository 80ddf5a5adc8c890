//go:build !linux

package loadtest

import (
	"errors"
	"net/netip"
	"syscall"
)

func socketMemories(netip.AddrPort) (map[netip.AddrPort]int64, error) {
	return nil, errors.ErrUnsupported
}

func unreadBytes(syscall.RawConn) (int, bool) { return 0, false }
