package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// update has tests write what they hold.
var update = flag.Bool("update", false, "write generated files anew")

// hubJS is the client that the server has for browsers.
const hubJS = "hub/web/hubjs/hub.js"

// hubJSSettings are lines of the configuration: a namespace with shared state.
const hubJSSettings = `ping_interval = "1s"
pong_timeout = "900ms"
[namespace.game]
subscribe = "user"
publish = "user"
operate = "user"
history = "user"
presence_info = "user"
presence = true
join_leave = true
`

// TestHubJS runs hub.js in Node: everything that it does, over a line that is cut,
// falls silent and ends within messages, and over restarts of the server.
func TestHubJS(t *testing.T) { runHubJS(t) }

// TestHubJSTime runs it with a clock, a network and a server of the test's own: minutes
// without network, and messages that cross.
func TestHubJSTime(t *testing.T) {
	nodePackages(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "node", "--no-warnings", filepath.Join("testdata/js", "hubjs_time.mjs")).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// TestHubJSFaults has random faults, and kills of the server, between it and busy
// clients: in the end each has the server's state, and no event was missed or doubled.
func TestHubJSFaults(t *testing.T) {
	sequences := 1000
	if testing.Short() || raceDetector {
		sequences = 200
	}
	runHubJS(t, fmt.Sprint(sequences))
}

// TestHubJSInBrowser runs it in Chromium, from the server.
func TestHubJSInBrowser(t *testing.T) {
	t.Parallel()
	s := startSDKServer(t, hubJSSettings)
	runInBrowser(t, "hubjs_browser.cjs", "http://"+s.addr, "http://"+s.admin, sdkAdminKey, time.Minute)
	s.healthy()
}

// runHubJS runs testdata/js/hubjs.mjs. It restarts the server when the script asks.
func runHubJS(t *testing.T, args ...string) {
	t.Helper()
	nodePackages(t)
	t.Parallel()
	s := startSDKServer(t, hubJSSettings)
	_, port, _ := strings.Cut(s.addr, ":")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := nodeCommand(ctx, t, object{"url": s.url(""), "port": port, "admin": "http://" + s.admin, "adminKey": sdkAdminKey, "key": sdkAPIKey, "secret": sdkSecret},
		"hubjs.mjs", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, stdout := startPiped(t, cmd)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		switch lines.Text() {
		case "restart":
			s.stop()
			s.start()
		case "kill":
			s.kill()
			s.start()
		default:
			t.Log(lines.Text())
			continue
		}
		if _, err := io.WriteString(stdin, "done\n"); err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	t.Logf("%s", &stderr)
	s.healthy()
}

// TestHubJSTypes has the TypeScript compiler check hub.js by its comments, and holds
// hub.d.ts to be what it makes of them.
func TestHubJSTypes(t *testing.T) {
	modules := nodePackages(t)
	dir := t.TempDir()
	tsc := exec.Command(filepath.Join(modules, ".bin", "tsc"), "--checkJs", "--allowJs", "--strict", "--target", "es2022", "--module", "nodenext",
		"--lib", "es2022,dom", "--types", "", "--declaration", "--emitDeclarationOnly", "--outDir", dir, hubJS)
	if out, err := tsc.CombinedOutput(); err != nil {
		t.Fatalf("tsc: %v\n%s", err, out)
	}
	made, err := os.ReadFile(filepath.Join(dir, "hub.d.ts"))
	if err != nil {
		t.Fatal(err)
	}
	want := append([]byte("// Generated from hub.js by tsc; go test . -run TestHubJSTypes -update makes it anew.\n"), made...)
	const file = "hub/web/hubjs/hub.d.ts"
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not up to date (%v): run this test with -update", file, err)
	}
}

// TestHubJSSize holds its size in minified form.
func TestHubJSSize(t *testing.T) {
	modules := nodePackages(t)
	const most = 14 << 10
	out, err := exec.Command(filepath.Join(modules, ".bin", "esbuild"), "--minify", "--format=esm", hubJS).Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("minified: %d bytes", len(out))
	if len(out) == 0 || len(out) > most {
		t.Errorf("%d bytes minified, at most %d", len(out), most)
	}
}
