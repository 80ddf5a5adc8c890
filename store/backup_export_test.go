package store

import "context"

// BackupBounded waits until the log is larger than bound, and then tries a backup.
func (db *DB) BackupBounded(ctx context.Context, path string, bound int64) error {
	b := newBackup(&db.options, path)
	b.maxWAL = bound
	ctx, stop := b.watch(ctx, db.readers.closing)
	defer stop()
	<-ctx.Done()
	return b.run(ctx)
}

// Closing is closed when the writer has ended and the readers are to.
func (db *DB) Closing() <-chan struct{} { return db.readers.closing }
