// Package store keeps the durable rooms of one database in one SQLite file and
// loses nothing that it acknowledged.
//
// # The life of a publication
//
//  1. [DB.Publish] puts it on the queue, bounded in entries, bytes and waiting
//     time, or refuses it. In the queue rooms take turns (queue.go).
//  2. The writer, the one goroutine that writes, takes what waits, some
//     milliseconds of work, into one transaction, a savepoint for each operation (writer.go,
//     operation.go).
//  3. The room's counter gives it the next offset (rooms.go).
//  4. COMMIT. Anything that fails on the way, COMMIT too, abandons the whole
//     batch: connection and cached counters are thrown away, and each operation
//     runs again alone (writer.go).
//  5. [Options].Committed gets the events, then each caller its outcome.
//  6. Readers see it (reader.go) until the retention of its room, which holds
//     at once in every read, makes the writer delete it (prune.go).
//
// # The life of an operation
//
// [DB.Operate] goes the same way. Inside its savepoint its id is looked up
// (idempotency.go), its steps are done in memory on what the room holds (step.go),
// and then resources, record of the id and event are written (operate.go): a
// refusal has written nothing but perhaps a new room, which is rolled back. The
// event is an ordinary publication. Resources are no history: nothing prunes
// them, and a deleted one keeps its version (resource.go).
//
// # Ownership
//
//	queue              any goroutine, guarded by its mutex
//	writer             the writer goroutine; after it ended, Close
//	readers            a reader belongs to whoever took it from the pool
//	Stats, Ready       atomics
//	the database file  SQLite alone: nothing here opens it by other means, since
//	                   closing such a descriptor drops SQLite's locks
//	                   (sqlite.org/howtocorrupt.html, section 2.2)
package store
