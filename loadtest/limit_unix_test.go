//go:build unix

package loadtest

import (
	"strconv"
	"syscall"
)

const filesLimited = true

// limitFiles limits the size of every file of this process; writes beyond it fail
// with EFBIG, since the runtime takes the signal.
func limitFiles(bytes string) error {
	n, err := strconv.ParseUint(bytes, 10, 62)
	if err != nil {
		return err
	}
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: n})
}
