package store_test

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hub/store"
)

func TestPragmasOnEveryConnection(t *testing.T) {
	for _, synchronous := range []string{"normal", "full"} {
		o := options(t)
		o.Synchronous, o.Readers = synchronous, 3
		db := open(t, o)
		for name, want := range map[string]string{
			"busy_timeout":       "5000 5000 5000 5000",
			"foreign_keys":       "1 1 1 1",
			"journal_mode":       "wal wal wal wal",
			"cache_size":         "-16384 -16384 -16384 -16384",
			"mmap_size":          strings.TrimSpace(strings.Repeat("268435456 ", 4)),
			"wal_autocheckpoint": "0 0 0 0",
			"temp_store":         "2", // of the writer
			"query_only":         "0 1 1 1",
			"synchronous":        map[string]string{"normal": "1", "full": "2"}[synchronous],
		} {
			values, err := db.Pragma(t.Context(), name)
			if (name == "synchronous" || name == "temp_store") && err == nil {
				values = values[:1] // of the writer
			}
			if got := strings.Join(values, " "); err != nil || got != want {
				t.Errorf("%s: %s = %q, %v; want %q", synchronous, name, got, err, want)
			}
		}
		shut(t, db)
	}
}

// Before 3.51.3 a checkpoint could corrupt the file (sqlite.org/wal.html, the WAL-reset bug).
func TestSQLiteVersion(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var version string
	if err := db.QueryRow("SELECT sqlite_version()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		t.Fatal(err)
	}
	if major*1_000_000+minor*1_000+patch < 3_051_003 {
		t.Errorf("SQLite %s", version)
	}
}

// No character of a path becomes a parameter, and the file is the owner's alone.
func TestPath(t *testing.T) {
	for _, name := range []string{"a?mode=memory", "b#c", "d%41", "e f&_pragma=x", "ü:@+;"} {
		o := options(t)
		o.Path = filepath.Join(filepath.Dir(o.Path), name)
		db := open(t, o)
		publish(t, db, message("a", `1`))
		for _, suffix := range []string{"", "-wal", "-shm"} {
			info, err := os.Stat(o.Path + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if mode := info.Mode().Perm(); mode != 0o600 {
				t.Errorf("%s%s has mode %o", name, suffix, mode)
			}
		}
		shut(t, db)
		files, err := os.ReadDir(filepath.Dir(o.Path))
		if err != nil || len(files) != 1 || files[0].Name() != name {
			t.Errorf("%s: left %v, %v", name, files, err)
		}
	}
}

func TestEpoch(t *testing.T) {
	for _, c := range []struct {
		name        string
		synchronous string
		clean       bool
		boot        string
		same        bool
	}{
		{"clean stop", "normal", true, "boot 1", true},
		{"clean stop, other boot", "normal", true, "boot 2", true},
		{"killed", "normal", false, "boot 1", true},
		{"killed, other boot", "normal", false, "boot 2", false},
		{"killed, other boot, full", "full", false, "boot 2", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(t)
			o.Synchronous, o.BootID = c.synchronous, "boot 1"
			db := open(t, o)
			first := publish(t, db, message("a", `1`))
			epoch := db.Epoch()
			if epoch == "" || epoch == "_" || !strings.HasPrefix(first.Epoch, epoch) {
				t.Errorf("epoch %q, of the room %q", epoch, first.Epoch)
			}
			if c.clean {
				shut(t, db)
			} else {
				o.Path = copyOpen(t, o.Path)
			}
			// The mode of the next run says nothing about what the last one lost.
			o.BootID, o.Synchronous = c.boot, map[string]string{"normal": "full", "full": "normal"}[c.synchronous]
			db = open(t, o)
			if same := db.Epoch() == epoch; same != c.same {
				t.Errorf("epoch %q, then %q", epoch, db.Epoch())
			}
			if top := position(t, db, "a"); top.Offset != 1 || (top.Epoch == first.Epoch) != c.same {
				t.Errorf("position %+v, was %+v", top, first)
			}
		})
	}
}

