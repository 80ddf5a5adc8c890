// Tests of hub.js with a clock and a network of their own: what takes minutes, and what
// depends on which message comes first.
import assert from "node:assert/strict";
import { mock } from "node:test";
import { Hub, HubError } from "../../hub/web/hubjs/hub.js";

mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1e12 });
mock.method(Math, "random", () => 0.5);
const settle = async () => { for (let i = 0; i < 5; i++) await new Promise(setImmediate); };
const wake = new EventTarget(); // the page's events
globalThis.addEventListener = wake.addEventListener.bind(wake);
globalThis.removeEventListener = wake.removeEventListener.bind(wake);

/** pass lets time go by, in small steps. */
async function pass(seconds) {
  for (let left = seconds * 20; left > 0; left--) {
    mock.timers.tick(50);
    await settle();
  }
}

/** Net is a network and a server: commands come to answer, in the order of their lines. */
class Net {
  up = true;
  /** When a connection was tried. */
  tries = [];
  /** All commands that the server got. */
  commands = [];
  /** Replaces the answers to commands by name. */
  answers = {};
  held = undefined;

  constructor() {
    const net = this;
    this.WebSocket = class {
      constructor() {
        net.tries.push(Date.now());
        if (net.up) queueMicrotask(() => { net.socket = this; this.onopen?.(); });
        else setTimeout(() => this.onclose?.({ code: 1006, reason: "" }), 1);
      }
      send(text) {
        if (!net.up) return;
        assert.equal(net.socket, this, "something is sent to a connection that was given up");
        for (const line of text.split("\n")) if (line !== "{}") net.got(JSON.parse(line));
      }
      close() {}
    };
  }

  got(command) {
    const name = Object.keys(command).find((k) => k !== "id");
    const method = name === "rpc" ? command.rpc.method : name;
    this.commands.push({ ...command, method });
    let reply = this.answers[method]?.(command[name].data ?? command[name]) ?? this.usual(method);
    if (reply === "none") return;
    if (name === "rpc" && !reply.error) reply = { rpc: { data: reply } };
    const line = { id: command.id, ...reply };
    if (this.held) this.held.push(line);
    else this.tell(line);
  }

  usual(method) {
    switch (method) {
      case "connect": return { connect: { client: "c", ping: 25, pong: true } };
      case "subscribe": return { subscribe: { recoverable: true, positioned: true, epoch: "e", offset: 0 } };
      case "list": return { resources: [], offset: 0, epoch: "e" };
      default: return { [method]: {} };
    }
  }

  /** hold keeps replies until the function that it returns is called. */
  hold() {
    const held = (this.held = []);
    return async () => {
      this.held = undefined;
      for (const line of held) this.tell(line);
      await settle();
    };
  }

  tell(line) {
    const socket = this.socket;
    queueMicrotask(() => { if (this.up) socket.onmessage?.({ data: JSON.stringify(line) }); });
  }
  /** reply answers the last command of a method, late. */
  reply(method, data) { this.tell({ id: this.sent(method).at(-1).id, rpc: { data } }); }
  push(channel, push) { this.tell({ push: { channel, ...push } }); }
  event(channel, offset, data) { this.push(channel, { pub: { offset, data } }); }
  /** cut ends the connection; the client comes back. */
  async cut() {
    this.socket.onclose?.({ code: 1006, reason: "" });
    await pass(1);
  }
  sent(method) { return this.commands.filter((c) => c.method === method); }
}

async function connect(net, options) {
  const hub = new Hub({ url: "ws://hub", token: "t", WebSocket: net.WebSocket, ...options });
  hub.connect();
  await settle();
  return hub;
}

const subscribed = (more) => ({ subscribe: { recoverable: true, positioned: true, epoch: "e", offset: 0, ...more } });

