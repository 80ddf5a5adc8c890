package hub

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Labels come from tables of this program (codes, databases, routes), never
// from rooms, users, addresses or error texts: their number cannot grow.

// loopStats are counted by one loop alone, so its processor keeps the line.
type loopStats struct {
	sockets atomic.Int64
	writes  atomic.Uint64
	_       [64]byte
}

// databaseStats are of one database in one loop, which counts them.
type databaseStats struct {
	subscriptions atomic.Int64
	delivered     atomic.Uint64
	_             [64]byte
}

// metrics are the server's figures in Prometheus form.
type metrics struct {
	registry     *prometheus.Registry
	shown        *prometheus.Registry // those of registry that an overview shows
	start        time.Time            // of the server
	traffic      traffic
	commands     commandCounters
	publications struct{ client, http, api prometheus.Counter }
	errors       *prometheus.CounterVec // by code
	disconnects  *prometheus.CounterVec // by code
	unsubscribes *prometheus.CounterVec // by code
	refusals     *prometheus.CounterVec // upgrades, by HTTP status
	limited      *prometheus.CounterVec // requests and connections, by class and scope
	requests     *prometheus.HistogramVec
	slow, panics prometheus.Counter
	pages        prometheus.Counter
	batch        prometheus.Histogram
	commit       prometheus.Histogram
}

// commandCounters are resolved once, not by name for each command.
type commandCounters struct {
	connect, subscribe, unsubscribe, publish, rpc, history, presence,
	presenceStats, refresh, subRefresh, send prometheus.Counter
}

func newMetrics(s *Server) *metrics {
	reg := prometheus.NewRegistry()
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "hub", Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "hub", Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "hub", Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	m := &metrics{
		registry:     reg,
		start:        s.start,
		errors:       vec("errors_total", "Commands answered with an error, by its number, or with a problem, by its code.", "code"),
		disconnects:  vec("disconnects_total", "Close frames sent, answers to the client's included.", "code"),
		unsubscribes: vec("unsubscribes_total", "Subscriptions ended by the server.", "code"),
		refusals:     vec("upgrade_refusals_total", "Upgrades refused.", "status"),
		limited:      vec("limit_refusals_total", "Requests and connections refused by a limit: of an address, a database or the server.", "class", "scope"),
		slow:         counter("slow_disconnects_total", "Connections closed because they lost their place in a room."),
		panics:       counter("panics_total", "Panics that ended one connection or request."),
		pages:        counter("catch_up_pages_total", "Pages read from the store for receivers behind a room's log."),
		batch:        histogram("write_batch_size", "Operations in one commit.", prometheus.ExponentialBuckets(1, 2, 11)),
		commit:       histogram("write_commit_seconds", "Time of one batch from BEGIN to the end of COMMIT.", prometheus.ExponentialBuckets(0.0001, 2, 16)),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "hub", Name: "http_request_seconds",
			Help: "Time of HTTP requests.", Buckets: prometheus.ExponentialBuckets(0.000025, 4, 11)}, []string{"route", "status"}),
	}
	commands := vec("commands_total", "Commands of clients.", "command")
	for name, c := range map[string]*prometheus.Counter{
		"connect": &m.commands.connect, "subscribe": &m.commands.subscribe, "unsubscribe": &m.commands.unsubscribe,
		"publish": &m.commands.publish, "rpc": &m.commands.rpc, "history": &m.commands.history,
		"presence": &m.commands.presence, "presence_stats": &m.commands.presenceStats,
		"refresh": &m.commands.refresh, "sub_refresh": &m.commands.subRefresh, "send": &m.commands.send,
	} {
		*c = commands.WithLabelValues(name)
	}
	publications := vec("publications_total", "Publications submitted.", "by")
	m.publications.client, m.publications.http = publications.WithLabelValues("client"), publications.WithLabelValues("http")
	m.publications.api = publications.WithLabelValues("api")
	m.shown = prometheus.NewRegistry()
	m.shown.MustRegister(m.errors, m.disconnects, m.limited, m.panics)
	reg.MustRegister(m.requests, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &collector{s})
	return m
}

func (m *metrics) observeBatch(batch int, commit time.Duration) {
	m.batch.Observe(float64(batch))
	m.commit.Observe(commit.Seconds())
}

// statusClasses are the label of a response, by the first digit of its status.
var statusClasses = [...]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"}

