package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// configTemplate is a hub.toml that serves; each SECRET is replaced by one of
// its own.
const configTemplate = `# Configuration of hub. config.example.toml lists every key with its default.
# Any string may be "env:NAME" (an environment variable) or "file:PATH".
# Check it with: hub check -config hub.toml

[server]
listen = "0.0.0.0:8000"
data_dir = "data"             # relative to where hub is started
# Pages that may connect, besides those of the server's own host:
origins = []                  # ["https://app.example.com"]
# Proxies whose X-Forwarded-For is believed:
trusted_proxies = []          # ["127.0.0.1"]

[auth]
# Signs the tokens of your users (HS256). Your backend needs it too.
hmac_secret = "SECRET"

[api]
# Your backend sends it as X-API-Key to publish and to manage connections.
key = "SECRET"

[admin]
# Metrics and profiles; keep it away from the internet.
listen = "127.0.0.1:8001"
key = "SECRET"

# A room belongs to the namespace before its first colon: chat:lobby to
# [namespace.chat]; names without a colon belong to [namespace.default].
#
# Who may subscribe, publish, read history, read presence_info and operate:
#   "token"       whoever's token grants it (caps)
#   "user"        everybody with a valid token
#   "subscriber"  whoever is subscribed to the room
#   "server"      nobody but your backend

[namespace.default]
subscribe = "token"
publish = "server"

[namespace.chat]
subscribe = "user"
publish = "subscriber"
history = "subscriber"
presence = true
presence_info = "subscriber"
history_size = 10000          # publications kept for each room
history_ttl = "168h"          # and for how long
`

// init writes a configuration. It never overwrites one.
func (p *program) init(_ context.Context, args []string) error {
	flags := p.flags("init", "[FILE]")
	rest, err := parseFlags(flags, args)
	if err != nil {
		return err
	}
	file := "hub.toml"
	switch len(rest) {
	case 0:
	case 1:
		file = rest[0]
	default:
		return misuse("init takes one file, got %d", len(rest))
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already and is left as it is", file)
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	text := configTemplate
	for range strings.Count(text, "SECRET") {
		text = strings.Replace(text, "SECRET", newSecret(), 1)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write configuration: %w", err), os.Remove(file))
	}
	fmt.Fprintf(p.stdout, "wrote %s; start with: hub serve -config %s\n", file, file)
	return nil
}
