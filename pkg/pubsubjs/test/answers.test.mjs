// Each row of pkg/wire/testdata/answers.json, in Node and in a browser.
import { after, test } from "node:test";
import WebSocket from "ws";
import { tryAll } from "./answers.mjs";
import { browserOfTests } from "./browser.mjs";
import { Daemon } from "./daemon.mjs";

const { skip, browser } = await browserOfTests();
const daemon = await Daemon.start({ "poll-timeout": "200ms" });
after(() => daemon.end());

test("Node does what the table of answers says", { concurrency: 20 }, async (t) => {
  globalThis.ws = WebSocket;
  await tryAll(t, daemon, async () => ({ evaluate: async (f, x) => f(x) }), 20, { module: new URL("../dist/client.js", import.meta.url).href });
});

// FULL=1 tries each transport; otherwise polls, which say most of an answer.
test("a page does what the table of answers says", { skip, concurrency: 4 }, async (t) => {
  const pages = []; // that no cell uses
  await tryAll(t, daemon, async (url) => {
    const tab = pages.pop() ?? (await (await browser.newContext()).newPage());
    await tab.goto(url + "/");
    return { evaluate: (f, x) => tab.evaluate(f, x), close: () => void pages.push(tab) };
  }, 4, {}, (cell) => process.env.FULL || cell.transport === "poll");
});
