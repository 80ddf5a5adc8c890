package auth_test

import (
	"strings"
	"testing"

	"hub/auth"
)

// Case G16.
func TestOrigins(t *testing.T) {
	list := []string{
		"https://App.Example.com", "http://dev.example.com:3000", "https://*.Example.org", "https://*.ports.example:8443",
		"capacitor://localhost", "https://[2001:DB8::1]:444",
	}
	o, err := auth.ParseOrigins(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		origin, host string
		https, allow bool
	}{
		// the server's own host: host, port and scheme
		{"http://hub.example", "hub.example", false, true},
		{"http://hub.example:80", "hub.example", false, true},
		{"http://hub.example", "hub.example:80", false, true},
		{"https://hub.example", "hub.example:443", true, true},
		{"https://hub.example", "hub.example", true, true},
		{"HTTPS://HUB.example", "Hub.Example", true, true},
		{"http://hub.example:8000", "hub.example:8000", false, true},
		{"http://hub.example", "hub.example:8000", false, false},
		{"http://hub.example:8001", "hub.example:8000", false, false},
		{"https://hub.example", "hub.example", false, false},
		{"http://hub.example", "hub.example", true, false},
		{"http://hub.example:443", "hub.example", true, false},
		{"https://evil.example", "hub.example", true, false},
		{"https://hub.example.evil.example", "hub.example", true, false},
		{"https://evil-hub.example", "hub.example", true, false},
		{"http://[::1]:8000", "[0:0::1]:8000", false, true},
		{"http://127.0.0.1:8000", "127.0.0.1:8000", false, true},
		// the list
		{"https://app.example.com", "hub", true, true},
		{"https://APP.EXAMPLE.COM", "hub", true, true},
		{"https://app.example.com:443", "hub", true, true},
		{"https://app.example.com:444", "hub", true, false},
		{"http://app.example.com", "hub", true, false},
		{"http://app.example.com:443", "hub", true, false},
		{"https://x.app.example.com", "hub", true, false},
		{"https://app.example.com.evil.example", "hub", true, false},
		{"http://dev.example.com:3000", "hub", true, true},
		{"http://dev.example.com", "hub", true, false},
		{"https://a.example.org", "hub", true, true},
		{"https://a.b.example.org", "hub", true, true},
		{"https://example.org", "hub", true, false},
		{"https://.example.org", "hub", true, false},
		{"https://evilexample.org", "hub", true, false},
		{"https://a.example.org:8443", "hub", true, false},
		{"http://a.example.org", "hub", true, false},
		{"https://a.example.org.evil.example", "hub", true, false},
		{"https://*.example.org", "hub", true, false},
		{"https://a.ports.example:8443", "hub", true, true},
		{"https://a.ports.example", "hub", true, false},
		{"capacitor://localhost", "hub", true, true},
		{"capacitor://localhost:80", "hub", true, false},
		{"https://[2001:db8:0::1]:444", "hub", true, true},
		// no origin, or something else in its place
		{"", "hub", true, false},
		{"null", "hub", true, false},
		{"null", "null", true, false},
		{"NULL", "hub", true, false},
		{"https://", "", true, false},
		{"https://app.example.com/", "hub", true, false},
		{"https://app.example.com?x", "hub", true, false},
		{"https://user@app.example.com", "hub", true, false},
		{"https://evil.example@app.example.com", "hub", true, false},
		{"https://evil.example#app.example.com", "hub", true, false},
		{"https://app.example.com https://evil.example", "hub", true, false},
		{"https://app.example.com:", "hub", true, false},
		{"https://app.example.com:0443", "hub", true, false},
		{"https://app.example.com:70000", "hub", true, false},
		{"//app.example.com", "hub", true, false},
		{"app.example.com", "hub", true, false},
		{"https://app.example.com\n", "hub", true, false},
		// loopback only with the flag
		{"http://localhost:3000", "hub", false, false},
		{"http://127.0.0.1:3000", "hub", false, false},
	} {
		if got := o.Allow(tc.origin, tc.host, tc.https); got != tc.allow {
			t.Errorf("Allow(%q, %q, %v) = %v", tc.origin, tc.host, tc.https, got)
		}
	}
	if withNull, err := auth.ParseOrigins([]string{"null"}); err != nil || !withNull.Allow("null", "hub", true) || withNull.Allow("", "hub", true) {
		t.Errorf("null is listed, but not allowed (%v)", err)
	}
}

func TestLoopbackOrigins(t *testing.T) {
	o := auth.Origins{}.WithLoopback()
	for origin, allow := range map[string]bool{
		"http://localhost":              true,
		"http://LOCALHOST:3000":         true,
		"https://localhost:5173":        true,
		"http://127.0.0.1:3000":         true,
		"http://127.9.9.9":              true,
		"http://[::1]:3000":             true,
		"http://[::ffff:127.0.0.1]":     true,
		"http://128.0.0.1":              false,
		"http://[::2]":                  false,
		"http://localhost.evil.example": false,
		"http://127.0.0.1.evil.example": false,
		"http://evil.localhost":         false,
		"chrome-extension://localhost":  false,
		"null":                          false,
		"":                              false,
	} {
		if got := o.Allow(origin, "hub:8000", false); got != allow {
			t.Errorf("Allow(%q) = %v", origin, got)
		}
	}
}

func TestParseOriginsRefuses(t *testing.T) {
	for _, s := range []string{
		"", "*", "example.com", "https://", "https://*", "https://*.", "https://a.*.com", "https://a*.com", "https://*.*.com", "*://a.com",
		"https://a.com/", "https://a.com/path", "https://a.com:0", "https://a.com:99999", "https://a.com:0443", "https://a.com:*", "https://user@a.com",
		"https://bücher.example", "https://a.com ", "https://[::1", "https://::1", "https://*.[::1]", "1http://a.com", "Null",
	} {
		if _, err := auth.ParseOrigins([]string{"https://ok.example", s}); err == nil || !strings.Contains(err.Error(), "is not an origin") {
			t.Errorf("ParseOrigins(%q): got error %v", s, err)
		}
	}
}
