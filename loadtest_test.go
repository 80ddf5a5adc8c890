package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A new build may take the place of a program that runs.
	if err := errors.Join(os.Remove(cmd.Path), cmd.Wait()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
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

// TestLoadtestInterrupted: whatever ends it, Ctrl-C in the middle of traffic or a
// terminal or pipe that is closed, the server ends too, and its files are gone.
func TestLoadtestInterrupted(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		end  func(cmd *exec.Cmd, progress *os.File) error
	}{
		"Ctrl-C while idle": {[]string{"--hold", "5m"}, func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Signal(syscall.SIGINT) }},
		"Ctrl-C in traffic": {[]string{"--duration", "5m"}, func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Signal(syscall.SIGINT) }},
		"timeout(1), twice": {[]string{"--hold", "5m"}, func(cmd *exec.Cmd, _ *os.File) error {
			first := cmd.Process.Signal(syscall.SIGTERM)
			time.Sleep(time.Millisecond) // or they are one
			return errors.Join(first, cmd.Process.Signal(syscall.SIGTERM))
		}},
		"a closed terminal":    {[]string{"--hold", "5m"}, func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Signal(syscall.SIGHUP) }},
		"progress not read on": {[]string{"--rounds", "1000"}, func(_ *exec.Cmd, progress *os.File) error { return progress.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			out, err := os.Create(filepath.Join(t.TempDir(), "out"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			progress, stderr, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer progress.Close()
			cmd := exec.Command(hubProgram(t), append([]string{"loadtest", "--conns", "50", "--rooms", "5", "--rounds", "1", "--dir", dir}, test.args...)...)
			cmd.Stdout, cmd.Stderr = out, stderr
			if err := errors.Join(cmd.Start(), stderr.Close()); err != nil {
				t.Fatal(err)
			}
			kill := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
			defer kill.Stop()
			seen, lines := "", bufio.NewReader(progress)
			for err := error(nil); err == nil && !strings.Contains(seen, "hold") && !strings.Contains(seen, "round") && !strings.Contains(seen, "events/s"); {
				var line string
				line, err = lines.ReadString('\n')
				seen += line
			}
			if err := test.end(cmd, progress); err != nil {
				t.Fatalf("%v after %q", err, seen)
			}
			rest := make(chan string, 1)
			go func() {
				text, _ := io.ReadAll(lines)
				rest <- string(text)
			}()
			_ = cmd.Wait()
			if said := <-rest; !strings.Contains(said, "stopping…\n") && name != "progress not read on" {
				t.Errorf("it does not say that it stops: %q", said)
			}
			text, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); code != exitFailed {
				t.Errorf("exit code %d, want %d", code, exitFailed)
			}
			if !bytes.Contains(text, []byte("INCOMPLETE")) || bytes.Contains(text, []byte("FAILED")) {
				t.Errorf("the table does not say that it is incomplete, and no more:\n%s", text)
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
		})
	}
}

// TestLoadtestMisuse: what makes no sense is exit code 2, before anything starts.
func TestLoadtestMisuse(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, args := range [][]string{
		{"-conns", "10", "-dir", missing}, {"-conns", "10", "-json", filepath.Join(missing, "report")}, {"-conns", "10", "-html", t.TempDir()},
		{"-conns", "0"}, {"-scenario", "nothing"}, {"-url", "http://127.0.0.1:1"}, {"surplus"}, {"-tls=perhaps"},
	} {
		var out, complaint bytes.Buffer
		if code := run(t.Context(), append([]string{"loadtest"}, args...), strings.NewReader(""), &out, &complaint); code != exitMisuse || complaint.Len() == 0 {
			t.Errorf("%q: exit code %d, %q", args, code, complaint.String())
		}
	}
}

// TestTableWidth: COLUMNS decides, then the terminal; neither makes lines too long
// to read.
func TestTableWidth(t *testing.T) {
	for _, test := range []struct {
		columns  string
		terminal int
		want     int
	}{
		{"", 0, 0}, {"", 120, 120}, {"90", 120, 90}, {"90", 0, 90}, {"400", 0, 160}, {"", 500, 160}, {"-3", 120, 120}, {"wide", 80, 80}, {"0", 0, 0},
	} {
		if got := tableWidth(test.columns, test.terminal); got != test.want {
			t.Errorf("COLUMNS=%q on a terminal of %d: %d, want %d", test.columns, test.terminal, got, test.want)
		}
	}
}
