package hub

import (
	"bytes"
	"os"
	"strconv"
)

// residentBytes is the memory of the process that is in RAM (proc(5), statm).
func residentBytes() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize())
}

// openDescriptors is the number of open descriptors. Linux 6.2 tells it as the size
// of the directory; before that they are counted (a millisecond for 5,000).
func openDescriptors() int {
	const dir = "/proc/self/fd"
	if info, err := os.Stat(dir); err == nil && info.Size() > 0 {
		return int(info.Size())
	}
	all, _ := os.ReadDir(dir)
	return max(0, len(all)-1) // without that of the directory
}
