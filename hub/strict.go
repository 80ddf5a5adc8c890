package hub

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// strictly is how decodeStrict decodes. By itself the decoder takes names in the
// letters that they are declared with alone and none twice. Escapes of half a
// surrogate pair are refused where a text is needed, since it would not stay what
// it is; in values that are passed on unread, which people's cut messages are, they
// may stand, as in a publish command.
var strictly = json.JoinOptions(
	json.RejectUnknownMembers(true),
	jsontext.AllowInvalidUTF8(true), // of values that are passed on, which wire.ValidJSON checks
	json.WithUnmarshalers(json.UnmarshalFromFunc(decodeText)),
)

var errNotUnicode = errors.New("must be valid Unicode")

// decodeText decodes a text, which must be exactly what was sent. null is none.
func decodeText(d *jsontext.Decoder, into *string) error {
	if d.PeekKind() != '"' {
		return errors.ErrUnsupported // the decoder knows what to do
	}
	value, err := d.ReadValue()
	if err != nil {
		return err
	}
	if bytes.IndexByte(value, '\\') < 0 && utf8.Valid(value) { // nearly always
		*into = string(value[1 : len(value)-1])
		return nil
	}
	text, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		return errNotUnicode
	}
	*into = string(text)
	return nil
}

// decodeStrict decodes one JSON object into a struct. Unknown members, members
// given twice, names in other letters and anything behind the object are errors,
// at every depth. The error names the member and is fit for the user.
func decodeStrict(data []byte, into any) error {
	if jsontext.Value(bytes.TrimLeft(data, " \t\r\n")).Kind() != '{' {
		return errors.New("a JSON object is needed")
	}
	err := json.Unmarshal(data, into, strictly)
	var syntax *jsontext.SyntacticError
	var meaning *json.SemanticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return explainSyntax(data, syntax)
	case errors.As(err, &meaning):
		return explainMeaning(meaning)
	}
	return errors.New("malformed JSON")
}

func explainSyntax(data []byte, err *jsontext.SyntacticError) error {
	switch {
	case errors.Is(err.Err, jsontext.ErrDuplicateName):
		return fmt.Errorf("field %.80q is given twice%s", err.JSONPointer.LastToken(), inside(err.JSONPointer.Parent()))
	case errors.Is(err.Err, io.ErrUnexpectedEOF):
		return errors.New("malformed JSON: it ends too early")
	case jsontext.Value(data[:err.ByteOffset]).IsValid():
		return errors.New("more than one JSON value")
	}
	return fmt.Errorf("malformed JSON at byte %d: %.80s", err.ByteOffset, err.Err)
}

func explainMeaning(err *json.SemanticError) error {
	at := err.JSONPointer
	switch {
	case errors.Is(err.Err, json.ErrUnknownName):
		return fmt.Errorf("unknown field %.80q%s", at.LastToken(), inside(at.Parent()))
	case errors.Is(err.Err, errNotUnicode):
		return fmt.Errorf("%s %w", member(at), errNotUnicode)
	}
	return fmt.Errorf("%s must be %s", member(at), wanted(err.GoType))
}

// member names the value at a pointer.
func member(at jsontext.Pointer) string {
	if at.Parent() == "" {
		return fmt.Sprintf("field %.80q", at.LastToken())
	}
	return fmt.Sprintf("%.80q", string(at))
}

// inside says where something is, unless it is at the top.
func inside(at jsontext.Pointer) string {
	if at == "" {
		return ""
	}
	return fmt.Sprintf(" in %.80q", string(at))
}

// wanted says in JSON's words what a value of type t is.
func wanted(t reflect.Type) string {
	if t == nil {
		return "another value"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "an integer in range, without fraction or exponent"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "an integer in range, not negative, without fraction or exponent"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a base64 string"
		}
		return "an array"
	case reflect.Pointer:
		return wanted(t.Elem())
	}
	return "an object"
}
