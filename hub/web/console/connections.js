// Connections: search them, close them.
import { api, bytes, confirmed, field, get, h, number, paged, table, time } from "./page.js";
import { overview } from "./overview.js";

export function show(main, [db = "", user = "", room = ""]) {
  let typing;
  const search = (value, placeholder) => h("input", { type: "search", value, placeholder, oninput: () => { clearTimeout(typing); typing = setTimeout(list.restart, 250); } });
  const names = overview()?.databases.map((d) => d.name) ?? [];
  const database = h("select", { onchange: () => list.restart() }, h("option", { value: "" }, "All"), names.map((n) => h("option", { value: n, selected: n === db }, n)));
  const who = search(user, "ann"), where = search(room, "chat:lobby");
  const end = async (body, question) => {
    if (!(await confirmed(question, "Disconnect"))) return;
    try {
      const { disconnected, closed } = await api("POST", "disconnect", body) ?? {};
      await list.refresh();
      list.say.say(`Disconnected${closed ?? disconnected ? " " + number(closed ?? disconnected) : ""}.`);
    } catch (e) {
      list.say.fail(e);
    }
  };
  const list = paged(async (after) => {
    const page = await get("connections", { database: database.value, user: who.value, room: where.value, after, limit: 100 });
    return { ...page, note: `${number(page.total)} connections` };
  }, (page) => table("Connections", ["User", "Database", "Address", "Since", { n: "Rooms" }, { n: "Unsent" }, "Encoding", ""], page.connections.map((c) => [
    c.user, c.database, c.address, time(c.connected), { n: number(c.subscriptions) }, { n: bytes(c.unsent) }, c.encoding,
    h("button", { className: "danger small", onclick: () => end({ client: c.client, database: c.database }, `Disconnect this connection of ${c.user}? Its client may come back.`) }, "Disconnect"),
  ]), "Nobody is connected that fits."));
  main.append(h("h1", {}, "Connections"), h("section", { className: "card" },
    h("div", { className: "bar" }, field("Database", database), field("User", who, "wide"), field("In room", where, "wide"),
      h("button", { className: "quiet", onclick: list.refresh }, "Refresh"),
      h("button", { className: "danger", onclick: () => {
        if (!who.value) return list.say.say("Name a user first.", true);
        return end({ user: who.value, database: database.value }, `Disconnect all connections of ${who.value}? Clients may come back; a revocation keeps them away.`);
      } }, "Disconnect user")),
    list.element));
  list.restart();
  return () => clearTimeout(typing);
}
