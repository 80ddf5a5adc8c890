package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
//	exits CODE COMMAND ARGS...   run, and require that exit code
//	spawn NAME COMMAND ARGS...   run beside the script; NAME.out and NAME.err are its output
//	await FILE PATTERN           wait until a spawned process has printed that
//	start NAME COMMAND ARGS...   spawn a server and await its addresses, $NAME_ADDR and $NAME_ADMIN
//	finish NAME                  wait for the end, and require exit code 0
//	hangup NAME                  SIGHUP
//	term NAME                    SIGTERM, then finish
//	crash NAME                   SIGKILL
//	certificate CERT KEY         make the files of a certificate of 127.0.0.1
//
// The condition [node] holds where the packages of testdata/js are installed.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  exits,
			"spawn":  spawn,
			"await":  await,
			"start":  startServer,
			"finish": finish,
			"hangup": hangup,
			"term":   term,
			"crash":  crash,

			"certificate": certificate,
		},
		Condition: condition,
		Setup: func(e *testscript.Env) error {
			js, err := filepath.Abs("testdata/js")
			if err != nil {
				return err
			}
			e.Setenv("JS", js)
			e.Setenv("NODE_PATH", os.Getenv(nodeModules))
			e.Values[processesKey{}] = make(map[string]*process)
			return nil
		},
	})
}

// nodeModules is the environment variable of a directory where the packages of
// testdata/js/package.json are installed; .ci/run sets it.
const nodeModules = "HUB_TEST_NODE_MODULES"

// condition answers [node]: the JavaScript clients can run. In CI they must.
func condition(name string) (bool, error) {
	if name != "node" {
		return false, fmt.Errorf("unknown condition %q", name)
	}
	if os.Getenv(nodeModules) == "" && os.Getenv("CI") == "true" {
		return false, fmt.Errorf("%s is not set", nodeModules)
	}
	return os.Getenv(nodeModules) != "", nil
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

// patience bounds every wait of a script on a slow machine.
const patience = 20 * time.Second

// process is a command of a script that runs beside it.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed after err is set
	err    error
}

type processesKey struct{}

// named returns the process that a command's only argument names.
func named(ts *testscript.TestScript, args []string) *process {
	p := ts.Value(processesKey{}).(map[string]*process)[strings.Join(args, " ")]
	if p == nil {
		ts.Fatalf("no process %q was started", args)
	}
	return p
}

func spawn(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: spawn NAME COMMAND ARGS...")
	}
	name := args[0]
	path, err := lookPath(ts, args[1])
	ts.Check(err)
	stdout, err := os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	stderr, err := os.Create(ts.MkAbs(name + ".err"))
	ts.Check(err)
	p := &process{cmd: exec.Command(path, args[2:]...), exited: make(chan struct{})}
	p.cmd.Dir = ts.MkAbs(".")
	p.cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "TMPDIR=" + ts.Getenv("TMPDIR")}
	p.cmd.Stdout, p.cmd.Stderr = stdout, stderr
	ts.Check(p.cmd.Start())
	go func() {
		defer close(p.exited)
		p.err = errors.Join(p.cmd.Wait(), stdout.Close(), stderr.Close())
	}()
	ts.Defer(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
	})
	ts.Value(processesKey{}).(map[string]*process)[name] = p
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

// waitFor returns the first match of pattern in what a process prints to a file.
func waitFor(ts *testscript.TestScript, file string, pattern *regexp.Regexp) []string {
	name, _, _ := strings.Cut(file, ".")
	p := named(ts, []string{name})
	deadline := time.After(patience)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		if match := pattern.FindStringSubmatch(ts.ReadFile(file)); match != nil {
			return match
		}
		select {
		case <-poll.C:
		case <-p.exited:
			if match := pattern.FindStringSubmatch(ts.ReadFile(file)); match != nil {
				return match
			}
			ts.Fatalf("%s ended (%v) without %s\n%s", name, p.err, pattern, ts.ReadFile(name+".err"))
		case <-deadline:
			ts.Fatalf("%s shows no %s within %v\n%s", file, pattern, patience, ts.ReadFile(name+".err"))
		}
	}
}

func await(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: await FILE PATTERN")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	waitFor(ts, args[0], pattern)
}

var listening = regexp.MustCompile(`"msg":"listening","addr":"([^"]+)","admin_addr":"([^"]*)"`)

func startServer(ts *testscript.TestScript, neg bool, args []string) {
	spawn(ts, neg, args)
	match := waitFor(ts, args[0]+".err", listening)
	ts.Setenv(args[0]+"_ADDR", match[1])
	ts.Setenv(args[0]+"_ADMIN", match[2])
}

func finish(ts *testscript.TestScript, _ bool, args []string) {
	p := named(ts, args)
	select {
	case <-p.exited:
		if p.err != nil {
			ts.Fatalf("%s: %v\n%s", args[0], p.err, ts.ReadFile(args[0]+".err"))
		}
	case <-time.After(patience):
		ts.Fatalf("%s still runs after %v\n%s", args[0], patience, ts.ReadFile(args[0]+".err"))
	}
}

func hangup(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(named(ts, args).cmd.Process.Signal(syscall.SIGHUP))
}

func term(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(named(ts, args).cmd.Process.Signal(syscall.SIGTERM))
	finish(ts, neg, args)
}

func crash(ts *testscript.TestScript, _ bool, args []string) {
	p := named(ts, args)
	ts.Check(p.cmd.Process.Kill())
	<-p.exited
}

func certificate(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: certificate CERT KEY")
	}
	ts.Check(makeCertificate(ts.MkAbs(args[0]), ts.MkAbs(args[1])))
}
