// Hub is a server for authenticated rooms with durable events, speaking the
// Centrifuge client protocol. README.md is the manual; `hub help` lists the
// commands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Exit codes of the program.
const (
	exitOK     = 0 // done
	exitFailed = 1 // it was asked for correctly and did not work
	exitMisuse = 2 // the command line makes no sense
)

// defaultDatabase is the database of routes that name none.
const defaultDatabase = "default"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal ends the context; a second one kills, unless it is the same
	// again: timeout(1) tells the process and its group.
	context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, stop) })
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// program is what a command may touch of the world.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// command is one word after `hub`.
type command struct {
	name    string
	summary string
	run     func(p *program, ctx context.Context, args []string) error
}

func commands() []command {
	return []command{
		{"serve", "run the server; without -config for development on this machine", (*program).serve},
		{"init", "write a hub.toml with fresh secrets", (*program).init},
		{"loadtest", "prove on this machine what the server promises", (*program).loadtest},
		{"token", "mint a token, or inspect one", (*program).token},
		{"publish", "publish to a room through the server API", (*program).publish},
		{"subscribe", "follow rooms, one line per publication", (*program).subscribe},
		{"check", "check a configuration, and the integrity of databases", (*program).check},
		{"backup", "copy a database, while the server runs or not", (*program).backup},
		{"version", "print the version", (*program).version},
	}
}

// run carries out one command line and returns the exit code. It returns soon
// after ctx ends.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{stdin: stdin, stdout: stdout, stderr: stderr}
	if len(args) == 0 {
		p.usage(stderr)
		return exitMisuse
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		p.usage(stdout)
		return exitOK
	case "-version", "--version":
		args[0] = "version"
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return p.exit(c.run(p, ctx, args[1:]))
		}
	}
	return p.exit(misuse("unknown command %q; `hub help` lists them", args[0]))
}

func (p *program) usage(w io.Writer) {
	fmt.Fprintln(w, "usage: hub COMMAND [flags]")
	fmt.Fprintln(w)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.summary)
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "`hub COMMAND -h` prints the flags of a command.")
}

// exit tells the outcome of a command and returns its exit code.
func (p *program) exit(err error) int {
	var config *configError
	var wrong *misuseError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &wrong):
		if wrong.text != "" {
			fmt.Fprintf(p.stderr, "hub: %s\n", wrong.text)
		}
		return exitMisuse
	case errors.As(err, &config):
		fmt.Fprintln(p.stderr, config) // already begins with the file's name
		return exitFailed
	}
	fmt.Fprintf(p.stderr, "hub: %v\n", err)
	return exitFailed
}

// misuseError is a command line that makes no sense. An empty text was already
// told by package flag.
type misuseError struct{ text string }

func (e *misuseError) Error() string { return e.text }

func misuse(format string, args ...any) error {
	return &misuseError{text: fmt.Sprintf(format, args...)}
}

// flags returns the flag set of a command; arguments is the usage line after
// the command's name.
func (p *program) flags(name, arguments string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(p.stderr)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "usage: hub %s %s\n", name, arguments)
		fs.PrintDefaults()
	}
	return fs
}

// parseFlags parses args and returns what is not a flag. Flags may stand before,
// between and after the other arguments; behind "--" nothing is a flag.
func parseFlags(fs *flag.FlagSet, args []string) ([]string, error) {
	var rest []string
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, misuse("")
		}
		left := fs.Args()
		if len(left) == 0 {
			return rest, nil
		}
		if parsed := len(args) - len(left); parsed > 0 && args[parsed-1] == "--" {
			return append(rest, left...), nil
		}
		rest = append(rest, left[0])
		args = left[1:]
	}
}

// given reports whether the command line named the flag.
func given(fs *flag.FlagSet, name string) bool {
	found := false
	fs.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}
