// hub.js: the client of hub for browsers and Node, one module without dependencies.
// Protocol: the Centrifuge client protocol in JSON, and hub's rpc additions.
// Licence: Apache-2.0.

/**
 * A position in a room: the offset of the last publication that was processed.
 * @typedef {{offset: number, epoch: string}} Position
 *
 * Who published, joined or left.
 * @typedef {{user: string, client: string, info?: any, roomInfo?: any}} Who
 *
 * An event of a room. offset is absent in rooms without history.
 * @typedef {{data: any, offset?: number, time?: number, tags?: Record<string, string>, by?: Who}} Publication
 *
 * One step of an operation.
 * @typedef {{op: "add"|"create"|"set"|"merge"|"delete", key: string, value?: any, path?: string,
 *   by?: number, min?: number, max?: number, if_version?: number}} Step
 *
 * A resource: value is absent when it was deleted, or when it may not be read.
 * @typedef {{key: string, version: number, value?: any, deleted?: boolean}} Resource
 *
 * The result of an operation.
 * @typedef {{id: string, offset: number, epoch: string, resources: Resource[], replayed: boolean}} Result
 *
 * A page of resources; next is the after of the next page, absent at the end.
 * @typedef {{resources: Resource[], next?: string, offset: number, epoch: string}} Page
 *
 * A change of a live state. value is undefined when the resource is gone; pending says
 * that an operation of this client causes it that the server has not confirmed yet.
 * @typedef {{key: string, value: any, previous: any, version: number, pending: boolean,
 *   operation?: string, user?: string}} Change
 *
 * @typedef {object} HubOptions
 * @property {string} [url] ws:// or wss:// address; default: /connection/websocket of the page's host
 * @property {string} [token] a connection token
 * @property {() => Promise<string>|string} [getToken] fetches a token: at first without token, and whenever
 *   one has run out. When it throws a HubError with code "unauthorized", the hub stays disconnected.
 * @property {string} [name] tells the server what kind of client this is
 * @property {number} [timeout] milliseconds for an answer, 5000
 * @property {number} [minDelay] milliseconds: bound of the first wait before a reconnect, 200
 * @property {number} [maxDelay] milliseconds: bound of all later ones, 20000
 * @property {any} [WebSocket] the class to use where there is no global one
 *
 * @typedef {object} RoomOptions
 * @property {() => Promise<string>|string} [getToken] fetches a subscription token
 * @property {Position} [since] where to continue
 */

/**
 * What went wrong. code is the number of a protocol error or close frame, or the code of a
 * problem document ("version_conflict", "exists", …; see the table in the README), or
 * "disconnected" or "unauthorized" from here.
 */
export class HubError extends Error {
  /** @param {number|string} code @param {string} message @param {Partial<HubError>} [more] */
  constructor(code, message, more) {
    super(message);
    this.name = "HubError";
    this.code = code;
    /** It is worth another try. */
    this.temporary = false;
    /** @type {number|undefined} HTTP status of a problem. */
    this.status = undefined;
    /** @type {number|undefined} Index of the step that was refused. */
    this.step = undefined;
    /** @type {Resource|undefined} The resource that the step met, as it stands. */
    this.current = undefined;
    Object.assign(this, more);
  }
}

/** @typedef {(event: any) => void} Listener */

/** Emitter calls functions by name. A function that throws stops nobody else. */
class Emitter {
  /** @type {Map<string, Set<Listener>>} */
  #listeners = new Map();

  /**
   * @param {string} name
   * @param {Listener} listener
   * @returns {() => void} removes it again
   */
  on(name, listener) {
    const all = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, all.add(listener));
    return () => all.delete(listener);
  }

  /** @param {string} name @param {any} [event] */
  emit(name, event) {
    for (const listener of [...(this.#listeners.get(name) ?? [])]) {
      try {
        listener(event);
      } catch (e) {
        queueMicrotask(() => { throw e; });
      }
    }
  }
}

/** The longest time that timers take, in milliseconds. */
const longest = 2 ** 31 - 1;

/** @param {any} e as the protocol tells it */
const protocolError = (e) => new HubError(e.code, e.message, { temporary: Boolean(e.temporary) });

/** @param {any} e */
const asError = (e) => (e instanceof HubError ? e : new HubError("error", String(e?.message ?? e), { temporary: true }));

const newID = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
};

/** @param {any} info @returns {Who|undefined} */
const who = (info) => info && { user: info.user ?? "", client: info.client ?? "", info: info.conn_info, roomInfo: info.chan_info };

/** @param {any} p @returns {Publication} */
const publication = (p) => ({ data: p.data, offset: p.offset, time: p.time, tags: p.tags, by: who(p.info) });

