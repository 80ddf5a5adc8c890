package main

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stalledConns = 1_000
	stalledRate  = 400 // events a second
	stalledTime  = 4 * time.Second
	// narrow is the receive buffer of those that stop reading: what the kernel
	// takes for them must not hide that they do.
	narrow = 8 << 10
)

// benchStalled holds one durable room under a steady load while nobody, one or a
// twentieth of its members do not read, in turns. The latency is that of the
// others, who are the same all the time. The stalled ones get everything once
// they read again.
func benchStalled(b *testing.B) {
	groups := []struct {
		stalled int
		name    string
		unit    string
		p95     []float64
		late    []float64
	}{
		{0, "none", "all-reading-p95-ms", nil, nil},
		{1, "one", "one-stalled-p95-ms", nil, nil},
		{stalledConns / 20, "5 %", "5%-stalled-p95-ms", nil, nil},
	}
	server := startHub(b)
	s, err := newSwarm(server.addr, 1, tokens(b, stalledConns))
	must(b, err)
	defer s.close(false)
	var apart []int
	for i := stalledConns - stalledConns/20; i < stalledConns; i++ {
		apart = append(apart, i)
		s.peers[i].receive, s.peers[i].apart = narrow, true
	}
	_, err = s.open(source)
	must(b, err)
	for range rounds {
		for i := range groups {
			g := &groups[i]
			stalled := apart[:g.stalled]
			must(b, s.reading(stalled, false))
			total, readers := int(stalledRate*stalledTime.Seconds()), stalledConns-g.stalled
			_, err := s.stream(total, stalledRate, readers)
			must(b, err)
			g.p95 = append(g.p95, s.quantile(95))
			for _, i := range stalled {
				waiting, err := unix.IoctlGetInt(s.peers[i].fd, unix.SIOCINQ)
				must(b, err)
				if waiting > total*dataSize/2 {
					b.Fatalf("%d bytes wait in the socket of one that does not read: the server was never held up", waiting)
				}
			}
			again := time.Now()
			must(b, s.reading(stalled, true))
			must(b, s.until(func() bool { return s.got == total*stalledConns }))
			g.late = append(g.late, milliseconds(time.Since(again)))
			must(b, s.check())
		}
	}
	s.close(false)
	must(b, server.stop())
	var f figures
	quiet := 0.0
	for i := range groups {
		g := &groups[i]
		p95 := median(g.p95)
		f.add(fmt.Sprintf("latency p95 of the others, %s not reading", g.name), g.unit, p95)
		if i == 0 {
			quiet = p95
			continue
		}
		f.add("  in units of all reading", fmt.Sprintf("x-with-%d-stalled", g.stalled), p95/quiet)
		f.add("  until the stalled have everything, reading again", fmt.Sprintf("catch-up-of-%d-ms", g.stalled), median(g.late))
	}
	f.tell(b)
}

// reading makes peers read, or not.
func (s *swarm) reading(peers []int, yes bool) error {
	var errs []error
	for _, i := range peers {
		e := unix.EpollEvent{Fd: int32(i)}
		if yes {
			e.Events = unix.EPOLLIN
		}
		errs = append(errs, unix.EpollCtl(s.epfd, unix.EPOLL_CTL_MOD, s.peers[i].fd, &e))
	}
	return errors.Join(errs...)
}