// copyOpen copies an open database whose writer is idle, as if it had been killed.
func copyOpen(t *testing.T, path string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy.db")
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+suffix, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// The mark of an unclean stop is on the disk before the first commit that could
// be lost: it is in the file itself, whatever becomes of the WAL.
func TestOpenMarkIsDurable(t *testing.T) {
	o := options(t)
	o.BootID = "boot 1"
	db := open(t, o)
	publish(t, db, message("a", `1`))
	lost := copyOpen(t, o.Path)
	if err := os.Remove(lost + "-wal"); err != nil {
		t.Fatal(err)
	}
	epoch := db.Epoch()
	o.Path, o.BootID = lost, "boot 2"
	if db = open(t, o); db.Epoch() == epoch {
		t.Error("the epoch stayed though commits were lost")
	}
}

func TestForeignAndNewerFilesAreRefused(t *testing.T) {
	script := func(sqls ...string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", store.DSN(path))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			for _, s := range sqls {
				if _, err := db.Exec(s); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T, path string)
		want error
		says string
	}{
		{"text", func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("not a database\n", 100)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, store.ErrForeign, "test.db"},
		{"another program's", script("CREATE TABLE t (x)", "PRAGMA application_id=77"), store.ErrForeign, "0x4d"},
		{"no program's", script("PRAGMA journal_mode=WAL", "CREATE TABLE t (x)"), store.ErrForeign, "0x68756221"},
		{"newer", func(t *testing.T, path string) {
			db := open(t, store.Options{Path: path})
			shut(t, db)
			script("PRAGMA user_version=99")(t, path)
		}, store.ErrNewer, "99"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(t)
			c.make(t, o.Path)
			before, err := os.ReadFile(o.Path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = store.Open(o)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), o.Path) {
				t.Errorf("open: %v", err)
			}
			if err := store.CheckIntegrity(t.Context(), o.Path); !errors.Is(err, c.want) {
				t.Errorf("check: %v", err)
			}
			after, err := os.ReadFile(o.Path)
			if err != nil || !bytes.Equal(before, after) {
				t.Errorf("the file was changed, %v", err)
			}
			files, err := os.ReadDir(filepath.Dir(o.Path))
			if err != nil || len(files) != 1 {
				t.Errorf("left behind: %v, %v", files, err)
			}
		})
	}
}

