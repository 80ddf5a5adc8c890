package loadtest

import (
	"context"
	"sync"
	"time"

	"hub/loadtest/report"
)

// sampler looks at the server now and then while a scenario runs.
type sampler struct {
	// fixed after new
	stage *stage
	start time.Time
	deep  time.Duration // between two looks at what is dear to count
	stop  context.CancelFunc
	done  sync.WaitGroup

	// mu guards the rest
	mu     sync.Mutex
	swarm  *swarm
	source *metricsSource
	pid    int
	series map[string][]report.Point
}

// Names of series.
const (
	serverMemory      = "server memory (RSS)"
	kernelMemory      = "kernel memory of all TCP sockets"
	openConnections   = "connections ready"
	serverDescriptors = "server descriptors"
	serverGoroutines  = "server goroutines"
)

// seriesOrder is the order in a report, with units.
var seriesOrder = []struct{ name, unit, chart string }{
	{openConnections, "", ""},
	{serverMemory, "bytes", "memory"},
	{kernelMemory, "bytes", "memory"},
	{serverDescriptors, "", ""},
	{serverGoroutines, "", ""},
}

const (
	sampleEvery = 250 * time.Millisecond
	// deepEvery is for descriptors and metrics: counting 10,000 takes milliseconds.
	deepEvery = 5 * time.Second
	// maxPoints bounds a series of a long run.
	maxPoints = 2000
)

func newSampler(st *stage) *sampler {
	ctx, stop := context.WithCancel(context.Background())
	p := &sampler{stage: st, start: time.Now(), deep: deepEvery, stop: stop, series: make(map[string][]report.Point)}
	p.running()
	every := max(sampleEvery, st.r.options.Duration/maxPoints)
	p.done.Go(func() { p.run(ctx, every) })
	return p
}

// running notes which process the server is now; 0 for none. The goroutine of the
// scenario calls it.
func (p *sampler) running() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid, p.source = 0, p.stage.source
	if s := p.stage.server; s != nil && s.process != nil {
		p.pid = s.process.pid
	}
}

// watch says whose connections are counted.
func (p *sampler) watch(s *swarm) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swarm = s
}

func (p *sampler) run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.sample()
		if time.Since(last) >= max(p.deep, every) {
			last = time.Now()
			p.sampleDeep(ctx)
		}
	}
}

func (p *sampler) sample() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.swarm != nil {
		p.add(openConnections, float64(p.swarm.counts().ready))
	}
	if p.pid == 0 {
		return
	}
	if v, ok := processMemory(p.pid, "VmRSS"); ok {
		p.add(serverMemory, float64(v))
	}
	if v, ok := socketMemory(); ok {
		p.add(kernelMemory, float64(v))
	}
}

// sampleDeep looks at what only the server knows, and at its descriptors.
func (p *sampler) sampleDeep(ctx context.Context) {
	p.mu.Lock()
	source := p.source
	p.mu.Unlock()
	if source == nil {
		return
	}
	m, err := source.fetch(ctx)
	if err != nil {
		return // while it is down; the checks tell of a server that stays down
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(serverGoroutines, m["go_goroutines"])
	if v, ok := processDescriptors(p.pid); ok {
		p.add(serverDescriptors, float64(v))
	}
}

// add appends a point. Its caller holds mu.
func (p *sampler) add(name string, v float64) {
	p.series[name] = append(p.series[name], report.Point{T: time.Since(p.start).Seconds(), V: v})
}

// points are those of a series so far.
func (p *sampler) points(name string) []report.Point {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.series[name]
}

// peak is the highest point of a series since a time; 0 without any.
func (p *sampler) peak(name string, since time.Time) (most float64) {
	from := since.Sub(p.start).Seconds()
	for _, at := range p.points(name) {
		if at.T >= from {
			most = max(most, at.V)
		}
	}
	return most
}

// close ends the sampling.
func (p *sampler) close() {
	p.stop()
	p.done.Wait()
}

// report appends the series to a scenario.
func (p *sampler) report(out *report.Scenario) {
	for _, s := range seriesOrder {
		if points := p.series[s.name]; len(points) > 1 {
			out.Series = append(out.Series, report.Series{Name: s.name, Unit: s.unit, Chart: s.chart, Points: points})
		}
	}
}
