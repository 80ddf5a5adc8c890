// One room from inside, by a client's own socket: its events as they come, its resources
// and history, publishing and operating.
import { Hub, HubError } from "/hub.js";
import { api, field, h, notice, number, table, time } from "./page.js";
import { overview } from "./overview.js";
import { databaseSelect } from "./rooms.js";

const shown = 200; // events that are kept on the page

/** Where clients connect: the host of this page, at the clients' port. */
function address() {
  const o = overview();
  const port = o?.address.slice(o.address.lastIndexOf(":") + 1) ?? "8000";
  return `${o?.tls ? "wss" : "ws"}://${location.hostname}:${port}`;
}

export function show(main, [db = "default", name = ""]) {
  const database = databaseSelect(db, () => {});
  const room = h("input", { value: name, placeholder: "chat:lobby", spellcheck: false, onkeydown: (e) => { if (e.key === "Enter") open(); } });
  const server = h("input", { value: address(), spellcheck: false });
  const events = h("ol", { className: "events", tabIndex: 0, "aria-label": "Events, newest first" });
  const state = h("p", { className: "note" }, "Name a room and open it."), say = notice();
  const resources = h("div"), past = h("div");
  const data = h("textarea", { rows: 3, value: '{"text": "hello"}', "aria-label": "Data to publish", spellcheck: false });
  const steps = h("textarea", { rows: 4, value: '[{"op": "set", "key": "greeting", "value": "hello"}]', "aria-label": "Steps of an operation", spellcheck: false });
  const prefix = h("input", { type: "search", placeholder: "key", oninput: () => { clearTimeout(typing); typing = setTimeout(browse, 250); } });
  let hub, current, typing, waiting, paused = false;

  const draw = (p) => h("li", {}, h("small", {}, [p.offset && number(p.offset), p.time && time(p.time), p.by?.user].filter(Boolean).join(" · ")), h("pre", {}, JSON.stringify(p.data, null, 1)));
  const tell = (text, bad) => {
    state.textContent = text;
    state.className = bad ? "note bad" : "note";
  };

  function close() {
    clearTimeout(typing);
    clearTimeout(waiting);
    const old = hub;
    hub = current = undefined;
    old?.disconnect();
  }

  /** Connects as an operator and subscribes. */
  function open() {
    close();
    events.replaceChildren();
    resources.replaceChildren();
    past.replaceChildren();
    if (!room.value) return tell("Name a room.");
    history.replaceState(null, "", "#inspector/" + [database.value, room.value].map(encodeURIComponent).join("/"));
    const chosen = database.value;
    const mine = new Hub({
      url: `${server.value.replace(/\/+$/, "")}/v1/${encodeURIComponent(chosen)}/websocket`,
      getToken: async () => {
        try {
          return (await api("POST", "inspect", { database: chosen })).token;
        } catch (e) {
          throw new HubError(e.status === 401 ? "unauthorized" : "unavailable", e.message);
        }
      },
    });
    hub = mine;
    current = mine.room(room.value);
    const here = (then) => (event) => { if (hub === mine) then(event); };
    tell("Connecting …");
    mine.on("error", here((e) => tell(e.message, true)));
    mine.on("disconnected", here((e) => tell(e ? `Disconnected: ${e.message}` : "Disconnected.", true)));
    current.on("error", here((e) => tell(e.message, true)));
    current.on("unsubscribed", here((e) => tell(`Not subscribed: ${e.reason}`, true)));
    current.on("subscribed", here(({ position }) => {
      tell(position ? `Live from offset ${number(position.offset)}.` : "Live; this room keeps no history.");
      browse();
      look();
    }));
    current.on("publication", here((p) => {
      if (!paused) {
        events.prepend(draw(p));
        while (events.childElementCount > shown) events.lastChild.remove();
      }
      if (p.data?.changes && !waiting) waiting = setTimeout(() => { waiting = undefined; browse(); }, 500);
    }));
    mine.connect();
    current.subscribe();
  }

  async function browse() {
    const mine = current;
    if (!mine) return;
    try {
      const page = await mine.list({ prefix: prefix.value, limit: 100 });
      if (mine !== current) return;
      resources.replaceChildren(table("Resources", ["Key", { n: "Version" }, "Value"], page.resources.map((r) => [r.key, { n: number(r.version) }, h("pre", {}, JSON.stringify(r.value, null, 1))]), "No resource."),
        page.next ? h("p", { className: "note" }, "There are more: narrow the key.") : "");
    } catch (e) {
      if (mine === current) resources.replaceChildren(h("p", { className: "empty" }, e.message));
    }
  }

  /** Reads the newest publications. */
  async function look() {
    const mine = current;
    if (!mine) return;
    try {
      const page = await mine.history({ limit: 20, reverse: true });
      if (mine !== current) return;
      past.replaceChildren(page.publications.length ? h("ol", { className: "events", tabIndex: 0, "aria-label": "History, newest first" }, page.publications.map(draw)) : h("p", { className: "empty" }, "Nothing was published yet."));
    } catch (e) {
      if (mine === current) past.replaceChildren(h("p", { className: "empty" }, e.message));
    }
  }

  const send = async (work) => {
    if (!current) return say.say("Open a room first.", true);
    try {
      const r = await work(current);
      say.say(r.offset ? `Committed at offset ${number(r.offset)}.` : "Published.");
    } catch (e) {
      say.fail(e instanceof SyntaxError ? new Error("That is no JSON: " + e.message) : e);
    }
  };

  main.append(h("h1", {}, "Inspector"),
    h("section", { className: "card" }, h("div", { className: "bar" }, field("Database", database), field("Room", room, "wide"), field("Server", server, "wide"), h("button", { onclick: open }, "Open"))),
    h("div", { className: "columns" },
      h("div", {},
        h("section", { className: "card" }, h("div", { className: "figure" }, h("h2", {}, "Events"),
          h("button", { className: "quiet small", onclick: (e) => { paused = !paused; e.currentTarget.textContent = paused ? "Go on" : "Pause"; } }, "Pause")), state, events),
        h("section", { className: "card" }, h("div", { className: "figure" }, h("h2", {}, "History"),
          h("button", { className: "quiet small", onclick: look }, "Refresh")), past)),
      h("div", {},
        h("section", { className: "card" }, h("h2", {}, "Publish"), data,
          h("div", { className: "bar end" }, h("button", { onclick: () => send(async (r) => r.publish(JSON.parse(data.value))) }, "Publish"))),
        h("section", { className: "card" }, h("h2", {}, "Operate"), steps,
          h("div", { className: "bar end" }, h("button", { onclick: () => send(async (r) => r.operate(JSON.parse(steps.value))) }, "Operate"))),
        say.box,
        h("section", { className: "card" }, h("h2", {}, "Resources"), h("div", { className: "bar" }, field("Key begins with", prefix, "wide")), resources))));
  if (name) open();
  return close;
}
