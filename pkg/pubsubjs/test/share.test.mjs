// Tabs of one browser share a connection, and survive the end of the tab that holds it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { has, itemsOf, noBrowser, openPage, servePage, startBrowser } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";
import { faults, judge } from "./ledger.mjs";

const skip = await noBrowser();
let browser;
let other;

before(async () => {
  if (!skip) [browser, other] = await Promise.all([startBrowser(), servePage()]);
});

after(async () => {
  await browser?.close();
  other?.end();
});

// Opens tabs of one browser window. Each follows the topic, with a share key.
async function openTabs(context, daemon, keys) {
  const tabs = await Promise.all(keys.map(() => openPage(context, other.url)));
  for (const [i, tab] of tabs.entries()) {
    tab.sockets = 0;
    tab.on("websocket", (socket) => {
      tab.sockets++;
      socket.on("close", () => tab.sockets--);
    });
    await tab.evaluate((how) => follow(how), { url: daemon.url, topic: "room.a", options: { share: keys[i] } });
  }
  return tabs;
}

const ends = {
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
  test(`ten tabs share one connection, and go on when the leader is ${how}`, { skip, timeout: 90_000 }, async () => {
    const daemon = await Daemon.start({ "cors-origins": other.url });
    const context = await browser.newContext();
    try {
      const tabs = await openTabs(context, daemon, Array(10).fill("room"));
      const published = [];
      const publish = async (n) => {
        for (let i = 0; i < n; i++, await sleep(5)) published.push(await daemon.publish("room.a", { n: published.length }, "m" + published.length));
      };
      await publish(20);
      await until("all tabs have the messages", async () => (await Promise.all(tabs.map((tab) => has(tab, published.at(-1))))).every(Boolean));
      assert.equal(await daemon.metric("pubsubd_sessions"), 1);
      const leaders = tabs.filter((tab) => tab.sockets);
      assert.equal(leaders.length, 1, "one tab has a connection");

      const publishing = publish(100);
      await sleep(100);
      await end(leaders[0]);
      const rest = tabs.filter((tab) => tab !== leaders[0]);
      await publishing;
      await publish(1);
      await until("the other tabs have all messages", async () => (await Promise.all(rest.map((tab) => has(tab, published.at(-1))))).every(Boolean));
      for (const tab of rest) {
        const count = judge(published, await itemsOf(tab));
        assert.equal(faults(count), "");
        assert.equal(count.gaps, 0);
      }
      assert.equal(rest.filter((tab) => tab.sockets).length, 1, "one other tab has a connection");
    } finally {
      await context.close();
      await daemon.end();
    }
  });
}

test("tabs with two keys do not share", { skip }, async () => {
  const daemon = await Daemon.start({ "cors-origins": other.url });
  const context = await browser.newContext();
  try {
    const tabs = await openTabs(context, daemon, ["ann", "bob", "ann", "bob"]);
    const last = await daemon.publish("room.a", {}, "one");
    await until("all tabs have the message", async () => (await Promise.all(tabs.map((tab) => has(tab, last)))).every(Boolean));
    assert.equal(await daemon.metric("pubsubd_sessions"), 2);
    assert.equal(tabs.filter((tab) => tab.sockets).length, 2);
  } finally {
    await context.close();
    await daemon.end();
  }
});