func TestIntegrityFindsGaps(t *testing.T) {
	o := options(t)
	db := open(t, o)
	fill(t, db, "a", 5)
	shut(t, db)
	if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
		t.Fatal(err)
	}
	if n := len(must(os.ReadDir(filepath.Dir(o.Path)))); n != 1 {
		t.Errorf("checking left %d files", n)
	}
	raw, err := sql.Open("sqlite", store.DSN(o.Path))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	for _, damage := range []string{
		"DELETE FROM events WHERE offset = 3",
		"DELETE FROM events WHERE offset > 3",
		"UPDATE events SET room_id = 77",
	} {
		if _, err := raw.Exec("PRAGMA foreign_keys=0;" + damage); err != nil {
			t.Fatal(err)
		}
		if err := store.CheckIntegrity(t.Context(), o.Path); err == nil {
			t.Errorf("%s: not found", damage)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestCheckFilesystem(t *testing.T) {
	if warning := store.CheckFilesystem(t.TempDir()); warning != "" {
		t.Skipf("temporary directory: %s", warning)
	}
	if warning := store.CheckFilesystem("/no/such/directory"); warning != "" {
		t.Error(warning)
	}
}

// A file of the first version keeps all that it has, and gets resources; a
// migration that is killed has not happened.
func TestOldFile(t *testing.T) {
	t.Parallel()
	o := options(t)
	now := time.Now().UnixMilli()
	p := message("a", `"old"`)
	p.Caller, p.ID = "u", "1"
	err := store.CreateOld(t.Context(), o.Path, 1, fmt.Sprintf(`
		INSERT INTO meta VALUES ('epoch', 'oldepoch'), ('open', ''), ('boot_id', '');
		INSERT INTO rooms VALUES (7, 'a', 2, 3, 3, %[1]d);
		INSERT INTO events VALUES (7, 3, %[1]d, 'u', 'c', NULL, NULL, NULL, CAST('"old"' AS BLOB));
		INSERT INTO idempotency VALUES (7, 'u', '1', x'%[2]x', 3, 'oldepoch.2', %[1]d)`, now, sha256.Sum256(p.Publication.Data)))
	if err != nil {
		t.Fatal(err)
	}
	version := func() int { return count(t, o.Path, "PRAGMA user_version") }
	if err := store.CheckIntegrity(t.Context(), o.Path); err != nil || version() != 1 {
		t.Errorf("version %d, %v", version(), err)
	}
	killed(t, "migrate", o.Path, 0, 1)
	if n := count(t, o.Path, "SELECT count(*) FROM sqlite_schema WHERE name = 'resources'"); n != 0 || version() != 1 {
		t.Errorf("half migrated: version %d, %d tables of resources", version(), n)
	}
	for range 2 {
		db := open(t, o)
		if version() != 3 {
			t.Errorf("version %d", version())
		}
		if r := publish(t, db, p); r != (store.Result{Offset: 3, Epoch: "oldepoch.2", Replayed: true}) {
			t.Errorf("an old id: %+v", r)
		}
		if e := history(t, db, "a").Events; len(e) == 0 || e[0].Offset != 3 || string(e[0].Data) != `"old"` {
			t.Errorf("history %+v", e)
		}
		if r := operate(t, db, operation("a", "2", set("k", `1`))); r.Offset != 4 || state(t, db, "a") != "k 1 1" {
			t.Errorf("%+v, %s", r, state(t, db, "a"))
		}
		if a := await(t, start(db, operation("a", "1", set("k", `1`)))); !errors.Is(a.err, store.ErrIDReused) {
			t.Errorf("an old id for an operation: %v", a.err)
		}
		shut(t, db)
		if err := store.CheckIntegrity(t.Context(), o.Path); err != nil {
			t.Error(err)
		}
	}
}

// What was deleted in a file of the second version is deleted, and its version goes on.
func TestOldDeletedResources(t *testing.T) {
	t.Parallel()
	o := options(t)
	err := store.CreateOld(t.Context(), o.Path, 2, fmt.Sprintf(`
		INSERT INTO meta VALUES ('epoch', 'oldepoch'), ('open', ''), ('boot_id', '');
		INSERT INTO rooms VALUES (7, 'a', 0, 3, 1, %d);
		INSERT INTO resources VALUES (7, 'kept', 4, x'31'), (7, 'gone', 8, NULL)`, time.Now().UnixMilli()))
	if err != nil {
		t.Fatal(err)
	}
	db := open(t, o)
	if got := state(t, db, "a"); got != "kept 4 1" {
		t.Errorf("the room has %s", got)
	}
	operate(t, db, operation("a", "1", set("gone", `2`)))
	if got := state(t, db, "a"); got != "gone 9 2; kept 4 1" {
		t.Errorf("the room has %s", got)
	}
	operate(t, db, operation("a", "2", del("gone"), del("kept")))
	operate(t, db, operation("a", "3", create("kept", `3`)))
	if got := state(t, db, "a"); got != "kept 6 3" {
		t.Errorf("the room has %s", got)
	}
	shut(t, db)
	if n := count(t, o.Path, "SELECT count(*) FROM resources"); n != 1 {
		t.Errorf("%d rows of resources, want 1: lists must not step over what was deleted", n)
	}
	if n := count(t, o.Path, "SELECT version FROM deleted WHERE key = 'gone'"); n != 10 {
		t.Errorf("what was deleted has version %d, want 10", n)
	}
}
