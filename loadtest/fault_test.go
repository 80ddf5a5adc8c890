package loadtest

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"hub/hub"
	"hub/loadtest/report"
)

// manyX is what makes events as long as asked; the name of a run may hold an x too.
var manyX = regexp.MustCompile("x{8,}")

// TestFaults: each fault that a server could have makes its own check fail and
// no other. A proxy between clients and server commits them.
func TestFaults(t *testing.T) {
	clone := func(frame []byte) []byte { return slices.Clone(frame) }
	// once calls f for the first frame that holds the event with a number in a
	// room, and passes on all others.
	once := func(number, room string, f func(c *proxied, frame []byte) [][]byte) func(*proxied, []byte) [][]byte {
		done := false
		return func(c *proxied, frame []byte) [][]byte {
			if done || numberOf(frame) != number || room != "" && roomOf(frame) != room {
				return [][]byte{frame}
			}
			done = true
			return f(c, frame)
		}
	}
	tests := map[string]struct {
		change func(*proxied, []byte) [][]byte
		failed string
		count  func(report.Faults) int64
	}{
		"lost": {
			change: once("4", "", func(*proxied, []byte) [][]byte { return nil }),
			failed: "lost = 0", count: func(f report.Faults) int64 { return f.Lost },
		},
		"duplicate": {
			change: once("4", "", func(_ *proxied, f []byte) [][]byte { return [][]byte{f, f} }),
			failed: "duplicate = 0", count: func(f report.Faults) int64 { return f.Duplicate },
		},
		"out of order": {
			change: func() func(*proxied, []byte) [][]byte {
				first := true
				return func(c *proxied, frame []byte) [][]byte {
					if c.held != nil {
						held := c.held
						c.held = nil
						return [][]byte{frame, held}
					}
					if first && numberOf(frame) == "4" {
						first, c.held = false, clone(frame)
						return nil
					}
					return [][]byte{frame}
				}
			}(),
			failed: "out of order = 0", count: func(f report.Faults) int64 { return f.OutOfOrder },
		},
		"cross-room": {
			change: func() func(*proxied, []byte) [][]byte {
				var stray []byte
				sent := false
				return func(_ *proxied, frame []byte) [][]byte {
					if stray == nil && roomOf(frame) == "000000" {
						stray = clone(frame)
					}
					if !sent && stray != nil && roomOf(frame) == "000001" {
						sent = true
						return [][]byte{frame, stray}
					}
					return [][]byte{frame}
				}
			}(),
			failed: "cross-room = 0", count: func(f report.Faults) int64 { return f.CrossRoom },
		},
		"cross-database": {
			change: func() func(*proxied, []byte) [][]byte {
				var stray []byte
				sent := false
				return func(c *proxied, frame []byte) [][]byte {
					// Room 4 of the other database has the name of room 0.
					if stray == nil && c.db == otherDatabase {
						stray = clone(frame)
					}
					if !sent && stray != nil && c.db == defaultDatabase && roomOf(frame) == "000000" {
						sent = true
						return [][]byte{frame, stray}
					}
					return [][]byte{frame}
				}
			}(),
			failed: "cross-database = 0", count: func(f report.Faults) int64 { return f.CrossDatabase },
		},
		"another publisher": {
			change: once("4", "", func(_ *proxied, f []byte) [][]byte {
				return [][]byte{bytes.Replace(f, []byte(`"user":"user-`), []byte(`"user":"uzer-`), 1)}
			}),
			failed: "events say their true place and publisher",
		},
		"never sent": {
			change: once("20", "", func(_ *proxied, f []byte) [][]byte {
				return [][]byte{f, bytes.Replace(f, []byte(`{"seq":"0000000020`), []byte(`{"seq":"0000000021`), 1)}
			}),
			failed: "events say their true place and publisher",
		},
		"a late duplicate of the last event": {
			change: once("20", "", func(c *proxied, f []byte) [][]byte {
				late := clone(f)
				time.AfterFunc(20*time.Millisecond, func() { _, _ = c.client.Write(late) })
				return [][]byte{f}
			}),
			failed: "duplicate = 0",
		},
		"another filler": {
			change: once("4", "", func(_ *proxied, f []byte) [][]byte {
				return [][]byte{bytes.Replace(f, []byte("xxxxxxxxxx"), []byte("xxxxxyxxxx"), 1)}
			}),
			failed: "events say their true place and publisher",
		},
		"no filler": {
			change: once("4", "", func(_ *proxied, f []byte) [][]byte {
				cut := manyX.ReplaceAll(f[4:], nil) // a length of two bytes precedes
				return [][]byte{appendServerFrame(nil, opText, cut)}
			}),
			failed: "events say their true place and publisher",
		},
		"another offset": {
			change: once("4", "", func(_ *proxied, f []byte) [][]byte {
				return [][]byte{bytes.Replace(f, []byte(`"offset":4}`), []byte(`"offset":5}`), 1)}
			}),
			failed: "events say their true place and publisher",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, startHub(t, nil), test.change)
			r, table := runTest(t, context.Background(), small(p.listener.Addr().String()))
			onlyFailed(t, r, test.failed)
			if test.count != nil && (test.count(r.Faults()) != 1 || r.Faults().Total() != 1) {
				t.Errorf("faults of the rounds: %+v, want this one", r.Faults())
			}
			if !strings.Contains(table, "FAIL") {
				t.Errorf("no FAIL in the table:\n%s", table)
			}
		})
	}
}

