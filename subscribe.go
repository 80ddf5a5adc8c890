package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/centrifugal/centrifuge-go"

	"hub/auth"
	"hub/hub"
)

// tailTokenTTL is how long a token that subscribe mints for itself is good; the
// client asks for the next one in time.
const tailTokenTTL = time.Hour

func (p *program) subscribe(ctx context.Context, args []string) error {
	flags := p.flags("subscribe", "[flags] ROOM...")
	address := flags.String("url", "http://"+defaultListen, "`URL` of the server; a path replaces the one of -db")
	db := flags.String("db", defaultDatabase, "`database` of the rooms")
	token := flags.String("token", "", "connection token, also as env:NAME or file:PATH; without one it is minted from the server's secret")
	user := flags.String("user", developmentUser, "`name` of the user in a minted token")
	file := flags.String("config", "", "configuration `file` to take the secret from")
	dataDir := flags.String("data", defaultDataDir, "data `directory` of a development server to take the secret from")
	asJSON := flags.Bool("json", false, "print one JSON object per publication")
	since := flags.String("since", "", "`position` after which to begin, offset:epoch; needs a single room")
	count := flags.Int("n", 0, "end after this many publications; 0 goes on")
	rooms, err := parseFlags(flags, args)
	if err != nil {
		return err
	}
	if err := validRooms(rooms); err != nil {
		return err
	}
	if err := configuredURL(flags, address, *file); err != nil {
		return err
	}
	target, err := socketURL(*address, *db)
	switch {
	case err != nil:
		return err
	case *count < 0:
		return misuse("-n must not be negative")
	case *since != "" && len(rooms) > 1:
		return misuse("-since needs a single room, got %d", len(rooms))
	}
	position, err := parsePosition(*since)
	if err != nil {
		return err
	}
	c := centrifuge.Config{Name: "hub-cli", Version: version, HandshakeTimeout: 10 * time.Second}
	if *token != "" {
		c.Token, err = resolve(*token)
	} else {
		c.GetToken, err = tailTokens(*file, *dataDir, *user, databaseOf(target.Path), rooms)
	}
	if err != nil {
		return err
	}
	t := &tail{out: p.stdout, status: p.stderr, json: *asJSON, left: *count, epochs: make(map[string]string), end: make(chan error, 1)}
	return t.run(ctx, centrifuge.NewJsonClient(target.String(), c), rooms, position)
}

// run follows the rooms until ctx ends or there is nothing more to follow.
func (t *tail) run(ctx context.Context, client *centrifuge.Client, rooms []string, position *centrifuge.StreamPosition) error {
	defer client.Close()
	t.watch(client)
	for _, room := range rooms {
		how := centrifuge.SubscriptionConfig{Recoverable: true}
		if position != nil {
			how.GetState = t.startAt(*position)
		}
		s, err := client.NewSubscription(room, how)
		if err != nil {
			return misuse("subscribe to %s: %v", room, err)
		}
		t.follow(s)
		if err := s.Subscribe(); err != nil {
			return fmt.Errorf("subscribe to %s: %w", room, err)
		}
	}
	// A failed first attempt is told by the client's error handler and repeated.
	_ = client.Connect()
	select {
	case <-ctx.Done():
		t.finish(nil)
		return nil
	case err := <-t.end:
		return err
	}
}

func validRooms(rooms []string) error {
	if len(rooms) == 0 {
		return misuse("subscribe needs a room")
	}
	for _, room := range rooms {
		if err := hub.ValidRoom(room); err != nil {
			return misuse("%q: %v", room, err)
		}
	}
	return nil
}

