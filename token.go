package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"hub/auth"
	"hub/hub"
)

func (p *program) token(_ context.Context, args []string) error {
	if len(args) > 0 && args[0] == "inspect" {
		return p.inspectToken(args[1:])
	}
	flags := p.flags("token", "-user USER [flags]\n       hub token -user USER -subscription ROOM [flags]\n       hub token inspect [-config FILE] TOKEN|-")
	user := flags.String("user", "", "`name` of the user (sub)")
	ttl := flags.Duration("ttl", time.Hour, "how long the token is good")
	channels := flags.String("channels", "", "`rooms` the server subscribes the connection to, separated by commas")
	caps := flags.String("caps", "", `grants as JSON: [{"channels":["chat:*"],"match":"wildcard","allow":["sub","pub"]}]`)
	databases := flags.String("db", "", "`names` of the databases the token is good for, separated by commas; without any it is default")
	info := flags.String("info", "", "`JSON` that others may see of the user")
	meta := flags.String("meta", "", "`JSON` that only servers see of the user")
	room := flags.String("subscription", "", "mint a subscription token for this `room` instead")
	source := secretFlags{
		file:    flags.String("config", "", "configuration `file` to take secret, issuer and audience from"),
		dataDir: flags.String("data", defaultDataDir, "data `directory` of a development server to take the secret from"),
		secret:  flags.String("secret", "", "HMAC secret; env:NAME and file:PATH keep it out of the process list"),
	}
	rest, err := parseFlags(flags, args)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return misuse("token takes no arguments, got %q", rest[0])
	case *user == "":
		return misuse("token needs -user")
	case *ttl < time.Second:
		return misuse("-ttl must be at least 1s, got %v", *ttl)
	}
	now := time.Now()
	exp := now.Add(*ttl).Unix()
	if *room != "" {
		for _, name := range []string{"channels", "caps", "db", "meta"} {
			if given(flags, name) {
				return misuse("a subscription token has no -%s", name)
			}
		}
		c := auth.SubscriptionClaims{User: *user, Channel: *room, ExpiresAt: exp, IssuedAt: now.Unix()}
		if c.Info, err = jsonFlag("info", *info); err != nil {
			return err
		}
		if err := hub.ValidRoom(*room); err != nil {
			return misuse("-subscription: %v", err)
		}
		return p.mint(source, func(m minter) (string, error) { return auth.MintSubscription(m.secret, c, m.extra) })
	}
	c := auth.Claims{User: *user, ExpiresAt: exp, IssuedAt: now.Unix(), Channels: splitList(*channels), Databases: splitList(*databases)}
	if c.Info, err = jsonFlag("info", *info); err != nil {
		return err
	}
	if c.Meta, err = jsonFlag("meta", *meta); err != nil {
		return err
	}
	if *caps != "" {
		if c.Grants, err = auth.ParseGrants([]byte(*caps)); err != nil {
			return misuse("-caps: %v", err)
		}
	}
	return p.mint(source, func(m minter) (string, error) { return auth.Mint(m.secret, c, m.extra) })
}

// mint prints the token that f makes, once a verifier of the same secret has
// accepted it.
func (p *program) mint(source secretFlags, f func(minter) (string, error)) error {
	m, err := source.minter()
	if err != nil {
		return err
	}
	token, err := f(m)
	if err != nil {
		return err
	}
	if _, err := verifyToken(m.options, token); err != nil {
		return fmt.Errorf("such a token would be refused: %w", err)
	}
	fmt.Fprintln(p.stdout, token)
	return nil
}

// secretFlags say where a secret comes from.
type secretFlags struct{ file, dataDir, secret *string }

// minter makes the tokens of one server.
type minter struct {
	options auth.Options // that server's
	secret  []byte
	extra   map[string]any // what its verifier requires besides
}

func (f secretFlags) minter() (minter, error) {
	if *f.secret == "" {
		return newMinter(*f.file, *f.dataDir)
	}
	o := auth.DefaultOptions()
	var err error
	if o.HMACSecret, err = resolve(*f.secret); err != nil {
		return minter{}, fmt.Errorf("-secret: %w", err)
	}
	return minter{options: o, secret: []byte(o.HMACSecret)}, nil
}

