// Two pages in a real browser follow a topic while connections and the daemon fail.
// FULL=1 tries every cell of the matrix; otherwise each two values meet once, in Firefox
// and WebKit of those that depend on the browser: how it sees that a connection ends.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { browserName, browserOfTests, has, itemsOf, openPage, page } from "./browser.mjs";
import { Cutter } from "./cutter.mjs";
import { Daemon, Proxy, until } from "./daemon.mjs";
import { faults, judge } from "./ledger.mjs";
import { every, pairCount, pairwise, table, transports } from "./matrix.mjs";

const { skip, browser, other } = await browserOfTests(); // other serves the page on another origin
// WebKitGTK opens no other connection of HTTP/2 for a request of GET while one is open, though it has gone silent. Only a POST gets one.
const possible = ([transport, way, fault]) => browserName !== "webkit" || transport !== "EventSource" || way !== "TLS" || fault !== "silent";
const some = browserName === "chromium" ? every() : every([transports, ["other origin", "TLS"], ["mid-frame", "silent"]]);
const cells = (process.env.FULL ? every().filter(possible) : pairwise(some.filter(possible))).filter((cell) => cell.join().includes(process.env.CELLS ?? "")); // CELLS=Caddy tries only these
const sideBySide = 4; // cells that run at one time
const messages = 200;

const names = ["published", "delivered", "gaps", "missed", "lost", "repeated", "disordered"];
const rows = [];

after(() => {
  if (!rows.length) return;
  const total = rows[0].map((value, i) => (typeof value === "number" ? Math.round(rows.reduce((sum, row) => sum + row[i], 0)) : ""));
  total[0] = `${rows.length} cells in ${browserName}`;
  console.log(table([["transport", "way", "fault", ...names, "s"], ...rows.sort(), total]));
});

test("the pairwise choice has every pair", () => {
  const chosen = pairwise();
  const pairs = new Set(chosen.flatMap((c) => [c[0] + "|" + c[1], c[0] + "|" + c[2], c[1] + "|" + c[2]]));
  assert.equal(pairs.size, pairCount());
  assert.ok(chosen.length < every().length / 2);
});

test("two pages get every message once and in order, or a gap", { skip, concurrency: sideBySide }, async (t) => {
  await Promise.all(cells.map((cell) => t.test(cell.join(", "), () => tryCell(...cell))));
});

async function tryCell(transport, way, fault) {
  const started = Date.now();
  const parts = [];
  const begin = (part) => (parts.unshift(part), part);
  try {
    const settings = { "cors-origins": other.url, "history-age": "5m" };
    const withTLS = way === "TLS";
    const daemon = begin(await (fault === "kill -9 with log" ? Daemon.start(settings, { withLog: true, withTLS }) : Daemon.keepState(settings, { withTLS })));
    const proxy = way === "nginx" || way === "Caddy" ? begin(await Proxy.start(way, daemon, other.url)) : daemon;
    const cutter = begin(await Cutter.start(proxy.port, page));
    const tabs = [];
    for (let i = 0; i < 2; i++) {
      const context = await browser.newContext({ ignoreHTTPSErrors: withTLS });
      begin({ end: () => context.close() });
      tabs.push(await openPage(context, way === "same origin" ? cutter.url : other.url));
      await tabs[i].evaluate((how) => follow(how), { url: withTLS ? cutter.url.replace("http", "https") : cutter.url, transport, topic: "room.a" });
    }
    const published = await publishWhile(daemon, tabs, transport !== "EventSource", () => fail(fault, daemon, cutter));
    if (["mid-frame", "reset", "silent"].includes(fault)) assert.ok(cutter.broken[fault] >= 2, `connections of both pages were broken: ${JSON.stringify(cutter.broken)}`);
    // A page cannot end a connection of HTTP/2 that has gone silent: the browser does, after about a minute.
    const ms = withTLS && fault === "silent" ? 100_000 : 40_000;
    judgeTabs({ cell: [transport, way, fault], published, tabs: await finish(tabs, published.at(-1), ms), started });
  } finally {
    for (const part of parts) await part.end();
  }
}

/** Publishes all messages, each third by the first page if it can. After a third of them the fault begins. Returns the known positions. */
async function publishWhile(daemon, tabs, pagePublishes, fail) {
  const published = [await daemon.publish("room.a", { first: true }, "first")];
  for (const tab of tabs) await until("a page follows", () => has(tab, published[0]));
  const pages = [];
  let failing;
  const byPage = (k) => client.publish("room.a", { page: k }).then((p) => p.position, (err) => (err.code === "unknown" ? null : Promise.reject(err)));
  for (let n = 0; n < messages; n++) {
    if (pagePublishes && n % 3 === 2) pages.push(tabs[0].evaluate(byPage, n));
    else published.push(await daemon.publish("room.a", { n }, "node-" + n));
    if (n === Math.floor(messages / 3)) failing = fail();
    await sleep(5);
  }
  await failing;
  published.push(...(await Promise.all(pages)).filter(Boolean));
  published.push(await daemon.publish("room.a", { last: true }, "last"));
  return published;
}

async function fail(fault, daemon, cutter) {
  switch (fault) {
    case "restart with state":
      return daemon.restart(true);
    case "restart":
      return daemon.restart(false);
    case "kill -9":
      return daemon.crash();
    case "kill -9 with log":
      for (let i = 0; i < 3; i++) {
        await daemon.crash();
        await sleep(300);
      }
      return;
    case "silent":
      cutter.break("silent");
      return;
    default: // several times: it takes less than a second
      for (let i = 0; i < 3; i++) {
        cutter.break(fault);
        await sleep(300);
      }
  }
}

/** Waits until each page has the last message. Returns their items. */
async function finish(tabs, last, ms) {
  for (const tab of tabs) {
    await until("a page has the last message", () => has(tab, last), ms).catch(async (err) => {
      const seen = await tab.evaluate(() => ({ items: items.length, last: items.at(-1), states: window.states?.slice(-5) }));
      throw new Error(`${err.message}: ${JSON.stringify(seen)} ${tab.problems}`);
    });
  }
  return Promise.all(tabs.map((tab) => itemsOf(tab)));
}

function judgeTabs({ cell, published, tabs, started }) {
  const counts = tabs.map((items) => judge(published, items));
  const sum = (name) => (name === "published" ? published.length : counts.reduce((n, c) => n + c[name], 0));
  rows.push([...cell, ...names.map(sum), Math.round((Date.now() - started) / 100) / 10]);
  for (const [i, count] of counts.entries()) {
    assert.equal(faults(count), "", `page ${i + 1} of ${cell.join(", ")}`);
    if (!/^(restart|kill -9)$/.test(cell[2])) assert.equal(count.gaps, 0, `${cell.join(", ")} loses nothing, so it announces no gap`);
  }
  for (const items of tabs) {
    const own = items.filter((item) => item.data?.page !== undefined).map((item) => item.position.replace(/:.*/, ":") + item.data.page);
    assert.equal(new Set(own).size, own.length, `${cell.join(", ")}: what a page publishes comes once in an epoch`);
  }
}
