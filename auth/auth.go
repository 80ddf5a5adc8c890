// Package auth decides who may connect and what a token allows: it verifies
// JSON Web Tokens (RFC 7519) as RFC 8725 recommends, matches grants against
// rooms, checks web origins and compares API keys.
//
// The signature algorithms come from golang-jwt. Parsing and claim rules are
// our own, because the rules differ from the library's defaults: exp is
// required, names are case-sensitive, a repeated claim is refused, and no claim
// is looked at before the signature is found good, so that "expired" always
// means "genuine, but expired".
//
// No error of this package contains a token or a part of its signature.
package auth

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// SampleSecret stands for "put your own here" in documents. [New] refuses it.
const SampleSecret = "change-me-to-32-or-more-random-bytes"

// Limits of what [New] and [Verifier] accept.
const (
	minSecret  = 32               // bytes: RFC 7518 section 3.2, the hash size of HS256
	maxToken   = 16 << 10         // bytes; far above any token that fits a header line
	maxLeeway  = 60 * time.Second // DESIGN.md section 8, case G12
	maxKeys    = 16               // public keys; a token without kid may try each of them
	maxRecheck = 24 * time.Hour
)

// ErrExpired is the error of a genuine token, right in everything else, whose
// time is over: its owner should get a new one.
var ErrExpired = errors.New("token is expired")

// ErrInvalid is wrapped by every other refusal. The text of the wrapping error
// names the rule and is meant for the operator, not for the client.
var ErrInvalid = errors.New("token is invalid")

// invalid returns an error that wraps [ErrInvalid] and names the broken rule.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// Options is the table [auth] of hub.toml.
type Options struct {
	// HMACSecret verifies HS256, HS384 and HS512: at least 32 bytes.
	HMACSecret string `toml:"hmac_secret"`
	// PublicKeys are PEM texts, each with one "PUBLIC KEY" or "RSA PUBLIC KEY"
	// block. Text before the block may bind a key id: "kid=2027-01". The
	// algorithms follow from the type of the key: RSA verifies RS* and PS*, a
	// P-256, P-384 or P-521 key its ES*, an Ed25519 key EdDSA.
	PublicKeys []string `toml:"public_keys"`
	// JWKS will name a key set's URL or file. It is not served yet: a value is refused.
	JWKS string `toml:"jwks"`
	// Issuer and Audience, where set, must be in every token.
	Issuer   string `toml:"issuer"`
	Audience string `toml:"audience"`
	// Leeway is the clock skew forgiven for exp and nbf, at most 60 s.
	Leeway time.Duration `toml:"leeway"`
	// Revalidate is the period in which each live connection is checked again.
	Revalidate time.Duration `toml:"revalidate"`
}

// DefaultOptions returns the defaults: no key, 5 s leeway, 30 s revalidation.
func DefaultOptions() Options {
	return Options{
		PublicKeys: []string{},
		Leeway:     5 * time.Second,
		Revalidate: 30 * time.Second,
	}
}

// Verifier checks tokens with a fixed set of keys. It is safe for concurrent use; new keys mean a new Verifier.
type Verifier struct {
	keys     []key
	issuer   string
	audience string
	leeway   time.Duration
	grants   sharedGrants
}

// New checks o and returns its verifier. The error names every key of the
// table [auth] that is wrong, one error each (errors.Join), and no secret.
func New(o Options) (*Verifier, error) {
	v := &Verifier{
		issuer:   o.Issuer,
		audience: o.Audience,
		leeway:   o.Leeway,
	}
	var problems []error
	if o.HMACSecret != "" {
		k, err := secretKey(o.HMACSecret)
		if err != nil {
			problems = append(problems, fmt.Errorf("auth.hmac_secret %w", err))
		}
		v.keys = append(v.keys, k)
	}
	if len(o.PublicKeys) > maxKeys {
		problems = append(problems, fmt.Errorf("auth.public_keys must hold at most %d keys, got %d", maxKeys, len(o.PublicKeys)))
	}
	for i, text := range o.PublicKeys {
		k, err := publicKey(text)
		if err == nil && k.kid != "" && v.hasKid(k.kid) {
			err = fmt.Errorf("repeats the key id %q", k.kid)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("auth.public_keys[%d] %w", i, err))
		}
		v.keys = append(v.keys, k)
	}
	if o.JWKS != "" {
		problems = append(problems, errors.New("auth.jwks is not supported yet; list the keys in auth.public_keys"))
	}
	if len(v.keys) == 0 && o.JWKS == "" {
		problems = append(problems, errors.New("auth.hmac_secret or auth.public_keys must be set: without a key no token can be verified"))
	}
	if o.Leeway < 0 || o.Leeway > maxLeeway {
		problems = append(problems, fmt.Errorf("auth.leeway must be between 0s and %v, got %v", maxLeeway, o.Leeway))
	}
	if o.Revalidate <= 0 || o.Revalidate > maxRecheck {
		problems = append(problems, fmt.Errorf("auth.revalidate must be above 0s and at most %v, got %v", maxRecheck, o.Revalidate))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return v, nil
}

func (v *Verifier) hasKid(kid string) bool {
	for i := range v.keys {
		if v.keys[i].kid == kid {
			return true
		}
	}
	return false
}

// Trusts reports whether the key that verified a token, [Claims].KeyID, is
// among the keys of v: the revalidation of live connections asks this after the
// keys were changed.
func (v *Verifier) Trusts(keyID string) bool {
	for i := range v.keys {
		if v.keys[i].id == keyID {
			return true
		}
	}
	return false
}

// Expired reports whether a token with this exp (Unix seconds) is over at now,
// leeway included: the same rule by which [Verifier.Connection] admits it.
func (v *Verifier) Expired(exp int64, now time.Time) bool {
	return now.Add(-v.leeway).Unix() >= exp
}

// IsSample reports whether a secret or an API key is one that was copied from
// documents instead of being made: such a value guards nothing.
func IsSample(secret string) bool {
	const mark = "change-me"
	return len(secret) >= len(mark) && strings.EqualFold(secret[:len(mark)], mark)
}
