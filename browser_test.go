package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// screenshots is the environment variable of a folder that keeps the pictures of the
// browser tests; without it they go with the test.
const screenshots = "HUB_TEST_SCREENSHOTS"

// chromium returns the browser of the tests, or skips the test where there is none;
// in CI there must be one.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("no Chromium is installed")
	}
	t.Skip("no Chromium is installed")
	return ""
}

// runInBrowser runs a script of testdata/js, which drives Chromium by browser.cjs,
// and fails with what it complains of. url and admin are http addresses.
func runInBrowser(t *testing.T, script, url, admin, adminKey string, limit time.Duration) {
	t.Helper()
	browser := chromium(t)
	shots := os.Getenv(screenshots)
	if shots == "" {
		shots = t.TempDir()
	} else if err := os.MkdirAll(shots, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := nodeCommand(ctx, t, object{
		"url": url, "admin": admin, "adminKey": adminKey, "apiKey": sdkAPIKey, "secret": sdkSecret,
		"shots": shots, "chromium": browser,
	}, script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, &out)
	}
	t.Logf("%s", &out)
}
