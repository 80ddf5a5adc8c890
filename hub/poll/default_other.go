//go:build !linux

package poll

import "net"

// Default returns the best backend of this system.
func Default() Backend { return Portable() }

// ListenConfig returns what makes listeners whose sockets suit the backend.
func ListenConfig() net.ListenConfig { return net.ListenConfig{} }
