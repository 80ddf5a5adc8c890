// What the browser tests share: a real Chromium, and pages that must not complain.
//
// HUB_TEST holds {url, admin, adminKey, apiKey, secret, shots, chromium}: url and admin
// are http addresses, shots is a folder for screenshots.
"use strict";
const path = require("node:path");
const { chromium } = require("playwright-core");

const env = JSON.parse(process.env.HUB_TEST);

/** Everything that went wrong on any page; finish() fails when it is not empty. */
const complaints = [];

/** complain is also what hostile strings call when they execute: window.hacked(). */
function complain(text) {
  complaints.push(text);
}

/**
 * launch starts the browser. Its sandbox needs rights that root and containers lack;
 * the pages are our own.
 */
function launch() {
  return chromium.launch({ executablePath: env.chromium, args: ["--no-sandbox", "--disable-gpu"] });
}

/**
 * watch makes a context's pages report console errors, uncaught errors, requests to
 * other hosts and the execution of hostile strings. expected is a RegExp of console
 * errors that a test provokes.
 */
async function watch(context, { expected } = {}) {
  const own = new Set([env.url, env.admin].filter(Boolean).map((u) => new URL(u).host));
  await context.exposeFunction("hacked", () => complain("a hostile string was executed"));
  context.on("page", (page) => {
    page.on("console", (m) => {
      if (m.type() === "error" && !(expected && expected.test(m.text()))) complain(`console: ${m.text()}`);
    });
    page.on("pageerror", (e) => complain(`uncaught: ${e.stack || e}`));
    page.on("dialog", (d) => {
      complain(`a dialog said: ${d.message()}`);
      d.dismiss().catch(() => {});
    });
    page.on("request", (r) => {
      const url = new URL(r.url());
      if (/^(https?|wss?):$/.test(url.protocol) && !own.has(url.host)) complain(`a request to ${r.url()}`);
      if (/token=|key=|eyJ/.test(url.search)) complain(`a secret in ${url.pathname}`);
    });
  });
}

/** shot keeps a screenshot as NAME.png. */
function shot(page, name) {
  return page.screenshot({ path: path.join(env.shots, name + ".png"), fullPage: true });
}

/** run runs a test with a browser and ends the process: 0 when nobody complained. */
async function run(test) {
  const browser = await launch();
  try {
    await test(browser);
  } catch (e) {
    complain(e.stack || String(e));
  }
  await browser.close();
  for (const c of complaints) console.error(c);
  process.exit(complaints.length > 0 ? 1 : 0);
}

module.exports = { env, complain, watch, shot, run };
