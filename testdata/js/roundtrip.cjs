// Follows a room with the official SDK, publishes to it, and ends well once its
// own publication has come back:  node roundtrip.cjs URL TOKEN-FILE ROOM
const fs = require('node:fs')
const { Centrifuge } = require('centrifuge')

const [url, tokenFile, room] = process.argv.slice(2)
const end = (code, text) => { console.log(text); process.exit(code) }
setTimeout(() => end(1, 'timeout'), 15000)

const client = new Centrifuge(url, {
  token: fs.readFileSync(tokenFile, 'utf8').trim(),
  websocket: require('ws'),
})
const sub = client.newSubscription(room, { recoverable: true })
client.on('disconnected', e => end(1, `disconnected: ${e.code} ${e.reason}`))
sub.on('error', e => end(1, `subscription: ${e.error.code} ${e.error.message}`))
sub.on('subscribed', e => {
  if (!e.recoverable || !e.streamPosition) end(1, 'not recoverable')
  sub.publish({ text: 'from js' }).catch(e => end(1, `publish: ${e.message}`))
})
sub.on('publication', p => end(0, JSON.stringify({ offset: p.offset, user: p.info?.user, data: p.data })))
sub.subscribe()
client.connect()
