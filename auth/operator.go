package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// operatorKid is the kid of the operators' key. A configured key of this kid does
// no harm: what its tokens may is decided by the key that verified them.
const operatorKid = "hub-console"

// operatorTTL is short: an operator who may still come gets another token.
const operatorTTL = 5 * time.Minute

// WithOperators returns a verifier that takes the tokens of [Verifier.Operator] too,
// which are signed with a key made of the admin key: they end with it. An empty admin
// key has none.
func (v *Verifier) WithOperators(adminKey string) *Verifier {
	if adminKey == "" {
		return v
	}
	derive := hmac.New(sha256.New, []byte(adminKey))
	derive.Write([]byte("hub console token v1"))
	secret := derive.Sum(nil)
	k := key{kid: operatorKid, id: operatorKid + ":" + fingerprint("operator", secret),
		methods: []jwt.SigningMethod{jwt.SigningMethodHS256}, value: secret, named: true}
	with := *v
	with.keys = append(slices.Clone(v.keys), k)
	with.operator = k
	with.trusted = make(map[string]struct{}, len(with.keys))
	for i := range with.keys {
		with.trusted[with.keys[i].id] = struct{}{}
	}
	return &with
}

// Operator makes a token with which user may do in one database what a server may
// ([Claims].Operator), for five minutes. ok is false where there are no operators.
func (v *Verifier) Operator(user, database string, now time.Time) (token string, expires int64, ok bool) {
	if v.operator.value == nil {
		return "", 0, false
	}
	expires = now.Add(operatorTTL).Unix()
	claims := jwt.MapClaims{"sub": user, "exp": expires, "iat": now.Unix(), "db": database}
	if v.issuer != "" {
		claims["iss"] = v.issuer
	}
	if v.audience != "" {
		claims["aud"] = v.audience
	}
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, claims)
	t.Header["kid"] = operatorKid
	token, err := t.SignedString(v.operator.value)
	return token, expires, err == nil
}