/**
 * A request that is sent again after each reconnect until it is answered. That is safe:
 * it reads, or it has an id that the server remembers.
 * @typedef {{body: object, resolve: (reply: any) => void, reject: (e: HubError) => void, tries: number}} Request
 */

/**
 * Hub is a connection that comes back by itself.
 *
 * Events: "state" (its state), "connected" ({client}), "disconnected" (HubError: why it will not
 * come back, or undefined after disconnect()), "error" (HubError: what failed and is tried
 * again), "message" (data that the server sent to this connection alone).
 */
export class Hub extends Emitter {
  /** @type {"disconnected"|"connecting"|"connected"} */
  state = "disconnected";
  /** Id of the connection. */
  client = "";
  /** @type {Map<string, Room>} */
  #rooms = new Map();
  /** @type {HubOptions & {timeout: number, minDelay: number, maxDelay: number}} */
  #options;
  #token = "";
  /** @type {any} the socket in use; what comes from another is of no interest */
  #socket = null;
  /** The server is greeted, and takes commands behind that. */
  #greeted = false;
  #failures = 0;
  #lastID = 0;
  /** Commands of this socket by id. @type {Map<number, {done: (reply: any) => void, timer: any}>} */
  #commands = new Map();
  /** In the order in which they were made. @type {Set<Request>} */
  #requests = new Set();
  /** @type {any} */ #retry;
  /** @type {any} */ #refresh;
  /** @type {any} */ #silence;
  #pong = false;
  /** Why it is disconnected. @type {HubError|undefined} */ #why;
  #patience = 0;
  #seen = 0;
  #wake = () => this.#woken();

  /** @param {HubOptions} options */
  constructor(options) {
    super();
    this.#options = { timeout: 5000, minDelay: 200, maxDelay: 20000, ...options };
    this.#token = options.token ?? "";
  }

