// The console in Chromium: login, every page, hostile strings on all of them, keyboard, a
// phone, dark and light.
"use strict";
const crypto = require("node:crypto");
const assert = require("node:assert/strict");
const WebSocket = require("ws");
const { env, watch, shot, run } = require("./browser.cjs");

const evil = `<img src=x onerror=hacked()>"><svg onload=hacked()></script><b>`;
const base64url = (text) => Buffer.from(text).toString("base64url");

function token(claims) {
  const signed = base64url('{"alg":"HS256","typ":"JWT"}') + "." + base64url(JSON.stringify({ exp: Math.floor(Date.now() / 1000) + 3600, ...claims }));
  return signed + "." + crypto.createHmac("sha256", env.secret).update(signed).digest("base64url");
}

/** fill has users with hostile names in rooms with hostile names. */
async function fill() {
  const { Hub } = await import("../../hub/web/hubjs/hub.js");
  const hubs = [];
  for (const user of [evil, "ann", "bob"]) {
    const hub = new Hub({ url: env.url.replace("http", "ws") + "/connection/websocket", WebSocket, token: token({ sub: user }) });
    hub.connect();
    await hub.ready();
    for (const name of ["game:" + evil, "game:lobby"]) {
      const room = hub.room(name);
      room.subscribe();
      await room.publish({ text: evil, [evil]: 1 });
      await room.operate([{ op: "set", key: evil.slice(0, 200), value: evil }]);
    }
    hubs.push(hub);
  }
  return hubs;
}

