package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goOutput runs the go command, which ran this test, and decodes what it prints.
func goOutput(t *testing.T, result any, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	if err := json.Unmarshal(out, result); err != nil {
		t.Fatalf("go %s: %v in %s", strings.Join(args, " "), err, out)
	}
}

// TestLibcIsTheDrivers: the SQLite driver is C translated for one version of
// modernc.org/libc; any other may be wrong without a message.
func TestLibcIsTheDrivers(t *testing.T) {
	var driver, libc struct{ Version, GoMod string }
	goOutput(t, &driver, "list", "-m", "-json", "modernc.org/sqlite")
	goOutput(t, &libc, "list", "-m", "-json", "modernc.org/libc")
	var mod struct {
		Require []struct{ Path, Version string }
	}
	goOutput(t, &mod, "mod", "edit", "-json", driver.GoMod)
	for _, r := range mod.Require {
		if r.Path == "modernc.org/libc" {
			if r.Version != libc.Version {
				t.Errorf("modernc.org/libc is %s; modernc.org/sqlite %s names %s: go get modernc.org/libc@%s", libc.Version, driver.Version, r.Version, r.Version)
			}
			return
		}
	}
	t.Errorf("modernc.org/sqlite %s names no modernc.org/libc: the check cannot fail", driver.Version)
}

// fileOpeners are the functions that may open files, with what they open. None
// opens the file of a database that may be in use: closing any descriptor of it
// would drop the locks that SQLite holds through others
// (sqlite.org/howtocorrupt.html section 2.2).
var fileOpeners = map[string]string{
	"config.go readLimited":              "configuration and what it refers to",
	"config.go checkDataDir":             "a temporary file",
	"development.go loadDevSecrets":      "dev-secret.json",
	"development.go developmentSecrets":  "a temporary file",
	"init.go program.init":               "hub.toml",
	"auth/location.go location.readFile": "keys, where the configuration says",
	"hub/process_linux.go residentBytes": "/proc/self/statm",
	"store/lock.go LockDir":              "hub.lock",
	"store/schema.go create":             "a database that does not exist yet (O_EXCL)",
	"store/epoch.go bootID":              "/proc/sys/kernel/random/boot_id",
	"store/backup.go syncFile":           "a copy that is complete, has no name of a database yet and is open to nobody",
	"store/backup.go syncDir":            "a directory",
}

// TestNobodyOpensDatabases holds that table for the server's packages.
func TestNobodyOpensDatabases(t *testing.T) {
	found := make(map[string]bool)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "loadtest" || d.Name() == "polltest" || d.Name() != "." && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			name := "a package variable"
			if f, ok := decl.(*ast.FuncDecl); ok {
				name = functionName(f)
			}
			for _, call := range openings(decl) {
				place := filepath.ToSlash(path) + " " + name
				found[place] = true
				if fileOpeners[place] == "" {
					t.Errorf("%s: os.%s in %s: if that can never be the file of a database, put it into fileOpeners", set.Position(call.Pos()), call.Name, name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for place := range fileOpeners {
		if !found[place] {
			t.Errorf("%s opens no file: take it out of fileOpeners", place)
		}
	}
}

// openings returns the uses of functions that open files.
func openings(decl ast.Decl) (all []*ast.Ident) {
	packages := []string{"os", "syscall", "unix", "windows"}
	functions := []string{"Open", "OpenFile", "OpenInRoot", "OpenRoot", "Create", "CreateTemp", "ReadFile", "WriteFile", "DirFS", "CopyFS"}
	ast.Inspect(decl, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			pkg, ok := sel.X.(*ast.Ident)
			if ok && slices.Contains(packages, pkg.Name) && slices.Contains(functions, sel.Sel.Name) {
				all = append(all, sel.Sel)
			}
		}
		return true
	})
	return all
}

// functionName is the name of a function with its receiver's type.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	return fmt.Sprint(receiver, ".", f.Name.Name)
}
