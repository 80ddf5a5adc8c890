package loadtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"hub/loadtest/report"
)

// server is the process under test: a child with a data directory, secrets and a
// configuration of its own. One goroutine at a time uses it.
type server struct {
	// fixed after new
	command  func(args ...string) *exec.Cmd // of this program
	dir      string                         // holds everything below; removed by close
	secret   string
	adminKey string
	log      string // file
	addr     netip.AddrPort

	databases []string
	settings  func(auth string) string // the configuration, with lines of [auth]
	retired   string                   // a secret that configurations may still have
	tls       *certificate             // nil for plain sockets
	died      func(error)              // called once when the process ends unasked

	// of the process that runs now, or ran last
	process *process
	admin   string // host:port
}

// process is one run of the child.
type process struct {
	pid    int
	asked  chan struct{} // closed before it is told to end
	ended  chan struct{} // closed when it has
	err    error         // valid once ended is closed
	handle *os.Process
}

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 30 * time.Second
	// logTail is how much of the log of a server that died is shown.
	logTail = 12
)

// raised are the server's limits that a run changes, since one machine plays
// everybody.
var raised = []report.Setting{
	{Name: "limits.connections.server", Value: "0 (off)", Default: "100000"},
	{Name: "limits.connections.database", Value: "0 (off)", Default: "12000"},
	{Name: "limits.connections.ip", Value: "0 (off)", Default: "1000"},
	{Name: "limits.messages.per_second", Value: "0 (off)", Default: "50"},
	{Name: "limits.handshake.per_second", Value: "0 (off)", Default: "200"},
	{Name: "limits.read.per_second", Value: "0 (off)", Default: "500"},
	{Name: "limits.mutation.per_second", Value: "0 (off)", Default: "200"},
	{Name: "limits.database.handshake.per_second", Value: "0 (off)", Default: "20000"},
	{Name: "limits.database.read.per_second", Value: "0 (off)", Default: "20000"},
	{Name: "limits.database.mutation.per_second", Value: "0 (off)", Default: "20000"},
}

// changed are its other settings that differ from the defaults.
var changed = []report.Setting{
	{Name: "namespace." + ownNamespace + ".operate", Value: "token", Default: "server"},
	{Name: "server.drain_window", Value: "500ms", Default: "2s"},
}

// settingsOf are the settings that scenarios change.
func settingsOf(names []string) (list []report.Setting) {
	if len(names) > 1 || !slices.Contains(names, "limits") {
		list = append(list, raised...)
	}
	if slices.Contains(names, "limits") {
		list = append(list, limitsChanged)
	}
	for _, s := range authChanged {
		if slices.Contains(names, s.scenario) {
			list = append(list, s.Setting)
		}
	}
	return append(list, changed...)
}

// retention is the history that a room of the test's server keeps, in events.
const retention = 10_000

const configTemplate = `# The defaults, without the limits that one machine playing everybody exceeds.
[server]
listen = %q
data_dir = %q
tls_cert = %q
tls_key = %q
drain_window = "500ms"
[auth]
hmac_secret = "file:%s"
%s
[admin]
listen = "127.0.0.1:0"
key = "file:%s"
%s
[database]
names = [%s]
[namespace.` + ownNamespace + `]
history_size = %d
operate = "token"
`

// noLimits switches off what one machine playing everybody exceeds.
const noLimits = `[limits.connections]
server = 0
database = 0
ip = 0
[limits.messages]
per_second = 0.0
burst = 0
[limits.handshake]
per_second = 0.0
burst = 0
[limits.read]
per_second = 0.0
burst = 0
[limits.mutation]
per_second = 0.0
burst = 0
[limits.database.handshake]
per_second = 0.0
burst = 0
[limits.database.read]
per_second = 0.0
burst = 0
[limits.database.mutation]
per_second = 0.0
burst = 0`

// serverPlan is what a scenario wants of the test's server.
type serverPlan struct {
	databases []string // besides the two that it always has
	limits    string   // of its configuration; empty: noLimits
	auth      string   // lines of its table [auth]
}

// newServer prepares a server in a new directory under parent, listening on host.
func newServer(o *Options, plan serverPlan, parent string, host netip.Addr, died func(error)) (_ *server, err error) {
	dir, err := os.MkdirTemp(parent, "hub-loadtest-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	s := &server{command: o.command, dir: dir, secret: newSecret(), adminKey: newSecret(), retired: newSecret(), died: died, log: filepath.Join(dir, "server.log"),
		databases: append([]string{defaultDatabase, otherDatabase}, plan.databases...)}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	// The address is the server's alone, so the port is free again after a crash.
	if s.addr, err = freePort(host); err != nil {
		return nil, err
	}
	cert, key := "", ""
	if o.TLS {
		if s.tls, err = newCertificate(host, dir); err != nil {
			return nil, err
		}
		cert, key = s.tls.certFile, s.tls.keyFile
	}
	secretFile, adminFile := filepath.Join(dir, "secret"), filepath.Join(dir, "admin-key")
	s.settings = func(auth string) string {
		return fmt.Sprintf(configTemplate, s.addr.String(), s.dataDir(), cert, key, filepath.ToSlash(secretFile), auth, filepath.ToSlash(adminFile),
			orText(plan.limits, noLimits), `"`+strings.Join(s.databases, `", "`)+`"`, retention)
	}
	return s, errors.Join(
		os.WriteFile(secretFile, []byte(s.secret), 0o600),
		os.WriteFile(adminFile, []byte(s.adminKey), 0o600),
		os.WriteFile(s.retiredFile(), []byte(s.retired), 0o600),
		s.configure(plan.auth))
}

