package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// stepWords are the steps of an operation (DESIGN.md section 7).
var stepWords = []string{"add", "create", "set", "merge", "delete"}

// userMark stands in a key pattern for the user of the token.
const userMark = "{user}"

// MayOperate reports whether some grant allows operations in room, if only
// certain steps on certain keys: then [Grants.AllowStep] decides each step.
func (g Grants) MayOperate(room string) bool {
	for i := range g {
		if g[i].Allow&Operate != 0 && g[i].covers(room) {
			return true
		}
	}
	return false
}

// AllowStep reports whether a token of user, its sub, may have this step of an
// operation ("add", "create", "set", "merge" or "delete") applied to the
// resource key in room: one grant allows all of it. It does not allocate.
func (g Grants) AllowStep(room, step, key, user string) bool {
	for i := range g {
		if g[i].Allow&Operate != 0 && g[i].covers(room) && g[i].allowsStep(step) && g[i].allowsKey(key, user) {
			return true
		}
	}
	return false
}

func (g *Grant) narrowed() bool { return g.Steps != nil || g.Keys != nil }

func (g *Grant) allowsStep(step string) bool {
	return g.Steps == nil || slices.Contains(g.Steps, step)
}

func (g *Grant) allowsKey(key, user string) bool {
	if g.Keys == nil {
		return true
	}
	for _, p := range g.Keys {
		if matchKey(p, key, user) {
			return true
		}
	}
	return false
}

// matchKey reports whether a pattern of [Grant].Keys, read for user, covers key.
func matchKey(pattern, key, user string) bool {
	for {
		literal, rest, found := strings.Cut(pattern, userMark)
		if !found {
			break
		}
		if user == "" || strings.ContainsAny(user, "/*") {
			return false
		}
		if !strings.HasPrefix(key, literal) || !strings.HasPrefix(key[len(literal):], user) {
			return false
		}
		pattern, key = rest, key[len(literal)+len(user):]
	}
	if stem, star := strings.CutSuffix(pattern, "*"); star {
		return strings.HasPrefix(key, stem)
	}
	return pattern == key
}

// checkNarrowing returns what is wrong with the steps and keys of g, or nil.
func (g *Grant) checkNarrowing() error {
	switch {
	case g.narrowed() && g.Allow&Operate == 0:
		return errors.New("steps and keys narrow op, which allow does not have")
	case g.Steps != nil && len(g.Steps) == 0:
		return errors.New("steps is empty: leave it out to allow every step")
	case g.Keys != nil && len(g.Keys) == 0:
		return errors.New("keys is empty: leave it out to allow every key")
	}
	for _, s := range g.Steps {
		if !slices.Contains(stepWords, s) {
			return fmt.Errorf("steps has the unknown word %.80q; it may have %s", s, strings.Join(stepWords, ", "))
		}
	}
	for _, p := range g.Keys {
		if err := checkKey(p); err != nil {
			return err
		}
	}
	return nil
}

func checkKey(pattern string) error {
	if pattern == "" {
		return errors.New("keys has an empty element")
	}
	stem, star := strings.CutSuffix(pattern, "*")
	if strings.Contains(stem, "*") {
		return fmt.Errorf("keys: %.80q has a * that is not at its end", pattern)
	}
	if strings.ContainsAny(strings.ReplaceAll(stem, userMark, ""), "{}") {
		return fmt.Errorf("keys: %.80q has a brace that is not of %s", pattern, userMark)
	}
	if _, after, found := strings.Cut(stem, userMark); found && star && !strings.Contains(after, "/") {
		return fmt.Errorf("keys: %.80q would match keys of other users: write a / between %s and the *", pattern, userMark)
	}
	return nil
}
