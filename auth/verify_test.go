package auth_test

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"hub/auth"
)

// Each type of key verifies its own algorithms and no other.
func TestAlgorithmsFollowTheKey(t *testing.T) {
	k := keys()
	signers := []struct {
		method jwt.SigningMethod
		key    any
		owner  string
	}{
		{jwt.SigningMethodHS256, []byte(secret), "secret"},
		{jwt.SigningMethodHS384, []byte(secret), "secret"},
		{jwt.SigningMethodHS512, []byte(secret), "secret"},
		{jwt.SigningMethodRS256, k.rsa, "rsa"},
		{jwt.SigningMethodRS384, k.rsa, "rsa"},
		{jwt.SigningMethodRS512, k.rsa, "rsa"},
		{jwt.SigningMethodPS256, k.rsa, "rsa"},
		{jwt.SigningMethodPS384, k.rsa, "rsa"},
		{jwt.SigningMethodPS512, k.rsa, "rsa"},
		{jwt.SigningMethodES256, k.p256, "p256"},
		{jwt.SigningMethodES384, k.p384, "p384"},
		{jwt.SigningMethodES512, k.p521, "p521"},
		{jwt.SigningMethodEdDSA, k.ed, "ed"},
	}
	only := func(public ...string) *auth.Verifier {
		return newVerifier(t, func(o *auth.Options) { o.HMACSecret, o.PublicKeys = "", public })
	}
	pkcs1 := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&k.rsa.PublicKey)}))
	verifiers := map[string][]*auth.Verifier{
		"secret": {newVerifier(t, nil)},
		"rsa":    {only(publicPEM(k.rsa)), only(pkcs1)},
		"p256":   {only(publicPEM(k.p256))},
		"p384":   {only(publicPEM(k.p384))},
		"p521":   {only(publicPEM(k.p521))},
		"ed":     {only(publicPEM(k.ed))},
	}
	all := newVerifier(t, func(o *auth.Options) {
		o.PublicKeys = []string{publicPEM(k.rsa), publicPEM(k.p256), publicPEM(k.p384), publicPEM(k.p521), publicPEM(k.ed)}
	})
	payload := fmt.Sprintf(`{"sub":"u1","exp":%d}`, inAnHour)
	for _, s := range signers {
		alg := s.method.Alg()
		token := signed(t, s.method, s.key, `{"alg":"`+alg+`"}`, payload)
		for owner, vs := range verifiers {
			for _, v := range vs {
				c, err := v.Connection(token, now)
				if owner != s.owner {
					wantInvalid(t, err, "algorithm "+alg+" is not allowed for this key", token)
				} else if err != nil || c.User != "u1" {
					t.Errorf("%s with key %s: %v", alg, owner, err)
				} else if !v.Trusts(c.KeyID) {
					t.Errorf("%s: its own verifier does not trust key %q", alg, c.KeyID)
				}
				if want := owner == s.owner && owner != "secret"; v.Asymmetric(token) != want {
					t.Errorf("Asymmetric(%s) with key %s = %v, want %v", alg, owner, !want, want)
				}
			}
		}
		if _, err := all.Connection(token, now); err != nil {
			t.Errorf("%s among all keys: %v", alg, err)
		}
	}
}

