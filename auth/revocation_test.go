package auth_test

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"hub/auth"
)

// What one revocation ends, and what it leaves alone.
func TestRevokes(t *testing.T) {
	type token struct {
		db, user, id string
		iat          int64
	}
	u := token{"default", "u", "id", 100}
	for _, tc := range []struct {
		name  string
		r     auth.Revocation
		kind  auth.RevocationKind
		ends  []token
		spare []token
	}{
		{"a user", auth.Revocation{User: "u"}, auth.RevokedUser,
			[]token{u, {"game", "u", "", 0}, {"game", "u", "other", math.MaxInt64 - 1}},
			[]token{{"default", "U", "id", 100}, {"default", "uu", "", 0}, {"default", "", "", 0}}},
		{"a user in one database", auth.Revocation{Database: "game", User: "u"}, auth.RevokedUser,
			[]token{{"game", "u", "", 100}},
			[]token{u, {"", "u", "", 100}, {"game", "v", "", 100}}},
		{"a token", auth.Revocation{TokenID: "id"}, auth.RevokedToken,
			[]token{u, {"game", "v", "id", 0}},
			[]token{{"default", "u", "", 100}, {"default", "u", "ID", 100}, {"default", "id", "u", 100}}},
		{"a token in one database", auth.Revocation{Database: "game", TokenID: "id"}, auth.RevokedToken,
			[]token{{"game", "u", "id", 100}},
			[]token{u, {"game", "u", "", 100}}},
		{"a user's token", auth.Revocation{User: "u", TokenID: "id"}, auth.RevokedToken,
			[]token{u, {"game", "u", "id", 0}},
			[]token{{"default", "v", "id", 100}, {"default", "u", "other", 100}}},
		{"a token id before a time", auth.Revocation{TokenID: "id", IssuedBefore: 100}, auth.RevokedToken,
			[]token{{"default", "u", "id", 99}, {"default", "v", "id", 0}},
			[]token{u, {"default", "u", "other", 99}}},
		{"a user before a time", auth.Revocation{User: "u", IssuedBefore: 100}, auth.RevokedBefore,
			[]token{{"default", "u", "", 99}, {"game", "u", "id", 0}},
			[]token{u, {"default", "v", "", 99}}},
		{"everybody before a time", auth.Revocation{IssuedBefore: 100}, auth.RevokedBefore,
			[]token{{"default", "u", "", 99}, {"game", "v", "id", 0}},
			[]token{u, {"game", "v", "id", 101}}},
		{"everybody before a time in one database", auth.Revocation{Database: "game", IssuedBefore: 100}, auth.RevokedBefore,
			[]token{{"game", "u", "", 99}},
			[]token{{"default", "u", "", 99}, {"game", "u", "", 100}, {"", "u", "", 0}}},
		{"whose time is over", auth.Revocation{User: "u", Until: 1}, auth.RevokedUser, []token{u}, nil},
		{"nothing", auth.Revocation{Database: "default"}, 0, nil, []token{u, {"default", "", "", 0}}},
	} {
		r := auth.NewRevocations([]auth.Revocation{{User: "another"}, tc.r, {TokenID: "another"}})
		for _, x := range tc.ends {
			why, kind, ok := r.Revokes(x.db, x.user, x.id, x.iat)
			if !ok || kind != tc.kind || why == "" {
				t.Errorf("%s: token %+v: got %q, kind %d, %v; want kind %d", tc.name, x, why, kind, ok, tc.kind)
			}
		}
		for _, x := range tc.spare {
			if why, kind, ok := r.Revokes(x.db, x.user, x.id, x.iat); ok || kind != 0 || why != "" {
				t.Errorf("%s: token %+v: got %q, kind %d, %v; want nothing", tc.name, x, why, kind, ok)
			}
		}
	}
}

