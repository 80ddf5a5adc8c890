package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	mathrand "math/rand/v2"

	"hub/auth"
	"hub/hub/poll"
	"hub/ratelimit"
	"hub/store"
)

// Server is a running hub: its databases, event loops and listeners. Make one
// with [New], serve with [Server.Run].
type Server struct {
	// fixed after New

	// opts are those of the start. What a reload changes is read from policy instead.
	opts      Options
	log       *slog.Logger
	start     time.Time // zero of the loops' clocks
	source    *auth.Source
	slots     *ratelimit.Slots
	gates     gates
	databases databases
	registry  *store.Registry
	sizes     logSizes
	memory    *logMemory
	metrics   *metrics
	backend   poll.Backend
	loops     []*loop
	listener  net.Listener
	admin     net.Listener // nil when switched off
	addr      net.Addr
	handed    *handedListener // connections that a loop gave to net/http
	lock      io.Closer       // of the data directory
	poison    bool            // tests: overwrite read buffers after use
	// committing, in tests, sees what was committed before the rooms do
	committing func([]store.Event)
	// clock, in tests, is the wall clock; nil: that of package time
	clock func() time.Time

	// context ends when the databases are about to close; it is what reads wait under.
	context context.Context
	stop    context.CancelFunc
	// ended is closed when no loop runs any more.
	ended chan struct{}
	// verifying checks tokens with public keys, one at a time.
	verifying workers
	// background are the goroutines that end with context or source.
	background sync.WaitGroup

	// policy is what may change while running; written under updating.
	policy      atomic.Pointer[policy]
	revocations revocationList

	reloading sync.Mutex           // one reload at a time
	declared  map[string]Namespace // all that there ever were, latest; guarded by reloading

	listing     sync.Mutex // held by the admin request that goes over all loops
	maintenance sync.Mutex // held by the backup or check under way

	updating sync.Mutex
	caps     map[capKey]int // set while running; guarded by updating
	cappedAt int            // the cap that was last logged as too high; guarded by updating

	// atomic
	loopTurn  atomic.Uint32
	connected atomic.Uint64 // connections that there ever were
	serving   atomic.Bool
	draining  atomic.Bool
	replies   atomic.Int64 // bytes of large HTTP replies on their way
}

// New opens the databases of o, locks the data directory and listens. Nothing
// is served before [Server.Run]. The caller has validated o.
func New(o Options, log *slog.Logger) (*Server, error) { return newServer(o, log, nil) }

