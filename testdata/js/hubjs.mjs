// Tests of hub.js against a server. HUB_TEST holds {url, admin, adminKey, secret, port};
// the script asks for a restart of the server by a line on standard output and waits
// for one on standard input. With an argument it runs random faults instead.
import assert from "node:assert/strict";
import crypto from "node:crypto";
import net from "node:net";
import readline from "node:readline";
import { createRequire } from "node:module";
import { Hub, HubError } from "../../hub/web/hubjs/hub.js";

const require = createRequire(import.meta.url);
const WebSocket = require("ws");
const env = JSON.parse(process.env.HUB_TEST);
const patience = 10000;

const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
const base64url = (text) => Buffer.from(text).toString("base64url");

function token(claims) {
  const payload = { exp: Math.floor(Date.now() / 1000) + 3600, ...claims };
  const signed = base64url('{"alg":"HS256","typ":"JWT"}') + "." + base64url(JSON.stringify(payload));
  return signed + "." + crypto.createHmac("sha256", env.secret).update(signed).digest("base64url");
}

const soon = (seconds) => Math.floor(Date.now() / 1000) + seconds;

/** until waits for a condition. */
async function until(what, condition) {
  for (const end = Date.now() + patience; !(await condition()); await sleep(5)) {
    if (Date.now() > end) throw new Error(`not within ${patience} ms: ${what}`);
  }
}

/** Cable is a proxy to the server whose line can be cut, slowed down or silenced. */
class Cable {
  static async open() {
    const cable = new Cable();
    cable.pairs = new Set();
    cable.refuses = false;
    cable.server = net.createServer((client) => {
      if (cable.refuses) return client.destroy();
      const upstream = net.connect(Number(env.port), "127.0.0.1");
      const pair = { client, upstream };
      cable.pairs.add(pair);
      const pass = (from, to) => {
        from.on("data", (b) => { if (!pair.deaf) to.write(b); });
        from.on("error", () => {});
        from.on("close", () => { to.destroy(); cable.pairs.delete(pair); });
      };
      pass(client, upstream);
      pass(upstream, client);
    });
    await new Promise((r) => cable.server.listen(0, "127.0.0.1", r));
    cable.url = `ws://127.0.0.1:${cable.server.address().port}/connection/websocket`;
    return cable;
  }
  /** silence leaves the connections open, and nothing passes any more. */
  silence() { for (const pair of this.pairs) pair.deaf = true; }
  cut() { for (const { client, upstream } of this.pairs) { client.resetAndDestroy(); upstream.destroy(); } }
  /** half lets a part of what comes next through, then cuts. */
  half() {
    for (const pair of this.pairs) {
      if (pair.deaf) continue; // what it has swallowed is missing
      pair.deaf = true;
      pair.upstream.once("data", (b) => { pair.client.write(b.subarray(0, b.length >> 1)); setTimeout(() => pair.client.destroy(), 5); });
      setTimeout(() => pair.client.destroy(), 100);
    }
  }
  close() { this.cut(); this.server.close(); }
}

const hubs = new Set();

function connect(options = {}) {
  const user = options.user ?? "ann";
  const hub = new Hub({ url: env.url, WebSocket, minDelay: 20, maxDelay: 300, getToken: () => token({ sub: user }), ...options });
  hub.on("error", () => {});
  hubs.add(hub);
  hub.connect();
  return hub;
}

const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function restart(how) {
  console.log(how);
  await input.next();
}

