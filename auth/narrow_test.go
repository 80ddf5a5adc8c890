package auth_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"hub/auth"
)

// narrowed parses one grant of op in room "game:1" with more members.
func narrowed(t testing.TB, members string) auth.Grants {
	t.Helper()
	g, err := auth.ParseGrants([]byte(`[{"channels":["game:1"],"allow":["op","sub"]` + members + `}]`))
	if err != nil {
		t.Fatalf("%s: %v", members, err)
	}
	return g
}

func TestAllowStep(t *testing.T) {
	for _, tc := range []struct {
		members         string
		step, key, user string
		allow           bool
	}{
		// not narrowed
		{``, "set", "a", "u", true},
		{``, "delete", "any/thing*", "", true},
		// steps
		{`,"steps":["add"]`, "add", "a", "u", true},
		{`,"steps":["add"]`, "set", "a", "u", false},
		{`,"steps":["add","create"]`, "create", "a", "u", true},
		{`,"steps":["add","create"]`, "", "a", "u", false},
		{`,"steps":["add","create","set","merge","delete"]`, "delete", "a", "u", true},
		{`,"steps":["add"]`, "Add", "a", "u", false},
		// keys
		{`,"keys":["stock"]`, "set", "stock", "u", true},
		{`,"keys":["stock"]`, "set", "stock2", "u", false},
		{`,"keys":["stock"]`, "set", "stoc", "u", false},
		{`,"keys":["stock"]`, "set", "", "u", false},
		{`,"keys":["stock"]`, "set", "Stock", "u", false},
		{`,"keys":["stock","board"]`, "set", "board", "u", true},
		{`,"keys":["rewards/*"]`, "set", "rewards/1", "u", true},
		{`,"keys":["rewards/*"]`, "set", "rewards/1/2", "u", true},
		{`,"keys":["rewards/*"]`, "set", "rewards/", "u", true},
		{`,"keys":["rewards/*"]`, "set", "rewards", "u", false},
		{`,"keys":["rewards/*"]`, "set", "x/rewards/1", "u", false},
		{`,"keys":["*"]`, "set", "anything", "", true},
		// both, by one grant
		{`,"steps":["add"],"keys":["stock"]`, "add", "stock", "u", true},
		{`,"steps":["add"],"keys":["stock"]`, "add", "board", "u", false},
		{`,"steps":["add"],"keys":["stock"]`, "set", "stock", "u", false},
		{`,"steps":["add"],"keys":["a"]},{"channels":["game:1"],"allow":["op"],"steps":["set"],"keys":["b"]`, "set", "a", "u", false},
		{`,"steps":["add"],"keys":["a"]},{"channels":["game:1"],"allow":["op"],"steps":["set"],"keys":["b"]`, "set", "b", "u", true},
		{`,"keys":["a"]},{"channels":["game:2"],"allow":["op"]`, "set", "b", "u", false},
		{`,"keys":["a"]},{"channels":["game:1"],"allow":["pub"]`, "set", "b", "u", false},
		{`,"keys":["a"]},{"channels":["game:1"],"allow":["op"]`, "set", "b", "u", true},
		// {user}
		{`,"keys":["players/{user}/*"]`, "set", "players/u/hp", "u", true},
		{`,"keys":["players/{user}/*"]`, "set", "players/v/hp", "u", false},
		{`,"keys":["players/{user}/*"]`, "set", "players/u", "u", false},
		{`,"keys":["players/{user}/*"]`, "set", "players/u/hp", "", false},
		{`,"keys":["players/{user}/*"]`, "set", "players//hp", "", false},
		{`,"keys":["players/{user}/*"]`, "set", "players/{user}/hp", "u", false},
		{`,"keys":["players/{user}"]`, "set", "players/u", "u", true},
		{`,"keys":["players/{user}"]`, "set", "players/uv", "u", false},
		{`,"keys":["{user}"]`, "set", "jürgen", "jürgen", true},
		{`,"keys":["{user}/{user}-x"]`, "set", "u/u-x", "u", true},
		{`,"keys":["{user}/{user}-x"]`, "set", "u/v-x", "u", false},
		{`,"keys":["a{user}b"]`, "set", "aab", "a", true},
		{`,"keys":["a{user}b"]`, "set", "ab", "b", false},
		{`,"keys":["{user}/a"]`, "set", "{user}/a", "{user}", true}, // a strange sub is replaced once
		// a sub that could reach into somebody else's keys has none
		{`,"keys":["players/{user}/*"]`, "set", "players/x/y/hp", "x/y", false},
		{`,"keys":["players/{user}/*"]`, "set", "players/x/y/hp", "x", true},
		{`,"keys":["players/{user}"]`, "set", "players/x/y", "x/y", false},
		{`,"keys":["players/{user}/*"]`, "set", "players/*/hp", "*", false},
		{`,"keys":["players/{user}/*"]`, "set", "players/a*/hp", "a*", false},
		{`,"keys":["{user}"]`, "set", "other", "*", false},
		{`,"keys":["{user}","shared"]`, "set", "shared", "x/y", true},
	} {
		g := narrowed(t, tc.members)
		if got := g.AllowStep("game:1", tc.step, tc.key, tc.user); got != tc.allow {
			t.Errorf("%s: AllowStep(%q, %q, user %q) = %v", tc.members, tc.step, tc.key, tc.user, got)
		}
		if g.AllowStep("game:3", tc.step, tc.key, tc.user) || g.MayOperate("game:3") {
			t.Errorf("%s: something is allowed in another room", tc.members)
		}
		if !g.MayOperate("game:1") {
			t.Errorf("%s: MayOperate is false", tc.members)
		}
	}

	none := auth.Grants{{Rooms: []string{"a"}, Allow: auth.Subscribe | auth.Publish | auth.History | auth.Presence}}
	if none.MayOperate("a") || none.AllowStep("a", "set", "k", "u") {
		t.Error("operations without op")
	}
	// What Check refuses allows nothing either.
	for _, g := range []auth.Grant{
		{Rooms: []string{"a"}, Allow: auth.Operate, Steps: []string{}},
		{Rooms: []string{"a"}, Allow: auth.Operate, Keys: []string{}},
	} {
		if all := (auth.Grants{g}); all.AllowStep("a", "set", "k", "u") || all.Allow("a", auth.Operate) || g.Check() == nil {
			t.Errorf("%+v allows something", g)
		}
		if again, err := auth.ParseGrants(must(json.Marshal(auth.Grants{g}))); err == nil {
			t.Errorf("%+v became %+v on its way through a token", g, again)
		}
	}
}

