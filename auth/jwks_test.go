package auth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"hub/auth"
)

// jwk is the JSON Web Key of a public key with more members, which may replace
// its own; nil takes one out.
func jwk(key crypto.Signer, more map[string]any) string {
	b64 := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
	m := map[string]any{}
	switch k := key.Public().(type) {
	case *rsa.PublicKey:
		e := binary.BigEndian.AppendUint32(nil, uint32(k.E))
		m["kty"], m["n"], m["e"] = "RSA", b64(k.N.Bytes()), b64([]byte(strings.TrimLeft(string(e), "\x00")))
	case *ecdsa.PublicKey:
		point := must(k.Bytes())[1:]
		m["kty"], m["crv"] = "EC", k.Params().Name
		m["x"], m["y"] = b64(point[:len(point)/2]), b64(point[len(point)/2:])
	case ed25519.PublicKey:
		m["kty"], m["crv"], m["x"] = "OKP", "Ed25519", b64(k)
	}
	for name, value := range more {
		if m[name] = value; value == nil {
			delete(m, name)
		}
	}
	return string(must(json.Marshal(m)))
}

// kid names a key in its set.
func kid(id string) map[string]any { return map[string]any{"kid": id} }

func setOf(jwks ...string) string { return `{"keys":[` + strings.Join(jwks, ",") + `]}` }

