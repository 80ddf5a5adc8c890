//go:build !linux

package fleet

func newRunner(o *Options) (runner, error) { return newPortable(o), nil }
