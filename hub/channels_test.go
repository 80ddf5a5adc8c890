package hub

import (
	"slices"
	"strings"
	"testing"

	"hub/hub/wire"
)

// A star of a pattern crosses slashes, and a slash of it is one.
func TestChannelsPattern(t *testing.T) {
	s := startServer(t, testOptions(t), nil)
	c := s.connect(t, wire.JSON, "u")
	for _, room := range []string{"live:a", "live:a/b", "live:a/b/c", "live:ab", "live:ä/b"} {
		c.ok(subscribeTo(room))
	}
	for pattern, want := range map[string]string{
		"":           "live:a live:a/b live:a/b/c live:ab live:ä/b",
		"live:*":     "live:a live:a/b live:a/b/c live:ab live:ä/b",
		"live:a/*":   "live:a/b live:a/b/c",
		"live:a/b":   "live:a/b",
		"live:a/*/c": "live:a/b/c",
		"live:a?b":   "live:a/b",
		"live:?/b":   "live:a/b live:ä/b",
		"*/c":        "live:a/b/c",
		"live:a/":    "",
		"open:*":     "",
	} {
		var got []string
		for room := range s.result(t, "channels", `{"pattern":"`+pattern+`"}`)["channels"].(map[string]any) {
			got = append(got, room)
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("pattern %q: %v, want %s", pattern, got, want)
		}
	}
}
