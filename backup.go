package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"hub/hub"
	"hub/store"
)

func (p *program) backup(ctx context.Context, args []string) error {
	flags := p.flags("backup", "[-config FILE] [-database NAME] [-o NAME]")
	file := flags.String("config", "hub.toml", "configuration `file`")
	dataDir := flags.String("data", "", "data `directory` of a development server, without a configuration")
	db := flags.String("database", defaultDatabase, "`name` of the database")
	name := flags.String("o", "", "`name` of the backup, a file of that name and .db in data_dir/backups; by default the database and the time")
	adminURL := flags.String("admin-url", "", "`URL` of a running server's admin listener, if it is not as configured")
	rest, err := parseFlags(flags, args)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return misuse("backup takes no arguments, got %q", rest[0])
	case *dataDir != "" && given(flags, "config"):
		return misuse("-data is for a server without -config")
	case *name == "":
		*name = hub.BackupName(*db, time.Now())
	}
	if err := errors.Join(hub.ValidDatabase(*db), hub.ValidBackup(*name)); err != nil {
		return misuse("%v", err)
	}
	o, err := adminOptions(*file, *dataDir)
	if err != nil {
		return err
	}
	lock, err := lockExisting(o.Server.DataDir)
	var path string
	switch {
	case errors.Is(err, store.ErrLocked):
		path, err = backupLive(ctx, &o, *adminURL, *db, *name)
	case err == nil:
		path, err = backupStopped(ctx, &o, *db, *name)
		err = errors.Join(err, lock.Close())
	}
	if err != nil {
		return fmt.Errorf("back up database %s: %w", *db, err)
	}
	fmt.Fprintln(p.stdout, path)
	return nil
}

// adminOptions are those of a server whose data directory or admin API is used: of a
// configuration file or, with a data directory, of the development server there.
func adminOptions(file, dataDir string) (hub.Options, error) {
	if dataDir == "" {
		return operatorOptions(file, "")
	}
	o, err := operatorOptions("", dataDir)
	o.Server.DataDir = dataDir
	return o, err
}

// backupStopped makes a backup of a database that no server uses; the caller has the
// lock.
func backupStopped(ctx context.Context, o *hub.Options, db, name string) (path string, err error) {
	source, err := databaseFile(o.Server.DataDir, db)
	if err != nil {
		return "", err
	}
	if path, err = hub.BackupPath(o.Server.DataDir, name); err != nil {
		return "", err
	}
	opened, err := store.Open(store.Options{Path: source, Synchronous: o.Database.Synchronous, IdempotencyTTL: o.Database.IdempotencyTTL})
	if err != nil {
		return "", err
	}
	info, err := opened.Backup(ctx, path)
	err = errors.Join(err, opened.Close(context.WithoutCancel(ctx)))
	return info.Path, err
}

// databaseFile is the file of a database that must exist: opening would make one.
func databaseFile(dir, name string) (string, error) {
	path := filepath.Join(dir, name+".db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no %s", path)
	} else if err != nil {
		return "", err
	}
	return path, nil
}

// backupLive has a running server make a backup.
func backupLive(ctx context.Context, o *hub.Options, adminURL, db, name string) (path string, err error) {
	admin, err := newAdminClient(o, adminURL)
	if err != nil {
		return "", err
	}
	var result struct{ Path string }
	err = admin.do(ctx, http.MethodPost, "databases/"+url.PathEscape(db)+"/backup", map[string]string{"name": name}, &result)
	return result.Path, err
}

// adminClient calls the admin API of a running server.
type adminClient struct{ url, key string }

// newAdminClient is for the server with these options, at its own address or another.
func newAdminClient(o *hub.Options, url string) (*adminClient, error) {
	switch {
	case url != "":
	case o.Admin.Listen == "":
		return nil, errors.New("a server is running, and admin.listen is switched off; stop it first")
	default:
		url = "http://" + reachable(o.Admin.Listen)
	}
	return &adminClient{strings.TrimSuffix(url, "/") + "/admin/v1/", o.Admin.Key}, nil
}

// do sends a request and decodes the answer. It takes as long as the server does: a
// backup or a check may take minutes.
func (a *adminClient) do(ctx context.Context, method, path string, request, result any) error {
	var body bytes.Buffer
	if request != nil {
		if err := json.NewEncoder(&body).Encode(request); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, a.url+path, &body)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+a.key)
	r.Header.Set("Content-Type", "application/json")
	answer, err := exchange(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, result); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}