// Case G11: the token does not choose how it is verified.
func TestAlgorithmFromTheToken(t *testing.T) {
	k := keys()
	pub := publicPEM(k.rsa)
	both := newVerifier(t, func(o *auth.Options) { o.PublicKeys = []string{"kid=r\n" + pub} })
	rsaOnly := newVerifier(t, func(o *auth.Options) { o.HMACSecret, o.PublicKeys = "", []string{pub} })
	payload := fmt.Sprintf(`{"sub":"u1","exp":%d}`, inAnHour)
	hmac := func(key []byte, header string) string { return signed(t, jwt.SigningMethodHS256, key, header, payload) }
	good := hmac([]byte(secret), `{"alg":"HS256"}`)
	sig := good[strings.LastIndexByte(good, '.')+1:]
	der := must(x509.MarshalPKIXPublicKey(k.rsa.Public()))
	jwk := `{"kty":"oct","k":"` + base64.RawURLEncoding.EncodeToString([]byte("attacker attacker attacker attac")) + `"}`
	attacker := []byte("attacker attacker attacker attac")

	for _, tc := range []struct{ name, token, rule string }{
		{"none", encode(`{"alg":"none"}`) + "." + encode(payload) + ".", "algorithm none is not allowed"},
		{"None", encode(`{"alg":"None"}`) + "." + encode(payload) + ".", "algorithm None is not allowed"},
		{"nOnE", encode(`{"alg":"nOnE"}`) + "." + encode(payload) + ".", "algorithm nOnE is not allowed"},
		{"none with a signature", encode(`{"alg":"none"}`) + "." + encode(payload) + "." + sig, "algorithm none is not allowed"},
		{"missing", hmac([]byte(secret), `{"typ":"JWT"}`), "alg is missing"},
		{"missing, no signature", encode(`{}`) + "." + encode(payload) + ".", "alg is missing"},
		{"null", hmac([]byte(secret), `{"alg":null}`), "alg is missing"},
		{"empty", hmac([]byte(secret), `{"alg":""}`), "alg is missing"},
		{"a number", hmac([]byte(secret), `{"alg":256}`), "alg is not a string"},
		{"lower case", hmac([]byte(secret), `{"alg":"hs256"}`), "algorithm hs256 is not allowed"},
		{"name in upper case", hmac([]byte(secret), `{"ALG":"HS256"}`), "alg is missing"},
		{"twice", hmac([]byte(secret), `{"alg":"HS256","alg":"none"}`), "alg twice"},
		{"twice, escaped", hmac([]byte(secret), `{"alg":"HS256","\u0061lg":"none"}`), "alg twice"},
		{"long", hmac([]byte(secret), `{"alg":"`+strings.Repeat("x", 5000)+`"}`), "algorithm (unknown) is not allowed"},
		{"for the log", hmac([]byte(secret), `{"alg":"a\nb"}`), "algorithm (unknown) is not allowed"},
		{"public PEM as HMAC key", hmac([]byte(pub), `{"alg":"HS256"}`), "signature is invalid"},
		{"public PEM as HMAC key, trimmed", hmac([]byte(strings.TrimSpace(pub)), `{"alg":"HS256"}`), "signature is invalid"},
		{"public PEM as HMAC key, its kid", hmac([]byte(pub), `{"alg":"HS256","kid":"r"}`), "algorithm HS256 is not allowed"},
		{"public DER as HMAC key", hmac(der, `{"alg":"HS256"}`), "signature is invalid"},
		{"RS256 without its signature", encode(`{"alg":"RS256"}`) + "." + encode(payload) + "." + sig, "signature is invalid"},
		{"jwk", hmac(attacker, `{"alg":"HS256","jwk":`+jwk+`}`), "signature is invalid"},
		{"jku", hmac(attacker, `{"alg":"HS256","jku":"http://127.0.0.1/k"}`), "signature is invalid"},
		{"x5u", hmac(attacker, `{"alg":"HS256","x5u":"http://127.0.0.1/k"}`), "signature is invalid"},
		{"crit", hmac([]byte(secret), `{"alg":"HS256","crit":["exp"]}`), "crit names an extension"},
		{"crit b64", hmac([]byte(secret), `{"alg":"HS256","b64":false,"crit":["b64"]}`), "crit names an extension"},
		{"empty crit", hmac([]byte(secret), `{"alg":"HS256","crit":[]}`), "crit names an extension"},
		{"wrong secret", hmac([]byte(strings.ToUpper(secret)), `{"alg":"HS256"}`), "signature is invalid"},
		{"empty secret", hmac([]byte{}, `{"alg":"HS256"}`), "signature is invalid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := both.Connection(tc.token, now)
			wantInvalid(t, err, tc.rule, tc.token)
			_, err = rsaOnly.Connection(tc.token, now)
			wantInvalid(t, err, "", tc.token)
			_, err = both.Subscription(tc.token, now)
			wantInvalid(t, err, tc.rule, tc.token)
		})
	}

	// Ignored headers do not spoil a good token.
	ignored := hmac([]byte(secret), `{"typ":"JWT","alg":"HS256","jwk":`+jwk+`,"jku":"x","x5u":"y"}`)
	if _, err := both.Connection(ignored, now); err != nil {
		t.Errorf("token with ignored headers: %v", err)
	}
}

