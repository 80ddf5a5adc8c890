package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"modernc.org/sqlite"
)

const (
	backupStep    = 256                    // pages (1 MiB) copied between two looks at the context
	backupWatch   = 100 * time.Millisecond // between two looks at the WAL
	backupMaxWAL  = 1 << 30                // bytes
	partialSuffix = ".partial"
)

var (
	// ErrBackupRunning: a backup of this database is under way.
	ErrBackupRunning = errors.New("store: a backup is under way")
	// ErrOutrun: writes outran a backup or a check, see [DB.Backup].
	ErrOutrun = errors.New("store: writes outran the reading")
)

// BackupInfo describes a finished backup.
type BackupInfo struct {
	Path  string // absolute
	Bytes int64
	// Epoch is that of the database as it was copied. The copy itself has none:
	// see [DB.Backup].
	Epoch string
	Rooms int64 // rooms ever published to, as in Stats
	Took  time.Duration
}

// Backup copies the database as it is at one moment, between two commits, to a
// new file at path, while reads and writes go on. The file is complete, checked
// and on the disk, with mode 0600, when it gets its name: until then it is
// called path.NAME.partial, NAME being the database's file. A failure, and the
// end of ctx, leave nothing behind; what a killed process left there the next
// backup replaces. It needs as much space as the database has.
//
// The copy has no epoch, so that each database that is made from it, by a file
// copy under another name and [Open], begins with a new one: positions that the
// original, or another copy, gave out after the backup are never mistaken for
// its own, however often it is restored. To restore, stop the server, remove
// the database's file with its -wal and -shm, and put the copy in its place.
//
// Errors: [fs.ErrExist] when there is a file at path, or one beside it that
// SQLite would take for a part of the new one; [ErrBackupRunning];
// [ErrClosed] when the database closes meanwhile; [ErrOutrun], below; that of
// ctx; what SQLite and the file system say.
//
// While the pages are copied, the write-ahead log cannot be emptied. A busy
// writer, which tries for 0.1 s after each 4 MiB, lets it grow by 40 MiB a second
// at most. Measured with 300 MiB and four writers: 2.5 s, a log of 16 MiB, a
// third of the writes, the longest wait for a commit 0.2 s (0.07 s without); on
// an overloaded machine 4 s, 50 MiB and 0.5 s. When the log becomes larger than
// the database and than 1 GiB, the backup gives up.
func (db *DB) Backup(ctx context.Context, path string) (BackupInfo, error) {
	info, err := db.backup(ctx, path)
	if err != nil {
		return BackupInfo{}, fmt.Errorf("back up database %s: %w", db.options.Path, err)
	}
	return info, nil
}

func (db *DB) backup(ctx context.Context, path string) (_ BackupInfo, err error) {
	start := time.Now()
	if !db.backingUp.TryLock() {
		return BackupInfo{}, ErrBackupRunning
	}
	defer db.backingUp.Unlock()
	if db.closing.Load() {
		return BackupInfo{}, ErrClosed
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return BackupInfo{}, err
	}
	b := newBackup(&db.options, path)
	ctx, stop := b.watch(ctx, db.readers.closing)
	defer stop()
	if err := b.run(ctx); err != nil {
		return BackupInfo{}, err
	}
	b.info.Epoch = db.epoch
	b.info.Took = time.Since(start)
	return b.info, nil
}

// backup is one backup under way; owned by whoever asked for it.
type backup struct {
	longRead
	options *Options
	partial string
	info    BackupInfo
}

func newBackup(o *Options, path string) *backup {
	return &backup{
		longRead: newLongRead(o.Path),
		options:  o,
		partial:  path + "." + filepath.Base(o.Path) + partialSuffix,
		info:     BackupInfo{Path: path},
	}
}

// longRead is a read of a whole live database, during which its WAL cannot be emptied.
type longRead struct {
	path   string
	maxWAL int64 // bytes above which it gives up
}

func newLongRead(path string) longRead {
	r := longRead{path, backupMaxWAL}
	if info, err := os.Stat(path); err == nil {
		r.maxWAL = max(r.maxWAL, info.Size())
	}
	return r
}

// watch returns a context that ends with ctx, with the database, or when the
// WAL has become too large, and what ends the watching.
func (r longRead) watch(ctx context.Context, closing <-chan struct{}) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		look := time.NewTicker(backupWatch)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-closing:
				cancel(ErrClosed)
				return
			case <-look.C:
				if wal := walSize(r.path); wal > r.maxWAL {
					cancel(fmt.Errorf("%w: the write-ahead log has %d bytes", ErrOutrun, wal))
					return
				}
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

