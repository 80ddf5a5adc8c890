// The console: asks for the admin key, shows one page at a time, and asks the server for
// its figures once a second while it is seen.
import { ApiError, field, h, key } from "./page.js";
import * as overview from "./overview.js";
import * as rooms from "./rooms.js";
import * as connections from "./connections.js";
import * as databases from "./databases.js";
import * as access from "./access.js";
import * as inspector from "./inspector.js";

const pages = [
  ["overview", "Overview", overview.show],
  ["rooms", "Rooms", rooms.show],
  ["connections", "Connections", connections.show],
  ["databases", "Databases", databases.show],
  ["capacity", "Capacity", access.capacity],
  ["revocations", "Revocations", access.revocations],
  ["inspector", "Inspector", inspector.show],
  ["token", "Token", access.token],
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const status = document.getElementById("status");
const lock = document.getElementById("lock");

let leave; // ends the page that is shown
let timer;

function say(text, bad) {
  status.textContent = text;
  status.className = bad ? "bad" : "";
}

/** Shows the page that the address names: #rooms/default/chat%3Alobby. */
function route() {
  if (!key.get()) return login();
  const [name, ...rest] = location.hash.slice(1).split("/");
  const shown = pages.filter(([n]) => n !== "token" || overview.overview()?.development);
  const [current, title, show] = shown.find(([n]) => n === name) ?? shown[0];
  document.title = `${title} · hub console`;
  nav.replaceChildren(...shown.map(([n, t]) => {
    const a = h("a", { href: "#" + n }, t);
    if (n === current) a.setAttribute("aria-current", "page");
    return a;
  }));
  leave?.();
  main.replaceChildren();
  leave = show(main, rest.map(decodeURIComponent));
}

function login(problem) {
  leave?.();
  leave = undefined;
  clearTimeout(timer);
  lock.hidden = true;
  nav.replaceChildren();
  say("");
  document.title = "hub console";
  const input = h("input", { type: "password", autocomplete: "off", required: true, spellcheck: false });
  const why = h("p", { className: "notice bad", hidden: !problem }, problem ?? "");
  why.setAttribute("role", "alert");
  const enter = async () => {
    key.set(input.value.trim());
    try {
      await overview.tick(say);
    } catch (e) {
      key.forget();
      why.hidden = false;
      why.textContent = e instanceof ApiError && e.status === 401 ? "This is not the admin key." : e.message;
      input.select();
      return;
    }
    start();
  };
  // No form: the page's policy lets none be sent.
  const button = h("button", { onclick: enter }, "Open");
  input.addEventListener("keydown", (e) => { if (e.key === "Enter") enter(); });
  main.replaceChildren(h("section", { className: "card login" }, h("h1", {}, "hub console"),
    h("div", { className: "bar" }, field("Admin key", input, "wide"), button), why,
    h("p", { className: "note" }, "It is the admin.key of the configuration; a development server prints it when it starts. This tab keeps it until it is closed.")));
  input.focus();
}

async function look() {
  clearTimeout(timer);
  if (document.visibilityState === "hidden" || !key.get()) return;
  try {
    await overview.tick(say);
  } catch (e) {
    if (e instanceof ApiError && e.status === 401) {
      key.forget();
      return login("The admin key has changed.");
    }
    say(e.message, true);
  }
  timer = setTimeout(look, 1000);
}

function start() {
  lock.hidden = false;
  route();
  main.focus({ preventScroll: true });
  look();
}

lock.addEventListener("click", () => { key.forget(); login(); });
addEventListener("hashchange", () => { route(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
document.addEventListener("visibilitychange", look);

if (key.get()) overview.tick(say).then(start, (e) => login(e.status === 401 ? undefined : e.message));
else login();