// What is not a token at all, and a token changed by one character.
func TestMalformed(t *testing.T) {
	v := newVerifier(t, nil)
	good := mint(t, auth.Claims{User: "u1", ExpiresAt: inAnHour})
	parts := strings.Split(good, ".")
	for _, tc := range []struct{ name, token, rule string }{
		{"empty", "", "empty"},
		{"one part", parts[0], "three parts"},
		{"two parts", parts[0] + "." + parts[1], "three parts"},
		{"four parts", good + ".", "three parts"},
		{"five parts", good + "..", "three parts"},
		{"only dots", "..", "header"},
		{"too long", parts[0] + "." + strings.Repeat("A", 16<<10) + "." + parts[2], "longer than 16384 bytes"},
		{"no signature", parts[0] + "." + parts[1] + ".", "signature is invalid"},
		{"short signature", good[:len(good)-4], "signature is invalid"},
		{"long signature", good + "AAAA", "signature is invalid"},
		{"space before", " " + good, "header is not base64url"},
		{"Bearer", "Bearer " + good, "header is not base64url"},
		{"line end", good + "\n", "line end"},
		{"line end inside", parts[0] + "." + parts[1] + "." + parts[2][:5] + "\r\n" + parts[2][5:], "line end"},
		{"padding", good + "=", "signature is not base64url"},
		{"header is an array", signed(t, jwt.SigningMethodHS256, []byte(secret), `["alg","HS256"]`, `{}`), "header is not a JSON object"},
		{"header is not JSON", signed(t, jwt.SigningMethodHS256, []byte(secret), `{"alg":"HS256"`, `{}`), "header is not JSON"},
		{"claims are not JSON", hs256(t, `{"sub":"u1"`), "claims are not JSON"},
		{"claims and more", hs256(t, `{"sub":"u1"}{}`), "claims are not JSON"},
		{"claims are a string", hs256(t, `"sub"`), "not a JSON object"},
		{"claims are null", hs256(t, `null`), "not a JSON object"},
		{"claims are empty", hs256(t, ``), "claims are not JSON"},
		{"claims are not UTF-8", hs256(t, "{\"sub\":\"u\xff\"}"), "claims are not JSON in UTF-8"},
		{"info is not UTF-8", hs256(t, fmt.Sprintf("{\"sub\":\"u\",\"exp\":%d,\"info\":\"\xff\"}", inAnHour)), "claims are not JSON in UTF-8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := v.Connection(tc.token, now)
			wantInvalid(t, err, tc.rule, tc.token)
			if v.Asymmetric(tc.token) {
				t.Error("Asymmetric says yes")
			}
		})
	}
	// 43 characters hold 258 bits, two more than the signature has.
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, good[len(good)-1])
	again := good[:len(good)-1] + string(alphabet[last^1])
	_, err := v.Connection(again, now)
	wantInvalid(t, err, "signature is not base64url", again)
	for i := range len(good) {
		for _, c := range "A_9." {
			changed := good[:i] + string(c) + good[i+1:]
			if changed == good {
				continue
			}
			if _, err := v.Connection(changed, now); !errors.Is(err, auth.ErrInvalid) {
				t.Fatalf("byte %d changed to %q: got error %v", i, c, err)
			}
		}
	}
}

