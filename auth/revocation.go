package auth

import "math"

// Revocation ends tokens before their time. All that it names must hold: the
// database, the user, the token's id (jti), and that the token was issued
// before a time. One that names nothing but a database ends nothing.
type Revocation struct {
	Database string // "" is every database
	User     string // sub; "" is everybody
	TokenID  string // jti; "" is every token
	// IssuedBefore is a Unix time in seconds; 0 names none. Tokens with an
	// earlier iat are revoked, those of the same second are not. A token without
	// iat counts as issued at 0.
	IssuedBefore int64
	// Until is when no token that is meant can be valid any more, 0 for never:
	// for whoever keeps the list. [Revocations] do not look at it, so a clock
	// that is wrong for a moment lets nobody in.
	Until int64
}

// RevocationKind is how a revoked token is to be answered.
type RevocationKind uint8

// The kinds of revocation, the strongest first.
const (
	RevokedUser   RevocationKind = iota + 1 // the user may not come back: close with 3500
	RevokedToken                            // this token: close with 3005, error 109 at connect
	RevokedBefore                           // all old tokens: as RevokedToken, a new one is welcome
)

// Revocations is an immutable set of revocations, for use by many goroutines.
// A nil *Revocations revokes nothing.
type Revocations struct {
	users  map[string][]revoked // by sub
	tokens map[string][]revoked // by jti
	all    map[string]int64     // everybody's: cut-off of iat by database, "" for every one
}

// revoked is what one user, or one token id, has lost.
type revoked struct {
	database string // "" is every database
	user     string // of a token id; "" is everybody
	before   int64  // cut-off of iat; entirely when there is none
}

// entirely is a cut-off after every time of issue.
const entirely = math.MaxInt64

// NewRevocations makes the set of a list, which it does not keep.
func NewRevocations(list []Revocation) *Revocations {
	r := &Revocations{
		users:  make(map[string][]revoked),
		tokens: make(map[string][]revoked),
		all:    make(map[string]int64),
	}
	for _, v := range list {
		before := v.IssuedBefore
		if before == 0 {
			before = entirely
		}
		switch {
		case v.TokenID != "":
			r.tokens[v.TokenID] = widen(r.tokens[v.TokenID], revoked{v.Database, v.User, before})
		case v.User != "":
			r.users[v.User] = widen(r.users[v.User], revoked{v.Database, "", before})
		case v.IssuedBefore != 0:
			r.all[v.Database] = max(r.all[v.Database], before)
		}
	}
	return r
}

// widen adds what is revoked to the rest of the same user or token id.
func widen(list []revoked, more revoked) []revoked {
	for i := range list {
		if list[i].database == more.database && list[i].user == more.user {
			list[i].before = max(list[i].before, more.before)
			return list
		}
	}
	return append(list, more)
}

// Revokes reports whether a token is revoked in a database, with the rule for
// the operator (a constant) and the kind, by which the client is answered.
// tokenID is "" and issuedAt 0 for a token without. Of several revocations the
// strongest kind is told.
func (r *Revocations) Revokes(database, user, tokenID string, issuedAt int64) (why string, kind RevocationKind, ok bool) {
	if r == nil {
		return "", 0, false
	}
	before := cutOff(r.users[user], database, user)
	switch {
	case before == entirely:
		return "the user is revoked", RevokedUser, true
	case issuedAt < cutOff(r.tokens[tokenID], database, user):
		return "the token's id (jti) is revoked", RevokedToken, true
	case issuedAt < before:
		return "the user's tokens issued before a time are revoked", RevokedBefore, true
	case issuedAt < max(r.all[""], r.all[database]):
		return "all tokens issued before a time are revoked", RevokedBefore, true
	}
	return "", 0, false
}

// cutOff returns the latest that applies, 0 when none does.
func cutOff(list []revoked, database, user string) (before int64) {
	for i := range list {
		e := &list[i]
		if (e.database == "" || e.database == database) && (e.user == "" || e.user == user) {
			before = max(before, e.before)
		}
	}
	return before
}
