package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hub/auth"
)

// smallDisk mounts a file system of so many bytes in memory. Who may not mount is
// left with store.TestDiskFull.
func smallDisk(t *testing.T, bytes int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	err := unix.Mount("hub-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprint("size=", bytes))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skipf("mount: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk writes a file until nothing is left.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Case G30: the disk runs full under a server that publishes, and has room again
// later. Nothing is acknowledged that is not stored; reading and rooms without
// history go on; writing resumes without a restart.
func TestFullDisk(t *testing.T) {
	const room = "room:full"
	s := &sdkServer{t: t, dir: smallDisk(t, 32<<20), addr: freeAddr(t), config: sdkConfig}
	s.start()
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
	})
	follower, live := newSocket(t, s.url(""), s.token("follower"), socketOptions{}), newSocket(t, s.url(""), s.token("live"), socketOptions{})
	follower.subscribe(2, room)
	live.subscribe(2, "live:full")
	acked := make(map[uint64]string) // data by offset
	padding := strings.Repeat("x", 4000)
	publish := func(n int) error {
		data := fmt.Sprintf(`{"n":%d,"padding":"%s"}`, n, padding)
		offset, err := s.publish("", room, json.RawMessage(data))
		if err == nil {
			acked[offset] = data
		}
		return err
	}
	n := 0
	for ; n < 50; n++ {
		if err := publish(n); err != nil {
			t.Fatal(err)
		}
	}
	ballast := filepath.Join(s.dir, "ballast")
	fillDisk(t, ballast)
	refused := 0
	for ; refused < 20; n++ {
		if err := publish(n); err != nil {
			if refused++; errorCode(err) != 100 {
				t.Fatalf("with a full disk: %v, want error 100", err)
			}
		}
		if n > 20_000 {
			t.Fatal("the disk does not fill")
		}
	}
	s.checkFull(live, room, len(acked))
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func() string {
		n++
		if err := publish(n); err != nil {
			return err.Error()
		}
		return ""
	})
	for range 50 {
		if n++; publish(n) != nil {
			t.Error("it does not go on")
		}
	}
	if status, body := s.get("/readyz"); status != http.StatusOK {
		t.Errorf("readyz with room: status %d %s", status, body)
	}
	for offset := uint64(1); offset <= uint64(len(acked)); offset++ {
		if p := follower.publication(); p.Offset != offset || string(p.Data) != acked[offset] {
			t.Fatalf("the follower got %.40s at %d, acknowledged is %.40s at %d", p.Data, p.Offset, acked[offset], offset)
		}
	}
	var history struct{ Publications []receipt }
	if err := s.api("", "history", object{"channel": room, "limit": -1}, &history); err != nil || len(history.Publications) != len(acked) {
		t.Errorf("%d publications are stored, %d were acknowledged (%v)", len(history.Publications), len(acked), err)
	}
	s.healthy()
	s.stop()
	check := exec.Command("hub", "check", "-config", "hub.toml", "-integrity")
	check.Dir = s.dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
}

// checkFull looks at a server whose disk is full.
func (s *sdkServer) checkFull(live *socket, room string, stored int) {
	t := s.t
	t.Helper()
	live.send(fmt.Sprintf(`{"id":7,"publish":{"channel":%q,"data":1}}`, room))
	if r := live.reply(7); r.Error == nil || r.Error.Code != 100 {
		t.Errorf("over a socket: %v, want error 100", r)
	}
	if status, body := s.get("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "database default cannot write") {
		t.Errorf("readyz: status %d %s, want 503", status, body)
	}
	if status, body := s.get("/healthz"); status != http.StatusOK {
		t.Errorf("healthz: status %d %s, want 200", status, body)
	}
	if n := s.metric("hub_failed_batches_total"); n == 0 {
		t.Error("no batch has failed, by the metrics")
	}
	var history struct{ Publications []receipt }
	if err := s.api("", "history", object{"channel": room, "limit": -1}, &history); err != nil || len(history.Publications) != stored {
		t.Errorf("history: %d publications, want %d: %v", len(history.Publications), stored, err)
	}
	if _, err := s.publish("", "live:full", "on it goes"); err != nil {
		t.Errorf("a room without history: %v", err)
	}
	if p := live.publication(); string(p.Data) != `"on it goes"` {
		t.Errorf("a room without history: got %s", p.Data)
	}
	// The HTTP API for clients.
	r, err := http.NewRequest(http.MethodPost, "http://"+s.addr+"/v1/default/rooms/"+room+"/publish", strings.NewReader(`{"data":1}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+s.mint(auth.Claims{User: "u"}))
	res, err := apiClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(string(body), `"unavailable"`) {
		t.Errorf("over HTTP: status %d, Retry-After %q, %s, %v, want 503", res.StatusCode, res.Header.Get("Retry-After"), body, err)
	}
}

// get asks the clients' listener.
func (s *sdkServer) get(path string) (status int, body string) {
	s.t.Helper()
	res, err := apiClient.Get("http://" + s.addr + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}
