package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hub": main})
}

// TestScripts runs the whole program as its users do. Besides the commands of
// package testscript there are:
//
//	exits CODE hub ARGS...      run, and require that exit code
//	start NAME hub serve ARGS   start a server and wait until it listens; $NAME_ADDR
//	                            and $NAME_ADMIN are its addresses, NAME.out and
//	                            NAME.err what it printed
//	stop NAME                   SIGTERM, and require exit code 0
//	kill NAME                   SIGKILL
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			"start": startServer,
			"stop":  stopServer,
			"kill":  killServer,
		},
		Setup: func(e *testscript.Env) error {
			e.Values[serversKey{}] = make(map[string]*server)
			return nil
		},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("run %s: %v", args[1], err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// startTimeout and stopTimeout bound a server's start and stop on a slow machine.
const (
	startTimeout = 20 * time.Second
	stopTimeout  = 20 * time.Second
)

// server is a running `hub serve` of a script.
type server struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed after err is set
	err    error
}

type serversKey struct{}

func servers(ts *testscript.TestScript) map[string]*server {
	return ts.Value(serversKey{}).(map[string]*server)
}

func startServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME COMMAND ARGS...")
	}
	name := args[0]
	path, err := lookPath(ts, args[1])
	ts.Check(err)
	s := &server{cmd: exec.Command(path, args[2:]...), exited: make(chan struct{})}
	s.cmd.Dir = ts.MkAbs(".")
	s.cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "TMPDIR=" + ts.Getenv("TMPDIR")}
	stdout, err := os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	stderr, err := os.Create(ts.MkAbs(name + ".err"))
	ts.Check(err)
	log, logWriter, err := os.Pipe()
	ts.Check(err)
	s.cmd.Stdout, s.cmd.Stderr = stdout, logWriter
	ts.Check(s.cmd.Start())
	ts.Check(errors.Join(stdout.Close(), logWriter.Close()))
	listening := make(chan [2]string, 1)
	go func() {
		defer close(s.exited)
		findAddresses(io.TeeReader(log, stderr), listening)
		_ = log.Close()
		s.err = errors.Join(s.cmd.Wait(), stderr.Close())
	}()
	ts.Defer(func() {
		_ = s.cmd.Process.Kill()
		<-s.exited
	})
	servers(ts)[name] = s
	select {
	case addr := <-listening:
		ts.Setenv(name+"_ADDR", addr[0])
		ts.Setenv(name+"_ADMIN", addr[1])
	case <-s.exited:
		ts.Fatalf("%s ended: %v\n%s", name, s.err, ts.ReadFile(name+".err"))
	case <-time.After(startTimeout):
		ts.Fatalf("%s does not listen after %v\n%s", name, startTimeout, ts.ReadFile(name+".err"))
	}
}

// findAddresses reads a log to its end and sends the addresses it tells.
func findAddresses(log io.Reader, found chan<- [2]string) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var l struct {
			Msg   string `json:"msg"`
			Addr  string `json:"addr"`
			Admin string `json:"admin_addr"`
		}
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "listening" {
			found <- [2]string{l.Addr, l.Admin}
		}
	}
}

// lookPath finds a command in the script's own PATH.
func lookPath(ts *testscript.TestScript, command string) (string, error) {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		path := filepath.Join(dir, command)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

func stopServer(ts *testscript.TestScript, neg bool, args []string) {
	s := servers(ts)[strings.Join(args, " ")]
	if neg || s == nil {
		ts.Fatalf("usage: stop NAME")
	}
	ts.Check(s.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-s.exited:
		ts.Check(s.err)
	case <-time.After(stopTimeout):
		ts.Fatalf("%s still runs %v after SIGTERM", args[0], stopTimeout)
	}
}

func killServer(ts *testscript.TestScript, neg bool, args []string) {
	s := servers(ts)[strings.Join(args, " ")]
	if neg || s == nil {
		ts.Fatalf("usage: kill NAME")
	}
	ts.Check(s.cmd.Process.Kill())
	<-s.exited
}
