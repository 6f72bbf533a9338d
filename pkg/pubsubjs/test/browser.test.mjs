// Two pages in a real browser follow a topic while connections and the daemon fail.
// FULL=1 tries every cell of the matrix; otherwise each two values meet once.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { browserOfTests, has, itemsOf, openPage, page } from "./browser.mjs";
import { Cutter } from "./cutter.mjs";
import { Daemon, Proxy, until } from "./daemon.mjs";
import { faults, judge } from "./ledger.mjs";
import { every, pairCount, pairwise, table } from "./matrix.mjs";

const { skip, browser, other } = await browserOfTests(); // other serves the page on another origin
const cells = (process.env.FULL ? every() : pairwise()).filter((cell) => cell.join().includes(process.env.CELLS ?? "")); // CELLS=Caddy tries only these
const sideBySide = 4; // cells that run at one time
const messages = 200;

const rows = [["transport", "way", "fault", "published", "delivered", "gaps", "missed", "lost", "repeated", "disordered", "s"]];

after(() => {
  if (rows.length > 1) console.log(table(rows.sort((a, b) => (a === rows[0] ? -1 : b === rows[0] ? 1 : 0))));
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
    const settings = { "cors-origins": other.url };
    const daemon = begin(await (fault === "kill -9 with log" ? Daemon.start(settings, { withLog: true }) : Daemon.keepState(settings)));
    const proxy = way === "nginx" || way === "Caddy" ? begin(await Proxy.start(way, daemon, other.url)) : daemon;
    const cutter = begin(await Cutter.start(proxy.port, page));
    const tabs = [];
    for (let i = 0; i < 2; i++) {
      const context = await browser.newContext();
      begin({ end: () => context.close() });
      tabs.push(await openPage(context, way === "same origin" ? cutter.url : other.url));
      await tabs[i].evaluate((how) => follow(how), { url: cutter.url, transport, topic: "room.a" });
    }
    const published = await publishWhile(daemon, tabs[0], transport !== "EventSource", () => fail(fault, daemon, cutter));
    if (["mid-frame", "reset", "silent"].includes(fault)) assert.ok(cutter.broken[fault] >= 2, `connections of both pages were broken: ${JSON.stringify(cutter.broken)}`);
    judgeTabs({ cell: [transport, way, fault], published, tabs: await finish(tabs, published.at(-1)), started });
  } finally {
    for (const part of parts) await part.end();
  }
}

/** Publishes all messages, each third by the page if it can. After a third of them the fault begins. Returns the known positions. */
async function publishWhile(daemon, tab, pagePublishes, fail) {
  const published = [];
  const pages = [];
  let failing;
  const byPage = (k) => client.publish("room.a", { page: k }).then((p) => p.position, (err) => (err.code === "unknown" ? null : Promise.reject(err)));
  for (let n = 0; n < messages; n++) {
    if (pagePublishes && n % 3 === 2) pages.push(tab.evaluate(byPage, n));
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
async function finish(tabs, last) {
  for (const tab of tabs) {
    await until("a page has the last message", () => has(tab, last), 40_000).catch(async (err) => {
      const seen = await tab.evaluate(() => ({ items: items.length, last: items.at(-1), states: window.states?.slice(-5), stopped: window.stopped }));
      throw new Error(`${err.message}: ${JSON.stringify(seen)} ${tab.problems}`);
    });
  }
  return Promise.all(tabs.map((tab) => itemsOf(tab)));
}

function judgeTabs({ cell, published, tabs, started }) {
  const counts = tabs.map((items) => judge(published, items));
  const sum = (name) => counts.reduce((n, c) => n + c[name], 0);
  rows.push([...cell, published.length, ...["delivered", "gaps", "missed", "lost", "repeated", "disordered"].map(sum), ((Date.now() - started) / 1000).toFixed(1)]);
  for (const [i, count] of counts.entries()) {
    assert.equal(faults(count), "", `page ${i + 1} of ${cell.join(", ")}`);
    if (!/^(restart|kill -9)$/.test(cell[2])) assert.equal(count.gaps, 0, `${cell.join(", ")} loses nothing, so it announces no gap`);
  }
  for (const items of tabs) {
    const own = items.filter((item) => item.data?.page !== undefined).map((item) => item.position.replace(/:.*/, ":") + item.data.page);
    assert.equal(new Set(own).size, own.length, `${cell.join(", ")}: what a page publishes comes once in an epoch`);
  }
}
