package main

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// fragmentCases are section 5.4. Messages are cut in all places that matter, and
// every sequence of three frames of data, ends and pings is tried: what it has to
// lead to is computed by the rule.
func fragmentCases() (cases []rfcCase) {
	// t and b begin a message, T and B are one, c goes on, C ends, P is a ping.
	const kinds = "tTbBcCP"
	for _, one := range kinds {
		for _, two := range kinds {
			for _, three := range kinds {
				cases = append(cases, sequenceCase(string([]rune{one, two, three})))
			}
		}
	}
	for _, long := range []string{"tPPcPcPPC", "bcccccccccC", "tCbCtC", "TtPCT", "tcCcP", "tcCtT", "bPPPt"} {
		cases = append(cases, sequenceCase(long))
	}
	add := func(name string, run func(c *rfcClient)) { cases = append(cases, rfcCase{name: name, run: run}) }
	for _, cut := range []int{0, 1, 50, 99, 100} {
		add(fmt.Sprintf("cut behind %d bytes", cut), func(c *rfcClient) {
			payload := c.echo(100)
			c.frame(c.op(), payload[:cut])
			c.frame(opFin|opCont, payload[cut:])
		})
		add(fmt.Sprintf("cut behind %d bytes, pinged between", cut), func(c *rfcClient) {
			payload := c.publish("in two parts")
			c.frame(c.op(), payload[:min(cut, len(payload))])
			c.ping("between")
			c.turn() // the pong does not wait for the end of the message
			c.frame(opFin|opPong, "unasked")
			c.echoes("in two parts")
			c.frame(opFin|opCont, payload[min(cut, len(payload)):])
		})
	}
	add("every byte a fragment, pings between all", func(c *rfcClient) {
		payload := c.echo(100)
		first := c.op()
		for i := range len(payload) {
			c.frame(first, payload[i:i+1])
			c.ping(fmt.Sprint("at ", i))
			first = opCont
		}
		c.frame(opFin|opCont, "")
	})
	add("close inside a message", func(c *rfcClient) {
		c.frame(opText, "{")
		c.frame(opFin|opClose, "\x03\xe8")
		c.wants("close 1000")
	})
	return cases
}

// sequenceCase sends frames of the kinds in seq, at the end the missing ones. The
// messages are commands whose bytes the fragments share.
func sequenceCase(seq string) rfcCase {
	return rfcCase{name: "frames " + seq, run: func(c *rfcClient) {
		rest := "" // of the message under way
		open := false
		begin := func(op byte) {
			command := c.acked()
			c.want = c.want[:len(c.want)-1] // only when it is whole
			c.frame(op, command[:5])
			rest, open = command[5:], true
		}
		end := func(op byte) {
			c.frame(opFin|op, rest)
			c.wants(fmt.Sprint("reply ", c.lastID))
			open = false
		}
		for i, kind := range seq {
			starts, goesOn := strings.ContainsRune("tTbB", kind), strings.ContainsRune("cC", kind)
			if starts && open || goesOn && !open {
				c.frame(map[rune]byte{'t': opText, 'T': opFin | opText, 'b': opBinary, 'B': opFin | opBinary,
					'c': opCont, 'C': opFin | opCont}[kind], "x")
				c.wants("close 1002")
				return
			}
			switch kind {
			case 't':
				begin(opText)
			case 'b':
				begin(opBinary)
			case 'T':
				c.frame(opFin|opText, c.acked())
			case 'B':
				c.frame(opFin|opBinary, c.acked())
			case 'c':
				c.frame(opCont, rest[:1])
				rest = rest[1:]
			case 'C':
				end(opCont)
			case 'P':
				c.ping(fmt.Sprint("ping ", i))
			}
		}
		if open {
			end(opCont)
		}
	}}
}

