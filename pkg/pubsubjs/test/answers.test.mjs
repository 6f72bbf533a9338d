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

test("a page does what the table of answers says", { skip, concurrency: 4 }, async (t) => {
  await tryAll(t, daemon, async (url) => {
    const context = await browser.newContext();
    const tab = await context.newPage();
    await tab.goto(url + "/");
    return { evaluate: (f, x) => tab.evaluate(f, x), close: () => context.close() };
  }, 4);
});
