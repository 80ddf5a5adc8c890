// Rooms of a database, and one of them.
import { bytes, field, get, h, number, paged, table, time } from "./page.js";
import { overview } from "./overview.js";

/** A choice of database. */
export function databaseSelect(value, onchange) {
  const names = overview()?.databases.map((d) => d.name) ?? ["default"];
  return h("select", { onchange }, names.map((name) => h("option", { selected: name === value }, name)));
}

export const roomLink = (db, room, text) => h("a", { href: "#rooms/" + [db, room].map(encodeURIComponent).join("/") }, text ?? room);
export const inspectLink = (db, room) => h("a", { href: "#inspector/" + [db, room].map(encodeURIComponent).join("/") }, "Inspect");

export function show(main, [db = "default", room]) {
  if (room !== undefined) return one(main, db, room);
  const database = databaseSelect(db, () => list.restart());
  const prefix = h("input", { type: "search", placeholder: "chat:", oninput: () => { clearTimeout(typing); typing = setTimeout(list.restart, 250); } });
  const live = h("select", { onchange: () => list.restart() }, h("option", { value: "" }, "Live and stored"), h("option", { value: "true" }, "Live only"));
  let typing;
  const list = paged(async (after) => {
    const page = await get("rooms", { database: database.value, prefix: prefix.value, live: live.value, after, limit: 100 });
    return { ...page, note: `${number(page.live)} live, ${number(page.stored)} stored` };
  }, (page) => table("Rooms", ["Room", { n: "Subscribers" }, { n: "Offset" }, "Last event", { n: "Log" }, ""], page.rooms.map((r) => [
    roomLink(database.value, r.room), { n: number(r.subscribers) }, { n: r.offset ? number(r.offset) : "–" }, time(r.time), { n: bytes(r.log_bytes) }, inspectLink(database.value, r.room),
  ]), "No room begins like that."));
  main.append(h("h1", {}, "Rooms"), h("section", { className: "card" },
    h("div", { className: "bar" }, field("Database", database), field("Name begins with", prefix, "wide"), field("Show", live), h("button", { className: "quiet", onclick: list.refresh }, "Refresh")),
    list.element));
  list.restart();
  return () => clearTimeout(typing);
}

function one(main, db, room) {
  const box = h("div");
  const load = async () => {
    try {
      const r = await get(`rooms/${encodeURIComponent(db)}/${encodeURIComponent(room)}`);
      const rows = [
        ["Subscribers", number(r.subscribers)], ["Offset", r.offset ? number(r.offset) : "–"], ["Epoch", r.epoch || "–"], ["Last event", time(r.time)],
        ["Oldest event kept", r.first ? number(r.first) : "–"], ["Events kept", r.durable ? number(r.history_size) : "none: not durable"], ["Log in memory", bytes(r.log_bytes)],
        ["Subscribers that catch up", number(r.behind)], ["Presence", r.presence ? "on" : "off"], ["Namespace", r.declared ? "declared" : "not declared: nobody can come"],
      ];
      box.replaceChildren(table("The room", ["Figure", "Value"], rows, ""));
    } catch (e) {
      box.replaceChildren(h("p", { className: "notice bad" }, e.message));
    }
  };
  main.append(h("h1", { className: "mono" }, room), h("section", { className: "card" }, box,
    h("div", { className: "bar end" }, h("button", { className: "quiet", onclick: load }, "Refresh"), inspectLink(db, room),
      h("a", { href: "#connections/" + [db, "", room].map(encodeURIComponent).join("/") }, "Connections"), h("a", { href: "#rooms/" + encodeURIComponent(db) }, "All rooms"))));
  load();
}
