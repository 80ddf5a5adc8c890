package loadtest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	if o := DefaultOptions(); o.Validate() != nil {
		t.Errorf("defaults: %v", o.Validate())
	}
	for want, change := range map[string]func(*Options){
		"-scenario must be one of rooms, delivery": func(o *Options) { o.Scenario = "nonsense" },
		"-conns must be from 1":                    func(o *Options) { o.Conns = 0 },
		"-rooms must be from 1 to -conns (10000)":  func(o *Options) { o.Rooms = 10_001 },
		"-events must be":                          func(o *Options) { o.Events = 0 },
		"-gap must not be negative":                func(o *Options) { o.Gap = -1 },
		"-size must be from 1":                     func(o *Options) { o.Size = 10 },
		"-sources 1 is too few: an address makes at most 10000 connections, so 20000 need 2": func(o *Options) { o.Sources, o.Conns = 1, 20_000 },
		"it cannot go with -scenario crash":                                                  func(o *Options) { o.Duration, o.Scenario = 1, "crash" },
		"it cannot go with -scenario all":                                                    func(o *Options) { o.Duration, o.Scenario = 1, "all" },
		"-scenario soak needs a -duration":                                                   func(o *Options) { o.Scenario = "soak" },
		"-json and -html must be two":                                                        func(o *Options) { o.JSON, o.HTML = "report", "report" },
		"give its -url":                                                                      func(o *Options) { o.Secret = "s" },
		"-url needs -secret":                                                                 func(o *Options) { o.URL = "http://127.0.0.1:8000" },
		"-url must be like":                                                                  func(o *Options) { o.URL, o.Secret = "ws://x", "s" },
		"-scenario crash controls":                                                           func(o *Options) { o.URL, o.Secret, o.Scenario = "http://x", "s", "crash" },
		"-databases must name":                                                               func(o *Options) { o.URL, o.Secret, o.Databases = "http://x", "s", nil },
		"-admin-url and -admin-key go ":                                                      func(o *Options) { o.URL, o.Secret, o.AdminKey = "http://x", "s", "k" },
	} {
		o := DefaultOptions()
		change(&o)
		if err := o.Validate(); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if _, err := Run(t.Context(), o, io.Discard, io.Discard); !errors.Is(err, ErrOptions) {
			t.Errorf("Run: %v", err)
		}
	}
}

// TestNoSuchServer: an address that makes no sense is no report of nothing.
func TestNoSuchServer(t *testing.T) {
	o := small("127.0.0.1:99999")
	if r, err := Run(t.Context(), o, io.Discard, io.Discard); !errors.Is(err, ErrFailed) {
		t.Errorf("report %v, error %v", r, err)
	}
}

// TestReportsStay: preflight leaves files alone.
func TestReportsStay(t *testing.T) {
	dir := t.TempDir()
	o := Options{JSON: filepath.Join(dir, "new"), HTML: filepath.Join(dir, "old")}
	if err := os.WriteFile(o.HTML, []byte("earlier"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.tryReports(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(o.HTML); string(text) != "earlier" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Stat(o.JSON); err == nil {
		t.Error("an empty report was left")
	}
}

// TestTooFewDescriptors: the run does not begin, and says what helps.
func TestTooFewDescriptors(t *testing.T) {
	limit, known := descriptorLimit()
	if !known || limit > 900_000 {
		t.Skip("descriptors are not limited")
	}
	o := DefaultOptions()
	o.Conns, o.Dir = int(limit)-spareDescriptors+1, t.TempDir()
	_, err := Run(t.Context(), o, io.Discard, io.Discard)
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "ulimit -Hn") {
		t.Errorf("got %v", err)
	}
}

// TestCrowdSize: -conns bounds scenario connect, and so do descriptors.
func TestCrowdSize(t *testing.T) {
	for _, test := range []struct {
		most        int
		descriptors int64
		want        int
	}{
		{0, 20_000, 20_000 - spareDescriptors},
		{0, 2_000_000, maxConnect},
		{500, 20_000, 500},
		{50_000, 20_000, 20_000 - spareDescriptors},
		{0, 0, 10_000},
		{500, 0, 500},
		{0, 10, 1},
	} {
		o := DefaultOptions()
		o.Most = test.most
		if got := crowdSize(&o, test.descriptors); got != test.want {
			t.Errorf("at most %d, %d descriptors: %d, want %d", test.most, test.descriptors, got, test.want)
		}
	}
}

func TestAddressesDoNotRepeat(t *testing.T) {
	a := newAddresses(7)
	seen := make(map[string]bool)
	for range 100_000 {
		ip := a.take()
		b := ip.As4()
		if seen[ip.String()] || b[0] != 127 || b[1] == 0 || b[1] == 127 || b[3] == 0 || b[3] == 255 {
			t.Fatalf("address %s", ip)
		}
		seen[ip.String()] = true
	}
}
