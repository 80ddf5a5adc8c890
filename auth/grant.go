package auth

import (
	"encoding/json"
	"errors"
	"fmt"
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
	// Steps and Keys narrow Operate (DESIGN.md section 7). They are kept as they
	// came and not understood yet, so a grant that has one never allows Operate.
	Steps, Keys json.RawMessage
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

// effective is what g allows for sure: a narrowed operate is not understood.
func (g *Grant) effective() Action {
	if g.Steps != nil || g.Keys != nil {
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
	return nil
}

// grantJSON is how a token writes a grant.
type grantJSON struct {
	Channels []string        `json:"channels"`
	Match    string          `json:"match,omitempty"`
	Allow    []string        `json:"allow"`
	Steps    json.RawMessage `json:"steps,omitempty"`
	Keys     json.RawMessage `json:"keys,omitempty"`
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
// it might narrow the grant.
func parseGrant(value []byte) (g Grant, err error) {
	var v [5][]byte
	other, err := pick(value, grantNames, v[:])
	if err != nil {
		return g, err
	}
	if other != "" {
		return g, fmt.Errorf("%.80q is not supported", other)
	}
	if v[0] != nil {
		err = elements(v[0], func(element []byte) error {
			room, err := text(element)
			g.Rooms = append(g.Rooms, room)
			return err
		})
		if err != nil {
			return g, fmt.Errorf("channels or an element of it %w", err)
		}
	}
	if v[1] != nil {
		match, err := text(v[1])
		if err != nil || match != "exact" && match != "wildcard" {
			return g, fmt.Errorf("match must be exact or wildcard, got %.80q", match)
		}
		g.Wildcard = match == "wildcard"
	}
	if v[2] != nil {
		if g.Allow, err = parseAllow(v[2]); err != nil {
			return g, err
		}
	}
	g.Steps, g.Keys = own(v[3]), own(v[4])
	return g, g.Check()
}

func parseAllow(value []byte) (a Action, err error) {
	err = elements(value, func(element []byte) error {
		word, err := text(element)
		if err != nil {
			return fmt.Errorf("has an element that %w", err)
		}
		for i, w := range actionWords {
			if w == word {
				a |= 1 << i
				return nil
			}
		}
		return fmt.Errorf("has the unknown word %.80q; it may have %s", word, strings.Join(actionWords, ", "))
	})
	if err != nil {
		return 0, fmt.Errorf("allow %w", err)
	}
	return a, nil
}
