package auth_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hub/auth"
)

const keyServer = "https://keys.example.com/jwks.json?apikey=hunter2"

// fakeServer answers requests without a network.
type fakeServer struct {
	began time.Time

	mu       sync.Mutex
	set      string        // guarded by mu; "" refuses
	slow     time.Duration // guarded by mu: how long an answer takes
	deaf     bool          // guarded by mu: it cannot be interrupted
	requests []time.Duration
}

func (f *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.requests = append(f.requests, time.Since(f.began))
	set, slow, deaf := f.set, f.slow, f.deaf
	f.mu.Unlock()
	if deaf {
		time.Sleep(slow)
	}
	select {
	case <-time.After(slow):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if set == "" {
		return nil, errors.New("connection refused")
	}
	return &http.Response{
		StatusCode: http.StatusOK,
		Header: http.Header{
			"Cache-Control": {"public, max-age=31536000, immutable"},
			"Expires":       {"Fri, 31 Dec 2099 23:59:59 GMT"},
		},
		Body:    io.NopCloser(strings.NewReader(set)),
		Request: r,
	}, nil
}

func (f *fakeServer) serve(set string, slow time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set, f.slow = set, slow
}

// wantRequests checks when all requests of so far were made.
func (f *fakeServer) wantRequests(t *testing.T, want ...time.Duration) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.requests, want) {
		t.Errorf("requests at %v, want %v", f.requests, want)
	}
}

// logged is a log that tests may read.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// bubble is a source of a fake server, in the time of a synctest bubble.
type bubble struct {
	*auth.Source
	server *fakeServer
	log    *logged
	t      *testing.T
}

// inBubble runs f with a source whose server has this set from the beginning.
func inBubble(t *testing.T, set string, f func(b *bubble)) {
	t.Helper()
	keys() // made outside: it may take long
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{server: &fakeServer{began: time.Now(), set: set}, log: &logged{}, t: t}
		o := auth.DefaultOptions()
		o.JWKS = keyServer
		var err error
		b.Source, err = auth.OpenVia(t.Context(), o, slog.New(slog.NewTextHandler(b.log, nil)), b.server)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		f(b)
		if b.log.count("hunter2") > 0 {
			t.Error("the log tells the query of the URL")
		}
	})
}

// pass lets time pass and what is due happen.
func (b *bubble) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bubble) wantChanged(want bool) {
	b.t.Helper()
	select {
	case <-b.Changed():
		if !want {
			b.t.Error("Changed without a change")
		}
	default:
		if want {
			b.t.Error("a change without Changed")
		}
	}
}

// want checks what the present verifier says of a token.
func (b *bubble) want(token string, want error) {
	b.t.Helper()
	wantError(b.t, b.Verifier(), token, want)
}

// wantError checks what a verifier says of a token: nil, or one of the errors
// that callers branch on and no other of them.
func wantError(t *testing.T, v *auth.Verifier, token string, want error) {
	t.Helper()
	_, err := v.Connection(token, now)
	for _, kind := range []error{auth.ErrInvalid, auth.ErrKeysPending, auth.ErrKeyRemoved} {
		if errors.Is(err, kind) != (kind == want) {
			t.Fatalf("got error %v, want %v", err, want)
		}
	}
	if want == nil && err != nil {
		t.Fatalf("got error %v, want none", err)
	}
}
