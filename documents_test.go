package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"hub/hub"
)

// The README says what keeps its readers from losing something.
func TestReadmeWarns(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := strings.Join(strings.Fields(string(text)), " ")
	for what, words := range map[string]string{
		"not to copy files in use":       "Never copy the files of a running server",
		"how clients of one's own retry": "exponential back-off with full jitter",
		"that min is no protection":      "its own `min` prevents races, not cheating",
	} {
		if !strings.Contains(readme, words) {
			t.Errorf("the README does not say %s: %q", what, words)
		}
	}
}

// The unit file gives a server the time to stop and the descriptors that it needs.
func TestUnitFile(t *testing.T) {
	text, err := os.ReadFile("docs/hub.service")
	if err != nil {
		t.Fatal(err)
	}
	number := func(key string) int {
		m := regexp.MustCompile(`(?m)^` + key + `=(\d+)$`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s is not set", key)
		}
		n, _ := strconv.Atoi(string(m[1]))
		return n
	}
	o := hub.DefaultOptions()
	// After the window clients have four seconds to close, and queued writes their deadline.
	least := o.Server.DrainWindow + 4*time.Second + o.Database.WriteTimeout
	if stop := time.Duration(number("TimeoutStopSec")) * time.Second; stop < 2*least {
		t.Errorf("TimeoutStopSec is %v, stopping takes up to %v and the checkpoints", stop, least)
	}
	if n := number("LimitNOFILE"); n < o.Limits.Connections.Server {
		t.Errorf("LimitNOFILE is %d for up to %d connections", n, o.Limits.Connections.Server)
	}
	for _, line := range []string{"ExecReload=/bin/kill -HUP $MAINPID", "NoNewPrivileges=yes", "ProtectSystem=strict"} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}
