package auth_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"hub/auth"
)

func TestConnectionClaims(t *testing.T) {
	v := newVerifier(t, nil)
	want := auth.Claims{
		User:      "jürgen",
		ExpiresAt: inAnHour,
		IssuedAt:  now.Unix(),
		ID:        "jti-1",
		Info:      json.RawMessage(`{"name":"J"}`),
		Meta:      json.RawMessage(`[1]`),
		Channels:  []string{"news", "chat:a"},
		Databases: []string{"default", "shop"},
		Grants: auth.Grants{
			{Rooms: []string{"chat:*"}, Wildcard: true, Allow: auth.Subscribe | auth.Publish | auth.Operate | auth.History | auth.Presence},
			{Rooms: []string{"news"}, Allow: auth.Subscribe | auth.Operate, Steps: []string{"add", "merge"}, Keys: []string{"stock", "players/{user}/*"}},
		},
	}
	got, err := v.Connection(mint(t, want), now)
	if err != nil {
		t.Fatal(err)
	}
	if got.KeyID == "" {
		t.Error("no key id")
	}
	got.KeyID = ""
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got  %+v\nwant %+v", *got, want)
	}

	got, err = v.Connection(mint(t, auth.Claims{User: "u", ExpiresAt: inAnHour}), now)
	if err != nil {
		t.Fatal(err)
	}
	if want := (auth.Claims{User: "u", ExpiresAt: inAnHour, KeyID: got.KeyID}); !reflect.DeepEqual(*got, want) {
		t.Errorf("minimal token: got %+v, want nothing but sub and exp", *got)
	}
}

// The rules of single claims; %d is an exp an hour ahead.
func TestClaimRules(t *testing.T) {
	v := newVerifier(t, nil)
	long := strings.Repeat("x", 255)
	for _, tc := range []struct{ payload, rule string }{ // rule "" when it is accepted
		{`{"exp":%d}`, "sub is missing"},
		{`{"sub":"","exp":%d}`, "sub is empty"},
		{`{"sub":null,"exp":%d}`, "sub is missing"},
		{`{"sub":5,"exp":%d}`, "sub is not a string"},
		{`{"sub":["u"],"exp":%d}`, "sub is not a string"},
		{`{"SUB":"u","exp":%d}`, "sub is missing"},
		{`{"sub":"u","Sub":"x","exp":%d}`, ""},
		{`{"sub":"u","sub":"v","exp":%d}`, "sub twice"},
		{`{"sub":"u","sub":null,"exp":%d}`, "sub twice"},
		{`{"sub":"` + long + `","exp":%d}`, ""},
		{`{"sub":"` + long + `x","exp":%d}`, "sub is longer than 255 bytes"},
		{`{"sub":"a\u0000b","exp":%d}`, "sub contains a control character"},
		{`{"sub":"a\nb","exp":%d}`, "sub contains a control character"},
		{`{"sub":"a\u007fb","exp":%d}`, "sub contains a control character"},
		{`{"sub":"a\u0085b","exp":%d}`, "sub contains a control character"},
		{`{"sub":"\u00fc \"q\"","exp":%d}`, ""},
		{`{"sub":"u","jti":7,"exp":%d}`, "jti is not a string"},
		{`{"sub":"u","jti":"","exp":%d}`, "jti is empty"},
		{`{"sub":"u","jti":"` + long + `x","exp":%d}`, "jti is longer"},
		{`{"sub":"u","channels":"news","exp":%d}`, "channels is not an array"},
		{`{"sub":"u","channels":["news",1],"exp":%d}`, "channels has an element that is not a string"},
		{`{"sub":"u","channels":[""],"exp":%d}`, "channels has an empty element"},
		{`{"sub":"u","channels":[],"exp":%d}`, ""},
		{`{"sub":"u","db":"","exp":%d}`, "db is empty"},
		{`{"sub":"u","db":[],"exp":%d}`, "db is empty"},
		{`{"sub":"u","db":["a",""],"exp":%d}`, "db has an empty element"},
		{`{"sub":"u","db":{"a":1},"exp":%d}`, "db is not an array"},
		{`{"sub":"u","channel":"news","exp":%d}`, "subscription token, which does not connect"},
		{`{"sub":"u","channel":"","exp":%d}`, "subscription token, which does not connect"},
		{`{"sub":"u","expire_at":0,"exp":%d}`, "expire_at is not supported"},
		{`{"sub":"u","subs":{},"exp":%d}`, "subs is not supported"},
		{`{"sub":"u","b64info":"e30=","exp":%d}`, "b64info is not supported"},
		{`{"sub":"u","info":null,"meta":null,"exp":%d}`, ""},
		{`{"sub":"u","unknown":{"deep":["}",{"sub":"x"}]},"exp":%d}`, ""},
		{" {\n \"sub\" : \"u\" ,\t\"x\" : [ 1 , 2 ] , \"exp\" : %d } ", ""},
	} {
		payload := fmt.Sprintf(tc.payload, inAnHour)
		token := hs256(t, payload)
		_, err := v.Connection(token, now)
		if tc.rule != "" {
			wantInvalid(t, err, tc.rule, token)
		} else if err != nil {
			t.Errorf("%s: %v", payload, err)
		}
	}
}

