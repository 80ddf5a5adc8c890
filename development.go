package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"hub/auth"
	"hub/hub"
)

const (
	defaultListen  = "127.0.0.1:8000"
	defaultDataDir = "data"
	// developmentUser is the user of the banner's token and of the command line.
	developmentUser = "dev"
	// developmentTTL lets a token last a working day.
	developmentTTL = 24 * time.Hour
	// developmentDrain is short: a developer restarts often and has few clients.
	developmentDrain = 100 * time.Millisecond
)

// developmentOptions are those of a server that only this machine can reach:
// whoever has a token may do everything in every room of the default database.
// The secrets live in the data directory, which is made if it is missing.
func developmentOptions(listen, dataDir string) (hub.Options, error) {
	o := hub.DefaultOptions()
	host, port, err := loopback(listen)
	if err != nil {
		return o, err
	}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return o, fmt.Errorf("make data directory: %w", err)
	}
	s, err := developmentSecrets(dataDir)
	if err != nil {
		return o, err
	}
	o.Development = true
	o.Version = version
	o.Server.Listen = net.JoinHostPort(host, strconv.Itoa(port))
	o.Server.DataDir = dataDir
	o.Server.DrainWindow = developmentDrain
	o.Auth.HMACSecret = s.HMACSecret
	o.API.Key = s.APIKey
	o.Admin.Listen = net.JoinHostPort(host, strconv.Itoa(adminPort(port)))
	o.Admin.Key = s.AdminKey
	open := hub.DefaultNamespace()
	open.Presence = true
	open.JoinLeave = true
	open.Subscribe = hub.AccessUser
	open.Publish = hub.AccessUser
	open.History = hub.AccessUser
	open.PresenceInfo = hub.AccessUser
	open.Operate = hub.AccessUser
	o.Namespaces = map[string]hub.Namespace{"default": open, "*": open}
	return o, nil
}

// loopback splits a development address and refuses those that other machines
// could reach.
func loopback(listen string) (host string, port int, err error) {
	host, number, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, misuse("-listen must be host:port, got %q", listen)
	}
	p, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", 0, misuse("-listen needs a port number, got %q", number)
	}
	ip, err := netip.ParseAddr(host)
	if host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return "", 0, misuse("-listen %s: a development server listens on this machine only (127.0.0.1, ::1 or localhost); "+
			"to be reached from elsewhere it needs a configuration: `hub init`, then `hub serve -config hub.toml`", listen)
	}
	return host, int(p), nil
}

// adminPort is the one after the clients' port; 0 lets the system choose both.
func adminPort(port int) int {
	if port == 0 || port == 65535 {
		return 0
	}
	return port + 1
}

// devSecrets are made at the first development start in a data directory and
// used by every later one, so that tokens outlive a restart.
type devSecrets struct {
	HMACSecret string `json:"hmac_secret"`
	APIKey     string `json:"api_key"`
	AdminKey   string `json:"admin_key"`
}

func secretsFile(dataDir string) string { return filepath.Join(dataDir, "dev-secret.json") }

// loadDevSecrets reads the secrets of a data directory; the error wraps
// [fs.ErrNotExist] where no development server has run.
func loadDevSecrets(dataDir string) (devSecrets, error) {
	var s devSecrets
	b, err := os.ReadFile(secretsFile(dataDir))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil || s.HMACSecret == "" || s.APIKey == "" || s.AdminKey == "" {
		return devSecrets{}, fmt.Errorf("%s is damaged; remove it to have new secrets", secretsFile(dataDir))
	}
	return s, nil
}

// developmentSecrets loads the secrets of a data directory or makes them. The
// file appears complete and once: of two servers started together one wins and
// both read the same.
func developmentSecrets(dataDir string) (devSecrets, error) {
	s, err := loadDevSecrets(dataDir)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	b, err := json.Marshal(devSecrets{newSecret(), newSecret(), newSecret()})
	if err != nil {
		return s, err
	}
	f, err := os.CreateTemp(dataDir, ".dev-secret-*") // mode 0600
	if err != nil {
		return s, fmt.Errorf("store development secrets: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return s, fmt.Errorf("store development secrets: %w", err)
	}
	if err := os.Link(f.Name(), secretsFile(dataDir)); err != nil && !errors.Is(err, fs.ErrExist) {
		// A file system without hard links: the later of two first starts wins.
		if err := os.Rename(f.Name(), secretsFile(dataDir)); err != nil {
			return s, fmt.Errorf("store development secrets: %w", err)
		}
	}
	return loadDevSecrets(dataDir)
}

// newSecret returns 32 random bytes as text, which is what RFC 7518 section 3.2
// asks of an HS256 key.
func newSecret() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails since Go 1.24
	return base64.RawURLEncoding.EncodeToString(b)
}

func developmentToken(o hub.Options) (string, error) {
	return auth.Mint([]byte(o.Auth.HMACSecret), auth.Claims{User: developmentUser, ExpiresAt: time.Now().Add(developmentTTL).Unix()})
}

// typedAs returns how the user started this program: `go run .` hides it in a
// temporary directory.
func typedAs(arg0 string) string {
	switch {
	case strings.Contains(filepath.ToSlash(arg0), "/go-build"):
		return "go run ."
	case filepath.IsAbs(arg0):
		return filepath.Base(arg0)
	}
	return arg0
}

// banner greets a developer with lines that work when pasted.
func banner(hubCommand, addr, adminAddr string, o hub.Options, token string) string {
	data, url := "", ""
	if o.Server.DataDir != defaultDataDir {
		data = " -data " + o.Server.DataDir
	}
	if addr != defaultListen {
		url = " -url http://" + addr
	}
	return strings.NewReplacer(
		"HUB", hubCommand, "ADMIN", adminAddr, "ADDR", addr,
		"DATA", data, "URL", url,
		"TOKEN", token, "KEY", o.Admin.Key, "USER", developmentUser,
		"DIR", o.Server.DataDir, "FILE", secretsFile(o.Server.DataDir),
	).Replace(`hub is running for development: this machine only, open rules, data in DIR

  websocket  ws://ADDR/connection/websocket
  health     http://ADDR/healthz
  console    http://ADMIN/console/, which asks for the admin key: KEY
  metrics    http://ADMIN/metrics, with the same key, as admin_key in FILE

A token for user "USER", good for 24 hours:

  TOKEN

Follow a room in a second terminal, publish to it from a third:

  HUB subscribeDATAURL chat:lobby
  HUB publishDATAURL chat:lobby '{"text":"hello"}'

In Node (npm install centrifuge ws); a page needs neither require nor websocket:

  const {Centrifuge} = require('centrifuge')
  const hub = new Centrifuge('ws://ADDR/connection/websocket', {token: 'TOKEN', websocket: require('ws')})
  const room = hub.newSubscription('chat:lobby')
  room.on('publication', p => console.log(p.offset, p.data))
  room.subscribe(); hub.connect()

Ctrl-C stops it.
`)
}
