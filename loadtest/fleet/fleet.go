// Package fleet is many plain HTTP/1.1 clients of one server, so lean that they are
// not what a measurement finds: raw sockets on one epoll instance in one goroutine
// on Linux, a goroutine per client for TLS and elsewhere. Each client has a
// connection of its own, keeps it alive, and has one request under way.
package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Options says who the clients are. [New] uses them as they are.
type Options struct {
	Addr    netip.AddrPort
	TLS     *tls.Config // nil for plain sockets
	Clients int
	// Source is the address of a client; nil, or an invalid one, is the system's
	// choice.
	Source func(client int) netip.Addr
	// Once makes a new connection for each request and resets it after the answer,
	// so that the server's end goes at once and no TIME_WAIT is left.
	Once bool
	// Stall is how long nothing may come before waiting ends.
	Stall time.Duration
	// Now is the clock of [Answer], in nanoseconds.
	Now func() int64
}

// Answer is what the server said to one request. Its slices are valid until the
// callback returns.
type Answer struct {
	Status int
	// RetryAfter, ContentType and ETag are header fields; nil when absent.
	RetryAfter, ContentType, ETag []byte
	Body                          []byte
	// Sent is when the request was written, At when the last of the answer had been
	// read.
	Sent, At int64

	closes bool // the server ends the connection
}

// Next appends the next request of a client to dst, all of it; returning dst as it
// is ends the client's part.
type Next func(client int, dst []byte) []byte

// Answered gets the answer to a client's request. It and [Next] are never called at
// the same time and must not block.
type Answered func(client int, a *Answer)

// What ends [Fleet.Run], wrapped.
var (
	ErrStalled = errors.New("no answer came any more")
	ErrLost    = errors.New("the server ended the connection")
	ErrAnswer  = errors.New("not an HTTP answer that this client understands")
)

// Fleet is the clients. One goroutine uses it.
type Fleet struct{ runner }

// runner is how the sockets of a fleet are served.
type runner interface {
	run(ctx context.Context, next Next, answered Answered) error
	close()
}

// New makes clients without connections: each is opened when it is needed first.
func New(o Options) (*Fleet, error) {
	r, err := newRunner(&o)
	if err != nil {
		return nil, fmt.Errorf("HTTP clients: %w", err)
	}
	return &Fleet{r}, nil
}

// Run lets every client send what next gives it, one request after the other, until
// all are done. The first connection that fails, an answer that cannot be read, and
// ctx end it; the fleet can then only be closed.
func (f *Fleet) Run(ctx context.Context, next Next, answered Answered) error {
	if err := f.runner.run(ctx, next, answered); err != nil {
		return fmt.Errorf("HTTP clients: %w", err)
	}
	return nil
}

// Close closes all connections.
func (f *Fleet) Close() { f.runner.close() }

// Request appends a request without a body, or with body as JSON. token goes as
// bearer, unless empty; more are header lines with their ends.
func Request(dst []byte, method, path, host, token, more string, body []byte) []byte {
	dst = append(append(append(append(dst, method...), ' '), path...), " HTTP/1.1\r\nHost: "...)
	dst = append(append(dst, host...), "\r\nUser-Agent: hub-loadtest\r\n"...)
	if token != "" {
		dst = append(append(append(dst, "Authorization: Bearer "...), token...), "\r\n"...)
	}
	dst = append(dst, more...)
	if body != nil {
		dst = fmt.Appendf(dst, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	return append(append(dst, "\r\n"...), body...)
}
