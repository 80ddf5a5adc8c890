package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is the released version this source leads to; see CHANGELOG.md.
const version = "0.1.0"

func (p *program) version(_ context.Context, args []string) error {
	rest, err := parseFlags(p.flags("version", ""), args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return misuse("version takes no arguments")
	}
	fmt.Fprintf(p.stdout, "hub %s (%s, %s %s/%s)\n", version, revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}

// revision names the commit the binary was built from.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown revision"
	}
	commit, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if commit == "" {
		return "unknown revision"
	}
	return commit[:min(len(commit), 12)] + modified
}
