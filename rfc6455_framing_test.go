package main

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/centrifugal/protocol"
)

// lengthCases are messages of lengths around those where the header changes.
func lengthCases() (cases []rfcCase) {
	for _, op := range []byte{opText, opBinary} {
		for _, n := range []int{0, 1, 125, 126, 127, 128, 65_535, 65_536, 256 << 10} {
			cases = append(cases, rfcCase{name: fmt.Sprintf("message of kind %d and %d bytes", op, n), run: func(c *rfcClient) {
				payload := c.blank(n)
				if n >= 100 && !(c.protobuf && op == opText) { // whose lengths are no text
					payload = c.echo(n)
				}
				c.frame(opFin|op, payload)
			}})
		}
	}
	return append(cases, rfcCase{name: "hundred messages in a row", run: func(c *rfcClient) {
		for n := range 100 {
			c.data(c.echo(100 + n))
		}
	}})
}

// pingCases are section 5.5.2 and 5.5.3.
func pingCases() []rfcCase {
	binaryBytes := "\x00\xff\xfe\xfd\xfc\xfb\x00\xff"
	return []rfcCase{
		{name: "ping without payload", run: func(c *rfcClient) { c.ping("") }},
		{name: "ping with text", run: func(c *rfcClient) { c.ping("hello") }},
		{name: "ping with bytes", run: func(c *rfcClient) { c.ping(binaryBytes) }},
		{name: "ping of 125 bytes", run: func(c *rfcClient) { c.ping(pattern(125)) }},
		{name: "ping of 126 bytes", run: func(c *rfcClient) { c.frame(opFin|opPing, pattern(126)); c.wants("close 1002") }},
		{name: "pong of 126 bytes", run: func(c *rfcClient) { c.frame(opFin|opPong, pattern(126)); c.wants("close 1002") }},
		{name: "ping whose length is in two bytes", run: func(c *rfcClient) {
			c.raw(opFin|opPing, 0x80|126, 0, 1)
			c.raw(rfcMask...)
			c.raw('x')
			c.wants("close 1002")
		}},
		{name: "ten pings", run: func(c *rfcClient) {
			for n := range 10 {
				c.ping(fmt.Sprint("ping ", n))
			}
		}},
		{name: "pong nobody asked for", run: func(c *rfcClient) { c.frame(opFin|opPong, "") }},
		{name: "pong with payload, then ping", run: func(c *rfcClient) { c.frame(opFin|opPong, "unasked"); c.ping("asked") }},
		{name: "fragmented ping", run: func(c *rfcClient) { c.frame(opPing, "x"); c.frame(opFin|opCont, "y"); c.wants("close 1002") }},
		{name: "fragmented pong", run: func(c *rfcClient) { c.frame(opPong, "x"); c.wants("close 1002") }},
		{name: "fragmented close", run: func(c *rfcClient) { c.frame(opClose, "\x03\xe8"); c.wants("close 1002") }},
		{name: "pings between messages", run: func(c *rfcClient) {
			for n := range 5 {
				c.data(c.echo(100 + n))
				c.ping(fmt.Sprint(n))
			}
		}},
	}
}

