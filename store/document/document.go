// Package document works on the JSON values of resources without losing a digit
// of them: whatever a change does not touch keeps its text. Numbers are never
// converted (1.0, 1e400 and 123456789012345678901 stay as they are), members keep
// their order and strings their escapes.
//
// [Compact] is the gate: it checks a value and takes the space out of it. The
// other functions work on values that came through it.
package document

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth bounds the nesting of arrays and objects: [[1]] has a depth of 2.
const MaxDepth = 128

// MaxInteger and -MaxInteger bound the integers that [Add] reads and writes: those
// that every client holds exactly (RFC 8259 section 6; ECMA-262,
// Number.MAX_SAFE_INTEGER).
const MaxInteger = 1<<53 - 1

// What callers of [Add] branch on; the errors that it returns say more.
var (
	// ErrPath: there is nothing at the path.
	ErrPath = errors.New("nothing there")
	// ErrNotInteger: what is at the path is not an integer in ±MaxInteger, written
	// as one: 5.0 and 5e0 are not.
	ErrNotInteger = errors.New("not an integer within ±(2^53-1), written without fraction or exponent")
	// ErrRange: the sum would leave the bounds that were asked for, or ±MaxInteger.
	ErrRange = errors.New("out of range")
)

// errMalformed is a broken contract of the caller.
var errMalformed = errors.New("the stored value or the patch is not a compact JSON document")

// maxQuoted bounds, in bytes, what an error quotes of a user's text.
const maxQuoted = 80

// Compact checks that value is one JSON value and returns it without
// insignificant space, in memory of its own. It follows RFC 8259 in UTF-8, of
// which RFC 7493 (section 2.1 and 2.3) is the part that means the same
// everywhere: two members of one name, however escaped, are refused, and so are
// escapes of half a surrogate pair, a byte order mark and nesting beyond
// [MaxDepth]. The error is fit for the user: it says what is wrong and where.
func Compact(value []byte) ([]byte, error) {
	if at, ok := checkDepth(value); !ok {
		return nil, fmt.Errorf("nested deeper than %d at byte %d", MaxDepth, at)
	}
	compact, err := jsontext.AppendFormat(nil, value, jsontext.PreserveRawStrings(true))
	if err != nil {
		return nil, explain(err)
	}
	return compact, nil
}

// checkDepth returns where the nesting exceeds MaxDepth. It comes before the
// parser, which recurses, and needs no valid text: up to its first fault, text is
// divided into strings and the rest in the same way by both.
func checkDepth(text []byte) (at int, ok bool) {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '{' || b == '[':
			if depth++; depth > MaxDepth {
				return i, false
			}
		case b == '}' || b == ']':
			depth--
		}
	}
	return 0, true
}

// explain words an error of the parser for the user.
func explain(err error) error {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) || syntax.Err == nil {
		return errors.New("not valid JSON")
	}
	where := fmt.Sprintf("at byte %d", syntax.ByteOffset)
	if syntax.JSONPointer != "" {
		where += ", in " + quote(string(syntax.JSONPointer))
	}
	switch {
	case errors.Is(syntax.Err, jsontext.ErrDuplicateName):
		return fmt.Errorf("duplicate name %s", where)
	case errors.Is(syntax.Err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the JSON text ends too early %s", where)
	}
	// The parser quotes a character or an escape sequence.
	return fmt.Errorf("%w %s", syntax.Err, where)
}

// quote returns s quoted, only its end if it is long: cut in a character or not,
// the result is valid UTF-8.
func quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	return strconv.Quote("…" + strings.ToValidUTF8(s[len(s)-maxQuoted+len("…"):], ""))
}
