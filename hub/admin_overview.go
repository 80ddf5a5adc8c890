package hub

import (
	"maps"
	"os"
	"runtime"
	runtimemetrics "runtime/metrics"
	"slices"
	"strings"
	"time"
)

// overview is the server at a glance. It costs some tens of microseconds and as much
// for each database, takes no lock of a loop, and may be asked for every second.
type overview struct {
	Version string `json:"version"`
	State   string `json:"state"`   // starting, serving or draining
	Started int64  `json:"started"` // unix milliseconds
	Uptime  int64  `json:"uptime"`  // seconds
	Loops   int    `json:"loops"`
	// Address is the host:port that clients connect to, over TLS or not.
	Address string `json:"address"`
	TLS     bool   `json:"tls"`
	// Development: the server runs without a configuration.
	Development bool `json:"development"`

	Process  processOverview            `json:"process"`
	Requests map[string]requestOverview `json:"requests"` // by class

	Sockets       int64  `json:"sockets"`
	Connections   int64  `json:"connections"`
	Subscriptions int64  `json:"subscriptions"`
	Rooms         int    `json:"rooms"` // live ones
	LogBytes      int64  `json:"log_bytes"`
	Publications  uint64 `json:"publications"`
	Deliveries    uint64 `json:"deliveries"`
	SocketWrites  uint64 `json:"socket_writes"`
	Operations    uint64 `json:"operations"`

	// By code, and by class and scope of the limit. Since the start.
	Errors      map[string]uint64 `json:"errors"`      // replies to commands
	Disconnects map[string]uint64 `json:"disconnects"` // close frames
	Limited     map[string]uint64 `json:"limited"`     // requests and connections
	Panics      uint64            `json:"panics"`

	Databases []databaseOverview `json:"databases"`
}

type processOverview struct {
	Memory          int64   `json:"memory"` // resident bytes; 0: the system does not say
	Heap            uint64  `json:"heap"`   // bytes of objects, dead ones that were not collected yet included
	CPU             float64 `json:"cpu"`    // seconds
	Goroutines      int     `json:"goroutines"`
	Descriptors     int     `json:"descriptors"` // open ones; 0: the system does not say
	DescriptorLimit int     `json:"descriptor_limit"`
}

// requestOverview is the requests of a class since the start; its times are those of
// the last minute.
type requestOverview struct {
	Total        uint64  `json:"total"`
	ClientErrors uint64  `json:"client_errors"` // status 4xx, limited ones included
	ServerErrors uint64  `json:"server_errors"` // status 5xx
	Limited      uint64  `json:"limited"`       // status 429
	Recent       uint64  `json:"recent"`        // in the last minute
	P50          float64 `json:"p50_ms"`
	P95          float64 `json:"p95_ms"`
	P99          float64 `json:"p99_ms"`
}

// databaseOverview is one database. Totals are since it was opened, quantiles those
// of the last minute.
type databaseOverview struct {
	Name          string         `json:"name"`
	Configured    bool           `json:"configured"` // in database.names; else created while running
	Connections   int64          `json:"connections"`
	Subscriptions int64          `json:"subscriptions"`
	Rooms         int            `json:"rooms"`        // live ones
	StoredRooms   int64          `json:"stored_rooms"` // ever published to
	Publications  uint64         `json:"publications"` // operations included
	Deliveries    uint64         `json:"deliveries"`
	Operations    uint64         `json:"operations"`
	FileBytes     int64          `json:"file_bytes"`
	WALBytes      int64          `json:"wal_bytes"`
	Queue         queueOverview  `json:"queue"`
	Commits       commitOverview `json:"commits"`
	Readers       int            `json:"readers"` // in use
	ReaderLimit   int            `json:"reader_limit"`
}

type queueOverview struct {
	Length int     `json:"length"`
	Bytes  int     `json:"bytes"`
	Wait   float64 `json:"wait_ms"` // of the oldest
}

type commitOverview struct {
	Total  uint64  `json:"total"`
	Failed uint64  `json:"failed"` // batches abandoned
	Recent uint64  `json:"recent"` // in the last minute
	P50    float64 `json:"p50_ms"`
	P95    float64 `json:"p95_ms"`
	P99    float64 `json:"p99_ms"`
	Batch  int64   `json:"batch_p50"` // operations
	Most   int64   `json:"batch_max"`
}

func adminOverview(c *adminCall) (any, *problem) { return c.s.overview(), nil }