const tests = {
  async "publish, history, presence"() {
    const hub = connect(), room = hub.room("game:basics"), got = [];
    room.on("publication", (p) => got.push(p));
    room.subscribe();
    const first = await room.publish({ n: 1 });
    const again = await room.publish({ n: 2 }, { id: "two" });
    const same = await room.publish({ n: 2 }, { id: "two" });
    assert.equal(again.offset, first.offset + 1);
    assert.deepEqual([same.offset, same.replayed], [again.offset, true]);
    await until("both are here", () => got.length === 2);
    assert.deepEqual(got.map((p) => [p.data.n, p.offset, p.by.user]), [[1, 1, "ann"], [2, 2, "ann"]]);
    const page = await room.history({ after: 1 });
    assert.deepEqual(page.publications.map((p) => p.data.n), [2]);
    assert.deepEqual((await room.history({ limit: 1, reverse: true })).publications.map((p) => p.data.n), [2]);
    assert.equal((await connect().room("game:basics").history({ after: 1 })).publications.length, 1); // not subscribed
    assert.equal(Object.values(await room.presence())[0].user, "ann");
    assert.deepEqual(await room.presenceStats(), { clients: 1, users: 1 });
    const other = connect({ user: "bob" }), joins = [];
    room.on("join", (w) => joins.push(w.user));
    other.room("game:basics").subscribe();
    await until("bob joins", () => joins.includes("bob"));
  },

  async "errors"() {
    const hub = connect(), room = hub.room("game:errors");
    await room.operate([{ op: "create", key: "k", value: { n: 1 } }]);
    await assert.rejects(room.operate([{ op: "create", key: "k", value: 2 }]), (e) =>
      e instanceof HubError && e.code === "exists" && e.status === 409 && e.current.value.n === 1 && e.step === 0);
    await assert.rejects(room.operate([{ op: "add", key: "k", path: "/n", by: -2, min: 0 }]), (e) => e.code === "out_of_range" && e.status === 422);
    await assert.rejects(room.operate([{ op: "set", key: "k", value: 1, if_version: 7 }]), (e) => e.code === "version_conflict" && e.current.version === 1);
    assert.equal(await room.get("nothing"), undefined);
    assert.equal((await room.get("k")).version, 1);
    await assert.rejects(hub.room("nowhere:x").publish(1), (e) => e.code === 102);
    await assert.rejects(hub.room("closed:x").publish(1), (e) => e.code === 103);
    const closed = hub.room("closed:x");
    let why;
    closed.on("unsubscribed", (e) => { why = e; });
    closed.subscribe();
    await until("it is refused", () => why?.code === 103 && closed.status === "unsubscribed");
    hub.disconnect();
    await assert.rejects(room.publish(1), (e) => e.code === "disconnected");
    await assert.rejects(connect({ getToken: undefined, token: "forged.token.x" }).ready(), (e) => e.code === 3500);
    await assert.rejects(connect({ getToken: () => { throw new HubError("unauthorized", "sign in"); } }).ready(), (e) => e.code === "unauthorized");
  },

  async "subscription tokens"() {
    let fetched = 0;
    const hub = connect(), got = [];
    const room = hub.room("closed:tokens", { getToken: async () => { fetched++; return token({ sub: "ann", channel: "closed:tokens", exp: soon(3) }); } });
    room.on("publication", (p) => got.push(p));
    room.subscribe();
    await until("it is subscribed", () => room.status === "subscribed");
    await until("the token was refreshed twice", () => fetched > 2);
    assert.equal(room.status, "subscribed");
  },

  async "token refresh and a stale token"() {
    let fetched = 0, drops = 0;
    const hub = connect({ getToken: async () => { fetched++; return token({ sub: "ann", exp: soon(2) }); } });
    hub.on("error", () => drops++);
    await hub.ready();
    await until("refreshed twice", () => fetched > 2);
    assert.deepEqual([hub.state, drops], ["connected", 0]);
    // A tab that slept: the token it has ran out meanwhile.
    const cable = await Cable.open();
    let given = 0;
    const tab = connect({ url: cable.url, getToken: async () => token({ sub: "ann", exp: given++ === 0 ? soon(1) : soon(100) }) });
    tab.room("game:stale").subscribe();
    await tab.ready();
    cable.refuses = true;
    cable.cut();
    await until("it is away", () => tab.state === "connecting");
    await sleep(2100);
    cable.refuses = false;
    await until("it came back with a new token", () => tab.state === "connected" && given >= 2);
    assert.ok(given <= 3, `${given} tokens were fetched`);
    cable.close();
  },

  async "a token that is not renewed ends it"() {
    const hub = connect({ getToken: undefined, token: token({ sub: "ann", exp: soon(2) }) });
    await hub.ready();
    let why;
    hub.on("disconnected", (e) => { why = e; });
    await until("it has ended", () => hub.state === "disconnected");
    assert.equal(why.code, 3005);
  },

  async "revocation ends it"() {
    const hub = connect({ user: "mallory" });
    let why;
    hub.on("disconnected", (e) => { why = e; });
    await hub.ready();
    const res = await fetch(env.admin + "/admin/v1/revocations", { method: "POST", headers: { Authorization: "Bearer " + env.adminKey }, body: '{"user":"mallory"}' });
    assert.equal(res.status, 201);
    await until("it has ended", () => hub.state === "disconnected");
    assert.deepEqual([why.code, why.temporary], [3500, false]);
    await assert.rejects(connect({ user: "mallory" }).ready(), (e) => e.code === 3500);
  },

  async "silence and cuts: everything once"() {
    const cable = await Cable.open();
    const hub = connect({ url: cable.url, timeout: 300 }), writer = connect({ user: "bob" });
    const room = hub.room("game:cuts"), got = [];
    let recovered = 0;
    room.on("publication", (p) => got.push(p.data));
    room.on("subscribed", (e) => { recovered += e.recovered; });
    room.subscribe();
    await hub.ready();
    const out = writer.room("game:cuts");
    let n = 0;
    const publish = async (count) => { for (let i = 0; i < count; i++) await out.publish(++n); };
    await publish(5);
    cable.cut();
    await publish(5);
    await until("ten are here", () => got.length === 10);
    cable.silence(); // the client must notice
    await publish(5);
    const mine = room.publish("mine", { id: "mine" }); // goes nowhere at first
    await mine;
    await until("all are here", () => got.length === 16);
    cable.half();
    await publish(5);
    await until("all are here after half a message", () => got.length === 21);
    assert.deepEqual(got.filter((d) => d !== "mine"), Array.from({ length: n }, (_, i) => i + 1));
    assert.equal(got.filter((d) => d === "mine").length, 1);
    assert.ok(recovered >= 3, `recovered ${recovered} times`);
    cable.close();
  },

  async "an epoch that ends"() {
    const hub = connect(), room = hub.room("game:epoch"), events = [];
    room.on("subscribed", (e) => events.push(e));
    const state = room.state();
    await state.ready;
    await room.operate([{ op: "set", key: "k", value: 1 }]);
    await until("it is seen", () => state.get("k") === 1);
    let resets = 0;
    state.on("reset", () => resets++);
    const res = await fetch(`http://127.0.0.1:${env.port}/api/history_remove`, { method: "POST", headers: { "X-API-Key": env.key }, body: '{"channel":"game:epoch"}' });
    assert.equal(res.status, 200);
    await until("all was read anew", () => resets === 1);
    assert.deepEqual([events.at(-1).wasRecovering, events.at(-1).recovered, state.get("k")], [true, false, 1]);
    await room.operate([{ op: "delete", key: "k" }]);
    await until("it is gone", () => state.get("k") === undefined && state.keys().length === 0);
  },

  async "state is shown at once and taken back"() {
    const ann = connect(), bob = connect({ user: "bob" });
    const a = ann.room("game:state").state(), b = bob.room("game:state").state();
    await Promise.all([a.ready, b.ready]);
    const changes = [];
    a.on("change", (c) => changes.push(c));
    const done = a.operate([{ op: "create", key: "board", value: { cells: ["", ""], "a/b~": 1 } }]);
    assert.deepEqual(a.get("board").cells, ["", ""]); // before the answer
    assert.deepEqual([a.version("board"), changes[0].pending], [1, true]);
    await done;
    assert.deepEqual([a.version("board"), changes.length], [1, 1]);
    await until("bob sees it", () => b.get("board"));
    // Both add; what is pending is done anew on top of what comes.
    const adds = [a, b].flatMap((s) => Array.from({ length: 20 }, () => s.operate([{ op: "add", key: "board", path: "/a~1b~0", by: 1 }])));
    assert.equal(a.get("board")["a/b~"], 21);
    await Promise.all(adds);
    await until("both have all", () => a.get("board")["a/b~"] === 41 && b.get("board")["a/b~"] === 41);
    const values = changes.filter((c) => c.key === "board").map((c) => c.value["a/b~"]);
    assert.deepEqual(values, [...values].sort((x, y) => x - y), "what is shown goes back");
    // A guard that fails here shows nothing; one that fails there is taken back.
    await assert.rejects(a.operate([{ op: "set", key: "board", value: 0, if_version: 1 }]), (e) => e.code === "version_conflict");
    const version = a.version("board");
    const won = b.operate([{ op: "merge", key: "board", value: { winner: "bob" }, if_version: version }]);
    const lost = a.operate([{ op: "merge", key: "board", value: { winner: "ann" }, if_version: version }]);
    assert.equal(a.get("board").winner, "ann");
    const results = await Promise.allSettled([won, lost]);
    assert.equal(results.filter((r) => r.status === "fulfilled").length, 1);
    const winner = results[0].status === "fulfilled" ? "bob" : "ann";
    await until("both agree", () => a.get("board").winner === winner && b.get("board").winner === winner);
    await a.operate([{ op: "delete", key: "board" }, { op: "create", key: "x/1", value: null }, { op: "set", key: "x/0", value: [] }]);
    assert.deepEqual(a.keys(), ["x/0", "x/1"]);
    assert.deepEqual(a.entries("x/"), [["x/0", []], ["x/1", null]]);
  },

  async "restarts"() {
    const hub = connect(), room = hub.room("game:restarts"), got = [];
    room.on("publication", (p) => got.push(p.data));
    room.subscribe();
    await hub.ready();
    for (const how of ["restart", "kill"]) {
      await room.publish(how);
      const back = restart(how);
      const waiting = room.publish("while down, " + how);
      await back;
      await waiting;
      await room.publish("after " + how);
    }
    await until("all are here", () => got.length === 6);
    assert.deepEqual(got, ["restart", "while down, restart", "after restart", "kill", "while down, kill", "after kill"]);
  },
};