// newMinter mints for the server of a configuration file or, without one, for
// the development server in dataDir.
func newMinter(file, dataDir string) (minter, error) {
	o, err := operatorOptions(file, dataDir)
	if err != nil {
		return minter{}, err
	}
	if o.Auth.HMACSecret == "" {
		return minter{}, errors.New("auth.hmac_secret is not set: tokens come from whoever holds the private key")
	}
	m := minter{options: o.Auth, secret: []byte(o.Auth.HMACSecret), extra: map[string]any{}}
	if o.Auth.Issuer != "" {
		m.extra["iss"] = o.Auth.Issuer
	}
	if o.Auth.Audience != "" {
		m.extra["aud"] = o.Auth.Audience
	}
	return m, nil
}

// verifyToken says what a genuine token is for.
func verifyToken(o auth.Options, token string) (string, error) {
	v, err := auth.New(o)
	if err != nil {
		return "", err
	}
	now := time.Now()
	c, err := v.Connection(token, now)
	if err == nil {
		return fmt.Sprintf("connection token of user %q", c.User), nil
	}
	if s, subErr := v.Subscription(token, now); subErr == nil {
		return fmt.Sprintf("subscription token of user %q for room %q", s.User, s.Channel), nil
	} else if errors.Is(subErr, auth.ErrExpired) {
		err = subErr
	}
	return "", err
}

// inspectToken prints what a token says and, with a configuration, whether a
// server would believe it.
func (p *program) inspectToken(args []string) error {
	flags := p.flags("token inspect", "[-config FILE] TOKEN|-")
	file := flags.String("config", "", "configuration `file` whose keys verify the token")
	dataDir := flags.String("data", defaultDataDir, "data `directory` of a development server whose secret verifies it")
	rest, err := parseFlags(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return misuse("token inspect needs one token, or - for standard input")
	}
	token := rest[0]
	if token == "-" {
		b, err := io.ReadAll(io.LimitReader(p.stdin, maxInput))
		if err != nil {
			return fmt.Errorf("read token: %w", err)
		}
		token = string(b)
	}
	token = strings.TrimSpace(token)
	head, claims, err := auth.Inspect(token)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, fmt.Appendf(nil, `{"header":%s,"claims":%s}`, head, claims), "", "  "); err != nil {
		return err
	}
	fmt.Fprintln(p.stdout, b.String())
	var times struct {
		Exp float64 `json:"exp"`
	}
	if json.Unmarshal(claims, &times) == nil && times.Exp > 0 && times.Exp < 1e11 {
		at := time.Unix(int64(times.Exp), 0).UTC()
		fmt.Fprintf(p.stderr, "expires %s, %s\n", at.Format(time.RFC3339), fromNow(time.Until(at)))
	}
	keys, err := verifyingKeys(*file, *dataDir)
	if errors.Is(err, fs.ErrNotExist) && *file == "" {
		fmt.Fprintf(p.stderr, "not verified: no -config given, and no development server has run in %s\n", *dataDir)
		return nil
	}
	if err != nil {
		return err
	}
	what, err := verifyToken(keys, token)
	if err != nil {
		return err
	}
	fmt.Fprintln(p.stderr, "verified:", what)
	return nil
}

// verifyingKeys returns the keys of a configuration, or of a development
// server's data directory when there is none.
func verifyingKeys(file, dataDir string) (auth.Options, error) {
	if file != "" {
		c, err := loadConfig(file)
		return c.options.Auth, err
	}
	s, err := loadDevSecrets(dataDir)
	o := auth.DefaultOptions()
	o.HMACSecret = s.HMACSecret
	return o, err
}

func fromNow(d time.Duration) string {
	if d < 0 {
		return fmt.Sprintf("%v ago", -d.Round(time.Second))
	}
	return fmt.Sprintf("in %v", d.Round(time.Second))
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// jsonFlag returns the JSON of a flag, nil where it was not given.
func jsonFlag(name, s string) (json.RawMessage, error) {
	if s == "" {
		return nil, nil
	}
	if !json.Valid([]byte(s)) {
		return nil, misuse("-%s is not JSON", name)
	}
	return json.RawMessage(s), nil
}
