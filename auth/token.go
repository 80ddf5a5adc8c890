package auth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// segment is the encoding of a token's three parts (RFC 7515 section 2), strict
// so that a token has one spelling.
var segment = base64.RawURLEncoding.Strict()

// decodeSegment decodes one part. The decoder itself skips line ends; they are
// refused by whoever splits the token.
func decodeSegment(s string) ([]byte, error) {
	b := make([]byte, segment.DecodedLen(len(s)))
	n, err := segment.Decode(b, []byte(s))
	return b[:n], err
}

// header is what counts of a token's header. jwk, jku, x5u and x5c are ignored:
// a token cannot bring its own key.
type header struct {
	alg string
	kid string
}

var headerNames = []string{"alg", "kid", "crit"}

// parseHeader reads the header's JSON. Extensions that must be understood
// (crit, RFC 7515 section 4.1.11) are refused, since we have none.
func parseHeader(raw []byte) (h header, err error) {
	var values [3][]byte
	if _, err = pick(raw, headerNames, values[:]); err != nil {
		return h, invalid("header %w", err)
	}
	dropNull(values[:])
	if values[2] != nil {
		return h, invalid("crit names an extension that is not supported")
	}
	if values[0] != nil {
		if h.alg, err = text(values[0]); err != nil {
			return h, invalid("alg %w", err)
		}
	}
	if values[1] != nil {
		if h.kid, err = text(values[1]); err != nil {
			return h, invalid("kid %w", err)
		}
		if h.kid == "" {
			return h, invalid("kid is empty")
		}
	}
	return h, nil
}

// split returns the three parts of a token, still encoded.
func split(token string) (head, payload, signature string, err error) {
	switch {
	case token == "":
		return "", "", "", invalid("it is empty")
	case len(token) > maxToken:
		return "", "", "", invalid("it is longer than %d bytes", maxToken)
	case strings.ContainsAny(token, "\r\n"):
		return "", "", "", invalid("it contains a line end")
	}
	head, rest, ok := strings.Cut(token, ".")
	payload, signature, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || strings.Contains(signature, ".") {
		return "", "", "", invalid("it does not have three parts")
	}
	return head, payload, signature, nil
}

// verify checks the signature of token and returns its payload, a valid JSON
// text in valid UTF-8, and the key that signed it.
func (v *Verifier) verify(token string) ([]byte, *key, error) {
	head, payload, signature, err := split(token)
	if err != nil {
		return nil, nil, err
	}
	raw, err := decodeSegment(head)
	if err != nil {
		return nil, nil, invalid("header is not base64url")
	}
	if !json.Valid(raw) {
		return nil, nil, invalid("header is not JSON")
	}
	h, err := parseHeader(raw)
	if err != nil {
		return nil, nil, err
	}
	sig, err := decodeSegment(signature)
	if err != nil {
		return nil, nil, invalid("signature is not base64url")
	}
	k, err := v.signer(h, token[:len(head)+1+len(payload)], sig)
	if err != nil {
		return nil, nil, err
	}
	raw, err = decodeSegment(payload)
	if err != nil {
		return nil, nil, invalid("claims are not base64url")
	}
	if !utf8.Valid(raw) || !json.Valid(raw) {
		return nil, nil, invalid("claims are not JSON in UTF-8")
	}
	return raw, k, nil
}

// signer finds the key whose signature of signed is sig.
func (v *Verifier) signer(h header, signed string, sig []byte) (*key, error) {
	k, err := find(v.keys, h, signed, sig)
	if err == nil {
		return k, nil
	}
	if _, removed := find(v.retired, h, signed, sig); removed == nil {
		return nil, ErrKeyRemoved
	}
	if v.set != nil && v.set.awaits(h, errors.Is(err, errUnknownKid)) {
		return nil, ErrKeysPending
	}
	return nil, err
}

var errUnknownKid = invalid("kid is not one of the configured keys")

// find returns the key of the list whose signature of signed is sig. A kid
// selects by exact comparison; without one each key that has the algorithm is
// tried, except those that want to be named.
func find(keys []key, h header, signed string, sig []byte) (*key, error) {
	known, unnamed, tried := h.kid == "", false, false
	for i := range keys {
		k := &keys[i]
		if h.kid != "" && k.kid != h.kid {
			continue
		}
		known = true
		m := k.method(h.alg)
		if m == nil {
			continue
		}
		if h.kid == "" && k.named {
			unnamed = true
			continue
		}
		tried = true
		if m.Verify(signed, sig, k.value) == nil {
			return k, nil
		}
	}
	switch {
	case !known:
		return nil, errUnknownKid
	case !tried && h.alg == "":
		return nil, invalid("alg is missing")
	case !tried && unnamed:
		return nil, invalid("kid is missing: it selects among the keys of auth.jwks")
	case !tried:
		return nil, invalid("algorithm %s is not allowed for this key", algorithmName(h.alg))
	}
	return nil, invalid("signature is invalid")
}

// algorithmName returns alg for an error text when it is short and harmless:
// whoever made the token chose it.
func algorithmName(alg string) string {
	if len(alg) > 8 {
		return "(unknown)"
	}
	for i := range len(alg) {
		c := alg[i] | 0x20
		if (c < 'a' || c > 'z') && (alg[i] < '0' || alg[i] > '9') {
			return "(unknown)"
		}
	}
	return alg
}

// hs256 is the header of nearly all tokens, as most libraries write it.
const (
	hs256    = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." // {"alg":"HS256","typ":"JWT"}
	hs256typ = "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9." // {"typ":"JWT","alg":"HS256"}
)

// Asymmetric reports whether verifying token means a public-key operation
// (40-90 us, MEASURED.md) rather than a hash: an event loop sends such a token
// to a worker. It only looks at the header, decides nothing else and never
// fails: what it cannot read is refused by the verification at little cost.
func (v *Verifier) Asymmetric(token string) bool {
	if strings.HasPrefix(token, hs256) || strings.HasPrefix(token, hs256typ) {
		return false
	}
	head, _, _, err := split(token)
	if err != nil {
		return false
	}
	raw, err := decodeSegment(head)
	if err != nil || !json.Valid(raw) {
		return false
	}
	h, err := parseHeader(raw)
	if err != nil {
		return false
	}
	public := func(k key) bool {
		_, secret := k.value.([]byte)
		return !secret && k.method(h.alg) != nil
	}
	return slices.ContainsFunc(v.keys, public) || slices.ContainsFunc(v.retired, public)
}

// Inspect decodes a token's header and claims without verifying anything, in
// the order in which they are written. For people to look at, never to trust.
func Inspect(token string) (head, claims json.RawMessage, err error) {
	first, second, _, err := split(strings.TrimSpace(token))
	if err != nil {
		return nil, nil, err
	}
	head, err = decodeSegment(first)
	if err != nil || !json.Valid(head) {
		return nil, nil, invalid("header is not base64url of JSON")
	}
	claims, err = decodeSegment(second)
	if err != nil || !json.Valid(claims) {
		return nil, nil, invalid("claims are not base64url of JSON")
	}
	return head, claims, nil
}
