package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// portableRunner serves each client in a goroutine of its own.
type portableRunner struct {
	options *Options
	clients []portableClient

	mu sync.Mutex // held in callbacks
}

// portableClient belongs to the goroutine that serves it.
type portableClient struct {
	net net.Conn // nil: not connected
	tcp *net.TCPConn
	out []byte
	in  []byte
}

func newPortable(o *Options) *portableRunner {
	return &portableRunner{options: o, clients: make([]portableClient, o.Clients)}
}

func (r *portableRunner) close() {
	for i := range r.clients {
		r.clients[i].drop(false)
	}
}

func (c *portableClient) drop(reset bool) {
	if c.net == nil {
		return
	}
	if reset {
		_ = c.tcp.SetLinger(0)
		_ = c.tcp.Close()
	}
	_ = c.net.Close()
	c.net, c.tcp, c.in = nil, nil, nil
}

func (r *portableRunner) run(ctx context.Context, next Next, answered Answered) error {
	return r.each(ctx, func(ctx context.Context, i int) error {
		for {
			more, err := r.exchange(ctx, i, next, answered)
			if err != nil || !more {
				return err
			}
		}
	})
}

// each calls f for every client and returns the first error, which ends them all.
func (r *portableRunner) each(ctx context.Context, f func(ctx context.Context, i int) error) error {
	user := ctx
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var done sync.WaitGroup
	for i := range r.clients {
		done.Go(func() {
			if err := f(ctx, i); err != nil {
				stop(fmt.Errorf("client %d: %w", i, err))
			}
		})
	}
	done.Wait()
	if user.Err() != nil {
		return context.Cause(user)
	}
	return context.Cause(ctx)
}

func (r *portableRunner) dial(ctx context.Context, i int) error {
	c := &r.clients[i]
	d := net.Dialer{Timeout: r.options.Stall}
	if r.options.Source != nil {
		if source := r.options.Source(i); source.IsValid() {
			d.LocalAddr = &net.TCPAddr{IP: source.AsSlice()}
		}
	}
	conn, err := d.DialContext(ctx, "tcp", r.options.Addr.String())
	if err != nil {
		return err
	}
	c.net, c.tcp = conn, conn.(*net.TCPConn)
	if r.options.TLS != nil {
		secure := tls.Client(conn, r.options.TLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			return fmt.Errorf("TLS handshake: %w", err)
		}
		c.net = secure
	}
	return nil
}

// exchange makes one request of a client, and reports false when it has no more.
func (r *portableRunner) exchange(ctx context.Context, i int, next Next, answered Answered) (more bool, err error) {
	c := &r.clients[i]
	r.mu.Lock()
	c.out = next(i, c.out[:0])
	r.mu.Unlock()
	if len(c.out) == 0 {
		return false, nil
	}
	if c.net == nil {
		if err := r.dial(ctx, i); err != nil {
			return false, err
		}
	}
	conn := c.net
	if err := conn.SetDeadline(time.Now().Add(r.options.Stall)); err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	a := Answer{Sent: r.options.Now()}
	if _, err := conn.Write(c.out); err != nil {
		return false, lost(err)
	}
	if err := c.receive(&a); err != nil {
		return false, err
	}
	a.At = r.options.Now()
	if r.options.Once || a.closes {
		c.drop(true)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	answered(i, &a)
	return true, nil
}

// receive reads one answer.
func (c *portableClient) receive(a *Answer) error {
	if c.in == nil {
		c.in = make([]byte, 4<<10)
	}
	for held := 0; ; {
		if held == len(c.in) {
			c.in = append(c.in, make([]byte, len(c.in))...)
		}
		n, err := c.net.Read(c.in[held:])
		held += n
		if n == 0 && err != nil {
			return lost(err)
		}
		size, err := parse(c.in[:held], a)
		switch {
		case err != nil:
			return err
		case size == 0:
		case size < held && a.Status != 101:
			return fmt.Errorf("%w: %d bytes behind it", ErrAnswer, held-size)
		default:
			return nil
		}
	}
}

// lost is why a connection failed.
func lost(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return ErrStalled
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}
