// A page that is hidden, left, brought back, or whose network changes.
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import WebSocket from "ws";
import { browserName, browserOfTests, openPage, page } from "./browser.mjs";
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
      assert.deepEqual(await tab.evaluate(() => items.map((m) => m.gap?.reason ?? m.data)), [1, 2, 3, 4, 5, 6]);
    } finally {
      await context.close();
      await daemon.end();
    }
  });

  test(`a page that is closed, or left for one of its site or of another, ends its session (${transport})`, { skip }, async () => {
    const daemon = await Daemon.start({ "cors-origins": other.url, "poll-timeout": "20s" });
    const context = await browser.newContext();
    try {
      await context.newPage(); // when its last page is closed, WebKit ends
      for (const leave of [(tab) => tab.goto("about:blank"), (tab) => tab.goto(other.url + "/elsewhere"), (tab) => tab.close()]) {
        const tab = await openPage(context, other.url);
        await tab.evaluate((how) => follow(how), { url: daemon.url, transport, topic: "page" });
        await daemon.publish("page", 1, "p1");
        await tab.waitForFunction(() => items.length);
        await leave(tab);
        await noSession(daemon);
      }
    } finally {
      await context.close();
      await daemon.end();
    }
  });

  test(`a page that is left, and then returned to, goes on (${transport})`, { skip }, async () => {
    const daemon = await Daemon.start({ "cors-origins": other.url, "poll-timeout": "20s" });
    const context = await browser.newContext();
    try {
      const tab = await openPage(context, other.url);
      await tab.evaluate((how) => follow(how), { url: daemon.url, transport, topic: "page" });
      await daemon.publish("page", 1, "p1");
      await tab.waitForFunction(() => items.length);
      await tab.goto(other.url + "/elsewhere");
      await daemon.publish("page", 2, "p2");
      await tab.goBack();
      const kept = await tab.evaluate(() => "items" in window);
      assert.equal(kept, browserName === "webkit", "Firefox keeps no page that had a connection, and Chromium none under a debugger");
      if (!kept) return;
      await daemon.publish("page", 3, "p3");
      await tab.waitForFunction(() => items.length >= 3);
      assert.deepEqual(await tab.evaluate(() => items.map((m) => m.gap?.reason ?? m.data)), [1, 2, 3]);
    } finally {
      await context.close();
      await daemon.end();
    }
  });
}

test("a page of a file follows a daemon that allows every origin", { skip }, async () => {
  const folder = await mkdtemp(join(tmpdir(), "page-"));
  await writeFile(join(folder, "index.html"), page);
  const daemon = await Daemon.start({ "cors-origins": "*" });
  const context = await browser.newContext();
  try {
    for (const transport of ["websocket", "stream", "poll", "EventSource"]) {
      const tab = await openPage(context, `file://${folder}/index.html`);
      await tab.evaluate((how) => follow(how), { url: daemon.url, transport, topic: "page", options: { share: transport } });
      await daemon.publish("page", transport, transport);
      await tab.waitForFunction((t) => items.some((item) => item.data === t), transport);
      assert.equal(await tab.evaluate(() => origin), "null");
    }
  } finally {
    await context.close();
    await daemon.end();
    await rm(folder, { recursive: true });
  }
});

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

/** What the client uses of a page, in this process. `is(type)` dispatches an event. */
function fakePage() {
  const events = new EventTarget();
  const document = new EventTarget();
  const global = { document, addEventListener: events.addEventListener.bind(events) };
  Object.assign(globalThis, global);
  return {
    is(type) {
      if (type === "visible" || type === "hidden") {
        document.hidden = type === "hidden";
        document.dispatchEvent(new Event("visibilitychange"));
      } else if (type === "resume") document.dispatchEvent(new Event(type));
      else {
        const [name, persisted] = type.split(" ");
        events.dispatchEvent(Object.assign(new Event(name), { persisted: !!persisted }));
      }
    },
    end: () => Object.keys(global).forEach((name) => delete globalThis[name]),
  };
}