// Case G12: exp, nbf and iat with the default leeway of 5 s.
func TestTime(t *testing.T) {
	v := newVerifier(t, nil)
	n := now.Unix()
	const isExpired = "expired"
	for _, tc := range []struct{ claims, want string }{ // want "" is accepted
		{``, "exp is missing"},
		{`,"exp":null`, "exp is missing"},
		{`,"EXP":99999999999`, "exp is missing"},
		{`,"exp":"99999999999"`, "exp is not a number"},
		{`,"exp":true`, "exp is not a number"},
		{`,"exp":[1]`, "exp is not a number"},
		{`,"exp":1e300`, "exp is out of range"},
		{`,"exp":1e999`, "exp is out of range"},
		{`,"exp":-1`, "exp is out of range"},
		{`,"exp":-1e300`, "exp is out of range"},
		{`,"exp":9223372036854775807`, "exp is out of range"},
		{`,"exp":9223372036854775808`, "exp is out of range"},
		{fmt.Sprintf(`,"exp":%d`, now.Add(time.Hour).UnixMilli()*1000), "exp is out of range"},
		{`,"exp":253402300799`, ""},
		{`,"exp":0`, isExpired},
		{`,"exp":0.5`, isExpired},
		{fmt.Sprintf(`,"exp":%d`, n-5), isExpired},
		{fmt.Sprintf(`,"exp":%d`, n-4), ""},
		{fmt.Sprintf(`,"exp":%d.75`, n-4), ""},
		{fmt.Sprintf(`,"exp":%d.75`, n-5), isExpired},
		{fmt.Sprintf(`,"exp":%de0`, n+60), ""},
		{fmt.Sprintf(`,"exp":%d,"exp":%d`, n-60, n+60), "exp twice"},
		{fmt.Sprintf(`,"exp":%d,"nbf":%d`, n+60, n+5), ""},
		{fmt.Sprintf(`,"exp":%d,"nbf":%d`, n+60, n+6), "nbf is in the future"},
		{fmt.Sprintf(`,"exp":%d,"nbf":1e19`, n+60), "nbf is out of range"},
		{fmt.Sprintf(`,"exp":%d,"nbf":"0"`, n+60), "nbf is not a number"},
		{fmt.Sprintf(`,"exp":%d,"nbf":0`, n+60), ""},
		{fmt.Sprintf(`,"exp":%d,"iat":%d`, n+60, n+5), ""},
		{fmt.Sprintf(`,"exp":%d,"iat":%d`, n+60, n+60), ""},
		{fmt.Sprintf(`,"exp":%d,"iat":%d`, n+60, n+61), "iat is in the future"},
		{fmt.Sprintf(`,"exp":%d,"iat":"x"`, n+60), "iat is not a number"},
	} {
		token := hs256(t, `{"sub":"u"`+tc.claims+`}`)
		subscription := hs256(t, `{"sub":"u","channel":"c"`+tc.claims+`}`)
		_, err := v.Connection(token, now)
		_, err2 := v.Subscription(subscription, now)
		if fmt.Sprint(err) != fmt.Sprint(err2) {
			t.Errorf("%s: connection says %v, subscription %v", tc.claims, err, err2)
		}
		switch tc.want {
		case "":
			if err != nil {
				t.Errorf("%s: %v", tc.claims, err)
			}
		case isExpired:
			if !errors.Is(err, auth.ErrExpired) || errors.Is(err, auth.ErrInvalid) {
				t.Errorf("%s: got error %v, want ErrExpired", tc.claims, err)
			}
		default:
			wantInvalid(t, err, tc.want, token)
		}
	}
}

