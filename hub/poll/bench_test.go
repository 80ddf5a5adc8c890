package poll_test

import (
	"io"
	"testing"
	"time"

	"hub/hub/poll"
)

// BenchmarkRoundTrip is a message from a client through Wait, Read and Write and
// back.
func BenchmarkRoundTrip(b *testing.B) {
	for _, backend := range backends {
		b.Run(backend.Name(), func(b *testing.B) {
			p, err := backend.NewPoller()
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			client, server := pair(b, backend)
			client.SetDeadline(time.Time{})
			s, err := p.Attach(take(b, backend, server, ""), "owner")
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			events, buf, msg := make([]poll.Event, 16), make([]byte, 256), make([]byte, 128)
			b.ReportAllocs()
			for b.Loop() {
				client.Write(msg)
				for got := 0; got < len(msg); {
					if _, err := p.Wait(events, -1); err != nil {
						b.Fatal(err)
					}
					n, _ := s.Read(buf)
					got += n
				}
				s.Write(msg)
				if _, err := io.ReadFull(client, msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWake is one wake and the wait it ends; "coalesced" is a wake that
// another one has made unnecessary.
func BenchmarkWake(b *testing.B) {
	for _, backend := range backends[:2] {
		p, err := backend.NewPoller()
		if err != nil {
			b.Fatal(err)
		}
		events := make([]poll.Event, 16)
		b.Run(backend.Name()+"/waited", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Wake()
				p.Wait(events, -1)
			}
		})
		b.Run(backend.Name()+"/coalesced", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Wake()
			}
		})
		p.Close()
	}
}

// BenchmarkWaitNothing is a look at a loop that has work of its own.
func BenchmarkWaitNothing(b *testing.B) {
	for _, backend := range backends[:2] {
		b.Run(backend.Name(), func(b *testing.B) {
			p, err := backend.NewPoller()
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			events := make([]poll.Event, 16)
			b.ReportAllocs()
			for b.Loop() {
				p.Wait(events, 0)
			}
		})
	}
}
