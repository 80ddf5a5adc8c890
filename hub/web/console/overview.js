// The server at a glance. The figures are collected while other pages are shown, too.
import { bytes, duration, get, h, number, table } from "./page.js";
import { chart, series } from "./chart.js";

const sum = (all, f) => all.reduce((total, x) => total + f(x), 0);
const most = (all, f) => all.reduce((top, x) => Math.max(top, f(x)), 0);
const requests = (o) => Object.values(o.requests);
const total = (counters) => Object.values(counters).reduce((a, b) => a + b, 0);

/** What is shown: rate says that the value is a counter of which the growth a second counts. */
const figures = [
  { title: "Connections", of: (o) => o.connections, note: (o) => `${number(o.subscriptions)} subscriptions` },
  { title: "Deliveries a second", rate: true, of: (o) => o.deliveries, note: (o) => `${number(o.deliveries)} since the start` },
  { title: "Publications a second", rate: true, of: (o) => o.publications, note: (o) => `${number(o.operations)} operations so far` },
  { title: "Requests a second", rate: true, of: (o) => sum(requests(o), (c) => c.total), note: (o) => `${number(sum(requests(o), (c) => c.limited))} over a limit so far` },
  { title: "Errors a second", rate: true, of: (o) => total(o.errors) + sum(requests(o), (c) => c.server_errors), note: (o) => `${number(o.panics)} panics, ${number(sum(requests(o), (c) => c.server_errors))} of status 5xx` },
  { title: "HTTP p95", unit: " ms", of: (o) => most(requests(o), (c) => c.p95_ms), note: (o) => `p50 ${number(most(requests(o), (c) => c.p50_ms))}; p99 ${number(most(requests(o), (c) => c.p99_ms))} ms, last minute` },
  { title: "Commit p95", unit: " ms", of: (o) => most(o.databases, (d) => d.commits.p95_ms), note: (o) => `p50 ${number(most(o.databases, (d) => d.commits.p50_ms))}; p99 ${number(most(o.databases, (d) => d.commits.p99_ms))} ms, last minute` },
  { title: "Write queue", of: (o) => sum(o.databases, (d) => d.queue.length), note: (o) => `oldest waits ${number(most(o.databases, (d) => d.queue.wait_ms))} ms` },
  { title: "Writes in one commit", of: (o) => most(o.databases, (d) => d.commits.batch_p50), note: (o) => `median; at most ${number(most(o.databases, (d) => d.commits.batch_max))}` },
  { title: "Write-ahead log", format: bytes, of: (o) => sum(o.databases, (d) => d.wal_bytes), note: (o) => `files ${bytes(sum(o.databases, (d) => d.file_bytes))}` },
  { title: "Readers in use", of: (o) => sum(o.databases, (d) => d.readers), note: (o) => `of ${number(sum(o.databases, (d) => d.reader_limit))}` },
  { title: "Memory", format: bytes, of: (o) => o.process.memory || o.process.heap, note: (o) => `room logs ${bytes(o.log_bytes)}, ${number(o.process.descriptors)} descriptors` },
];

const history = figures.map(series);
let last, before, watcher;

/** tick asks once; it is called every second while the page is seen. */
export async function tick(status) {
  const at = performance.now();
  const o = await get("overview");
  if (before && o.started !== before.o.started) for (const s of history) s.values.length = 0; // another process
  figures.forEach((f, i) => {
    if (!f.rate) history[i].add(f.of(o));
    else if (before && before.o.started === o.started) history[i].add(Math.max(0, f.of(o) - f.of(before.o)) / Math.max(0.2, (at - before.at) / 1000));
  });
  before = { o, at };
  last = o;
  status(`${o.state}, up ${duration(o.uptime)}`, o.state !== "serving");
  watcher?.();
  return o;
}

/** The newest overview, if there is one. */
export const overview = () => last;

export function show(main) {
  const cells = figures.map((f) => {
    const picture = chart(`${f.title}, the last two minutes`);
    const value = h("output", {}, "–"), note = h("p", { className: "note" });
    return { picture, value, note, element: h("section", { className: "card" }, h("div", { className: "figure" }, h("h2", {}, f.title), value), note, picture.element) };
  });
  const head = h("p", { className: "note" }), databases = h("div");
  main.append(h("h1", {}, "Overview"), head, h("div", { className: "grid" }, cells.map((c) => c.element)),
    h("section", { className: "card" }, h("h2", {}, "Databases"), databases));
  main.lastChild.style.marginTop = ".9rem";
  watcher = () => {
    const o = last;
    if (!o) return;
    head.textContent = `hub ${o.version} serves ${o.tls ? "https" : "http"}://${o.address}`;
    cells.forEach((c, i) => {
      const f = figures[i], values = history[i].values, v = values.at(-1);
      c.value.textContent = v === undefined ? "–" : (f.format ?? number)(v) + (f.unit ?? "");
      c.note.textContent = f.note(o);
      c.picture.draw(values);
    });
    databases.replaceChildren(table("Databases", ["Name", { n: "Connections" }, { n: "Live rooms" }, { n: "Stored rooms" }, { n: "Publications" }, { n: "Queue" }, { n: "Commit p95" }, { n: "WAL" }, { n: "Readers" }],
      o.databases.map((d) => [d.name, { n: number(d.connections) }, { n: number(d.rooms) }, { n: number(d.stored_rooms) }, { n: number(d.publications) },
        { n: number(d.queue.length) }, { n: `${number(d.commits.p95_ms)} ms` }, { n: bytes(d.wal_bytes) }, { n: `${number(d.readers)} of ${number(d.reader_limit)}` }]), "There is no database."));
  };
  watcher();
  return () => { watcher = undefined; };
}
