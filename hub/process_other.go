//go:build !linux

package hub

// residentBytes and openDescriptors: this system does not say.
func residentBytes() int64 { return 0 }
func openDescriptors() int { return 0 }
