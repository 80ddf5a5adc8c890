package store_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"hub/store"
)

func registryPath(t *testing.T) string { return filepath.Join(t.TempDir(), "_hub.db") }

func openRegistry(t *testing.T, path string) *store.Registry {
	t.Helper()
	r, err := store.OpenRegistry(path, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func revoke(t *testing.T, r *store.Registry, v store.Revocation) store.Revocation {
	t.Helper()
	stored, err := r.Revoke(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func revocations(t *testing.T, r *store.Registry) []store.Revocation {
	t.Helper()
	all, err := r.Revocations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What was set is there after a restart, byte for byte, in a file that only its
// owner may read.
func TestRegistryRemembers(t *testing.T) {
	t.Parallel()
	path, ctx := registryPath(t), t.Context()
	r := openRegistry(t, path)
	var want []store.Revocation
	for _, v := range []store.Revocation{
		{User: "u1", Note: "spam", Created: 100},
		{User: "u1", Database: "chat", Created: 101},
		{User: "u1", IssuedBefore: 500, Until: 900, Created: 102},
		{TokenID: "j1", Until: 700, Created: 103},
		{User: "u1", TokenID: "j1", Until: 700, Created: 104},
		{IssuedBefore: 600, Until: 1 << 33, Created: 105},
		{User: strings.Repeat("ü", 127), Note: "it's \"quoted\"; --", Created: 106},
		{User: "U1", Created: 107},
	} {
		stored := revoke(t, r, v)
		v.ID = stored.ID
		if stored != v || v.ID == 0 {
			t.Errorf("stored %+v, want %+v", stored, v)
		}
		want = append(want, v)
	}
	if v := revoke(t, r, store.Revocation{User: "now"}); v.Created < 1_700_000_000 {
		t.Errorf("created at %d", v.Created)
	} else {
		want = append(want, v)
	}
	for _, c := range []store.Cap{{"server", "", 5}, {"server", "", 6}, {"ip", "", 0}, {"database", "", 7}, {"database", "chat", 8}, {"database", "game", 9}} {
		if err := r.SetCap(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // there need be none
		if err := r.ResetCap(ctx, "database", "game"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"game", "chat", "game"} {
		if err := r.AddDatabase(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, suffix := range []string{"", "-wal"} {
		if info, err := os.Stat(path + suffix); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", suffix, info, err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := listing(t, path); got != "_hub.db" {
		t.Errorf("files after closing: %s", got)
	}
	r = openRegistry(t, path)
	if got := revocations(t, r); !reflect.DeepEqual(got, want) {
		t.Errorf("revocations\n%+v\nwant\n%+v", got, want)
	}
	caps, err := r.Caps(ctx)
	wantCaps := []store.Cap{{"database", "", 7}, {"database", "chat", 8}, {"ip", "", 0}, {"server", "", 6}}
	if err != nil || !reflect.DeepEqual(caps, wantCaps) {
		t.Errorf("caps %v, %v; want %v", caps, err, wantCaps)
	}
	names, err := r.Databases(ctx)
	if err != nil || !reflect.DeepEqual(names, []string{"chat", "game"}) {
		t.Errorf("databases %v, %v", names, err)
	}
}

// The same revocation again keeps what is wider of each.
func TestRevokeAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name               string
		first, again, want store.Revocation
	}{
		{"the same", store.Revocation{User: "u", Until: 5}, store.Revocation{User: "u", Until: 5}, store.Revocation{User: "u", Until: 5}},
		{"longer", store.Revocation{User: "u", Until: 5}, store.Revocation{User: "u", Until: 9}, store.Revocation{User: "u", Until: 9}},
		{"shorter", store.Revocation{User: "u", Until: 9}, store.Revocation{User: "u", Until: 5}, store.Revocation{User: "u", Until: 9}},
		{"for ever", store.Revocation{User: "u", Until: 9}, store.Revocation{User: "u"}, store.Revocation{User: "u"}},
		{"no more for ever", store.Revocation{User: "u"}, store.Revocation{User: "u", Until: 9}, store.Revocation{User: "u"}},
		{"later", store.Revocation{IssuedBefore: 5, Until: 9}, store.Revocation{IssuedBefore: 7, Until: 8}, store.Revocation{IssuedBefore: 7, Until: 9}},
		{"earlier", store.Revocation{IssuedBefore: 7, Until: 8}, store.Revocation{IssuedBefore: 5, Until: 9}, store.Revocation{IssuedBefore: 7, Until: 9}},
		{"noted", store.Revocation{TokenID: "j", Note: "a"}, store.Revocation{TokenID: "j", Note: "b"}, store.Revocation{TokenID: "j", Note: "b"}},
		{"not noted", store.Revocation{TokenID: "j", Note: "a"}, store.Revocation{TokenID: "j"}, store.Revocation{TokenID: "j", Note: "a"}},
	} {
		r := openRegistry(t, registryPath(t))
		c.first.Created, c.again.Created, c.want.Created = 1, 2, 1
		c.want.ID = revoke(t, r, c.first).ID
		if got := revoke(t, r, c.again); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if all := revocations(t, r); len(all) != 1 || all[0] != c.want {
			t.Errorf("%s: stored %+v", c.name, all)
		}
	}
}

func TestRestoreAndSweep(t *testing.T) {
	t.Parallel()
	r, ctx := openRegistry(t, registryPath(t)), t.Context()
	ban := revoke(t, r, store.Revocation{User: "u"})
	logout := revoke(t, r, store.Revocation{User: "u", IssuedBefore: 50, Until: 100})
	if err := r.Restore(ctx, ban.ID); err != nil {
		t.Fatal(err)
	}
	if all := revocations(t, r); len(all) != 1 || all[0] != logout {
		t.Errorf("without the ban: %+v", all)
	}
	if err := r.Restore(ctx, ban.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("again: %v", err)
	}
	if n, err := r.SweepRevocations(ctx, 100); n != 0 || err != nil {
		t.Errorf("at its last second: swept %d, %v", n, err)
	}
	for i, want := range []int{1, 0} {
		if n, err := r.SweepRevocations(ctx, 101); n != want || err != nil {
			t.Errorf("sweep %d: %d, %v", i, n, err)
		}
	}
	again := revoke(t, r, store.Revocation{User: "u"})
	if again.ID <= logout.ID {
		t.Errorf("id %d after %d", again.ID, logout.ID)
	}
	if n, err := r.SweepRevocations(ctx, math.MaxInt64); n != 0 || err != nil {
		t.Errorf("one for ever: swept %d, %v", n, err)
	}
}

func TestRegistryRefusesBadValues(t *testing.T) {
	t.Parallel()
	r, ctx := openRegistry(t, registryPath(t)), t.Context()
	for _, v := range []store.Revocation{
		{}, {Database: "chat"}, {Until: 5, Note: "n"},
		{TokenID: "j", IssuedBefore: 5},
		{User: strings.Repeat("u", 256)}, {TokenID: strings.Repeat("j", 256)}, {User: "u", Database: strings.Repeat("d", 256)},
		{User: "u", Note: strings.Repeat("n", 1025)},
		{User: "u\x00"}, {User: "\xff"},
		{IssuedBefore: -1}, {User: "u", Until: -1}, {User: "u", Created: -1},
		{IssuedBefore: 1_700_000_000_000}, {User: "u", Until: 1_700_000_000_000},
	} {
		if _, err := r.Revoke(ctx, v); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%.80v: %v", v, err)
		}
	}
	for _, c := range []store.Cap{{"", "", 1}, {"user", "", 1}, {"server", "chat", 1}, {"ip", "chat", 1}, {"ip", "", -1}, {"ip", "", 1 << 31}, {"database", "\xff", 1}} {
		if err := r.SetCap(ctx, c); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if err := r.ResetCap(ctx, "user", ""); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("reset: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("d", 256), "a\x00"} {
		if err := r.AddDatabase(ctx, name); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("database %.9q: %v", name, err)
		}
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Revoke(over, store.Revocation{User: "u"}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is over: %v", err)
	}
	if all := revocations(t, r); len(all) != 0 {
		t.Errorf("stored nevertheless: %+v", all)
	}
	r.Close()
	if _, err := r.Revoke(ctx, store.Revocation{User: "u"}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after closing: %v", err)
	}
}

// A database of rooms is as foreign as any other file, and the other way round.
func TestForeignAndNewerRegistriesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		make func(path string)
		want error
	}{
		{"text", func(path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("not a database\n", 100)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, store.ErrForeign},
		{"rooms", func(path string) { shut(t, open(t, store.Options{Path: path})) }, store.ErrForeign},
		{"newer", func(path string) {
			openRegistry(t, path).Close()
			db, err := sql.Open("sqlite", store.DSN(path))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec("PRAGMA user_version=99"); err != nil {
				t.Fatal(err)
			}
		}, store.ErrNewer},
	} {
		path := registryPath(t)
		c.make(path)
		before := must(os.ReadFile(path))
		if r, err := store.OpenRegistry(path, nil); !errors.Is(err, c.want) || r != nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", c.name, err)
		}
		if !bytes.Equal(before, must(os.ReadFile(path))) || listing(t, path) != "_hub.db" {
			t.Errorf("%s: the file was changed, or more left: %s", c.name, listing(t, path))
		}
	}
	path := registryPath(t)
	openRegistry(t, path).Close()
	if _, err := store.Open(store.Options{Path: path}); !errors.Is(err, store.ErrForeign) {
		t.Errorf("a registry as a database: %v", err)
	}
}

// A full disk: what is acknowledged is stored, what fails is not, and writing
// goes on when there is space again.
func TestRegistryDiskFull(t *testing.T) {
	t.Parallel()
	path, ctx := registryPath(t), t.Context()
	r := openRegistry(t, path)
	if err := r.SetMaxPages("1"); err != nil { // as many as there are
		t.Fatal(err)
	}
	var want []string
	for i := 0; ; i++ {
		user := fmt.Sprintf("%0255d", i)
		_, err := r.Revoke(ctx, store.Revocation{User: user})
		if err != nil {
			if !errors.Is(err, store.ErrUnavailable) {
				t.Fatal(err)
			}
			break
		}
		want = append(want, user)
		if i == 1000 {
			t.Fatal("the disk is not full")
		}
	}
	check := func() {
		t.Helper()
		var got []string
		for _, v := range revocations(t, r) {
			got = append(got, v.User)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d revocations, want %d", len(got), len(want))
		}
	}
	check()
	want = append(want, revoke(t, r, store.Revocation{User: "later"}).User)
	check()
	r.Close()
	r = openRegistry(t, path)
	check()
}

func TestRegistryConcurrently(t *testing.T) {
	t.Parallel()
	r, ctx := openRegistry(t, registryPath(t)), t.Context()
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 10 {
				own, err := r.Revoke(ctx, store.Revocation{User: fmt.Sprint(g, "-", i)})
				if err == nil {
					_, err = r.Revoke(ctx, store.Revocation{User: "same", IssuedBefore: int64(1 + g*10 + i)})
				}
				if err == nil && i%2 == 0 {
					err = r.Restore(ctx, own.ID)
				}
				if err == nil {
					err = r.SetCap(ctx, store.Cap{Scope: "database", Database: fmt.Sprint(g), Limit: i})
				}
				if err == nil {
					err = r.AddDatabase(ctx, fmt.Sprint(i))
				}
				if err == nil {
					_, err = r.Revocations(ctx)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	var latest int64
	left := revocations(t, r)
	for _, v := range left {
		latest = max(latest, v.IssuedBefore)
	}
	caps, err := r.Caps(ctx)
	names, err2 := r.Databases(ctx)
	if len(left) != 41 || latest != 80 || len(caps) != 8 || len(names) != 10 || err != nil || err2 != nil {
		t.Errorf("%d revocations up to %d, %d caps, %d databases, %v, %v", len(left), latest, len(caps), len(names), err, err2)
	}
}

// TestRegistryChild is the child of TestRegistryKill: it revokes from 4
// goroutines until it is killed and prints a line for each acknowledgement.
func TestRegistryChild(t *testing.T) {
	path := os.Getenv("STORE_TEST_REGISTRY")
	if path == "" {
		t.Skip("not a child")
	}
	r, err := store.OpenRegistry(path, nil)
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	for g := range 4 {
		go func() {
			for i := 0; ; i++ {
				user := fmt.Sprintf("%s-%d-%d", os.Getenv("STORE_TEST_RUN"), g, i)
				v, err := r.Revoke(context.Background(), store.Revocation{User: user})
				if err != nil {
					log.Fatal(err)
				}
				mu.Lock()
				fmt.Printf("revoked %s %d\n", user, v.ID)
				mu.Unlock()
			}
		}()
	}
	select {}
}

// After kill -9 in the middle of writes each acknowledged revocation is there,
// and the file opens.
func TestRegistryKill(t *testing.T) {
	t.Parallel()
	path := registryPath(t)
	acknowledged := map[string]int64{}
	for run := range 4 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRegistryChild$")
		cmd.Env = append(os.Environ(), "STORE_TEST_REGISTRY="+path, fmt.Sprintf("STORE_TEST_RUN=%d", run))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := 0
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadString('\n')
			if err != nil { // the last line may be half
				break
			}
			var user string
			var id int64
			if _, err := fmt.Sscanf(line, "revoked %s %d", &user, &id); err != nil {
				t.Fatalf("child said %q", line)
			}
			acknowledged[user] = id
			if lines++; lines == 1+run*20 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd.Wait()
		if lines < 1+run*20 {
			t.Fatalf("child ended after %d lines", lines)
		}
		r := openRegistry(t, path)
		stored := map[string]int64{}
		for _, v := range revocations(t, r) {
			stored[v.User] = v.ID
		}
		for user, id := range acknowledged {
			if stored[user] != id {
				t.Errorf("run %d: %s acknowledged as %d, stored as %d", run, user, id, stored[user])
			}
		}
		r.Close()
	}
}
