//go:build unix

package hub

import (
	"time"

	"golang.org/x/sys/unix"
)

// descriptorLimit returns how many descriptors the process may have; the
// runtime has raised the soft limit to the hard one at start.
func descriptorLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return 1 << 30
	}
	return int(limit.Cur)
}

// processorTime is what the process has used of processors, the kernel's share included.
func processorTime() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
