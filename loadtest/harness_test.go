package loadtest

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"hub/hub"
	"hub/loadtest/report"
)

const testSecret = "0123456789abcdef0123456789abcdef"

// startHub runs a server in this process and returns its address.
func startHub(t *testing.T, tune func(*hub.Options)) string {
	t.Helper()
	return runHub(t, tune).Addr()
}

// runHub runs a server in this process.
func runHub(t *testing.T, tune func(*hub.Options)) *hub.Server {
	t.Helper()
	o := hub.DefaultOptions()
	o.Server.Listen, o.Server.DataDir, o.Server.DrainWindow = "127.0.0.1:0", t.TempDir(), 10*time.Millisecond
	o.Server.Loops = 2
	o.Admin.Listen = ""
	o.Auth.HMACSecret = testSecret
	o.Limits.Messages = hub.Rate{}
	o.Database.Names = []string{defaultDatabase, otherDatabase}
	o.Database.Readers = 2
	o.Namespaces = map[string]hub.Namespace{ownNamespace: hub.DefaultNamespace()}
	if tune != nil {
		tune(&o)
	}
	s, err := hub.New(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	return s
}

// small are the options of a short test of a server that runs at addr.
func small(addr string) Options {
	o := DefaultOptions()
	o.URL, o.Secret, o.Namespace = "http://"+addr, testSecret, ownNamespace
	o.Databases = []string{defaultDatabase, otherDatabase}
	o.Conns, o.Rooms, o.Events, o.Rounds = 20, 5, 10, 1
	o.Gap, o.Hold, o.Reconnects = 0, 0, 0
	o.stall, o.settle, o.stream, o.quiet = 3*time.Second, time.Millisecond, 200*time.Millisecond, 100*time.Millisecond
	return o
}

// ownServer are the options of a short test with a server of its own, whose
// files are in a directory that must be empty afterwards.
func ownServer(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("left in the directory of the server: %v %v", left, err)
		}
		if pids := processesOf(dir); len(pids) > 0 {
			t.Errorf("processes left: %v", pids)
		}
	})
	o := small("")
	o.URL, o.Secret, o.Dir = "", "", dir
	o.Program = []string{os.Args[0]}
	o.stall = 5 * time.Second
	return o
}

// processesOf lists the processes whose command line names a directory.
func processesOf(dir string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(dir)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// runTestUntil is runTest with something that is done in a phase.
func runTestUntil(t *testing.T, o Options, phase string, then func(interrupt func())) (*report.Report, string) {
	t.Helper()
	o.Hold = time.Minute
	o.Terminal = true // progress comes often
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	var out, progress lockedBuffer
	done := make(chan *report.Report, 1)
	go func() {
		r, err := Run(ctx, o, &out, &progress)
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	for deadline := time.After(20 * time.Second); !strings.Contains(progress.String(), phase); {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			interrupt()
			<-done
			t.Fatalf("no %q in %q", phase, progress.String())
		}
	}
	then(interrupt)
	r := <-done
	if r == nil {
		t.Fatal("no report")
	}
	return r, out.String()
}

// runTest carries out a load test that must come to a report.
func runTest(t *testing.T, ctx context.Context, o Options) (*report.Report, string) {
	t.Helper()
	var out, progress lockedBuffer
	r, err := Run(ctx, o, &out, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	return r, out.String()
}

// lockedBuffer is a writer that may be read meanwhile.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// checkOf returns a check of a report.
func checkOf(t *testing.T, r *report.Report, name string) report.Check {
	t.Helper()
	i := slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no check %q in %v", name, r.Checks)
	}
	return r.Checks[i]
}

// onlyFailed requires that exactly these checks failed.
func onlyFailed(t *testing.T, r *report.Report, names ...string) {
	t.Helper()
	for _, c := range r.Checks {
		if want := slices.Contains(names, c.Name); want != (c.Result == report.Failed) {
			t.Errorf("check %q: %s (%s), want failed: %v", c.Name, c.Result, c.Detail, want)
		}
	}
	for _, name := range names {
		checkOf(t, r, name)
	}
	if r.Passed() != (len(names) == 0) {
		t.Errorf("passed: %v with %d failed checks", r.Passed(), len(names))
	}
}

// onlyFailedPartly requires the same of a run that was cut short.
func onlyFailedPartly(t *testing.T, r *report.Report, names ...string) {
	t.Helper()
	for _, c := range r.Checks {
		if want := slices.Contains(names, c.Name); want != (c.Result == report.Failed) {
			t.Errorf("check %q: %s (%s), want failed: %v", c.Name, c.Result, c.Detail, want)
		}
	}
	if r.Passed() || !r.Partial {
		t.Errorf("passed: %v, partial: %v", r.Passed(), r.Partial)
	}
}

// proxy stands between clients and a server and may change what the server sends.
type proxy struct {
	listener net.Listener
	server   string
	done     sync.WaitGroup

	mu    sync.Mutex
	conns []*proxied
	// change returns the frames to send instead of one that the server sent. It is
	// called with mu held, for publications only.
	change func(c *proxied, frame []byte) [][]byte
	// reply, unless nil, is the same for all other frames.
	reply func(c *proxied, frame []byte) [][]byte
}

// proxied is one connection through a proxy.
type proxied struct {
	number int
	db     string
	client net.Conn
	server net.Conn
	held   []byte // for change
}

func startProxy(t *testing.T, server string, change func(c *proxied, frame []byte) [][]byte) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, server: server, change: change}
	p.done.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.client.Close()
			_ = c.server.Close()
		}
		p.mu.Unlock()
		p.done.Wait()
	})
	return p
}

