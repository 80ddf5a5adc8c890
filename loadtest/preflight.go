package loadtest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"hub/loadtest/report"
)

// spareDescriptors is what a process needs besides its connections: the server
// reserves 256 for files and requests.
const spareDescriptors = 300

// preflight looks for what would make the run fail or lie, and says what helps.
func (r *runner) preflight(stderr io.Writer) error {
	if err := r.options.tryReports(); err != nil {
		return err
	}
	limit, known := descriptorLimit()
	if known {
		r.limit = limit
		if need := int64(r.options.Conns) + spareDescriptors; limit < need && r.options.Scenario != "connect" {
			return fmt.Errorf("%d connections need %d descriptors in a process, the limit is %d: "+
				"raise it (ulimit -Hn %d as root, or LimitNOFILE= of the service), or take at most -conns %d",
				r.options.Conns, need, limit, need, max(0, limit-spareDescriptors))
		}
	}
	if r.options.URL != "" {
		_, _, _, err := r.options.target()
		return err
	}
	if err := r.probeAddresses(); err != nil {
		return err
	}
	return r.chooseDirectory(stderr)
}

// probeAddresses tries an address of those that connections will have.
func (r *runner) probeAddresses() error {
	if !manyLoopbacks {
		return nil
	}
	at := newAddresses(r.options.Seed).take()
	l, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		return fmt.Errorf("loopback address %s: %w; the interface lo must be up with 127.0.0.0/8: ip link set lo up", at, err)
	}
	return l.Close()
}

// chooseDirectory finds a disk for the server: commits to memory prove nothing.
func (r *runner) chooseDirectory(stderr io.Writer) error {
	candidates := []string{r.options.Dir}
	if r.options.Dir == "" {
		candidates = []string{os.TempDir(), "."}
	}
	for _, name := range candidates {
		dir, err := directory(name)
		if err != nil && r.options.Dir != "" {
			return fmt.Errorf("%w: -dir: %w", ErrOptions, err)
		}
		if err != nil {
			continue
		}
		r.parent = dir
		if kind, inMemory := fileSystem(dir); !inMemory {
			if name != os.TempDir() {
				fmt.Fprintf(stderr, "the server's files are in %s (%s)\n", dir, kind)
			}
			return nil
		}
	}
	if r.options.Dir == "" {
		return fmt.Errorf("neither %s nor the current directory is on a disk, and commits to memory prove nothing: name a directory on a disk by -dir or TMPDIR", os.TempDir())
	}
	fmt.Fprintf(stderr, "warning: %s is in memory: nothing that this run measures of durable events is true of a disk\n", r.parent)
	r.problem("the server's files were in memory (%s): figures of durable events are not those of a disk", r.parent)
	return nil
}

// directory is the absolute path of a directory that exists.
func directory(name string) (string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is no directory", name)
	}
	return filepath.Abs(name)
}

// tryReports finds out whether the files for the report can be written, before
// two minutes are spent on what goes there. One that is there stays as it is.
func (o *Options) tryReports() error {
	for _, f := range []struct{ flag, path string }{{"json", o.JSON}, {"html", o.HTML}} {
		if f.path == "" {
			continue
		}
		_, missing := os.Stat(f.path)
		file, err := os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY, 0o666)
		if err == nil {
			err = file.Close()
		}
		if err == nil && missing != nil {
			err = os.Remove(f.path)
		}
		if err != nil {
			return fmt.Errorf("%w: -%s: %w", ErrOptions, f.flag, err)
		}
	}
	return nil
}

// target is the server at -url.
func (o *Options) target() (addr netip.AddrPort, host string, secure bool, err error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return addr, "", false, err
	}
	secure = u.Scheme == "https"
	port := u.Port()
	if port == "" {
		port = map[bool]string{false: "80", true: "443"}[secure]
	}
	tcp, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return addr, "", false, fmt.Errorf("-url: %w", err)
	}
	addr = tcp.AddrPort()
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), u.Host, secure, nil
}

// readers is how many threads read the sockets: one for two cores, since the
// server needs the others.
func readers() int { return max(1, min(4, runtime.NumCPU()/2)) }

func tool(o *Options) report.Tool {
	return report.Tool{Name: "hub loadtest", Version: o.Version, Commit: o.Commit, Go: runtime.Version()}
}

// describe notes machine and settings.
func (r *runner) describe() {
	r.report.Started = time.Now().UTC()
	e := &r.report.Environment
	e.OS, e.Arch, e.Cores = runtime.GOOS, runtime.GOARCH, runtime.NumCPU()
	e.DescriptorLimit = r.limit
	e.SameMachine = true
	if r.options.URL == "" {
		e.DataDisk = r.parent
		e.DataFileSystem, _ = fileSystem(r.parent)
		r.report.Settings.Raised = settingsOf(r.names())
	} else if addr, _, _, err := r.options.target(); err == nil {
		e.SameMachine = addr.Addr().IsLoopback()
	}
	describeMachine(e)
	e.LoadBefore = loadAverage()
	r.report.Settings.Flags = r.options.settings()
}

// settings are the flags with their effective values, secrets excepted.
func (o *Options) settings() []report.Setting {
	d := DefaultOptions()
	list := []report.Setting{}
	add := func(name string, value, def any) {
		list = append(list, report.Setting{Name: name, Value: fmt.Sprint(value), Default: fmt.Sprint(def)})
	}
	add("scenario", o.Scenario, d.Scenario)
	if o.Scenario == "connect" && o.Most == 0 {
		add("conns", "as many as descriptors allow", "as many as descriptors allow")
	} else {
		add("conns", o.Conns, d.Conns)
	}
	add("rooms", o.Rooms, d.Rooms)
	add("events", o.Events, d.Events)
	add("rounds", o.Rounds, d.Rounds)
	add("gap", o.Gap, d.Gap)
	add("hold", o.Hold, d.Hold)
	add("reconnects", o.Reconnects, d.Reconnects)
	add("kills", o.Kills, d.Kills)
	add("duration", o.Duration, d.Duration)
	add("size", o.Size, d.Size)
	add("url", o.URL, d.URL)
	add("namespace", o.namespace(), ownNamespace)
	add("databases", strings.Join(o.databases(), ","), strings.Join(d.databases(), ","))
	add("tls", o.TLS, d.TLS)
	add("sources", o.Sources, d.Sources)
	add("seed", o.Seed, "")
	add("protobuf", o.Protobuf, d.Protobuf)
	add("distinct-users", o.DistinctUsers, d.DistinctUsers)
	return list
}

// conclude computes the verdict.
func (r *runner) conclude() {
	r.report.Ended = time.Now().UTC()
	r.report.Environment.LoadAfter = loadAverage()
	var others []string
	for _, name := range everyScenario {
		if !slices.ContainsFunc(r.report.Scenarios, func(s report.Scenario) bool { return s.Name == name }) {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		r.report.NotTested = append(r.report.NotTested, "the scenarios "+strings.Join(others, ", "))
	}
	if !r.revalidated {
		r.report.NotTested = append(r.report.NotTested, "revalidation of all connections during delivery")
	}
	if r.options.URL == "" {
		r.report.NotTested = append(r.report.NotTested,
			"a power cut: a killed process loses no commit, a machine without power may lose the last ones with synchronous=normal")
	}
	if r.report.Environment.SameMachine {
		r.report.NotTested = append(r.report.NotTested, "networks: everything went over the loopback interface")
	}
	if !r.options.floored() {
		r.report.NotTested = append(r.report.NotTested, "how far delivery is from what the machine can do at best: a server elsewhere, TLS and other systems than Linux have no floor")
	}
	r.report.Finish()
}
