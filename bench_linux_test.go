package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"hub/auth"
)

// BenchmarkHub measures a server in a process of its own, under connections that
// each belong to a user with a token, on this machine:
//
//	go test -run '^$' -bench BenchmarkHub -benchtime 1x .
//
// HUB_BENCH_CONNS is the number of connections (10,000), HUB_BENCH_PROFILES a
// directory for the server's profiles. A lost, repeated or misdirected event
// fails it. A table of the figures goes to standard error.
//
// Times of one machine mean little on another, so the floor is measured in the
// same run, before and after: a process that writes the same bytes to as many
// sockets from all cores, the events of a burst in one write(2) each, under the
// same reader.
func BenchmarkHub(b *testing.B) {
	conns := 10_000
	if text := os.Getenv("HUB_BENCH_CONNS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 100 {
			b.Fatalf("HUB_BENCH_CONNS must be a number from 100 on, got %q", text)
		}
		conns = n
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		b.Fatal(err)
	}
	if need := uint64(conns + 100); files.Cur < need {
		b.Fatalf("%d connections need %d descriptors, the limit is %d: raise it (ulimit -n) or lower HUB_BENCH_CONNS", conns, need, files.Cur)
	}
	for _, rooms := range []int{1, 100} {
		b.Run(fmt.Sprintf("conns=%d/rooms=%d", conns, rooms), func(b *testing.B) {
			for b.Loop() {
				benchRooms(b, conns, rooms)
			}
		})
	}
	b.Run(fmt.Sprintf("conns=%d/stalled", stalledConns), func(b *testing.B) {
		for b.Loop() {
			benchStalled(b)
		}
	})
	for _, publishers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("publishers=%d", publishers), func(b *testing.B) {
			for b.Loop() {
				benchPublish(b, publishers)
			}
		})
	}
}

const (
	burstEvents = 10
	rounds      = 3
	singles     = 5 // rounds of one event
	// settle is how long connections have been idle when memory is read.
	settle = 2 * time.Second
	// A steady stream of events: at 10,000 connections a million deliveries a second.
	steadyRate = 100 // events a second
	steadyTime = 5 * time.Second
	profileFor = 4 * time.Second
)

// figures are one sub-benchmark's results, in the order in which they are told.
type figures struct {
	names, units []string
	values       []float64
}

// add notes a figure; unit is the one of [testing.B.ReportMetric].
func (f *figures) add(name, unit string, value float64) {
	f.names, f.units, f.values = append(f.names, name), append(f.units, unit), append(f.values, value)
}

// tell reports the figures and prints them as a table.
func (f *figures) tell(b *testing.B) {
	b.ReportMetric(0, "ns/op") // the time of one run says nothing
	w := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%s\n", b.Name())
	for i, unit := range f.units {
		b.ReportMetric(f.values[i], unit)
		fmt.Fprintf(w, "  %s\t%.4g\t%s\n", f.names[i], f.values[i], unit)
	}
	_ = w.Flush()
}

// source returns loopback addresses that no run before is likely to have used: a
// connection that was closed holds its address and port for 60 s (TIME_WAIT).
func source() [4]byte {
	return [4]byte{127, 0, byte(1 + rand.N(254)), byte(1 + rand.N(254))}
}