// socketURL returns where the websocket of a database is served.
func socketURL(address, db string) (*url.URL, error) {
	u, err := url.Parse(address)
	schemes := map[string]string{"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
	if err != nil || schemes[u.Scheme] == "" || u.Host == "" {
		return nil, misuse("-url must begin with http://, https://, ws:// or wss://, got %q", address)
	}
	if err := hub.ValidDatabase(db); err != nil {
		return nil, misuse("-db: %v", err)
	}
	u.Scheme = schemes[u.Scheme]
	if u.Path == "" || u.Path == "/" {
		u.Path = "/connection/websocket"
		if db != defaultDatabase {
			u.Path = "/v1/" + db + "/websocket"
		}
	}
	return u, nil
}

// tailTokens returns what mints a client's tokens from its server's own secret,
// good for following these rooms and nothing else.
func tailTokens(file, dataDir, user, db string, rooms []string) (func(centrifuge.ConnectionTokenEvent) (string, error), error) {
	m, err := newMinter(file, dataDir)
	if err != nil {
		return nil, err
	}
	return func(centrifuge.ConnectionTokenEvent) (string, error) {
		return auth.Mint(m.secret, auth.Claims{
			User:      user,
			ExpiresAt: time.Now().Add(tailTokenTTL).Unix(),
			Databases: []string{db},
			Grants:    auth.Grants{{Rooms: rooms, Allow: auth.Subscribe | auth.History}},
		}, m.extra)
	}, nil
}

// databaseOf returns the database that a websocket path names.
func databaseOf(path string) string {
	if db, ok := strings.CutPrefix(path, "/v1/"); ok {
		db, _, _ = strings.Cut(db, "/")
		return db
	}
	return "default"
}

func parsePosition(s string) (*centrifuge.StreamPosition, error) {
	if s == "" {
		return nil, nil
	}
	number, epoch, _ := strings.Cut(s, ":")
	offset, err := strconv.ParseUint(number, 10, 64)
	if err != nil || epoch == "" {
		return nil, misuse("-since must be offset:epoch as `hub publish` prints it, got %q", s)
	}
	return &centrifuge.StreamPosition{Offset: offset, Epoch: epoch}, nil
}

// tail prints what a client receives.
type tail struct {
	// Fixed after new.
	out, status io.Writer
	json        bool
	end         chan error // holds the outcome

	mu       sync.Mutex        // guards what follows and both writers
	epochs   map[string]string // by room
	left     int               // publications until the end; 0 is no end
	finished bool              // nothing is printed any more
}

// finish ends the tail with an outcome; the first one counts.
func (t *tail) finish(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finishLocked(err)
}

func (t *tail) finishLocked(err error) {
	if !t.finished {
		t.finished = true
		t.end <- err
	}
}

// tell prints a line about the connection.
func (t *tail) tell(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.finished {
		fmt.Fprintf(t.status, format+"\n", args...)
	}
}

// watch tells the states of the connection and ends the tail when the server
// does not want it back.
func (t *tail) watch(c *centrifuge.Client) {
	c.OnConnecting(func(e centrifuge.ConnectingEvent) { t.tell("connecting: %s", e.Reason) })
	c.OnConnected(func(centrifuge.ConnectedEvent) { t.tell("connected") })
	c.OnError(func(e centrifuge.ErrorEvent) { t.tell("error: %v", e.Error) })
	c.OnDisconnected(func(e centrifuge.DisconnectedEvent) {
		t.finish(fmt.Errorf("disconnected: %s (%d)", e.Reason, e.Code))
	})
}

// follow prints a subscription's publications and ends the tail when it is lost
// for good.
func (t *tail) follow(s *centrifuge.Subscription) {
	room := s.Channel
	s.OnSubscribed(func(e centrifuge.SubscribedEvent) {
		if e.WasRecovering && !e.Recovered {
			t.tell("%s: the position cannot be continued, publications are missing", room)
		}
		if e.StreamPosition == nil {
			t.tell("subscribed to %s", room)
			return
		}
		t.tell("subscribed to %s at %s", room, formatPosition(e.StreamPosition.Offset, e.StreamPosition.Epoch))
		t.mu.Lock()
		defer t.mu.Unlock()
		t.epochs[room] = e.StreamPosition.Epoch
	})
	s.OnError(func(e centrifuge.SubscriptionErrorEvent) { t.tell("%s: %v", room, e.Error) })
	s.OnUnsubscribed(func(e centrifuge.UnsubscribedEvent) {
		t.finish(fmt.Errorf("unsubscribed from %s: %s (%d)", room, e.Reason, e.Code))
	})
	s.OnPublication(func(e centrifuge.PublicationEvent) { t.print(room, e.Publication) })
}

// startAt makes a subscription begin after a position. The client asks again
// only when the server cannot continue from there, which ends the tail.
func (t *tail) startAt(position centrifuge.StreamPosition) func(centrifuge.SubscriptionGetStateEvent) (centrifuge.StreamPosition, error) {
	var asked atomic.Bool
	return func(e centrifuge.SubscriptionGetStateEvent) (centrifuge.StreamPosition, error) {
		if asked.Swap(true) {
			err := fmt.Errorf("%s cannot be continued: publications in between are gone", e.Channel)
			t.finish(err)
			return position, err
		}
		return position, nil
	}
}

// line is a publication as -json prints it.
type line struct {
	Room   string          `json:"room"`
	Offset uint64          `json:"offset,omitempty"`
	Epoch  string          `json:"epoch,omitempty"`
	User   string          `json:"user,omitempty"`
	Data   json.RawMessage `json:"data"`
}

func (t *tail) print(room string, p centrifuge.Publication) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.finished {
		return
	}
	l := line{Room: room, Offset: p.Offset, Epoch: t.epochs[room], Data: p.Data}
	if p.Info != nil {
		l.User = p.Info.User
	}
	if err := l.write(t.out, t.json); err != nil {
		t.finishLocked(fmt.Errorf("print publication: %w", err))
		return
	}
	if t.left > 0 {
		if t.left--; t.left == 0 {
			t.finishLocked(nil)
		}
	}
}

// write prints room, offset, user and data on one line; "-" stands for what a
// publication does not have.
func (l line) write(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		return e.Encode(l)
	}
	offset, user := "-", "-"
	if l.Offset > 0 {
		offset = strconv.FormatUint(l.Offset, 10)
	}
	if l.User != "" {
		user = l.User
	}
	_, err := fmt.Fprintf(w, "%s %s %s %s\n", l.Room, offset, user, l.Data)
	return err
}
