// Runs the official SDK through everything that it offers against one server and
// prints a line of JSON for each scenario: {"scenario", "error"?}, at the end
// {"done": number of scenarios}. All run at once; each has its own rooms and users.
const assert = require('node:assert/strict')
const { env, protobuf, token, now, api, encode, decode, client, within, queue, connect, subscribe, code, print, sleep } = require('./lib.cjs')

const clients = []
async function connected(claims, options) {
  const c = client({ token: token(claims), ...options })
  clients.push(c)
  c.id = (await connect(c)).client
  return c
}

async function fill(room, first, n) {
  const commands = Array.from({ length: n }, (_, i) => ({ publish: { channel: room, data: { n: first + i } } }))
  const res = await fetch(`${env.api}/batch`, {
    method: 'POST', headers: { 'X-API-Key': env.key }, body: JSON.stringify({ commands }),
  })
  for (const reply of (await res.json()).replies) assert.ok(reply.publish, JSON.stringify(reply))
}

const room = (name) => `room:js-${name}-${env.protocol}`
const scenarios = {}

scenarios['publish'] = async () => {
  const c = await connected({ sub: 'u', info: { name: 'U' } })
  const sub = await subscribe(c, room('publish'), { recoverable: true })
  assert.equal(sub.first.recoverable, true)
  assert.equal(sub.first.positioned, true)
  assert.ok(sub.first.streamPosition.epoch)
  const samples = [
    { text: 'hello' }, 1, -0.5, null, true, '', [], '"\\\u0000\u2028\ud83d\ude00', '<script>&amp;é',
    { a: { b: [1, 2, { c: null }] } }, Number.MAX_SAFE_INTEGER, 'x'.repeat(60 << 10),
  ]
  for (const [i, want] of samples.entries()) {
    await sub.publish(encode(want))
    const got = await sub.publications.next()
    assert.deepEqual(decode(got.data), want)
    assert.equal(got.offset, i + 1)
    assert.equal(got.info.user, 'u')
    assert.deepEqual(decode(got.info.connInfo), { name: 'U' })
  }
  if (protobuf) { // bytes arrive as they were sent
    const text = '{"spaced" : [1e400, -0, 12345678901234567890.10], "\\u0041":1,"A":2}'
    await c.publish(room('publish'), new TextEncoder().encode(text))
    assert.equal(Buffer.from((await sub.publications.next()).data).toString(), text)
  }
  await api('publish', { channel: room('publish'), data: { by: 'server' }, tags: { k: 'v' } })
  const got = await sub.publications.next()
  assert.deepEqual(decode(got.data), { by: 'server' })
  assert.deepEqual({ ...got.tags }, { k: 'v' })
  assert.equal(got.info, undefined)
}

scenarios['ephemeral'] = async () => {
  const c = await connected({ sub: 'u' })
  const name = `live:js-${env.protocol}`
  const sub = await subscribe(c, name, { recoverable: true })
  assert.equal(sub.first.recoverable, false)
  for (let n = 0; n < 20; n++) {
    await sub.publish(encode({ n }))
    const got = await sub.publications.next()
    assert.deepEqual(decode(got.data), { n })
    assert.ok(!got.offset)
  }
  assert.equal(await code(sub.history({ limit: 1 })), 108)
}

scenarios['presence'] = async () => {
  const users = {}
  let sub
  for (const [i, user] of ['a', 'b', 'b'].entries()) {
    const c = await connected({ sub: user, info: { i: 1 } })
    users[c.id] = user
    sub = await subscribe(c, room('presence'))
    const stats = await sub.presenceStats()
    assert.deepEqual([stats.numClients, stats.numUsers], [i + 1, Math.min(i + 1, 2)])
  }
  const { clients } = await sub.presence()
  assert.deepEqual(Object.fromEntries(Object.entries(clients).map(([id, info]) => [id, info.user])), users)
  for (const info of Object.values(clients)) assert.deepEqual(decode(info.connInfo), { i: 1 })
}

scenarios['history'] = async () => {
  const c = await connected({ sub: 'u' })
  const name = room('history')
  await fill(name, 1, 25)
  const top = await c.history(name)
  assert.equal(top.offset, 25)
  assert.equal(top.publications.length, 0)
  const at = (offset) => ({ offset, epoch: top.epoch })
  const offsets = async (options) => (await c.history(name, options)).publications.map((p) => {
    assert.deepEqual(decode(p.data), { n: p.offset })
    return p.offset
  })
  const range = (a, b) => Array.from({ length: Math.abs(b - a) + 1 }, (_, i) => (a < b ? a + i : a - i))
  assert.deepEqual(await offsets({ limit: 10 }), range(1, 10))
  assert.deepEqual(await offsets({ limit: -1 }), range(1, 25))
  assert.deepEqual(await offsets({ limit: 5, since: at(7) }), range(8, 12))
  assert.deepEqual(await offsets({ limit: 5, since: at(25) }), [])
  assert.deepEqual(await offsets({ limit: 3, reverse: true }), range(25, 23))
  assert.deepEqual(await offsets({ limit: 3, reverse: true, since: at(10) }), range(9, 7))
  assert.equal(await code(c.history(name, { limit: 1, since: { offset: 1, epoch: 'other' } })), 112)
}

