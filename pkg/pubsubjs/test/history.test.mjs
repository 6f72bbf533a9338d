// An answer of history that is cut. Firefox takes the beginning of a gzip body for the
// whole, and WebKit that of a chunked body: nothing may be missed for that.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, request } from "node:http";
import { test } from "node:test";
import { browserOfTests, openPage } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";

const { skip, browser, other } = await browserOfTests();

/** Forwards requests to a daemon. The first answer of history goes to cut, with its body, and the connection of the browser. */
async function startProxy(daemon, cut) {
  let cuts = 0;
  const server = createServer(async (asked, answer) => {
    const forwarded = request(daemon.url + asked.url, { method: asked.method, headers: asked.headers });
    asked.pipe(forwarded);
    answer.on("close", () => forwarded.destroy());
    forwarded.on("error", () => answer.destroy());
    const [got] = await once(forwarded, "response").catch(() => []);
    if (!got) return;
    if (!asked.url.startsWith("/v1/poll") || asked.method !== "POST" || cuts++) return answer.writeHead(got.statusCode, got.headers) && got.pipe(answer);
    const body = Buffer.concat(await got.toArray());
    const socket = answer.socket;
    const head = (headers) => ["HTTP/1.1 200 OK", ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`), "", ""].join("\r\n");
    cut({ socket, head, headers: got.headers, body });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { url: `http://127.0.0.1:${server.address().port}`, cuts: () => cuts, end: () => (server.closeAllConnections(), server.close()) };
}

// Sends the beginning of an answer, lets it arrive, and ends the connection.
function sendOnly(socket, ...parts) {
  for (const part of parts) socket.write(part);
  setTimeout(() => socket.end(), 60);
}

const chunked = ({ "content-length": _, "content-encoding": __, ...headers }) => ({ ...headers, "transfer-encoding": "chunked" });
const chunk = (text) => `${text.length.toString(16)}\r\n${text}\r\n`;

const ways = {
  "after the header of its gzip body": ({ socket, head, headers, body }) => {
    assert.equal(headers["content-encoding"], "gzip");
    sendOnly(socket, head(headers), body.subarray(0, 10)); // RFC 1952, 2.3
  },
  "in its gzip body": ({ socket, head, headers, body }) => sendOnly(socket, head(headers), body.subarray(0, body.length >> 1)),
  "before its first chunk": ({ socket, head, headers }) => sendOnly(socket, head(chunked(headers))),
  "after a chunk": ({ socket, head, headers }) => sendOnly(socket, head(chunked(headers)), chunk("\n")),
};

for (const [where, cut] of Object.entries(ways)) {
  test(`an answer of history that is cut ${where} is asked for again`, { skip }, async () => {
    const daemon = await Daemon.start({ "cors-origins": other.url });
    const proxy = await startProxy(daemon, cut);
    const context = await browser.newContext();
    try {
      for (let n = 1; n <= 50; n++) await daemon.publish("a", { n, text: "x".repeat(3000) }, "b" + n);
      const tab = await openPage(context, other.url);
      await tab.evaluate((how) => follow(how), { url: proxy.url, transport: "stream", topic: "a", subscribe: { from: "now" } });
      await tab.evaluate(() => subscription.started.then(() => {}));
      // What joins late reads history.
      await tab.evaluate(() => {
        window.late = [];
        client.subscribe("a", { from: "oldest" }, (m) => late.push(m.gap?.reason ?? m.data.n));
      });
      await until("the answer is cut", () => proxy.cuts());
      for (let n = 51; n <= 60; n++) await daemon.publish("a", { n }, "b" + n);
      await tab.waitForFunction(() => late.includes(60));
      assert.deepEqual(await tab.evaluate(() => late), Array.from({ length: 60 }, (_, i) => i + 1));
    } finally {
      await context.close();
      proxy.end();
      await daemon.end();
    }
  });
}
