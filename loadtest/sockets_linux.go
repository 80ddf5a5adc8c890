package loadtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// From linux/sock_diag.h and linux/inet_diag.h.
const (
	sockDiagByFamily = 20
	diagMemory       = 7  // INET_DIAG_SKMEMINFO: nine numbers of 32 bits
	diagHeader       = 72 // struct inet_diag_msg
	diagRequest      = 56 // struct inet_diag_req_v2
	established      = 1  // TCP_ESTABLISHED
)

// Places of the numbers in diagMemory that are memory in use; the others are limits.
var diagUsed = []int{0 /* receive queue */, 4 /* reserved */, 5 /* write queue */, 7 /* backlog */}

// socketMemories is the kernel's memory, in bytes, of each established connection
// whose end on this machine has the address local, by the address of its peer
// (sock_diag(7)).
func socketMemories(local netip.AddrPort) (map[netip.AddrPort]int64, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	defer unix.Close(fd)
	found := make(map[netip.AddrPort]int64)
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := dumpSockets(fd, family, local, found); err != nil {
			return nil, fmt.Errorf("sock_diag: %w", err)
		}
	}
	return found, nil
}

// dumpSockets adds those of one address family.
func dumpSockets(fd int, family byte, local netip.AddrPort, found map[netip.AddrPort]int64) error {
	request := make([]byte, unix.SizeofNlMsghdr+diagRequest)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := request[unix.SizeofNlMsghdr:]
	body[0], body[1], body[2] = family, unix.IPPROTO_TCP, 1<<(diagMemory-1)
	binary.NativeEndian.PutUint32(body[4:], 1<<established)
	binary.BigEndian.PutUint16(body[8:], local.Port())
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				return errors.New("refused by the kernel")
			}
			if from, peer, bytes, ok := parseSocket(m.Data); ok && from == local {
				found[peer] = bytes
			}
		}
	}
}

// parseSocket reads one socket of a dump: its ends, and the memory that it uses.
func parseSocket(m []byte) (local, peer netip.AddrPort, bytes int64, ok bool) {
	if len(m) < diagHeader {
		return local, peer, 0, false
	}
	end := func(address, port []byte) netip.AddrPort {
		a := netip.AddrFrom4([4]byte(address))
		if m[0] == unix.AF_INET6 {
			a = netip.AddrFrom16([16]byte(address)).Unmap()
		}
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
	}
	local, peer = end(m[8:24], m[4:6]), end(m[24:40], m[6:8])
	for rest := m[diagHeader:]; len(rest) >= unix.SizeofRtAttr; {
		size, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
		if size < unix.SizeofRtAttr || size > len(rest) {
			break
		}
		if value := rest[unix.SizeofRtAttr:size]; kind == diagMemory && len(value) >= 32 {
			for _, i := range diagUsed {
				bytes += int64(binary.NativeEndian.Uint32(value[4*i:]))
			}
			return local, peer, bytes, true
		}
		rest = rest[min(len(rest), (size+3)&^3):]
	}
	return local, peer, 0, false
}

// unreadBytes is how much has come on a connection that nobody has read.
func unreadBytes(c syscall.RawConn) (n int, ok bool) {
	err := c.Control(func(fd uintptr) {
		var failed error
		n, failed = unix.IoctlGetInt(int(fd), unix.SIOCINQ)
		ok = failed == nil
	})
	return n, ok && err == nil
}
