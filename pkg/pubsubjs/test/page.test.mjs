// A page that is hidden, left, brought back, or whose network changes.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";
import { browserOfTests, openPage } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";
import { Client } from "../dist/client.js";

const { skip, browser, other } = await browserOfTests();

// The inactivity time-out is a minute, so only the page itself ends a session soon.
const noSession = (daemon) => until("the session has ended", async () => (await daemon.metric("pubsubd_sessions")) === 0, 10_000);

for (const transport of ["websocket", "stream", "poll"]) {
  test(`a page that is left ends its session, and one from the back-forward cache goes on (${transport})`, { skip }, async () => {
    const daemon = await Daemon.start({ "cors-origins": other.url, "poll-timeout": "20s" });
    const context = await browser.newContext();
    try {
      const tab = await openPage(context, other.url);
      await tab.evaluate((how) => follow(how), { url: daemon.url, transport, topic: "page" });
      const has = (n) => tab.waitForFunction((count) => items.length >= count, n);
      for (let n = 1; n <= 3; n++) await daemon.publish("page", n, "p" + n);
      await has(3);
      const leave = (type) => tab.evaluate((t) => void dispatchEvent(new PageTransitionEvent(t, { persisted: true })), type);
      await leave("pagehide");
      await noSession(daemon);
      for (let n = 4; n <= 6; n++) await daemon.publish("page", n, "p" + n);
      await leave("pageshow");
      await has(6);
      assert.deepEqual(await tab.evaluate(() => items.map((m) => m.gap ?? m.data)), [1, 2, 3, 4, 5, 6]);
      await tab.goto("about:blank");
      await noSession(daemon);
    } finally {
      await context.close();
      await daemon.end();
    }
  });
}

test("a page that is shown again, wakes up or is online again tries at once, until the client is closed", async () => {
  let requests = 0;
  const server = createServer((_, answer) => {
    requests++;
    answer.writeHead(503, { "Content-Type": "application/json" }).end('{"code":"overloaded","retry_after_ms":600000}');
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  // What the client uses of a page.
  const events = new EventTarget();
  const document = new EventTarget();
  Object.assign(globalThis, { document, addEventListener: events.addEventListener.bind(events) });
  const client = new Client(`http://127.0.0.1:${server.address().port}`);
  try {
    client.subscribe("a", () => {});
    const waits = (n) => until(`request ${n}`, () => requests === n && client.state.state === "waiting", 5_000);
    await waits(1);
    document.hidden = true;
    document.dispatchEvent(new Event("visibilitychange")); // hidden: nothing to do
    events.dispatchEvent(new Event("online"));
    await waits(2);
    document.dispatchEvent(new Event("resume"));
    await waits(3);
    document.hidden = false;
    document.dispatchEvent(new Event("visibilitychange"));
    await waits(4);
    client.close();
    events.dispatchEvent(new Event("online"));
    await new Promise((done) => setTimeout(done, 100));
    assert.equal(requests, 4);
  } finally {
    client.close();
    delete globalThis.document;
    delete globalThis.addEventListener;
    server.closeAllConnections();
    server.close();
  }
});
