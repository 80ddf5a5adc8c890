package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"hub/auth"
)

// Case G13 and what else must not start.
func TestNewRefuses(t *testing.T) {
	k := keys()
	rsa1024 := must(rsa.GenerateKey(rand.Reader, 1024))
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	good := publicPEM(k.p256)
	for _, tc := range []struct {
		name   string
		change func(*auth.Options)
		want   string
	}{
		{"no key", func(o *auth.Options) { o.HMACSecret = "" }, "auth.hmac_secret, auth.public_keys or auth.jwks"},
		{"short secret", func(o *auth.Options) { o.HMACSecret = secret[:31] }, "auth.hmac_secret must have at least 32 bytes, got 31"},
		{"sample secret", func(o *auth.Options) { o.HMACSecret = auth.SampleSecret }, "auth.hmac_secret is the sample value"},
		{"sample secret, lengthened", func(o *auth.Options) { o.HMACSecret = "CHANGE-ME" + secret }, "auth.hmac_secret is the sample value"},
		{"short previous secret", func(o *auth.Options) { o.PreviousSecrets = []string{secret[1:] + "x", "s3cret"} }, "auth.previous_secrets[1] must have at least 32 bytes, got 6"},
		{"empty previous secret", func(o *auth.Options) { o.PreviousSecrets = []string{""} }, "auth.previous_secrets[0] must have at least 32 bytes, got 0"},
		{"sample previous secret", func(o *auth.Options) { o.PreviousSecrets = []string{auth.SampleSecret} }, "auth.previous_secrets[0] is the sample value"},
		{"previous secret in use", func(o *auth.Options) { o.PreviousSecrets = []string{secret} }, "auth.previous_secrets[0] repeats a secret"},
		{"previous secret twice", func(o *auth.Options) {
			o.HMACSecret, o.PreviousSecrets = "", []string{secret, secret}
		}, "auth.previous_secrets[1] repeats a secret"},
		{"too many previous secrets", func(o *auth.Options) { o.PreviousSecrets = make([]string, 9) }, "auth.previous_secrets must hold at most 8 secrets, got 9"},
		{"hasty refresh", func(o *auth.Options) { o.JWKS, o.JWKSRefresh = "jwks.json", 9*time.Second }, "auth.jwks_refresh must be between 10s and 24h"},
		{"no refresh", func(o *auth.Options) { o.JWKS, o.JWKSRefresh = "jwks.json", 0 }, "auth.jwks_refresh must be between"},
		{"late refresh", func(o *auth.Options) { o.JWKS, o.JWKSRefresh = "jwks.json", 25*time.Hour }, "auth.jwks_refresh must be between"},
		{"even RSA exponent", func(o *auth.Options) {
			weak := k.rsa.PublicKey
			weak.E = 4
			o.PublicKeys = []string{block("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(&weak)))}
		}, "odd exponent of at least 3"},
		{"PEM as secret", func(o *auth.Options) { o.HMACSecret = good }, "auth.hmac_secret must not be a PEM"},
		{"not PEM", func(o *auth.Options) { o.PublicKeys = []string{"hello"} }, "auth.public_keys[0] is not a PEM"},
		{"empty PEM", func(o *auth.Options) { o.PublicKeys = []string{""} }, "auth.public_keys[0] is not a PEM"},
		{"broken PEM", func(o *auth.Options) {
			o.PublicKeys = []string{good, block("PUBLIC KEY", []byte("nonsense"))}
		}, "auth.public_keys[1] is a broken PEM"},
		{"two blocks", func(o *auth.Options) { o.PublicKeys = []string{good + publicPEM(k.ed)} }, "one PEM block"},
		{"PKCS 8 private key", func(o *auth.Options) {
			o.PublicKeys = []string{block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(k.ed)))}
		}, "is a private key"},
		{"PKCS 1 private key", func(o *auth.Options) {
			o.PublicKeys = []string{block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(k.rsa))}
		}, "is a private key"},
		{"EC private key", func(o *auth.Options) {
			o.PublicKeys = []string{block("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(k.p256)))}
		}, "is a private key"},
		{"certificate", func(o *auth.Options) { o.PublicKeys = []string{block("CERTIFICATE", []byte("x"))} }, "is a certificate"},
		{"weak RSA", func(o *auth.Options) { o.PublicKeys = []string{publicPEM(rsa1024)} }, "RSA key of 2048 to 8192 bits, got 1024"},
		{"other curve", func(o *auth.Options) { o.PublicKeys = []string{publicPEM(p224)} }, "P-256, P-384 or P-521"},
		{"kid without key", func(o *auth.Options) { o.PublicKeys = []string{"kid=a"} }, "no PEM block behind its kid"},
		{"empty kid", func(o *auth.Options) { o.PublicKeys = []string{"kid=\n" + good} }, "must have a kid"},
		{"kid with space", func(o *auth.Options) { o.PublicKeys = []string{"kid=a b\n" + good} }, "must have a kid"},
		{"kid twice", func(o *auth.Options) {
			o.PublicKeys = []string{"kid=a\n" + good, "kid=a\n" + publicPEM(k.ed)}
		}, `auth.public_keys[1] repeats the key id "a"`},
		{"too many keys", func(o *auth.Options) { o.PublicKeys = strings.Split(strings.Repeat(good+"|", 16)+good, "|") }, "at most 16"},
		{"negative leeway", func(o *auth.Options) { o.Leeway = -1 }, "auth.leeway"},
		{"long leeway", func(o *auth.Options) { o.Leeway = 61 * time.Second }, "auth.leeway must be between 0s and 1m0s"},
		{"no revalidation", func(o *auth.Options) { o.Revalidate = 0 }, "auth.revalidate must be above 0s"},
		{"negative revalidation", func(o *auth.Options) { o.Revalidate = -time.Second }, "auth.revalidate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := auth.DefaultOptions()
			o.HMACSecret = secret
			tc.change(&o)
			v, err := auth.New(o)
			if err == nil || v != nil {
				t.Fatalf("New accepted it")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %q, want one with %q", err, tc.want)
			}
			if o.HMACSecret != "" && strings.Contains(err.Error(), o.HMACSecret) {
				t.Errorf("error %q tells the secret", err)
			}
		})
	}
}

