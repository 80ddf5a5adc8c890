package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"hub/hub"
)

func (p *program) serve(ctx context.Context, args []string) error {
	fs := p.flags("serve", "[-config hub.toml]")
	file := fs.String("config", "", "configuration `file`; without one the server is for development on this machine")
	listen := fs.String("listen", defaultListen, "`address` of the development server, loopback only")
	dataDir := fs.String("data", defaultDataDir, "data `directory` of the development server")
	level := fs.String("log-level", "info", "debug, info, warn or error")
	format := fs.String("log-format", "", "text or json; by default text on a terminal, else json")
	rest, err := parseFlags(fs, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return misuse("serve takes no arguments, got %q", rest[0])
	}
	log, err := newLogger(p.stderr, *level, *format)
	if err != nil {
		return err
	}
	hangups := make(chan os.Signal, 1) // before anything is open: without it the signal ends the process
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	if *file == "" {
		return p.serveDevelopment(ctx, log, *listen, *dataDir, hangups)
	}
	for name, key := range map[string]string{"listen": "server.listen", "data": "server.data_dir"} {
		if given(fs, name) {
			return misuse("-%s is for development; with -config set %s in the file", name, key)
		}
	}
	c, err := loadServerConfig(*file)
	if err != nil {
		return err
	}
	for _, w := range c.warnings {
		log.Warn("configuration", "file", *file, "warning", w)
	}
	s, err := start(c.options, log)
	if err != nil {
		return err
	}
	return runUntil(ctx, s, hangups, func(ctx context.Context) { reload(ctx, s, *file, log) })
}

// runUntil is s.Run that calls reload for each signal.
func runUntil(ctx context.Context, s *hub.Server, hangups <-chan os.Signal, reload func(context.Context)) error {
	waiting, stop := context.WithCancel(ctx)
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for {
			select {
			case <-waiting.Done():
				return
			case <-hangups:
				reload(waiting)
			}
		}
	})
	err := s.Run(ctx)
	stop()
	reloads.Wait()
	return err
}

// reload makes what a running server may change as the file says now, or tells in
// the log why nothing has changed.
func reload(ctx context.Context, s *hub.Server, file string, log *slog.Logger) {
	c, err := loadServerConfig(file)
	var restart []string
	if err == nil {
		if restart, err = s.Reload(ctx, c.options); err != nil {
			err = c.blame(err)
		}
	}
	if err != nil {
		problems := []string{err.Error()}
		if wrong := new(configError); errors.As(err, &wrong) {
			problems = wrong.lines()
		}
		for _, problem := range problems {
			log.Error("configuration not reloaded, nothing has changed", "file", file, "problem", problem)
		}
		return
	}
	for _, w := range c.warnings {
		log.Warn("configuration", "file", file, "warning", w)
	}
	if len(restart) > 0 {
		log.Warn("these settings need a restart and keep their old value", "file", file, "keys", strings.Join(restart, ", "))
	}
}

// start opens a server's databases and listeners; its Run serves and closes them.
func start(o hub.Options, log *slog.Logger) (*hub.Server, error) {
	if err := os.MkdirAll(o.Server.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	if os.Getenv("GOGC") == "" {
		// Most of the heap is idle connections, which a collection passes over
		// quickly: less headroom for garbage is a quarter less memory.
		debug.SetGCPercent(50)
	}
	s, err := hub.New(o, log)
	if err != nil {
		return nil, err
	}
	log.Info("listening", "addr", s.Addr(), "admin_addr", s.AdminAddr(), "version", o.Version)
	return s, nil
}

// newLogger returns the logger of a server. The empty format is text on a
// terminal and JSON elsewhere.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, misuse("-log-level must be debug, info, warn or error, got %q", level)
	}
	if format == "" {
		format = "json"
		if isTerminal(w) {
			format = "text"
		}
	}
	options := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, misuse("-log-format must be text or json, got %q", format)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// serveDevelopment runs a server that only this machine can reach.
func (p *program) serveDevelopment(ctx context.Context, log *slog.Logger, listen, dataDir string, hangups <-chan os.Signal) error {
	o, err := developmentOptions(listen, dataDir)
	if err != nil {
		return err
	}
	s, err := start(o, log)
	if err != nil {
		return err
	}
	token, err := developmentToken(o)
	if err != nil {
		return err
	}
	fmt.Fprint(p.stdout, banner(typedAs(os.Args[0]), s.Addr(), s.AdminAddr(), o, token))
	return runUntil(ctx, s, hangups, func(context.Context) {
		log.Warn("SIGHUP ignored: without -config there is no configuration to reload")
	})
}
