// Package auth decides who may connect and what a token allows: it verifies
// JSON Web Tokens (RFC 7519) as RFC 8725 recommends, knows which of them are
// revoked, matches grants against rooms, checks web origins and compares API
// keys.
//
// The signature algorithms come from golang-jwt. Parsing and claim rules are
// our own, because the rules differ from the library's defaults: exp is
// required, names are case-sensitive, a repeated claim is refused, and no claim
// is looked at before the signature is found good, so that "expired" always
// means "genuine, but expired".
//
// # Keys that change
//
// A [Verifier] has fixed keys and never waits. A [Source] makes a new one when
// the keys change: by [Source.Reload], or because a key set was refreshed in
// the background. Old and new keys verify side by side as long as both are
// configured. A token of a key that is gone is told apart from a forged one
// ([ErrKeyRemoved]) while the process runs, so that its owner gets a new one.
//
// # Time
//
// Nothing here reads the clock to judge a token: the caller passes now, and
// [Verifier.Expired] is a pure function of it. With the clock set back it says
// "not expired" again, so whoever holds a live connection must remember that it
// was over, or judge it by monotonic time as well. A revocation is in force
// until it is taken out of the set ([Revocations]), whatever the clock says.
// Refreshing of key sets goes by monotonic time.
//
// No error of this package contains a token or a part of its signature.
package auth

import (
	"errors"
	"fmt"
	"time"
)

// maxToken bounds a token in bytes; far above any that fits a header line.
const maxToken = 16 << 10

// ErrExpired is the error of a genuine token, right in everything else, whose
// time is over: its owner should get a new one.
var ErrExpired = errors.New("token is expired")

// ErrKeyRemoved is the error of a token that was genuine until its key was
// removed, while this process ran. Its owner should get a new one, so it wraps
// [ErrExpired]; of the claims nothing was looked at, and nothing may be
// believed: the key may have been removed because it was stolen.
var ErrKeyRemoved = fmt.Errorf("%w: its key was removed", ErrExpired)

// ErrKeysPending is the error of a token whose key is not known, but may be in
// a key set that is about to be looked at: the same token may be good in a few
// seconds.
var ErrKeysPending = errors.New("token may be of a key that is not loaded yet")

// ErrInvalid is wrapped by every other refusal. The text of the wrapping error
// names the rule and is meant for the operator, not for the client.
var ErrInvalid = errors.New("token is invalid")

// invalid returns an error that wraps [ErrInvalid] and names the broken rule.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// Verifier checks tokens with a fixed set of keys. It is safe for concurrent
// use and immutable; new keys mean a new Verifier.
type Verifier struct {
	keys     []key               // in the order in which they are tried
	trusted  map[string]struct{} // the ids of keys
	retired  []key               // they verify nothing; see ErrKeyRemoved
	set      *keySet             // where unknown keys may come from; nil without one
	issuer   string
	audience string
	leeway   time.Duration
	grants   *sharedGrants
	operator key // that of WithOperators; its value is nil without
}

// New checks o and returns a verifier of the keys that o holds itself; those of
// a key set (JWKS) come with [Open]. The error names every key of the table
// [auth] that is wrong, one error each (errors.Join), and no secret. New reads
// no file and asks no server.
func New(o Options) (*Verifier, error) {
	keys, err := o.check()
	if err != nil {
		return nil, err
	}
	return newVerifier(&o, keys, &sharedGrants{}), nil
}

func newVerifier(o *Options, keys []key, grants *sharedGrants) *Verifier {
	v := &Verifier{
		keys:     keys,
		trusted:  make(map[string]struct{}, len(keys)),
		issuer:   o.Issuer,
		audience: o.Audience,
		leeway:   o.Leeway,
		grants:   grants,
	}
	for i := range keys {
		v.trusted[keys[i].id] = struct{}{}
	}
	return v
}

// Trusts reports whether the key that verified a token, [Claims].KeyID, is
// among the keys of v: the revalidation of live connections asks this after the
// keys were changed. A key keeps its id when it moves: a secret to the previous
// ones, a PEM text into a key set under the same kid.
func (v *Verifier) Trusts(keyID string) bool {
	_, ok := v.trusted[keyID]
	return ok
}

// Expired reports whether a token with this exp (Unix seconds) is over at now,
// leeway included: the same rule by which [Verifier.Connection] admits it. It
// remembers nothing: see the package's documentation for clocks that move.
func (v *Verifier) Expired(exp int64, now time.Time) bool {
	return now.Add(-v.leeway).Unix() >= exp
}
