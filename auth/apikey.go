package auth

import (
	"crypto/sha256"
	"crypto/subtle"
)

// KeyEqual reports whether a caller presented the configured key. It compares
// SHA-256 sums in constant time, so neither content nor length can be measured.
// An empty want means that nothing is configured and never matches.
func KeyEqual(want, got string) bool {
	w, g := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(got))
	return subtle.ConstantTimeCompare(w[:], g[:]) == 1 && want != ""
}
