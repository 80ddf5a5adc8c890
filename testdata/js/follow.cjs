// Follows a room with the official SDK through whatever happens to its
// connection, and publishes to it all the while, until a line arrives on
// standard input:  node follow.cjs ROOM NAME
//
// Lines of JSON: {"offset", "data"} for a publication received, {"acked": n} for
// one of its own ({"by": NAME, "n": n}) that the server has acknowledged,
// {"subscribed", "recovered"} for a subscription, {"end"} for what must not happen,
// {"stopped": n} when the last own publication is settled.
const { token, encode, decode, client, print, sleep } = require('./lib.cjs')

const [room, name] = process.argv.slice(2)

let stop = false
process.stdin.once('data', () => { stop = true })
process.stdin.once('end', () => process.exit(0))

const c = client({ token: token({ sub: name }) })
const sub = c.newSubscription(room, { recoverable: true, minResubscribeDelay: 20, maxResubscribeDelay: 200 })
sub.on('publication', (p) => print({ offset: p.offset, data: decode(p.data) }))
sub.on('subscribed', (e) => print({ subscribed: true, recovered: e.wasRecovering ? e.recovered : null }))
sub.on('unsubscribed', (e) => print({ end: `unsubscribed: ${e.code} ${e.reason}` }))
c.on('disconnected', (e) => print({ end: `disconnected: ${e.code} ${e.reason}` }))

async function publish() {
  let n = 0
  for (; !stop; n++) {
    try {
      await c.ready()
      await c.publish(room, encode({ by: name, n }))
      print({ acked: n })
    } catch {
      await sleep(10) // nobody knows whether it was stored
    }
  }
  print({ stopped: n })
}

sub.subscribe()
c.connect()
publish()