func TestNarrowingRefused(t *testing.T) {
	v := newVerifier(t, nil)
	for _, tc := range []struct{ members, rule string }{
		{`"allow":["op"],"steps":[]`, "steps is empty"},
		{`"allow":["op"],"keys":[]`, "keys is empty"},
		{`"allow":["op"],"steps":null`, "steps is not an array"},
		{`"allow":["op"],"keys":null`, "keys is not an array"},
		{`"allow":["op"],"steps":"add"`, "steps is not an array"},
		{`"allow":["op"],"keys":"*"`, "keys is not an array"},
		{`"allow":["op"],"steps":[1]`, "steps has an element that is not a string"},
		{`"allow":["op"],"keys":[null]`, "keys has an element that is not a string"},
		{`"allow":["op"],"steps":["add","remove"]`, `steps has the unknown word "remove"; it may have add, create, set, merge, delete`},
		{`"allow":["op"],"steps":["Add"]`, `unknown word "Add"`},
		{`"allow":["op"],"steps":["*"]`, `unknown word "*"`},
		{`"allow":["op"],"keys":["ok",""]`, "keys has an empty element"},
		{`"allow":["op"],"keys":["a*b"]`, `"a*b" has a * that is not at its end`},
		{`"allow":["op"],"keys":["**"]`, "not at its end"},
		{`"allow":["op"],"keys":["*/{user}"]`, "not at its end"},
		{`"allow":["op"],"keys":["players/{user}*"]`, "would match keys of other users"},
		{`"allow":["op"],"keys":["a/{user}-*"]`, "would match keys of other users"},
		{`"allow":["op"],"keys":["{user}{user}*"]`, "would match keys of other users"},
		{`"allow":["op"],"keys":["players/{usr}/*"]`, "has a brace that is not of {user}"},
		{`"allow":["op"],"keys":["{User}"]`, "has a brace"},
		{`"allow":["op"],"keys":["{{user}}"]`, "has a brace"},
		{`"allow":["op"],"keys":["{user"]`, "has a brace"},
		{`"allow":["op"],"keys":["` + strings.Repeat("x", 4000) + `**"]`, "not at its end"},
		{`"allow":["op"],"keys":["a"],"keys":["b"]`, "keys twice"},
		{`"allow":["sub"],"keys":["a"]`, "steps and keys narrow op"},
		{`"allow":["sub"],"steps":["add"]`, "steps and keys narrow op"},
	} {
		token := hs256(t, fmt.Sprintf(`{"sub":"u","exp":%d,"caps":[{"channels":["a"],%s}]}`, inAnHour, tc.members))
		_, err := v.Connection(token, now)
		wantInvalid(t, err, tc.rule, token)
	}
}