const offline = { state: "waiting", reason: "the browser is offline" };

test("a page that goes offline says so at once, and that it is open when something comes", async (t) => {
  for (const transport of ["websocket", "stream", "poll"]) {
    await t.test(transport, async () => {
      const daemon = await Daemon.start();
      const fake = fakePage();
      const client = new Client(daemon.url, { transports: [transport], WebSocket });
      try {
        const items = [];
        await client.subscribe("a", (m) => items.push(m.gap?.reason ?? m.data)).started;
        const opens = () => until("open", () => client.state.state === "open" && client.state.transport === transport, 5_000);
        await opens();
        const states = [];
        client.onState((s) => states.push(s));
        fake.is("offline");
        assert.deepEqual(states, [offline]);
        await daemon.publish("a", 1, "a1");
        await opens(); // the daemon is on this machine, so it was there all the time
        assert.deepEqual(states, [offline, { state: "open", transport }]);
        await until("1 has come", () => items.length);
        assert.deepEqual(items, [1]);
      } finally {
        client.close();
        fake.end();
        await daemon.end();
      }
    });
  }
});

test("a page that is online again is open soon, though nothing comes", async (t) => {
  const daemon = await Daemon.start({ "poll-heartbeat": "60s", "poll-timeout": "60s" });
  try {
    for (const transport of ["websocket", "stream", "poll"]) {
      await t.test(transport, async () => {
        const fake = fakePage();
        const client = new Client(daemon.url, { transports: [transport], WebSocket });
        try {
          await client.subscribe("a", () => {}).started;
          const opens = () => until("open", () => client.state.state === "open" && client.state.transport === transport, 5_000);
          await opens();
          fake.is("offline");
          assert.deepEqual(client.state, offline);
          fake.is("online");
          await opens();
        } finally {
          client.close();
          fake.end();
        }
      });
    }
  } finally {
    await daemon.end();
  }
});

test("a page that is offline stays so when it is shown or its network changes, until it is online", async (t) => {
  const daemon = await Daemon.start();
  const connection = new EventTarget();
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  const navigator = { onLine: true, connection };
  Object.defineProperty(globalThis, "navigator", { value: navigator, configurable: true });
  try {
    for (const transport of ["stream", "poll"]) {
      await t.test(transport, async () => {
        const fake = fakePage();
        const client = new Client(daemon.url, { transports: [transport] });
        try {
          const topic = "shown." + transport; // nothing comes
          await client.subscribe(topic, () => {}).started;
          await until("open", () => client.state.state === "open", 5_000);
          navigator.onLine = false;
          fake.is("offline");
          const states = [];
          client.onState((s) => states.push(s));
          connection.dispatchEvent(new Event("change"));
          for (const sign of ["hidden", "visible", "resume"]) fake.is(sign);
          await new Promise((done) => setTimeout(done, 200));
          assert.deepEqual([client.state, states], [offline, []]);
          fake.is("online"); // some browsers dispatch it before they set onLine
          await until("open", () => client.state.state === "open", 5_000);
        } finally {
          navigator.onLine = true;
          client.close();
          fake.end();
        }
      });
    }
    await t.test("publishing", async () => {
      const fake = fakePage();
      const client = new Client(daemon.url);
      try {
        await client.publish("a", 1);
        await until("open", () => client.state.state === "open", 5_000);
        navigator.onLine = false;
        fake.is("offline");
        connection.dispatchEvent(new Event("change"));
        fake.is("visible");
        assert.deepEqual(client.state, offline);
      } finally {
        navigator.onLine = true;
        client.close();
        fake.end();
      }
    });
  } finally {
    if (before) Object.defineProperty(globalThis, "navigator", before);
    else delete globalThis.navigator;
    await daemon.end();
  }
});

