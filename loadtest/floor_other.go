//go:build !linux

package loadtest

import (
	"errors"
	"io"
)

const floorSupported = false

// ServeFloor is the floor's writer; here there is none.
func ServeFloor(string, int, io.Reader, io.Writer) error { return errors.ErrUnsupported }