// fileSource opens the source of a set in a file.
func fileSource(t testing.TB, set string) (*auth.Source, error) {
	t.Helper()
	o := auth.DefaultOptions()
	o.JWKS = filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(o.JWKS, []byte(set), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := auth.Open(t.Context(), o, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

func userToken(t testing.TB, method jwt.SigningMethod, key any, kid string) string {
	t.Helper()
	header := map[string]any{"alg": method.Alg()}
	if kid != "" {
		header["kid"] = kid
	}
	return signed(t, method, key, string(must(json.Marshal(header))), fmt.Sprintf(`{"sub":"u1","exp":%d}`, inAnHour))
}

// A key of a set verifies the algorithms of its type, or the one that it names,
// for tokens that name it.
func TestSetKeys(t *testing.T) {
	k := keys()
	src, err := fileSource(t, setOf(
		jwk(k.rsa, kid("rsa")),
		jwk(k.rsa2, map[string]any{"kid": "rs384", "alg": "RS384", "use": "sig", "x5c": []string{"ignored"}, "x5u": "http://127.0.0.1:1/"}),
		jwk(k.p256, map[string]any{"kid": "p256", "alg": "ES256", "key_ops": []string{"verify"}}),
		jwk(k.p384, kid("p384")),
		jwk(k.p521, kid("p521")),
		jwk(k.ed, kid("")),
	))
	if err != nil {
		t.Fatal(err)
	}
	v := src.Verifier()
	public := must(json.Marshal(jwk(k.rsa, nil)))
	for _, tc := range []struct {
		name   string
		method jwt.SigningMethod
		key    any
		kid    string
		rule   string // "" when it is accepted
	}{
		{"RS256", jwt.SigningMethodRS256, k.rsa, "rsa", ""},
		{"PS512", jwt.SigningMethodPS512, k.rsa, "rsa", ""},
		{"RS384", jwt.SigningMethodRS384, k.rsa2, "rs384", ""},
		{"ES256", jwt.SigningMethodES256, k.p256, "p256", ""},
		{"ES384", jwt.SigningMethodES384, k.p384, "p384", ""},
		{"ES512", jwt.SigningMethodES512, k.p521, "p521", ""},
		{"EdDSA of the key without kid", jwt.SigningMethodEdDSA, k.ed, "", ""},
		{"another algorithm of the type", jwt.SigningMethodRS256, k.rsa2, "rs384", "algorithm RS256 is not allowed"},
		{"PSS of it", jwt.SigningMethodPS384, k.rsa2, "rs384", "algorithm PS384 is not allowed"},
		{"another key's algorithm", jwt.SigningMethodES256, k.p256, "p384", "algorithm ES256 is not allowed"},
		{"another key", jwt.SigningMethodRS256, k.rsa2, "rsa", "signature is invalid"},
		{"no kid", jwt.SigningMethodRS256, k.rsa, "", "kid is missing"},
		{"public key as HMAC secret", jwt.SigningMethodHS256, []byte(publicPEM(k.rsa)), "rsa", "algorithm HS256 is not allowed"},
		{"the JSON as HMAC secret", jwt.SigningMethodHS256, public, "rsa", "algorithm HS256 is not allowed"},
		{"HMAC, no kid", jwt.SigningMethodHS256, []byte(publicPEM(k.rsa)), "", "algorithm HS256 is not allowed"},
		{"HMAC, another kid", jwt.SigningMethodHS256, []byte(secret), "x", "kid is not one of"},
		{"none, another kid", jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "x", "kid is not one of"},
		{"a kid that no set can have", jwt.SigningMethodRS256, k.rsa, strings.Repeat("k", 256), "kid is not one of"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			token := userToken(t, tc.method, tc.key, tc.kid)
			c, err := v.Connection(token, now)
			switch {
			case tc.rule != "":
				wantInvalid(t, err, tc.rule, token)
			case err != nil:
				t.Error(err)
			case !v.Trusts(c.KeyID) || !v.Asymmetric(token):
				t.Errorf("Trusts %v, Asymmetric %v", v.Trusts(c.KeyID), v.Asymmetric(token))
			}
		})
	}
}

// Keys that cannot verify are ignored, sets that are wrong are refused.
func TestParseSet(t *testing.T) {
	k := keys()
	good := jwk(k.p256, kid("good"))
	weak := must(rsa.GenerateKey(rand.Reader, 1024))
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	with := func(key crypto.Signer, name string, value any) string {
		return jwk(key, map[string]any{"kid": "x", name: value})
	}
	many := func(n int, named bool) string {
		all := make([]string, n)
		for i := range all {
			all[i] = jwk(k.ed, nil)
			if named {
				all[i] = jwk(k.ed, kid(fmt.Sprint("k", i)))
			}
		}
		return setOf(all...)
	}
	huge := base64.RawURLEncoding.EncodeToString(new(big.Int).Lsh(big.NewInt(1), 16384).Bytes())
	for _, tc := range []struct {
		name, set string
		used      int
		ignored   int
		want      string // part of the error
	}{
		{"one key", setOf(good), 1, 0, ""},
		{"other members", `{"x":1,"keys":[` + good + `],"y":{"keys":[]}}`, 1, 0, ""},
		{"64 keys", many(64, true), 64, 0, ""},
		{"16 keys without kid", many(16, false), 16, 0, ""},
		{"for encryption", setOf(good, with(k.rsa, "use", "enc")), 1, 1, ""},
		{"for deriving", setOf(good, with(k.p384, "key_ops", []string{"deriveKey"})), 1, 1, ""},
		{"kid of an ignored one again", setOf(good, jwk(k.rsa, map[string]any{"kid": "good", "use": "enc"})), 1, 1, ""},
		{"encryption algorithm", setOf(good, with(k.rsa, "alg", "RSA-OAEP")), 1, 1, ""},
		{"algorithm of another type", setOf(good, with(k.rsa, "alg", "ES256")), 1, 1, ""},
		{"HMAC algorithm", setOf(good, with(k.rsa, "alg", "HS256")), 1, 1, ""},
		{"algorithm none", setOf(good, with(k.rsa, "alg", "none")), 1, 1, ""},
		{"unknown type", setOf(good, `{"kty":"new","kid":"x"}`), 1, 1, ""},
		{"no type", setOf(good, `{"kid":"x"}`), 1, 1, ""},
		{"X25519", setOf(good, with(k.ed, "crv", "X25519")), 1, 1, ""},
		{"unknown curve", setOf(good, jwk(p224, nil), with(k.p256, "crv", "secp256k1")), 1, 2, ""},
		{"weak RSA", setOf(good, jwk(weak, nil)), 1, 1, ""},
		{"huge RSA", setOf(good, with(k.rsa, "n", huge)), 1, 1, ""},
		{"exponent 1", setOf(good, with(k.rsa, "e", "AQ")), 1, 1, ""},
		{"even exponent", setOf(good, with(k.rsa, "e", "BA")), 1, 1, ""},
		{"exponent of 9 bytes", setOf(good, with(k.rsa, "e", "AQAAAAAAAQAB")), 1, 1, ""},
		{"not on the curve", setOf(good, with(k.p384, "x", "AAAA")), 1, 1, ""},
		{"short Ed25519", setOf(good, with(k.ed, "x", "AAAA")), 1, 1, ""},
		{"not base64", setOf(good, with(k.ed, "x", "%%%")), 1, 1, ""},
		{"no modulus", setOf(good, with(k.rsa, "n", nil)), 1, 1, ""},

		{"empty", "", 0, 0, "not JSON"},
		{"a page", "<html>", 0, 0, "not JSON"},
		{"cut off", setOf(good)[:40], 0, 0, "not JSON"},
		{"not UTF-8", `{"keys":["` + "\xff" + `"]}`, 0, 0, "not JSON in UTF-8"},
		{"an array", "[" + good + "]", 0, 0, "not a JSON object"},
		{"one key alone", good, 0, 0, "no member keys"},
		{"upper case", `{"Keys":[` + good + `]}`, 0, 0, "no member keys"},
		{"keys twice", `{"keys":[` + good + `],"keys":[]}`, 0, 0, "keys twice"},
		{"keys is an object", `{"keys":{}}`, 0, 0, "not an array"},
		{"no key", setOf(), 0, 0, "no key that can verify"},
		{"no key to use", setOf(with(k.rsa, "use", "enc")), 0, 1, "no key that can verify"},
		{"65 keys", many(65, true), 0, 0, "more than 64 keys"},
		{"17 keys without kid", many(17, false), 0, 0, "more than 16 keys without kid"},
		{"kid twice", setOf(good, jwk(k.ed, kid("good"))), 0, 0, `keys[1] repeats the key id "good"`},
		{"long kid", setOf(good, jwk(k.ed, kid(strings.Repeat("k", 256)))), 0, 0, "keys[1] has a kid longer than 255"},
		{"kid with a line end", setOf(jwk(k.ed, kid("a\nb"))), 0, 0, "keys[0] kid contains a control character"},
		{"kid is a number", setOf(jwk(k.ed, map[string]any{"kid": 1})), 0, 0, "keys[0] kid is not a string"},
		{"member twice", setOf(strings.Replace(good, "{", `{"alg":"ES384","alg":"ES256",`, 1)), 0, 0, "keys[0] has alg twice"},
		{"member twice, escaped", setOf(strings.Replace(good, "{", `{"\u006bid":"other",`, 1)), 0, 0, "keys[0] has kid twice"},
		{"key_ops is a string", setOf(with(k.ed, "key_ops", "verify")), 0, 0, "keys[0] key_ops is not an array"},
		{"key is a string", `{"keys":["x"]}`, 0, 0, "keys[0] is not a JSON object"},
		{"symmetric key", setOf(good, `{"kty":"oct","k":"AAAA","kid":"s"}`), 0, 0, "keys[1] is a symmetric key"},
		{"symmetric key in disguise", setOf(good, with(k.ed, "k", "AAAA")), 0, 0, "keys[1] is a symmetric key"},
		{"private key", setOf(good, with(k.ed, "d", "AAAA")), 0, 0, "keys[1] is a private key"},
		{"too large", setOf(good) + strings.Repeat(" ", 1<<20), 0, 0, "larger than 1048576 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			used, ignored, err := auth.ParseSet([]byte(tc.set))
			if used != tc.used || ignored != tc.ignored {
				t.Errorf("%d keys used and %d ignored, want %d and %d (%v)", used, ignored, tc.used, tc.ignored, err)
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got error %v, want one with %q", err, tc.want)
			}
		})
	}
}

// No set makes the parser panic, and what it accepts holds to the bounds.
func FuzzParseSet(f *testing.F) {
	k := keys()
	f.Add(setOf(jwk(k.rsa, kid("a")), jwk(k.p256, nil), jwk(k.ed, map[string]any{"alg": "EdDSA", "use": "sig"})))
	f.Add(setOf(jwk(k.p521, map[string]any{"key_ops": []string{"verify", "sign"}}), `{"kty":"oct","k":"AA"}`))
	f.Add(`{"keys":[{}, null, {"kty":"EC","crv":"P-256","x":"","y":"="}]}`)
	f.Fuzz(func(t *testing.T, set string) {
		used, ignored, err := auth.ParseSet([]byte(set))
		if (err == nil) != (used > 0) || used+ignored > 64 {
			t.Errorf("%d used, %d ignored, %v", used, ignored, err)
		}
	})
}

// A file is a configuration: what cannot be used is an error at once.
func TestOpenFile(t *testing.T) {
	dir := t.TempDir()
	o := auth.DefaultOptions()
	o.HMACSecret = secret
	for _, tc := range []struct{ name, path, content, want string }{
		{"missing", "missing.json", "", "no such file"},
		{"a directory", ".", "", "is not a file"},
		{"broken", "broken.json", "{", "not JSON"},
		{"secret", "secret.json", setOf(`{"kty":"oct","k":"c2VjcmV0"}`), "symmetric key"},
		{"too large", "large.json", strings.Repeat(" ", 1<<20+1), "larger than"},
	} {
		o.JWKS = filepath.Join(dir, tc.path)
		if tc.content != "" {
			if err := os.WriteFile(o.JWKS, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := auth.Open(t.Context(), o, slog.New(slog.DiscardHandler))
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.HasPrefix(err.Error(), "auth.jwks: ") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got error %v, want one of auth.jwks with %q", tc.name, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), "c2VjcmV0") {
			t.Errorf("%s: the error tells the secret", tc.name)
		}
	}
}

// Where a key set may be.
func TestLocation(t *testing.T) {
	for where, want := range map[string]string{
		"https://example.com/jwks.json":        "",
		"HTTPS://EXAMPLE.com:8443/j?key=1":     "",
		"http://127.0.0.1:8080/jwks":           "",
		"http://[::1]/jwks":                    "",
		"http://localhost/jwks":                "",
		"keys/jwks.json":                       "",
		"http://example.com/jwks.json":         "auth.jwks must begin with https://",
		"http://localhost.example.com/jwks":    "auth.jwks must begin with https://",
		"http://127.0.0.1.example.com/jwks":    "auth.jwks must begin with https://",
		"ftp://127.0.0.1/jwks":                 "auth.jwks must begin with https://",
		"file:///etc/jwks.json":                "auth.jwks is not a URL with a plain host",
		"https:///jwks":                        "auth.jwks is not a URL with a plain host",
		"https://u:pw@example.com/jwks":        "auth.jwks must be a URL without user",
		"https://example.com/jwks#x":           "auth.jwks must be a URL without user and fragment",
		"https://exa mple.com/":                "auth.jwks is not a URL",
		setOf():                                "auth.jwks must be the URL or the path",
		"https://example.com@127.0.0.1/x":      "auth.jwks must be a URL without user",
		"https://[fe80::1%25eth0]/jwks":        "auth.jwks is not a URL with a plain host",
		"https://127.0.0.1:99999/jwks":         "auth.jwks is not a URL with a plain host",
		"https://example.com:443:443/x":        "auth.jwks is not a URL",
		"http://user@localhost/secret?k=hello": "auth.jwks must be a URL without user",
	} {
		o := auth.DefaultOptions()
		o.JWKS = where
		_, err := auth.New(o)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: got error %v, want %q", where, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "pw") || strings.Contains(err.Error(), "hello")) {
			t.Errorf("%s: error %q tells a secret", where, err)
		}
	}
}
