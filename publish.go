package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"hub/hub"
)

const (
	// publishTimeout is above the 4 s that a write may wait for its turn.
	publishTimeout = 10 * time.Second
	// maxInput bounds what is read from standard input or from an answer.
	maxInput = 1 << 20
)

// operatorOptions returns the secrets of a server that the caller runs: those of
// a configuration file or, without one, of the development server in dataDir.
func operatorOptions(file, dataDir string) (hub.Options, error) {
	if file != "" {
		c, err := loadConfig(file)
		if err != nil {
			return hub.Options{}, err
		}
		return c.options, nil
	}
	o := hub.DefaultOptions()
	s, err := loadDevSecrets(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return o, fmt.Errorf("no development server has run with -data %s; start one, or give -config", dataDir)
	}
	o.Auth.HMACSecret, o.API.Key, o.Admin.Key = s.HMACSecret, s.APIKey, s.AdminKey
	return o, err
}

// configuredURL makes a URL that was not given that of the server with this
// configuration, as this machine reaches it.
func configuredURL(flags *flag.FlagSet, url *string, file string) error {
	if file == "" || given(flags, "url") {
		return nil
	}
	c, err := loadConfig(file)
	if err != nil {
		return err
	}
	*url = serverURL(&c.options.Server)
	return nil
}

func serverURL(o *hub.ServerOptions) string {
	scheme := "http"
	if o.TLSCert != "" {
		scheme = "https"
	}
	return scheme + "://" + reachable(o.Listen)
}

// reachable is an address that is listened on, as this machine reaches it.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

func (p *program) publish(ctx context.Context, args []string) error {
	flags := p.flags("publish", "[flags] ROOM DATA|-")
	url := flags.String("url", "http://"+defaultListen, "`URL` of the server")
	db := flags.String("db", defaultDatabase, "`name` of the database")
	key := flags.String("key", "", "server API key; env:NAME and file:PATH keep it out of the process list")
	id := flags.String("id", "", "idempotency `key`: the same again publishes once")
	file := flags.String("config", "", "configuration `file` to take the key from")
	dataDir := flags.String("data", defaultDataDir, "data `directory` of a development server to take the key from")
	rest, err := parseFlags(flags, args)
	if err != nil {
		return err
	}
	if err := configuredURL(flags, url, *file); err != nil {
		return err
	}
	if len(rest) != 2 {
		return misuse("publish needs a room and its data, got %d arguments", len(rest))
	}
	room, data := rest[0], []byte(rest[1])
	if err := errors.Join(hub.ValidRoom(room), hub.ValidDatabase(*db)); err != nil {
		return misuse("%v", err)
	}
	if rest[1] == "-" {
		if data, err = io.ReadAll(io.LimitReader(p.stdin, maxInput)); err != nil {
			return fmt.Errorf("read data: %w", err)
		}
	}
	if !json.Valid(data) {
		return errors.New(`data is not JSON; a text needs quotes: '"hello"'`)
	}
	secret, err := resolve(*key)
	if err != nil {
		return fmt.Errorf("-key: %w", err)
	}
	if secret == "" {
		o, err := operatorOptions(*file, *dataDir)
		if err != nil {
			return err
		}
		secret = o.API.Key
	}
	call := apiCall{url: strings.TrimSuffix(*url, "/") + apiPath(*db) + "publish", key: secret}
	var position struct {
		Offset uint64 `json:"offset"`
		Epoch  string `json:"epoch"`
	}
	request := map[string]any{"channel": room, "data": json.RawMessage(data)}
	if *id != "" {
		request["idempotency_key"] = *id
	}
	if err := call.do(ctx, request, &position); err != nil {
		return fmt.Errorf("publish to %s: %w", room, err)
	}
	fmt.Fprintln(p.stdout, formatPosition(position.Offset, position.Epoch))
	return nil
}

func apiPath(db string) string {
	if db == defaultDatabase {
		return "/api/"
	}
	return "/v1/" + db + "/api/"
}

// formatPosition writes a position as -since takes it; a room without history
// has none.
func formatPosition(offset uint64, epoch string) string {
	if epoch == "" {
		return "-"
	}
	return fmt.Sprintf("%d:%s", offset, epoch)
}

// apiCall is one method of the server API.
type apiCall struct{ url, key string }

// do sends a request and decodes the result of its answer.
func (c apiCall) do(ctx context.Context, request, result any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-API-Key", c.key)
	answer, err := exchange(r)
	if err != nil {
		return err
	}
	var reply struct {
		Error *struct {
			Code    uint32
			Message string
		}
		Result json.RawMessage
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if reply.Error != nil {
		return fmt.Errorf("%s (error %d)", reply.Error.Message, reply.Error.Code)
	}
	return json.Unmarshal(reply.Result, result)
}

// exchange sends a request and returns the body of its answer. What is no success is
// an error with what the server says. Keys are sent to the URL given and nowhere else:
// redirects are not followed.
func exchange(r *http.Request) ([]byte, error) {
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	w, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer w.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(w.Body, maxInput))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if w.StatusCode < 200 || w.StatusCode > 299 {
		var problem struct{ Detail string }
		if json.Unmarshal(answer, &problem) == nil && problem.Detail != "" {
			return nil, fmt.Errorf("%s: %s", w.Status, problem.Detail)
		}
		return nil, errors.New(w.Status)
	}
	return answer, nil
}
