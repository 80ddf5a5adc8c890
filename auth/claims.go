package auth

import (
	"encoding/json"
	"errors"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxName bounds sub and jti in bytes (DESIGN.md section 8).
const maxName = 255

// Claims are the verified claims of a connection token. What the token does
// not have is the zero value. They hold no part of the token's memory.
type Claims struct {
	User      string          // sub: 1-255 bytes of UTF-8 without control characters
	ExpiresAt int64           // exp, Unix seconds
	IssuedAt  int64           // iat, Unix seconds; 0 without one
	ID        string          // jti
	KeyID     string          // the key that verified; compare it with [Verifier.Trusts]
	Info      json.RawMessage // what others may see of the user, one line of JSON
	Meta      json.RawMessage // what only servers see, one line of JSON
	Channels  []string        // rooms that the server subscribes the connection to; names unchecked
	Databases []string        // db; see AllowsDatabase
	Grants    Grants          // caps
	Operator  bool            // made by [Verifier.Operator]: the user may do what a server may
}

// AllowsDatabase reports whether the token is good for a database. Without a
// db claim that is "default" alone: a token made for a server with one database
// must not open those that are added later.
func (c *Claims) AllowsDatabase(name string) bool {
	if len(c.Databases) == 0 {
		return name == "default"
	}
	for _, d := range c.Databases {
		if d == name {
			return true
		}
	}
	return false
}

// SubscriptionClaims are the verified claims of a subscription token: User may
// subscribe to Channel. The caller compares both with the connection and the
// request.
type SubscriptionClaims struct {
	User      string
	Channel   string
	ExpiresAt int64 // exp, Unix seconds; required, as for a connection
	IssuedAt  int64
	ID        string
	KeyID     string
	Info      json.RawMessage
}

// The claims that are read. Those from expire_at on are Centrifugo's; they
// narrow or change what a token means, so ignoring them would grant too much.
const (
	claimSub = iota
	claimExp
	claimNbf
	claimIat
	claimJti
	claimIss
	claimAud
	claimInfo
	claimMeta
	claimChannels
	claimDB
	claimCaps
	claimChannel
	claimExpireAt
	claimSubs
	claimB64Info
	claimOverride
	claimCount
)

var claimNames = []string{
	"sub", "exp", "nbf", "iat", "jti", "iss", "aud", "info", "meta",
	"channels", "db", "caps", "channel", "expire_at", "subs", "b64info", "override",
}

// payload is the raw JSON of each claim, nil where it is absent.
type payload [claimCount][]byte

// Connection verifies a connection token: signature, then claims, time last.
// The errors wrap [ErrInvalid] or [ErrExpired], or are [ErrKeysPending].
func (v *Verifier) Connection(token string, now time.Time) (*Claims, error) {
	p, k, err := v.open(token)
	if err != nil {
		return nil, err
	}
	if p[claimChannel] != nil {
		return nil, invalid("channel makes it a subscription token, which does not connect")
	}
	s, err := v.standard(p)
	if err != nil {
		return nil, err
	}
	c := &Claims{
		User:      s.sub,
		ExpiresAt: s.exp,
		IssuedAt:  s.iat,
		ID:        s.jti,
		KeyID:     k.id,
		Operator:  v.operator.value != nil && k.id == v.operator.id,
	}
	if c.Channels, err = list(p[claimChannels], "channels", false); err != nil {
		return nil, err
	}
	if c.Databases, err = list(p[claimDB], "db", true); err != nil {
		return nil, err
	}
	if p[claimDB] != nil && len(c.Databases) == 0 {
		return nil, invalid("db is empty")
	}
	if p[claimCaps] != nil {
		if c.Grants, err = v.grants.parse(p[claimCaps]); err != nil {
			return nil, invalid("caps: %w", err)
		}
	}
	if err := v.inTime(s, now); err != nil {
		return nil, err
	}
	c.Info, c.Meta = own(p[claimInfo]), own(p[claimMeta])
	return c, nil
}

// Subscription verifies a subscription token, like [Verifier.Connection].
func (v *Verifier) Subscription(token string, now time.Time) (*SubscriptionClaims, error) {
	p, k, err := v.open(token)
	if err != nil {
		return nil, err
	}
	if p[claimChannel] == nil {
		return nil, invalid("channel is missing: a connection token does not subscribe")
	}
	channel, err := text(p[claimChannel])
	if err != nil {
		return nil, invalid("channel %w", err)
	}
	if channel == "" {
		return nil, invalid("channel is empty")
	}
	s, err := v.standard(p)
	if err != nil {
		return nil, err
	}
	if err := v.inTime(s, now); err != nil {
		return nil, err
	}
	return &SubscriptionClaims{
		User:      s.sub,
		Channel:   channel,
		ExpiresAt: s.exp,
		IssuedAt:  s.iat,
		ID:        s.jti,
		KeyID:     k.id,
		Info:      own(p[claimInfo]),
	}, nil
}

// open verifies the signature and finds the claims.
func (v *Verifier) open(token string) (*payload, *key, error) {
	raw, k, err := v.verify(token)
	if err != nil {
		return nil, nil, err
	}
	var p payload
	if _, err := pick(raw, claimNames, p[:]); err != nil {
		return nil, nil, invalid("claims: it %w", err)
	}
	dropNull(p[:])
	for i := claimExpireAt; i < claimCount; i++ {
		if p[i] != nil {
			return nil, nil, invalid("%s is not supported", claimNames[i])
		}
	}
	return &p, k, nil
}

// standard holds the claims that both kinds of token share.
type standard struct {
	sub, jti      string
	exp, nbf, iat int64
}

// standard checks those claims, but not yet the time.
func (v *Verifier) standard(p *payload) (s standard, err error) {
	if s.sub, err = name(p[claimSub]); err != nil {
		return s, invalid("sub %w", err)
	}
	if p[claimJti] != nil {
		if s.jti, err = name(p[claimJti]); err != nil {
			return s, invalid("jti %w", err)
		}
	}
	if p[claimExp] == nil {
		return s, invalid("exp is missing")
	}
	for _, t := range [...]struct {
		claim int
		into  *int64
	}{{claimExp, &s.exp}, {claimNbf, &s.nbf}, {claimIat, &s.iat}} {
		if p[t.claim] == nil {
			continue
		}
		if *t.into, err = seconds(p[t.claim]); err != nil {
			return s, invalid("%s %w", claimNames[t.claim], err)
		}
	}
	if v.issuer != "" {
		if p[claimIss] == nil {
			return s, invalid("iss is missing")
		}
		if iss, err := text(p[claimIss]); err != nil || iss != v.issuer {
			return s, invalid("iss is not the configured issuer")
		}
	}
	if v.audience != "" {
		if p[claimAud] == nil {
			return s, invalid("aud is missing")
		}
		aud, err := list(p[claimAud], "aud", true)
		if err != nil {
			return s, err
		}
		found := false
		for _, a := range aud {
			found = found || a == v.audience
		}
		if !found {
			return s, invalid("aud is not the configured audience")
		}
	}
	return s, nil
}

// maxAhead is how far iat may be in the future. A token that claims to be made
// later would escape the revocation of all tokens issued before a time. It is
// more than the leeway, because many libraries write iat without being asked,
// and RFC 7519 section 4.1.6 makes it no condition: an issuer's clock that is a
// little ahead should do no harm.
const maxAhead = maxLeeway

// inTime checks iat, and nbf and exp with the leeway. It comes last, so that an
// expired token is known to be right in everything else.
func (v *Verifier) inTime(s standard, now time.Time) error {
	if s.iat > now.Add(maxAhead).Unix() {
		return invalid("iat is in the future")
	}
	if s.nbf > now.Add(v.leeway).Unix() {
		return invalid("nbf is in the future")
	}
	if v.Expired(s.exp, now) {
		return ErrExpired
	}
	return nil
}

// name returns the string of a claim that names somebody or something.
func name(value []byte) (string, error) {
	if value == nil {
		return "", errors.New("is missing")
	}
	s, err := text(value)
	if err != nil {
		return "", err
	}
	if s == "" {
		return "", errors.New("is empty")
	}
	if len(s) > maxName {
		return "", errors.New("is longer than 255 bytes")
	}
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] >= 0x7f {
			return s, plainText(s)
		}
	}
	return s, nil
}

// plainText refuses control characters and what is not UTF-8.
func plainText(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("is not valid UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return errors.New("contains a control character")
		}
	}
	return nil
}

// list returns the strings of an array claim; with single, a lone string counts
// as an array of one. An element may not be empty.
func list(value []byte, claim string, single bool) ([]string, error) {
	if value == nil {
		return nil, nil
	}
	if single && value[0] == '"' {
		s, err := text(value)
		if err != nil || s == "" {
			return nil, invalid("%s is empty", claim)
		}
		return []string{s}, nil
	}
	all, err := texts(value)
	if err == nil && slices.Contains(all, "") {
		err = errors.New("has an empty element")
	}
	if err != nil {
		return nil, invalid("%s %w", claim, err)
	}
	return all, nil
}