// headerCases are bits, op codes and lengths that no frame may have.
func headerCases() (cases []rfcCase) {
	bad := func(name string, first byte, payload string, code string) {
		cases = append(cases, rfcCase{name: name, run: func(c *rfcClient) {
			c.data(c.acked()) // what came before counts
			c.ping("before")
			c.frame(first, payload)
			c.wants("close " + code)
			c.frame(opFin|opPing, "behind the fault")
			c.data(c.publish("behind the fault"))
		}})
	}
	for rsv := byte(1); rsv < 8; rsv++ {
		for _, op := range []byte{opText, opBinary, opPing, opClose} {
			bad(fmt.Sprintf("reserved bits %d with op code %x", rsv, op), opFin|rsv<<4|op, "", "1002")
		}
	}
	for _, op := range []byte{3, 4, 5, 6, 7, 0xb, 0xc, 0xd, 0xe, 0xf} {
		bad(fmt.Sprintf("op code %x", op), opFin|op, "", "1002")
		bad(fmt.Sprintf("op code %x with payload", op), opFin|op, "payload", "1002")
		bad(fmt.Sprintf("fragment of op code %x", op), op, "payload", "1002")
	}
	for name, header := range map[string][]byte{
		"length of 125 in two bytes":     {opFin | opText, 0x80 | 126, 0, 125},
		"length of 0 in two bytes":       {opFin | opBinary, 0x80 | 126, 0, 0},
		"length of 65535 in eight bytes": {opFin | opText, 0x80 | 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff},
		"length of 1 in eight bytes":     {opText, 0x80 | 127, 0, 0, 0, 0, 0, 0, 0, 1},
		"length of 2^63":                 {opFin | opText, 0x80 | 127, 0x80, 0, 0, 0, 0, 0, 0, 0},
		"length of 2^64-1":               {opFin | opBinary, 0x80 | 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"unmasked text":                  {opFin | opText, 2, '{', '}'},
		"unmasked binary":                {opFin | opBinary, 0},
		"unmasked fragment":              {opText, 1, '{'},
		"unmasked ping":                  {opFin | opPing, 1, 'x'},
		"unmasked pong":                  {opFin | opPong, 0},
		"unmasked close":                 {opFin | opClose, 2, 3, 0xe8},
	} {
		cases = append(cases, rfcCase{name: name, run: func(c *rfcClient) {
			c.data(c.acked())
			c.raw(header...)
			c.wants("close 1002")
		}})
	}
	return cases
}

// limitCases are frames and commands at the limits and over them (DESIGN: a frame
// of 256 KiB, a command of 64 KiB).
func limitCases() []rfcCase {
	const maxFrame, maxCommand = 256 << 10, 64 << 10
	// The header alone must do: no byte of the payload follows.
	header := func(first byte, length uint64) func(c *rfcClient) {
		return func(c *rfcClient) {
			c.raw(binary.BigEndian.AppendUint64([]byte{first, 0x80 | 127}, length)...)
			c.wants("close 1009")
		}
	}
	// padded is a command of n bytes: white space, or a data of what is left.
	padded := func(c *rfcClient, n int) string {
		if !c.protobuf {
			command := c.publish("x")
			return strings.Replace(command, `{`, `{`+strings.Repeat(" ", n-len(command)), 1)
		}
		encode := func(name int) string {
			return c.encode(&protocol.Command{Id: c.lastID + 1, Rpc: &protocol.RPCRequest{Method: strings.Repeat("m", name)}})
		}
		prefix := len(binary.AppendUvarint(nil, uint64(n)))
		return encode(n - (len(encode(n-20)) - (n - 20)) + prefix)
	}
	return []rfcCase{
		{name: "frame of a byte too much", run: header(opFin|opText, maxFrame+1)},
		{name: "frame of 2^62", run: header(opFin|opBinary, 1<<62)},
		{name: "frame of 2^63-1", run: header(opFin|opText, 1<<63-1)},
		{name: "first fragment of 2^63-1", run: header(opText, 1<<63-1)},
		{name: "fragments of a byte too much", run: func(c *rfcClient) {
			c.frame(opBinary, strings.Repeat("\n", maxFrame))
			c.frame(opFin|opCont, "\n")
			c.wants("close 1009")
		}},
		{name: "fragments at the limit", run: func(c *rfcClient) {
			payload := c.echo(maxFrame)
			c.frame(opBinary, payload[:maxFrame-1])
			c.frame(opCont, payload[maxFrame-1:])
			c.frame(opFin|opCont, "")
		}},
		{name: "command at the limit", run: func(c *rfcClient) {
			c.data(padded(c, maxCommand))
			c.lastID++
			if c.protobuf {
				c.wants(fmt.Sprintf("error %d 104", c.lastID)) // there is no such method
			} else {
				c.wants(fmt.Sprint("reply ", c.lastID), `pub "x"`)
			}
		}},
		{name: "command of a byte too much", run: func(c *rfcClient) {
			c.data(c.acked())
			c.data(padded(c, maxCommand+1))
			c.wants("close 3501")
		}},
		{name: "no command", run: func(c *rfcClient) { c.data("\x05hello"); c.wants("close 3501") }},
	}
}

// choppedCases are messages in pieces of all sizes, on the socket and as fragments.
func choppedCases() (cases []rfcCase) {
	for step, n := range map[int]int{2: 8 << 10, 7: 16 << 10, 64: 64 << 10, 125: 64 << 10, 256: 128 << 10, 997: 256 << 10} {
		cases = append(cases, rfcCase{name: fmt.Sprintf("%d bytes in chops of %d", n, step), step: step, run: func(c *rfcClient) {
			c.data(c.echo(n))
			c.ping("behind it")
		}})
	}
	for _, size := range []int{1, 64, 256, 997, 4096, 65_536} {
		cases = append(cases, rfcCase{name: fmt.Sprintf("fragments of %d bytes", size), run: func(c *rfcClient) {
			payload := c.echo(min(size*100, 256<<10))
			c.fragments(payload, size)
		}})
	}
	return cases
}

// fragments sends a message in fragments of size bytes, the last of which may be shorter.
func (c *rfcClient) fragments(payload string, size int) {
	first := c.op()
	for len(payload) > size {
		c.frame(first, payload[:size])
		first, payload = opCont, payload[size:]
	}
	c.frame(opFin|first, payload)
}
