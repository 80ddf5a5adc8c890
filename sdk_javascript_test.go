package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// js is a Node process that prints lines of JSON.
type js struct {
	stdin io.WriteCloser
	lines chan json.RawMessage // closed at the end of the output
}

// startJS runs a script of testdata/js against a server at addr; the process
// ends with the test.
func startJS(t *testing.T, addr, api, protocol, script string, args ...string) *js {
	t.Helper()
	cmd := nodeCommand(context.Background(), t, object{ // the cleanup ends it
		"url": sdkURL(addr, ""), "api": "http://" + api + "/api", "protocol": protocol,
		"secret": sdkSecret, "key": sdkAPIKey,
	}, script, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, stdout := startPiped(t, cmd)
	p := &js{stdin: stdin, lines: make(chan json.RawMessage, 1<<20)}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(p.lines)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.lines <- bytes.Clone(lines.Bytes())
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		reading.Wait()
		_ = cmd.Wait()
		if stderr.Len() > 0 {
			t.Logf("node %s (%s): %s", script, protocol, &stderr)
		}
	})
	return p
}

// nodeCommand is node with a script of testdata/js, which finds its packages, and env
// as JSON in the environment variable HUB_TEST.
func nodeCommand(ctx context.Context, t *testing.T, env object, script string, args ...string) *exec.Cmd {
	t.Helper()
	modules := nodePackages(t)
	text, err := json.Marshal(env)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "node", append([]string{filepath.Join("testdata/js", script)}, args...)...)
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules, "HUB_TEST="+string(text))
	return cmd
}

// startPiped starts a process to talk to.
func startPiped(t *testing.T, cmd *exec.Cmd) (stdin io.WriteCloser, stdout io.Reader) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if stdout, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return stdin, stdout
}

// nodePackages returns a directory with the packages of testdata/js/package.json
// installed, or skips the test where that is impossible; in CI it never is.
func nodePackages(t *testing.T) string {
	t.Helper()
	dir, err := installedNodePackages()
	switch {
	case err == nil:
		return dir
	case os.Getenv("CI") == "true":
		t.Fatalf("the JavaScript clients cannot run: %v", err)
	default:
		t.Skipf("the JavaScript clients cannot run: %v", err)
	}
	panic("unreachable")
}

var installedNodePackages = sync.OnceValues(installNodePackages)

// installNodePackages installs the packages once per user and version of
// package.json, unless the environment says where they are.
func installNodePackages() (string, error) {
	if dir := os.Getenv(nodeModules); dir != "" {
		return dir, nil
	}
	for _, command := range []string{"node", "npm"} {
		if _, err := exec.LookPath(command); err != nil {
			return "", err
		}
	}
	manifest, err := os.ReadFile("testdata/js/package.json")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, fmt.Sprintf("hub-test-js-%x", sha256.Sum256(manifest)))
	modules := filepath.Join(dir, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules, nil
	}
	fresh, err := os.MkdirTemp(cache, "hub-test-js-new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	if err := os.WriteFile(filepath.Join(fresh, "package.json"), manifest, 0o600); err != nil {
		return "", err
	}
	npm := exec.Command("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
	npm.Dir = fresh
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install: %w\n%s", err, out)
	}
	// Of two test processes that install at once, one wins.
	if err := os.Rename(fresh, dir); err != nil {
		if _, found := os.Stat(modules); found != nil {
			return "", errors.Join(err, found)
		}
	}
	return modules, nil
}

// TestJavaScriptSDK runs the unmodified centrifuge-js, JSON and Protobuf build,
// through the scenarios of testdata/js/scenarios.cjs.
func TestJavaScriptSDK(t *testing.T) {
	nodePackages(t)
	s := startSDKServer(t)
	t.Run("scenarios", func(t *testing.T) {
		forProtocols(t, func(t *testing.T, protocol string) {
			t.Parallel()
			p := startJS(t, s.addr, s.addr, protocol, "scenarios.cjs")
			ran := 0
			for {
				var line struct {
					Scenario, Error string
					Done            int
				}
				if err := json.Unmarshal(receive(t, p.lines, "line of the script"), &line); err != nil {
					t.Fatalf("the script ended early: %v", err)
				}
				if line.Done > 0 {
					if ran != line.Done {
						t.Errorf("%d of %d scenarios ran", ran, line.Done)
					}
					return
				}
				ran++
				t.Run(line.Scenario, func(t *testing.T) {
					if line.Error != "" {
						t.Error(line.Error)
					}
				})
			}
		})
	})
	s.healthy()
}
