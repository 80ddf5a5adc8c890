package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ErrLocked: another process uses the data directory.
var ErrLocked = errors.New("in use by another process")

// LockDir takes the data directory for this process by a lock on its file
// hub.lock, which stays there. The lock ends with Close or with the process,
// however that ends. Where the system has no such lock (neither flock nor
// LockFileEx) a second process is not noticed.
func LockDir(dir string) (io.Closer, error) {
	f, err := os.OpenFile(filepath.Join(dir, "hub.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
