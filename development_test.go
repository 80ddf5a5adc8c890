package main

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// TestDevelopmentSecretsRace: servers started together agree on the secrets,
// and so does every later one.
func TestDevelopmentSecretsRace(t *testing.T) {
	dir := t.TempDir()
	const starts = 16
	got := make([]devSecrets, starts)
	errs := make([]error, starts)
	var wg sync.WaitGroup
	for i := range starts {
		wg.Go(func() { got[i], errs[i] = developmentSecrets(dir) })
	}
	wg.Wait()
	want, err := loadDevSecrets(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range starts {
		if errs[i] != nil || got[i] != want {
			t.Errorf("start %d: secrets differ from the stored ones, %v", i, errs[i])
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("left in the directory: %v, %v", files, err)
	}
	if info, err := files[0].Info(); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
}

func TestDevelopmentSecretsDamaged(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"", "{", "{}", `{"hmac_secret":"x"}`} {
		if err := os.WriteFile(secretsFile(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := developmentSecrets(dir); err == nil || s != (devSecrets{}) {
			t.Errorf("%q: got secrets, want an error", text)
		}
	}
}

func TestLoopback(t *testing.T) {
	for _, c := range []struct {
		listen string
		ok     bool
	}{
		{"127.0.0.1:8000", true},
		{"127.9.9.9:0", true},
		{"[::1]:80", true},
		{"localhost:65535", true},
		{"0.0.0.0:8000", false},
		{"[::]:8000", false},
		{":8000", false},
		{"192.168.1.1:8000", false},
		{"example.com:8000", false},
		{"127.0.0.1.example.com:8000", false},
		{"127.0.0.1", false},
		{"127.0.0.1:65536", false},
		{"127.0.0.1:-1", false},
		{"127.0.0.1:http", false},
	} {
		if _, _, err := loopback(c.listen); (err == nil) != c.ok {
			t.Errorf("%s: got %v, want ok %v", c.listen, err, c.ok)
		}
	}
}

func TestTypedAs(t *testing.T) {
	for _, c := range [][2]string{
		{"./hub", "./hub"},
		{"bin/hub", "bin/hub"},
		{"/usr/local/bin/hub", "hub"},
		{"/tmp/go-build123/b001/exe/hub", "go run ."},
	} {
		if got := typedAs(c[0]); got != c[1] {
			t.Errorf("%s: got %q, want %q", c[0], got, c[1])
		}
	}
}

func TestDevelopmentOptionsAreValid(t *testing.T) {
	o, err := developmentOptions("127.0.0.1:0", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	token, err := developmentToken(o)
	if err != nil {
		t.Fatal(err)
	}
	what, err := verifyToken(o.Auth, token)
	if err != nil || !strings.Contains(what, developmentUser) {
		t.Errorf("the banner's token: %q, %v", what, err)
	}
}
