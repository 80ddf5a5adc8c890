package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// runners makes a fleet in each of its kinds.
func runners(t *testing.T, o Options, f func(t *testing.T, fl *Fleet)) {
	o.Stall = 5 * time.Second
	begin := time.Now()
	o.Now = func() int64 { return int64(time.Since(begin)) }
	t.Run("own", func(t *testing.T) {
		fl, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer fl.Close()
		f(t, fl)
	})
	t.Run("portable", func(t *testing.T) {
		fl := &Fleet{newPortable(&o)}
		defer fl.Close()
		f(t, fl)
	})
}

func addrOf(s *httptest.Server) netip.AddrPort {
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

// TestRun: each client gets the answers to what it asks, in order, over as many
// connections as it should.
func TestRun(t *testing.T) {
	const clients, each = 20, 30
	for name, test := range map[string]struct {
		once  bool
		conns int
	}{"kept alive": {false, clients}, "once": {true, clients * each}} {
		t.Run(name, func(t *testing.T) {
			conns := make(chan struct{}, 10_000)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("X-More") != "1" {
					t.Errorf("header: %v", r.Header)
				}
				w.Header().Set("ETag", `"5"`)
				w.Header().Set("Retry-After", "7")
				text := r.URL.Path + " " + string(body) + strings.Repeat("x", len(r.URL.Path)*3000)
				w.Header().Set("Content-Length", fmt.Sprint(len(text)))
				w.WriteHeader(http.StatusAccepted)
				_, _ = io.WriteString(w, text)
			}))
			server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					conns <- struct{}{}
				}
			}
			server.Start()
			defer server.Close()
			runners(t, Options{Addr: addrOf(server), Clients: clients, Once: test.once}, func(t *testing.T, fl *Fleet) {
				var asked, got [clients]int
				err := fl.Run(t.Context(), func(i int, dst []byte) []byte {
					if asked[i]++; asked[i] > each {
						return dst
					}
					return Request(dst, "POST", fmt.Sprintf("/%d/%d", i, asked[i]), "host", "secret", "X-More: 1\r\n", []byte("{}"))
				}, func(i int, a *Answer) {
					got[i]++
					want := fmt.Sprintf("/%d/%d {}x", i, got[i])
					if a.Status != http.StatusAccepted || !strings.HasPrefix(string(a.Body), want) || string(a.ETag) != `"5"` || string(a.RetryAfter) != "7" {
						t.Errorf("client %d: %d %.20q, want %q", i, a.Status, a.Body, want)
					}
					if a.Sent <= 0 || a.At < a.Sent {
						t.Errorf("sent at %d, answered at %d", a.Sent, a.At)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				for i, n := range got {
					if n != each {
						t.Errorf("client %d: %d answers", i, n)
					}
				}
				if n := len(conns); n != test.conns {
					t.Errorf("%d connections, want %d", n, test.conns)
				}
				for len(conns) > 0 {
					<-conns
				}
			})
		})
	}
}

// TestFailures: a fleet does not go on without one of its clients.
func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		answer string
		want   error
	}{
		"closed":       {"", ErrLost},
		"cut off":      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", ErrLost},
		"no HTTP":      {"SSH-2.0-x and more of it\r\n\r\n", ErrAnswer},
		"no length":    {"HTTP/1.1 200 OK\r\n\r\nabc", ErrAnswer},
		"two answers":  {strings.Repeat("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 2), ErrAnswer},
		"a huge body":  {"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", ErrAnswer},
		"endless head": {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxHead), ErrAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(c, test.answer)
				_ = c.Close()
			}))
			defer server.Close()
			runners(t, Options{Addr: addrOf(server), Clients: 3}, func(t *testing.T, fl *Fleet) {
				err := fl.Run(t.Context(), func(_ int, dst []byte) []byte { return Request(dst, "GET", "/", "host", "", "", nil) },
					func(int, *Answer) { t.Error("answered") })
				if !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
			})
		})
	}
}

// TestEnds: waiting ends with its context, and when nothing comes any more.
func TestEnds(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	ask := func(_ int, dst []byte) []byte { return Request(dst, "GET", "/", "host", "", "", nil) }
	runners(t, Options{Addr: addrOf(server), Clients: 3}, func(t *testing.T, fl *Fleet) {
		ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, io.ErrClosedPipe)
		defer stop()
		if err := fl.Run(ctx, ask, func(int, *Answer) { t.Error("answered") }); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%v", err)
		}
	})
	now := func() int64 { return 0 }
	o := Options{Addr: addrOf(server), Clients: 3, Stall: 60 * time.Millisecond, Now: now}
	own, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, fl := range []*Fleet{own, {newPortable(&o)}} {
		if err := fl.Run(t.Context(), ask, func(int, *Answer) { t.Error("answered") }); !errors.Is(err, ErrStalled) {
			t.Errorf("%v", err)
		}
		fl.Close()
	}
}

// TestParse: an answer is complete at its last byte, not before.
func TestParse(t *testing.T) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nConnection: close\r\n\r\nabc",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many Requests\r\nContent-Length: 3\r\nRetry-After: 1\r\n\r\nabc",
	} {
		for n := range len(text) {
			if got, err := parse([]byte(text[:n]), &Answer{}); got != 0 || err != nil {
				t.Errorf("%q: %d, %v", text[:n], got, err)
			}
		}
		var a Answer
		if n, err := parse([]byte(text+"more"), &a); n != len(text) || err != nil || string(a.Body) != "abc" {
			t.Errorf("%q: %d, %v, body %q", text, n, err, a.Body)
		}
	}
	for _, bodyless := range []string{"101 Switching Protocols", "204 No Content", "304 Not Modified"} {
		text := "HTTP/1.1 " + bodyless + "\r\nA: b\r\n\r\n"
		if n, err := parse([]byte(text), &Answer{}); n != len(text) || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"))
	f.Add([]byte("HTTP/1.1 100 \r\n\r\nHTTP/1.1 204 \r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var a Answer
		if n, err := parse(data, &a); n < 0 || n > len(data) || err != nil && n != 0 {
			t.Errorf("%d of %d bytes, %v", n, len(data), err)
		}
	})
}

func BenchmarkExchange(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer server.Close()
	b.ReportAllocs()
	n := 0
	fl, err := New(Options{Addr: addrOf(server), Clients: 16, Stall: time.Second, Now: func() int64 { return 0 }})
	if err != nil {
		b.Fatal(err)
	}
	defer fl.Close()
	request := Request(nil, "GET", "/", "host", "token", "", nil)
	err = fl.Run(b.Context(), func(_ int, dst []byte) []byte {
		if n++; n > b.N {
			return dst
		}
		return append(dst, request...)
	}, func(int, *Answer) {})
	if err != nil {
		b.Fatal(err)
	}
}
