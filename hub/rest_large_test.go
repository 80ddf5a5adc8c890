package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"hub/store"
)

// fill gives a room resources of so many bytes together.
func (s *testServer) fill(t testing.TB, room string, bytes int) {
	t.Helper()
	value := strings.Repeat("x", 50_000)
	for i := range bytes/len(value) + 1 {
		s.call(t, "POST", rooms+room+"/operations",
			fmt.Sprintf(`{"id":"%d","steps":[{"op":"set","key":"k%d","value":%q}]}`, i, i, value), keyLine).want(t, "an operation", 200, "")
	}
}

// Large replies that nobody takes are bounded; small ones do not count.
func TestRestLargeReplies(t *testing.T) {
	s := restServer(t)
	s.fill(t, "open:large", 3_500_000)
	s.fill(t, "open:small", 1)

	// Readers that do not read: their sockets take some of it, the rest is held.
	request := "GET " + rooms + "open:large/snapshot HTTP/1.1\r\nHost: " + s.Addr() + "\r\n" + keyLine + "\r\n\r\n"
	for range 3 {
		if _, err := io.WriteString(s.dial(t), request); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "three replies are held", func() bool { return s.replies.Load() > 3*3_500_000 })

	held := s.replies.Load()
	s.replies.Add(maxReplies - held) // as if there were more of them
	a := s.call(t, "GET", rooms+"open:large/snapshot", "", keyLine).want(t, "one more", http.StatusServiceUnavailable, "overloaded")
	if a.header.Get("Retry-After") == "" {
		t.Error("nothing tells when to come back")
	}
	s.call(t, "GET", rooms+"open:small/snapshot", "", keyLine).want(t, "a small one", 200, "")
	s.replies.Add(held - maxReplies)
	s.call(t, "GET", rooms+"open:large/snapshot", "", keyLine).want(t, "with room again", 200, "")
	until(t, "only the three are held", func() bool { return s.replies.Load() == held })
}

// What was held is given back when a reader goes.
func TestRestLargeReplyAbandoned(t *testing.T) {
	s := restServer(t)
	s.fill(t, "open:large", 3_500_000)
	conn := s.dial(t)
	if _, err := io.WriteString(conn, "GET "+rooms+"open:large/snapshot HTTP/1.1\r\nHost: "+s.Addr()+"\r\n"+keyLine+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	until(t, "the reply is held", func() bool { return s.replies.Load() > 0 })
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "nothing is held", func() bool { return s.replies.Load() == 0 })
}

// A read for which nobody waits any more ends, and is no trouble of the database.
func TestRestAbandonedRead(t *testing.T) {
	log := new(strings.Builder)
	s := startLogging(t, restOptions(t), nil, slog.New(slog.NewTextHandler(log, nil)))
	db, server := s.databases.get("default"), &caller{server: true}
	ctx, abandon := context.WithCancel(t.Context())
	abandon()
	for what, read := range map[string]func(context.Context) error{
		"resource": func(ctx context.Context) error { return orNil(second(db.getResource(ctx, server, "open:a", "k"))) },
		"list": func(ctx context.Context) error {
			return orNil(second(db.listResources(ctx, server, "open:a", resourceQuery{})))
		},
		"snapshot":  func(ctx context.Context) error { return orNil(second(db.snapshot(ctx, server, "open:a", maxSnapshot))) },
		"operation": func(ctx context.Context) error { return orNil(second(db.findOperation(ctx, server, "open:a", "1"))) },
		"history": func(ctx context.Context) error {
			if _, e := db.history(ctx, "open:a", historyQuery{Query: store.Query{Limit: 1}}); e != nil {
				return errors.New(e.Message)
			}
			return nil
		},
	} {
		if err := read(ctx); err == nil {
			t.Errorf("%s: read on for nobody", what)
		}
	}
	if strings.Contains(log.String(), "read failed") {
		t.Errorf("logged: %s", log)
	}
}

func second[T any](_ T, p *problem) *problem { return p }

func orNil(p *problem) error {
	if p == nil || p.Code == "not_found" {
		return nil
	}
	return errors.New(p.Code)
}

// An outcome that is unknown has a code of its own, over HTTP and the socket.
func TestUnknownOutcome(t *testing.T) {
	s := restServer(t)
	err := fmt.Errorf("%w: %w", store.ErrUnknownOutcome, store.ErrUnavailable)
	if p := s.storeProblem(err); p.Code != "outcome_unknown" || p.Status != http.StatusInternalServerError {
		t.Errorf("%+v", p)
	}
	if e := s.storeError(err); e == nil || e.Code != errInternal.Code || e.Temporary || !strings.Contains(e.Message, "not known") {
		t.Errorf("%+v", e)
	}
}
