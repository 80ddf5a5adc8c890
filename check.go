package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"hub/hub"
	"hub/store"
)

func (p *program) check(ctx context.Context, args []string) error {
	flags := p.flags("check", "[-config FILE] [-print] [-integrity]")
	file := flags.String("config", "hub.toml", "configuration `file`")
	show := flags.Bool("print", false, "print the effective configuration, secrets masked")
	integrity := flags.Bool("integrity", false, "check the databases of a stopped server")
	dataDir := flags.String("data", "", "with -integrity: check every database of this `directory`, without a configuration")
	rest, err := parseFlags(flags, args)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return misuse("check takes no arguments, got %q", rest[0])
	case *dataDir != "" && (given(flags, "config") || *show || !*integrity):
		return misuse("-data goes with -integrity alone")
	case *dataDir != "":
		return p.checkDatabases(ctx, *dataDir, nil)
	}
	c, err := loadServerConfig(*file)
	if err != nil {
		return err
	}
	for _, w := range c.warnings {
		fmt.Fprintf(p.stderr, "%s: warning: %s\n", *file, w)
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
		return p.checkDatabases(ctx, c.options.Server.DataDir, c.options.Database.Names)
	}
	return nil
}

// checkDatabases checks the named databases of a directory, or all it has. They
// must not be in use; nothing in them is changed.
func (p *program) checkDatabases(ctx context.Context, dir string, names []string) error {
	abs, err := filepath.Abs(dir)
	if err == nil {
		_, err = os.Stat(abs)
	}
	if err != nil {
		return fmt.Errorf("check databases: %w", err)
	}
	lock, err := store.LockDir(dir)
	if errors.Is(err, store.ErrLocked) {
		return fmt.Errorf("check databases: a server is running in %s; stop it first", dir)
	}
	if err != nil {
		return fmt.Errorf("check databases: %w", err)
	}
	defer lock.Close()
	if names == nil {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("check databases: %w", err)
		}
		for _, e := range entries {
			if name, ok := strings.CutSuffix(e.Name(), ".db"); ok && hub.ValidDatabase(name) == nil {
				names = append(names, name)
			}
		}
	}
	damaged := 0
	for _, name := range names {
		path := filepath.Join(dir, name+".db")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(p.stdout, "%s: not there yet\n", path)
			continue
		}
		if err := store.CheckIntegrity(ctx, filepath.Join(abs, name+".db")); err != nil {
			fmt.Fprintln(p.stderr, err)
			damaged++
			continue
		}
		fmt.Fprintf(p.stdout, "%s: ok\n", path)
	}
	if damaged > 0 {
		return fmt.Errorf("%d of %d databases are damaged", damaged, len(names))
	}
	return nil
}