// tokens mints one for each user, granting what the benchmark does.
func tokens(b *testing.B, n int) []string {
	b.Helper()
	grants := auth.Grants{{Rooms: []string{"bench:*"}, Wildcard: true, Allow: auth.Subscribe | auth.Publish}}
	all := make([]string, n)
	for i := range all {
		var err error
		all[i], err = auth.Mint([]byte(benchSecret), auth.Claims{
			User: fmt.Sprintf("user-%d", i), ExpiresAt: time.Now().Add(time.Hour).Unix(), Grants: grants,
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return all
}

// benchRooms holds conns connections in so many rooms and sends events there.
func benchRooms(b *testing.B, conns, rooms int) {
	floor := measureFloor(b, conns)
	server := startHub(b)
	s, err := newSwarm(server.addr, rooms, tokens(b, conns))
	must(b, err)
	defer s.close(false)

	var f figures
	measureReady(b, server, s, &f)
	measureBursts(b, server, s, &f, floor)
	if rooms == 1 {
		measureSingles(b, s, &f)
		measureSteady(b, server, s, &f)
	}
	must(b, s.check())
	must(b, server.profile(fmt.Sprintf("burst-%d", rooms), profileFor, func() error {
		_, err := s.burst(burstEvents)
		return err
	}))
	peak, err := server.memory("VmHWM")
	must(b, err)
	f.add("server memory, peak", "peak-MiB", peak/1024)
	s.close(false)
	must(b, server.stop())
	floor.again(b, conns)
	f.add("floor of a burst: all delivered", "floor-ms", median(floor.took))
	f.add("  latency p95", "floor-p95-ms", median(floor.p95))
	f.add("  burst's p95 in units of that", "x-floor-p95", f.value("p95-ms")/median(floor.p95))
	f.add("floor of one event: all delivered", "floor-one-ms", median(floor.one))
	f.tell(b)
}

func (f *figures) value(unit string) float64 { return f.values[slices.Index(f.units, unit)] }

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// median sorts values.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// measureReady connects, authenticates and subscribes everybody, then lets them idle.
func measureReady(b *testing.B, server *child, s *swarm, f *figures) {
	before, err := server.memory("VmRSS")
	must(b, err)
	began, err := server.cpu()
	must(b, err)
	opened := false
	var took time.Duration
	open := func() error {
		if opened {
			return nil
		}
		opened = true
		took, err = s.open(source)
		return err
	}
	must(b, server.profile(fmt.Sprintf("connect-%d", s.rooms), time.Second, open))
	must(b, open())
	used, err := server.cpu()
	must(b, err)
	n := float64(len(s.peers))
	f.add("connect, authenticate, subscribe all", "ready-s", took.Seconds())
	f.add("server CPU for one", "µs-cpu/conn", float64((used-began).Microseconds())/n)
	time.Sleep(settle)
	idle, err := server.memory("VmRSS")
	must(b, err)
	f.add("server memory (RSS) of one, idle", "KiB/conn", (idle-before)/n)
	must(b, server.heap(fmt.Sprintf("heap-%d", s.rooms)))
}

// burst sends so many events to every room at once, by one member of each, and
// returns the time until everybody has them all.
func (s *swarm) burst(events int) (time.Duration, error) {
	s.reset()
	at := s.now()
	for room := range s.rooms {
		if err := s.peers[room].send(s.publishing(room, events, at)); err != nil {
			return 0, err
		}
	}
	err := s.until(func() bool { return s.got >= events*len(s.peers) && s.acks == events*s.rooms })
	return time.Duration(s.last - at), err
}

func measureBursts(b *testing.B, server *child, s *swarm, f *figures, floor *floorResult) {
	var took, p50, p95, p99, most, cpu []float64
	for range rounds {
		began, err := server.cpu()
		must(b, err)
		d, err := s.burst(burstEvents)
		must(b, err)
		used, err := server.cpu()
		must(b, err)
		took = append(took, milliseconds(d))
		p50 = append(p50, s.quantile(50))
		p95 = append(p95, s.quantile(95))
		p99 = append(p99, s.quantile(99))
		most = append(most, s.quantile(100))
		cpu = append(cpu, float64((used-began).Nanoseconds())/1e3/float64(s.got))
	}
	if size := float64(s.bytes) / float64(s.got); size < 0.9*floor.size || size > 1.1*floor.size {
		b.Fatalf("an event has %.0f bytes, the floor's %.0f: no fair comparison", size, floor.size)
	}
	f.add(fmt.Sprintf("burst of %d to each: all delivered", burstEvents), "burst-ms", median(took))
	f.add("  latency p50", "p50-ms", median(p50))
	f.add("  latency p95", "p95-ms", median(p95))
	f.add("  latency p99", "p99-ms", median(p99))
	f.add("  latency max", "max-ms", median(most))
	f.add("  server CPU for one delivery", "µs-cpu/delivery", median(cpu))
}

// quantile of the latencies, in milliseconds.
func (s *swarm) quantile(q float64) float64 {
	return float64(s.latency.ValueAtQuantile(q)) / 1000
}

func measureSingles(b *testing.B, s *swarm, f *figures) {
	var took []float64
	for range singles {
		d, err := s.burst(1)
		must(b, err)
		took = append(took, milliseconds(d))
	}
	f.add("one event: until the last has it", "one-ms", median(took))
}

// measureSteady sends events to the one room at a steady rate. Latency counts
// from the time at which an event was due, whenever it was sent.
func measureSteady(b *testing.B, server *child, s *swarm, f *figures) {
	began, err := server.cpu()
	must(b, err)
	begin, err := s.stream(int(steadyRate*steadyTime.Seconds()), steadyRate, len(s.peers))
	must(b, err)
	used, err := server.cpu()
	must(b, err)
	f.add("steady: deliveries a second", "deliveries/s", float64(s.got)/time.Duration(s.last-begin).Seconds())
	f.add("  latency p95", "steady-p95-ms", s.quantile(95))
	f.add("  latency p99", "steady-p99-ms", s.quantile(99))
	f.add("  server CPU for one delivery", "µs-cpu/steady-delivery", float64((used-began).Nanoseconds())/1e3/float64(s.got))
}

// stream sends total events to the one room at rate per second, and reads until so
// many peers have them all. It returns when the first was due.
func (s *swarm) stream(total, rate, readers int) (begin int64, err error) {
	s.reset()
	begin = s.now()
	sent := make(chan error, 1)
	go func() {
		for i := range total {
			due := begin + int64(i)*int64(time.Second)/int64(rate)
			time.Sleep(time.Duration(due - s.now()))
			if err := s.peers[0].send(s.publishing(0, 1, due)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	err = s.until(func() bool { return s.got >= total*readers && s.acks == total })
	return begin, errors.Join(<-sent, err)
}

// floorResult is what the same deliveries cost without a server.
type floorResult struct {
	took, p95, one []float64 // milliseconds; one is for a single event
	size           float64   // bytes of one event
}

func measureFloor(b *testing.B, conns int) *floorResult {
	b.Helper()
	r := &floorResult{}
	r.again(b, conns)
	return r
}

// again measures more rounds.
func (r *floorResult) again(b *testing.B, conns int) {
	b.Helper()
	c := startChild(b, regexp.MustCompile(`floor on (\S+)`), floorName, strconv.Itoa(conns))
	s, err := newSwarm(c.addr, 1, make([]string, conns))
	must(b, err)
	defer s.close(true)
	_, err = s.open(source)
	must(b, err)
	for range rounds {
		took, err := s.floorBurst(c, burstEvents)
		must(b, err)
		r.took = append(r.took, milliseconds(took))
		r.p95 = append(r.p95, s.quantile(95))
		r.size = float64(s.bytes) / float64(s.got)
		took, err = s.floorBurst(c, 1)
		must(b, err)
		r.one = append(r.one, milliseconds(took))
	}
	must(b, s.check())
}

// floorBurst is burst for the floor's writer.
func (s *swarm) floorBurst(c *child, events int) (time.Duration, error) {
	s.reset()
	at := s.now()
	message := s.floorMessage(events, at)
	if err := binary.Write(c.stdin, binary.LittleEndian, uint32(len(message))); err != nil {
		return 0, err
	}
	if _, err := c.stdin.Write(message); err != nil {
		return 0, err
	}
	err := s.until(func() bool { return s.got >= events*len(s.peers) })
	return time.Duration(s.last - at), err
}

// floorMessage is what a server writes to a member of room 0 for so many events.
func (s *swarm) floorMessage(events int, at int64) (message []byte) {
	for range events {
		s.seq[0]++
		event := fmt.Appendf(nil, `{"push":{"channel":"%s","pub":{"data":`, roomName(0))
		event = appendEvent(event, 0, s.seq[0], at)
		event = fmt.Appendf(event, `,"info":{"user":"user-0","client":"ABCDEFGHIJKLMNOPQRSTUVWXYZ"},"offset":%d}}}`, s.seq[0])
		message = append(message, 0x81, 126)
		message = append(binary.BigEndian.AppendUint16(message, uint16(len(event))), event...)
	}
	return message
}

const (
	publishFor = 2 * time.Second
	// pipeline is the commands of one publisher that wait for their answers.
	pipeline = 16
)

// benchPublish measures durable publications: each publisher sends to a room of
// its own, in which it is subscribed, and goes on as answers come, which mean
// committed. A single publisher waits for each answer.
func benchPublish(b *testing.B, publishers int) {
	server := startHub(b)
	s, err := newSwarm(server.addr, publishers, tokens(b, publishers))
	must(b, err)
	defer s.close(false)
	_, err = s.open(source)
	must(b, err)
	var f figures
	answered, cpu, err := s.publishFor(server, publishFor)
	must(b, err)
	f.add("durable publications a second", "publications/s", float64(answered)/publishFor.Seconds())
	f.add("  latency of delivery p95", "p95-ms", s.quantile(95))
	f.add("  server CPU for one", "µs-cpu/publication", float64(cpu.Nanoseconds())/1e3/float64(s.acks))
	must(b, s.check())
	must(b, server.profile(fmt.Sprintf("publish-%d", publishers), profileFor, func() error {
		_, _, err := s.publishFor(server, publishFor)
		return err
	}))
	s.close(false)
	must(b, server.stop())
	f.tell(b)
}

// publishFor publishes for d and returns what was answered in that time and the
// server's processor time until all was delivered.
func (s *swarm) publishFor(server *child, d time.Duration) (answered int, cpu time.Duration, err error) {
	s.reset()
	began, err := server.cpu()
	if err != nil {
		return 0, 0, err
	}
	depth := pipeline
	if len(s.peers) == 1 {
		depth = 1
	}
	sent, begin := 0, s.now()
	publish := func(p *peer, n int) error {
		now := s.now()
		if now-begin >= int64(d) {
			return nil
		}
		answered = s.acks
		sent += n
		return p.send(s.publishing(p.room, n, now))
	}
	s.replied = publish
	defer func() { s.replied = nil }()
	for i := range s.peers {
		if err := publish(&s.peers[i], depth); err != nil {
			return 0, 0, err
		}
	}
	if err := s.until(func() bool { return s.acks == sent && s.got == sent }); err != nil {
		return 0, 0, err
	}
	used, err := server.cpu()
	return answered, used - began, err
}