// "Expired" is said of genuine tokens only: whatever else is wrong wins.
func TestExpiredNeverHidesAnything(t *testing.T) {
	v := newVerifier(t, func(o *auth.Options) { o.Issuer = "me" })
	past := now.Add(-time.Hour).Unix()
	forged := signed(t, jwt.SigningMethodHS256, []byte("another secret of 32 bytes......"), `{"alg":"HS256"}`,
		fmt.Sprintf(`{"sub":"u","iss":"me","exp":%d}`, past))
	for _, tc := range []struct{ token, rule string }{
		{forged, "signature is invalid"},
		{hs256(t, fmt.Sprintf(`{"sub":"u","iss":"you","exp":%d}`, past)), "iss is not"},
		{hs256(t, fmt.Sprintf(`{"sub":"","iss":"me","exp":%d}`, past)), "sub is empty"},
		{hs256(t, fmt.Sprintf(`{"sub":"u","iss":"me","exp":%d,"db":[]}`, past)), "db is empty"},
		{hs256(t, fmt.Sprintf(`{"sub":"u","iss":"me","exp":%d,"caps":[{"channels":["a"],"match":"regex","allow":["sub"]}]}`, past)), "match must be"},
	} {
		_, err := v.Connection(tc.token, now)
		wantInvalid(t, err, tc.rule, tc.token)
	}
	genuine := hs256(t, fmt.Sprintf(`{"sub":"u","iss":"me","exp":%d}`, past))
	if c, err := v.Connection(genuine, now); !errors.Is(err, auth.ErrExpired) || c != nil {
		t.Errorf("got %v, %v, want ErrExpired", c, err)
	}
}

// A live connection ends when its token would no longer be admitted.
func TestExpiredAgreesWithConnection(t *testing.T) {
	for _, leeway := range []time.Duration{0, 300 * time.Millisecond, 5 * time.Second, time.Minute} {
		v := newVerifier(t, func(o *auth.Options) { o.Leeway = leeway })
		token := mint(t, auth.Claims{User: "u", ExpiresAt: now.Unix()})
		for _, d := range []time.Duration{-time.Second, -1, 0, 1, leeway - 1, leeway, leeway + 1, leeway + time.Second} {
			_, err := v.Connection(token, now.Add(d))
			if got, want := v.Expired(now.Unix(), now.Add(d)), d >= leeway; got != want || errors.Is(err, auth.ErrExpired) != want {
				t.Errorf("leeway %v, %v after exp: Expired says %v, Connection %v, want %v", leeway, d, got, err, want)
			}
		}
	}
}

// Case G14, and the issuer.
func TestAudienceAndIssuer(t *testing.T) {
	v := newVerifier(t, func(o *auth.Options) { o.Audience, o.Issuer = "hub", "https://id.example" })
	for _, tc := range []struct{ claims, rule string }{
		{`"iss":"https://id.example","aud":"hub"`, ""},
		{`"iss":"https://id.example","aud":["other","hub"]`, ""},
		{`"iss":"https://id.example","aud":[]`, "aud is not the configured audience"},
		{`"iss":"https://id.example","aud":[""]`, "aud has an empty element"},
		{`"iss":"https://id.example","aud":["hub",""]`, "aud has an empty element"},
		{`"iss":"https://id.example"`, "aud is missing"},
		{`"iss":"https://id.example","aud":null`, "aud is missing"},
		{`"iss":"https://id.example","aud":5`, "aud is not an array"},
		{`"iss":"https://id.example","aud":["hub",5]`, "aud has an element that is not a string"},
		{`"iss":"https://id.example","aud":{"hub":1}`, "aud is not an array"},
		{`"iss":"https://id.example","aud":""`, "aud is empty"},
		{`"iss":"https://id.example","aud":"Hub"`, "aud is not the configured audience"},
		{`"iss":"https://id.example","aud":"hub2"`, "aud is not the configured audience"},
		{`"aud":"hub"`, "iss is missing"},
		{`"iss":"","aud":"hub"`, "iss is not the configured issuer"},
		{`"iss":["https://id.example"],"aud":"hub"`, "iss is not the configured issuer"},
		{`"iss":"https://id.example/","aud":"hub"`, "iss is not the configured issuer"},
	} {
		token := hs256(t, fmt.Sprintf(`{"sub":"u","exp":%d,%s}`, inAnHour, tc.claims))
		_, err := v.Connection(token, now)
		if tc.rule != "" {
			wantInvalid(t, err, tc.rule, token)
		} else if err != nil {
			t.Errorf("%s: %v", tc.claims, err)
		}
	}
	// Nothing is configured: both are ignored.
	if _, err := newVerifier(t, nil).Connection(hs256(t, fmt.Sprintf(`{"sub":"u","exp":%d,"aud":5,"iss":[]}`, inAnHour)), now); err != nil {
		t.Error(err)
	}
}

