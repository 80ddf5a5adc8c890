package report

// Figure is one measured number of a scenario.
type Figure struct {
	Name  string  `json:"name"`  // stable, snake_case, ends in its unit
	Title string  `json:"title"` // for people
	Value float64 `json:"value"`
	// Unit is ms, s, us, bytes, KiB, 1/s, x (a ratio), or empty for a count.
	Unit string `json:"unit"`
	// Low and High are the range within which Value was found; 0 where it has none.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
	// Better says which way is better: "lower", "higher", or empty.
	Better Better `json:"better,omitempty"`
	// Target is the value to reach, absent where there is none or where the run
	// was too small to judge it. A missed target does not fail the run.
	Target     *float64 `json:"target,omitempty"`
	Definition string   `json:"definition"`
	// Rounds is the number of measurements behind the value, of which it is the
	// median, where that is so; 0 otherwise.
	Rounds int `json:"rounds,omitempty"`
}

// Better is the direction in which a figure improves.
type Better string

// The directions of a figure.
const (
	Lower  Better = "lower"
	Higher Better = "higher"
)

// Reached reports whether the figure meets its target, and whether it has one.
func (f Figure) Reached() (reached, judged bool) {
	switch {
	case f.Target == nil:
		return false, false
	case f.Better == Higher:
		return f.Value >= *f.Target, true
	default:
		return f.Value <= *f.Target, true
	}
}

// Metric is a quantity that figures measure: its names, its definition and the
// target it has on a machine of 2 cores with the generator on it.
type Metric struct {
	Name       string
	Title      string
	Unit       string
	Better     Better
	Target     float64 // 0: none
	MinConns   int     // the target stands from so many connections on
	Definition string
}

// Of is a measurement of the metric with so many connections. It carries the
// target only if there were enough of them: a smaller run that is fast shows
// nothing.
func (m Metric) Of(value float64, conns int) Figure {
	f := Figure{Name: m.Name, Title: m.Title, Value: value, Unit: m.Unit, Better: m.Better, Definition: m.Definition}
	if m.Target != 0 && conns >= m.MinConns {
		target := m.Target
		f.Target = &target
	}
	return f
}

// Named is the same metric for one part of a scenario: suffix is appended to
// its name after an underscore, and part to its title after a comma.
func (m Metric) Named(suffix, part string) Metric {
	m.Name += "_" + suffix
	m.Title += ", " + part
	return m
}