  /** Connects, and reconnects until disconnect() or a refusal that no repeat can mend. */
  connect() {
    if (this.state !== "disconnected") return;
    this.#failures = 0;
    this.#why = undefined;
    globalThis.addEventListener?.("online", this.#wake);
    globalThis.document?.addEventListener("visibilitychange", this.#wake);
    this.#to("connecting");
    if (this.#waits()) this.#open();
  }

  /** Disconnects. Requests without an answer are rejected; rooms keep their position. */
  disconnect() {
    this.#end(undefined);
  }

  /** @returns {Promise<void>} resolved once connected, rejected when that will not be */
  ready() {
    if (this.state === "connected") return Promise.resolve();
    if (this.state === "disconnected") return Promise.reject(this.#why ?? new HubError("disconnected", "not connected: call connect()"));
    return new Promise((resolve, reject) => {
      const off = [
        this.on("connected", () => done(resolve)),
        this.on("disconnected", (e) => done(() => reject(e ?? new HubError("disconnected", "disconnected")))),
      ];
      /** @param {() => void} then */
      const done = (then) => {
        for (const f of off) f();
        then();
      };
    });
  }

  /**
   * The room of a name, the same object each time.
   * @param {string} name
   * @param {RoomOptions} [options] of the first call
   */
  room(name, options) {
    const known = this.#rooms.get(name);
    if (known) return known;
    const room = new Room(this, name, options ?? {}, (command, done) => this.#send(command, done), () => this.#greeted);
    this.#rooms.set(name, room);
    return room;
  }

  /**
   * Calls a method of the server: get, list, snapshot, publish, operate.
   * @param {string} method
   * @param {object} data must carry an id if a repeat would do harm
   * @returns {Promise<any>}
   */
  async rpc(method, data) {
    const { rpc } = await this.request({ rpc: { method, data } });
    const result = rpc?.data;
    if (result?.code && result.status >= 400) {
      const { code, detail, title, status, step, current } = result;
      throw new HubError(code, detail || title, { status, step, current });
    }
    return result;
  }

  /**
   * Sends a command of the protocol until it is answered; for internal use.
   * @param {object} body
   * @returns {Promise<any>}
   */
  request(body) {
    return new Promise((resolve, reject) => {
      if (this.state === "disconnected") {
        reject(new HubError("disconnected", "not connected: call connect()"));
        return;
      }
      /** @type {Request} */
      const request = { body, resolve, reject, tries: 0 };
      this.#requests.add(request);
      if (this.state === "connected") this.#ask(request);
    });
  }

  /** @param {Request} request */
  #ask(request) {
    const socket = this.#socket;
    this.#send(request.body, (reply) => {
      if (reply.error?.temporary) { // refused for load, or nothing applied: again, later
        setTimeout(() => {
          if (socket === this.#socket && this.#requests.has(request)) this.#ask(request);
        }, this.#delay(request.tries++));
        return;
      }
      this.#requests.delete(request);
      if (reply.error) request.reject(protocolError(reply.error));
      else request.resolve(reply);
    });
  }

  /** @param {Hub["state"]} state */
  #to(state) {
    this.state = state;
    this.emit("state", state);
  }

  /** Nothing is under way: no listener has disconnected, or connected anew. */
  #waits() {
    return this.state === "connecting" && !this.#socket;
  }

  /** A wait before the next try: full jitter below a bound that doubles. @param {number} tries */
  #delay(tries) {
    return Math.random() * Math.min(this.#options.maxDelay, this.#options.minDelay * 2 ** tries);
  }

  async #open() {
    clearTimeout(this.#retry);
    const { getToken, timeout } = this.#options;
    const turn = (this.#socket = {}); // until there is a socket
    if (!this.#token && getToken) {
      try {
        this.#token = await getToken();
      } catch (e) {
        if (this.#socket !== turn) return;
        const error = asError(e);
        if (error.code === "unauthorized") this.#end(error);
        else this.#again(error);
        return;
      }
      if (this.#socket !== turn) return;
    }
    const Socket = this.#options.WebSocket ?? globalThis.WebSocket;
    /** @type {any} */
    let socket;
    try {
      socket = new Socket(this.#options.url ?? location.origin.replace(/^http/, "ws") + "/connection/websocket");
    } catch (e) { // not an address, or no class
      this.#end(asError(e));
      return;
    }
    this.#socket = socket;
    const late = setTimeout(() => this.#lost(socket, new HubError("timeout", "no connection in time", { temporary: true })), timeout);
    socket.onopen = () => {
      clearTimeout(late);
      this.#hello(socket);
    };
    socket.onmessage = (/** @type {{data: string}} */ e) => {
      if (socket === this.#socket) this.#received(socket, e.data);
    };
    socket.onerror = () => {}; // close follows
    socket.onclose = (/** @type {{code: number, reason: string}} */ e) => {
      clearTimeout(late);
      this.#lost(socket, new HubError(e.code, e.reason || "connection lost", { temporary: true }));
    };
  }

  /** Connects and subscribes in one message. @param {any} socket */
  #hello(socket) {
    /** @type {Record<string, object>} */
    const subs = {};
    for (const room of this.#rooms.values()) if (room.byServer && room.position) subs[room.name] = { recover: true, ...room.position };
    const joining = [...this.#rooms.values()].filter((room) => room.wanted && !room.byServer);
    /** @type {string[]} */
    const lines = [];
    this.#command({ connect: { token: this.#token, name: this.#options.name ?? "hub.js", subs } }, lines, (reply) => this.#welcome(socket, reply));
    for (const room of joining) if (!room.options.getToken) room.join((command, done) => this.#command(command, lines, done));
    socket.send(lines.join("\n"));
    this.#greeted = true;
    for (const room of joining) if (room.options.getToken) room.join(); // by a command of its own, when it has the token
  }

  /** @param {any} socket @param {any} reply */
  #welcome(socket, reply) {
    if (reply.error) {
      const error = protocolError(reply.error);
      if (error.code === 109) this.#renew(error);
      else if (error.temporary) this.#lost(socket, error);
      else this.#end(error);
      return;
    }
    const { client, ping, pong, expires, ttl, subs: given = {} } = reply.connect;
    this.client = client;
    this.#failures = 0;
    this.#pong = Boolean(pong);
    this.#patience = ping ? ping * 1000 + this.#options.timeout : 0;
    this.#listen(socket);
    if (expires) this.#expire(socket, ttl);
    for (const request of this.#requests) this.#ask(request);
    this.#to("connected");
    this.emit("connected", { client });
    for (const name of Object.keys(given)) this.room(name);
    for (const room of this.#rooms.values()) {
      if (socket !== this.#socket) return; // a listener has disconnected
      if (Object.hasOwn(given, room.name)) this.#given(room.name, given[room.name]);
      else if (room.byServer) room.push({ unsubscribe: { code: 2500, reason: "no longer given" } });
    }
  }

  /** The server has subscribed this connection. @param {string} name @param {any} result */
  #given(name, result) {
    const room = this.room(name);
    room.byServer = true;
    room.joined(result);
  }

  /** The token has run out: get another one. @param {HubError} error */
  #renew(error) {
    if (!this.#options.getToken) {
      this.#end(error);
      return;
    }
    this.#token = "";
    this.#again(error);
  }

  /** Notices when nothing comes any more, pings neither. @param {any} socket */
  #listen(socket) {
    clearTimeout(this.#silence);
    this.#seen = Date.now();
    if (!this.#patience) return;
    const look = () => {
      this.#seen = Math.min(this.#seen, Date.now()); // the clock may be set back
      const left = this.#seen + this.#patience - Date.now();
      if (left <= 0) this.#lost(socket, new HubError("timeout", "the server has fallen silent", { temporary: true }));
      else this.#silence = setTimeout(look, left);
    };
    this.#silence = setTimeout(look, this.#patience);
  }

  /** @param {any} socket @param {number} ttl seconds */
  #expire(socket, ttl) {
    clearTimeout(this.#refresh);
    const { getToken } = this.#options;
    if (!getToken) return;
    const again = async () => {
      try {
        const token = await getToken();
        if (socket !== this.#socket) return;
        this.#send({ refresh: { token } }, ({ error, refresh }) => {
          if (error) return failed(protocolError(error));
          this.#token = token;
          if (refresh?.expires) this.#expire(socket, refresh.ttl);
        });
      } catch (e) {
        if (socket === this.#socket) failed(asError(e));
      }
    };
    const failed = (/** @type {HubError} */ error) => {
      this.emit("error", error);
      if (error.code === "unauthorized") this.#end(error);
      else this.#refresh = setTimeout(again, 1000 + Math.random() * 4000);
    };
    this.#refresh = setTimeout(again, Math.min(ttl * 1000, longest));
  }

  /**
   * Makes a command. done is called with the reply, before anything that comes behind it is
   * looked at; a connection that does not answer in time is given up.
   * @param {object} body
   * @param {string[]} lines where the text goes
   * @param {(reply: any) => void} [done]
   */
  #command(body, lines, done = () => {}) {
    const id = ++this.#lastID;
    const socket = this.#socket;
    lines.push(JSON.stringify({ id, ...body }));
    const timer = setTimeout(() => this.#lost(socket, new HubError("timeout", "no answer in time", { temporary: true })), this.#options.timeout);
    this.#commands.set(id, { done, timer });
  }

  /** @param {object} body @param {(reply: any) => void} [done] */
  #send(body, done) {
    /** @type {string[]} */
    const lines = [];
    this.#command(body, lines, done);
    this.#socket.send(lines[0]);
  }

  /** @param {any} socket @param {string} text */
  #received(socket, text) {
    this.#seen = Date.now();
    for (const line of text.split("\n")) {
      if (!line || socket !== this.#socket) continue;
      const message = JSON.parse(line);
      if (message.id) {
        const command = this.#commands.get(message.id);
        this.#commands.delete(message.id);
        clearTimeout(command?.timer);
        command?.done(message);
      } else if (message.push) {
        this.#push(message.push);
      } else if (this.#pong) {
        socket.send("{}");
      }
    }
  }

  /** @param {any} push */
  #push(push) {
    const name = push.channel;
    if (push.message) this.emit("message", push.message.data);
    else if (push.subscribe) this.#given(name, push.subscribe);
    else this.#rooms.get(name)?.push(push);
  }

  /** The socket is of no use any more. @param {any} socket @param {HubError} error */
  #lost(socket, error) {
    if (socket !== this.#socket) return;
    const code = Number(error.code);
    if (code === 3005) { // the token is over
      this.#renew(error);
      return;
    }
    if (code >= 3500 && code < 4000 || code >= 4500 && code < 5000) {
      this.#end(error);
      return;
    }
    this.#again(error);
  }

  /** Tries again after a while. @param {HubError} error */
  #again(error) {
    this.#drop();
    if (this.state === "connected") this.#to("connecting");
    this.emit("error", error);
    if (!this.#waits()) return;
    this.#retry = setTimeout(() => this.#open(), this.#delay(this.#failures++));
  }

  /** @param {HubError} [error] it does not come back */
  #drop(error) {
    const socket = this.#socket;
    this.#socket = null;
    this.#greeted = false;
    clearTimeout(this.#retry);
    clearTimeout(this.#refresh);
    clearTimeout(this.#silence);
    for (const { timer } of this.#commands.values()) clearTimeout(timer);
    this.#commands.clear();
    if (socket?.close) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
    for (const room of this.#rooms.values()) room.dropped(error);
  }

  /** @param {HubError|undefined} error */
  #end(error) {
    if (this.state === "disconnected") return;
    globalThis.removeEventListener?.("online", this.#wake);
    globalThis.document?.removeEventListener("visibilitychange", this.#wake);
    const why = error ?? new HubError("disconnected", "disconnected");
    if (error) error.temporary = false;
    const requests = [...this.#requests];
    this.#requests.clear();
    this.#drop(why);
    this.client = "";
    this.#why = error;
    this.#to("disconnected");
    for (const request of requests) request.reject(why);
    this.emit("disconnected", error);
  }

  /** The network is back, or the page is seen again: timers may have slept. */
  #woken() {
    if (globalThis.document?.visibilityState === "hidden") return;
    if (this.#waits()) this.#open();
    else if (this.state === "connected" && this.#patience && Date.now() > this.#seen + this.#patience) {
      this.#lost(this.#socket, new HubError("timeout", "the server has fallen silent", { temporary: true }));
    }
  }
}

/** @typedef {(command: object, done?: (reply: any) => void) => void} Send */

/**
 * Room is a room of a hub. Get it from hub.room().
 *
 * Events: "publication" (Publication), "subscribed" ({recovered, wasRecovering, position}),
 * "unsubscribed" ({code, reason}), "join" and "leave" (Who), "error" (HubError).
 */
export class Room extends Emitter {
  /** @type {"unsubscribed"|"subscribing"|"subscribed"} */
  status = "unsubscribed";
  /** Of the last publication that was processed. @type {Position|undefined} */
  position;
  /** The server subscribes this connection, not the client. */
  byServer = false;
  /** It is to be subscribed whenever there is a connection. */
  wanted = false;
  #hub;
  #send;
  #greeted;
  /** Tells apart what belongs to earlier connections and subscriptions. */
  #turn = 0;
  #failures = 0;
  /** @type {any} */ #timer;
  /** @type {State|undefined} */ #state;

  /**
   * @param {Hub} hub
   * @param {string} name
   * @param {RoomOptions} options
   * @param {Send} send
   * @param {() => boolean} greeted
   */
  constructor(hub, name, options, send, greeted) {
    super();
    this.#hub = hub;
    this.name = name;
    this.options = options;
    this.position = options.since;
    this.#send = send;
    this.#greeted = greeted;
  }

  /** Subscribes, and again after each reconnect, from the last position. */
  subscribe() {
    if (this.wanted) return;
    this.wanted = true;
    if (this.byServer) return;
    this.status = "subscribing";
    if (this.#greeted()) this.join();
  }

  /** Unsubscribes. The position is kept: subscribe() continues from it. */
  unsubscribe() {
    if (!this.wanted && !this.byServer) return;
    if (this.#greeted()) this.#send({ unsubscribe: { channel: this.name } });
    this.#left({ code: 0, reason: "unsubscribed" });
  }

  /**
   * Publishes. Resolved once it is committed; sent again after a reconnect under the same id,
   * so it is published once.
   * @param {any} data
   * @param {{id?: string}} [options]
   * @returns {Promise<{offset?: number, epoch?: string, replayed?: boolean}>}
   */
  publish(data, options) {
    return this.#hub.rpc("publish", { room: this.name, id: options?.id ?? newID(), data });
  }

  /**
   * Changes resources, all of the steps or none. Sent again like a publication. Rejected with
   * code "version_conflict", "exists", "not_found", "out_of_range", … when the state says no.
   * @param {Step[]} steps
   * @param {{id?: string, data?: any}} [options]
   * @returns {Promise<Result>}
   */
  operate(steps, options) {
    return this.#hub.rpc("operate", { room: this.name, id: options?.id ?? newID(), steps, data: options?.data });
  }

  /**
   * @param {string} key
   * @returns {Promise<Resource|undefined>} undefined when there is none
   */
  async get(key) {
    try {
      return await this.#hub.rpc("get", { room: this.name, key });
    } catch (e) {
      if (asError(e).code === "not_found") return undefined;
      throw e;
    }
  }

  /**
   * A page of resources by key.
   * @param {{prefix?: string, after?: string, limit?: number}} [options]
   * @returns {Promise<Page>}
   */
  list(options) {
    return this.#hub.rpc("list", { room: this.name, ...options });
  }

  /** All resources with the position that they belong to. @returns {Promise<Page>} */
  snapshot() {
    return this.#hub.rpc("snapshot", { room: this.name });
  }

  /**
   * A page of publications: those after an offset, or with reverse those before it.
   * @param {{after?: number, limit?: number, reverse?: boolean}} [options]
   * @returns {Promise<{publications: Publication[], offset: number, epoch: string}>}
   */
  async history(options) {
    const { after, limit = 100, reverse } = options ?? {};
    const since = after === undefined ? undefined : { offset: after, epoch: this.position?.epoch ?? "" };
    const { history } = await this.#hub.request({ history: { channel: this.name, limit, reverse, since } });
    return { publications: (history?.publications ?? []).map(publication), offset: history?.offset ?? 0, epoch: history?.epoch ?? "" };
  }

  /** Who is here, by the ids of their connections. @returns {Promise<Record<string, Who>>} */
  async presence() {
    const { presence } = await this.#hub.request({ presence: { channel: this.name } });
    return Object.fromEntries(Object.entries(presence?.presence ?? {}).map(([id, info]) => [id, /** @type {Who} */ (who(info))]));
  }

  /** How many are here. @returns {Promise<{clients: number, users: number}>} */
  async presenceStats() {
    const { presence_stats: stats } = await this.#hub.request({ presence_stats: { channel: this.name } });
    return { clients: stats?.num_clients ?? 0, users: stats?.num_users ?? 0 };
  }

  /** A live copy of the room's resources, the same object until it is closed. */
  state() {
    if (!this.#state) {
      this.#state = new State(this, () => { this.#state = undefined; });
      this.subscribe();
      if (this.status === "subscribed") this.#state.load();
    }
    return this.#state;
  }

  /** Subscribes on a connection; for the hub. @param {Send} send */
  async join(send = this.#send) {
    clearTimeout(this.#timer);
    const turn = ++this.#turn;
    this.status = "subscribing";
    const { getToken } = this.options;
    let token;
    if (getToken) {
      try {
        token = await getToken();
      } catch (e) {
        if (turn === this.#turn) this.#failed(asError(e));
      }
      if (turn !== this.#turn || token === undefined) return;
    }
    const since = this.position && { recover: true, ...this.position };
    send({ subscribe: { channel: this.name, token, join_leave: true, ...since } }, ({ error, subscribe }) => {
      if (turn !== this.#turn) return;
      if (error) this.#failed(protocolError(error));
      else this.joined(subscribe);
    });
  }

  /** A subscription did not come about. @param {HubError} error */
  #failed(error) {
    this.emit("error", error);
    if (!error.temporary && !(error.code === 109 && this.options.getToken)) {
      this.#left({ code: Number(error.code) || 0, reason: error.message });
    } else if (this.wanted && this.#greeted()) {
      this.#timer = setTimeout(() => this.join(), Math.random() * Math.min(20000, 200 * 2 ** this.#failures++));
    }
  }

  /** The server says that it is subscribed; for the hub. @param {any} result */
  joined(result) {
    this.#turn++;
    this.#failures = 0;
    this.status = "subscribed";
    const recovered = Boolean(result.recovered);
    // A reply that recovers has the position asked for, and its publications follow it.
    this.position = result.recoverable ? { offset: result.offset ?? 0, epoch: result.epoch ?? "" } : undefined;
    this.emit("subscribed", { recovered, wasRecovering: Boolean(result.was_recovering), position: this.position });
    this.#state?.joined(recovered);
    for (const p of result.publications ?? []) this.#published(p);
    if (result.expires && this.options.getToken) this.#expire(result.ttl);
  }

  /** @param {number} ttl seconds */
  #expire(ttl) {
    const turn = this.#turn;
    const again = async () => {
      try {
        const token = await this.options.getToken?.();
        if (turn !== this.#turn) return;
        this.#send({ sub_refresh: { channel: this.name, token } }, ({ error, sub_refresh: result }) => {
          if (turn !== this.#turn) return;
          if (error) failed(protocolError(error));
          else if (result?.expires) this.#expire(result.ttl);
        });
      } catch (e) {
        if (turn === this.#turn) failed(asError(e));
      }
    };
    const failed = (/** @type {HubError} */ error) => {
      this.emit("error", error);
      this.#timer = setTimeout(again, 1000 + Math.random() * 4000);
    };
    clearTimeout(this.#timer);
    this.#timer = setTimeout(again, Math.min(ttl * 1000, longest));
  }

  /** What the server says of the room; for the hub. @param {any} push */
  push(push) {
    if (push.pub) this.#published(push.pub);
    else if (push.join) this.emit("join", who(push.join.info));
    else if (push.leave) this.emit("leave", who(push.leave.info));
    else if (push.unsubscribe) {
      const { code = 0, reason = "" } = push.unsubscribe;
      this.byServer = false;
      if (code >= 2500 && this.wanted) this.join(); // subscribe again
      else this.#left({ code, reason });
    }
  }

  /** @param {any} p */
  #published(p) {
    if (this.status !== "subscribed") return;
    if (p.offset && this.position) {
      if (p.offset <= this.position.offset) return; // it was here before
      this.position = { ...this.position, offset: p.offset };
    }
    const event = publication(p);
    this.#state?.published(event);
    this.emit("publication", event);
  }

  /** The connection has ended; for the hub. @param {HubError} [error] and does not come back */
  dropped(error) {
    clearTimeout(this.#timer);
    this.#turn++;
    if (error) this.#state?.failed(error);
    if (this.status === "subscribed") this.status = "subscribing";
  }

  /** @param {{code: number, reason: string}} why */
  #left(why) {
    clearTimeout(this.#timer);
    this.#turn++;
    this.wanted = this.byServer = false;
    this.status = "unsubscribed";
    this.#state?.failed(new HubError(why.code, why.reason));
    this.emit("unsubscribed", why);
  }
}

/** An operation that the server has not confirmed. @typedef {{id: string, steps: Step[]}} Pending */

/**
 * State is a live copy of a room's resources: read them all, then follow the room's events.
 *
 * Events: "change" (Change) for each resource that changes, "reset" when all was read anew
 * because the room's history did not reach back far enough.
 */
export class State extends Emitter {
  /** What the server has confirmed, deleted resources too. @type {Map<string, Resource>} */
  #confirmed = new Map();
  /** What is shown. @type {Map<string, Resource>} */
  #view = new Map();
  /** What a reading under way has found, and events since it began. @type {Map<string, Resource>|undefined} */
  #fresh;
  /** @type {Pending[]} */ #pending = [];
  #loaded = false;
  #turn = 0;
  #room;
  #forget;
  /** @type {() => void} */ #resolve = () => {};
  /** @type {(e: HubError) => void} */ #reject = () => {};
  /** Resolved once all resources were read for the first time. @type {Promise<void>} */
  ready = new Promise((resolve, reject) => { [this.#resolve, this.#reject] = [resolve, reject]; });

  /** @param {Room} room @param {() => void} forget */
  constructor(room, forget) {
    super();
    this.#room = room;
    this.#forget = forget;
    this.ready.catch(() => {}); // who waits is told
  }

  /** @param {string} key @returns {any} the value; undefined when there is none. Do not change it. */
  get(key) {
    return this.#view.get(key)?.value;
  }

  /** @param {string} key @returns {number} what if_version must name; 0 when there is none */
  version(key) {
    return this.#view.get(key)?.version ?? 0;
  }

  /** @param {string} [prefix] @returns {string[]} the keys, sorted */
  keys(prefix = "") {
    return [...this.#view.keys()].filter((key) => key.startsWith(prefix)).sort();
  }

  /** @param {string} [prefix] @returns {[string, any][]} keys and values, sorted */
  entries(prefix) {
    return this.keys(prefix).map((key) => [key, this.get(key)]);
  }

  /**
   * Operates and shows the outcome at once. It is taken back when the server refuses, and
   * done anew on top of what others have changed meanwhile.
   * @param {Step[]} steps
   * @param {{id?: string, data?: any}} [options]
   * @returns {Promise<Result>}
   */
  async operate(steps, options) {
    const pending = { id: options?.id ?? newID(), steps };
    try {
      this.#pending.push(pending);
      this.#show(keysOf(pending), {});
      const result = await this.#room.operate(steps, { ...options, id: pending.id });
      this.#settle(pending);
      // Its event is still to come, or what is here has it and perhaps more.
      const { offset = 0, epoch } = this.#room.position ?? {};
      if (result.epoch === epoch && result.offset > offset) this.#take(result.resources, { operation: result.id });
      else this.#show(keysOf(pending), {});
      return result;
    } catch (e) {
      this.#settle(pending);
      this.#show(keysOf(pending), {});
      throw e;
    }
  }

  /** Ends it. The room stays subscribed. */
  close() {
    this.#turn++;
    this.#forget();
  }

  /** It is subscribed; for the room. @param {boolean} recovered */
  joined(recovered) {
    if (!recovered || this.#fresh || !this.#loaded) this.load();
  }

  /** It will not be ready; for the room. @param {HubError} error */
  failed(error) {
    this.#reject(error);
  }

  /**
   * Reads all resources; for the room. What was known before is forgotten: a server that was
   * restored from a copy may know less. Of what a page and an event tell, the higher version
   * holds.
   */
  async load() {
    const turn = ++this.#turn;
    const fresh = (this.#fresh = new Map());
    try {
      /** @type {string|undefined} */
      let after;
      do {
        const page = await this.#room.list({ after, limit: 1000 });
        if (turn !== this.#turn) return;
        keep(fresh, page.resources);
        after = page.next;
      } while (after);
    } catch (e) {
      if (turn !== this.#turn) return;
      this.failed(asError(e));
      this.#room.emit("error", asError(e));
      return;
    }
    const keys = [...this.#confirmed.keys(), ...fresh.keys()];
    const again = this.#loaded;
    this.#confirmed = fresh;
    this.#fresh = undefined;
    this.#loaded = true;
    this.#show(keys, {});
    this.#resolve();
    if (again) this.emit("reset");
  }

  /** An event of the room; for the room. @param {Publication} event */
  published({ data }) {
    if (!Array.isArray(data?.changes)) return;
    const mine = this.#pending.find((p) => p.id === data.operation);
    if (mine) this.#settle(mine);
    this.#take(data.changes, { operation: data.operation, user: data.user });
    if (mine) this.#show(keysOf(mine), {});
  }

  /** @param {Pending} pending */
  #settle(pending) {
    this.#pending = this.#pending.filter((p) => p !== pending);
  }

  /**
   * Takes what the server says of resources, unless newer is known.
   * @param {Resource[]} resources
   * @param {{operation?: string, user?: string}} by
   */
  #take(resources, by) {
    keep(this.#confirmed, resources);
    if (this.#fresh) keep(this.#fresh, resources);
    this.#show(resources.map((r) => r.key), by);
  }

  /**
   * Brings the view of some keys up to date and tells what has changed.
   * @param {Iterable<string>} keys
   * @param {{operation?: string, user?: string}} by
   */
  #show(keys, by) {
    const all = new Set(keys);
    for (const p of this.#pending) for (const key of keysOf(p)) all.add(key);
    /** @type {Map<string, Resource & {pending?: boolean}>} */
    const next = new Map();
    const look = (/** @type {string} */ key) => {
      const r = next.get(key) ?? this.#confirmed.get(key);
      return r ?? { key, version: 0, deleted: true };
    };
    for (const { steps } of this.#pending) {
      const changed = attempt(steps, look);
      for (const [key, r] of changed ?? []) next.set(key, { ...r, pending: true });
    }
    for (const key of all) {
      const now = look(key), before = this.#view.get(key);
      if (now.deleted) this.#view.delete(key);
      else this.#view.set(key, now);
      const was = before?.value, is = now.deleted ? undefined : now.value;
      if (before?.version === this.#view.get(key)?.version && same(was, is)) continue;
      const pending = Boolean(/** @type {any} */ (now).pending);
      this.emit("change", { key, value: is, previous: was, version: now.deleted ? 0 : now.version, pending, ...by });
    }
  }
}

/** Puts resources where no newer ones are. @param {Map<string, Resource>} into @param {Resource[]} resources */
function keep(into, resources) {
  for (const r of resources) {
    if (r.value === undefined && !r.deleted) continue; // it may not be read
    if (r.version > (into.get(r.key)?.version ?? 0)) into.set(r.key, r);
  }
}

/** @param {any} a @param {any} b */
const same = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);

/** @param {Pending} pending */
const keysOf = ({ steps }) => steps.map((s) => s.key);

/**
 * Does steps as the server would.
 * @param {Step[]} steps
 * @param {(key: string) => Resource} look
 * @returns {Map<string, Resource>|undefined} what they change; undefined when one is refused
 */
function attempt(steps, look) {
  /** @type {Map<string, Resource>} */
  const changed = new Map();
  for (const s of steps) {
    const r = changed.get(s.key) ?? look(s.key);
    const exists = !r.deleted;
    if (s.if_version !== undefined && s.if_version !== (exists ? r.version : 0)) return undefined;
    if (s.op === "create" ? exists : s.op !== "set" && !exists) return undefined;
    const version = r.version + 1;
    if (s.op === "delete") {
      changed.set(s.key, { key: s.key, version, deleted: true });
      continue;
    }
    const value = s.op === "add" ? add(r.value, s) : s.op === "merge" ? merge(r.value, s.value) : s.value;
    if (value === undefined) return undefined;
    changed.set(s.key, { key: s.key, version, value });
  }
  return changed;
}

/** @param {any} value @param {Step} step @returns {any} undefined when it is refused */
function add(value, { path = "", by = 0, min = -Infinity, max = Infinity }) {
  const copy = { root: structuredClone(value) };
  const names = ["root", ...path.split("/").slice(1).map((n) => n.replaceAll("~1", "/").replaceAll("~0", "~"))];
  /** @type {any} */
  let parent = copy;
  for (const name of names.slice(0, -1)) {
    parent = parent[name];
    if (parent === null || typeof parent !== "object") return undefined;
  }
  const last = names[names.length - 1];
  const sum = parent[last] + by;
  if (!Number.isSafeInteger(parent[last]) || !Number.isSafeInteger(sum) || sum < min || sum > max) return undefined;
  parent[last] = sum;
  return copy.root;
}

/** RFC 7396. @param {any} value @param {any} patch @returns {any} */
function merge(value, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  /** @type {Record<string, any>} */
  const result = value !== null && typeof value === "object" && !Array.isArray(value) ? { ...value } : {};
  for (const [name, v] of Object.entries(patch)) {
    if (v === null) delete result[name];
    else Object.defineProperty(result, name, { value: merge(result[name], v), enumerable: true, writable: true, configurable: true });
  }
  return result;
}
