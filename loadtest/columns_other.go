//go:build !unix

package loadtest

import "io"

// Columns is the width of the terminal that w is; 0 when it is none, or does not
// tell.
func Columns(io.Writer) int { return 0 }
