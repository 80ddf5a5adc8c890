package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

// Limits of a key set.
const (
	maxSet     = 1 << 20 // bytes
	maxSetKeys = 64
	maxKid     = 255 // bytes
)

// errNotForUs is wrapped by the errors of keys that do no harm, but cannot
// verify a token here: RFC 7517 section 5 wants them ignored.
var errNotForUs = errors.New("not used")

// The members of a JSON Web Key that are read (RFC 7517 section 4, RFC 7518
// section 6, RFC 8037 section 2). Certificates (x5c, x5u) are not: the key's
// own members say all.
const (
	jwkKty = iota
	jwkUse
	jwkKeyOps
	jwkAlg
	jwkKid
	jwkCrv
	jwkX
	jwkY
	jwkN
	jwkE
	jwkK
	jwkD
	jwkP
	jwkQ
	jwkCount
)

var jwkNames = []string{"kty", "use", "key_ops", "alg", "kid", "crv", "x", "y", "n", "e", "k", "d", "p", "q"}

// parseSet returns the keys of a JSON Web Key Set (RFC 7517 section 5) that may
// verify tokens, and why it ignores the others. A set is refused as a whole
// when it is ambiguous (a name or a key id twice), too large, has nothing to
// use, or holds a secret or a private key: whoever can read it could make
// tokens.
func parseSet(raw []byte) (keys []key, ignored []error, err error) {
	if len(raw) > maxSet {
		return nil, nil, fmt.Errorf("is larger than %d bytes", maxSet)
	}
	if !utf8.Valid(raw) || !json.Valid(raw) {
		return nil, nil, errors.New("is not JSON in UTF-8")
	}
	var members [1][]byte
	if _, err := pick(raw, []string{"keys"}, members[:]); err != nil {
		return nil, nil, err
	}
	if members[0] == nil {
		return nil, nil, errors.New("has no member keys")
	}
	n, kidless := 0, 0
	err = elements(members[0], func(raw []byte) error {
		if n++; n > maxSetKeys {
			return fmt.Errorf("has more than %d keys", maxSetKeys)
		}
		k, err := parseJWK(raw)
		switch {
		case errors.Is(err, errNotForUs):
			ignored = append(ignored, fmt.Errorf("keys[%d] %w", n-1, err))
			return nil
		case err != nil:
			return fmt.Errorf("keys[%d] %w", n-1, err)
		case k.kid == "":
			if kidless++; kidless > maxKeys {
				return fmt.Errorf("has more than %d keys without kid", maxKeys)
			}
		case slices.ContainsFunc(keys, func(other key) bool { return other.kid == k.kid }):
			return fmt.Errorf("keys[%d] repeats the key id %q", n-1, k.kid)
		}
		keys = append(keys, k)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if len(keys) == 0 {
		return nil, ignored, errors.New("has no key that can verify tokens")
	}
	return keys, ignored, nil
}

// parseJWK makes the key of one JSON Web Key.
func parseJWK(raw []byte) (key, error) {
	var values [jwkCount][]byte
	if _, err := pick(raw, jwkNames, values[:]); err != nil {
		return key{}, err
	}
	dropNull(values[:])
	var m [jwkCount]string
	for i, v := range values {
		if v == nil || i == jwkKeyOps {
			continue
		}
		var err error
		if m[i], err = text(v); err != nil {
			return key{}, fmt.Errorf("%s %w", jwkNames[i], err)
		}
	}
	if m[jwkKty] == "oct" || m[jwkK] != "" {
		return key{}, errors.New("is a symmetric key, which must never be in a key set; put it into auth.hmac_secret and replace it, if others could read it")
	}
	if m[jwkD] != "" || m[jwkP] != "" || m[jwkQ] != "" {
		return key{}, errors.New("is a private key; a key set holds public keys only, and this one is to be replaced, if others could read it")
	}
	if use := m[jwkUse]; use != "" && use != "sig" {
		return key{}, fmt.Errorf("%w: its use is not sig", errNotForUs)
	}
	if v := values[jwkKeyOps]; v != nil {
		ops, err := texts(v)
		if err != nil {
			return key{}, fmt.Errorf("key_ops %w", err)
		}
		if !slices.Contains(ops, "verify") {
			return key{}, fmt.Errorf("%w: its key_ops are without verify", errNotForUs)
		}
	}
	if err := validKid(m[jwkKid]); err != nil {
		return key{}, err
	}
	return publicJWK(&m)
}

// publicJWK makes the public key of a JSON Web Key's members.
func publicJWK(m *[jwkCount]string) (key, error) {
	jwk, err := jwkset.NewJWKFromMarshal(jwkset.JWKMarshal{
		KTY: jwkset.KTY(m[jwkKty]),
		CRV: jwkset.CRV(m[jwkCrv]),
		X:   m[jwkX],
		Y:   m[jwkY],
		N:   m[jwkN],
		E:   m[jwkE],
	}, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if err != nil {
		return key{}, fmt.Errorf("%w: %.200s", errNotForUs, err) // it quotes the key's members
	}
	k, err := newPublicKey(m[jwkKid], jwk.Key())
	if err != nil {
		return key{}, fmt.Errorf("%w: it %w", errNotForUs, err)
	}
	k.named = k.kid != ""
	if alg := m[jwkAlg]; alg != "" {
		method := k.method(alg)
		if method == nil {
			return key{}, fmt.Errorf("%w: its alg %s is none of its type's", errNotForUs, algorithmName(alg))
		}
		k.methods = []jwt.SigningMethod{method}
	}
	return k, nil
}

// validKid bounds what the log may quote.
func validKid(kid string) error {
	if len(kid) > maxKid {
		return fmt.Errorf("has a kid longer than %d bytes", maxKid)
	}
	if err := plainText(kid); err != nil {
		return fmt.Errorf("kid %w", err)
	}
	return nil
}

// setAlgorithms are those of which a key set may have keys.
var setAlgorithms = slices.Concat(rsaMethods, p256Methods, p384Methods, p521Methods, ed25519Methods)

// maybeInSet reports whether a key set can have the key of a token.
func maybeInSet(h header) bool {
	return len(h.kid) <= maxKid && slices.ContainsFunc(setAlgorithms, func(m jwt.SigningMethod) bool { return m.Alg() == h.alg })
}
