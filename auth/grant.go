package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Action is a set of things to do in a room.
type Action uint8

// The actions, as a grant's allow list writes them.
const (
	Subscribe Action = 1 << iota // sub
	Publish                      // pub
	Operate                      // op
	History                      // hst
	Presence                     // prs
)

var actionWords = []string{"sub", "pub", "op", "hst", "prs"}

// Words returns the words of an allow list that make a.
func (a Action) Words() []string {
	var words []string
	for i, w := range actionWords {
		if a&(1<<i) != 0 {
			words = append(words, w)
		}
	}
	return words
}

// Grant allows actions in the rooms that it names. [Grant.Check] tells what
// makes one valid; those of [Claims] are.
type Grant struct {
	// Rooms are names or, with Wildcard, names and patterns.
	Rooms []string
	// Wildcard lets a "*" at the end of a room stand for any rest. The namespace
	// must be literal ("chat:*", "chat:a*"); a lone "*" is every room.
	Wildcard bool
	// Allow is what may be done there.
	Allow Action
	// Steps, where not nil, are all that Operate may do: words among add, create,
	// set, merge and delete.
	Steps []string
	// Keys, where not nil, are all the resources that Operate may change: keys
	// and patterns, whatever Wildcard says. A "*" at the end stands for any rest,
	// "{user}" for the token's sub; no other brace may be there.
	//
	// What one user may change by a pattern with {user} and a "*" is no other's:
	// a "/" must stand between them ("players/{user}/*"), and a sub that contains
	// "/" or "*" matches no pattern with {user}. Otherwise x would own what
	// belongs to xy or to x/y.
	Keys []string
}

// Grants are the grants of one token.
type Grants []Grant

// Allow reports whether every action of a is allowed in room, be it by several
// grants. No action at all is never allowed. It does not allocate.
func (g Grants) Allow(room string, a Action) bool {
	if a == 0 {
		return false
	}
	for i := range g {
		if a&g[i].effective() != 0 && g[i].covers(room) {
			if a &^= g[i].effective(); a == 0 {
				return true
			}
		}
	}
	return false
}

// effective is what g allows without conditions.
func (g *Grant) effective() Action {
	if g.narrowed() {
		return g.Allow &^ Operate
	}
	return g.Allow
}

func (g *Grant) covers(room string) bool {
	for _, p := range g.Rooms {
		if g.Wildcard && strings.HasSuffix(p, "*") {
			if strings.HasPrefix(room, p[:len(p)-1]) {
				return true
			}
		} else if p == room {
			return true
		}
	}
	return false
}

// Check returns what is wrong with g, or nil.
func (g *Grant) Check() error {
	if len(g.Rooms) == 0 {
		return errors.New("channels is missing or empty")
	}
	if g.Allow == 0 || g.Allow >= 1<<len(actionWords) {
		return errors.New("allow is missing or empty")
	}
	for _, p := range g.Rooms {
		if p == "" {
			return errors.New("channels has an empty element")
		}
		star := strings.IndexByte(p, '*')
		if !g.Wildcard || star < 0 || p == "*" {
			continue
		}
		if star != len(p)-1 {
			return fmt.Errorf("%.80q has a * that is not at its end", p)
		}
		if strings.IndexByte(p, ':') < 0 {
			return fmt.Errorf("%.80q could match several namespaces: write the namespace and its colon before the *", p)
		}
	}
	return g.checkNarrowing()
}

// grantJSON is how a token writes a grant. Steps and keys are left out when nil
// only: leaving out an empty list would allow everything.
type grantJSON struct {
	Channels []string `json:"channels"`
	Match    string   `json:"match,omitempty"`
	Allow    []string `json:"allow"`
	Steps    []string `json:"steps,omitzero"`
	Keys     []string `json:"keys,omitzero"`
}

// MarshalJSON writes g as an element of a caps claim.
func (g Grant) MarshalJSON() ([]byte, error) {
	w := grantJSON{Channels: g.Rooms, Allow: g.Allow.Words(), Steps: g.Steps, Keys: g.Keys}
	if g.Wildcard {
		w.Match = "wildcard"
	}
	return json.Marshal(w)
}

// ParseGrants reads a caps claim: an array of grants in JSON.
func ParseGrants(caps []byte) (Grants, error) {
	if !json.Valid(caps) {
		return nil, errors.New("is not JSON")
	}
	return parseGrants(skipSpace(caps))
}

// parseGrants reads a caps claim that is known to be valid JSON.
func parseGrants(caps []byte) (Grants, error) {
	var all Grants
	err := elements(caps, func(value []byte) error {
		g, err := parseGrant(value)
		if err != nil {
			return fmt.Errorf("grant %d: %w", len(all)+1, err)
		}
		all = append(all, g)
		return nil
	})
	return all, err
}

var grantNames = []string{"channels", "match", "allow", "steps", "keys"}

// parseGrant reads one grant. A member that it does not know is refused, since
// it might narrow the grant; so is null for steps or keys, which might be
// somebody's empty list.
func parseGrant(value []byte) (g Grant, err error) {
	var v [5][]byte
	other, err := pick(value, grantNames, v[:])
	if err != nil {
		return g, err
	}
	if other != "" {
		return g, fmt.Errorf("%.80q is not supported", other)
	}
	dropNull(v[:3])
	if g.Rooms, err = texts(v[0]); err != nil {
		return g, fmt.Errorf("channels %w", err)
	}
	if v[1] != nil {
		match, err := text(v[1])
		if err != nil || match != "exact" && match != "wildcard" {
			return g, fmt.Errorf("match must be exact or wildcard, got %.80q", match)
		}
		g.Wildcard = match == "wildcard"
	}
	if g.Allow, err = parseAllow(v[2]); err != nil {
		return g, fmt.Errorf("allow %w", err)
	}
	if g.Steps, err = texts(v[3]); err != nil {
		return g, fmt.Errorf("steps %w", err)
	}
	if g.Keys, err = texts(v[4]); err != nil {
		return g, fmt.Errorf("keys %w", err)
	}
	return g, g.Check()
}

func parseAllow(value []byte) (a Action, err error) {
	words, err := texts(value)
	for _, word := range words {
		i := slices.Index(actionWords, word)
		if i < 0 {
			return 0, fmt.Errorf("has the unknown word %.80q; it may have %s", word, strings.Join(actionWords, ", "))
		}
		a |= 1 << i
	}
	return a, err
}
