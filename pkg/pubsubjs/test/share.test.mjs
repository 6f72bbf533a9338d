// Tabs of one browser share a connection, and survive the end of the tab that holds it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { browserName, browserOfTests, has, itemsOf, openPage, socketsOf, startBrowser } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";
import { faults, judge } from "./ledger.mjs";

const { skip, browser, other } = await browserOfTests();

// Opens tabs of one browser window. Each follows the topic, with a share key and options of its own.
async function openTabs(context, daemon, keys, subscribe) {
  const tabs = await Promise.all(keys.map(() => openPage(context, other.url)));
  for (const [i, tab] of tabs.entries()) await tab.evaluate((how) => follow(how), { url: daemon.url, topic: "room.a", options: { share: keys[i] }, subscribe });
  return tabs;
}

// Returns the tabs that have a connection.
async function connected(tabs) {
  const counts = await Promise.all(tabs.map(socketsOf));
  return tabs.filter((_, i) => counts[i]);
}

// Runs a story with a daemon and a browser window of its own.
async function withDaemon(story, shown = browser) {
  const daemon = await Daemon.start({ "cors-origins": other.url });
  const context = await shown.newContext();
  const published = [];
  const publish = async (n) => {
    for (let i = 0; i < n; i++, await sleep(5)) published.push(await daemon.publish("room.a", { n: published.length }, "m" + published.length));
  };
  const allHave = (tabs) => until("the tabs have the newest message", async () => (await Promise.all(tabs.map((tab) => has(tab, published.at(-1))))).every(Boolean));
  try {
    await story({ daemon, context, published, publish, allHave });
  } finally {
    await context.close();
    await daemon.end();
  }
}

// Only Chromium lets a test crash or freeze one tab.
const ends = browserName !== "chromium" ? { closed: (tab) => tab.close() } : {
  closed: (tab) => tab.close(),
  crashed: async (tab) => {
    const crashed = new Promise((done) => tab.once("crash", done));
    (await tab.context().newCDPSession(tab)).send("Page.crash").catch(() => {});
    await crashed;
  },
  // Page.setWebLifecycleState has no effect on a page that counts as visible, as all pages of a test do. The debugger stops it as surely.
  frozen: async (tab) => {
    const session = await tab.context().newCDPSession(tab);
    await session.send("Debugger.enable");
    await session.send("Debugger.pause");
  },
};

for (const [how, end] of Object.entries(ends)) {
  test(`ten tabs share one connection, and go on when the leader is ${how}`, { skip, timeout: 90_000 }, () =>
    withDaemon(async ({ daemon, context, published, publish, allHave }) => {
      const tabs = await openTabs(context, daemon, Array(10).fill("room"));
      await publish(20);
      await allHave(tabs);
      assert.equal(await daemon.metric("pubsubd_sessions"), 1);
      const leaders = await connected(tabs);
      assert.equal(leaders.length, 1, "one tab has a connection");

      const publishing = publish(100);
      await sleep(100);
      await end(leaders[0]);
      const rest = tabs.filter((tab) => tab !== leaders[0]);
      await publishing;
      await allHave(rest);
      for (const tab of rest) {
        const count = judge(published, await itemsOf(tab));
        assert.equal(faults(count), "");
        assert.equal(count.gaps, 0);
      }
      assert.equal((await connected(rest)).length, 1, "one other tab has a connection");
    }));
}

test("a tab that comes later joins without a hole, and each tab has its own rate and echo", { skip }, () =>
  withDaemon(async ({ daemon, context, published, publish, allHave }) => {
    const [first] = await openTabs(context, daemon, ["room"]);
    await publish(30);
    const publishing = publish(60);
    const [late] = await openTabs(context, daemon, ["room"]);
    const [slow] = await openTabs(context, daemon, ["room"], { maxRate: "5/s" });
    const [quiet] = await openTabs(context, daemon, ["room"], { echo: false });
    await publishing;
    const own = await quiet.evaluate(() => client.publish("room.a", "mine").then((p) => p.position));
    published.push(own);
    await publish(40);
    await allHave([first, late, slow, quiet]);
    assert.equal(await daemon.metric("pubsubd_sessions"), 1);
    for (const tab of [first, late]) assert.deepEqual(judge(published, await itemsOf(tab)), { delivered: published.length, gaps: 0, missed: 0, lost: 0, repeated: 0, disordered: 0 });
    const some = judge(published, await itemsOf(slow));
    assert.equal(faults(some), "");
    assert.ok(some.missed > 20, `a slow tab gets the newest messages: ${JSON.stringify(some)}`);
    const others = judge(published.filter((p) => p !== own), await itemsOf(quiet));
    assert.equal(faults(others), "");
    assert.ok(!(await has(quiet, own)), "a tab does not get its own message");
  }));

test("a tab that misses what the leader tells it reads history", { skip }, () =>
  withDaemon(async ({ daemon, context, published, publish, allHave }) => {
    // While window.deaf is true, a tab gets no items of the leader.
    await context.addInitScript(() => {
      window.BroadcastChannel = class extends BroadcastChannel {
        set onmessage(take) {
          super.onmessage = (event) => (window.deaf && event.data.kind === "items" ? undefined : take(event));
        }
      };
    });
    const tabs = await openTabs(context, daemon, ["room", "room", "room"]);
    const [leader, next, deaf] = tabs;
    await publish(10);
    await allHave(tabs);
    assert.deepEqual(await connected(tabs), [leader]);

    await deaf.evaluate(() => (window.deaf = true));
    await publish(20);
    await allHave([next]);
    await deaf.evaluate(() => (window.deaf = false));
    await publish(1); // says what came before it
    await allHave(tabs);

    await deaf.evaluate(() => (window.deaf = true));
    await publish(20);
    await allHave([next]);
    await leader.close();
    await until("the next tab leads", async () => (await socketsOf(next)) === 1);
    await allHave([deaf]); // the new leader says where it begins
    assert.deepEqual(judge(published, await itemsOf(deaf)), { delivered: published.length, gaps: 0, missed: 0, lost: 0, repeated: 0, disordered: 0 });
  }));

test("tabs with two keys do not share", { skip }, () =>
  withDaemon(async ({ daemon, context, publish, allHave }) => {
    const tabs = await openTabs(context, daemon, ["ann", "bob", "ann", "bob"]);
    await publish(1);
    await allHave(tabs);
    assert.equal(await daemon.metric("pubsubd_sessions"), 2);
    assert.equal((await connected(tabs)).length, 2);
  }));

// Then Firefox has neither locks nor a BroadcastChannel.
if (browserName === "firefox") {
  test("tabs that may not share, because cookies are blocked, connect each by itself", { skip }, async () => {
    const blocked = await startBrowser("firefox", { "network.cookie.cookieBehavior": 2 });
    try {
      await withDaemon(async ({ daemon, context, publish, allHave }) => {
        const tabs = await openTabs(context, daemon, ["room", "room"]);
        await publish(1);
        await allHave(tabs);
        assert.equal((await connected(tabs)).length, 2);
      }, blocked);
    } finally {
      await blocked.close();
    }
  });
}
