package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
)

// maxTime is the last second of the year 9999: the end of what RFC 3339 can
// write, and well below where arithmetic on Unix times could overflow. A later
// time is nearly always one in milliseconds.
const maxTime = 253402300799

// pick stores the values of the members called names in values, in that order;
// what is absent stays nil. object must be valid JSON (json.Valid). The values
// are parts of object. It returns the first member that is not among names (""
// if there is none).
//
// Unlike encoding/json it compares names exactly and refuses a member of names
// that is there twice (RFC 7519 section 4 allows both; the last one wins there).
func pick(object []byte, names []string, values [][]byte) (other string, err error) {
	rest := skipSpace(object)
	if len(rest) == 0 || rest[0] != '{' {
		return "", errors.New("is not a JSON object")
	}
	rest = skipSpace(rest[1:])
	var seen uint32
	for rest[0] != '}' {
		n := valueLen(rest)
		name, err := memberName(rest[:n])
		if err != nil {
			return "", err
		}
		rest = skipSpace(skipSpace(rest[n:])[1:]) // the colon
		n = valueLen(rest)
		value := rest[:n]
		rest = skipSpace(rest[n:])
		if rest[0] == ',' {
			rest = skipSpace(rest[1:])
		}
		i := indexName(names, name)
		switch {
		case i < 0 && other == "":
			other = string(name)
		case i < 0:
		case seen&(1<<i) != 0:
			return "", errors.New("has " + names[i] + " twice")
		default:
			seen |= 1 << i
			values[i] = value
		}
	}
	return other, nil
}

// dropNull makes null count as absent.
func dropNull(values [][]byte) {
	for i, v := range values {
		if v != nil && v[0] == 'n' {
			values[i] = nil
		}
	}
}

// elements calls f with each element of a JSON array, which must be valid.
func elements(array []byte, f func(value []byte) error) error {
	if array[0] != '[' {
		return errors.New("is not an array")
	}
	rest := skipSpace(array[1:])
	for rest[0] != ']' {
		n := valueLen(rest)
		if err := f(rest[:n]); err != nil {
			return err
		}
		rest = skipSpace(rest[n:])
		if rest[0] == ',' {
			rest = skipSpace(rest[1:])
		}
	}
	return nil
}

func indexName(names []string, name []byte) int {
	for i, n := range names {
		if n == string(name) {
			return i
		}
	}
	return -1
}

func memberName(quoted []byte) ([]byte, error) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1], nil
	}
	s, err := text(quoted)
	return []byte(s), err
}

func skipSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\n' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}

// valueLen returns the length of the JSON value at the start of b, which must
// be part of a valid text.
func valueLen(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // the end of a number or a word
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}

// text returns the string that value is in JSON.
func text(value []byte) (string, error) {
	if value[0] != '"' {
		return "", errors.New("is not a string")
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1]), nil
	}
	var s string
	if err := json.Unmarshal(value, &s); err != nil {
		return "", errors.New("is not a string")
	}
	return s, nil
}

// texts returns the strings of an array: nil when value is, else never nil.
func texts(value []byte) ([]string, error) {
	if value == nil {
		return nil, nil
	}
	all := []string{}
	err := elements(value, func(element []byte) error {
		s, err := text(element)
		if err != nil {
			return errors.New("has an element that is not a string")
		}
		all = append(all, s)
		return nil
	})
	return all, err
}

// seconds returns a NumericDate (RFC 7519 section 2) in whole Unix seconds; a
// fraction is cut off.
func seconds(value []byte) (int64, error) {
	if c := value[0]; c != '-' && (c < '0' || c > '9') {
		return 0, errors.New("is not a number")
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		f, err := strconv.ParseFloat(string(value), 64)
		if err != nil || !(math.Abs(f) <= maxTime) {
			return 0, errors.New("is out of range: seconds since 1970 are needed")
		}
		n = int64(f)
	}
	if n < 0 || n > maxTime {
		return 0, errors.New("is out of range: seconds since 1970 are needed")
	}
	return n, nil
}

// own returns a copy of a JSON value that outlives the token it came from,
// without line ends: it is sent inside newline-delimited JSON.
func own(value []byte) json.RawMessage {
	if value == nil {
		return nil
	}
	if bytes.ContainsAny(value, "\r\n") {
		var b bytes.Buffer
		if json.Compact(&b, value) == nil {
			return b.Bytes()
		}
	}
	return bytes.Clone(value)
}
