package hub

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"hub/store"
)

// A publication's id means the same on the socket, over HTTP and, for servers, in
// the server API.
func TestPublicationIDThroughAllDoors(t *testing.T) {
	s := restServer(t)
	ann := bearerOf(t, "ann")
	c := s.connect(t, 0, "ann")
	p := s.call(t, "POST", rooms+"open:a/publish", `{"id":"p","data":1}`, ann).want(t, "publish", 200, "").object()
	if r := rpc[published](c, "publish", `{"room":"open:a","id":"p","data":1}`); float64(r.Offset) != p["offset"] || !r.Replayed {
		t.Errorf("over the socket: %v, want %v again", r, p)
	}
	s.call(t, "POST", rooms+"open:a/publish", `{"id":"p","data":2}`, ann).want(t, "other data", 409, "id_reused")
	sent := s.result(t, "publish", `{"channel":"open:a","data":1,"idempotency_key":"p"}`)
	if sent["offset"] == p["offset"] {
		t.Error("a server's key is a user's id")
	}
	if r := s.call(t, "POST", rooms+"open:a/publish", `{"id":"p","data":1}`, keyLine).want(t, "a server", 200, "").object(); r["offset"] != sent["offset"] || r["replayed"] != true {
		t.Errorf("a server: %v, want %v again", r, sent)
	}
	// Each finds its own.
	for who, want := range map[string]any{ann: p["offset"], keyLine: sent["offset"], bearerOf(t, "eve"): nil} {
		if r := s.call(t, "GET", rooms+"open:a/operations/p", "", who); r.object()["offset"] != want {
			t.Errorf("%.20s finds %s, want offset %v", who, r, want)
		}
	}
}

// A mutation that meets a full queue or waits too long was not applied and says
// when to come back; readiness goes on.
func TestRestOverload(t *testing.T) {
	o := restOptions(t)
	o.Database.Queue, o.Database.WriteTimeout = 1, 200*time.Millisecond
	hold, entered := make(chan struct{}), make(chan struct{}, 1)
	release := sync.OnceFunc(func() { close(hold) })
	s := startServer(t, o, func(s *Server) {
		s.committing = func([]store.Event) {
			select {
			case entered <- struct{}{}:
			default:
			}
			<-hold
		}
	})
	t.Cleanup(release)
	ann := bearerOf(t, "ann")
	publish := func(n int) answer {
		return s.call(t, "POST", rooms+"open:a/publish", fmt.Sprintf(`{"id":"%d","data":%d}`, n, n), ann)
	}
	var all sync.WaitGroup
	all.Go(func() { publish(1).want(t, "the one under way", 200, "") })
	<-entered
	all.Go(func() {
		a := publish(2).want(t, "the one that waits", 504, "write_timeout")
		if a.header.Get("Retry-After") == "" {
			t.Error("504 without Retry-After")
		}
	})
	until(t, "one waits", func() bool { return s.databases.get("default").store.Stats().Queue == 1 })
	a := publish(3).want(t, "the one too many", 503, "queue_full")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("503 with Retry-After %q", a.header.Get("Retry-After"))
	}
	until(t, "it gives up", func() bool { return s.databases.get("default").store.Stats().Queue == 0 })
	release()
	all.Wait()
	for _, n := range []int{2, 3} {
		if r := publish(n).want(t, "again", 200, "").object(); r["replayed"] != false {
			t.Errorf("publication %d had been applied: %v", n, r)
		}
	}
}

// Case G42: a request that came before the stop is answered, one that comes after
// is refused.
func TestRestDuringDrain(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := restOptions(t)
		o.Server.Backend = backend
		hold, entered := make(chan struct{}), make(chan struct{}, 1)
		release := sync.OnceFunc(func() { close(hold) })
		s := startServer(t, o, func(s *Server) {
			s.committing = func([]store.Event) { entered <- struct{}{}; <-hold }
		})
		t.Cleanup(release)
		ann := bearerOf(t, "ann")
		body := `{"id":"o","steps":[{"op":"set","key":"k","value":1}]}`
		var all sync.WaitGroup
		all.Go(func() { s.call(t, "POST", rooms+"open:a/operations", body, ann).want(t, "before", 200, "") })
		<-entered
		all.Go(s.stop)
		until(t, "the server drains", s.draining.Load)
		release()
		all.Wait()
	})
	// The refusal itself, which needs a connection that outlives the listener.
	s := restServer(t)
	s.draining.Store(true)
	a := s.call(t, "POST", rooms+"open:a/publish", `{"data":1}`, bearerOf(t, "ann")).want(t, "after", 503, "draining")
	if a.header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
}
