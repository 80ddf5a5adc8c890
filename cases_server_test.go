package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/centrifugal/protocol"
)

// lines counts the lines of the log that hold text.
func (l *serverLog) lines(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// wrapServer has every server of the test started through a line of the shell.
func wrapServer(t *testing.T, before string) {
	t.Helper()
	program, err := exec.LookPath("hub")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s\nexec %q \"$@\"\n", before, program)
	if err := os.WriteFile(filepath.Join(dir, "hub"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// Case G44: a server that may have few descriptors takes fewer connections than
// that; when strangers take the rest, its clients and its databases do not notice,
// the log says so once, and whoever comes when they have gone is served.
func TestFewDescriptors(t *testing.T) {
	const descriptors = 160
	wrapServer(t, fmt.Sprint("ulimit -n ", descriptors))
	s := startSDKServer(t)
	if n := s.stderr.lines("connections are capped by the descriptor limit"); n != 1 {
		t.Errorf("%d lines about the cap, want one", n)
	}
	publisher, follower := newSocket(t, s.url(""), s.token("publisher"), socketOptions{}), newSocket(t, s.url(""), s.token("follower"), socketOptions{})
	follower.subscribe(2, "room:few")
	clients := 2
	for ; ; clients++ {
		c, err := dialSocket(t, s.url(""), socketOptions{})
		if err != nil {
			if !strings.Contains(err.Error(), "status 503") {
				t.Fatalf("connection %d: %v, want 503", clients+1, err)
			}
			break
		}
		c.send(fmt.Sprintf(`{"id":1,"connect":{"token":%q}}`, s.token("crowd")))
		if clients > descriptors {
			t.Fatalf("%d connections with %d descriptors", clients, descriptors)
		}
	}
	var strangers []net.Conn
	for range descriptors {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		strangers = append(strangers, c)
	}
	const refused = "cannot accept connections"
	eventually(t, patience, func() string {
		if s.stderr.lines(refused) == 0 {
			return "descriptors are left"
		}
		return ""
	})
	for n := 1; n <= 50; n++ {
		id := uint32(10 + n)
		publisher.send(fmt.Sprintf(`{"id":%d,"publish":{"channel":"room:few","data":%d}}`, id, n))
		if r := publisher.reply(id); r.Error != nil {
			t.Fatalf("publication %d: %v", n, r.Error)
		}
		if p := follower.publication(); p.Offset != uint64(n) {
			t.Fatalf("publication at %d, want %d", p.Offset, n)
		}
		time.Sleep(10 * time.Millisecond) // the attempts to accept go on meanwhile
	}
	publisher.send(`{"id":99,"history":{"channel":"room:few","limit":-1}}`)
	if r := publisher.reply(99); r.Error != nil || len(r.History.Publications) != 50 {
		t.Errorf("history: %v", r)
	}
	if n := s.stderr.lines(refused); n > 2 {
		t.Errorf("%d lines about it", n)
	}
	for _, c := range strangers {
		_ = c.Close()
	}
	eventually(t, patience, func() string {
		if n, err := s.publish("", "room:few", "again"); err != nil {
			return fmt.Sprint(n, err)
		}
		return ""
	})
	s.healthy()
	s.stop()
}

// Case G42: SIGTERM while two thousand writes wait, from sockets and by HTTP. Each
// is answered before its connection ends, and what was acknowledged is stored, once;
// clients are told to come back; the files are checkpointed and the exit code is 0.
func TestTermWithWritesWaiting(t *testing.T) {
	s := startSDKServer(t)
	const sockets, each, callers = 40, 50, 20
	const batch = 512 // writes of one commit
	const room = "room:term"
	var mu sync.Mutex
	acked := make(map[mark]bool) // guarded by mu
	ack := func(m mark) {
		mu.Lock()
		defer mu.Unlock()
		acked[m] = true
	}
	all := make([]*socket, sockets)
	for i := range all {
		all[i] = newSocket(t, s.url(""), s.token(fmt.Sprint("u", i)), socketOptions{})
	}
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			for n := 0; ; n++ {
				m := mark{fmt.Sprint("api-", i), n}
				if _, err := s.publish("", room, m); err != nil {
					return
				}
				ack(m)
			}
		})
	}
	release := holdWriter(t, filepath.Join(s.dir, "data", "default.db"))
	for i, c := range all {
		var frame strings.Builder
		for n := range each {
			data, _ := json.Marshal(mark{fmt.Sprint("u", i), n})
			fmt.Fprintf(&frame, `{"id":%d,"publish":{"channel":%q,"data":%s}}`+"\n", 2+n, room, data)
		}
		c.send(strings.TrimSpace(frame.String()))
		work.Go(func() {
			code, _, before := c.closed()
			if code != 3001 {
				t.Errorf("socket %d was closed with %d, want 3001", i, code)
			}
			answered := 0
			for _, line := range before {
				r := new(protocol.Reply)
				if err := json.Unmarshal(line, r); err != nil {
					t.Errorf("%v in %s", err, line)
				} else if r.Id >= 2 {
					answered++
					if r.Error == nil {
						ack(mark{fmt.Sprint("u", i), int(r.Id) - 2})
					}
				}
			}
			if answered != each {
				t.Errorf("socket %d: %d of %d publications were answered", i, answered, each)
			}
		})
	}
	eventually(t, patience, func() string { // what the writer has taken does not wait
		if n := s.metric("hub_write_queue_length"); n < sockets*each-batch {
			return fmt.Sprint(n, " writes wait")
		}
		return ""
	})
	work.Go(func() {
		defer release()
		for s.stderr.lines(`"msg":"stopping"`) == 0 {
			select {
			case <-s.exited:
				return
			case <-time.After(time.Millisecond):
			}
		}
		time.Sleep(300 * time.Millisecond) // three times the window in which connections without answers to come are closed
	})
	s.stop() // requires exit code 0
	work.Wait()
	for _, db := range []string{"default", "game"} {
		if files, err := filepath.Glob(filepath.Join(s.dir, "data", db+".db*")); err != nil || len(files) != 1 {
			t.Errorf("files of a stopped database: %v, %v", files, err)
		}
	}
	s.start()
	var history struct {
		Publications []receipt `json:"publications"`
	}
	if err := s.api("", "history", object{"channel": room, "limit": -1}, &history); err != nil {
		t.Fatal(err)
	}
	stored := make(map[mark]int)
	for _, p := range history.Publications {
		var m mark
		if err := json.Unmarshal(p.Data, &m); err != nil {
			t.Fatal(err)
		}
		stored[m]++
	}
	for m := range acked {
		if stored[m] != 1 {
			t.Errorf("%s had %d acknowledged; it is stored %d times", m.By, m.N, stored[m])
		}
	}
	if len(acked) == 0 {
		t.Error("nothing was acknowledged: the test is void")
	}
	t.Logf("%d acknowledged, %d stored", len(acked), len(stored))
}

// holdWriter keeps the writer of a database waiting, as a slow disk does, until
// release is called.
func holdWriter(t *testing.T, path string) (release func()) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := db.Close(); err != nil { // which rolls back
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}

// Case G42: a second signal ends a server that takes its time at once.
func TestSecondSignal(t *testing.T) {
	s := &sdkServer{t: t, dir: t.TempDir(), addr: freeAddr(t), config: strings.Replace(sdkConfig, `drain_window = "100ms"`, `drain_window = "10m"`, 1)}
	s.start()
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
	})
	for i := range 20 { // one of them is closed late in the window
		newSocket(t, s.url(""), s.token(fmt.Sprint("u", i)), socketOptions{})
	}
	signal := func() {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
	}
	signal()
	eventually(t, patience, func() string {
		if s.stderr.lines(`"msg":"stopping"`) == 0 {
			return "it does not stop"
		}
		return ""
	})
	eventually(t, patience, func() string {
		signal() // soon after the first it counts as the same
		select {
		case <-s.exited:
			return ""
		default:
			return "it goes on"
		}
	})
	var exit *exec.ExitError
	if !errors.As(s.err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v, want by SIGTERM", s.err)
	}
	s.cmd = nil
}