// Revocations of the same add up, the strongest answers, and order is nothing.
func TestRevocationsTogether(t *testing.T) {
	list := []auth.Revocation{
		{User: "u", IssuedBefore: 100},
		{User: "u", IssuedBefore: 50},
		{User: "u", Database: "game", IssuedBefore: 200},
		{TokenID: "id", User: "v"},
		{TokenID: "id", User: "w"},
		{User: "v", IssuedBefore: 100},
		{User: "x"},
		{User: "x", IssuedBefore: 10},
		{TokenID: "id", User: "x"},
		{IssuedBefore: 20},
		{IssuedBefore: 10},
		{Database: "game", IssuedBefore: 5},
	}
	for range len(list) {
		list = append(list[1:], list[0])
		r := auth.NewRevocations(list)
		for _, tc := range []struct {
			db, user, id string
			iat          int64
			want         auth.RevocationKind
		}{
			{"default", "u", "", 99, auth.RevokedBefore},
			{"default", "u", "", 100, 0},
			{"game", "u", "", 199, auth.RevokedBefore},
			{"game", "u", "", 200, 0},
			{"default", "v", "id", 50, auth.RevokedToken},
			{"default", "v", "", 50, auth.RevokedBefore},
			{"default", "w", "id", 500, auth.RevokedToken},
			{"default", "u", "id", 500, 0},
			{"default", "x", "id", 500, auth.RevokedUser},
			{"default", "y", "", 19, auth.RevokedBefore},
			{"game", "y", "", 19, auth.RevokedBefore},
			{"game", "y", "", 20, 0},
			{"game", "y", "", 0, auth.RevokedBefore},
		} {
			if _, kind, ok := r.Revokes(tc.db, tc.user, tc.id, tc.iat); kind != tc.want || ok != (tc.want != 0) {
				t.Errorf("%+v: got kind %d", tc, kind)
			}
		}
	}
	for name, r := range map[string]*auth.Revocations{"nil": nil, "empty": auth.NewRevocations(nil), "zero": new(auth.Revocations)} {
		if _, _, ok := r.Revokes("default", "", "", 0); ok {
			t.Errorf("%s set revokes", name)
		}
	}
}

// manyRevocations is a mixed set of n.
func manyRevocations(n int) *auth.Revocations {
	list := make([]auth.Revocation, n)
	for i := range list {
		switch i % 4 {
		case 0:
			list[i].User = fmt.Sprint("user-", i)
		case 1:
			list[i].TokenID = fmt.Sprintf("01J9ZK5T3Q4W8X2Y7V6N%08d", i)
		case 2:
			list[i] = auth.Revocation{Database: "game", User: fmt.Sprint("user-", i), IssuedBefore: int64(i)}
		case 3:
			list[i] = auth.Revocation{Database: fmt.Sprint("db", i%1000), IssuedBefore: int64(i)}
		}
	}
	return auth.NewRevocations(list)
}

// A lookup is a part of each revalidation and allocates nothing, from many
// goroutines at once.
func TestRevokesAllocatesNothing(t *testing.T) {
	r := manyRevocations(10_000)
	if n := testing.AllocsPerRun(100, func() {
		r.Revokes("default", "user-4", "01J9ZK5T3Q4W8X2Y7V6N00000005", 1000)
		r.Revokes("game", "user-6", "none", 1000)
		r.Revokes("default", "nobody", "none", 1000)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				user := fmt.Sprint("user-", i)
				if _, _, ok := r.Revokes("default", user, "", math.MaxInt64-1); ok != (i%4 == 0) {
					t.Errorf("%s: revoked %v", user, ok)
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkRevokes asks for users of whom few are revoked, each with a jti.
func BenchmarkRevokes(b *testing.B) {
	type token struct{ user, id string }
	tokens := make([]token, 1<<12)
	for i := range tokens {
		tokens[i] = token{fmt.Sprint("user-", i*1001), fmt.Sprintf("01J9ZK5T3Q4W8X2Y7V6N%08d", i*1003)}
	}
	for _, n := range []int{0, 1, 1000, 100_000} {
		b.Run(fmt.Sprint("revocations=", n), func(b *testing.B) {
			r := manyRevocations(n)
			b.ReportAllocs()
			i, revoked := 0, 0
			for b.Loop() {
				t := &tokens[i%len(tokens)]
				if _, _, ok := r.Revokes("default", t.user, t.id, 1_800_000_000); ok {
					revoked++
				}
				i++
			}
		})
	}
}
