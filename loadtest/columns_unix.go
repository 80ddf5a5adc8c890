//go:build unix

package loadtest

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Columns is the width of the terminal that w is; 0 when it is none, or does not
// tell.
func Columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
