package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hub/auth"
	"hub/hub"
	"hub/store"
)

func (p *program) check(ctx context.Context, args []string) error {
	flags := p.flags("check", "[-config FILE] [-print] [-integrity]")
	file := flags.String("config", "hub.toml", "configuration `file`")
	show := flags.Bool("print", false, "print the effective configuration, secrets masked")
	integrity := flags.Bool("integrity", false, "check the databases; a running server is asked to, through its admin listener")
	dataDir := flags.String("data", "", "with -integrity: check every database of this `directory`, without a configuration")
	adminURL := flags.String("admin-url", "", "with -integrity: `URL` of a running server's admin listener, if it is not as configured")
	rest, err := parseFlags(flags, args)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return misuse("check takes no arguments, got %q", rest[0])
	case *dataDir != "" && (given(flags, "config") || *show || !*integrity):
		return misuse("-data goes with -integrity alone")
	case *adminURL != "" && !*integrity:
		return misuse("-admin-url goes with -integrity")
	case *dataDir != "":
		return p.checkDatabases(ctx, *dataDir, nil, func() (*adminClient, error) {
			o, err := adminOptions("", *dataDir)
			if err != nil {
				return nil, errors.New("stop it first, or give its -config")
			}
			return newAdminClient(&o, *adminURL)
		})
	}
	c, err := loadServerConfig(*file)
	if err != nil {
		return err
	}
	for _, w := range c.warnings {
		fmt.Fprintf(p.stderr, "%s: warning: %s\n", *file, w)
	}
	if err := p.checkKeySet(ctx, c); err != nil {
		return err
	}
	if w := store.CheckFilesystem(c.options.Server.DataDir); w != "" {
		fmt.Fprintf(p.stderr, "%s: warning: server.data_dir: %s\n", *file, w)
	}
	if *show {
		text, err := encodeConfig(c.options)
		if err != nil {
			return err
		}
		if _, err := p.stdout.Write(text); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(p.stdout, "%s: ok\n", *file)
	}
	if *integrity {
		return p.checkDatabases(ctx, c.options.Server.DataDir, c.options.Database.Names, func() (*adminClient, error) {
			return newAdminClient(&c.options, *adminURL)
		})
	}
	return nil
}

// checkKeySet looks at auth.jwks as a server does when it starts: a file must be good,
// and of an address that does not answer a warning tells.
func (p *program) checkKeySet(ctx context.Context, c *config) error {
	if c.options.Auth.JWKS == "" {
		return nil
	}
	source, err := auth.Open(ctx, c.options.Auth, slog.New(slog.NewTextHandler(p.stderr, nil)))
	if err != nil {
		return c.blame(err)
	}
	source.Close()
	return nil
}

// checkDatabases checks the databases of a directory, among which those with these
// names may be missing yet. Nothing in them is changed. A server that uses them is
// asked to do it, through what admin returns.
func (p *program) checkDatabases(ctx context.Context, dir string, names []string, admin func() (*adminClient, error)) error {
	lock, err := lockExisting(dir)
	if errors.Is(err, store.ErrLocked) {
		a, err := admin()
		if err == nil {
			err = p.checkLive(ctx, a)
		}
		if err != nil {
			return fmt.Errorf("check databases: a server is running in %s: %w", dir, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("check databases: %w", err)
	}
	return errors.Join(p.checkStopped(ctx, dir, names), lock.Close())
}

// lockExisting takes the lock of a data directory, which it does not make.
func lockExisting(dir string) (io.Closer, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	return store.LockDir(dir)
}

// checkStopped checks the databases with these names and all others that the directory
// has: some may have been created while running.
func (p *program) checkStopped(ctx context.Context, dir string, names []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("check databases: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".db")
		if ok && hub.ValidDatabase(name) == nil && !slices.Contains(names, name) {
			names = append(slices.Clip(names), name)
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("check databases: %w", err)
	}
	var found findings
	for _, name := range names {
		path := filepath.Join(dir, name+".db")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(p.stdout, "%s: not there yet\n", path)
			continue
		}
		found.add(p, path+": ok", store.CheckIntegrity(ctx, filepath.Join(abs, name+".db")))
	}
	return found.err()
}

// checkLive has a running server check its databases, one after the other.
func (p *program) checkLive(ctx context.Context, admin *adminClient) error {
	var all struct {
		Databases []struct{ Name string }
	}
	if err := admin.do(ctx, http.MethodGet, "databases", nil, &all); err != nil {
		return err
	}
	var found findings
	for _, db := range all.Databases {
		var result struct {
			OK      bool
			Finding string
		}
		err := admin.do(ctx, http.MethodPost, "databases/"+url.PathEscape(db.Name)+"/integrity", nil, &result)
		if err == nil && !result.OK {
			err = errors.New(result.Finding)
		}
		found.add(p, db.Name+": ok, in use", err)
	}
	return found.err()
}

// findings counts the databases that were checked, and those with which something is
// wrong.
type findings struct{ checked, wrong int }

// add prints what was found of one.
func (f *findings) add(p *program, fine string, err error) {
	f.checked++
	if err != nil {
		f.wrong++
		fmt.Fprintln(p.stderr, err)
		return
	}
	fmt.Fprintln(p.stdout, fine)
}

func (f *findings) err() error {
	if f.wrong > 0 {
		return fmt.Errorf("%d of %d databases are not sound", f.wrong, f.checked)
	}
	return nil
}
