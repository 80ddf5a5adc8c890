package main

import (
	"errors"
	"testing"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

// goClient is a client of centrifuge-go with its events as channels, which are
// large enough for what a test causes.
type goClient struct {
	*centrifuge.Client
	t            *testing.T
	connected    chan centrifuge.ConnectedEvent
	connecting   chan centrifuge.ConnectingEvent
	disconnected chan centrifuge.DisconnectedEvent
	errors       chan error
}

// newGoClient makes a client that is not connected yet and ends with the test.
func newGoClient(t *testing.T, protocol, url string, c centrifuge.Config) *goClient {
	t.Helper()
	// The SDK's one second is short for a machine that is busy with other tests.
	c.HandshakeTimeout, c.WriteTimeout = patience, patience
	c.MinReconnectDelay, c.MaxReconnectDelay = 20*time.Millisecond, 200*time.Millisecond
	newClient := centrifuge.NewJsonClient
	if protocol == "protobuf" {
		newClient = centrifuge.NewProtobufClient
	}
	g := &goClient{
		Client: newClient(url, c), t: t,
		connected:    make(chan centrifuge.ConnectedEvent, 64),
		connecting:   make(chan centrifuge.ConnectingEvent, 64),
		disconnected: make(chan centrifuge.DisconnectedEvent, 64),
		errors:       make(chan error, 1024),
	}
	t.Cleanup(g.Close)
	g.OnConnected(func(e centrifuge.ConnectedEvent) { g.connected <- e })
	g.OnConnecting(func(e centrifuge.ConnectingEvent) { g.connecting <- e })
	g.OnDisconnected(func(e centrifuge.DisconnectedEvent) { g.disconnected <- e })
	g.OnError(func(e centrifuge.ErrorEvent) { g.errors <- e.Error })
	return g
}

// connect connects and waits for it.
func (g *goClient) connect() centrifuge.ConnectedEvent {
	g.t.Helper()
	if err := g.Connect(); err != nil {
		g.t.Fatal(err)
	}
	return receive(g.t, g.connected, "connection")
}

// connectedClient makes a client and connects it.
func connectedClient(t *testing.T, protocol, url, token string) *goClient {
	t.Helper()
	g := newGoClient(t, protocol, url, centrifuge.Config{Token: token})
	g.connect()
	return g
}

// goSub is a subscription of centrifuge-go with its events as channels.
type goSub struct {
	*centrifuge.Subscription
	t            *testing.T
	subscribed   chan centrifuge.SubscribedEvent
	unsubscribed chan centrifuge.UnsubscribedEvent
	publications chan centrifuge.Publication
	joins        chan centrifuge.ClientInfo
	leaves       chan centrifuge.ClientInfo
	errors       chan error
}

func (g *goClient) newSub(room string, c centrifuge.SubscriptionConfig) *goSub {
	g.t.Helper()
	c.MinResubscribeDelay, c.MaxResubscribeDelay = 20*time.Millisecond, 200*time.Millisecond
	sub, err := g.NewSubscription(room, c)
	if err != nil {
		g.t.Fatal(err)
	}
	s := &goSub{
		Subscription: sub, t: g.t,
		subscribed:   make(chan centrifuge.SubscribedEvent, 64),
		unsubscribed: make(chan centrifuge.UnsubscribedEvent, 64),
		publications: make(chan centrifuge.Publication, 4096),
		joins:        make(chan centrifuge.ClientInfo, 4096),
		leaves:       make(chan centrifuge.ClientInfo, 4096),
		errors:       make(chan error, 1024),
	}
	s.OnSubscribed(func(e centrifuge.SubscribedEvent) { s.subscribed <- e })
	s.OnUnsubscribed(func(e centrifuge.UnsubscribedEvent) { s.unsubscribed <- e })
	s.OnPublication(func(e centrifuge.PublicationEvent) { s.publications <- e.Publication })
	s.OnJoin(func(e centrifuge.JoinEvent) { s.joins <- e.ClientInfo })
	s.OnLeave(func(e centrifuge.LeaveEvent) { s.leaves <- e.ClientInfo })
	s.OnError(func(e centrifuge.SubscriptionErrorEvent) { s.errors <- e.Error })
	return s
}

// sub subscribes and waits for it.
func (g *goClient) sub(room string, c centrifuge.SubscriptionConfig) *goSub {
	g.t.Helper()
	s := g.newSub(room, c)
	s.begin()
	return s
}

func (s *goSub) begin() centrifuge.SubscribedEvent {
	s.t.Helper()
	if err := s.Subscribe(); err != nil {
		s.t.Fatal(err)
	}
	select {
	case e := <-s.subscribed:
		return e
	case e := <-s.unsubscribed:
		s.t.Fatalf("subscribe to %s: %d %s", s.Channel, e.Code, e.Reason)
	case <-time.After(patience):
		s.t.Fatalf("no reply to subscribe to %s", s.Channel)
	}
	panic("unreachable")
}

// next returns the next publication.
func (s *goSub) next() centrifuge.Publication {
	s.t.Helper()
	return receive(s.t, s.publications, "publication in "+s.Channel)
}

func clientErrorCode(err error) uint32 {
	var e *centrifuge.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}
