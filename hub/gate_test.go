package hub

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// once is a limit that lets n requests pass and no more while a test lasts.
func once(n int) Rate { return Rate{PerSecond: 0.0001, Burst: n} }

// The documented arithmetic: a bucket starts full, so four addresses at 500/s and
// 1,200 get exactly 4·(1,200+500·t) requests through in t seconds, and no address
// more than its quarter.
func TestGateArithmetic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{memory: newLogMemory(0)} // which metrics ask
		s.metrics = newMetrics(s)
		o := DefaultOptions()
		s.gates = newGates(&o.Limits)
		db := &database{server: s, name: "default"}
		const seconds = 7
		passed := [4]int{}
		for range seconds * 100 {
			for range 30 { // six times the rate
				for i := range passed {
					if s.pass(classRead, db, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})) == nil {
						passed[i]++
					}
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		for i, n := range passed {
			// The last sleep is behind the last request.
			if want := 1200 + 500*seconds - 5; n != want {
				t.Errorf("address %d: %d requests passed, want %d", i, n, want)
			}
		}
		// Another class has other buckets.
		if p := s.pass(classMutation, db, netip.AddrFrom4([4]byte{10, 0, 0, 0})); p != nil {
			t.Errorf("a mutation after the reads: %v", p)
		}
	})
}

// Reads and mutations have buckets of their own; what is refused says when to come
// back, costs nothing, and does not reach the room.
func TestRequestLimits(t *testing.T) {
	o := restOptions(t)
	o.Limits.Read, o.Limits.Mutation = once(3), Rate{PerSecond: 0.5, Burst: 2}
	s := startServer(t, o, nil)
	ann, room := bearerOf(t, "ann"), rooms+"open:a/"
	// What has no credentials, or a wrong key, is refused before: any page could have
	// a browser send it.
	for range 10 {
		s.call(t, "GET", room+"history", "").want(t, "no token", 401, "unauthorized")
		s.call(t, "GET", room+"history", "", keyLine+"x").want(t, "a wrong key", 401, "unauthorized")
		s.call(t, "GET", room+"history", "", ann, "Origin: https://evil.test").want(t, "another's page", 403, "origin")
		s.call(t, "GET", "/v1/nothing/rooms/open:a/history", "", ann).want(t, "no database", 404, "unknown_database")
	}
	for _, path := range []string{"history", "snapshot", "resources/k"} {
		if a := s.call(t, "GET", room+path, "", ann); a.status == 429 {
			t.Errorf("%s: %s", path, a)
		}
	}
	for _, path := range []string{"history", "presence", "resources", "resources/k", "snapshot", "operations/x"} {
		a := s.call(t, "GET", room+path, "", ann).want(t, path, 429, "rate_limited")
		if after := a.header.Get("Retry-After"); after != "3600" { // 10,000 s, as far as is told
			t.Errorf("%s: Retry-After is %q", path, after)
		}
	}
	for i := range 4 {
		a := s.call(t, "POST", room+[]string{"publish", "operations"}[i%2],
			[]string{`{"data":1}`, fmt.Sprintf(`{"id":"%d","steps":[{"op":"set","key":"k","value":1}]}`, i)}[i%2], ann)
		if i < 2 {
			a.want(t, "a mutation", 200, "")
			continue
		}
		a.want(t, "one too many", 429, "rate_limited")
		if after := a.header.Get("Retry-After"); after != "1" && after != "2" {
			t.Errorf("Retry-After is %q, want at most 2", after)
		}
	}
	// The token is not looked at.
	s.call(t, "GET", room+"history", "", "Authorization: Bearer x").want(t, "a bad token", 429, "rate_limited")
	// Servers are not limited, through any door.
	for range 5 {
		s.call(t, "GET", room+"history", "", keyLine).want(t, "a server", 200, "")
		s.call(t, "POST", room+"publish", `{"data":1}`, keyLine).want(t, "a server", 200, "")
		s.result(t, "publish", `{"channel":"open:a","data":1}`)
	}
	if r := s.result(t, "history", `{"channel":"open:a"}`); r["offset"] != 12.0 {
		t.Errorf("the room has %v publications, want 2 of ann and 10 of servers", r["offset"])
	}
	metrics := s.scrape(t)
	for _, line := range []string{
		`hub_limit_refusals_total{class="read",scope="ip"} 7`,
		`hub_limit_refusals_total{class="mutation",scope="ip"} 2`,
		`hub_http_request_seconds_count{route="GET /v1/{db}/rooms/{room}/snapshot",status="4xx"} 1`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("no metric %s", line)
		}
	}
}