scenarios['join and leave'] = async () => {
  const watcher = await connected({ sub: 'watcher' })
  const sub = watcher.newSubscription(room('joins'), { joinLeave: true })
  const joins = queue(sub, 'join')
  const leaves = queue(sub, 'leave')
  sub.subscribe()
  await sub.ready()
  const guest = await connected({ sub: 'guest' })
  const joined = async () => {
    for (;;) {
      const { info } = await joins.next() // the watcher may be told of itself
      if (info.user === 'guest') return info.client
    }
  }
  const visit = await subscribe(guest, room('joins'))
  assert.equal(await joined(), guest.id)
  visit.unsubscribe()
  assert.equal((await leaves.next()).info.client, guest.id)
  visit.subscribe()
  assert.equal(await joined(), guest.id)
  guest.disconnect()
  assert.equal((await leaves.next()).info.client, guest.id)
}

scenarios['rpc publish'] = async () => {
  const c = await connected({ sub: 'u' })
  const sub = await subscribe(c, room('rpc'))
  const call = async (id, data) => decode((await c.rpc('publish', encode({ room: room('rpc'), id, data }))).data)
  const first = await call('id-1', { n: 1 })
  assert.equal(first.offset, 1)
  assert.ok(first.epoch)
  assert.deepEqual(await call('id-1', { n: 1 }), { ...first, replayed: true })
  const other = await call('id-1', { n: 2 })
  assert.deepEqual([other.status, other.code], [409, 'id_reused'])
  assert.equal((await call('id-2', { n: 3 })).offset, 2)
  assert.deepEqual(decode((await sub.publications.next()).data), { n: 1 })
  assert.deepEqual(decode((await sub.publications.next()).data), { n: 3 })
}

scenarios['refresh'] = async () => {
  let connections = 0
  let subscriptions = 0
  const start = Date.now()
  const c = client({ getToken: async () => token(connections++ ? { sub: 'u' } : { sub: 'u', exp: now() + 3 }) })
  clients.push(c)
  const connecting = queue(c, 'connecting')
  await connect(c)
  const name = `closed:js-refresh-${env.protocol}`
  const sub = await subscribe(c, name, {
    getToken: async ({ channel }) => token(subscriptions++ ? { sub: 'u', channel } : { sub: 'u', channel, exp: now() + 3 }),
  })
  while (Date.now() - start < 4000 || connections < 2 || subscriptions < 2) {
    assert.ok(Date.now() - start < 20000, `tokens asked for: ${connections}, ${subscriptions}`)
    await sleep(50)
  }
  await api('publish', { channel: name, data: 7 })
  assert.equal(decode((await sub.publications.next()).data), 7)
  assert.equal(connecting.all.length, 1)
  assert.equal(sub.subscriptions.all.length, 1)
}

scenarios['expired token'] = async () => {
  const user = `js-expired-${env.protocol}`
  let minted = 0
  const c = client({
    token: token({ sub: user, exp: now() - 60 }),
    getToken: async () => { minted++; return token({ sub: user }) },
  })
  clients.push(c)
  const errors = queue(c, 'error')
  const connecting = queue(c, 'connecting')
  const connections = queue(c, 'connected')
  await connect(c)
  assert.equal((await errors.next()).error.code, 109)
  assert.equal(minted, 1)
  await connecting.next()
  await connections.next()
  await api('refresh', { user, expired: true })
  assert.equal((await connecting.next()).code, 3005)
  await connections.next()
}

scenarios['subscription token'] = async () => {
  const c = await connected({ sub: 'u' })
  await subscribe(c, 'closed:js-mine', { token: token({ sub: 'u', channel: 'closed:js-mine' }) })
  const bad = {
    'closed:js-room': token({ sub: 'u', channel: 'closed:js-b' }),
    'closed:js-user': token({ sub: 'v', channel: 'closed:js-user' }),
    'closed:js-connection': token({ sub: 'u' }),
    'closed:js-forged': token({ sub: 'u', channel: 'closed:js-forged' }) + 'x',
  }
  for (const [name, t] of Object.entries(bad)) assert.equal(await code(subscribe(c, name, { token: t })), 103, name)
  let minted = 0
  await subscribe(c, 'closed:js-expired', {
    token: token({ sub: 'u', channel: 'closed:js-expired', exp: now() - 60 }),
    getToken: async ({ channel }) => { minted++; return token({ sub: 'u', channel }) },
  })
  assert.equal(minted, 1)
}