// Case G18: kid selects among configured keys and does nothing else.
func TestKid(t *testing.T) {
	k := keys()
	v := newVerifier(t, func(o *auth.Options) {
		o.PublicKeys = []string{"kid=old\n" + publicPEM(k.rsa), " kid=new " + publicPEM(k.rsa2), publicPEM(k.p256)}
	})
	payload := fmt.Sprintf(`{"sub":"u1","exp":%d}`, inAnHour)
	for _, tc := range []struct {
		name, header string
		method       jwt.SigningMethod
		key          any
		rule         string // "" when it is accepted
	}{
		{"old", `{"alg":"RS256","kid":"old"}`, jwt.SigningMethodRS256, k.rsa, ""},
		{"new", `{"alg":"RS256","kid":"new"}`, jwt.SigningMethodRS256, k.rsa2, ""},
		{"none, old key", `{"alg":"RS256"}`, jwt.SigningMethodRS256, k.rsa, ""},
		{"none, new key", `{"alg":"RS256"}`, jwt.SigningMethodRS256, k.rsa2, ""},
		{"none, unnamed key", `{"alg":"ES256"}`, jwt.SigningMethodES256, k.p256, ""},
		{"none, secret", `{"alg":"HS256"}`, jwt.SigningMethodHS256, []byte(secret), ""},
		{"of the other key", `{"alg":"RS256","kid":"new"}`, jwt.SigningMethodRS256, k.rsa, "signature is invalid"},
		{"of a key with another algorithm", `{"alg":"HS256","kid":"old"}`, jwt.SigningMethodHS256, []byte(secret), "algorithm HS256"},
		{"upper case", `{"alg":"RS256","kid":"OLD"}`, jwt.SigningMethodRS256, k.rsa, "kid is not one of"},
		{"prefix", `{"alg":"RS256","kid":"ol"}`, jwt.SigningMethodRS256, k.rsa, "kid is not one of"},
		{"empty", `{"alg":"RS256","kid":""}`, jwt.SigningMethodRS256, k.rsa, "kid is empty"},
		{"a number", `{"alg":"RS256","kid":1}`, jwt.SigningMethodRS256, k.rsa, "kid is not a string"},
		{"unknown, though the secret fits", `{"alg":"HS256","kid":"x"}`, jwt.SigningMethodHS256, []byte(secret), "kid is not one of"},
		{"a path", `{"alg":"HS256","kid":"../../dev/null"}`, jwt.SigningMethodHS256, []byte{}, "kid is not one of"},
		{"SQL", `{"alg":"HS256","kid":"' OR 1=1"}`, jwt.SigningMethodHS256, []byte(secret), "kid is not one of"},
		{"5 kB", `{"alg":"HS256","kid":"` + strings.Repeat("k", 5000) + `"}`, jwt.SigningMethodHS256, []byte(secret), "kid is not one of"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			token := signed(t, tc.method, tc.key, tc.header, payload)
			_, err := v.Connection(token, now)
			if tc.rule != "" {
				wantInvalid(t, err, tc.rule, token)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// Rotation: connections of a removed or replaced key are told apart from the rest.
func TestTrustsAfterRotation(t *testing.T) {
	k := keys()
	with := func(public ...string) *auth.Verifier {
		return newVerifier(t, func(o *auth.Options) { o.HMACSecret, o.PublicKeys = "", public })
	}
	payload := fmt.Sprintf(`{"sub":"u1","exp":%d}`, inAnHour)
	before := with("kid=a\n"+publicPEM(k.rsa), "kid=b\n"+publicPEM(k.rsa2))
	keyID := func(key any) string {
		c, err := before.Connection(signed(t, jwt.SigningMethodRS256, key, `{"alg":"RS256"}`, payload), now)
		if err != nil {
			t.Fatal(err)
		}
		return c.KeyID
	}
	a, b := keyID(k.rsa), keyID(k.rsa2)
	for _, tc := range []struct {
		name           string
		v              *auth.Verifier
		trustA, trustB bool
	}{
		{"the same keys in another order", with("kid=b\n"+publicPEM(k.rsa2), "kid=a\n"+publicPEM(k.rsa)), true, true},
		{"a removed", with("kid=b\n" + publicPEM(k.rsa2)), false, true},
		{"another key under kid a", with("kid=a\n"+publicPEM(k.p256), "kid=b\n"+publicPEM(k.rsa2)), false, true},
	} {
		if got := tc.v.Trusts(a); got != tc.trustA {
			t.Errorf("%s: Trusts(a) = %v", tc.name, got)
		}
		if got := tc.v.Trusts(b); got != tc.trustB {
			t.Errorf("%s: Trusts(b) = %v", tc.name, got)
		}
	}
	if before.Trusts("") {
		t.Error("the empty key id is trusted")
	}
	other := newVerifier(t, func(o *auth.Options) { o.HMACSecret = strings.ToUpper(secret) })
	c, err := newVerifier(t, nil).Connection(mint(t, auth.Claims{User: "u1", ExpiresAt: inAnHour}), now)
	if err != nil || other.Trusts(c.KeyID) {
		t.Errorf("another secret trusts the old one's connections (%v)", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	k := keys()
	v := newVerifier(t, func(o *auth.Options) { o.PublicKeys = []string{publicPEM(k.ed)} })
	tokens := []string{
		mint(t, auth.Claims{User: "u1", ExpiresAt: inAnHour}),
		signed(t, jwt.SigningMethodEdDSA, k.ed, `{"alg":"EdDSA"}`, fmt.Sprintf(`{"sub":"u1","exp":%d}`, inAnHour)),
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 20 {
				if c, err := v.Connection(tokens[i%2], now); err != nil || c.User != "u1" {
					t.Errorf("got %v, %v", c, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestInspect(t *testing.T) {
	token := signed(t, jwt.SigningMethodHS256, []byte("x"), `{"typ":"JWT","alg":"HS256"}`, `{"z":1,"a":{"b":2}}`)
	head, claims, err := auth.Inspect(token + "\n")
	if err != nil || string(head) != `{"typ":"JWT","alg":"HS256"}` || string(claims) != `{"z":1,"a":{"b":2}}` {
		t.Errorf("got %s, %s, %v", head, claims, err)
	}
	for _, bad := range []string{"", "a.b", "a.b.c", encode("{}") + ".%%%." + encode("x"), encode("{") + "." + encode("{}") + ".x"} {
		if _, _, err := auth.Inspect(bad); !errors.Is(err, auth.ErrInvalid) {
			t.Errorf("Inspect(%q): got error %v", bad, err)
		}
	}
}