// Any kind of key alone is enough; a key set alone leaves New without a key.
func TestNewWithOneKindOfKey(t *testing.T) {
	token := mint(t, auth.Claims{User: "u1", ExpiresAt: inAnHour})
	v := newVerifier(t, func(o *auth.Options) { o.HMACSecret, o.PreviousSecrets = "", []string{secret} })
	wantError(t, v, token, nil)
	v = newVerifier(t, func(o *auth.Options) { o.HMACSecret, o.JWKS = "", "https://keys.example.com/jwks.json" })
	wantError(t, v, token, auth.ErrInvalid)
	wantError(t, v, userToken(t, jwt.SigningMethodES256, keys().p256, "a"), auth.ErrInvalid)
}

func TestNewReportsEverything(t *testing.T) {
	_, err := auth.New(auth.Options{HMACSecret: "short", JWKS: "ftp://x", Leeway: -1})
	for _, want := range []string{"auth.hmac_secret", "auth.jwks", "auth.leeway", "auth.revalidate"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %q, want %s in it", err, want)
		}
	}
}

func TestKeyEqual(t *testing.T) {
	for _, tc := range []struct {
		want, got string
		equal     bool
	}{
		{"", "", false},
		{"", "x", false},
		{"key", "", false},
		{"key", "key", true},
		{"key", "Key", false},
		{"key", "keys", false},
		{"key", "ke", false},
	} {
		if got := auth.KeyEqual(tc.want, tc.got); got != tc.equal {
			t.Errorf("KeyEqual(%q, %q) = %v", tc.want, tc.got, got)
		}
	}
}
