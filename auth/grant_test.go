package auth_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"hub/auth"
)

func TestGrantsAllow(t *testing.T) {
	const sub, pub, op, hst = auth.Subscribe, auth.Publish, auth.Operate, auth.History
	for _, tc := range []struct {
		caps  string
		room  string
		a     auth.Action
		allow bool
	}{
		{`[]`, "news", sub, false},
		{`[{"channels":["news"],"allow":["sub"]}]`, "news", sub, true},
		{`[{"channels":["news"],"allow":["sub"]}]`, "news", pub, false},
		{`[{"channels":["news"],"allow":["sub"]}]`, "news", sub | pub, false},
		{`[{"channels":["news"],"allow":["sub"]}]`, "news", 0, false},
		{`[{"channels":["news"],"allow":["sub"]}]`, "News", sub, false},
		{`[{"channels":["news"],"allow":["sub"]}]`, "news2", sub, false},
		{`[{"channels":["news"],"allow":["sub"]}]`, "new", sub, false},
		{`[{"channels":["news"],"allow":["sub"]}]`, "", sub, false},
		{`[{"channels":["news"],"match":"exact","allow":["sub"]}]`, "news", sub, true},
		{`[{"channels":["a","b"],"allow":["sub"]}]`, "b", sub, true},
		// exact takes a star as it stands
		{`[{"channels":["chat:*"],"allow":["sub"]}]`, "chat:a", sub, false},
		{`[{"channels":["chat:*"],"allow":["sub"]}]`, "chat:*", sub, true},
		{`[{"channels":["*"],"allow":["sub"]}]`, "a", sub, false},
		// wildcard
		{`[{"channels":["chat:*"],"match":"wildcard","allow":["sub"]}]`, "chat:a", sub, true},
		{`[{"channels":["chat:*"],"match":"wildcard","allow":["sub"]}]`, "chat:a:b", sub, true},
		{`[{"channels":["chat:*"],"match":"wildcard","allow":["sub"]}]`, "chat:", sub, true},
		{`[{"channels":["chat:*"],"match":"wildcard","allow":["sub"]}]`, "chat", sub, false},
		{`[{"channels":["chat:*"],"match":"wildcard","allow":["sub"]}]`, "chats:a", sub, false},
		{`[{"channels":["chat:*"],"match":"wildcard","allow":["sub"]}]`, "xchat:a", sub, false},
		{`[{"channels":["chat:a*"],"match":"wildcard","allow":["sub"]}]`, "chat:ab", sub, true},
		{`[{"channels":["chat:a*"],"match":"wildcard","allow":["sub"]}]`, "chat:b", sub, false},
		{`[{"channels":["news","chat:*"],"match":"wildcard","allow":["sub"]}]`, "news", sub, true},
		{`[{"channels":["news","chat:*"],"match":"wildcard","allow":["sub"]}]`, "newsX", sub, false},
		{`[{"channels":["*"],"match":"wildcard","allow":["sub"]}]`, "anything:at.all", sub, true},
		{`[{"channels":["*"],"match":"wildcard","allow":["sub"]}]`, "plain", sub, true},
		{`[{"channels":["*"],"match":"wildcard","allow":["sub"]}]`, "plain", pub, false},
		// several grants add up
		{`[{"channels":["*"],"match":"wildcard","allow":["sub"]},{"channels":["a"],"allow":["pub"]}]`, "a", sub | pub, true},
		{`[{"channels":["*"],"match":"wildcard","allow":["sub"]},{"channels":["a"],"allow":["pub"]}]`, "b", sub | pub, false},
		{`[{"channels":["a"],"allow":["sub","pub","op","hst","prs"]}]`, "a", sub | pub | op | hst | auth.Presence, true},
		// a narrowed operate is not operate; the rest stays
		{`[{"channels":["a"],"allow":["op","sub"],"steps":["add"]}]`, "a", op, false},
		{`[{"channels":["a"],"allow":["op","sub"],"keys":["stock"]}]`, "a", op, false},
		{`[{"channels":["a"],"allow":["op","sub"],"keys":["stock"]}]`, "a", sub, true},
		{`[{"channels":["a"],"allow":["op"],"keys":["stock"]},{"channels":["a"],"allow":["op"]}]`, "a", op, true},
	} {
		g, err := auth.ParseGrants([]byte(tc.caps))
		if err != nil {
			t.Errorf("%s: %v", tc.caps, err)
			continue
		}
		if got := g.Allow(tc.room, tc.a); got != tc.allow {
			t.Errorf("%s: Allow(%q, %v) = %v", tc.caps, tc.room, tc.a.Words(), got)
		}
	}
}

