package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hub/auth"
)

// The tests in the files sdk_*_test.go treat the program as its users do: a
// real process, real sockets, clients that are not ours.

const (
	sdkSecret   = "a-secret-that-only-the-tests-of-sdks-know"
	sdkAPIKey   = "api-key-of-the-sdk-tests"
	sdkAdminKey = "admin-key-of-the-sdk-tests"
)

// sdkConfig is the configuration of a test's server; the verb is the address to
// listen on. Limits by address and rate are off: every client of a test is one
// machine. Of the namespaces, room has everything, live has no history, short keeps
// ten publications, and closed asks for a grant.
const sdkConfig = `
[server]
listen = %q
drain_window = "100ms"
[auth]
hmac_secret = "` + sdkSecret + `"
leeway = "0s"
[api]
key = "` + sdkAPIKey + `"
[admin]
listen = "127.0.0.1:0"
key = "` + sdkAdminKey + `"
[limits]
connections = { ip = 0 }
messages = { per_second = 0.0 }
handshake = { per_second = 0.0 }
[database]
names = ["default", "game"]
[namespace.room]
history_size = 200000
presence = true
join_leave = true
subscribe = "user"
publish = "user"
history = "user"
presence_info = "user"
[namespace.live]
durable = false
presence = true
join_leave = true
subscribe = "user"
publish = "user"
history = "user"
presence_info = "user"
[namespace.short]
history_size = 10
subscribe = "user"
publish = "user"
history = "user"
presence_info = "user"
[namespace.closed]
presence = true
`

// sdkServer is a server process that can be stopped and started again at the
// same address with the same data.
type sdkServer struct {
	t      *testing.T
	dir    string
	config string
	addr   string // of its clients

	cmd    *exec.Cmd
	admin  string
	exited chan struct{} // closed after err is set
	err    error
	stderr *serverLog
}

// serverLog keeps what a server writes and tells when it listens.
type serverLog struct {
	listens chan string // the admin's address

	mu   sync.Mutex
	text bytes.Buffer
	told bool
}

func (l *serverLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	if !l.told {
		if m := listening.FindSubmatch(l.text.Bytes()); m != nil {
			l.told = true
			l.listens <- string(m[2])
		}
	}
	return len(b), nil
}

func (l *serverLog) contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.text.Bytes(), []byte(text))
}

// tail returns the end of the log.
func (l *serverLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.text.Bytes()
	return string(b[max(0, len(b)-4000):])
}

// startSDKServer starts a server that ends with the test. settings are lines for
// the table [server].
func startSDKServer(t *testing.T, settings ...string) *sdkServer {
	t.Helper()
	s := &sdkServer{t: t, dir: t.TempDir(), addr: freeAddr(t)}
	s.config = strings.Replace(sdkConfig, "[auth]", strings.Join(append(settings, "[auth]"), "\n"), 1)
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
	})
	s.start()
	return s
}

// freeAddr is an address for a server that is to come back to it. Its port is
// below those that systems give to outgoing connections, one of which might take
// the place of a server that is down.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprint("127.0.0.1:", 10_000+rand.N(20_000))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("no port is free")
	return ""
}

// start starts the process. It must not be running.
func (s *sdkServer) start() {
	s.t.Helper()
	file := filepath.Join(s.dir, "hub.toml")
	if err := os.WriteFile(file, fmt.Appendf(nil, s.config, s.addr), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.stderr = &serverLog{listens: make(chan string, 1)}
	s.exited = make(chan struct{})
	// TestMain has put a copy of the test binary that runs main first in PATH.
	s.cmd = exec.Command("hub", "serve", "-config", file, "-log-format", "json")
	s.cmd.Dir = s.dir
	s.cmd.Stderr = s.stderr
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		s.err = cmd.Wait()
		close(exited)
	}(s.cmd, s.exited)
	select {
	case s.admin = <-s.stderr.listens:
	case <-s.exited:
		s.t.Fatalf("the server ended at once: %v\n%s", s.err, s.stderr.tail())
	case <-time.After(patience):
		s.t.Fatalf("the server does not listen\n%s", s.stderr.tail())
	}
}

// stop ends the process as an operator does.
func (s *sdkServer) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	select {
	case <-s.exited:
	case <-time.After(patience):
		s.t.Fatalf("the server does not stop\n%s", s.stderr.tail())
	}
	if s.err != nil {
		s.t.Errorf("the server stopped with %v\n%s", s.err, s.stderr.tail())
	}
	s.cmd = nil
}

// kill ends the process with SIGKILL.
func (s *sdkServer) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
	if s.stderr.contains("WARNING: DATA RACE") { // which stop sees by the exit code
		s.t.Errorf("a data race in the server\n%s", s.stderr.tail())
	}
	s.cmd = nil
}

// healthy fails the test if the process has ended or a panic was caught in it.
func (s *sdkServer) healthy() {
	s.t.Helper()
	select {
	case <-s.exited:
		s.t.Fatalf("the server has ended: %v\n%s", s.err, s.stderr.tail())
	default:
	}
	if n := s.metric("hub_panics_total"); n != 0 {
		s.t.Errorf("%v panics\n%s", n, s.stderr.tail())
	}
}

