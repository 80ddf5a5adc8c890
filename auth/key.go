package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// Bounds of an RSA modulus in bits: RFC 7518 section 3.3 demands 2048, and the
// cost of a verification grows with the square.
const (
	minRSA = 2048
	maxRSA = 8192
)

// key is one configured verification key, bound to the algorithms of its type.
type key struct {
	kid     string // what a token's header may name; "" when none is configured
	id      string // what claims carry: kid and a fingerprint, so a replaced key is another key
	methods []jwt.SigningMethod
	value   any  // []byte, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
	named   bool // it verifies only tokens that name its kid
}

// method returns the signing method called alg when k is bound to it, or nil.
func (k *key) method(alg string) jwt.SigningMethod {
	for _, m := range k.methods {
		if m.Alg() == alg {
			return m
		}
	}
	return nil
}

var (
	hmacMethods = []jwt.SigningMethod{jwt.SigningMethodHS256, jwt.SigningMethodHS384, jwt.SigningMethodHS512}
	rsaMethods  = []jwt.SigningMethod{
		jwt.SigningMethodRS256, jwt.SigningMethodRS384, jwt.SigningMethodRS512,
		jwt.SigningMethodPS256, jwt.SigningMethodPS384, jwt.SigningMethodPS512,
	}
	p256Methods    = []jwt.SigningMethod{jwt.SigningMethodES256}
	p384Methods    = []jwt.SigningMethod{jwt.SigningMethodES384}
	p521Methods    = []jwt.SigningMethod{jwt.SigningMethodES512}
	ed25519Methods = []jwt.SigningMethod{jwt.SigningMethodEdDSA}
)

// secretKey makes the key of an HMAC secret.
func secretKey(secret string) (key, error) {
	switch {
	case IsSample(secret):
		return key{}, errors.New("is the sample value of the documentation; make one with `hub init` or `openssl rand -hex 32`")
	case strings.Contains(secret, "-----BEGIN"):
		return key{}, errors.New("must not be a PEM text: a public key belongs into auth.public_keys")
	case len(secret) < minSecret:
		return key{}, fmt.Errorf("must have at least %d bytes, got %d", minSecret, len(secret))
	}
	return key{
		id:      fingerprint("hmac", []byte(secret)),
		methods: hmacMethods,
		value:   []byte(secret),
	}, nil
}

// publicKey makes the key of a PEM text with an optional "kid=NAME" before it.
func publicKey(text string) (key, error) {
	kid, text, err := cutKid(text)
	if err != nil {
		return key{}, err
	}
	block, rest := pem.Decode([]byte(text))
	switch {
	case block == nil:
		return key{}, errors.New("is not a PEM text with a PUBLIC KEY block")
	case strings.TrimSpace(string(rest)) != "":
		return key{}, errors.New("must hold one PEM block and nothing behind it")
	case strings.Contains(block.Type, "PRIVATE KEY"):
		return key{}, errors.New("is a private key; give its public key (openssl pkey -pubout)")
	case block.Type == "CERTIFICATE":
		return key{}, errors.New("is a certificate; give its public key (openssl x509 -noout -pubkey)")
	}
	var value any
	switch block.Type {
	case "PUBLIC KEY":
		value, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		value, err = x509.ParsePKCS1PublicKey(block.Bytes)
	default:
		return key{}, fmt.Errorf("has a %q block where PUBLIC KEY is needed", block.Type)
	}
	if err != nil {
		return key{}, fmt.Errorf("is a broken PEM text: %w", err)
	}
	return newPublicKey(kid, value)
}

// newPublicKey binds a public key to its algorithms. Its id does not depend on
// how the key was written.
func newPublicKey(kid string, value any) (key, error) {
	methods, err := methodsOf(value)
	if err != nil {
		return key{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(value)
	if err != nil {
		return key{}, fmt.Errorf("is no public key: %w", err)
	}
	id := fingerprint("public", der)
	if kid != "" {
		id = kid + ":" + id
	}
	return key{kid: kid, id: id, methods: methods, value: value}, nil
}

// cutKid splits "kid=NAME" and white space off the front of a key's text.
func cutKid(text string) (kid, rest string, err error) {
	text = strings.TrimSpace(text)
	after, ok := strings.CutPrefix(text, "kid=")
	if !ok {
		return "", text, nil
	}
	begin := strings.Index(after, "-----BEGIN")
	if begin < 0 {
		return "", "", errors.New("has no PEM block behind its kid")
	}
	kid = strings.TrimSpace(after[:begin])
	if kid == "" || len(kid) > 255 || strings.ContainsAny(kid, " \t\r\n") {
		return "", "", errors.New("must have a kid of 1 to 255 bytes without white space")
	}
	return kid, after[begin:], nil
}

// methodsOf returns the algorithms of a public key's type.
func methodsOf(value any) ([]jwt.SigningMethod, error) {
	switch k := value.(type) {
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSA || n > maxRSA {
			return nil, fmt.Errorf("must be an RSA key of %d to %d bits, got %d", minRSA, maxRSA, n)
		}
		if k.E < 3 || k.E%2 == 0 { // RFC 8017 section 3.1; with 1 a message is its own signature
			return nil, errors.New("must be an RSA key with an odd exponent of at least 3")
		}
		return rsaMethods, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return p256Methods, nil
		case elliptic.P384():
			return p384Methods, nil
		case elliptic.P521():
			return p521Methods, nil
		}
		return nil, errors.New("must be an EC key on P-256, P-384 or P-521")
	case ed25519.PublicKey:
		return ed25519Methods, nil
	}
	return nil, fmt.Errorf("must be an RSA, EC or Ed25519 key, got %T", value)
}

// fingerprint names key material without telling it: 96 bits of its SHA-256.
// A secret has at least 32 bytes, so this opens no shorter way to guess it than
// any of its tokens does.
func fingerprint(kind string, material []byte) string {
	h := sha256.New()
	h.Write([]byte("hub key " + kind + "\x00"))
	h.Write(material)
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}
