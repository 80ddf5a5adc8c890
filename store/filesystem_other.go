//go:build !linux

package store

// CheckFilesystem returns a warning when dir lies on a network or virtual file
// system; on this system that cannot be told, so it returns "".
func CheckFilesystem(string) string { return "" }
