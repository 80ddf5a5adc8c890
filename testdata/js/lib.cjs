// What the scripts with the official SDK share. The environment variable
// HUB_TEST is the JSON object {url, api, protocol, secret, key}.
const crypto = require('node:crypto')
const WebSocket = require('ws')

const env = JSON.parse(process.env.HUB_TEST)
const protobuf = env.protocol === 'protobuf'
const { Centrifuge } = require(protobuf ? 'centrifuge/build/protobuf' : 'centrifuge')

const patience = 20000 // milliseconds, for everything that has to happen

const now = () => Math.floor(Date.now() / 1000)
const base64url = (text) => Buffer.from(text).toString('base64url')

// token mints an HS256 token; without exp it is good for an hour.
function token(claims) {
  const payload = { exp: now() + 3600, ...claims }
  const signed = base64url('{"alg":"HS256","typ":"JWT"}') + '.' + base64url(JSON.stringify(payload))
  return signed + '.' + crypto.createHmac('sha256', env.secret).update(signed).digest('base64url')
}

// api calls a method of the server API.
async function api(method, request) {
  const res = await fetch(`${env.api}/${method}`, {
    method: 'POST',
    headers: { 'X-API-Key': env.key },
    body: JSON.stringify(request),
  })
  const reply = await res.json()
  if (reply.error) throw new Error(`${method}: ${reply.error.code} ${reply.error.message}`)
  return reply.result
}

// The Protobuf build takes and gives bytes, the JSON build values.
const encode = (value) => (protobuf ? new TextEncoder().encode(JSON.stringify(value)) : value)
const decode = (data) => (protobuf ? JSON.parse(Buffer.from(data).toString()) : data)

// client makes a client; options are the SDK's.
function client(options) {
  return new Centrifuge(env.url, {
    websocket: WebSocket,
    minReconnectDelay: 20,
    maxReconnectDelay: 200,
    timeout: patience,
    ...options,
  })
}

// within rejects when a promise takes too long.
function within(promise, what) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} within ${patience} ms`)), patience)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

// queue collects the events of one name; next() is the next one, all that came.
function queue(emitter, name) {
  const all = []
  const waiting = []
  let read = 0
  emitter.on(name, (event) => {
    all.push(event)
    waiting.splice(0).forEach((wake) => wake())
  })
  return {
    all,
    async next() {
      while (read >= all.length) {
        await within(new Promise((resolve) => waiting.push(resolve)), `${name} event`)
      }
      return all[read++]
    },
    get unread() { return all.length - read },
  }
}

// connect connects a client and waits for it.
async function connect(c) {
  const connected = queue(c, 'connected')
  c.connect()
  return connected.next()
}

// subscribe subscribes and waits for the reply.
async function subscribe(c, room, options) {
  const sub = c.newSubscription(room, { minResubscribeDelay: 20, maxResubscribeDelay: 200, ...options })
  sub.publications = queue(sub, 'publication')
  sub.subscriptions = queue(sub, 'subscribed')
  sub.endings = queue(sub, 'unsubscribed')
  sub.subscribe()
  sub.first = await within(Promise.race([
    sub.subscriptions.next(),
    sub.endings.next().then((e) => { throw Object.assign(new Error(`${room}: ${e.code} ${e.reason}`), { code: e.code }) }),
  ]), `reply to subscribe to ${room}`)
  return sub
}

// code is the error code of a promise that has to fail.
async function code(promise) {
  try {
    await promise
  } catch (e) {
    return e.code
  }
  return 'no error'
}

const print = (line) => process.stdout.write(JSON.stringify(line) + '\n')
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

module.exports = { env, protobuf, token, now, api, encode, decode, client, within, queue, connect, subscribe, code, print, sleep }
