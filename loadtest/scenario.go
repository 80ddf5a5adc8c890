package loadtest

import (
	"context"
	"slices"
	"time"

	"hub/loadtest/report"
)

// scenario is one thing that a run can do.
type scenario struct {
	what string
	// shapes are those whose floor is measured; nil for none.
	shapes func(o *Options) []report.Shape
	// gap is the time between two of its rounds; nil for the option's.
	gap func(o *Options) time.Duration
	// ownServer says that it needs a server that it can kill or look into.
	ownServer bool
	server    func(o *Options) serverPlan // nil for nothing special
	run       func(st *stage, ctx context.Context) error
}

// plan is what the scenario wants of the test's server.
func (s scenario) plan(o *Options) serverPlan {
	if s.server == nil {
		return serverPlan{}
	}
	return s.server(o)
}

// allScenarios is the name of all of them, one after the other.
const allScenarios = "all"

// soakScenario is not among all of them: it takes as long as it is told.
const soakScenario = "soak"

// everyScenario is their order.
var everyScenario = []string{"rooms", "delivery", "fanout", "chat", "mixed", "state", "limits", "connect", "hold", "revoke", "crash", "slow"}

var scenarios map[string]scenario

func init() { // not a literal: soak and validation refer to it
	scenarios = map[string]scenario{
		"rooms": {
			what:   "connections spread over rooms; rounds of events to every room, idle time and reconnects, rounds again",
			shapes: roomsShapes, run: (*stage).rooms,
		},
		"delivery": {
			what:   "everybody in one room, at a half, three quarters and all of the connections; then a steady stream",
			shapes: deliveryShapes, run: (*stage).delivery,
		},
		"fanout": {
			what:   "one durable message to a growing room, until the last member has it",
			shapes: fanoutShapes, gap: func(*Options) time.Duration { return fanoutGap }, run: (*stage).fanout,
		},
		"chat": {
			what: "one client publishes at rising rates and has each event echoed; then many publishers at once",
			run:  (*stage).chat,
		},
		"mixed": {
			what:   "1,000 operations and 10,000 reads at once, again and again in fresh databases, while events go on to all connections",
			server: func(*Options) serverPlan { return serverPlan{databases: mixedDatabases} }, run: (*stage).mixed,
		},
		"state": {
			what: "200 clients do random operations in a few rooms over sockets and HTTP, and join, leave and come back meanwhile; all that they were told and saw is held against a model",
			run:  (*stage).state,
		},
		"limits": {
			what:      "a server with the default limits is asked for more than they allow; what passes is counted",
			ownServer: true, server: limitsPlan, run: (*stage).limits,
		},
		"connect": {
			what:      "as many connections as descriptors allow are opened, authenticated and held",
			ownServer: true, run: (*stage).crowd,
		},
		"hold": {
			what:   "rounds of events to connections that are held for a minute, every other one while all of them are checked again, and reconnects",
			server: func(*Options) serverPlan { return serverPlan{auth: checkedNever} },
			shapes: roomsShapes, gap: holdGap, run: (*stage).hold,
		},
		"revoke": {
			what:      "a tenth of the users are revoked and some tokens expire during traffic, the server is restarted; then a signing key is removed",
			ownServer: true, server: func(*Options) serverPlan { return serverPlan{auth: checkedOften + exactly} }, run: (*stage).revoke,
		},
		"crash": {
			what:      "the server is killed again and again in the middle of acknowledged publications and operations, clients resume",
			ownServer: true, run: (*stage).crash,
		},
		"slow": {
			what: "some clients stop reading; the others go on, and the stalled get everything later",
			run:  (*stage).slow,
		},
		soakScenario: {
			what: "steady traffic for so long as -duration says, with connections that are dropped and come back",
			run:  (*stage).soak,
		},
		allScenarios: {what: "all scenarios, one after the other", ownServer: true},
	}
}

// Scenarios are the names that -scenario takes.
func Scenarios() []string { return append(slices.Clone(everyScenario), soakScenario, allScenarios) }

// roomsShape is that of the layout that the options describe.
func roomsShape(o *Options) report.Shape {
	return report.Shape{Conns: o.Conns, Rooms: o.Rooms, Events: o.Events}
}

func roomsShapes(o *Options) []report.Shape { return []report.Shape{roomsShape(o)} }