// TestLastEventLost: an event that no later one reveals as lost ends the waiting.
// Pings go on meanwhile.
func TestLastEventLost(t *testing.T) {
	t.Parallel()
	dropped := false
	p := startProxy(t, startHub(t, func(o *hub.Options) {
		o.Server.PingInterval, o.Server.PongTimeout = 2*time.Second, 1900*time.Millisecond
	}), func(_ *proxied, frame []byte) [][]byte {
		if !dropped && numberOf(frame) == "20" {
			dropped = true
			return nil
		}
		return [][]byte{frame}
	})
	o := small(p.listener.Addr().String())
	r, _ := runTest(t, context.Background(), o)
	onlyFailed(t, r, "lost = 0", "the scenario completes")
	if f := r.Faults(); f.Lost != 1 {
		t.Errorf("%d lost, want 1", f.Lost)
	}
	if detail := checkOf(t, r, "the scenario completes").Detail; !strings.Contains(detail, "nothing came any more") {
		t.Errorf("detail %q does not tell of the waiting", detail)
	}
}

// TestClean: without faults nothing fails, in both encodings, through TLS and
// with one user for all; what cannot be checked from outside is said to be unchecked.
func TestClean(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"JSON":     func(*Options) {},
		"Protobuf": func(o *Options) { o.Protobuf = true },
		"one user": func(o *Options) { o.DistinctUsers = false },
		"reconnects": func(o *Options) {
			o.Reconnects = 5
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := small(startHub(t, nil))
			change(&o)
			r, _ := runTest(t, context.Background(), o)
			onlyFailed(t, r)
			for _, name := range []string{"integrity_check of every database", "stored events = acknowledged events", "connections left after the end = 0"} {
				if c := checkOf(t, r, name); c.Result != report.NotChecked {
					t.Errorf("%s: %s for a server elsewhere", name, c.Result)
				}
			}
			if want := int64(o.Conns * o.Events); r.Scenarios[0].Rounds[0].Deliveries != want {
				t.Errorf("%d deliveries in a round, want %d", r.Scenarios[0].Rounds[0].Deliveries, want)
			}
		})
	}
}

// TestRefused: what the server said is told.
func TestRefused(t *testing.T) {
	tests := map[string]struct {
		tune   func(*hub.Options)
		change func(*Options)
		says   string
	}{
		"429 for an address": {tune: func(o *hub.Options) { o.Limits.Connections.IP = 10 }, says: "upgrade refused: 429"},
		"503 for all":        {tune: func(o *hub.Options) { o.Limits.Connections.Database = 4 }, says: "upgrade refused: 503"},
		"wrong secret":       {change: func(o *Options) { o.Secret = strings.Repeat("x", 32) }, says: "3500"},
		"no permission":      {change: func(o *Options) { o.Namespace = "closed" }, says: `error 102 unknown channel; has the server a namespace "closed"? -namespace names`},
		"unknown database":   {change: func(o *Options) { o.Databases = []string{"nowhere"} }, says: "upgrade refused: 404"},
		"publishing forbidden": {tune: func(o *hub.Options) {
			ns := hub.DefaultNamespace()
			ns.Publish = hub.AccessServer
			o.Namespaces[ownNamespace] = ns
		}, says: "publish answered with error 103"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := small(startHub(t, test.tune))
			if test.change != nil {
				test.change(&o)
			}
			r, table := runTest(t, context.Background(), o)
			if r.Passed() {
				t.Error("passed")
			}
			if !strings.Contains(strings.Join(strings.Fields(table), " "), test.says) {
				t.Errorf("the table does not say %q:\n%s", test.says, table)
			}
			if f := r.Faults(); f.Lost != 0 {
				t.Errorf("%d lost: what was refused is not lost", f.Lost)
			}
		})
	}
}