// newServer is New. A test's tune changes the server before its parts are made:
// backend, listener, sizes, poison, committing.
func newServer(o Options, log *slog.Logger, tune func(*Server)) (_ *Server, err error) {
	s := &Server{
		opts: o, log: log, start: time.Now(),
		sizes:    defaultLogSizes(o.Limits.Unsent),
		memory:   newLogMemory(o.Limits.LogMemory),
		slots:    ratelimit.NewSlots(0, 0, 0), // loadCaps sets them
		gates:    newGates(&o.Limits),
		caps:     make(map[capKey]int),
		declared: make(map[string]Namespace, len(o.Namespaces)),
		cappedAt: -1,
	}
	s.ended = make(chan struct{})
	s.context, s.stop = context.WithCancel(context.Background())
	s.verifying.max, s.verifying.recovered = 1, s.panicked
	s.metrics = newMetrics(s)
	if tune != nil {
		tune(s)
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	p, err := newPolicy(o)
	if err != nil {
		return nil, err
	}
	if s.source, err = auth.Open(s.context, o.Auth, log); err != nil {
		return nil, err
	}
	maps.Copy(s.declared, o.Namespaces)
	p.verifier = s.verifier(o.Admin.Key)
	s.policy.Store(p)
	s.background.Go(s.watchKeys)
	if err = s.newLoops(); err != nil {
		return nil, err
	}
	if err = s.openData(); err != nil {
		return nil, err
	}
	s.background.Go(s.sweepRevocations)
	return s, s.listen()
}

// openData opens what is durable, and puts in force what earlier runs were told.
func (s *Server) openData() (err error) {
	dir := s.opts.Server.DataDir
	if s.lock, err = store.LockDir(dir); err != nil {
		return fmt.Errorf("data directory %s: %w", dir, err)
	}
	if s.registry, err = store.OpenRegistry(filepath.Join(dir, registryFile), s.log); err != nil {
		return err
	}
	if err := errors.Join(s.loadRevocations(), s.openDatabases()); err != nil {
		return err
	}
	return s.loadCaps() // they leave the databases their descriptors
}

// registryFile is what the server itself remembers; no database has such a name.
const registryFile = "_hub.db"

// databasePath is the file of a database; names are checked by Validate.
func databasePath(dir, name string) string { return filepath.Join(dir, name+".db") }

func (s *Server) newLoops() error {
	switch {
	case s.backend != nil:
	case s.opts.Server.Backend == "portable" || s.opts.Server.TLSCert != "":
		s.backend = poll.Portable()
	default:
		s.backend = poll.Default()
	}
	n := s.opts.Server.Loops
	if n == 0 {
		n = runtime.GOMAXPROCS(0)
	}
	for i := range n {
		p, err := s.backend.NewPoller()
		if err != nil {
			return fmt.Errorf("event loop: %w", err)
		}
		s.loops = append(s.loops, newLoop(s, i, p))
	}
	return nil
}

func (s *Server) listen() (err error) {
	if s.listener == nil {
		tcp := poll.ListenConfig()
		if s.listener, err = tcp.Listen(s.context, "tcp", s.opts.Server.Listen); err != nil {
			return fmt.Errorf("server.listen: %w", err)
		}
	}
	s.addr = s.listener.Addr()
	s.handed = newHandedListener(s.addr)
	if s.opts.Admin.Listen != "" {
		s.admin, err = net.Listen("tcp", s.opts.Admin.Listen)
		if err != nil && s.opts.Development { // nobody asked for that port
			host, _, _ := net.SplitHostPort(s.opts.Admin.Listen)
			s.admin, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
		}
		if err != nil {
			return fmt.Errorf("admin.listen: %w", err)
		}
	}
	return nil
}

// Addr returns the address that clients connect to.
func (s *Server) Addr() string { return s.addr.String() }

// AdminAddr returns the address of metrics and profiles; empty when switched off.
func (s *Server) AdminAddr() string {
	if s.admin == nil {
		return ""
	}
	return s.admin.Addr().String()
}

// rescue, deferred, keeps a panic from ending the process.
func (s *Server) rescue() {
	if p := recover(); p != nil {
		s.panicked(p)
	}
}

// panicked counts and logs a panic that was recovered from.
func (s *Server) panicked(p any) {
	s.metrics.panics.Inc()
	s.log.Error("panic", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
}

// nextLoop spreads connections over the loops.
func (s *Server) nextLoop() *loop {
	return s.loops[int(s.loopTurn.Add(1))%len(s.loops)]
}

// Run serves until ctx ends, then drains: no new connections, a close frame
// 3001 for every client spread over the drain window, all accepted writes
// finished, databases checkpointed and closed. It returns nil after an orderly
// stop. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, len(s.loops)+3)
	var loops sync.WaitGroup
	for _, l := range s.loops {
		loops.Go(func() {
			if err := l.run(); err != nil {
				failed <- fmt.Errorf("event loop: %w", err)
			}
		})
	}
	client, admin := s.httpServer(s.clientHandler()), s.httpServer(s.adminRoutes())
	serve := func(srv *http.Server, l net.Listener) {
		go func() {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		}()
	}
	if err := s.serveClients(client, serve); err != nil {
		failed <- err
	}
	if s.admin != nil {
		serve(admin, s.admin)
	}
	s.serving.Store(true)

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.drain(&loops, client)
	_ = admin.Close() // open to the end: readiness and metrics show the drain
	if err = errors.Join(err, s.close()); err == nil {
		s.log.Info("stopped")
	}
	return err
}

// serveClients accepts in a loop where the backend can, else through net/http.
func (s *Server) serveClients(srv *http.Server, serve func(*http.Server, net.Listener)) error {
	if s.opts.Server.TLSCert != "" {
		serve(srv, tls.NewListener(s.listener, &tls.Config{
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.policy.Load().certificate, nil },
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"http/1.1"},
		}))
		return nil
	}
	acceptor, err := s.backend.Listen(s.listener)
	if errors.Is(err, errors.ErrUnsupported) {
		serve(srv, s.listener)
		return nil
	}
	if err != nil {
		return err
	}
	s.listener = nil
	serve(srv, s.handed)
	l := s.loops[0]
	l.post(func() {
		if err := l.listen(acceptor); err != nil {
			s.log.Error("cannot accept connections", slog.Any("error", err))
		}
	})
	return nil
}