test("a page that went offline during a back-off is open as soon as polls begin", async () => {
  let away = true;
  const server = createServer((request, answer) => {
    const json = (status, body) => answer.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
    if (away) json(503, { code: "overloaded", title: "T", status: 503 });
    else if (request.method === "POST") {
      json(200, { session: "s", positions: ["a@k:0"], limits: { poll_timeout_ms: 20_000, heartbeat_ms: 15_000, unacked: 1000 } });
    } // a poll waits
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const fake = fakePage();
  const client = new Client(`http://127.0.0.1:${server.address().port}`, { transports: ["poll"] });
  try {
    client.subscribe("a", () => {});
    await until("waiting", () => client.state.state === "waiting", 5_000);
    fake.is("offline");
    away = false;
    await until("open", () => client.state.state === "open", 5_000);
  } finally {
    client.close();
    fake.end();
    server.closeAllConnections();
    server.close();
  }
});

test("a page that only publishes shows that it is offline while it is not idle", async () => {
  const daemon = await Daemon.start();
  const fake = fakePage();
  const client = new Client(daemon.url);
  try {
    fake.is("offline");
    assert.deepEqual(client.state, { state: "idle" });
    await client.publish("a", 1);
    await until("open", () => client.state.state === "open", 5_000);
    fake.is("offline");
    assert.deepEqual(client.state, offline);
    fake.is("online");
    assert.deepEqual(client.state, { state: "idle" });
    await client.publish("a", 2);
    client.close();
    fake.is("offline");
    assert.equal(client.state.state, "closed");
  } finally {
    client.close();
    fake.end();
    await daemon.end();
  }
});

const lives = [
  ["pagehide persisted", "pageshow persisted"],
  ["pagehide", "pageshow"],
  ["pagehide persisted", "pageshow"],
  ["pagehide", "hidden", "visible"],
  ["pagehide", "resume"],
  ["pagehide", "online"],
  ["pagehide", "subscribe"],
  ["pagehide", "publish"],
  ["pagehide subscribe", "pageshow"], // the application subscribes in pagehide
  ["hidden", "visible"],
  ["pagehide", "pagehide", "pageshow persisted"],
  ["pageshow persisted"],
];

test("after any sign of life a page that was left goes on, without a hole", async (t) => {
  const daemon = await Daemon.start();
  try {
    for (const transport of ["stream", "poll"]) {
      for (const [i, life] of lives.entries()) {
        await t.test(`${transport}: ${life.join(", ")}`, async () => {
          const fake = fakePage();
          const topic = `life.${transport}${i}`;
          const client = new Client(daemon.url, { transports: [transport] });
          const items = [];
          let published; // close ends a publish that waits for its answer
          const other = () => client.subscribe(topic + ".other", () => {});
          if (life[0] === "pagehide subscribe") addEventListener("pagehide", other);
          try {
            await client.subscribe(topic, (m) => items.push(m.gap?.reason ?? m.data)).started;
            await daemon.publish(topic, "before", topic + 1);
            await until("before has come", () => items.length === 1, 5_000);
            for (const sign of life) {
              if (sign === "subscribe") other();
              else if (sign === "publish") published = client.publish(topic + ".other", 1);
              else fake.is(sign.replace(" subscribe", ""));
              if (!sign.startsWith("pagehide")) continue;
              await noSession(daemon);
              assert.equal(client.state.state, "waiting", "there is a subscription, so the client is not idle");
              await daemon.publish(topic, "meanwhile", topic + 2);
            }
            await daemon.publish(topic, "after", topic + 3);
            await until("after has come", () => items.at(-1) === "after", 5_000);
            await published;
            assert.deepEqual(items, ["before", ...(life[0].startsWith("pagehide") ? ["meanwhile"] : []), "after"]);
          } finally {
            client.close();
            fake.end();
            await noSession(daemon);
          }
        });
      }
    }
  } finally {
    await daemon.end();
  }
});