// scrape returns the metrics in Prometheus' text form.
func (s *testServer) scrape(t *testing.T) string {
	t.Helper()
	families, err := s.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			at := "{" + strings.Join(labels, ",") + "} "
			switch {
			case m.GetCounter() != nil:
				fmt.Fprintf(&b, "%s%s%v\n", f.GetName(), at, m.GetCounter().GetValue())
			case m.GetGauge() != nil:
				fmt.Fprintf(&b, "%s%s%v\n", f.GetName(), at, m.GetGauge().GetValue())
			case m.GetHistogram() != nil:
				fmt.Fprintf(&b, "%s_count%s%v\n", f.GetName(), at, m.GetHistogram().GetSampleCount())
			}
		}
	}
	return b.String()
}

// All addresses together have a bucket for each database; an address that is
// refused for the database keeps its own token.
func TestDatabaseLimits(t *testing.T) {
	o := restOptions(t)
	o.Server.TrustedProxies = []string{"127.0.0.1"}
	o.Limits.Read, o.Limits.Database.Read = once(2), once(3)
	s := startServer(t, o, nil)
	ann := bearerOf(t, "ann")
	for i, step := range []struct {
		db, addr, want string
	}{
		{"default", "203.0.113.1", "200"}, {"default", "203.0.113.2", "200"}, {"default", "203.0.113.3", "200"},
		{"default", "203.0.113.4", "database"},
		{"other", "203.0.113.4", "200"}, {"other", "203.0.113.4", "200"}, {"other", "203.0.113.4", "address"},
		{"default", "203.0.113.1", "database"},
		{"other", "203.0.113.1", "200"}, {"other", "203.0.113.1", "address"},
	} {
		a := s.call(t, "GET", "/v1/"+step.db+"/rooms/open:a/history", "", ann, "X-Forwarded-For: "+step.addr)
		if strconv.Itoa(a.status) != step.want && !(a.status == 429 && strings.Contains(string(a.body), step.want)) {
			t.Errorf("step %d: got %s, want %s", i+1, a, step.want)
		}
	}
}

// The address of a request is that of a connection: proxies count if they are
// trusted, and an IPv6 address is its /64.
func TestForwardedRequests(t *testing.T) {
	for name, c := range map[string]struct {
		proxies []string
		steps   []string
	}{
		"trusted": {[]string{"127.0.0.1"}, []string{
			"203.0.113.1 200", "203.0.113.2 200", "203.0.113.1 429", "198.51.100.9, 203.0.113.1 429", "203.0.113.1, 198.51.100.9 200",
			"2001:db8::1 200", "2001:db8::ffff:2 429", "2001:db8:0:1::1 200", "::ffff:203.0.113.2 429", "nonsense 200", "nonsense 429",
		}},
		"not trusted": {nil, []string{"203.0.113.1 200", "203.0.113.2 429", "2001:db8::1 429"}},
	} {
		t.Run(name, func(t *testing.T) {
			backends(t, func(t *testing.T, backend string) {
				o := restOptions(t)
				o.Server.Backend, o.Server.TrustedProxies = backend, c.proxies
				o.Limits.Read, o.Limits.Handshake = once(1), once(1)
				s := startServer(t, o, nil)
				ann := bearerOf(t, "ann")
				for i, step := range c.steps {
					addr, want := step[:strings.LastIndexByte(step, ' ')], step[strings.LastIndexByte(step, ' ')+1:]
					line := "X-Forwarded-For: " + addr
					if a := s.call(t, "GET", rooms+"open:a/history", "", ann, line); strconv.Itoa(a.status) != want {
						t.Errorf("step %d, request: got %s, want %s", i+1, a, want)
					}
					if want == "200" {
						want = "101"
					}
					conn, status, header, err := s.attempt(defaultSocketPath, line)
					if err != nil {
						t.Fatal(err)
					}
					conn.Close()
					if strconv.Itoa(status) != want || (status == 429) != (header.Get("Retry-After") != "") {
						t.Errorf("step %d, handshake: got %d with %v, want %s", i+1, status, header, want)
					}
				}
			})
		})
	}
}

