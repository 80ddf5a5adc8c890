package document

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Add returns value with the integer at path replaced by its sum with by, in
// memory of its own. The path is a JSON pointer (RFC 6901; "" is the whole value);
// "-", the place behind an array's end, holds nothing. The sum must be within min
// and max, where they are given, and within ±[MaxInteger], wherever the integer
// was before. Errors: [ErrPath], [ErrNotInteger], [ErrRange], or that of
// [CheckPath]. The value must be a result of this package.
func Add(value []byte, path string, by int64, min, max *int64) ([]byte, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	c := cursor{doc: value}
	if !c.find(path) {
		if c.broken {
			return nil, errMalformed
		}
		return nil, fmt.Errorf("path %s: %w", quote(path), ErrPath)
	}
	start := c.at
	c.skip()
	if c.broken {
		return nil, errMalformed
	}
	n, ok := integer(value[start:c.at])
	if !ok {
		return nil, fmt.Errorf("path %s: %w", quote(path), ErrNotInteger)
	}
	sum, err := add(n, by, min, max)
	if err != nil {
		return nil, err
	}
	result := make([]byte, 0, len(value)+len("-9007199254740991"))
	result = append(result, value[:start]...)
	result = strconv.AppendInt(result, sum, 10)
	return append(result, value[c.at:]...), nil
}

// integer reads a JSON value that is written as an integer within ±MaxInteger.
func integer(text []byte) (int64, bool) {
	if len(text) > len("-9007199254740991") {
		return 0, false
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil && -MaxInteger <= n && n <= MaxInteger
}

// add returns n + by where that is in range; n is within ±MaxInteger.
func add(n, by int64, min, max *int64) (int64, error) {
	// A sum that overflows is still out of range: it wraps to within 2^53 of the
	// other end of int64.
	if sum := n + by; sum < -MaxInteger || sum > MaxInteger {
		return 0, fmt.Errorf("%w: %d plus %d is not within ±(2^53-1)", ErrRange, n, by)
	}
	switch sum := n + by; {
	case min != nil && sum < *min:
		return 0, fmt.Errorf("%w: %d plus %d is below the minimum %d", ErrRange, n, by, *min)
	case max != nil && sum > *max:
		return 0, fmt.Errorf("%w: %d plus %d is above the maximum %d", ErrRange, n, by, *max)
	default:
		return sum, nil
	}
}

// CheckPath says whether path is a JSON pointer (RFC 6901 section 3): "", or
// tokens with a "/" before each, in which "~" stands only in "~0" (for "~") and
// "~1" (for "/"). The error is fit for the user.
func CheckPath(path string) error {
	switch {
	case path == "":
		return nil
	case path[0] != '/':
		return fmt.Errorf("the path %s is neither empty nor begins with /", quote(path))
	case !utf8.ValidString(path):
		return errors.New("the path is not valid UTF-8")
	}
	for i := 0; i < len(path); i++ {
		if path[i] == '~' && (i+1 == len(path) || path[i+1] != '0' && path[i+1] != '1') {
			return fmt.Errorf("the path %s has a ~ that is neither ~0 nor ~1", quote(path))
		}
	}
	return nil
}

// unescaped returns the name that a token stands for (RFC 6901 section 4; "~01" is
// "~1" and not "/").
func unescaped(token string) string {
	if strings.IndexByte(token, '~') < 0 {
		return token
	}
	return strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
}

// find moves to the value at path, which is a JSON pointer, or returns false.
func (c *cursor) find(path string) bool {
	for path != "" {
		token := path[1:]
		path = ""
		if i := strings.IndexByte(token, '/'); i >= 0 {
			token, path = token[:i], token[i:]
		}
		switch c.peek() {
		case '{':
			if !c.findMember(unescaped(token)) {
				return false
			}
		case '[':
			if !c.findElement(token) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// findMember moves from an object to the value of the named member.
func (c *cursor) findMember(name string) bool {
	for {
		quoted, ok := c.member()
		if !ok {
			return false
		}
		if string(unquote(quoted)) == name {
			return true
		}
		c.skip()
	}
}

// findElement moves from an array to the element of that index, which is written
// without leading zeros (RFC 6901 section 4).
func (c *cursor) findElement(token string) bool {
	index, err := strconv.ParseUint(token, 10, 32)
	if err != nil || token[0] == '0' && len(token) > 1 {
		return false
	}
	for ; c.element(); index-- {
		if index == 0 {
			return true
		}
		c.skip()
	}
	return false
}