func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	c := &proxied{client: client, server: server, db: defaultDatabase}
	defer client.Close()
	defer server.Close()
	in := bufio.NewReader(client)
	request, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	if request.URL.Path == "/v1/"+otherDatabase+"/websocket" {
		c.db = otherDatabase
	}
	p.mu.Lock()
	c.number = len(p.conns)
	p.conns = append(p.conns, c)
	p.mu.Unlock()
	p.done.Go(func() {
		if request.Write(server) == nil {
			_, _ = io.Copy(server, in)
		}
		_ = server.Close()
	})
	p.fromServer(c)
}

// fromServer passes on the head, and then frame by frame.
func (p *proxy) fromServer(c *proxied) {
	out := bufio.NewReader(c.server)
	for {
		line, err := out.ReadString('\n')
		if _, werr := io.WriteString(c.client, line); err != nil || werr != nil {
			return
		}
		if line == "\r\n" {
			break
		}
	}
	var data []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := out.Read(buf)
		if err != nil {
			return
		}
		data = append(data, buf[:n]...)
		for {
			_, rest, ok, err := cutFrame(data)
			if err != nil {
				return
			}
			if !ok {
				break
			}
			frame := data[:len(data)-len(rest)]
			data = rest
			if !p.pass(c, frame) {
				return
			}
		}
	}
}

func (p *proxy) pass(c *proxied, frame []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	frames := [][]byte{frame}
	isPublication := bytes.HasPrefix(frame[2:], []byte(`{"push"`)) || len(frame) > 4 && bytes.HasPrefix(frame[4:], []byte(`{"push"`))
	switch {
	case isPublication && p.change != nil:
		frames = p.change(c, frame)
	case !isPublication && p.reply != nil:
		frames = p.reply(c, frame)
	}
	for _, f := range frames {
		if _, err := c.client.Write(f); err != nil {
			return false
		}
	}
	return true
}

// numberOf is the number of the event in a frame.
func numberOf(frame []byte) string {
	_, rest, _ := strings.Cut(string(frame), `{"seq":"`)
	return strings.TrimLeft(rest[:seqDigits], "0")
}

// roomOf is the number of the room in a frame.
func roomOf(frame []byte) string {
	_, rest, _ := strings.Cut(string(frame), `","room":"`)
	return rest[:roomDigits]
}
