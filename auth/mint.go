package auth

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/golang-jwt/jwt/v5"
)

// Mint makes a connection token signed with HS256. Zero fields of c are left
// out (so is exp: such a token is refused) and KeyID is not written. extra
// members are added last and may replace claims: "iss", "aud", "nbf". Nothing
// but the secret's length is checked, so that tests can make bad tokens.
func Mint(secret []byte, c Claims, extra ...map[string]any) (string, error) {
	claims := registered(c.User, c.ExpiresAt, c.IssuedAt, c.ID, c.Info)
	if c.Meta != nil {
		claims["meta"] = json.RawMessage(c.Meta)
	}
	if c.Channels != nil {
		claims["channels"] = c.Channels
	}
	if c.Databases != nil {
		claims["db"] = c.Databases
	}
	if c.Grants != nil {
		claims["caps"] = c.Grants
	}
	return sign(secret, claims, extra)
}

// MintSubscription makes a subscription token signed with HS256, by the rules
// of [Mint].
func MintSubscription(secret []byte, c SubscriptionClaims, extra ...map[string]any) (string, error) {
	claims := registered(c.User, c.ExpiresAt, c.IssuedAt, c.ID, c.Info)
	claims["channel"] = c.Channel
	return sign(secret, claims, extra)
}

func registered(user string, exp, iat int64, id string, info json.RawMessage) jwt.MapClaims {
	claims := jwt.MapClaims{}
	if user != "" {
		claims["sub"] = user
	}
	if exp != 0 {
		claims["exp"] = exp
	}
	if iat != 0 {
		claims["iat"] = iat
	}
	if id != "" {
		claims["jti"] = id
	}
	if info != nil {
		claims["info"] = info
	}
	return claims
}

func sign(secret []byte, claims jwt.MapClaims, extra []map[string]any) (string, error) {
	if len(secret) < minSecret {
		return "", fmt.Errorf("mint a token: the secret must have at least %d bytes, got %d", minSecret, len(secret))
	}
	for _, more := range extra {
		maps.Copy(claims, more)
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
	if err != nil {
		return "", fmt.Errorf("mint a token: %w", err)
	}
	return token, nil
}
