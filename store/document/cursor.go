package document

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// cursor walks over a compact document. It divides the text and checks no more
// than that: where the text makes no sense it turns broken, and no text makes it
// leave the document or go on for ever.
type cursor struct {
	doc    []byte
	at     int
	broken bool
}

// peek returns the byte at the cursor, 0 at the end.
func (c *cursor) peek() byte {
	if c.at < len(c.doc) {
		return c.doc[c.at]
	}
	return 0
}

// member moves from the beginning of an object, or from the end of a member, to
// the value of the next one and returns its name, in quotes. Behind the last
// member it moves behind the object and returns false.
func (c *cursor) member() (name []byte, ok bool) {
	if !c.enter('{', '}') {
		return nil, false
	}
	start := c.at
	if c.peek() == '"' {
		c.skip()
	}
	if c.peek() != ':' || c.at-start < len(`""`) {
		c.broken = true
		return nil, false
	}
	name = c.doc[start:c.at]
	c.at++
	return name, true
}

// element does the same for an array.
func (c *cursor) element() bool { return c.enter('[', ']') }

// enter moves into a container or past the comma to what comes next there, or
// behind the container.
func (c *cursor) enter(opening, closing byte) bool {
	switch c.peek() {
	case opening:
		c.at++
		if c.peek() != closing {
			return true
		}
		c.at++
	case ',':
		c.at++
		return true
	case closing:
		c.at++
	default:
		c.broken = true
	}
	return false
}

// skip moves behind the value at the cursor.
func (c *cursor) skip() {
	start := c.at
	switch c.peek() {
	case '"':
		c.at = stringEnd(c.doc, start)
	case '{', '[':
		c.at = containerEnd(c.doc, start)
	default:
		for c.at < len(c.doc) && !delimits(c.doc[c.at]) {
			c.at++
		}
	}
	if c.at == start || c.at > len(c.doc) {
		c.at, c.broken = len(c.doc), true
	}
}

// delimits reports whether b ends a number or literal.
func delimits(b byte) bool { return b == ',' || b == ']' || b == '}' || b == ':' }

// stringEnd returns where the string that begins at i ends, beyond doc if it does
// not end. A quote behind an odd number of backslashes is the string's own.
func stringEnd(doc []byte, i int) int {
	for i++; ; i++ {
		n := bytes.IndexByte(doc[i:], '"')
		if n < 0 {
			return len(doc) + 1
		}
		i += n
		escapes := 0
		for doc[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

// containerEnd does the same for an array or object.
func containerEnd(doc []byte, i int) int {
	for depth := 0; i < len(doc); {
		switch doc[i] {
		case '"':
			i = stringEnd(doc, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		i++
		if depth == 0 {
			return i
		}
	}
	return len(doc) + 1
}

// unquote returns the name that a quoted one stands for: a part of it, unless it
// has escapes.
func unquote(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	// An error means that the document is not valid; what it gives then is as good
	// as any other name.
	name, _ := jsontext.AppendUnquote(nil, quoted)
	return name
}
