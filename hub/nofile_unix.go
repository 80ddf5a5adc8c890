//go:build unix

package hub

import "golang.org/x/sys/unix"

// descriptorLimit returns how many descriptors the process may have; the
// runtime has raised the soft limit to the hard one at start.
func descriptorLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return 1 << 30
	}
	return int(limit.Cur)
}
