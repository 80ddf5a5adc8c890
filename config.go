package main

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"hub/hub"
)

// maxConfigBytes bounds a configuration file and each file it refers to.
const maxConfigBytes = 1 << 20

// problem is one thing that is wrong with a configuration file.
type problem struct {
	line int    // 0: the file as a whole
	key  string // "" when no single key is to blame
	text string
}

// configError is everything found wrong with a configuration file, printed one
// problem a line as FILE:LINE: KEY: TEXT.
type configError struct {
	file     string
	problems []problem
}

func (e *configError) Error() string { return strings.Join(e.lines(), "\n") }

func (e *configError) lines() []string {
	lines := make([]string, len(e.problems))
	for i, p := range e.problems {
		line := e.file + ":"
		if p.line > 0 {
			line += fmt.Sprintf("%d:", p.line)
		}
		if p.key != "" {
			line += " " + p.key + ":"
		}
		lines[i] = line + " " + p.text
	}
	return lines
}

// config is a configuration file that was read.
type config struct {
	file     string
	top      *entry // its keys and where they stand
	options  hub.Options
	problems []problem
	warnings []string // oddities that do not stop a server
}

// err returns every problem as a [*configError], in the order of the file. It
// never holds the value of a secret.
func (c *config) err() error {
	if len(c.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(c.problems, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	return &configError{file: c.file, problems: c.problems}
}

// loadConfig reads a file over the defaults, for commands that need nothing but
// its values.
func loadConfig(file string) (*config, error) {
	c, err := readConfig(file)
	if err != nil {
		return nil, err
	}
	return c, c.err()
}

// loadServerConfig reads a file and checks all that a server needs of it, its
// data directory included.
func loadServerConfig(file string) (*config, error) {
	c, err := readConfig(file)
	if err != nil {
		return nil, err
	}
	if err := checkDataDir(c.options.Server.DataDir); err != nil {
		e := c.top.find("server.data_dir")
		c.problems = append(c.problems, problem{line: e.line, key: "server.data_dir", text: err.Error()})
	}
	if o := &c.options.Server; o.TLSCert != "" && o.TLSKey != "" {
		if _, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey); err != nil {
			e := c.top.find("server.tls_cert")
			c.problems = append(c.problems, problem{line: e.line, key: "server.tls_cert", text: "with server.tls_key: " + err.Error()})
		}
	}
	return c, c.err()
}

// readConfig reads and validates a file; its error says why it cannot be read
// at all.
func readConfig(file string) (*config, error) {
	text, err := readLimited(file)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	top, err := parseTOML(text)
	if err != nil {
		return nil, &configError{file: file, problems: []problem{syntaxProblem(err)}}
	}
	c := &config{file: file, top: top, options: hub.DefaultOptions()}
	c.options.Version = version
	var d decoder
	d.table(top, reflect.ValueOf(&c.options).Elem())
	d.validate(top, &c.options)
	c.problems = d.problems
	if len(c.options.Namespaces) == 0 {
		c.warnings = append(c.warnings, "no [namespace.NAME] table, so no room can be used")
	}
	return c, nil
}

// blame returns an error of the server that begins with the key at fault, or joins
// such, at the lines where those stand.
func (c *config) blame(err error) error {
	e := &configError{file: c.file}
	for _, err := range flatten(err) {
		e.problems = append(e.problems, problem{line: c.top.find(keyOf(err)).line, text: err.Error()})
	}
	return e
}

// keyOf returns the key that an error of [hub.Options.Validate] begins with.
func keyOf(err error) string {
	key, _, _ := strings.Cut(err.Error(), " ")
	key, _, _ = strings.Cut(strings.TrimRight(key, ":,"), "[")
	return key
}

// syntaxProblem leaves out what the parser read under a secret's key.
func syntaxProblem(err error) problem {
	var syntax toml.ParseError
	if !errors.As(err, &syntax) {
		return problem{text: err.Error()}
	}
	text := syntax.Message
	if isSecret(syntax.LastKey) {
		text = "cannot be read as TOML; a string needs quotes"
	}
	return problem{line: syntax.Position.Line, key: syntax.LastKey, text: text}
}

// validate adds what [hub.Options.Validate] finds, at the line of the key that
// each of its errors begins with. A key that could not even be decoded is not
// blamed twice.
func (d *decoder) validate(top *entry, o *hub.Options) {
	bad := make(map[string]bool, len(d.problems))
	for _, p := range d.problems {
		bad[p.key] = true
	}
	for _, err := range flatten(o.Validate()) {
		if key := keyOf(err); !bad[key] {
			d.problems = append(d.problems, problem{line: top.find(key).line, text: err.Error()})
		}
	}
}

// flatten takes apart what [errors.Join] joined.
func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
		return nil
	case !ok:
		return []error{err}
	}
	var list []error
	for _, err := range joined.Unwrap() {
		list = append(list, flatten(err)...)
	}
	return list
}

// resolve returns the string that a configuration or a flag means: env:NAME is
// an environment variable, file:PATH the content of a file without its last
// line's end. Errors name the variable or the path, never a value.
func resolve(s string) (string, error) {
	if name, ok := strings.CutPrefix(s, "env:"); ok {
		value, set := os.LookupEnv(name)
		if !set {
			return "", fmt.Errorf("environment variable %s is not set", name)
		}
		if value == "" {
			return "", fmt.Errorf("environment variable %s is empty", name)
		}
		return value, nil
	}
	if path, ok := strings.CutPrefix(s, "file:"); ok {
		value, err := readLimited(path)
		if err != nil {
			return "", err
		}
		value = strings.TrimSuffix(strings.TrimSuffix(value, "\n"), "\r")
		if value == "" {
			return "", fmt.Errorf("file %s is empty", path)
		}
		return value, nil
	}
	return s, nil
}

func readLimited(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxConfigBytes {
		return "", fmt.Errorf("file %s is larger than %d bytes", path, maxConfigBytes)
	}
	return string(b), nil
}

// checkDataDir reports why a server could not write to the data directory. It
// leaves nothing behind: where the directory is missing, its nearest parent is
// tried instead.
func checkDataDir(dir string) error {
	if dir == "" {
		return nil // Validate tells
	}
	at, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			return fmt.Errorf("%s is not a directory", at)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return err
		}
		at = filepath.Dir(at)
	}
	f, err := os.CreateTemp(at, ".hub-check-*")
	if err != nil {
		return fmt.Errorf("%s is not writable: %w", at, errors.Unwrap(err))
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// secrets are the keys whose value is never shown.
func secrets(o *hub.Options) map[string]*string {
	all := map[string]*string{
		"auth.hmac_secret": &o.Auth.HMACSecret,
		"api.key":          &o.API.Key,
		"admin.key":        &o.Admin.Key,
	}
	for i := range o.Auth.PreviousSecrets {
		all[fmt.Sprintf("auth.previous_secrets[%d]", i)] = &o.Auth.PreviousSecrets[i]
	}
	return all
}

func isSecret(key string) bool {
	_, ok := secrets(new(hub.Options))[key]
	return ok || key == "auth.previous_secrets"
}

// encodeConfig writes options as a configuration file with the secrets masked.
func encodeConfig(o hub.Options) ([]byte, error) {
	o.Auth.PreviousSecrets = slices.Clone(o.Auth.PreviousSecrets)
	for _, secret := range secrets(&o) { // o is a copy
		if *secret != "" {
			*secret = "********"
		}
	}
	var b bytes.Buffer
	e := toml.NewEncoder(&b)
	e.Indent = ""
	if err := e.Encode(o); err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	return b.Bytes(), nil
}
