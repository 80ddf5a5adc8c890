package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base32"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Keys of the table meta.
const (
	metaEpoch  = "epoch"   // of the database
	metaBootID = "boot_id" // of the machine when the file was last opened
	metaOpen   = "open"    // the synchronous mode of the run that has it open, "" after a clean stop
)

// bootID returns the kernel's id of this boot (random(4)), "" where there is none.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// newEpoch returns 40 random bits as 8 characters.
func newEpoch() string {
	var b [5]byte
	rand.Read(b[:])
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// roomEpoch is the epoch of an incarnation of a room; a room begins with
// incarnation 0, so it is known before the first publication.
func roomEpoch(database string, incarnation int64) string {
	return database + "." + strconv.FormatInt(incarnation, 36)
}

// settleEpoch decides whether positions handed out by the last run still hold,
// marks the file as open and returns the database's epoch. Commits of
// synchronous=NORMAL survive a killed process, but the last ones may be gone
// when the machine went down (sqlite.org/pragma.html#pragma_synchronous): then
// their offsets will be given again, and the epoch must change. The connection
// must be one that syncs.
func settleEpoch(ctx context.Context, conn *sql.Conn, boot, synchronous string) (string, error) {
	epoch, err := meta(ctx, conn, metaEpoch)
	if err != nil {
		return "", fmt.Errorf("settle epoch: %w", err)
	}
	last, err := meta(ctx, conn, metaOpen)
	if err != nil {
		return "", fmt.Errorf("settle epoch: %w", err)
	}
	lastBoot, err := meta(ctx, conn, metaBootID)
	if err != nil {
		return "", fmt.Errorf("settle epoch: %w", err)
	}
	if epoch == "" || last == "normal" && (boot == "" || boot != lastBoot) {
		epoch = newEpoch()
	}
	const set = "INSERT INTO meta (key, value) VALUES (?, ?), (?, ?), (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
	if _, err := conn.ExecContext(ctx, set, metaEpoch, epoch, metaOpen, synchronous, metaBootID, boot); err != nil {
		return "", fmt.Errorf("settle epoch: %w", err)
	}
	return epoch, nil
}

// meta returns a value of the table meta, "" when there is none.
func meta(ctx context.Context, q querier, key string) (value string, err error) {
	err = q.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return value, err
}