// run makes the copy and gives it its name, or fails and leaves nothing. When
// ctx has ended, the error is its cause.
func (b *backup) run(ctx context.Context) (err error) {
	if err := b.free(); err != nil {
		return err
	}
	if err := b.discard(); err != nil { // what a killed process left
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		err = errors.Join(err, b.discard())
	}()
	if err := create(b.partial); err != nil {
		return err
	}
	if err := b.copy(ctx); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if err := b.settle(ctx); err != nil {
		return fmt.Errorf("settle copy: %w", err)
	}
	if err := CheckIntegrity(ctx, b.partial); err != nil {
		return err
	}
	if b.info.Bytes, err = syncFile(b.partial); err != nil {
		return err
	}
	if err := b.free(); err != nil { // rename would replace it
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := os.Rename(b.partial, b.info.Path); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(b.info.Path)); err != nil {
		return errors.Join(err, os.Remove(b.info.Path))
	}
	return nil
}

// free refuses a path that is taken. A log that is left of another database
// would be played into the new file when that is opened
// (sqlite.org/howtocorrupt.html, section 1.4).
func (b *backup) free() error {
	for _, path := range parts(b.info.Path) {
		switch _, err := os.Lstat(path); {
		case err == nil:
			return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return nil
}

// discard removes the partial copy.
func (b *backup) discard() error {
	var errs []error
	for _, path := range parts(b.partial) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// parts names the files that SQLite takes for one database.
func parts(path string) []string {
	return []string{path, path + "-wal", path + "-shm", path + "-journal"}
}

// copy copies the pages with SQLite's online backup (sqlite.org/backup.html). It
// holds writers up for about half the time that VACUUM INTO takes. One read
// transaction holds the moment: without it, each commit would make the copying
// begin anew.
func (b *backup) copy(ctx context.Context) (err error) {
	l, err := connect(ctx, dsn(b.options.Path, []string{"mode=rw"}, readerPragmas), readerPragmas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if _, err := l.conn.ExecContext(ctx, "BEGIN"); err != nil {
		return err
	}
	// The first read begins the transaction.
	if err := l.conn.QueryRowContext(ctx, "SELECT count(*) FROM rooms").Scan(&b.info.Rooms); err != nil {
		return err
	}
	// Neither a journal nor a sync: a partial copy is worth nothing.
	to := dsn(b.partial, []string{"mode=rw"}, []pragma{{name: "journal_mode", set: "OFF"}, {name: "synchronous", set: "OFF"}})
	return l.conn.Raw(func(conn any) error { return b.copyPages(ctx, conn, to) })
}

func (b *backup) copyPages(ctx context.Context, conn any, to string) (err error) {
	source, ok := conn.(interface {
		NewBackup(dsn string) (*sqlite.Backup, error)
	})
	if !ok {
		return fmt.Errorf("%T makes no backups", conn)
	}
	pages, err := source.NewBackup(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pages.Finish()) }()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if more, err := pages.Step(backupStep); err != nil || !more {
			return err
		}
		if b.options.fault != nil {
			if err := b.options.fault("backup"); err != nil {
				return err
			}
		}
	}
}

// settle makes the copy that of a database which was stopped cleanly and has no
// epoch, in one file.
func (b *backup) settle(ctx context.Context) (err error) {
	pragmas := []pragma{{"synchronous", "OFF", "0"}}
	l, err := connect(ctx, dsn(b.partial, []string{"mode=rw"}, pragmas), pragmas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if _, err := l.conn.ExecContext(ctx, "DELETE FROM meta WHERE key IN (?, ?, ?)", metaEpoch, metaOpen, metaBootID); err != nil {
		return err
	}
	var mode string
	if err := l.conn.QueryRowContext(ctx, "PRAGMA journal_mode=DELETE").Scan(&mode); err != nil {
		return err
	}
	if mode != "delete" {
		return fmt.Errorf("journal mode is %q", mode)
	}
	return nil
}

// syncFile brings a file that nobody has open onto the disk and returns its size.
func syncFile(path string) (size int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), f.Sync()
}

// syncDir brings the names in a directory onto the disk. Windows does that by itself.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RemovePartial removes what backups that were killed have left in a directory; none
// may be under way there.
func RemovePartial(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		for _, part := range parts(partialSuffix) {
			if strings.HasSuffix(e.Name(), ".db"+part) {
				if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