scenarios['server-side subscriptions'] = async () => {
  const user = `js-side-${env.protocol}`
  const name = `closed:js-side-${env.protocol}`
  const c = client({ token: token({ sub: user, channels: [name] }) })
  clients.push(c)
  const subscribed = queue(c, 'subscribed')
  const unsubscribed = queue(c, 'unsubscribed')
  const publications = queue(c, 'publication')
  await connect(c)
  assert.equal((await subscribed.next()).recoverable, true)
  const expect = async (first, last) => {
    for (let n = first; n <= last; n++) {
      const p = await publications.next()
      assert.deepEqual([p.channel, p.offset, decode(p.data)], [name, n, { n }])
    }
  }
  await fill(name, 1, 3)
  await expect(1, 3)
  c.disconnect()
  await fill(name, 4, 300)
  c.connect()
  const again = await subscribed.next()
  assert.deepEqual([again.wasRecovering, again.recovered], [true, true])
  await expect(4, 303)
  const added = `closed:js-added-${env.protocol}`
  await api('subscribe', { user, channel: added })
  assert.equal((await subscribed.next()).channel, added)
  await api('publish', { channel: added, data: 1 })
  assert.equal((await publications.next()).channel, added)
  await api('unsubscribe', { user, channel: added })
  assert.equal((await unsubscribed.next()).channel, added)
}

scenarios['error codes'] = async () => {
  const c = await connected({ sub: 'u', caps: [{ channels: ['closed:js-codes'], allow: ['sub'] }] })
  for (const [name, want] of Object.entries({
    'nosuch:a': 102, 'closed:other': 103, 'room:a#b': 107, '$room:a': 107, ['r'.repeat(256)]: 107,
  })) {
    assert.equal(await code(subscribe(c, name)), want, `subscribe to ${name}`)
    assert.equal(await code(c.publish(name, encode(1))), want, `publish to ${name}`)
  }
  const sub = await subscribe(c, 'closed:js-codes')
  assert.equal(await code(sub.publish(encode(1))), 103)
  assert.equal(await code(sub.presence()), 103)
  assert.equal(await code(c.presence('short:a')), 108)
  assert.equal(await code(c.rpc('nosuch', encode({}))), 104)
  if (protobuf) assert.equal(await code(c.publish('room:a', new TextEncoder().encode('{'))), 107)
  for (const [t, want] of [
    [token({ sub: 'u' }) + 'x', 3500], ['abc', 3500], [token({ sub: 'u', channel: 'room:a' }), 3500],
    [token({ sub: 'u', db: ['game'] }), 3500], ['', 101],
  ]) {
    const bad = client({ token: t })
    const disconnected = queue(bad, 'disconnected')
    bad.connect()
    assert.equal((await disconnected.next()).code, want, `token ${t.slice(-8)}`)
  }
}

scenarios['unsubscribed by the server'] = async () => {
  const user = `js-unsub-${env.protocol}`
  const c = await connected({ sub: user })
  const sub = await subscribe(c, room('unsub'), { recoverable: true })
  await fill(room('unsub'), 1, 2)
  await sub.publications.next()
  await sub.publications.next()
  await api('history_remove', { channel: room('unsub') })
  const again = await sub.subscriptions.next()
  assert.deepEqual([again.wasRecovering, again.recovered], [true, false])
  await api('unsubscribe', { user, channel: room('unsub') })
  const end = sub.endings.all[0] ?? await within(new Promise((resolve) => sub.on('unsubscribed', resolve)), 'unsubscribe')
  assert.equal(end.code, 2000)
  assert.equal(c.state, 'connected')
}

scenarios['disconnected by the server'] = async () => {
  const user = `js-disc-${env.protocol}`
  const c = client({ token: token({ sub: user }) })
  clients.push(c)
  const connecting = queue(c, 'connecting')
  const connections = queue(c, 'connected')
  const disconnected = queue(c, 'disconnected')
  await connect(c)
  await connecting.next()
  await connections.next()
  await api('disconnect', { user, disconnect: { code: 3001, reason: 'shutdown' } })
  const e = await connecting.next()
  assert.deepEqual([e.code, e.reason], [3001, 'shutdown'])
  await connections.next()
  await api('disconnect', { user })
  assert.equal((await disconnected.next()).code, 3503)
  assert.equal(connecting.unread, 0)
}

async function main() {
  const names = Object.keys(scenarios)
  await Promise.all(names.map(async (scenario) => {
    try {
      await scenarios[scenario]()
      print({ scenario })
    } catch (e) {
      print({ scenario, error: e.stack })
    }
  }))
  clients.forEach((c) => c.disconnect())
  print({ done: names.length })
}

main().then(() => process.stdout.write('', () => process.exit(0)))
