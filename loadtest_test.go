package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hub/loadtest/report"
)

// hubProgram makes this binary the program of its users: the name decides, also
// in the processes that it starts itself.
func hubProgram(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hub")
	if os.Link(self, path) == nil {
		return path
	}
	from, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLoadtest is a short run of the whole program: it passes, and leaves nothing
// but its report.
func TestLoadtest(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command(hubProgram(t), "loadtest", "--conns", "500", "--rooms", "20", "--rounds", "2", "--gap", "0s", "--hold", "0s",
		"--reconnects", "20", "--dir", dir, "--json", file)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r report.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Checks {
		if c.Result != report.Passed {
			t.Errorf("%s: %s (%s)", c.Name, c.Result, c.Detail)
		}
	}
	if n := len(r.Checks); n < 13 {
		t.Errorf("%d checks, want at least 13", n)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files left: %v %v", left, err)
	}
}

// TestLoadtestInterrupted: Ctrl-C ends the server too, and its files are gone.
func TestLoadtestInterrupted(t *testing.T) {
	dir := t.TempDir()
	var out, progress sharedBuffer
	cmd := exec.Command(hubProgram(t), "loadtest", "--conns", "50", "--rooms", "5", "--rounds", "1", "--hold", "5m", "--dir", dir)
	cmd.Stdout, cmd.Stderr = &out, &progress
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.After(patience)
	for !strings.Contains(progress.String(), "hold") {
		select {
		case <-time.After(10 * time.Millisecond):
		case err := <-ended:
			t.Fatalf("ended (%v)\n%s%s", err, progress.String(), out.String())
		case <-deadline:
			_ = cmd.Process.Kill()
			t.Fatalf("no hold in %q", progress.String())
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		t.Fatal("does not end")
	}
	if code := cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	if !strings.Contains(out.String(), "INCOMPLETE") {
		t.Errorf("the table does not say that it is incomplete:\n%s", out.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files left: %v %v", left, err)
	}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && bytes.Contains(text, []byte(dir)) {
			t.Errorf("process left: %s %q", f, text)
		}
	}
}

// TestLoadtestMisuse: what makes no sense is exit code 2, before anything starts.
func TestLoadtestMisuse(t *testing.T) {
	for _, args := range [][]string{{"-conns", "0"}, {"-scenario", "nothing"}, {"-url", "http://127.0.0.1:1"}, {"surplus"}, {"-tls=perhaps"}} {
		var out, complaint bytes.Buffer
		if code := run(t.Context(), append([]string{"loadtest"}, args...), strings.NewReader(""), &out, &complaint); code != exitMisuse || complaint.Len() == 0 {
			t.Errorf("%q: exit code %d, %q", args, code, complaint.String())
		}
	}
}

// sharedBuffer is what a process prints, readable meanwhile.
type sharedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *sharedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *sharedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