// url is the address of a database's sockets; "" is the default database.
func (s *sdkServer) url(db string) string { return sdkURL(s.addr, db) }

func sdkURL(addr, db string) string {
	if db == "" {
		return "ws://" + addr + "/connection/websocket"
	}
	return "ws://" + addr + "/v1/" + db + "/websocket"
}

// apiClient keeps enough connections for many publishers at once.
var apiClient = &http.Client{
	Timeout:   15 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
}

// apiFailure is an error of the server API.
type apiFailure struct {
	Code    uint32 `json:"code"`
	Message string `json:"message"`
}

func (e *apiFailure) Error() string { return fmt.Sprintf("%d: %s", e.Code, e.Message) }

// api calls a method of the server API; result may be nil.
func (s *sdkServer) api(db, method string, request, result any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	path := "/api/" + method
	if db != "" {
		path = "/v1/" + db + path
	}
	r, err := http.NewRequest(http.MethodPost, "http://"+s.addr+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("X-API-Key", sdkAPIKey)
	res, err := apiClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d: %s", method, res.StatusCode, answer)
	}
	var reply struct {
		Error  *apiFailure     `json:"error"`
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return fmt.Errorf("%s: %w in %s", method, err, answer)
	}
	if reply.Error != nil {
		return reply.Error
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(reply.Result, result)
}

// must is api for calls that have to succeed.
func (s *sdkServer) must(method string, request any) {
	s.t.Helper()
	if err := s.api("", method, request, nil); err != nil {
		s.t.Fatalf("%s: %v", method, err)
	}
}

type object = map[string]any

// publish publishes through the server API and returns the offset.
func (s *sdkServer) publish(db, room string, data any) (uint64, error) {
	var res struct {
		Offset uint64 `json:"offset"`
	}
	err := s.api(db, "publish", object{"channel": room, "data": data}, &res)
	return res.Offset, err
}

// fill publishes n numbered publications {"n":first}... in batches.
func (s *sdkServer) fill(room string, first, n int) {
	s.t.Helper()
	const batch = 1000
	for n > 0 {
		commands := make([]object, min(n, batch))
		for i := range commands {
			commands[i] = object{"publish": object{"channel": room, "data": object{"n": first + i}}}
		}
		if err := s.batch(commands); err != nil {
			s.t.Fatal(err)
		}
		first, n = first+len(commands), n-len(commands)
	}
}

// batch runs commands of the server API, all of which must succeed.
func (s *sdkServer) batch(commands []object) error {
	body, err := json.Marshal(object{"commands": commands})
	if err != nil {
		return err
	}
	r, err := http.NewRequest(http.MethodPost, "http://"+s.addr+"/api/batch", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "apikey "+sdkAPIKey)
	res, err := apiClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answer struct {
		Replies []struct {
			Error *apiFailure `json:"error"`
		} `json:"replies"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return err
	}
	if len(answer.Replies) != len(commands) {
		return fmt.Errorf("%d replies to %d commands", len(answer.Replies), len(commands))
	}
	for _, reply := range answer.Replies {
		if reply.Error != nil {
			return reply.Error
		}
	}
	return nil
}

// metric returns a figure of the admin listener, summed over its labels.
func (s *sdkServer) metric(name string) float64 {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://"+s.admin+"/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+sdkAdminKey)
	res, err := apiClient.Do(r)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.stderr.tail())
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("metrics: status %d, %v", res.StatusCode, err)
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if base, _, _ := strings.Cut(series, "{"); base != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		sum, found = sum+v, true
	}
	if !found {
		s.t.Fatalf("there is no metric %s", name)
	}
	return sum
}

// token mints a connection token for the default database, good for an hour.
func (s *sdkServer) token(user string) string {
	return s.mint(auth.Claims{User: user})
}

// mint mints a connection token; without an expiry it is good for an hour.
func (s *sdkServer) mint(c auth.Claims) string {
	s.t.Helper()
	if c.ExpiresAt == 0 {
		c.ExpiresAt = time.Now().Add(time.Hour).Unix()
	}
	token, err := auth.Mint([]byte(sdkSecret), c)
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// mintSubscription mints a subscription token.
func (s *sdkServer) mintSubscription(user, room string, ttl time.Duration) string {
	s.t.Helper()
	token, err := auth.MintSubscription([]byte(sdkSecret),
		auth.SubscriptionClaims{User: user, Channel: room, ExpiresAt: time.Now().Add(ttl).Unix()})
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// eventually waits until condition returns "", which otherwise says what is
// still wrong.
func eventually(t *testing.T, within time.Duration, condition func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		wrong := condition()
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", within, wrong)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// receive returns the next value of c.
func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
	}
	panic("unreachable")
}

// timeout is the context of one call of a client.
func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// errorCode is the code of an error of the server API or of centrifuge-go; 0
// for others.
func errorCode(err error) uint32 {
	var api *apiFailure
	if errors.As(err, &api) {
		return api.Code
	}
	return clientErrorCode(err)
}
