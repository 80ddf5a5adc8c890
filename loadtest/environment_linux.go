package loadtest

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hub/loadtest/report"
)

// describeMachine notes what Linux tells of kernel, processor and memory.
func describeMachine(e *report.Environment) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		e.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if v := fieldOf("/etc/os-release", "PRETTY_NAME=", "\n"); v != "" {
		e.OS = strings.Trim(v, `"`)
	}
	e.CPU = strings.TrimLeft(fieldOf("/proc/cpuinfo", "model name", "\n"), "\t :")
	if kib, err := strconv.ParseInt(strings.Trim(fieldOf("/proc/meminfo", "MemTotal:", "kB"), " "), 10, 64); err == nil {
		e.MemoryBytes = kib << 10
	}
}

// fieldOf returns what stands between two texts in a file, "" if that is not there.
func fieldOf(path, before, after string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	_, rest, ok := strings.Cut(string(text), before)
	if !ok {
		return ""
	}
	value, _, _ := strings.Cut(rest, after)
	return value
}

// loadAverage is that of the last minute.
func loadAverage() *float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(text), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return nil
	}
	return &v
}