// request counts one request by the pattern of its route, "" for none.
func (m *metrics) request(route string, status int, took time.Duration) {
	if route == "" {
		route = "unknown"
	}
	m.requests.WithLabelValues(route, statusClasses[statusClass(status)]).Observe(took.Seconds())
	m.traffic.request(route, status, time.Since(m.start), took)
}

// statusClass returns the index in statusClasses.
func statusClass(status int) int {
	if class := status / 100; class < len(statusClasses) {
		return class
	}
	return 0
}

// refused counts an upgrade that was refused.
func (m *metrics) refused(status int) {
	m.refusals.WithLabelValues(strconv.Itoa(status)).Inc()
	m.traffic.refused(status)
}

func errorLabel(code uint32) string       { return strconv.Itoa(int(code)) }
func unsubscribeLabel(code uint32) string { return strconv.Itoa(int(code)) }

// closeLabel is the label of a close code; those that clients or callers of the
// server API chose share one.
func closeLabel(code uint16) string {
	switch code {
	case 1002, 1007, 1009, closeInternal.code, closeShutdown.code, closeExpired.code, closeSlow.code,
		closeNoPong.code, closeInvalidToken.code, closeBadRequest.code, closeStale.code, closeForced.code:
		return strconv.Itoa(int(code))
	}
	return "other"
}

// collector reads what is counted elsewhere when it is asked.
type collector struct{ s *Server }

var (
	descSockets       = desc("sockets", "Open sockets, handshakes included.")
	descConnections   = desc("connections", "Authenticated connections.", "database")
	descSubscriptions = desc("subscriptions", "Live subscriptions.", "database")
	descDelivered     = desc("deliveries_total", "Publications written to subscribers.", "database")
	descWrites        = desc("socket_writes_total", "Writes to sockets.")
	descRooms         = desc("rooms_live", "Rooms that somebody is subscribed to.", "database")
	descLog           = desc("log_bytes", "Memory of the rooms' logs.")
	descQueue         = desc("write_queue_length", "Writes that wait for the writer.", "database")
	descQueueWait     = desc("write_queue_wait_seconds", "How long the oldest write has waited for the writer.", "database")
	descWAL           = desc("wal_bytes", "Size of the write-ahead log.", "database")
	descReaders       = desc("readers_busy", "Read connections in use.", "database")
	descStored        = desc("stored_rooms", "Rooms ever published to.", "database")
	descFailed        = desc("failed_batches_total", "Batches abandoned because of an error.", "database")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("hub_"+name, help, labels, nil)
}

// socketCounts are the open sockets and the writes to sockets ever.
func (s *Server) socketCounts() (sockets int64, writes uint64) {
	for _, l := range s.loops {
		sockets += l.stats.sockets.Load()
		writes += l.stats.writes.Load()
	}
	return sockets, writes
}

// counts are the live subscriptions, and the publications ever written to subscribers.
func (db *database) counts() (subscriptions int64, delivered uint64) {
	for i := range db.stats {
		subscriptions += db.stats[i].subscriptions.Load()
		delivered += db.stats[i].delivered.Load()
	}
	return subscriptions, delivered
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	sockets, writes := c.s.socketCounts()
	send(descSockets, prometheus.GaugeValue, float64(sockets))
	send(descWrites, prometheus.CounterValue, float64(writes))
	send(descLog, prometheus.GaugeValue, float64(c.s.memory.bytes()))
	for name, db := range c.s.databases.all() {
		db.mu.RLock()
		rooms := len(db.rooms)
		db.mu.RUnlock()
		st := db.store.Stats()
		subscriptions, delivered := db.counts()
		send(descSubscriptions, prometheus.GaugeValue, float64(subscriptions), name)
		send(descDelivered, prometheus.CounterValue, float64(delivered), name)
		send(descConnections, prometheus.GaugeValue, float64(db.connections.Load()), name)
		send(descRooms, prometheus.GaugeValue, float64(rooms), name)
		send(descQueue, prometheus.GaugeValue, float64(st.Queue), name)
		send(descQueueWait, prometheus.GaugeValue, st.QueueWait.Seconds(), name)
		send(descWAL, prometheus.GaugeValue, float64(st.WAL), name)
		send(descReaders, prometheus.GaugeValue, float64(st.Readers), name)
		send(descStored, prometheus.GaugeValue, float64(st.Rooms), name)
		send(descFailed, prometheus.CounterValue, float64(st.Failed), name)
	}
}