// The metrics with their targets. A scenario may measure others.
var (
	DeliveryP95 = Metric{
		Name: "delivery_p95_ms", Title: "delivery p95", Unit: "ms", Better: Lower, Target: 100, MinConns: 10_000,
		Definition: "Median over the rounds of the 95th percentile of delivery latency: from the intended send time in the event to the moment a client read it.",
	}
	DeliveryP99 = Metric{
		Name: "delivery_p99_ms", Title: "delivery p99", Unit: "ms", Better: Lower,
		Definition: "Median over the rounds of the 99th percentile of delivery latency.",
	}
	FloorRatio = Metric{
		Name: "floor_ratio", Title: "delivery p95 ÷ floor p95", Unit: "x", Better: Lower, Target: 2, MinConns: 10_000,
		Definition: "Median p95 of the rounds divided by the mean p95 of the floor before and after them: the same bytes written plainly to as many loopback sockets, all due events in one write each, after the same idle time. " +
			"The range is from the best round ÷ the slower floor to the worst round ÷ the faster one.",
	}
	ServerCPU = Metric{
		Name: "server_cpu_us_per_delivery", Title: "server CPU per delivery", Unit: "us", Better: Lower, Target: 1.5, MinConns: 10_000,
		Definition: "User and system time of the server process during a round, divided by the events received in it; median over the rounds.",
	}
	GeneratorCPU = Metric{
		Name: "generator_cpu_us_per_delivery", Title: "generator CPU per delivery", Unit: "us", Better: Lower,
		Definition: "User and system time of the load generator during a round, divided by the events received in it; median over the rounds.",
	}
	SustainedRate = Metric{
		Name: "sustained_deliveries_per_s", Title: "deliveries sustained", Unit: "1/s", Better: Higher, Target: 1_000_000, MinConns: 10_000,
		Definition: "Events received per second of steady publishing in one room, all connections together. The rate was held if the p95 of the events that were due in the last second, where a growing backlog shows, " +
			"is no more than twice that of all, or no more than 150 ms. If it was not held, the events are divided by the time until the last one arrived, and the title says so.",
	}
	SustainedP95 = Metric{
		Name: "sustained_p95_ms", Title: "p95 at that rate", Unit: "ms", Better: Lower, Target: 150, MinConns: 10_000,
		Definition: "95th percentile of delivery latency during the period of steady publishing.",
	}
	SustainedEnd = Metric{
		Name: "sustained_end_p95_ms", Title: "p95 of its last second", Unit: "ms", Better: Lower,
		Definition: "95th percentile of delivery latency of the events that were due in the last second of steady publishing.",
	}
	MemoryPerConn = Metric{
		Name: "memory_kib_per_connection", Title: "server memory per connection", Unit: "KiB", Better: Lower, Target: 2, MinConns: 10_000,
		Definition: "Growth of the server's resident set (RSS) from before the first connection until all are authenticated, subscribed and idle, divided by their number.",
	}
	MemoryPerTLSConn = Metric{
		Name: "memory_kib_per_tls_connection", Title: "server memory per TLS connection", Unit: "KiB", Better: Lower, Target: 12, MinConns: 3_000,
		Definition: "Growth of the server's resident set (RSS) from before the first TLS connection until all are authenticated, subscribed and idle, divided by their number.",
	}
	ReadyTime = Metric{
		Name: "ready_s", Title: "all ready", Unit: "s", Better: Lower, Target: 0.6, MinConns: 10_000,
		Definition: "From the first connect(2) until the last connection is authenticated and subscribed.",
	}
	ConnectRate = Metric{
		Name: "connects_per_s", Title: "connections made ready", Unit: "1/s", Better: Higher,
		Definition: "Connections opened, authenticated and subscribed, divided by the time from the first connect(2) until the last was ready.",
	}
	ReconnectP95 = Metric{
		Name: "reconnect_p95_ms", Title: "reconnect p95", Unit: "ms", Better: Lower,
		Definition: "95th percentile of the time from the moment at which a client lost its connection until its subscription is recovered.",
	}
	FanoutLast = Metric{
		Name: "fanout_last_ms", Title: "one durable message, until the last has it", Unit: "ms", Better: Lower, Target: 60, MinConns: 10_000,
		Definition: "From the intended send time of one durable message until the last subscriber, sender included, has read it; median over the repetitions.",
	}
	Publications = Metric{
		Name: "publications_per_s", Title: "durable publications", Unit: "1/s", Better: Higher, Target: 15_000,
		Definition: "Publications acknowledged per second, each committed to SQLite before its acknowledgement.",
	}
	ChatKnee = Metric{
		Name: "chat_completed_per_s", Title: "requests completed at the knee", Unit: "1/s", Better: Higher,
		Definition: "The highest rate of requests completed per second, each echoed to its whole room, over the rising rates offered. The knee is met when less than 95 % of what is offered within a time is completed in it; the title says so when it was not.",
	}
	SlowRatio = Metric{
		Name: "slow_ratio", Title: "p95 of the others with stalled readers ÷ without", Unit: "x", Better: Lower, Target: 1.2,
		Definition: "Median p95 of the connections that read, in rounds with 5 % of all connections stalled, divided by that of rounds without.",
	}
	RevalidationRatio = Metric{
		Name: "revalidation_ratio", Title: "p95 with all tokens revalidating ÷ without", Unit: "x", Better: Lower, Target: 1.1, MinConns: 10_000,
		Definition: "p95 of a round that overlaps a revalidation of all connections, divided by that of the round beside it without; median over the pairs of rounds, with the range.",
	}
	RevalidationCPU = Metric{
		Name: "revalidation_cores", Title: "processors used by revalidation every 2 s", Better: Lower, Target: 0.02, MinConns: 10_000,
		Definition: "Median over the pauses between rounds of the server's processor time divided by the time, while all connections are checked every 2 s, less that of the pauses while none is. In both they idle. Below 0: less than what pauses differ by.",
	}
	RevokeClose = Metric{
		Name: "revoke_close_p95_ms", Title: "from the revocation's request until the connection is closed, p95", Unit: "ms", Better: Lower,
		Definition: "From the request to the admin API that revokes a user or a token until the client read the close frame; 95th percentile over the revoked, while events go on.",
	}
	ExpiryClose = Metric{
		Name: "expiry_close_max_s", Title: "from a token's expiry until its connection is closed, at most", Unit: "s", Better: Lower,
		Definition: "From the second in a token's exp until the client read the close frame; the longest one. A connection is checked every auth.revalidate: 2 s here.",
	}
	RotationRatio = Metric{
		Name: "rotation_ratio", Title: "p95 while a signing key is removed ÷ before", Unit: "x", Better: Lower, Target: 1.2, MinConns: 10_000,
		Definition: "Median p95 of the rounds to the connections of the key that stays, from the reload that removed the other key on and for longer than the period in which its connections are closed, divided by that of the rounds before.",
	}
	MixedRatio = Metric{
		Name: "mixed_ratio", Title: "delivery p95 during operations and reads ÷ alone", Unit: "x", Better: Lower, Target: 2, MinConns: 10_000,
		Definition: "95th percentile of delivery latency of the events that were due while operations and reads ran, divided by that of a time before with the same steady events and nothing else.",
	}
	MixedDelivery = Metric{
		Name: "mixed_delivery_p95_ms", Title: "delivery p95 during operations and reads", Unit: "ms", Better: Lower,
		Definition: "95th percentile of delivery latency of the events that were due while operations and reads ran.",
	}
	MixedTime = Metric{
		Name: "mixed_s", Title: "1,000 operations and 10,000 reads", Unit: "s", Better: Lower, Target: 0.6, MinConns: 10_000,
		Definition: "From the first request until the last answer of 1,000 operations over sockets and 10,000 reads over HTTP, with all connections held and steady events in their rooms: " +
			"10,000 deliveries a second. The first operation creates the stock and is answered before everything else starts at once. Readers have open connections that have made a request before.",
	}
	WriteP50 = Metric{
		Name: "operation_p50_ms", Title: "operation p50", Unit: "ms", Better: Lower,
		Definition: "Median time from sending an operation until its answer, which means committed, of all that were sent at once.",
	}
	WriteP95 = Metric{
		Name: "operation_p95_ms", Title: "operation p95", Unit: "ms", Better: Lower,
		Definition: "95th percentile of the same.",
	}
	ReadP50 = Metric{
		Name: "read_p50_ms", Title: "read p50", Unit: "ms", Better: Lower,
		Definition: "Median time from sending a read over HTTP until its answer was complete.",
	}
	ReadP95 = Metric{
		Name: "read_p95_ms", Title: "read p95", Unit: "ms", Better: Lower,
		Definition: "95th percentile of the same.",
	}
	MixedReads = Metric{
		Name: "mixed_reads_per_s", Title: "reads beside operations and events", Unit: "1/s", Better: Higher,
		Definition: "Reads divided by the time from the first request until the last read was answered.",
	}
	MixedGenerator = Metric{
		Name: "mixed_generator_cores", Title: "processors used by the generator", Better: Lower,
		Definition: "User and system time of the load generator during operations, reads and events, divided by their time.",
	}
	Reads = Metric{
		Name: "reads_per_s", Title: "reads by key over HTTP", Unit: "1/s", Better: Higher, Target: 25_000,
		Definition: "Reads of one resource by its key over HTTP with keep-alive, answered per second, 16 clients, while all connections idle.",
	}
	RecoveryTime = Metric{
		Name: "recovery_s", Title: "all recovered after a kill", Unit: "s", Better: Lower,
		Definition: "From the start of the server after kill -9 until the last client has recovered its subscription; median over the rounds.",
	}
)