func TestSubscription(t *testing.T) {
	v := newVerifier(t, nil)
	want := auth.SubscriptionClaims{User: "u", Channel: "chat:1", ExpiresAt: inAnHour, IssuedAt: 5, ID: "j", Info: json.RawMessage(`{"a":1}`)}
	token, err := auth.MintSubscription([]byte(secret), want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := v.Subscription(token, now)
	if err != nil {
		t.Fatal(err)
	}
	want.KeyID = got.KeyID
	if got.KeyID == "" || !reflect.DeepEqual(*got, want) {
		t.Errorf("got  %+v\nwant %+v", *got, want)
	}
	_, err = v.Connection(token, now)
	wantInvalid(t, err, "subscription token", token)

	for _, tc := range []struct{ claims, rule string }{
		{``, "channel is missing: a connection token does not subscribe"},
		{`,"channel":null`, "channel is missing"},
		{`,"channel":""`, "channel is empty"},
		{`,"channel":5`, "channel is not a string"},
		{`,"channel":["a"]`, "channel is not a string"},
		{`,"channel":"a","channel":"b"`, "channel twice"},
		{`,"channel":"a","expire_at":0`, "expire_at is not supported"},
		{`,"channel":"a","override":{}`, "override is not supported"},
	} {
		token := hs256(t, fmt.Sprintf(`{"sub":"u","exp":%d%s}`, inAnHour, tc.claims))
		_, err := v.Subscription(token, now)
		wantInvalid(t, err, tc.rule, token)
	}
}

func TestAllowsDatabase(t *testing.T) {
	for _, tc := range []struct {
		db    []string
		name  string
		allow bool
	}{
		{nil, "default", true},
		{nil, "shop", false},
		{[]string{"shop"}, "shop", true},
		{[]string{"shop"}, "default", false},
		{[]string{"shop", "default"}, "default", true},
		{[]string{"shop"}, "sho", false},
		{[]string{"*"}, "shop", false},
		{[]string{"shop"}, "", false},
	} {
		c := auth.Claims{Databases: tc.db}
		if got := c.AllowsDatabase(tc.name); got != tc.allow {
			t.Errorf("db %q: AllowsDatabase(%q) = %v", tc.db, tc.name, got)
		}
	}
	c, err := newVerifier(t, nil).Connection(hs256(t, fmt.Sprintf(`{"sub":"u","exp":%d,"db":"shop"}`, inAnHour)), now)
	if err != nil || !c.AllowsDatabase("shop") || c.AllowsDatabase("default") {
		t.Errorf("db as a string: %v", err)
	}
}

// Info is sent inside newline-delimited JSON and outlives the token.
func TestInfoIsOneLine(t *testing.T) {
	v := newVerifier(t, nil)
	token := hs256(t, fmt.Sprintf("{\"sub\":\"u\",\"exp\":%d,\"info\":{\n\"a\":\r\n[1, 2],\"b\":\"x\\ny\"},\"meta\": 1 }", inAnHour))
	c, err := v.Connection(token, now)
	if err != nil || string(c.Info) != `{"a":[1,2],"b":"x\ny"}` || string(c.Meta) != "1" {
		t.Errorf("got info %s, meta %s, error %v", c.Info, c.Meta, err)
	}
	c, err = v.Connection(hs256(t, fmt.Sprintf(`{"meta":7,"sub":"u","exp":%d,"x":"%s"}`, inAnHour, strings.Repeat("x", 1000))), now)
	if err != nil || cap(c.Meta) > 64 {
		t.Errorf("meta holds %d bytes: it keeps the token's memory (%v)", cap(c.Meta), err)
	}
}

func TestMint(t *testing.T) {
	if _, err := auth.Mint([]byte("short"), auth.Claims{}); err == nil {
		t.Error("a short secret is accepted")
	}
	v := newVerifier(t, func(o *auth.Options) { o.Audience, o.Issuer = "hub", "me" })
	token := mint(t, auth.Claims{User: "u", ExpiresAt: inAnHour}, map[string]any{"iss": "me", "aud": []string{"hub"}})
	if _, err := v.Connection(token, now); err != nil {
		t.Error(err)
	}
	token = mint(t, auth.Claims{User: "u"}, map[string]any{"iss": "me", "aud": "hub"})
	_, err := v.Connection(token, now)
	wantInvalid(t, err, "exp is missing", token)
}
