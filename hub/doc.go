// Package hub is the server: authenticated rooms with durable events for clients
// of the Centrifuge protocol, on event loops that hold ten thousand connections
// in tens of megabytes.
//
// # The life of a connection
//
//  1. A loop accepts the socket and gives it to the next loop in turn
//     (loop.go). The first request is read there; one that is no upgrade goes
//     on in net/http (handshake.go, http.go).
//  2. The upgrade is checked: route, handshake, Origin, caps (admit). From here
//     on bytes become frames, frames commands (conn.go, package wire).
//  3. The connect command brings the token; what it says is kept, the token is
//     not (connect.go). Server-side subscriptions come with its reply.
//  4. Commands take effect in order. One that needs the store, a worker or other
//     loops is in flight until its answer is posted back to the loop; those
//     behind it are parked, and the socket is not read (command.go).
//  5. A subscription is a cursor into its room's log (subscribe.go). Sweeps
//     write what lies between cursor and head (sweep.go).
//  6. One timer per connection does pings, deadlines, expiry and, once per
//     auth.revalidate, the check of what its token and subscriptions rest on
//     (timers.go, wheel.go, revalidate.go).
//  7. It ends with a close frame and a short wait for the client's (disconnect),
//     or at once when the socket is broken (drop). Subscriptions, presence, the
//     user's entry and the slot of the caps go with it, and nothing else does.
//
// # The life of a publication
//
//  1. A client's publish is checked on its loop: permission, limits, JSON
//     (publish.go). A server's comes by HTTP (api_publish.go).
//  2. It waits in the database's write queue; the writer gives it the room's
//     next offset and commits it with what else waits (package store). In a room
//     without history this step is left out.
//  3. The committed event is framed once per encoding in use and appended to the
//     room's log, which marks the room dirty in the loops that have receivers
//     (room.go, feed.go). Then the publisher gets its acknowledgement.
//  4. Each loop sweeps its dirty rooms: databases take turns, one visit gives a
//     receiver everything that it lacks in one write (sweep.go).
//  5. A receiver whose socket takes no more keeps its cursor, and the rest of
//     one entry. It goes on when the socket does; when the log has moved on by
//     then, pages are read from the store (database.go), shared by all who are
//     at the same place.
//
// An operation (operate.go, step.go) goes the same way: its writes to resources, the
// record of its id and its event are one commit, and the event is a publication.
//
// # The life of a request
//
//  1. Requests that are no upgrade go through net/http (http.go), which knows the
//     routes, counts them by pattern and keeps a panic to its request.
//  2. One of a client is let in by steps, cheapest first (serveRest in rest.go):
//     Origin, draining, database, credentials; then the gate of its class by
//     address and database (gate.go); then the token is verified.
//  3. Its endpoint asks for permission as the socket does, and reads (rest_read.go)
//     or submits to the write queue and waits (rest_write.go).
//  4. Servers call the server API (api.go), with the key and without a gate.
//  5. Operators call the admin API on a listener of its own (admin.go). What goes
//     over all connections does so on the loops, in slices (admin_connections.go);
//     what takes long runs one at a time (admin_databases.go).
//
// # The life of a rule
//
//  1. Keys, revocations, namespaces, limits, origins and the certificate are one
//     immutable policy with a generation (policy.go). Whoever needs it loads it
//     once for a piece of work; nobody keeps it.
//  2. A change makes the next policy: a reload (reload.go), a key set that was
//     refreshed (watchKeys), a revocation (revocation.go), which is durable first.
//  3. New requests and commands meet it at once. A live connection whose last check
//     was under an older generation is checked again when its time has come
//     (revalidate.go). A revocation does not wait for that: each loop looks at its
//     connections, in slices, before the call returns.
//  4. Caps of connections are apart, since they are counted in one place
//     (capacity.go): what was set while running beats the configuration.
//
// # Who owns what
//
//	Server             fixed after New; atomics; updating for what makes a policy
//	policy             nobody: it never changes
//	loop, conn, sub    the loop's goroutine; others post functions to it
//	shard              its loop; dirty is atomic, users belongs to the room
//	room, feed         the room's mutex; bytes in a segment never change
//	logMemory          its mutex, taken inside a room's
//	databases          a map that is replaced, never changed
//	database           its mutex for the table of rooms, taken outside a room's
//	store.DB           package store: one writer goroutine, a pool of readers
//
// A loop never waits: not for the disk, not for a lock that is held by somebody
// who waits, not for a signature. Locks it takes are held for the time of an
// append or a copy of a few words.
package hub
