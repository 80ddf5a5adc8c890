package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

const (
	walLarge    = 4 << 20  // bytes above which a busy writer checkpoints
	walWarn     = 64 << 20 // bytes above which the operator is told
	walPatience = "100"    // ms that a checkpoint waits for readers to leave the WAL
)

// walState remembers what the last checkpoints met; owned by the writer.
type walState struct {
	next   int64     // size at which the next checkpoint is worth trying
	warned time.Time // when the operator was told last
}

// checkpointIfLarge empties a large WAL between two batches. A reader in its way
// costs walPatience; the next try comes when the WAL has grown as much again.
func (w *writer) checkpointIfLarge() {
	size := walSize(w.options.Path)
	if w.link == nil || size < max(walLarge, w.wal.next) {
		return
	}
	w.wal.next = 0
	if w.checkpoint() {
		return
	}
	w.wal.next = size + walLarge
	if size > walWarn && time.Since(w.wal.warned) > time.Minute {
		w.wal.warned = time.Now()
		w.options.Logger.Warn("write-ahead log is large; a reader holds it", "path", w.options.Path, "bytes", size)
	}
}

// checkpointWhenIdle empties the WAL while nobody waits.
func (w *writer) checkpointWhenIdle() {
	if w.link != nil && walSize(w.options.Path) > 0 {
		w.checkpoint()
	}
}

// checkpoint reports whether the WAL is empty now. Only the writer checkpoints
// (sqlite.org/wal.html#the_wal_reset_bug); TRUNCATE makes the file's size say how
// much is in it.
func (w *writer) checkpoint() bool {
	ctx := context.Background()
	err := w.fail("checkpoint")
	if err == nil {
		_, err = w.link.conn.ExecContext(ctx, "PRAGMA busy_timeout="+walPatience)
	}
	busy := true
	if err == nil {
		busy, err = truncateWAL(ctx, w.link.conn)
	}
	if err == nil {
		_, err = w.link.conn.ExecContext(ctx, "PRAGMA busy_timeout="+commonPragmas[0].set)
	}
	if err != nil {
		w.options.Logger.Warn("checkpoint", "path", w.options.Path, "error", err)
		w.health.note(err)
		w.disconnect()
		return false
	}
	return !busy
}

func truncateWAL(ctx context.Context, conn *sql.Conn) (busy bool, err error) {
	var frames, moved int
	err = conn.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &moved)
	return busy, err
}

// checkpointAll empties the WAL or fails.
func checkpointAll(ctx context.Context, conn *sql.Conn) error {
	busy, err := truncateWAL(ctx, conn)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if busy {
		return fmt.Errorf("checkpoint: another connection is in the way")
	}
	return nil
}