func TestGrantsRefused(t *testing.T) {
	v := newVerifier(t, nil)
	for _, tc := range []struct{ caps, rule string }{
		{`{"channels":["a"],"allow":["sub"]}`, "caps: is not an array"},
		{`"*"`, "is not an array"},
		{`[null]`, "grant 1: is not a JSON object"},
		{`["a"]`, "is not a JSON object"},
		{`[{}]`, "channels is missing or empty"},
		{`[{"channels":[],"allow":["sub"]}]`, "channels is missing or empty"},
		{`[{"channels":["a"]}]`, "allow is missing or empty"},
		{`[{"channels":["a"],"allow":[]}]`, "allow is missing or empty"},
		{`[{"channels":"a","allow":["sub"]}]`, "is not an array"},
		{`[{"channels":["a",5],"allow":["sub"]}]`, "is not a string"},
		{`[{"channels":["a",""],"allow":["sub"]}]`, "empty element"},
		{`[{"channels":["a"],"allow":"sub"}]`, "allow is not an array"},
		{`[{"channels":["a"],"allow":[1]}]`, "allow has an element that is not a string"},
		{`[{"channels":["a"],"allow":["sub"]},{"channels":["a"],"allow":["sub","admin"]}]`, `grant 2: allow has the unknown word "admin"`},
		{`[{"channels":["a"],"allow":["SUB"]}]`, `unknown word "SUB"`},
		{`[{"channels":["a"],"match":"regex","allow":["sub"]}]`, `match must be exact or wildcard, got "regex"`},
		{`[{"channels":["a"],"match":"","allow":["sub"]}]`, "match must be"},
		{`[{"channels":["a"],"match":1,"allow":["sub"]}]`, "match must be"},
		{`[{"channels":["a"],"match":"Wildcard","allow":["sub"]}]`, "match must be"},
		{`[{"channels":["cha*"],"match":"wildcard","allow":["sub"]}]`, `"cha*" could match several namespaces`},
		{`[{"channels":["ok:*","**"],"match":"wildcard","allow":["sub"]}]`, `"**" has a * that is not at its end`},
		{`[{"channels":["*:a"],"match":"wildcard","allow":["sub"]}]`, "not at its end"},
		{`[{"channels":["chat:*:a*"],"match":"wildcard","allow":["sub"]}]`, "not at its end"},
		{`[{"channels":["a"],"allow":["sub"],"until":5}]`, `"until" is not supported`},
		{`[{"channels":["a"],"allow":["sub"],"Keys":["x"]}]`, `"Keys" is not supported`},
		{`[{"channels":["a"],"channels":["b"],"allow":["sub"]}]`, "channels twice"},
		{`[{"channels":["` + strings.Repeat("x", 4000) + `*"],"match":"wildcard","allow":["sub"]}]`, "could match several"},
	} {
		token := hs256(t, fmt.Sprintf(`{"sub":"u","exp":%d,"caps":%s}`, inAnHour, tc.caps))
		_, err := v.Connection(token, now)
		wantInvalid(t, err, tc.rule, token)
	}
	for _, bad := range []string{"", " ", "[", "[]x"} {
		if _, err := auth.ParseGrants([]byte(bad)); err == nil {
			t.Errorf("ParseGrants(%q) accepted it", bad)
		}
	}
}

