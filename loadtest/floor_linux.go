package loadtest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

const floorSupported = true

// ServeFloor is the floor's writer, a process of its own as a server is: it
// listens on an address, tells the port on out, goes through the handshakes of
// count connections without understanding them, and then writes what comes on in
// to all of them, each message with one write(2) per socket, on all cores. That is
// the least that any server must do. Messages are behind their length, as 4 bytes
// in little endian; the first two are the answers to the two things that a client
// says. It returns nil when in ends.
func ServeFloor(address string, count int, in io.Reader, out io.Writer) error {
	host, err := netip.ParseAddr(address)
	if err != nil || !host.Is4() || count < 1 {
		return fmt.Errorf("floor: an IPv4 address and a number are needed, got %q and %d", address, count)
	}
	descriptorLimit()
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("floor: socket: %w", err)
	}
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Addr: host.As4()}), unix.Listen(listener, 4096)); err != nil {
		return fmt.Errorf("floor: listen: %w", err)
	}
	at, err := unix.Getsockname(listener)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	messages := bufio.NewReader(in)
	var answers [2][]byte
	for i := range answers {
		if answers[i], err = readFloorMessage(messages); err != nil {
			return fmt.Errorf("floor: answers: %w", err)
		}
	}
	fmt.Fprintln(out, at.(*unix.SockaddrInet4).Port)
	sockets := make([]int, count)
	err = inParts(sockets, 16, func(part []int) (err error) {
		for i := range part {
			if part[i], err = acceptFloor(listener, answers); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("floor: accept: %w", err)
	}
	for {
		message, err := readFloorMessage(messages)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		if err := inParts(sockets, runtime.GOMAXPROCS(0), func(part []int) error { return writeAll(part, message) }); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
	}
}

// maxFloorMessage bounds a burst: 1000 events of 32 KiB with their frames, and more.
const maxFloorMessage = 64 << 20

func readFloorMessage(r io.Reader) ([]byte, error) {
	var size uint32
	if err := binary.Read(r, binary.LittleEndian, &size); err != nil {
		return nil, err
	}
	if size > maxFloorMessage {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	message := make([]byte, size)
	_, err := io.ReadFull(r, message)
	return message, err
}

// inParts runs f on n parts of sockets at once.
func inParts(sockets []int, n int, f func([]int) error) error {
	parts := slices.Collect(slices.Chunk(sockets, (len(sockets)+n-1)/n))
	done := make(chan error, len(parts))
	for _, part := range parts {
		go func() { done <- f(part) }()
	}
	var first error
	for range parts {
		if err := <-done; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// acceptFloor goes through the handshake: a connection on which nothing was ever
// received acknowledges every segment at once, which is dearer than what follows
// a conversation.
func acceptFloor(listener int, answers [2][]byte) (int, error) {
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return 0, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return 0, err
	}
	request := make([]byte, 8192)
	for _, answer := range answers {
		if _, err := unix.Read(fd, request); err != nil {
			return 0, err
		}
		if _, err := unix.Write(fd, answer); err != nil {
			return 0, err
		}
	}
	return fd, nil
}

func writeAll(sockets []int, message []byte) error {
	for _, fd := range sockets {
		for left := message; len(left) > 0; {
			n, err := unix.Write(fd, left)
			if err != nil {
				return fmt.Errorf("write: %w", err)
			}
			left = left[n:]
		}
	}
	return nil
}
