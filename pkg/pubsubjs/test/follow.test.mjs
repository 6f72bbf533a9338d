// A page that loads its state and then follows never shows a wrong state.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createServer } from "node:http";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { browserOfTests, openPage, page } from "./browser.mjs";
import { Cutter } from "./cutter.mjs";
import { Daemon, until } from "./daemon.mjs";

const { skip, browser, other } = await browserOfTests();

// An application that keeps a document. It stores each change, and then publishes it.
async function startApplication() {
  const changes = [];
  const server = createServer((_, answer) => {
    const now = JSON.stringify(changes);
    setTimeout(() => answer.setHeader("Access-Control-Allow-Origin", "*").end(now), 20); // changes come meanwhile
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { changes, url: `http://127.0.0.1:${server.address().port}`, end: () => (server.closeAllConnections(), server.close()) };
}

// Follows the document in the page. Counts the states that are not the beginning of what was published.
function followDocument({ url, state, transport }) {
  return import(url + "/v1/client.js").then(({ Client }) => {
    Object.assign(window, { shown: [], wrong: [], loads: 0 });
    const show = () => shown.some((n, i) => n !== i) && wrong.push(shown.slice(-5).join());
    const client = new Client(url, { transports: [transport] });
    const load = async (position) => {
      const loaded = await (await fetch(state)).json();
      window.loads++;
      if (!/@\w+:\d+$/.test(position)) wrong.push("position " + position);
      window.shown = loaded;
      show();
    };
    void (async () => {
      for await (const m of client.follow("doc.7", { load })) {
        if (m.data < shown.length) continue; // the state that was loaded has it
        shown.push(m.data);
        show();
      }
    })();
  });
}

for (const transport of ["websocket", "stream", "poll"]) {
  test(`follow never shows a wrong state over ${transport}`, { skip, timeout: 90_000 }, async () => {
    const daemon = await Daemon.start({ "cors-origins": other.url, "history-messages": 8, "session-queue": 4 });
    const [cutter, application, context] = await Promise.all([Cutter.start(daemon.port, page), startApplication(), browser.newContext()]);
    try {
      const change = async () => {
        application.changes.push(application.changes.length);
        await daemon.publish("doc.7", application.changes.at(-1), "c" + application.changes.length);
      };
      for (let i = 0; i < 20; i++) await change();
      const tab = await openPage(context, other.url);
      await tab.evaluate(followDocument, { url: cutter.url, state: application.url, transport });
      for (let i = 0; i < 200; i++) {
        if (i % 40 === 20) cutter.break("mid-frame");
        if (i === 100) await daemon.crash();
        await change();
        await sleep(4);
      }
      const shown = () => tab.evaluate(() => ({ last: shown.at(-1), length: shown.length, wrong, loads }));
      await until("the page shows the newest state", async () => (await shown()).last === application.changes.at(-1));
      const { length, wrong, loads } = await shown();
      assert.deepEqual(wrong, []);
      assert.equal(length, application.changes.length);
      assert.ok(loads > 1, "the restart is a gap, after which the state is loaded again");
    } finally {
      await context.close();
      await cutter.end();
      application.end();
      await daemon.end();
    }
  });
}