// Case G22: of 40 handshakes at once against a limit of 10, ten pass; the others
// hold no slot, by whichever listener they came.
func TestHandshakesAtOnce(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := restOptions(t)
		o.Server.Backend = backend
		o.Limits.Handshake = once(10)
		s := startServer(t, o, nil)
		// What is refused for another reason takes no token.
		for range 20 {
			for path, line := range map[string]string{defaultSocketPath: "Origin: https://evil.test", "/v1/nothing/websocket": "X: y"} {
				conn, status, _, err := s.attempt(path, line)
				if err != nil || status < 400 || status == 429 {
					t.Fatalf("%s: %d, %v", path, status, err)
				}
				conn.Close()
			}
		}
		var passed, refused atomic.Int64
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				conn, status, header, err := s.attempt(defaultSocketPath)
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { conn.Close() })
				switch {
				case status == http.StatusSwitchingProtocols:
					passed.Add(1)
				case status == http.StatusTooManyRequests && header.Get("Retry-After") != "":
					refused.Add(1)
				default:
					t.Errorf("status %d with %v", status, header)
				}
			})
		}
		all.Wait()
		if passed.Load() != 10 || refused.Load() != 30 {
			t.Errorf("%d passed, %d were refused, want 10 and 30", passed.Load(), refused.Load())
		}
		if n, _ := s.slots.Counts(); n != 10 {
			t.Errorf("%d slots are taken, want 10", n)
		}
		if m := s.scrape(t); !strings.Contains(m, `hub_limit_refusals_total{class="handshake",scope="ip"} 30`) {
			t.Error("the metric does not tell 30 refusals")
		}
	})
}

// Every cap of connections is counted by what it is a cap of.
func TestConnectionRefusalsAreCounted(t *testing.T) {
	for scope, caps := range map[string]ConnectionLimits{"server": {Server: 1}, "database": {Database: 1}, "ip": {IP: 1}} {
		o := restOptions(t)
		o.Limits.Connections = caps
		s := startServer(t, o, nil)
		c := s.connect(t, 0, "u")
		conn, _, _, err := s.attempt(defaultSocketPath)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if want := fmt.Sprintf(`hub_limit_refusals_total{class="connections",scope=%q} 1`, scope); !strings.Contains(s.scrape(t), want) {
			t.Errorf("no metric %s", want)
		}
		c.conn.Close()
	}
}

// Case G45: paths and names of others make no series.
func TestMetricsStayBounded(t *testing.T) {
	s := restServer(t)
	ann := bearerOf(t, "ann")
	ask := func(i int) {
		for _, path := range []string{"/%d", "/v1/%d/rooms/a/history", rooms + "open:%d/history", rooms + "open:a/resources/%d", rooms + "nowhere%d:a/snapshot", "/api/method%d"} {
			s.call(t, "GET", fmt.Sprintf(path, i), "", ann)
		}
	}
	ask(0)
	before := strings.Count(s.scrape(t), "\n")
	for i := range 30 {
		ask(i + 1)
	}
	if after := strings.Count(s.scrape(t), "\n"); after != before {
		t.Errorf("%d series became %d", before, after)
	}
}
