package main

import (
	"testing"
	"time"
)

// TestConsole goes through the console in Chromium.
func TestConsole(t *testing.T) {
	t.Parallel()
	s := startSDKServer(t, hubJSSettings)
	runInBrowser(t, "console.cjs", "http://"+s.addr, "http://"+s.admin, sdkAdminKey, 3*time.Minute)
	s.healthy()
}
