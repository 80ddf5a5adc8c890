//go:build !linux

package poll_test

func child() int { return 2 }
