package loadtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"hub/loadtest/report"
)

// metrics are the figures that a server publishes, summed over their labels.
type metrics map[string]float64

// metricsSource is the admin listener of a server.
type metricsSource struct {
	base, key string // the key goes to this URL and nowhere else
}

func (s *server) metrics() *metricsSource {
	return &metricsSource{base: "http://" + s.admin, key: s.adminKey}
}

// fetch reads them all.
func (m *metricsSource) fetch(ctx context.Context) (metrics, error) {
	body, err := m.page(ctx, "/metrics", metricsTimeout)
	if err != nil {
		return nil, fmt.Errorf("fetch metrics: %w", err)
	}
	return parseMetrics(string(body)), nil
}

// connections is how many the server has.
func (m *metricsSource) connections(ctx context.Context) (int, error) {
	all, err := m.fetch(ctx)
	if err != nil {
		return 0, err
	}
	n, ok := all["hub_connections"]
	if !ok {
		return 0, errors.New("the server's metrics have no hub_connections")
	}
	return int(n), nil
}

const (
	metricsTimeout = 5 * time.Second
	profileTimeout = time.Minute // above the time of the longest one
	maxPage        = 64 << 20
)

// page gets one page.
func (m *metricsSource) page(ctx context.Context, path string, timeout time.Duration) ([]byte, error) {
	return m.ask(ctx, http.MethodGet, path, nil, http.StatusOK, timeout)
}

// ask makes a request, which must be answered with a status.
func (m *metricsSource) ask(ctx context.Context, method, path string, body []byte, status int, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, m.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+m.key)
	req.Header.Set("Content-Type", "application/json")
	// A transport of its own, so that no connection outlives the server.
	transport := &http.Transport{DisableKeepAlives: true}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	if err == nil && resp.StatusCode != status {
		err = fmt.Errorf("%s: %.300s", resp.Status, answer)
	}
	return answer, err
}

// parseMetrics reads the Prometheus text format.
func parseMetrics(text string) metrics {
	sums := make(metrics)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		end := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if end < 0 {
			continue
		}
		name, _, _ := strings.Cut(line[:end], "{")
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64); err == nil {
			sums[name] += v
		}
	}
	return sums
}

// profile starts a processor profile of the server, if profiles are wanted, and
// returns what waits for it. Taking one costs some of what is measured.
func (st *stage) profile(ctx context.Context, name string, d time.Duration) (wait func() error) {
	if st.r.options.Profiles == "" || st.source == nil {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		done <- st.save(ctx, name, fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(d.Seconds()))))
	}()
	return func() error { return <-done }
}

// profileBursts profiles bursts that are not measured.
func (st *stage) profileBursts(ctx context.Context, shape report.Shape) error {
	if st.r.options.Profiles == "" {
		return nil
	}
	const d = 4 * time.Second
	wait, rounds := st.profile(ctx, fmt.Sprintf("burst-%d", shape.Conns), d), len(st.out.Rounds)
	for begin := time.Now(); time.Since(begin) < d; {
		if _, err := st.burst(ctx, "profiled", shape, shape.Events); err != nil {
			return err
		}
	}
	st.out.Rounds = st.out.Rounds[:rounds]
	return wait()
}

// saveHeap saves a profile of the server's memory, if profiles are wanted.
func (st *stage) saveHeap(ctx context.Context) error {
	if st.r.options.Profiles == "" || st.source == nil {
		return nil
	}
	return st.save(ctx, "heap", "/debug/pprof/heap?gc=1")
}

func (st *stage) save(ctx context.Context, name, path string) error {
	profile, err := st.source.page(ctx, path, profileTimeout)
	if err != nil {
		return fmt.Errorf("profile %s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(st.r.options.Profiles, st.name+"-"+name+".pprof"), profile, 0o600)
}
