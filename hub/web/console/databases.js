// Databases: create them, back them up, check them.
import { api, bytes, field, get, h, notice, number, table } from "./page.js";

export function show(main) {
  const box = h("div"), say = notice();
  const name = h("input", { placeholder: "game", spellcheck: false });
  const busy = async (button, doing, work) => {
    button.disabled = true;
    say.say(doing);
    try {
      say.say(await work());
      await load();
    } catch (e) {
      say.fail(e);
    }
    button.disabled = false;
  };
  const backup = (d) => (e) => busy(e.currentTarget, `Backing up ${d.name} …`, async () => {
    const b = await api("POST", `databases/${encodeURIComponent(d.name)}/backup`, {});
    return `Backed up ${d.name} to ${b.path}: ${bytes(b.bytes)} in ${number(b.took_ms)} ms, checked.`;
  });
  const check = (d) => (e) => busy(e.currentTarget, `Checking ${d.name} …`, async () => {
    const r = await api("POST", `databases/${encodeURIComponent(d.name)}/integrity`, {});
    if (!r.ok) throw new Error(`${d.name} is damaged: ${r.finding}`);
    return `${d.name} is intact; checked in ${number(r.took_ms)} ms.`;
  });
  async function load() {
    const { databases } = await get("databases");
    box.replaceChildren(table("Databases", ["Name", "From", { n: "Connections" }, { n: "Stored rooms" }, { n: "File" }, { n: "WAL" }, ""], databases.map((d) => [
      d.name, d.configured ? "configuration" : "created here", { n: number(d.connections) }, { n: number(d.stored_rooms) }, { n: bytes(d.file_bytes) }, { n: bytes(d.wal_bytes) },
      h("span", {}, h("button", { className: "quiet small", onclick: backup(d) }, "Back up"), " ", h("button", { className: "quiet small", onclick: check(d) }, "Check integrity")),
    ]), "There is no database."));
  }
  const create = h("button", { onclick: (e) => busy(e.currentTarget, "Creating …", async () => {
    const d = await api("POST", "databases", { name: name.value });
    name.value = "";
    return `Created ${d.name}. Clients reach it at /v1/${d.name}/websocket.`;
  }) }, "Create");
  main.append(h("h1", {}, "Databases"), say.box, h("section", { className: "card" }, box),
    h("section", { className: "card" }, h("h2", {}, "New database"), h("div", { className: "bar" }, field("Name", name, "wide"), create)));
  load().catch(say.fail);
}
