package loadtest

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// isolate gives a child a process group of its own, so that Ctrl-C reaches only
// us, and makes it end when we do, however that happens. The thread that starts
// it must live until then (PR_SET_PDEATHSIG).
func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// ownProgram names the file that runs now, even when another one has taken its
// place since: a new build changes nothing for a run that has begun.
func ownProgram() (string, error) { return "/proc/self/exe", nil }

// processCPU is the processor time that a process has used: its CPU clock, exact
// to the nanosecond where /proc counts ticks (clock_getcpuclockid(3)).
func processCPU(pid int) (time.Duration, bool) {
	const scheduled = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}

// ownCPU is the processor time of this process (getrusage(2)).
func ownCPU() (time.Duration, bool) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}

// processMemory is the resident set of a process in bytes: a field of
// /proc/PID/status, VmRSS or VmHWM.
func processMemory(pid int, field string) (int64, bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}

// processDescriptors counts the open descriptors of a process.
func processDescriptors(pid int) (int, bool) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	return len(names), err == nil
}

// socketMemory is the kernel's memory of all TCP sockets in bytes
// (/proc/net/sockstat, in pages).
func socketMemory() (int64, bool) {
	text, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] == "TCP:" {
			for i := 1; i+1 < len(fields); i += 2 {
				if fields[i] == "mem" {
					pages, err := strconv.ParseInt(fields[i+1], 10, 64)
					return pages * int64(os.Getpagesize()), err == nil
				}
			}
		}
	}
	return 0, false
}

// descriptorLimit raises the soft limit of this process to the hard one and
// returns it.
func descriptorLimit() (int64, bool) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, false
	}
	if l.Cur < l.Max {
		raised := unix.Rlimit{Cur: l.Max, Max: l.Max}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
			l.Cur = l.Max
		}
	}
	return int64(min(l.Cur, 1<<40)), true
}

// fileSystems are names of types that statfs(2) tells.
var fileSystems = map[uint32]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
	unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
	unix.NFS_SUPER_MAGIC: "NFS", unix.V9FS_MAGIC: "9p", unix.FUSE_SUPER_MAGIC: "FUSE", unix.F2FS_SUPER_MAGIC: "f2fs",
	0x2fc12fc1: "zfs",
}

// fileSystem names the file system of a directory and says whether it is in
// memory; "" if that cannot be told.
func fileSystem(dir string) (name string, inMemory bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", false
	}
	kind := uint32(st.Type)
	name, ok := fileSystems[kind]
	if !ok {
		name = fmt.Sprintf("0x%x", kind)
	}
	return name, kind == unix.TMPFS_MAGIC || kind == unix.RAMFS_MAGIC
}

// manyLoopbacks says that every address of 127.0.0.0/8 is this machine's.
const manyLoopbacks = true

// terminate asks a process to end well.
var terminate = unix.SIGTERM

// hangup asks it to reload its configuration; nil where there is no such signal.
var hangup os.Signal = unix.SIGHUP