const tests = {
  async "five minutes without network"() {
    const net = new Net();
    let tokens = 0;
    const hub = await connect(net, { token: "", getToken: () => "token " + ++tokens });
    const room = hub.room("r"), got = [];
    room.on("publication", (p) => got.push(p.offset));
    room.subscribe();
    await settle();
    net.event("r", 1, "a");
    for (let i = 0; i < 4; i++) { // pings come, and are answered by keeping quiet
      await pass(25);
      net.tell({});
      await settle();
    }
    assert.deepEqual([hub.state, net.tries.length], ["connected", 1]);
    net.up = false; // nothing tells the client
    const cut = Date.now();
    await pass(29.5);
    assert.equal(hub.state, "connected");
    await pass(1);
    assert.equal(hub.state, "connecting");
    let done = false;
    const publishing = room.publish("b", { id: "b" }).then(() => { done = true; });
    await pass(300 - 30.5);
    const gaps = net.tries.slice(1).map((t, i) => t - (i === 0 ? cut + 30000 : net.tries[i]));
    gaps.forEach((gap, i) => {
      const half = Math.min(20000, 200 * 2 ** i) / 2; // Math.random is ½
      assert.ok(gap >= half && gap <= half + 100, `wait ${i} took ${gap} ms, not ${half}`); // 100: two steps of time
    });
    assert.ok(gaps.length > 20, `${gaps.length} tries`);
    // The token has run out meanwhile: one more is fetched, once.
    net.answers.connect = ({ token }) => (token === "token 1" ? { error: { code: 109, message: "token expired" } } : undefined);
    net.answers.subscribe = (s) => {
      assert.deepEqual([s.recover, s.offset, s.epoch], [true, 1, "e"]);
      return subscribed({ was_recovering: true, recovered: true, offset: 1, publications: [{ offset: 1, data: "a" }, { offset: 2, data: 1 }, { offset: 3, data: 2 }] });
    };
    net.up = true;
    const tries = net.tries.length;
    wake.dispatchEvent(new Event("online"));
    await settle();
    assert.equal(net.tries.length, tries + 1, "news of the network do not hurry it");
    await pass(11);
    assert.deepEqual([hub.state, tokens, done], ["connected", 2, true]);
    assert.deepEqual(got, [1, 2, 3]);
    await publishing;
    net.answers = {};
    net.socket.onclose({ code: 1006, reason: "" });
    await pass(0.2); // the first wait is short again
    assert.deepEqual([hub.state, net.tries.length, net.sent("publish").length], ["connected", tries + 3, 1]);
    hub.disconnect();
    await pass(60);
    assert.equal(net.tries.length, tries + 3);
  },

  async "an operation without an answer is sent again under its id"() {
    const net = new Net();
    const hub = await connect(net);
    net.answers.operate = () => "none";
    const result = hub.room("r").operate([{ op: "add", key: "k", by: 1 }]);
    await pass(6); // the time for an answer, then a new connection
    net.answers.operate = ({ id }) => ({ id, offset: 1, epoch: "e", resources: [], replayed: true });
    await net.cut();
    assert.equal((await result).replayed, true);
    const ids = net.sent("operate").map((c) => c.rpc.data.id);
    assert.ok(ids.length === 3 && new Set(ids).size === 1, `sent with ids ${ids}`);
    hub.disconnect();
  },

  async "refused for load: again, later"() {
    const net = new Net();
    const hub = await connect(net);
    let refusals = 3;
    net.answers.publish = () => (refusals-- > 0 ? { error: { code: 111, message: "too many", temporary: true } } : { offset: 1, epoch: "e" });
    const result = hub.room("r").publish(1);
    await pass(2);
    assert.equal((await result).offset, 1);
    assert.equal(net.sent("publish").length, 4);
    assert.equal(net.tries.length, 1);
    hub.disconnect();
  },

  async "a room that is joined and left before the server says hello"() {
    const net = new Net();
    let release = net.hold();
    const hub = await connect(net);
    const early = hub.room("early"), brief = hub.room("brief"), secret = hub.room("secret", { getToken: async () => "s" });
    for (const room of [early, brief, secret]) room.subscribe();
    await settle();
    brief.unsubscribe();
    await release();
    assert.deepEqual([hub.state, early.status, brief.status, secret.status], ["connected", "subscribed", "unsubscribed", "subscribed"]);
    assert.deepEqual(net.commands.map((c) => c[c.method].channel).sort(), ["brief", "brief", "early", "secret", undefined]);
    // The same in the message that connects again.
    release = net.hold();
    await net.cut();
    early.unsubscribe();
    await release();
    assert.deepEqual([early.status, secret.status], ["unsubscribed", "subscribed"]);
    assert.deepEqual(net.sent("unsubscribe").map((c) => c.unsubscribe.channel), ["brief", "early"]);
    hub.disconnect();
  },

  async "rooms that the server gives and takes"() {
    const net = new Net();
    net.answers.connect = () => ({ connect: { client: "c", ping: 25, subs: { given: subscribed({ offset: 4 }).subscribe, kept: subscribed().subscribe } } });
    const hub = await connect(net);
    const given = hub.room("given"), kept = hub.room("kept"), left = [];
    given.on("unsubscribed", (e) => left.push(e.code));
    kept.state(); // wants a subscription, and has it
    await settle();
    assert.deepEqual([given.status, kept.status, given.position.offset, net.sent("subscribe").length], ["subscribed", "subscribed", 4, 0]);
    net.answers.connect = ({ subs }) => {
      assert.equal(subs.given.offset, 4);
      return undefined; // both grants are gone
    };
    await net.cut();
    assert.deepEqual([hub.state, given.status, left.length, kept.status], ["connected", "unsubscribed", 1, "subscribed"]);
    assert.deepEqual(net.sent("subscribe").map((c) => c.subscribe.channel), ["kept"]);
    net.push("kept", { unsubscribe: { code: 2000, reason: "no grant" } });
    await settle();
    assert.equal(kept.status, "unsubscribed");
    hub.disconnect();
  },

  async "a state follows the server back to a copy that knows less"() {
    const net = new Net();
    const hub = await connect(net), state = hub.room("r").state(), shown = [];
    net.answers.list = () => ({ resources: [{ key: "a", version: 7, value: 7 }, { key: "b", version: 7, value: 7 }, { key: "c", version: 7, value: 7 }] });
    await settle();
    await state.ready;
    state.on("change", (c) => shown.push([c.key, c.value]));
    net.answers.subscribe = () => subscribed({ was_recovering: true, recovered: false, epoch: "f", offset: 2 });
    net.answers.list = () => "none";
    await net.cut();
    const events = [[3, { key: "a", version: 4, value: 4 }], [4, { key: "d", version: 1, value: 1 }]];
    for (const [offset, change] of events) net.event("r", offset, { operation: "o" + offset, changes: [change] });
    net.reply("list", { resources: [{ key: "a", version: 3, value: 3 }, { key: "b", version: 7, value: 7 }], offset: 2, epoch: "f" });
    await settle();
    assert.deepEqual(state.entries(), [["a", 4], ["b", 7], ["d", 1]]);
    assert.deepEqual(state.version("a"), 4);
    assert.ok(shown.every(([key]) => key !== "b"), "b did not change");
    hub.disconnect();
  },

  async "an answer that comes late brings nothing back"() {
    const net = new Net();
    const hub = await connect(net), state = hub.room("r").state();
    await state.ready;
    net.answers.operate = () => "none";
    const done = state.operate([{ op: "create", key: "k", value: 1 }]);
    assert.equal(state.get("k"), 1);
    // Away for long: others have deleted it, and history does not reach back.
    net.answers.subscribe = () => subscribed({ was_recovering: true, recovered: false, offset: 9 });
    await net.cut();
    net.reply("operate", { id: "o", offset: 1, epoch: "e", resources: [{ key: "k", version: 1, value: 1 }], replayed: true });
    await done;
    await settle();
    assert.deepEqual(state.keys(), []);
    hub.disconnect();
  },

  async "an event that a second reading has overtaken"() {
    const net = new Net();
    const hub = await connect(net), state = hub.room("r").state();
    await state.ready;
    const gap = () => subscribed({ was_recovering: true, recovered: false, offset: 5 });
    net.answers.subscribe = gap;
    net.answers.list = () => "none";
    await net.cut(); // reads anew, and hears of k
    net.event("r", 6, { operation: "o", changes: [{ key: "k", version: 1, value: 1 }] });
    await settle();
    assert.equal(state.get("k"), 1);
    net.answers.list = undefined; // a second gap: k is gone
    await net.cut();
    await settle();
    assert.deepEqual(state.keys(), []);
    // Two readings on one connection: what comes behind the first's page is not lost.
    net.answers.list = () => "none";
    const first = net.sent("list").length;
    for (let i = 0; i < 2; i++) {
      net.push("r", { unsubscribe: { code: 2500, reason: "insufficient state" } });
      await settle();
    }
    const readings = net.sent("list").slice(first);
    assert.equal(readings.length, 2);
    net.tell({ id: readings[0].id, rpc: { data: { resources: [] } } });
    await settle();
    net.event("r", 6, { operation: "o", changes: [{ key: "m", version: 1, value: 1 }] });
    net.tell({ id: readings[1].id, rpc: { data: { resources: [] } } });
    await settle();
    assert.deepEqual(state.keys(), ["m"]);
    hub.disconnect();
  },

  async "who waits is told"() {
    const net = new Net();
    const hub = await connect(net);
    net.answers.subscribe = () => ({ error: { code: 103, message: "permission denied" } });
    const refused = hub.room("refused").state().ready;
    await assert.rejects(refused, (e) => e instanceof HubError && e.code === 103);
    net.answers.subscribe = () => "none";
    const waits = hub.room("waits").state().ready;
    hub.disconnect();
    await assert.rejects(waits, (e) => e.code === "disconnected");
    const bad = new Hub({ url: "nonsense", WebSocket: class { constructor(url) { throw new SyntaxError(`bad address ${url}`); } } });
    bad.connect();
    await assert.rejects(bad.ready(), (e) => e instanceof HubError && /bad address/.test(e.message));
    assert.equal(bad.state, "disconnected");
    const state = (await connect(net)).room("r").state();
    await assert.rejects(state.operate([{ op: "add", key: 1, path: 5 }, undefined]), TypeError);
  },

  async "listeners that act"() {
    const net = new Net();
    const hub = await connect(net);
    const hello = hub.on("connected", () => hub.room("r").publish("hello"));
    await net.cut();
    assert.equal(net.sent("publish").length, 1, "made on connecting, sent once");
    hello();
    // One connects again from the event that it has ended, one ends it at once.
    const again = hub.on("state", (s) => { if (s === "disconnected") hub.connect(); });
    net.socket.onclose({ code: 3500, reason: "invalid token" });
    await settle();
    assert.equal(hub.state, "connected");
    again();
    let tries = net.tries.length;
    const once = hub.on("state", () => {
      once();
      hub.disconnect();
      hub.connect();
    });
    net.socket.onclose({ code: 3001, reason: "shutdown" });
    await pass(20);
    assert.deepEqual([hub.state, net.tries.length], ["connected", tries + 1]);
    const never = hub.on("state", () => hub.disconnect()); // when it connects anew
    hub.disconnect();
    hub.connect();
    await pass(20);
    assert.deepEqual([hub.state, net.tries.length], ["disconnected", tries + 1]);
    never();
    tries++;
    hub.on("connected", () => hub.disconnect());
    hub.connect();
    await pass(20);
    assert.deepEqual([hub.state, net.tries.length], ["disconnected", tries + 1]);
  },
};

let failed = 0;
const only = process.argv[2];
for (const [name, test] of Object.entries(tests)) {
  if (only && !name.includes(only)) continue;
  const limit = setInterval(() => { // not of the clock above
    console.error(name + ": does not end");
    process.exit(1);
  }, 20000);
  try {
    await test();
    console.log("done: " + name);
  } catch (e) {
    failed++;
    console.error(`${name}: ${e.stack ?? e}`);
  }
  clearInterval(limit);
}
process.exit(failed ? 1 : 0);
