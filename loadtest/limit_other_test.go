//go:build !unix

package loadtest

import "errors"

const filesLimited = false

func limitFiles(string) error { return errors.ErrUnsupported }
