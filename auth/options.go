package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of what [New] accepts.
const (
	minSecret   = 32               // bytes: RFC 7518 section 3.2, the hash size of HS256
	maxPrevious = 8                // secrets; a forged token is tried with each of them
	maxKeys     = 16               // public keys; a token without kid may try each of them
	maxLeeway   = 60 * time.Second // DESIGN.md section 8, case G12
	maxRecheck  = 24 * time.Hour
	minRefresh  = 10 * time.Second
	maxRefresh  = 24 * time.Hour
)

// SampleSecret stands for "put your own here" in documents. [New] refuses it.
const SampleSecret = "change-me-to-32-or-more-random-bytes"

// Options is the table [auth] of hub.toml.
type Options struct {
	// HMACSecret verifies HS256, HS384 and HS512: at least 32 bytes.
	HMACSecret string `toml:"hmac_secret"`
	// PreviousSecrets verify too, at most 8, by the same rules: the secrets of
	// before a rotation, until the last token made with them has expired.
	PreviousSecrets []string `toml:"previous_secrets"`
	// PublicKeys are PEM texts, each with one "PUBLIC KEY" or "RSA PUBLIC KEY"
	// block. Text before the block may bind a key id: "kid=2027-01". The
	// algorithms follow from the type of the key: RSA verifies RS* and PS*, a
	// P-256, P-384 or P-521 key its ES*, an Ed25519 key EdDSA.
	PublicKeys []string `toml:"public_keys"`
	// JWKS is the URL (https; http on this machine) or the path of a JSON Web
	// Key Set (RFC 7517). [Open] loads it and keeps it fresh; [New] does not.
	JWKS string `toml:"jwks"`
	// JWKSRefresh is the period in which a URL is asked again, whatever its
	// cache headers say: 10 s to 24 h. A file is read again every 2 s.
	JWKSRefresh time.Duration `toml:"jwks_refresh"`
	// Issuer and Audience, where set, must be in every token.
	Issuer   string `toml:"issuer"`
	Audience string `toml:"audience"`
	// Leeway is the clock skew forgiven for exp and nbf, at most 60 s.
	Leeway time.Duration `toml:"leeway"`
	// Revalidate is the period in which each live connection is checked again.
	Revalidate time.Duration `toml:"revalidate"`
}

// DefaultOptions returns the defaults: no key, 5 s leeway, 30 s revalidation,
// key sets refreshed every 5 minutes.
func DefaultOptions() Options {
	return Options{
		PreviousSecrets: []string{},
		PublicKeys:      []string{},
		JWKSRefresh:     5 * time.Minute,
		Leeway:          5 * time.Second,
		Revalidate:      30 * time.Second,
	}
}

// check returns the keys that o holds itself, or everything that is wrong with
// o (errors.Join). It reads no file and asks no server.
func (o *Options) check() ([]key, error) {
	var problems []error
	keys, wrong := o.secrets()
	problems = append(problems, wrong...)
	public, wrong := o.publicKeys()
	problems = append(problems, wrong...)
	keys = append(keys, public...)
	if o.JWKS != "" {
		if _, err := parseLocation(o.JWKS); err != nil {
			problems = append(problems, fmt.Errorf("auth.jwks %w", err))
		}
		if o.JWKSRefresh < minRefresh || o.JWKSRefresh > maxRefresh {
			problems = append(problems, fmt.Errorf("auth.jwks_refresh must be between %v and %v, got %v", minRefresh, maxRefresh, o.JWKSRefresh))
		}
	}
	if len(keys) == 0 && o.JWKS == "" && len(problems) == 0 {
		problems = append(problems, errors.New("auth.hmac_secret, auth.public_keys or auth.jwks must be set: without a key no token can be verified"))
	}
	if o.Leeway < 0 || o.Leeway > maxLeeway {
		problems = append(problems, fmt.Errorf("auth.leeway must be between 0s and %v, got %v", maxLeeway, o.Leeway))
	}
	if o.Revalidate <= 0 || o.Revalidate > maxRecheck {
		problems = append(problems, fmt.Errorf("auth.revalidate must be above 0s and at most %v, got %v", maxRecheck, o.Revalidate))
	}
	return keys, errors.Join(problems...)
}

// secrets returns the HMAC keys.
func (o *Options) secrets() (keys []key, problems []error) {
	if o.HMACSecret != "" {
		k, err := secretKey(o.HMACSecret)
		if err != nil {
			problems = append(problems, fmt.Errorf("auth.hmac_secret %w", err))
		}
		keys = append(keys, k)
	}
	if len(o.PreviousSecrets) > maxPrevious {
		problems = append(problems, fmt.Errorf("auth.previous_secrets must hold at most %d secrets, got %d", maxPrevious, len(o.PreviousSecrets)))
	}
	for i, secret := range o.PreviousSecrets {
		k, err := secretKey(secret)
		if err == nil && slices.ContainsFunc(keys, func(other key) bool { return other.id == k.id }) {
			err = errors.New("repeats a secret")
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("auth.previous_secrets[%d] %w", i, err))
		}
		keys = append(keys, k)
	}
	return keys, problems
}

// publicKeys returns the keys of the PEM texts.
func (o *Options) publicKeys() (keys []key, problems []error) {
	if len(o.PublicKeys) > maxKeys {
		problems = append(problems, fmt.Errorf("auth.public_keys must hold at most %d keys, got %d", maxKeys, len(o.PublicKeys)))
	}
	for i, text := range o.PublicKeys {
		k, err := publicKey(text)
		if err == nil && k.kid != "" && slices.ContainsFunc(keys, func(other key) bool { return other.kid == k.kid }) {
			err = fmt.Errorf("repeats the key id %q", k.kid)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("auth.public_keys[%d] %w", i, err))
		}
		keys = append(keys, k)
	}
	return keys, problems
}

// IsSample reports whether a secret or an API key is one that was copied from
// documents instead of being made: such a value guards nothing.
func IsSample(secret string) bool {
	const mark = "change-me"
	return len(secret) >= len(mark) && strings.EqualFold(secret[:len(mark)], mark)
}
