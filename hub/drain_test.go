package hub

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hub/hub/wire"
	"hub/store"
)

// A publication that is in the write queue when the server stops is acknowledged
// before its connection is closed; others are closed in time.
func TestDrainAcknowledges(t *testing.T) {
	for _, enc := range []wire.Encoding{wire.JSON, wire.Protobuf} {
		t.Run(enc.String(), func(t *testing.T) {
			change := func(o *Options) { o.Server.DrainWindow = time.Second }
			withClock(t, change, func(s *clockwork) {
				hold := make(chan struct{})
				s.Server.committing = func([]store.Event) { <-hold }
				publisher, peer := s.connect(enc, token(t, "publisher"))
				idle, _ := s.connect(enc, token(t, "idle"))
				first, second := publishTo("open:a", `1`), publishTo("open:a", `2`)
				if err := publisher.send(first, second); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				began := time.Now()
				var stop sync.WaitGroup
				stop.Go(s.stop)
				idle.closes(closeShutdown.code)
				if took := time.Since(began); took > s.opts.Server.DrainWindow+2*wheelTick {
					t.Errorf("an idle connection was closed after %v", took)
				}
				time.Sleep(2 * s.opts.Server.DrainWindow)
				if sent := peer.Unread(); len(sent) > 0 || peer.Hung() {
					t.Errorf("sent %q, closed %v while its publications are not committed", sent, peer.Hung())
				}
				close(hold)
				for _, cmd := range []uint32{first.Id, second.Id} {
					if r, err := publisher.read(); err != nil || r.Id != cmd || r.Error != nil || r.Publish == nil {
						t.Fatalf("got %v, %v, want the acknowledgement of command %d", r, err, cmd)
					}
				}
				publisher.closes(closeShutdown.code)
				stop.Wait()
			})
		})
	}
}

// While the server drains, the admin listener says so and shows the metrics, and
// clients are not accepted.
func TestAdminDuringDrain(t *testing.T) {
	backends(t, func(t *testing.T, backend string) {
		o := testOptions(t)
		o.Server.Backend = backend
		o.Admin.Listen, o.Admin.Key = "127.0.0.1:0", "an-admin-key-for-tests"
		hold := make(chan struct{})
		release := sync.OnceFunc(func() { close(hold) })
		s := startServer(t, o, func(s *Server) { s.committing = func([]store.Event) { <-hold } })
		t.Cleanup(release)
		ask := func(path string) (status int, body string) {
			t.Helper()
			req, err := http.NewRequest(http.MethodGet, "http://"+s.AdminAddr()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+o.Admin.Key)
			req.Close = true
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatalf("GET %s: %v", path, err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, string(b)
		}
		if status, body := ask("/readyz"); status != http.StatusOK {
			t.Errorf("before: status %d %s, want 200", status, body)
		}
		c := s.connect(t, wire.JSON, "u")
		cmd := publishTo("open:a", `1`)
		if err := c.send(cmd); err != nil {
			t.Fatal(err)
		}
		cc := s.connOf(t, "u")
		until(t, "the publication is in flight", func() (inFlight bool) {
			onLoop(cc.loop, func() { inFlight = cc.flight == 1 })
			return inFlight
		})
		var stop sync.WaitGroup
		stop.Go(s.stop)
		until(t, "the server drains", s.draining.Load)
		if status, body := ask("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
			t.Errorf("readyz: status %d %s, want 503 draining", status, body)
		}
		if status, body := ask("/healthz"); status != http.StatusOK {
			t.Errorf("healthz: status %d %s, want 200", status, body)
		}
		until(t, "clients are not accepted", func() bool {
			conn, err := net.Dial("tcp", s.Addr())
			if err == nil {
				conn.Close()
			}
			return err != nil
		})
		if status, body := ask("/metrics"); status != http.StatusOK || !strings.Contains(body, "\nhub_sockets 1\n") {
			t.Errorf("metrics: status %d, want 200 with one socket", status)
		}
		release()
		if r, err := c.reply(cmd.Id); err != nil || r.Error != nil {
			t.Errorf("got %v, %v, want the acknowledgement", r, err)
		}
		c.closes(closeShutdown.code)
		c.conn.Close()
		stop.Wait()
		if _, err := net.Dial("tcp", s.AdminAddr()); err == nil {
			t.Error("the admin listener is still there")
		}
	})
}