run(async (browser) => {
  const hubs = await fill();
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light", locale: "en-GB" });
  await watch(context, { expected: /status of (400|401|404|409)/ }); // of what is refused below
  const page = await context.newPage();
  page.setDefaultTimeout(15000);

  // Without a key there is the question for it alone; a wrong one is told.
  const first = await page.goto(env.admin + "/");
  assert.match(first.headers()["content-security-policy"], /default-src 'none'/);
  await page.getByLabel("Admin key").fill("wrong" + evil);
  await page.keyboard.press("Enter");
  await page.getByText("This is not the admin key.").waitFor();
  assert.equal(await page.getByRole("navigation").getByRole("link").count(), 0);
  await shot(page, "console-login");
  await page.getByLabel("Admin key").fill(env.adminKey);
  await page.getByRole("button", { name: "Open" }).click();

  // Moving charts.
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  const line = page.locator(".chart .line").first();
  await page.waitForFunction(() => (document.querySelector(".chart .line")?.getAttribute("points") ?? "").split(" ").length >= 3);
  const was = await line.getAttribute("points");
  await page.waitForFunction((was) => document.querySelector(".chart .line").getAttribute("points") !== was, was);
  assert.equal(await page.locator(".card", { hasText: "Connections" }).first().locator("output").textContent(), "3");
  await shot(page, "console-overview");

  const open = async (name) => {
    await page.getByRole("navigation").getByRole("link", { name, exact: true }).click();
    await page.getByRole("heading", { name, level: 1 }).waitFor();
  };

  await open("Rooms");
  await page.getByRole("link", { name: "game:" + evil, exact: true }).waitFor();
  await page.getByLabel("Name begins with").fill("game:lob");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  await shot(page, "console-rooms");
  await page.getByLabel("Name begins with").fill("");
  await page.getByRole("link", { name: "game:" + evil, exact: true }).click();
  await page.getByRole("heading", { name: "game:" + evil }).waitFor();
  await page.getByText("Oldest event kept").waitFor();

  await open("Connections");
  await page.getByRole("cell", { name: evil }).waitFor();
  await shot(page, "console-connections");
  await page.getByLabel("User").fill("bob");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  await page.getByRole("row", { name: /bob/ }).getByRole("button", { name: "Disconnect" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  assert.equal(await page.locator("tbody tr").count(), 1);
  await page.getByRole("row", { name: /bob/ }).getByRole("button", { name: "Disconnect" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Disconnect" }).click();
  await page.getByText("Nobody is connected that fits.").waitFor();
  assert.equal(hubs[2].state, "disconnected");

  await open("Databases");
  await page.getByLabel("Name").fill(evil);
  await page.getByRole("button", { name: "Create" }).click();
  await page.locator(".notice.bad").waitFor();
  await page.getByLabel("Name").fill("fresh");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByRole("cell", { name: "fresh", exact: true }).waitFor();
  await page.getByRole("row", { name: /^default/ }).getByRole("button", { name: "Back up" }).click();
  await page.getByText(/Backed up default to/).waitFor();
  await page.getByRole("row", { name: /^default/ }).getByRole("button", { name: "Check integrity" }).click();
  await page.getByText(/default is intact/).waitFor();
  await shot(page, "console-databases");

  await open("Capacity");
  await page.getByLabel("Limit: Whole server").fill("77");
  await page.getByRole("row", { name: /Whole server/ }).getByRole("button", { name: "Set" }).click();
  await page.getByText(/Whole server: set/).waitFor();
  await shot(page, "console-capacity");
  await page.getByRole("row", { name: /Whole server/ }).getByRole("button", { name: "Reset" }).click();
  await page.getByText(/the configuration holds again/).waitFor();

  await open("Revocations");
  await page.getByLabel("User").fill(evil);
  await page.getByLabel("Note").fill(evil);
  await page.getByRole("button", { name: "Revoke", exact: true }).click();
  await page.getByText("Revoked: it is on disk and in force.").waitFor();
  await page.getByRole("cell", { name: "user " + evil }).waitFor();
  await shot(page, "console-revocations");
  assert.equal(hubs[0].state, "disconnected");
  await page.getByRole("button", { name: "Take back" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Take back" }).click();
  await page.getByText("Nobody is revoked.").waitFor();

  await open("Inspector");
  await page.getByLabel("Room", { exact: true }).fill("game:" + evil);
  await page.getByRole("button", { name: "Open" }).click();
  await page.locator(".events li").first().waitFor();
  await page.getByRole("cell", { name: evil.slice(0, 200), exact: true }).waitFor();
  await page.getByLabel("Data to publish").fill(JSON.stringify({ from: "the console" }));
  await page.getByRole("button", { name: "Publish" }).click();
  await page.locator(".events li", { hasText: "the console" }).waitFor();
  await page.getByLabel("Steps of an operation").fill('[{"op":"create","key":"made here","value":1}]');
  await page.getByRole("button", { name: "Operate" }).click();
  await page.getByRole("cell", { name: "made here", exact: true }).waitFor();
  await page.getByRole("button", { name: "Operate" }).click(); // it exists
  await page.locator(".notice.bad").waitFor();
  await page.getByLabel("Data to publish").fill("{" + evil);
  await page.getByRole("button", { name: "Publish" }).click();
  await page.getByText(/That is no JSON/).waitFor();
  await shot(page, "console-inspector");

  // A server with a configuration mints no tokens.
  assert.equal(await page.getByRole("navigation").getByRole("link", { name: "Token" }).count(), 0);

  // The keyboard reaches the content past the navigation, and then the pages.
  await page.goto(env.admin + "/console/#overview");
  await page.reload();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.locator(".brand").evaluate((e) => e.ownerDocument.activeElement.blur());
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Rooms", level: 1 }).waitFor();

  // Nothing moves while figures come.
  await open("Overview");
  const place = () => page.locator(".grid").boundingBox();
  const before = await place();
  await page.waitForTimeout(2500); // of moving charts
  assert.deepEqual(await place(), before, "the layout moves");

  // Dark, and on a phone: nothing is wider than the screen.
  await page.emulateMedia({ colorScheme: "dark" });
  await shot(page, "console-overview-dark");
  await page.setViewportSize({ width: 360, height: 740 });
  for (const name of ["Overview", "Rooms", "Connections", "Databases", "Capacity", "Revocations", "Inspector"]) {
    await open(name);
    await page.waitForLoadState("networkidle");
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 360, `${name} is ${wide} pixels wide on a phone`);
    await shot(page, `console-phone-${name.toLowerCase()}`);
  }

  // Locked, the tab knows nothing any more; the key was never in an address.
  await page.getByRole("button", { name: "Lock" }).click();
  await page.getByLabel("Admin key").waitFor();
  assert.equal(await page.evaluate(() => JSON.stringify({ ...sessionStorage, ...localStorage }) + document.cookie), "{}");
  for (const hub of hubs) hub.disconnect();
});
