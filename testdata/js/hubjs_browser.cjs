// hub.js in Chromium, as the server has it: two tabs, a network that goes away and comes
// back, a tab that is frozen. Every publication comes once to each.
"use strict";
const crypto = require("node:crypto");
const assert = require("node:assert/strict");
const { env, watch, run } = require("./browser.cjs");

const base64url = (text) => Buffer.from(text).toString("base64url");
function token(claims) {
  const signed = base64url('{"alg":"HS256","typ":"JWT"}') + "." + base64url(JSON.stringify({ exp: Math.floor(Date.now() / 1000) + 3600, ...claims }));
  return signed + "." + crypto.createHmac("sha256", env.secret).update(signed).digest("base64url");
}

/** follow opens a tab that follows a room and counts in its state. */
async function follow(context) {
  const page = await context.newPage();
  await page.goto(env.url + "/healthz"); // any page of the hub: hub.js comes from its host
  await page.evaluate(async (token) => {
    const { Hub } = await import("/hub.js");
    const hub = (window.hub = new Hub({ token, minDelay: 20, maxDelay: 300, timeout: 1500 }));
    window.got = [];
    const room = (window.room = hub.room("game:tabs"));
    room.on("publication", (p) => { if (!p.data.changes) window.got.push(p.data); });
    hub.connect();
    window.state = room.state();
    await window.state.ready;
  }, token({ sub: "ann" }));
  return page;
}

run(async (browser) => {
  const home = await browser.newContext(), away = await browser.newContext();
  await watch(home, { expected: /status of 404/ }); // a page of JSON has no icon
  await watch(away, { expected: /status of 404|WebSocket|ERR_INTERNET_DISCONNECTED/ });
  const [one, two, far] = [await follow(home), await follow(home), await follow(away)];
  let n = 0;
  const publish = async (count) => {
    for (let i = 0; i < count; i++) await one.evaluate((n) => window.room.publish(n), ++n);
  };
  const all = (page) => page.waitForFunction((n) => window.got.length >= n, n, { timeout: 20000 });

  await publish(3);
  await away.setOffline(true);
  await publish(3);
  await away.setOffline(false);
  await all(far);

  const session = await home.newCDPSession(two);
  await session.send("Page.setWebLifecycleState", { state: "frozen" });
  await publish(3);
  await session.send("Page.setWebLifecycleState", { state: "active" });
  await all(two);

  for (const page of [one, two, far]) await page.evaluate(() => window.state.operate([{ op: "set", key: "seen", value: 1 }]));
  const want = Array.from({ length: n }, (_, i) => i + 1);
  for (const page of [one, two, far]) {
    await all(page);
    await page.waitForFunction(() => window.state.version("seen") === 3);
    assert.deepEqual(await page.evaluate(() => window.got), want);
  }
});