// httpServer is net/http with the timeouts that it lacks by default.
func (s *Server) httpServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return s.context }, // of reads: they end before the databases
		ReadHeaderTimeout: s.opts.Server.HandshakeTimeout,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// drainSlack is how long after the drain window clients may take to close.
const drainSlack = closeWait + time.Second

// drain ends the connections and waits for the loops.
func (s *Server) drain(loops *sync.WaitGroup, client *http.Server) {
	s.draining.Store(true)
	connections, _ := s.slots.Counts()
	s.log.Info("stopping", slog.Int("connections", connections), slog.String("drain_window", s.opts.Server.DrainWindow.String()))
	for _, l := range s.loops {
		l.post(l.drain)
	}
	deadline, cancel := context.WithTimeout(context.Background(), s.opts.Server.DrainWindow+drainSlack)
	defer cancel()
	if err := client.Shutdown(deadline); err != nil {
		_ = client.Close()
	}
	done := make(chan struct{})
	go func() {
		loops.Wait()
		close(s.ended)
		close(done)
	}()
	select {
	case <-done:
	case <-deadline.Done():
		for _, l := range s.loops {
			l.post(l.dropAll)
		}
		<-done
	}
}

// drain makes the loop end when its connections have: no command is read any
// more, each client is closed at a time of its own in the drain window.
func (l *loop) drain() {
	l.unlisten()
	l.stopping = true
	for i := len(l.conns) - 1; i >= 0; i-- {
		c := l.conns[i]
		switch c.state {
		case stateConnected:
			c.setPaused(true)
			c.deadline = l.now + 1 + mathrand.N(l.server.opts.Server.DrainWindow+1)
			l.schedule(c)
		case stateClosing:
		default:
			l.disconnect(c, closeShutdown)
		}
	}
}

// dropAll ends what did not end in time.
func (l *loop) dropAll() {
	for len(l.conns) > 0 {
		l.drop(l.conns[len(l.conns)-1])
	}
}

// close frees everything; the loops do not run any more. Writes that were
// accepted are finished first.
func (s *Server) close() error {
	var errs []error
	if s.listener != nil {
		_ = s.listener.Close()
	}
	if s.admin != nil {
		_ = s.admin.Close()
	}
	if s.handed != nil {
		_ = s.handed.Close()
	}
	timeout, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	databases := s.databases.close()
	for name, db := range databases {
		if err := db.close(timeout); err != nil {
			errs = append(errs, fmt.Errorf("close database %s: %w", name, err))
		}
	}
	s.stop()
	for _, db := range databases {
		db.queries.wait()
		db.pages.wait()
	}
	s.verifying.wait()
	s.maintenance.Lock() // what was under way has ended, and left nothing
	defer s.maintenance.Unlock()
	if s.source != nil {
		s.source.Close()
	}
	s.background.Wait()
	for _, l := range s.loops {
		l.collect() // what came too late closes itself
		_ = l.poller.Close()
	}
	if s.registry != nil {
		errs = append(errs, s.registry.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// closeTimeout bounds the writing of what was accepted.
const closeTimeout = 10 * time.Second
