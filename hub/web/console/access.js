// Who may come: caps, revocations, and tokens of a development server.
import { api, confirmed, field, get, h, notice, number, paged, table, time } from "./page.js";
import { databaseSelect } from "./rooms.js";

const scopes = { server: "Whole server", database: "Database", ip: "One address" };

export function capacity(main) {
  const box = h("div"), say = notice();
  const draw = ({ capacity: rows }) => box.replaceChildren(table("Caps of connections", ["Cap", { n: "Now" }, { n: "Configuration" }, "Limit in force", ""], rows.map((r) => {
    const what = scopes[r.scope] + (r.scope === "database" ? ` ${r.database ?? "(each)"}` : "");
    const limit = h("input", { type: "number", min: 0, value: r.limit, "aria-label": `Limit: ${what}` });
    const act = (work, done) => async () => {
      try {
        draw(await work());
        say.say(done);
      } catch (e) {
        say.fail(e);
      }
    };
    const set = act(() => api("PUT", "capacity", { scope: r.scope, database: r.database, limit: Number(limit.value) }), `${what}: set. It holds at once and after restarts.`);
    const query = new URLSearchParams(r.database ? { scope: r.scope, database: r.database } : { scope: r.scope });
    const reset = act(() => api("DELETE", "capacity?" + query), `${what}: the configuration holds again.`);
    return [what, { n: r.present === null ? "–" : number(r.present) }, { n: r.file ? number(r.file) : "off" }, limit,
      h("span", {}, h("button", { className: "small", onclick: set }, "Set"), " ", r.override === null ? "" : h("button", { className: "quiet small", onclick: reset }, "Reset"))];
  }), "There is no cap."));
  main.append(h("h1", {}, "Capacity"), say.box, h("section", { className: "card" },
    h("p", { className: "note" }, "Connections above a lowered limit stay; new ones are refused. 0 switches a limit off."), box));
  get("capacity").then(draw, say.fail);
}

export function revocations(main) {
  const user = h("input", { placeholder: "ann" }), jti = h("input", { placeholder: "id of a token" }), note = h("input", { placeholder: "why" });
  const before = h("input", { type: "datetime-local", step: 1 }), until = h("input", { type: "datetime-local", step: 1 });
  const names = databaseSelect("", () => {});
  names.prepend(h("option", { value: "", selected: true }, "All"));
  const seconds = (input) => (input.value ? Math.floor(new Date(input.value) / 1000) : undefined);
  const list = paged(async (after) => {
    const page = await get("revocations", { after, limit: 100 });
    return { ...page, note: `${number(page.total)} revocations` };
  }, (page) => table("Revocations", ["What", "Database", "Made", "Until", "Note", ""], page.revocations.map((r) => [
    [r.user && `user ${r.user}`, r.jti && `token ${r.jti}`, r.issued_before && `issued before ${time(r.issued_before * 1000)}`].filter(Boolean).join(", "),
    r.database || "all", time(r.created * 1000), r.until ? time(r.until * 1000) : "for ever", r.note ?? "",
    h("button", { className: "quiet small", onclick: async () => {
      if (!(await confirmed("Take this revocation back? Tokens that are still valid open the door again.", "Take back"))) return;
      try {
        await api("DELETE", "revocations/" + r.id);
        await list.refresh();
      } catch (e) {
        list.say.fail(e);
      }
    } }, "Take back"),
  ]), "Nobody is revoked."));
  const revoke = async () => {
    try {
      await api("POST", "revocations", { user: user.value || undefined, jti: jti.value || undefined, issued_before: seconds(before), until: seconds(until), database: names.value || undefined, note: note.value || undefined });
      for (const i of [user, jti, before, until, note]) i.value = "";
      await list.restart();
      list.say.say("Revoked: it is on disk and in force.");
    } catch (e) {
      list.say.fail(e);
    }
  };
  main.append(h("h1", {}, "Revocations"),
    h("section", { className: "card" }, h("h2", {}, "Revoke"),
      h("div", { className: "bar" }, field("User", user, "wide"), field("Token (jti)", jti, "wide"), field("Issued before", before), field("Forget at", until), field("Database", names), field("Note", note, "wide"),
        h("button", { onclick: revoke }, "Revoke"))),
    h("section", { className: "card" }, list.element));
  list.restart();
}

export function token(main) {
  const user = h("input", { value: "ann" }), out = h("textarea", { rows: 5, readOnly: true, "aria-label": "Token" }), say = notice();
  const mint = async () => {
    try {
      const t = await api("POST", "token", { user: user.value });
      out.value = t.token;
      out.select();
      say.say(`Good until ${time(t.expires * 1000)}.`);
    } catch (e) {
      say.fail(e);
    }
  };
  main.append(h("h1", {}, "Token"), h("section", { className: "card" },
    h("p", { className: "note" }, "A connection token for trying out, for this development server alone. In production your backend signs tokens."),
    h("div", { className: "bar" }, field("User", user, "wide"), h("button", { onclick: mint }, "Mint")), say.box, out));
}