// Sequences of code points and of bytes that are none, in the manner of Markus
// Kuhn's "UTF-8 decoder capability and stress test", sections 1 to 5.
var (
	validText = []string{
		"κόσμε", "Grüße, Jürgen ❤ 😀", "\u0080", "\u07ff", "\u0800", "\U00010000", "\ud7ff", "\ue000", "\ufffd",
		"\ufeff", "\ufffe\uffff", "\U0001fffe\U0001ffff", "\U0010ffff", "A≢Α.", "한국어", "日本語",
	}
	invalidText = []string{
		"\x80", "\xbf", "\x80\xbf\x80", "\xc0", "\xc1\xbf", "\xc3", "\xc3 ", "\xe0\xa0", "\xe0\xa0 ", "\xf0\x90\x80", "\xf8\x88\x80\x80\x80",
		"\xfc\x84\x80\x80\x80\x80", "\xfe", "\xff", "\xc0\xaf", "\xe0\x80\xaf", "\xe0\x9f\xbf", "\xf0\x80\x80\xaf", "\xf0\x8f\xbf\xbf",
		"\xc0\x80", "\xed\xa0\x80", "\xed\xad\xbf", "\xed\xbf\xbf", "\xed\xa0\x80\xed\xb0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
		"κόσμε\xed\xa0\x80edited",
	}
)

// textCases are section 5.6 and 8.1: text is UTF-8, and where a code point is cut
// does not matter. Lengths in Protobuf below 128 are text, too.
func textCases() (cases []rfcCase) {
	add := func(name string, run func(c *rfcClient)) { cases = append(cases, rfcCase{name: name, run: run}) }
	for _, text := range validText {
		add(fmt.Sprintf("text %+q", text), func(c *rfcClient) { c.frame(opFin|opText, c.echoes(text)) })
		add(fmt.Sprintf("text %+q, every byte a fragment", text), func(c *rfcClient) {
			first := byte(opText)
			payload := c.echoes(text)
			for i := range len(payload) {
				c.frame(first, payload[i:i+1])
				first = opCont
			}
			c.frame(opFin|opCont, "")
		})
	}
	for _, text := range invalidText {
		add(fmt.Sprintf("no text %+q", text), func(c *rfcClient) {
			c.data(c.acked())
			c.frame(opFin|opText, text)
			c.wants("close 1007")
		})
		add(fmt.Sprintf("no text %+q in a command", text), func(c *rfcClient) {
			c.frame(opFin|opText, strings.Replace(c.publish("@"), "@", text, 1))
			c.wants("close 1007")
		})
		for cut := 1; cut < len(text); cut += 3 {
			add(fmt.Sprintf("no text %+q, cut behind %d", text, cut), func(c *rfcClient) {
				c.frame(opText, text[:cut])
				c.ping("between")
				c.frame(opFin|opCont, text[cut:])
				c.wants("close 1007")
			})
		}
	}
	add("bytes that are no text, in a binary message", func(c *rfcClient) {
		command := strings.Replace(c.publish("@@"), "@@", "\xc3\x28", 1)
		c.lastID++
		c.frame(opFin|opBinary, command)
		if c.protobuf { // a publication that is no JSON
			c.wants(fmt.Sprintf("error %d 107", c.lastID))
		} else { // a command that is none
			c.wants("close 3501")
		}
	})
	add("bytes that are no text, in a ping", func(c *rfcClient) { c.ping("\xff\xc3\x28") })
	return cases
}

// closeCases are sections 5.5.1 and 7.
func closeCases() (cases []rfcCase) {
	add := func(name, payload, want string) {
		cases = append(cases, rfcCase{name: name, run: func(c *rfcClient) {
			c.data(c.acked())
			c.ping("before the close frame")
			c.frame(opFin|opClose, payload)
			c.wants(want)
			c.frame(opFin|opPing, "behind the close frame")
			c.data(c.publish("behind the close frame"))
			c.frame(opFin|opClose, payload)
		}})
	}
	code := func(code int, reason string) string {
		return string(binary.BigEndian.AppendUint16(nil, uint16(code))) + reason
	}
	add("close without code", "", "close")
	add("close with one byte", "\x03", "close 1002")
	add("close with a reason", code(1000, "good bye, κόσμε"), "close 1000")
	add("close with the longest reason", code(1000, pattern(123)), "close 1000")
	add("close with a reason that is too long", code(1000, pattern(124)), "close 1002")
	for _, n := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999} {
		add(fmt.Sprint("close ", n), code(n, ""), fmt.Sprint("close ", n))
		add(fmt.Sprint("close with a reason, ", n), code(n, "why"), fmt.Sprint("close ", n))
	}
	for _, n := range []int{0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535} {
		add(fmt.Sprint("close ", n), code(n, ""), "close 1002")
		add(fmt.Sprint("close with a reason, ", n), code(n, "why"), "close 1002")
	}
	for _, reason := range invalidText {
		add(fmt.Sprintf("close with the reason %+q", reason), code(1000, reason), "close 1007")
	}
	return cases
}
