package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Op codes of RFC 6455 section 5.2, and the bit of a frame that is a message's last.
const (
	opCont, opText, opBinary       = 0x0, 0x1, 0x2
	opClose, opPing, opPong, opFin = 0x8, 0x9, 0xa, 0x80
)

// rfcMask is a masking key without a zero; what is masked twice or not at all shows.
var rfcMask = []byte{0x9c, 0x3a, 0x51, 0xe7}

// rfcFrame is a masked frame with its length in as few bytes as possible.
func rfcFrame(first byte, payload string) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	b = append(b, rfcMask...)
	for i := range len(payload) {
		b = append(b, payload[i]^rfcMask[i%4])
	}
	return b
}

// readRFCFrame reads a frame and holds the server to section 5: not masked, no
// reserved bits, no fragments, lengths in as few bytes as possible.
func readRFCFrame(r *bufio.Reader) (op byte, payload []byte, err error) {
	head := make([]byte, 2, 10)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	op, length := head[0]&0xf, uint64(head[1])
	switch {
	case head[0]&0xf0 != opFin:
		return 0, nil, fmt.Errorf("by a frame that begins with %x", head)
	case length&0x80 != 0:
		return 0, nil, errors.New("by a masked frame")
	case op >= opClose && length > 125:
		return 0, nil, errors.New("by a control frame that is too long")
	}
	least := uint64(0)
	if more := map[uint64]int{126: 2, 127: 8}[length]; more > 0 {
		least = map[int]uint64{2: 126, 8: 1 << 16}[more]
		long := make([]byte, 8)
		if _, err := io.ReadFull(r, long[8-more:]); err != nil {
			return 0, nil, err
		}
		length = binary.BigEndian.Uint64(long)
	}
	if length < least || length > 1<<20 {
		return 0, nil, fmt.Errorf("by a frame with a length of %d", length)
	}
	payload = make([]byte, length)
	_, err = io.ReadFull(r, payload)
	return op, payload, err
}