// configure writes the configuration, with lines of the table [auth].
func (s *server) configure(auth string) error {
	return os.WriteFile(s.config(), []byte(s.settings(auth)), 0o600)
}

func newSecret() string {
	var b [32]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func freePort(host netip.Addr) (netip.AddrPort, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listen on %s: %w; the loopback interface must have this address", host, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort(), nil
}

func (s *server) config() string      { return filepath.Join(s.dir, "hub.toml") }
func (s *server) dataDir() string     { return filepath.Join(s.dir, "data") }
func (s *server) retiredFile() string { return filepath.Join(s.dir, "retired-secret") }

// database is the file of a database.
func (s *server) database(name string) string { return filepath.Join(s.dataDir(), name+".db") }

// start runs the process and waits until it listens.
func (s *server) start(ctx context.Context) error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd := s.command("serve", "-config", s.config(), "-log-format", "json")
	cmd.Stdout, cmd.Stderr = log, log
	p, err := run(cmd)
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	s.process = p
	if err := s.awaitListening(ctx, begin); err != nil {
		s.kill()
		return err
	}
	go func() {
		<-p.ended
		select {
		case <-p.asked:
		default:
			s.died(s.gone(p))
		}
	}()
	return nil
}

// run starts a process whose parent thread lives as long as it does.
func run(cmd *exec.Cmd) (*process, error) {
	p := &process{asked: make(chan struct{}), ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid, p.handle = cmd.Process.Pid, cmd.Process
		started <- nil
		p.err = cmd.Wait()
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

var listening = regexp.MustCompile(`"msg":"listening","addr":"([^"]+)","admin_addr":"([^"]+)"`)

// awaitListening looks for the server's first words in its log.
func (s *server) awaitListening(ctx context.Context, from int64) error {
	m, err := s.await(ctx, from, listening, "the server does not listen")
	if err == nil {
		s.admin = string(m[2])
	}
	return err
}

// await looks for words in the log behind an offset; not says what is wrong without
// them.
func (s *server) await(ctx context.Context, from int64, words *regexp.Regexp, not string) ([][]byte, error) {
	deadline := time.After(startTimeout)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(s.log)
		if err != nil {
			return nil, err
		}
		if m := words.FindSubmatch(text[min(from, int64(len(text))):]); m != nil {
			return m, nil
		}
		select {
		case <-tick.C:
		case <-s.process.ended:
			return nil, s.gone(s.process)
		case <-deadline:
			return nil, fmt.Errorf("%s after %v%s", not, startTimeout, s.lastWords())
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// errDied is wrapped by what tells that the server ended unasked.
var errDied = errors.New("the server ended")

func (s *server) gone(p *process) error {
	how := "by itself"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%w (%s)%s", errDied, how, s.lastWords())
}

// lastWords are the last lines of the log, to be appended to an error.
func (s *server) lastWords() string {
	text, err := os.ReadFile(s.log)
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return "; its log is empty"
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "; its log ends with:\n  " + strings.Join(lines[max(0, len(lines)-logTail):], "\n  ")
}

// reloaded is what the server says of SIGHUP.
var reloaded = regexp.MustCompile(`"msg":"(configuration reloaded|configuration not reloaded[^"]*)"[^\n]*\n`)

// reload gives the running server other lines of [auth] and waits until they are in
// force.
func (s *server) reload(ctx context.Context, auth string) error {
	if hangup == nil {
		return errors.New("this system has no signal to reload a configuration")
	}
	log, err := os.Stat(s.log)
	if err == nil {
		err = s.configure(auth)
	}
	if err == nil {
		err = s.process.handle.Signal(hangup)
	}
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	m, err := s.await(ctx, log.Size(), reloaded, "the server has not reloaded its configuration")
	if err == nil && string(m[1]) != "configuration reloaded" {
		err = fmt.Errorf("reload: %s", m[0])
	}
	return err
}

// stop ends the server as an operator does; it must end well.
func (s *server) stop() error {
	p := s.process
	if p == nil {
		return nil
	}
	s.process = nil
	close(p.asked)
	if err := p.handle.Signal(terminate); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the server: %w", err)
	}
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.handle.Kill()
		<-p.ended
		return fmt.Errorf("the server did not stop within %v%s", stopTimeout, s.lastWords())
	}
	if p.err != nil {
		return fmt.Errorf("the server stopped with %w%s", p.err, s.lastWords())
	}
	return nil
}

// kill ends the process at once, if it runs, and waits for that.
func (s *server) kill() {
	p := s.process
	if p == nil {
		return
	}
	s.process = nil
	close(p.asked)
	_ = p.handle.Kill()
	<-p.ended
}

// close kills the process and removes its files.
func (s *server) close() error {
	s.kill()
	return os.RemoveAll(s.dir)
}

// cpu is the processor time of the process, if the system tells.
func (s *server) cpu() (time.Duration, bool) {
	if s == nil || s.process == nil {
		return 0, false
	}
	return processCPU(s.process.pid)
}

// memory is a field of its status in bytes, see processMemory.
func (s *server) memory(field string) (int64, bool) {
	if s == nil || s.process == nil {
		return 0, false
	}
	return processMemory(s.process.pid, field)
}
