package loadtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"hub/loadtest/report"
)

const (
	crashConns = 1000
	crashRooms = 100
	crashRate  = 50 // publications a second in each room: 5,000 in a hundred
	// crashOperators do operations in one more room, crashOperations a second.
	crashOperators  = 20
	crashOperations = 500
)

// crash kills the server in the middle of publications and operations, again and
// again. The clients send what was not acknowledged again, under its idempotency
// key or id.
func (st *stage) crash(ctx context.Context) error {
	o := &st.r.options
	conns := min(o.Conns, crashConns)
	if err := st.open(ctx, layout{conns: conns, rooms: min(o.Rooms, crashRooms, conns), once: true, watched: true, shared: true}); err != nil {
		return err
	}
	s := st.swarm
	s.resume.Store(true)
	operators := st.crashOperators()
	publishing, stop := context.WithCancel(ctx)
	defer stop()
	published, operated := make(chan error, 1), make(chan struct{})
	rooms := s.published()
	go func() {
		published <- s.steady(publishing, rooms, crashRate*float64(len(rooms)), 24*time.Hour, s.now())
	}()
	go func() {
		defer close(operated)
		operate(publishing, operators)
	}()
	defer func() {
		stop()
		<-operated
	}()
	var recoveries []float64
	random := rand.New(rand.NewPCG(o.Seed, 1))
	begin := time.Now()
	for i := range o.Kills {
		if err := st.pause(ctx, 300*time.Millisecond+time.Duration(random.Int64N(int64(500*time.Millisecond))), fmt.Sprintf("publish, kill %d of %d", i+1, o.Kills)); err != nil {
			return err
		}
		took, err := st.crashOnce(ctx)
		if err != nil {
			return fmt.Errorf("kill %d of %d: %w", i+1, o.Kills, err)
		}
		recoveries = append(recoveries, took.Seconds())
	}
	stop()
	<-published
	<-operated
	for _, p := range operators {
		p.repeat()
	}
	if err := st.finishOperations(ctx, operators); err != nil {
		return err
	}
	st.crashFigures(recoveries, time.Since(begin))
	if err := st.allReady(); err != nil {
		return err
	}
	return st.judgeRooms(ctx, time.Since(begin))
}

// crashOperators are clients that operate in the room that all share.
func (st *stage) crashOperators() (operators []*operator) {
	s := st.swarm
	shared := s.rooms[len(s.rooms)-1]
	for _, c := range s.conns {
		if c.room.db != shared.db || len(operators) == crashOperators {
			continue
		}
		p := newOperator(c, shared, st.r.options.Seed)
		p.token = c.token
		c.shard.mu.Lock()
		c.ready = p.fill
		c.shard.mu.Unlock()
		operators = append(operators, p)
	}
	return operators
}

// operate gives operators something to do in turn until ctx ends.
func operate(ctx context.Context, operators []*operator) {
	tick := time.NewTicker(time.Second / crashOperations)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
			operators[i%len(operators)].add(1)
		case <-ctx.Done():
			return
		}
	}
}

// crashOnce kills the server, starts it again and waits until every client is
// back, which takes the time that it returns.
func (st *stage) crashOnce(ctx context.Context) (time.Duration, error) {
	return st.startAgain(ctx, func() error { st.server.kill(); return nil }, int64(len(st.swarm.conns)))
}

// startAgain ends the server and starts it again, and waits until so many clients, who
// come back by themselves, are there: it returns the time that took from the start.
func (st *stage) startAgain(ctx context.Context, end func() error, all int64) (time.Duration, error) {
	s := st.swarm
	before := s.counts()
	if err := end(); err != nil {
		return 0, err
	}
	st.sampler.running()
	// Everybody notices before the server is back, so that "ready" means back.
	if err := s.wait(ctx, func(c *counts) bool { return c.ready == 0 }); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := st.server.start(ctx); err != nil {
		return 0, err
	}
	st.source = st.server.metrics()
	st.sampler.running()
	err := s.wait(ctx, func(c *counts) bool { return c.ready == all })
	// Connections that the end ended, and attempts while nothing listened.
	st.expectedEnds += s.counts().ended - before.ended
	if err == nil {
		s.dropped += all
	}
	return time.Since(begin), err
}

func (st *stage) crashFigures(recoveries []float64, took time.Duration) {
	s := st.swarm
	acked := uint64(0)
	for _, r := range s.published() {
		acked += r.acked.Load()
	}
	n := len(s.conns)
	st.figure(report.RecoveryTime.Of(report.Median(recoveries), n), len(recoveries))
	st.figure(report.Figure{Name: "kills", Title: "kills survived", Value: float64(len(recoveries)),
		Definition: "How often the server was killed with SIGKILL while publications were on their way, and started again."}, 0)
	st.figure(report.Figure{Name: "acknowledged_publications", Title: "publications acknowledged", Value: float64(acked),
		Definition: "Publications acknowledged over all kills; the checks say whether each was found once in the file and at every client."}, 0)
	st.figure(report.Figure{Name: "acknowledged_per_s", Title: "publications acknowledged a second, down times included", Unit: "1/s", Better: report.Higher,
		Value: float64(acked) / took.Seconds(), Definition: "Publications acknowledged divided by the time from the first to the last, during which the server was killed again and again."}, 0)
	st.figure(report.Figure{Name: "positions_recovered", Title: "subscriptions recovered", Value: float64(s.tally().recovered),
		Definition: "Subscriptions that continued from their position after a kill."}, 0)
	round := report.Round{N: 1, Part: "killed again and again", Started: st.out.Started, Shape: report.Shape{Conns: n, Rooms: len(s.published())},
		WallMS: took.Seconds() * 1000, Deliveries: s.counts().got, Latency: report.Summarize(s.latency(), microsecond), Faults: s.faults()}
	st.out.Rounds = append(st.out.Rounds, round)
}