/** faults runs so many sequences of random faults, and holds every client to the server's state. */
async function faults(sequences) {
  const clients = 20, room = "game:faults";
  const writers = [connect({ user: "w0" }), connect({ user: "w1" })];
  let busy = true, written = 0;
  const writing = writers.map(async (hub, w) => {
    const out = hub.room(room);
    for (let i = 0; busy; i++) {
      const key = "k" + Math.floor(Math.random() * 8);
      const op = [{ op: "set", key, value: { w, i } }, { op: "merge", key, value: { m: i } }, { op: "delete", key }, { op: "add", key: "sum", by: 1 }][i % 4];
      await (i % 5 === 4 ? out.publish({ w, i }) : out.operate([op])).catch((e) => { if (!e.status) throw e; });
      written++;
      await sleep(2);
    }
  });
  await writers[0].room(room).operate([{ op: "set", key: "sum", value: 0 }]);
  let left = sequences, kills = 0;
  const operations = [];
  const watchers = await Promise.all(Array.from({ length: clients }, async (_, c) => {
    const cable = await Cable.open();
    const hub = connect({ url: cable.url, user: "c" + c, timeout: 250, getToken: () => token({ sub: "c" + c, exp: soon(2 + Math.floor(Math.random() * 3)) }) });
    const r = hub.room(room), state = r.state(), offsets = [];
    r.on("publication", (p) => offsets.push(p.offset));
    r.on("subscribed", (e) => { if (e.wasRecovering && !e.recovered) offsets.push(-1); });
    await state.ready;
    return { cable, hub, room: r, state, offsets };
  }));
  await Promise.all(watchers.map(async ({ cable, state }) => {
    for (let mine = left--; mine > 0; mine = left--) {
      for (let i = 1 + Math.floor(Math.random() * 3); i > 0; i--) {
        switch (Math.floor(Math.random() * 5)) {
          case 0: cable.cut(); break;
          case 1: cable.half(); break;
          case 2: cable.silence(); break;
          case 3: cable.refuses = true; cable.cut(); await sleep(Math.random() * 60); cable.refuses = false; break;
          case 4: operations.push(state.operate([{ op: "add", key: "sum", by: 1 }])); break;
        }
        await sleep(Math.random() * 40);
      }
      if (mine > 1 && mine % Math.ceil(sequences / 5) === 1) { kills++; await restart(kills % 2 ? "kill" : "restart"); }
    }
  }));
  busy = false;
  await Promise.all(writing);
  const added = (await Promise.all(operations)).length; // none is refused, whatever happened on its way
  const reader = connect({ user: "reader" });
  const truth = await reader.room(room).snapshot();
  for (const { room: r, state, offsets, hub } of watchers) {
    await until("a client has caught up", () => hub.state === "connected" && (r.position?.offset ?? 0) >= truth.offset);
    const last = await reader.room(room).snapshot();
    await until("its state is the server's", () => JSON.stringify(state.entries()) === JSON.stringify(last.resources.map((x) => [x.key, x.value])));
    for (let i = 1; i < offsets.length; i++) {
      assert.equal(offsets[i], offsets[i - 1] + 1, "an event was missed or came twice");
    }
    assert.equal(offsets.at(-1), r.position.offset);
  }
  console.error(`${sequences} sequences, ${written} writes, ${added} of them under faults, ${kills} restarts, up to offset ${truth.offset}`);
}

try {
  const n = Number(process.argv[2] ?? 0);
  if (n > 0) await faults(n);
  else {
    // All at once but those that restart the server.
    const { restarts, ...others } = tests;
    const names = Object.keys(others);
    const within = (name, promise) => Promise.race([promise, sleep(3 * patience).then(() => { throw new Error("does not end"); })]).finally(() => console.log("done: " + name));
    const outcomes = await Promise.allSettled(names.map((name) => within(name, others[name]())));
    const failed = outcomes.flatMap((o, i) => (o.status === "rejected" ? [`${names[i]}: ${o.reason.stack}`] : []));
    await within("restarts", restarts()).catch((e) => failed.push("restarts: " + e.stack));
    if (failed.length > 0) throw new Error(failed.join("\n"));
  }
  process.exit(0);
} catch (e) {
  console.error(e.stack ?? e);
  process.exit(1);
}
