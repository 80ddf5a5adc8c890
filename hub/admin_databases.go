package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"hub/store"
)

func adminDatabases(c *adminCall) (any, *problem) {
	return map[string]any{"databases": c.s.databaseOverviews(time.Since(c.s.start))}, nil
}

// adminCreateDatabase makes a database, which is served at once and at every start.
func adminCreateDatabase(c *adminCall) (any, *problem) {
	var req struct {
		Name string `json:"name"`
	}
	if p := c.decode(&req); p != nil {
		return nil, p
	}
	c.about(slog.String("database", req.Name))
	if err := ValidDatabase(req.Name); err != nil {
		return nil, invalid(err)
	}
	switch err := c.s.createDatabase(c.r.Context(), req.Name); {
	case errors.Is(err, errDatabaseExists):
		return nil, newProblem("exists", "there is a database of this name")
	case errors.Is(err, store.ErrForeign), errors.Is(err, store.ErrNewer):
		return nil, newProblem("exists", err.Error())
	case errors.Is(err, errDatabaseLimit):
		return nil, newProblem("database_limit", fmt.Sprintf("there are %d databases", maxDatabases))
	case err != nil:
		return nil, c.failed(err)
	}
	return c.s.databases.get(req.Name).overview(time.Since(c.s.start)), nil
}

// maintain begins what takes long and burdens the disk: one at a time. release ends it.
func (c *adminCall) maintain() (release func(), p *problem) {
	if !c.s.maintenance.TryLock() {
		return nil, newProblem("busy", "a backup or a check of integrity is under way")
	}
	// The timeouts of other requests would cut it short, the read one too: it would end
	// the request's context.
	rc := http.NewResponseController(c.w)
	if err := errors.Join(rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{})); err != nil {
		c.s.maintenance.Unlock()
		return nil, c.failed(err)
	}
	return c.s.maintenance.Unlock, nil
}

// integrityResult is what a check has found.
type integrityResult struct {
	Database string  `json:"database"`
	OK       bool    `json:"ok"`
	Finding  string  `json:"finding,omitempty"` // the first damage, unless OK
	Took     float64 `json:"took_ms"`
}

// adminIntegrity checks a database while it is in use. It ends when the caller goes.
func adminIntegrity(c *adminCall) (any, *problem) {
	db, p := c.job(&struct{}{})
	if p != nil {
		return nil, p
	}
	release, p := c.maintain()
	if p != nil {
		return nil, p
	}
	defer release()
	start := time.Now()
	err := db.store.CheckIntegrity(c.r.Context())
	result := integrityResult{Database: db.name, OK: err == nil, Took: milliseconds(time.Since(start).Microseconds())}
	switch {
	case errors.Is(err, store.ErrDamaged):
		c.s.log.Error("database is damaged", slog.String("database", db.name), slog.Any("error", err))
		result.Finding = err.Error()
	case err != nil:
		return nil, c.failed(err)
	}
	return result, nil
}

// job finds the database of a request and decodes its body.
func (c *adminCall) job(body any) (*database, *problem) {
	name := c.r.PathValue("db")
	c.about(slog.String("database", name))
	db, p := c.database(name)
	if p != nil {
		return nil, p
	}
	return db, c.decode(body)
}

// backupResult describes a finished backup.
type backupResult struct {
	Database string  `json:"database"`
	Name     string  `json:"name"`
	Path     string  `json:"path"` // on the server's machine
	Bytes    int64   `json:"bytes"`
	Rooms    int64   `json:"rooms"`
	Took     float64 `json:"took_ms"`
}

// adminBackup copies a database while it is in use. It ends when the caller goes, and
// leaves nothing behind then.
func adminBackup(c *adminCall) (any, *problem) {
	var req struct {
		Name string `json:"name"` // "": the database's and the time
	}
	db, p := c.job(&req)
	if p != nil {
		return nil, p
	}
	if req.Name == "" {
		req.Name = BackupName(db.name, time.Now())
	}
	c.about(slog.String("name", req.Name))
	if err := ValidBackup(req.Name); err != nil {
		return nil, invalid(err)
	}
	release, p := c.maintain()
	if p != nil {
		return nil, p
	}
	defer release()
	path, err := BackupPath(c.s.opts.Server.DataDir, req.Name)
	if err != nil {
		return nil, c.failed(err)
	}
	info, err := db.store.Backup(c.r.Context(), path)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, newProblem("exists", "there is a backup of this name")
	case errors.Is(err, store.ErrBackupRunning):
		return nil, newProblem("busy", "a backup of this database is under way")
	case err != nil:
		return nil, c.failed(err)
	}
	return backupResult{db.name, req.Name, info.Path, info.Bytes, info.Rooms, milliseconds(info.Took.Microseconds())}, nil
}

// backupDir is where backups lie in a data directory.
const backupDir = "backups"

// backupName is a file name on all systems (case G47).
var backupName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// ValidBackup returns what is wrong with the name of a backup, or nil. It is the name
// of a file without its .db, never a path.
func ValidBackup(name string) error {
	if !backupName.MatchString(name) {
		return fmt.Errorf("backup name must match %s, got %.80q", backupName, name)
	}
	return nil
}

// BackupName is the name of a backup that nobody named.
func BackupName(database string, at time.Time) string {
	return database + "-" + at.UTC().Format("20060102T150405Z")
}

// BackupPath returns the file of a new backup, whose name is a valid one, in a data
// directory. It makes the directory of backups and clears it of what backups that were
// killed have left; the caller has the lock of the data directory (see
// [store.LockDir]), and no backup is under way.
func BackupPath(dataDir, name string) (string, error) {
	dir := filepath.Join(dataDir, backupDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if err := store.RemovePartial(dir); err != nil {
		return "", err
	}
	return databasePath(dir, name), nil
}
