package loadtest

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// WebSocket frames as a client sees them (RFC 6455 section 5.2).

const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xA

	finBit  = 0x80
	maskBit = 0x80
	// maxFrame bounds what a client accepts: four times what a server may send.
	maxFrame = 4 << 20
)

// frame is one frame of the server. Its payload lies in the read buffer.
type frame struct {
	op      byte
	fin     bool
	payload []byte
}

var errFrame = errors.New("broken frame")

// cutFrame takes a frame off data. Without a complete one ok is false.
func cutFrame(data []byte) (f frame, rest []byte, ok bool, err error) {
	if len(data) < 2 {
		return f, data, false, nil
	}
	size, header := uint64(data[1]), 2
	switch {
	case data[0]&0x70 != 0:
		return f, data, false, fmt.Errorf("%w: reserved bits in % x", errFrame, data[:2])
	case size&maskBit != 0:
		return f, data, false, fmt.Errorf("%w: the server masked % x", errFrame, data[:2])
	case size == 126:
		if len(data) < 4 {
			return f, data, false, nil
		}
		size, header = uint64(binary.BigEndian.Uint16(data[2:])), 4
	case size == 127:
		if len(data) < 10 {
			return f, data, false, nil
		}
		size, header = binary.BigEndian.Uint64(data[2:]), 10
	}
	if size > maxFrame {
		return f, data, false, fmt.Errorf("%w: %d bytes long", errFrame, size)
	}
	end := header + int(size)
	if len(data) < end {
		return f, data, false, nil
	}
	return frame{op: data[0] & 0xF, fin: data[0]&finBit != 0, payload: data[header:end]}, data[end:], true, nil
}

// maskKey hides nothing: the generator's payloads are no secret, and proxies
// that would be confused by them are not part of a measurement.
var maskKey = [4]byte{0x5a, 0xc3, 0x96, 0x0f}

// appendFrame appends a whole message as a client's frame.
func appendFrame(dst []byte, op byte, payload []byte) []byte {
	dst = append(dst, finBit|op)
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, maskBit|byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, maskBit|126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, maskBit|127), uint64(n))
	}
	dst = append(dst, maskKey[:]...)
	for i, b := range payload {
		dst = append(dst, b^maskKey[i&3])
	}
	return dst
}

// appendServerFrame appends a whole message as a server's frame.
func appendServerFrame(dst []byte, op byte, payload []byte) []byte {
	dst = append(dst, finBit|op)
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, 126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, 127), uint64(n))
	}
	return append(dst, payload...)
}
