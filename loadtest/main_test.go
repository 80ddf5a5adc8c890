package loadtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"hub/hub"
)

const (
	// deathCry is in the log of a test's server that gets SIGALRM, which ends it.
	deathCry = "the disk is on fire"
	// Environment variables of a test's server.
	//
	// badStop makes it end with another exit code than 0 when it is asked to end.
	badStop = "HUB_TEST_BAD_STOP"
	// maxFile limits the size of its files, in bytes: a disk that is full.
	maxFile = "HUB_TEST_MAX_FILE"
	// looseLimits raises its bursts by a tenth.
	looseLimits = "HUB_TEST_LOOSE_LIMITS"
)

// TestMain plays the program too: Options.Program of a test is this binary. It
// fails when the tests leave goroutines.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "serve" || os.Args[1] == "loadtest") {
		if err := child(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	// Most of a test is waiting for processes.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	fuzzing := flag.Lookup("test.fuzz").Value.String() != "" // it leaves goroutines of its own
	code := m.Run()
	for deadline := time.Now().Add(10 * time.Second); code == 0 && !fuzzing && runtime.NumGoroutine() > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			fmt.Fprintf(os.Stderr, "leaked goroutines:\n%s\n", buf[:runtime.Stack(buf, true)])
			code = 1
		}
	}
	os.Exit(code)
}

// child is `hub serve -config FILE …` or `hub loadtest floor-writer ADDRESS N`.
func child(args []string) error {
	if args[0] == "loadtest" {
		n, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return ServeFloor(args[2], n, os.Stdin, os.Stdout)
	}
	alarm, hangup := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(alarm, syscall.SIGALRM)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		<-alarm
		fmt.Fprintln(os.Stderr, deathCry)
		os.Exit(3)
	}()
	if text := os.Getenv(maxFile); text != "" {
		if err := limitFiles(text); err != nil {
			return err
		}
	}
	o, err := childOptions(args[2])
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := os.MkdirAll(o.Server.DataDir, 0o700); err != nil {
		return err
	}
	s, err := hub.New(o, log)
	if err != nil {
		return err
	}
	log.Info("listening", "addr", s.Addr(), "admin_addr", s.AdminAddr())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		for range hangup {
			o, err := childOptions(args[2])
			if err == nil {
				_, err = s.Reload(ctx, o)
			}
			if err != nil {
				log.Error("configuration not reloaded", "problem", err)
			}
		}
	}()
	err = s.Run(ctx)
	if os.Getenv(badStop) != "" {
		err = errors.Join(err, errors.New("the checkpoint failed"))
	}
	return err
}

// childOptions reads a configuration as the program does, files with secrets too.
func childOptions(file string) (hub.Options, error) {
	o := hub.DefaultOptions()
	if _, err := toml.DecodeFile(file, &o); err != nil {
		return o, err
	}
	ns := hub.DefaultNamespace()
	ns.HistorySize, ns.Operate = o.Namespaces[ownNamespace].HistorySize, o.Namespaces[ownNamespace].Operate
	o.Namespaces[ownNamespace] = ns
	secrets := []*string{&o.Auth.HMACSecret, &o.Admin.Key}
	for i := range o.Auth.PreviousSecrets {
		secrets = append(secrets, &o.Auth.PreviousSecrets[i])
	}
	for _, secret := range secrets {
		text, err := os.ReadFile(strings.TrimPrefix(*secret, "file:"))
		if err != nil {
			return o, err
		}
		*secret = string(text)
	}
	if l := &o.Limits; os.Getenv(looseLimits) != "" {
		for _, r := range []*hub.Rate{&l.Read, &l.Mutation, &l.Handshake, &l.Database.Read, &l.Messages} {
			r.Burst += r.Burst / 10
		}
	}
	return o, nil
}
