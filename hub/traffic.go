package hub

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// traffic counts requests by class for the overview; [metrics] has them by route.
type traffic struct{ classes [trafficClasses]classTraffic }

// classTraffic is the requests of one class. A handshake takes from accept to the
// connect reply, the client's share included; its refusals are among statuses alone.
type classTraffic struct {
	times    window
	statuses [len(statusClasses)]atomic.Uint64
	limited  atomic.Uint64 // status 429
}

// The classes of traffic: those that have limits, those of servers, and the rest
// (health, preflights, what has no route).
const (
	classServer = requestClasses + iota
	classOther
	trafficClasses
)

var trafficNames = [trafficClasses]string{
	classRead: "read", classMutation: "mutation", classHandshake: "handshake", classServer: "server", classOther: "other"}

// routeClasses are the classes of routes; classOther has the rest.
var routeClasses = func() map[string]requestClass {
	classes := map[string]requestClass{
		"POST /api/{method}": classServer, "POST /v1/{db}/api/{method}": classServer,
		"GET " + defaultSocketPath: classHandshake, "GET /v1/{db}/websocket": classHandshake,
	}
	for pattern, e := range endpoints {
		method, path, _ := strings.Cut(pattern, " ")
		classes[method+" /v1/{db}/rooms/{room}/"+path] = e.class
	}
	return classes
}()

// request counts a request that ended now.
func (t *traffic) request(route string, status int, now, took time.Duration) {
	class, known := routeClasses[route]
	switch {
	case !known:
		class = classOther
	case class == classHandshake: // counted by those who admit and refuse
		return
	}
	t.classes[class].times.addTime(now, took)
	t.status(class, status)
}

// connected counts a handshake and connect command that succeeded.
func (t *traffic) connected(now, took time.Duration) {
	t.classes[classHandshake].times.addTime(now, took)
	t.status(classHandshake, http.StatusSwitchingProtocols)
}

// refused counts an upgrade that was refused.
func (t *traffic) refused(status int) { t.status(classHandshake, status) }

func (t *traffic) status(class requestClass, status int) {
	c := &t.classes[class]
	c.statuses[statusClass(status)].Add(1)
	if status == http.StatusTooManyRequests {
		c.limited.Add(1)
	}
}