func TestGrantsAllowDoesNotAllocate(t *testing.T) {
	g := auth.Grants{
		{Rooms: []string{"news", "game:*"}, Wildcard: true, Allow: auth.Subscribe},
		{Rooms: []string{"chat:*"}, Wildcard: true, Allow: auth.Publish},
	}
	if n := testing.AllocsPerRun(100, func() { g.Allow("chat:lobby", auth.Publish) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// naiveAllow is what DESIGN.md section 8 says, one action and one pattern at a time.
func naiveAllow(rooms []string, wildcard bool, allow []string, room, word string) bool {
	may := false
	for _, w := range allow {
		may = may || w == word
	}
	if !may {
		return false
	}
	for _, p := range rooms {
		if !wildcard {
			may = p == room
		} else if stem, star := strings.CutSuffix(p, "*"); star {
			may = len(room) >= len(stem) && room[:len(stem)] == stem
		} else {
			may = p == room
		}
		if may {
			return true
		}
	}
	return false
}

// FuzzGrants parses any grant, compares matching with the model, and holds that
// a wildcard stays within its namespace and that what was parsed re-encodes.
func FuzzGrants(f *testing.F) {
	f.Add("chat:*", "news", "wildcard", uint8(3), "chat:a", `{"channels":["a"],"allow":["sub"]}`)
	f.Add("*", "a", "exact", uint8(31), "*", `{"channels":["a:*"],"match":"wildcard","allow":["op"],"keys":["x"]}`)
	f.Add("a*", ":*", "regex", uint8(0), "", `[{"channels":[""]}]`)
	f.Fuzz(func(t *testing.T, first, second, match string, bits uint8, room, raw string) {
		if g, err := auth.ParseGrants([]byte("[" + raw + "]")); err == nil && len(g) > 0 {
			again, err := auth.ParseGrants(must(json.Marshal(g)))
			if err != nil || len(again) != len(g) {
				t.Fatalf("%s does not re-encode: %v", raw, err)
			}
			if !reflect.DeepEqual(again, g) {
				t.Fatalf("%s re-encodes as %+v", raw, again)
			}
		}

		allow := auth.Action(bits & 31).Words()
		caps := must(json.Marshal([]any{map[string]any{"channels": []string{first, second}, "match": match, "allow": allow}}))
		g, err := auth.ParseGrants(caps)
		if err != nil {
			return
		}
		if match != "exact" && match != "wildcard" {
			t.Fatalf("match %q is accepted", match)
		}
		rooms := g[0].Rooms // as JSON made them: bytes that are not UTF-8 are replaced
		for i, word := range auth.Action(31).Words() {
			a := auth.Action(1 << i)
			got, want := g.Allow(room, a), naiveAllow(rooms, match == "wildcard", allow, room, word)
			if got != want {
				t.Fatalf("%s: Allow(%q, %s) = %v, want %v", caps, room, word, got, want)
			}
			if !got || rooms[0] == "*" || rooms[1] == "*" {
				continue
			}
			ns, _, _ := strings.Cut(room, ":")
			for _, p := range rooms {
				if pns, _, _ := strings.Cut(p, ":"); pns == ns {
					ns = ""
				}
			}
			if ns != "" {
				t.Fatalf("%s allows room %q of another namespace", caps, room)
			}
		}
	})
}

// FuzzConnection: no token that was not signed here is accepted or makes a panic,
// whatever is tried as header, claims and signature; signed claims may be anything.
func FuzzConnection(f *testing.F) {
	k := keys()
	v := newVerifier(f, func(o *auth.Options) { o.PublicKeys = []string{"kid=ed\n" + publicPEM(k.ed)} })
	good := mint(f, auth.Claims{User: "u", ExpiresAt: inAnHour})
	f.Add(good, `{"sub":"u","exp":1}`)
	f.Add("..", `{"sub":"u","exp":1e300,"caps":[{"channels":["a"],"allow":["sub"]}]}`)
	f.Add(good+"A", `{"aud":[1,{"x":"\""}],"sub":"\ud800","nbf":1e19}`)
	f.Add(encode(`{"alg":"none"}`)+"."+encode(`{"sub":"u","exp":99999999999}`)+".", `{"a\u0062":[[[]]],"info":{"}":"]"}}`)
	f.Fuzz(func(t *testing.T, token, payload string) {
		if token != good {
			for range 2 {
				if c, err := v.Connection(token, now); err == nil {
					t.Fatalf("accepted %q as %+v", token, c)
				}
				if c, err := v.Subscription(token, now); err == nil {
					t.Fatalf("accepted %q as %+v", token, c)
				}
				v.Asymmetric(token)
				_, _, _ = auth.Inspect(token)
				// Again with the claims as the token's payload and no good signature.
				token = encode(token) + "." + encode(payload) + "." + encode("signature")
			}
		}
		c, err := v.Connection(hs256(t, payload), now)
		if err != nil {
			return
		}
		var want struct {
			Info json.RawMessage `json:"info"`
		}
		if err := json.Unmarshal([]byte(payload), &want); err != nil {
			t.Fatalf("accepted claims that are not JSON: %q", payload)
		}
		if c.User == "" || len(c.User) > 255 || c.ExpiresAt <= now.Unix()-5 || c.Info != nil && !json.Valid(c.Info) {
			t.Fatalf("accepted %q as %+v", payload, c)
		}
	})
}