// TestCloses: a connection that the server ends makes the run fail, even if no
// event is missing.
func TestCloses(t *testing.T) {
	t.Parallel()
	closed := false
	p := startProxy(t, startHub(t, nil), func(c *proxied, frame []byte) [][]byte {
		if !closed && numberOf(frame) == "20" { // the last one
			closed = true
			return [][]byte{frame, appendServerFrame(nil, opClose, append([]byte{3008 >> 8, 3008 & 0xff}, "slow"...))}
		}
		return [][]byte{frame}
	})
	r, _ := runTest(t, context.Background(), small(p.listener.Addr().String()))
	if c := checkOf(t, r, "ready = asked"); c.Result != report.Failed || !strings.Contains(c.Detail, "3008 slow") {
		t.Errorf("ready = asked: %s, %q", c.Result, c.Detail)
	}
}

// TestReplies: answers of the server are judged as its events are.
func TestReplies(t *testing.T) {
	replaceOnce := func(old, with string) func(*proxied, []byte) [][]byte {
		done := false
		return func(_ *proxied, frame []byte) [][]byte {
			if done || !bytes.Contains(frame, []byte(old)) {
				return [][]byte{frame}
			}
			done = true
			if with == "" {
				return nil
			}
			return [][]byte{bytes.Replace(frame, []byte(old), []byte(with), 1)}
		}
	}
	for name, test := range map[string]struct {
		reply      func(*proxied, []byte) [][]byte
		reconnects int
		failed     []string
	}{
		"no acknowledgement":       {replaceOnce(`"publish":{}`, ""), 0, []string{"acknowledged = published", "the scenario completes"}},
		"not recovered":            {replaceOnce(`"recovered":true`, `"recovered":null`), 4, []string{"every position recovered"}},
		"an answer to no command":  {replaceOnce(`"id":5,"publish"`, `"id":999,"publish"`), 0, []string{"acknowledged = published", "the scenario completes"}},
		"the same answer twice":    {replaceOnce(`"id":6,"publish"`, `"id":5,"publish"`), 0, []string{"acknowledged = published", "the scenario completes"}},
		"no answer to unsubscribe": {replaceOnce(`"unsubscribe":{}`, ""), 0, []string{"the scenario completes"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, startHub(t, nil), nil)
			p.reply = test.reply
			o := small(p.listener.Addr().String())
			o.Reconnects = test.reconnects
			r, _ := runTest(t, context.Background(), o)
			for _, name := range test.failed {
				if c := checkOf(t, r, name); c.Result != report.Failed {
					t.Errorf("%s: %s (%s)", name, c.Result, c.Detail)
				}
			}
			if r.Passed() != (len(test.failed) == 0) {
				t.Errorf("passed: %v", r.Passed())
			}
		})
	}
}

// TestAnsweredBehindAll: what is on its way when everything due has come is
// judged too, before the answer to unsubscribe.
func TestAnsweredBehindAll(t *testing.T) {
	t.Parallel()
	p := startProxy(t, startHub(t, nil), func(c *proxied, frame []byte) [][]byte {
		c.held = slices.Clone(frame)
		return [][]byte{frame}
	})
	sent := false
	p.reply = func(c *proxied, frame []byte) [][]byte {
		if sent || !bytes.Contains(frame, []byte(`"unsubscribe":{}`)) {
			return [][]byte{frame}
		}
		sent = true
		return [][]byte{c.held, frame}
	}
	r, _ := runTest(t, context.Background(), small(p.listener.Addr().String()))
	onlyFailed(t, r, "duplicate = 0")
}

// TestInterruptedInTheMiddle: what is on its way when the user ends a run is not
// judged, so the run is incomplete and has not failed.
func TestInterruptedInTheMiddle(t *testing.T) {
	for name, test := range map[string]struct {
		at         string // in the frame of the server that is the first to be withheld
		notChecked []string
	}{
		"of traffic":         {`{"seq":"0000000005"`, []string{"lost = 0"}},
		"of acknowledgement": {`"id":9,"publish"`, []string{"lost = 0", "acknowledged = published"}},
		"of connecting":      {`"subscribe":{`, []string{"ready = asked"}},
		"of settling":        {`"unsubscribe":{}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(context.Background())
			defer interrupt()
			withhold := func(_ *proxied, frame []byte) [][]byte {
				if bytes.Contains(frame, []byte(test.at)) {
					interrupt()
				}
				if ctx.Err() != nil {
					return nil
				}
				return [][]byte{frame}
			}
			p := startProxy(t, startHub(t, nil), withhold)
			p.reply = withhold
			r, table := runTest(t, ctx, small(p.listener.Addr().String()))
			onlyFailedPartly(t, r)
			for _, name := range append(test.notChecked, "the scenario completes") {
				if c := checkOf(t, r, name); c.Result != report.NotChecked || !strings.Contains(c.Detail, interrupted) {
					t.Errorf("%s: %s (%s)", c.Name, c.Result, c.Detail)
				}
			}
			if r.Faults().Total() != 0 || r.Verdict != report.Incomplete || !strings.Contains(table, "INCOMPLETE") {
				t.Errorf("verdict %s, faults %+v\n%s", r.Verdict, r.Faults(), table)
			}
		})
	}
}
