package poll_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hub/hub/poll"
)

// Descriptor numbers are reused all the time; no connection ever sees another's
// bytes or events.
func TestChurn(t *testing.T) {
	const clients = 32
	each(t, func(t *testing.T, b poll.Backend) {
		rounds := 60
		if _, ok := b.(secure); ok {
			rounds = 15
		}
		before := resources()
		l, loops := listen(t), []*loop{newLoop(t, b), newLoop(t, b)}
		var attached atomic.Int64
		go func() {
			for i := 0; ; i++ {
				c, err := l.Accept()
				if err != nil {
					return
				}
				attached.Add(1)
				served, err := accepted(b, c)
				if err != nil {
					t.Error(err)
					return
				}
				serveIdentity(t, loops[i%2], take(t, b, served, ""), &attached)
			}
		}()
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				for j := range rounds {
					if err := callIdentity(b, l.Addr().String(), i*rounds+j); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		until(t, "all sockets closed", func() bool { return attached.Load() == 0 })
		l.Close()
		for _, l := range loops {
			l.close()
		}
		until(t, fmt.Sprintf("goroutines and descriptors back to %v", before), func() bool {
			now := resources()
			return now.goroutines <= before.goroutines && now.descriptors <= before.descriptors
		})
	})
}

// serveIdentity echoes lines that must all be the same on one connection; every
// third connection it closes itself, in the middle of a batch.
func serveIdentity(t *testing.T, l *loop, h poll.Handle, attached *atomic.Int64) {
	var id, line []byte
	lines := 0
	l.attach(h, func(s poll.Socket, ev poll.Event) {
		var buf [16]byte // small, so that events repeat
		n, err := s.Read(buf[:])
		if errors.Is(err, net.ErrClosed) {
			return // a stale event of ours in the batch
		}
		line = append(line, buf[:n]...)
		for err == nil {
			i := bytes.IndexByte(line, '\n')
			if i < 0 {
				break
			}
			if id == nil {
				id = bytes.Clone(line[:i])
			}
			if !bytes.Equal(id, line[:i]) {
				t.Errorf("connection %s got a line of %s", id, line[:i])
			}
			_, err = s.Write(line[:i+1])
			line = line[i+1:]
			lines++
			if lines == 3 && id[len(id)-1]%3 == 0 {
				err = io.EOF
			}
		}
		if err != nil && !errors.Is(err, poll.ErrAgain) {
			s.Close()
			attached.Add(-1)
		}
	})
}

func callIdentity(b poll.Backend, addr string, id int) error {
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	c := dialed(b, raw)
	defer c.Close()
	c.SetDeadline(time.Now().Add(15 * time.Second))
	want := fmt.Sprintf("connection-%d", id)
	r := bufio.NewReader(c)
	for range 4 {
		if _, err := io.WriteString(c, want+"\n"); err != nil {
			return nil // closed by the server, as it may
		}
		got, err := r.ReadString('\n')
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("%s: no answer", want)
			}
			return nil
		}
		if got != want+"\n" {
			return fmt.Errorf("%s got %q", want, got)
		}
	}
	return nil
}

// counts are goroutines and descriptors; the latter only where /proc has them.
type counts struct{ goroutines, descriptors int }

func resources() counts {
	fds, _ := os.ReadDir("/proc/self/fd")
	return counts{runtime.NumGoroutine(), len(fds)}
}

// until waits for a condition that other goroutines bring about.
func until(t testing.TB, what string, reached func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !reached(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("not reached: %s (now %v)", what, resources())
		}
	}
}