func (s *Server) overview() *overview {
	now := time.Since(s.start)
	counters := s.metrics.labelled()
	o := &overview{
		Version: s.opts.Version, State: s.state(), Started: s.start.UnixMilli(), Uptime: int64(now / time.Second),
		Loops: len(s.loops), Process: newProcessOverview(),
		Address: s.Addr(), TLS: s.opts.Server.TLSCert != "", Development: s.opts.Development,
		Requests: s.metrics.traffic.overview(now),
		LogBytes: s.memory.bytes(),
		Errors:   orEmpty(counters["hub_errors_total"]), Disconnects: orEmpty(counters["hub_disconnects_total"]),
		Limited: orEmpty(counters["hub_limit_refusals_total"]), Panics: counters["hub_panics_total"][""],
		Databases: s.databaseOverviews(now),
	}
	o.Sockets, o.SocketWrites = s.socketCounts()
	for i := range o.Databases {
		db := &o.Databases[i]
		o.Connections += db.Connections
		o.Subscriptions += db.Subscriptions
		o.Rooms += db.Rooms
		o.Publications += db.Publications
		o.Deliveries += db.Deliveries
		o.Operations += db.Operations
	}
	return o
}

func (s *Server) state() string {
	switch {
	case s.draining.Load():
		return "draining"
	case s.serving.Load():
		return "serving"
	}
	return "starting"
}

func (s *Server) databaseOverviews(now time.Duration) []databaseOverview {
	all := s.databases.all()
	rows := make([]databaseOverview, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		rows = append(rows, all[name].overview(now))
	}
	return rows
}

func (db *database) overview(now time.Duration) databaseOverview {
	st, commits, batches := db.store.Stats(), db.commits.summary(now), db.batches.summary(now)
	o := databaseOverview{
		Name: db.name, Configured: slices.Contains(db.server.opts.Database.Names, db.name),
		Connections: db.connections.Load(), Rooms: db.liveCount(), StoredRooms: st.Rooms,
		Publications: st.Published + db.ephemeral.Load(), Operations: db.operations.Load(),
		FileBytes: fileSize(databasePath(db.server.opts.Server.DataDir, db.name)), WALBytes: st.WAL,
		Queue: queueOverview{st.Queue, st.QueueBytes, milliseconds(st.QueueWait.Microseconds())},
		Commits: commitOverview{Total: st.Commits, Failed: st.Failed, Recent: commits.recent,
			P50: milliseconds(commits.p50), P95: milliseconds(commits.p95), P99: milliseconds(commits.p99),
			Batch: batches.p50, Most: batches.max},
		Readers: st.Readers, ReaderLimit: db.server.opts.Database.Readers,
	}
	o.Subscriptions, o.Deliveries = db.counts()
	return o
}

// fileSize never opens the file: that would drop SQLite's locks on it.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

func (t *traffic) overview(now time.Duration) map[string]requestOverview {
	classes := make(map[string]requestOverview, len(t.classes))
	for i := range t.classes {
		c := &t.classes[i]
		times := c.times.summary(now)
		o := requestOverview{
			ClientErrors: c.statuses[4].Load(), ServerErrors: c.statuses[5].Load(), Limited: c.limited.Load(),
			Recent: times.recent, P50: milliseconds(times.p50), P95: milliseconds(times.p95), P99: milliseconds(times.p99),
		}
		for class := range c.statuses {
			o.Total += c.statuses[class].Load()
		}
		classes[trafficNames[i]] = o
	}
	return classes
}

// labelled reads the counters that an overview shows: by name, and by their labels
// joined by a slash.
func (m *metrics) labelled() map[string]map[string]uint64 {
	families, _ := m.shown.Gather() // of our own counters, which cannot fail
	counters := make(map[string]map[string]uint64, len(families))
	for _, f := range families {
		values := make(map[string]uint64, len(f.GetMetric()))
		for _, metric := range f.GetMetric() {
			labels := make([]string, len(metric.GetLabel()))
			for i, l := range metric.GetLabel() {
				labels[i] = l.GetValue()
			}
			values[strings.Join(labels, "/")] = uint64(metric.GetCounter().GetValue())
		}
		counters[f.GetName()] = values
	}
	return counters
}

// orEmpty makes no counters an object rather than null.
func orEmpty(values map[string]uint64) map[string]uint64 {
	if values == nil {
		return map[string]uint64{}
	}
	return values
}

func newProcessOverview() processOverview {
	heap := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtimemetrics.Read(heap)
	return processOverview{
		Memory: residentBytes(), Heap: heap[0].Value.Uint64(), CPU: processorTime().Seconds(),
		Goroutines: runtime.NumGoroutine(), Descriptors: openDescriptors(), DescriptorLimit: descriptorLimit(),
	}
}
