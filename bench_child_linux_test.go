package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// child is a process of the benchmark: this binary under another name, so that
// server and generator have descriptors, heap and processor time of their own.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	addr  unix.SockaddrInet4
	admin string // host:port
	out   printed
}

// printed is what a child has printed so far.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

const (
	benchSecret = "0123456789abcdef0123456789abcdef"
	benchKey    = "a-key-for-the-benchmark-alone"
)

// benchConfig is the defaults without the limits that the load must exceed.
const benchConfig = `
[server]
listen = "127.0.0.1:0"
data_dir = %q
[auth]
hmac_secret = "` + benchSecret + `"
[admin]
listen = "127.0.0.1:0"
key = "` + benchKey + `"
[limits.connections]
server = 0
database = 0
ip = 0
[limits.messages]
per_second = 0.0
burst = 0
[namespace.bench]
`

// startHub runs a server on a new data directory.
func startHub(b *testing.B) *child {
	b.Helper()
	dir := b.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		b.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		b.Fatalf("%s is in memory: set TMPDIR to a directory on a disk", dir)
	}
	file := filepath.Join(dir, "hub.toml")
	if err := os.WriteFile(file, fmt.Appendf(nil, benchConfig, filepath.Join(dir, "data")), 0o600); err != nil {
		b.Fatal(err)
	}
	c := startChild(b, regexp.MustCompile(`"msg":"listening","addr":"([^"]+)","admin_addr":"([^"]+)"`),
		"hub", "serve", "-config", file, "-log-format", "json")
	return c
}

// startChild runs this binary as name and waits for ready in what it prints: the
// server's address, then perhaps its admin address.
func startChild(b *testing.B, ready *regexp.Regexp, name string, args ...string) *child {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	c := &child{cmd: exec.Command(self, args...)}
	c.cmd.Args[0] = name
	out, err := c.cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	found, ended := make(chan []string, 1), make(chan struct{})
	go c.follow(out, ready, found, ended)
	b.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-ended
		_ = c.cmd.Wait()
		if b.Failed() {
			b.Logf("%s printed:\n%s", name, c.out.String())
		}
	})
	select {
	case match := <-found:
		at, err := netip.ParseAddrPort(match[1])
		if err != nil {
			b.Fatal(err)
		}
		c.addr = unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
		if len(match) > 2 {
			c.admin = match[2]
		}
	case <-ended:
		b.Fatalf("%s ended", name)
	case <-time.After(patience):
		b.Fatalf("%s is not ready after %v", name, patience)
	}
	return c
}

// follow keeps a child's output and looks for the line that says it is ready.
func (c *child) follow(out io.Reader, ready *regexp.Regexp, found chan<- []string, ended chan<- struct{}) {
	defer close(ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		c.out.mu.Lock()
		c.out.text.WriteString(lines.Text() + "\n")
		c.out.mu.Unlock()
		if match := ready.FindStringSubmatch(lines.Text()); match != nil {
			select {
			case found <- match:
			default:
			}
		}
	}
}

// stop ends a server as an operator does; it must end well.
func (c *child) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	kill := time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	state, err := c.cmd.Process.Wait()
	if err == nil && !state.Success() {
		err = errors.New(state.String())
	}
	return err
}

// cpu is the processor time that the child has used: its CPU clock, exact to the
// nanosecond where /proc counts ticks (clock_getcpuclockid(3)).
func (c *child) cpu() (time.Duration, error) {
	const scheduled = 2
	var t unix.Timespec
	err := unix.ClockGettime(int32(^c.cmd.Process.Pid<<3|scheduled), &t)
	return time.Duration(t.Nano()), err
}

// memory returns a field of /proc/PID/status in KiB: VmRSS or VmHWM.
func (c *child) memory(field string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		}
	}
	return 0, fmt.Errorf("no %s in /proc", field)
}

// fetch gets a page of the admin listener.
func (c *child) fetch(path string) ([]byte, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+c.admin+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+benchKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	return body, err
}

// profiles is the environment variable of a directory for the server's profiles.
// Taking them costs some of what is measured.
const profiles = "HUB_BENCH_PROFILES"

// profile runs f while the server's processor profile is taken, and repeats it
// until that is done; without a directory it does nothing.
func (c *child) profile(name string, wait time.Duration, f func() error) error {
	dir := os.Getenv(profiles)
	if dir == "" {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- c.save(dir, name, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(wait.Seconds()))) }()
	for {
		select {
		case err := <-done:
			return err
		default:
			if err := f(); err != nil {
				return err
			}
		}
	}
}

// heap saves the server's heap profile, where profiles are wanted.
func (c *child) heap(name string) error {
	if dir := os.Getenv(profiles); dir != "" {
		return c.save(dir, name, "/debug/pprof/heap?gc=1")
	}
	return nil
}

func (c *child) save(dir, name, path string) error {
	profile, err := c.fetch(path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d.pprof", name, c.cmd.Process.Pid)), profile, 0o600)
}

// floorName is the name under which this binary is the floor's writer.
const floorName = "hub-bench-floor"

func init() {
	if filepath.Base(os.Args[0]) == floorName {
		fmt.Fprintln(os.Stderr, serveFloor(os.Args[1]))
		os.Exit(exitFailed)
	}
}

// serveFloor answers n connections as if it were a server; then it writes
// whatever comes on standard input, each message behind its length, to all of
// them with one write(2) each, on all cores: the least that any server must do.
func serveFloor(n string) error {
	count, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(listener, 4096)); err != nil {
		return err
	}
	at, err := unix.Getsockname(listener)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "floor on 127.0.0.1:%d\n", at.(*unix.SockaddrInet4).Port)
	sockets := make([]int, count)
	err = inParts(sockets, 16, func(part []int) (err error) {
		for i := range part {
			if part[i], err = acceptFloor(listener); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for in := bufio.NewReader(os.Stdin); ; {
		var size uint32
		if err := binary.Read(in, binary.LittleEndian, &size); err != nil {
			return err
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(in, message); err != nil {
			return err
		}
		err := inParts(sockets, runtime.GOMAXPROCS(0), func(part []int) error { return writeAll(part, message) })
		if err != nil {
			return err
		}
	}
}

// inParts runs f on n parts of sockets at once.
func inParts(sockets []int, n int, f func([]int) error) error {
	parts := slices.Collect(slices.Chunk(sockets, (len(sockets)+n-1)/n))
	done := make(chan error, len(parts))
	for _, part := range parts {
		go func() { done <- f(part) }()
	}
	for range parts {
		if err := <-done; err != nil {
			return err
		}
	}
	return nil
}

// acceptFloor goes through the handshake without understanding it: a connection
// on which nothing was ever sent acknowledges every segment at once, which is
// dearer than what follows a conversation.
func acceptFloor(listener int) (int, error) {
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return 0, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return 0, err
	}
	request := make([]byte, 4096)
	for _, answer := range []string{"HTTP/1.1 101 Switching Protocols\r\n\r\n", "\x81\x08{\"id\":1}\x81\x08{\"id\":2}"} {
		if _, err := unix.Read(fd, request); err != nil {
			return 0, err
		}
		if _, err := unix.Write(fd, []byte(answer)); err != nil {
			return 0, err
		}
	}
	return fd, nil
}

func writeAll(sockets []int, message []byte) error {
	for _, fd := range sockets {
		if n, err := unix.Write(fd, message); err != nil || n < len(message) {
			return fmt.Errorf("wrote %d of %d bytes: %w", n, len(message), err)
		}
	}
	return nil
}
