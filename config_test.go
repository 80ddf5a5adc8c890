package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hub/hub"
)

const exampleFile = "config.example.toml"

// TestExampleIsTheDefaults decodes the example and compares it with what a
// server does without any file; the secrets have no default.
func TestExampleIsTheDefaults(t *testing.T) {
	for _, name := range []string{"HUB_SECRET", "HUB_API_KEY", "HUB_ADMIN_KEY"} {
		t.Setenv(name, newSecret())
	}
	c, err := loadConfig(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	got := c.options
	for key, secret := range secrets(&got) {
		if *secret == "" {
			t.Errorf("%s is not set in %s", key, exampleFile)
		}
		*secret = ""
	}
	want := hub.DefaultOptions()
	want.Version = version
	want.Namespaces = map[string]hub.Namespace{"default": hub.DefaultNamespace()}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s differs from the defaults:\n got %+v\nwant %+v", exampleFile, got, want)
	}
}

func TestExampleHoldsEveryKey(t *testing.T) {
	text, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	top, err := parseTOML(string(text))
	if err != nil {
		t.Fatal(err)
	}
	keys := optionKeys(reflect.TypeFor[hub.Options](), nil)
	if len(keys) < 50 {
		t.Fatalf("%d keys found in hub.Options, want all of them", len(keys))
	}
	for _, key := range keys {
		path := strings.Replace(strings.Join(key, "."), "namespace.NAME", "namespace.default", 1)
		if e := top.find(path); e.key.String() != path {
			t.Errorf("%s lacks %s", exampleFile, path)
		}
	}
}

// TestEncodeConfigRoundTrip reads what `check -print` wrote.
func TestEncodeConfigRoundTrip(t *testing.T) {
	o := hub.DefaultOptions()
	o.Namespaces = map[string]hub.Namespace{"chat": hub.DefaultNamespace()}
	o.Auth.HMACSecret, o.API.Key, o.Admin.Key = newSecret(), newSecret(), newSecret()
	o.Auth.PreviousSecrets = []string{newSecret(), newSecret()}
	text, err := encodeConfig(o)
	if err != nil {
		t.Fatal(err)
	}
	for key, secret := range secrets(&o) {
		if strings.Contains(string(text), *secret) {
			t.Errorf("%s is printed", key)
		}
		*secret = "********"
	}
	top, err := parseTOML(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var d decoder
	var got hub.Options
	d.table(top, reflect.ValueOf(&got).Elem())
	if len(d.problems) > 0 || !reflect.DeepEqual(got, o) {
		t.Errorf("decoded again: problems %v\n got %+v\nwant %+v", d.problems, got, o)
	}
}

func TestCheckDataDir(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir string
		ok        bool
	}{
		{"there", dir, true},
		{"to be made", filepath.Join(dir, "a", "b"), true},
		{"a file", file, false},
		{"below a file", filepath.Join(file, "a"), false},
	} {
		if err := checkDataDir(c.dir); (err == nil) != c.ok {
			t.Errorf("%s: got %v, want ok %v", c.name, err, c.ok)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCheckDataDirReadOnly(t *testing.T) {
	if os.Getuid() <= 0 {
		t.Skip("permissions do not bind this user")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := checkDataDir(filepath.Join(dir, "data")); err == nil {
		t.Error("a directory without write permission passes")
	}
}

func TestParseFlags(t *testing.T) {
	for _, c := range []struct {
		args, rest string
		json       bool
	}{
		{"a b", "a b", false},
		{"--json a b", "a b", true},
		{"a -json b", "a b", true},
		{"a b -json", "a b", true},
		{"a -- -json", "a -json", false},
		{"a -", "a -", false},
	} {
		p := &program{stderr: new(strings.Builder)}
		fs := p.flags("x", "")
		asJSON := fs.Bool("json", false, "")
		rest, err := parseFlags(fs, strings.Fields(c.args))
		if err != nil || !slices.Equal(rest, strings.Fields(c.rest)) || *asJSON != c.json {
			t.Errorf("%q: got %q, json %v, %v; want %q, json %v", c.args, rest, *asJSON, err, c.rest, c.json)
		}
	}
}

// FuzzConfig: no file makes the reader panic, and none is accepted that
// Validate would refuse.
func FuzzConfig(f *testing.F) {
	example, err := os.ReadFile(exampleFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	f.Add(configTemplate)
	f.Add("[namespace.chat]\ndurable = 1\n[[limits]]\n\"a.b\" = {c = [1, {}]}\n'' = ''")
	f.Add("limits.messages.burst = 1\nnamespace = {x = {}}")
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ReplaceAll(text[:min(len(text), 16<<10)], "file:", "path:") // not this machine's files
		top, err := parseTOML(text)
		if err != nil {
			_ = syntaxProblem(err)
			return
		}
		o := hub.DefaultOptions()
		var d decoder
		d.table(top, reflect.ValueOf(&o).Elem())
		d.validate(top, &o)
		if err := o.Validate(); err != nil && len(d.problems) == 0 {
			t.Errorf("no problem found, yet Validate says: %v", err)
		}
	})
}
