package hub

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// restClients is the clients that a benchmark has at once, each on a connection
// that it keeps.
const restClients = 16

// plainClient speaks just enough HTTP, and cheaply, so that the server is measured.
type plainClient struct {
	conn net.Conn
	in   *bufio.Reader
}

// ask sends a request, complete as it is, and returns the status of its answer.
func (c *plainClient) ask(request []byte) (status int, err error) {
	if _, err := c.conn.Write(request); err != nil {
		return 0, err
	}
	length := 0
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		switch {
		case err != nil:
			return 0, err
		case first:
			status, _ = strconv.Atoi(string(line[9:12]))
		case len(line) == 2:
			_, err := c.in.Discard(length)
			return status, err
		default:
			if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
			}
		}
	}
}

// BenchmarkRest is calls a second of 16 clients over loopback, clients included:
// the figure of DESIGN.md section 14.
func BenchmarkRest(b *testing.B) {
	o := restOptions(b)
	limits := DefaultOptions().Limits // counted as ever, and too high to be met
	for _, r := range []*Rate{&limits.Read, &limits.Mutation, &limits.Database.Read, &limits.Database.Mutation} {
		*r = Rate{PerSecond: 1e9, Burst: 1e9}
	}
	o.Limits.Read, o.Limits.Mutation, o.Limits.Database = limits.Read, limits.Mutation, limits.Database
	key := newSigner(b, "ES256", "")
	publicKeys(b, []signer{key})(&o)
	s := startServer(b, o, nil)
	ann, es256 := bearerOf(b, "ann"), "Authorization: Bearer "+key.token(b, "ann", nil)
	for i := range 64 {
		s.call(b, "POST", rooms+"open:a/operations", fmt.Sprintf(`{"id":"%d","steps":[{"op":"set","key":"key/%d","value":{"amount":%d,"name":"a thing of some length"}}]}`, i, i, i), ann).want(b, "fill", 200, "")
	}
	const hello = `{"data":{"text":"hello"}}`
	for _, what := range []struct{ name, call, token, more string }{
		{"resource", "GET resources/key/17", ann, "\r\n"},
		{"resource/ES256", "GET resources/key/17", es256, "\r\n"},
		{"resource/not-modified", "GET resources/key/17", ann, "If-None-Match: \"1\"\r\n\r\n"},
		{"list", "GET resources?limit=50", ann, "\r\n"},
		{"history", "GET history?limit=50", ann, "\r\n"},
		{"publish", "POST publish", ann, fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(hello), hello)},
	} {
		b.Run(what.name, func(b *testing.B) {
			method, path, _ := strings.Cut(what.call, " ")
			request := []byte(method + " " + rooms + "open:a/" + path + " HTTP/1.1\r\nHost: hub.test\r\n" + what.token + "\r\n" + what.more)
			b.SetParallelism(restClients / runtime.GOMAXPROCS(0))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				conn, err := net.Dial("tcp", s.Addr())
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				c := &plainClient{conn, bufio.NewReaderSize(conn, 64<<10)}
				for pb.Next() {
					if status, err := c.ask(request); err != nil || status != 200 && status != 304 {
						b.Errorf("status %d, %v", status, err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