// Two users of one token's text share its grants, never their keys.
func TestUsersShareGrantsNotKeys(t *testing.T) {
	v := newVerifier(t, nil)
	for _, user := range []string{"ada", "bob"} {
		c, err := v.Connection(mint(t, auth.Claims{User: user, ExpiresAt: inAnHour, Grants: narrowed(t, `,"keys":["players/{user}/*"]`)}), now)
		if err != nil {
			t.Fatal(err)
		}
		for _, owner := range []string{"ada", "bob"} {
			if got := c.Grants.AllowStep("game:1", "set", "players/"+owner+"/hp", c.User); got != (owner == user) {
				t.Errorf("%s may change keys of %s: %v", user, owner, got)
			}
		}
	}
}

func TestAllowStepDoesNotAllocate(t *testing.T) {
	g := narrowed(t, `,"steps":["add","set"],"keys":["stock","players/{user}/*"]`)
	if n := testing.AllocsPerRun(100, func() { g.AllowStep("game:1", "set", "players/u/hp", "u") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// naiveKey is what DESIGN.md section 7 says: put the user in, then compare.
func naiveKey(pattern, key, user string) bool {
	if strings.Contains(pattern, "{user}") && (user == "" || strings.ContainsAny(user, "/*")) {
		return false
	}
	stem, star := strings.CutSuffix(pattern, "*")
	stem = strings.ReplaceAll(stem, "{user}", user)
	return stem == key || star && len(key) >= len(stem) && key[:len(stem)] == stem
}

// FuzzKeys compares matching with the model, and holds that no pattern with
// {user} and a star gives one key to two users.
func FuzzKeys(f *testing.F) {
	f.Add("players/{user}/*", "players/x/y/hp", "x", "x/y", "add")
	f.Add("{user}-{user}", "a-a", "a", "b", "set")
	f.Add("a{user}a", "aaaa", "aa", "a", "merge")
	f.Add("{user}*", "xy", "x", "xy", "")
	f.Add("*", "", "", "*", "delete")
	f.Fuzz(func(t *testing.T, pattern, key, user, other, step string) {
		caps := must(json.Marshal([]any{map[string]any{
			"channels": []string{"a"}, "allow": []string{"op"}, "keys": []string{pattern}, "steps": []string{step}}}))
		g, err := auth.ParseGrants(caps)
		if err != nil {
			return
		}
		pattern = g[0].Keys[0] // as JSON made it: bytes that are not UTF-8 are replaced
		if i := strings.Index(pattern, "*"); i >= 0 && i != len(pattern)-1 || pattern == "" || !strings.Contains(" add create set merge delete ", " "+step+" ") {
			t.Fatalf("%s is accepted", caps)
		}
		if again, err := auth.ParseGrants(must(json.Marshal(g))); err != nil || !reflect.DeepEqual(again, g) {
			t.Fatalf("%s re-encodes as %+v, %v", caps, again, err)
		}
		if g.Allow("a", auth.Operate) {
			t.Fatalf("%s allows any operation", caps)
		}
		// Keys that nearly match, too.
		for _, k := range []string{key, strings.ReplaceAll(strings.TrimSuffix(pattern, "*"), "{user}", user) + key} {
			got := g.AllowStep("a", step, k, user)
			if want := naiveKey(pattern, k, user); got != want {
				t.Fatalf("%s: key %q of user %q: %v, want %v", caps, k, user, got, want)
			}
			if got && user != other && strings.Contains(pattern, "{user}") && g.AllowStep("a", step, k, other) {
				t.Fatalf("%s: key %q belongs to users %q and %q", caps, k, user, other)
			}
			if g.AllowStep("a", step+"x", k, user) || g.AllowStep("b", step, k, user) {
				t.Fatalf("%s allows another step or room", caps)
			}
		}
	})
}
