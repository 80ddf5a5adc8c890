package auth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"hub/auth"
)

const secret = "0123456789abcdef0123456789abcdef"

var now = time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)

var inAnHour = now.Add(time.Hour).Unix()

// newVerifier returns a verifier of secret, after change adjusted the options.
func newVerifier(t testing.TB, change func(*auth.Options)) *auth.Verifier {
	t.Helper()
	o := auth.DefaultOptions()
	o.HMACSecret = secret
	if change != nil {
		change(&o)
	}
	v, err := auth.New(o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return v
}

func mint(t testing.TB, c auth.Claims, extra ...map[string]any) string {
	t.Helper()
	token, err := auth.Mint([]byte(secret), c, extra...)
	if err != nil {
		t.Fatalf("Mint: %v", err)
	}
	return token
}

// signed makes a token of any header and payload texts; key is a []byte secret
// or a private key, method the algorithm that really signs.
func signed(t testing.TB, method jwt.SigningMethod, key any, header, payload string) string {
	t.Helper()
	text := encode(header) + "." + encode(payload)
	sig, err := method.Sign(text, key)
	if err != nil {
		t.Fatalf("sign: %v", err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig)
}

// hs256 signs a payload text with the good secret.
func hs256(t testing.TB, payload string) string {
	t.Helper()
	return signed(t, jwt.SigningMethodHS256, []byte(secret), `{"alg":"HS256","typ":"JWT"}`, payload)
}

func encode(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// wantInvalid checks that err is ErrInvalid, names the rule and does not quote
// the token.
func wantInvalid(t *testing.T, err error, rule, token string) {
	t.Helper()
	if !errors.Is(err, auth.ErrInvalid) || errors.Is(err, auth.ErrExpired) {
		t.Fatalf("got error %v, want ErrInvalid", err)
	}
	if !strings.Contains(err.Error(), rule) {
		t.Errorf("got error %q, want one that names %q", err, rule)
	}
	if len(err.Error()) > 300 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	for part := range strings.SplitSeq(token, ".") {
		if len(part) > 8 && strings.Contains(err.Error(), part) {
			t.Errorf("error %q contains a part of the token", err)
		}
	}
}

// keys are made once: an RSA key takes a while under the race detector.
var keys = sync.OnceValue(func() (k struct {
	rsa, rsa2 *rsa.PrivateKey
	p256      *ecdsa.PrivateKey
	p384      *ecdsa.PrivateKey
	p521      *ecdsa.PrivateKey
	ed        ed25519.PrivateKey
}) {
	k.rsa = must(rsa.GenerateKey(rand.Reader, 2048))
	k.rsa2 = must(rsa.GenerateKey(rand.Reader, 2048))
	k.p256 = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	k.p384 = must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	k.p521 = must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))
	_, k.ed, _ = ed25519.GenerateKey(rand.Reader)
	return k
})

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func publicPEM(key crypto.Signer) string {
	der := must(x509.MarshalPKIXPublicKey(key.Public()))
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}
