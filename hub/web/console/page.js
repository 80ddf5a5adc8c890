// What the pages share: elements, numbers, the admin API.

/** Makes an element. Text goes in as text, whatever it holds. */
export function h(name, props = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else if (key in e && key !== "list") e[key] = value;
    else e.setAttribute(key, value);
  }
  e.append(...children.flat().filter((c) => c !== undefined && c !== null));
  return e;
}

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const precise = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const number = (n) => (Math.abs(n) < 100 && !Number.isInteger(n) ? precise : whole).format(n);
export const time = (ms) => (ms ? clock.format(ms) : "–");
export const bytes = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${number(n)} ${units[i]}`;
};
export const duration = (seconds) => {
  const [d, hours, m] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (d > 0) return `${d} d ${hours} h`;
  if (hours > 0) return `${hours} h ${m} min`;
  return m > 0 ? `${m} min ${Math.floor(seconds) % 60} s` : `${Math.floor(seconds)} s`;
};

const slot = "hub-admin-key";
export const key = {
  get: () => sessionStorage.getItem(slot), // this tab alone has it
  set: (value) => sessionStorage.setItem(slot, value),
  forget: () => sessionStorage.removeItem(slot),
};

/** ApiError is an answer of the admin API that is a problem. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.code = problem.code;
  }
}

/** Calls the admin API. */
export async function api(method, path, body) {
  const headers = { Authorization: "Bearer " + key.get() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch("/admin/v1/" + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new ApiError(0, { detail: "The server does not answer." });
  }
  const text = await response.text();
  let value = {};
  try {
    if (text) value = JSON.parse(text);
  } catch {
    value = { detail: text.slice(0, 200) };
  }
  if (!response.ok) throw new ApiError(response.status, value);
  return value;
}

export const get = (path, query = {}) => {
  const params = Object.entries(query).filter(([, v]) => v !== "" && v !== undefined);
  return api("GET", path + (params.length ? "?" + new URLSearchParams(params) : ""));
};

/** A line that says what has happened; it is read out. */
export function notice() {
  const box = h("p", { className: "notice", hidden: true });
  box.setAttribute("role", "status");
  return {
    box,
    say(text, bad) {
      box.hidden = !text;
      box.textContent = text;
      box.className = bad ? "notice bad" : "notice";
    },
    fail(e) { this.say(e.message, true); },
  };
}

/** Asks before something that cannot be taken back. */
export function confirmed(question, action) {
  return new Promise((resolve) => {
    const yes = h("button", { className: "danger", value: "yes" }, action);
    const dialog = h("dialog", { onclose: () => { resolve(dialog.returnValue === "yes"); dialog.remove(); } },
      h("form", { method: "dialog" }, h("p", {}, question), h("div", { className: "bar end" }, yes, h("button", { className: "quiet", value: "no" }, "Cancel"))));
    // The policy of the page lets no form be sent, and this one is not.
    for (const button of dialog.querySelectorAll("button")) button.addEventListener("click", (e) => { e.preventDefault(); dialog.close(button.value); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A labelled field. */
export const field = (label, input, className = "") => h("label", { className }, label, input);

/** A table with a caption for screen readers; cells are text, elements, or {n} for numbers. */
export function table(caption, heads, rows, empty) {
  if (rows.length === 0) return h("p", { className: "empty" }, empty);
  const cell = (c, i) => {
    if (c !== null && typeof c === "object" && "n" in c) return h("td", { className: "number" }, c.n);
    return h("td", { className: i === 0 ? "name" : "" }, c);
  };
  const head = (t) => (typeof t === "object" ? h("th", { className: "number", scope: "col" }, t.n) : h("th", { scope: "col" }, t));
  return h("div", { className: "scroll" }, h("table", { "aria-label": caption },
    h("thead", {}, h("tr", {}, heads.map(head))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

/** Reads a list by pages: load(after) answers {rows, next}; draw shows one page. */
export function paged(load, draw) {
  const box = h("div"), say = notice();
  const back = h("button", { className: "quiet", onclick: () => { trail.pop(); show(); } }, "Previous");
  const more = h("button", { className: "quiet", onclick: () => { trail.push(next); show(); } }, "Next");
  const where = h("span", { className: "note" });
  let trail = [""], next = "", turn = 0;
  async function show() {
    const mine = ++turn;
    try {
      const page = await load(trail.at(-1));
      if (mine !== turn) return;
      next = page.next ?? "";
      back.disabled = trail.length < 2;
      more.disabled = !next;
      where.textContent = `Page ${number(trail.length)}${page.note ? " · " + page.note : ""}`;
      box.replaceChildren(draw(page));
      say.say("");
    } catch (e) {
      if (mine === turn) say.fail(e);
    }
  }
  return {
    element: h("div", {}, say.box, box, h("div", { className: "bar end" }, back, more, where)),
    restart() { trail = [""]; return show(); },
    refresh: show,
    say,
  };
}
