package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestPackageTable holds who may import whom: main → hub → {store, auth,
// ratelimit}, which know nothing of each other; loadtest stands outside.
func TestPackageTable(t *testing.T) {
	mayImport := map[string][]string{
		".":         {"hub", "store", "auth", "ratelimit", "loadtest"},
		"hub":       {"store", "auth", "ratelimit"},
		"store":     {},
		"auth":      {},
		"ratelimit": {},
		"loadtest":  {"auth"},
	}
	seen := make(map[string]bool)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() != "." && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		owner, _, inDir := strings.Cut(filepath.ToSlash(path), "/")
		if !inDir {
			owner = "."
		}
		allowed, known := mayImport[owner]
		if !known {
			t.Errorf("%s: package %s is not in the table", path, owner)
			return nil
		}
		seen[owner] = true
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if inner, ours := strings.CutPrefix(imported, "hub/"); ours && !within(inner, append(allowed, owner)) {
				t.Errorf("%s imports %s: %s may only import %v", path, imported, owner, allowed)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range []string{".", "hub", "store", "auth", "ratelimit"} {
		if !seen[owner] {
			t.Errorf("no source of %s was found: the check cannot fail", owner)
		}
	}
}

// within reports whether a package is one of the roots or inside one.
func within(pkg string, roots []string) bool {
	root, _, _ := strings.Cut(pkg, "/")
	for _, r := range roots {
		if r == root {
			return true
		}
	}
	return false
}