// Definition explains a field of the JSON form.
type Definition struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// definitions explains the fields of rounds and floors.
func definitions() []Definition {
	return []Definition{
		{"conns", "Connections open and subscribed, each under its own user unless the settings say otherwise."},
		{"rooms", "Rooms over which the connections are spread evenly."},
		{"events", "Events sent to each connection."},
		{"deliveries", "Events received, all connections together."},
		{"wall_ms", "From the intended send time of the first event until the last delivery, in milliseconds."},
		{"latency", "From the intended send time in an event to the moment a client read it, on one monotonic clock, in milliseconds. An event that waits because the sender was blocked counts from when it should have been sent."},
		{"buckets", "Deliveries by latency: count is the number above the bound before and up to up_to_ms. Bounds are powers 10^(k/50) ms, the same in every report."},
		{"server_cpu_us_per_delivery", "User and system time of the server process during the round divided by deliveries, in microseconds. Absent when the server is not a child of the test."},
		{"generator_cpu_us_per_delivery", "The same of the load generator."},
		{"generator_limited", "The generator was saturated while the server was not: the times are an upper bound, the server may be faster."},
		{"lost", "Events published in a room after a connection had subscribed there, those that the server refused excepted, that had not reached it when the waiting for them ended. An event that two connections miss counts twice. Connections that were told not to read are left out until they read again."},
		{"duplicate", "Events that had come before on the same connection or, after a reconnect, to the same subscriber. They are told apart by the number within their room that their data carries; each copy beyond the first counts."},
		{"out_of_order", "Events that came to a subscriber for the first time, but after one of the same room with a higher number. Each late one counts, the one that overtook it does not. An offset that does not follow the one before is told by another check."},
		{"cross_room", "Events that a connection received and whose data, or the message that brought them, names another room than the one it is subscribed to."},
		{"cross_database", "Events that a connection received and whose data names another database than the one it is connected to. These do not count as cross_room."},
		{"requests", "What operations, over sockets, and reads, over HTTP, of one period took: latency is from the write of a request until the last byte of its answer was read, wall_ms from the first request of the period until the last answer of all kinds."},
		{"floor", "What the machine can do at best: the same bytes written plainly to as many loopback sockets, all due events in one write(2) each, read by the same readers in the same run, before and after, with the same idle time before each burst. The run told is the one with the median p95."},
		{"writer_cpu_us_per_delivery", "User and system time of the floor's writer during its burst divided by deliveries, in microseconds."},
		{"ratio_p95", "Median p95 of the rounds of a shape divided by the mean p95 of the floor's runs for it: the figure that means the same on every machine."},
		{"ratio_p95_low", "The lowest p95 of these rounds divided by the highest p95 of the floor's runs."},
		{"ratio_p95_high", "The highest p95 of these rounds divided by the lowest p95 of the floor's runs."},
	}
}
