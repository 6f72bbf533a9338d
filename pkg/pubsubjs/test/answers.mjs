// Runs the rows of pkg/wire/testdata/answers.json: a client, a proxy with the faults of a
// row, and a daemon. The client lives in this process or in a page.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { connect } from "node:net";
import { page } from "./browser.mjs";
import { until } from "./daemon.mjs";

const table = JSON.parse(await readFile(new URL("../../wire/testdata/answers.json", import.meta.url), "utf8"));
const transports = ["websocket", "stream", "poll"];
const ofPublish = (row) => ["publishes", "rejects"].includes(row.expect);

/** Every row with each transport for which it has a meaning; a row about a publish once. */
export const cells = table.flatMap((row) => (ofPublish(row) ? ["poll"] : (row.transports ?? transports)).map((transport) => ({ row, transport })));

const kinds = [
  ["open", /^POST \/v1\/sessions$/],
  ["poll", /^GET \/v1\/(sessions\/[^/]+\/poll|ws)$/],
  ["change", /^PATCH /],
  ["publish", /^POST \/v1\/messages$/],
];

/** A proxy before a daemon. It serves the page, too, and forwards what no fault is for. */
class FaultyProxy {
  static async start(port, faults) {
    const p = new FaultyProxy();
    Object.assign(p, { port, faults: faults.map((f) => ({ ...f })), hits: 0 });
    p.server = createServer((q, r) => p.answer(q, r)).on("upgrade", (q, socket, head) => p.upgrade(q, socket, head));
    p.server.listen(0, "127.0.0.1");
    await once(p.server, "listening");
    p.url = `http://127.0.0.1:${p.server.address().port}`;
    return p;
  }

  fault(q) {
    const kind = kinds.find(([, form]) => form.test(`${q.method} ${q.url.split("?")[0]}`))?.[0];
    const fault = this.faults.find((f) => f.on === kind && f.times !== 0);
    if (fault) this.hits++;
    if (fault?.times) fault.times--;
    return fault?.answer;
  }

  async answer(q, r) {
    const path = q.url.split("?")[0];
    if (path === "/") return void r.setHeader("Content-Type", "text/html").end(page);
    if (path === "/login") return void r.setHeader("Content-Type", "text/html").end("<form>");
    const body = Buffer.concat(await q.toArray().catch(() => []));
    const fault = this.fault(q);
    if (fault?.cut === "request") return q.socket.destroy();
    if (fault?.status) {
      const [type, text] = fault.problem ? ["application/problem+json", problemOf(fault)] : [fault.type, fault.body];
      return void r.writeHead(fault.status, { ...(type && { "Content-Type": type }), ...(fault.location && { Location: fault.location }) }).end(text ?? "");
    }
    if (fault?.repeat && this.cached) return void r.writeHead(200, this.cached.headers).end(this.cached.body);
    const headers = { ...q.headers, host: `127.0.0.1:${this.port}`, "accept-encoding": "identity" };
    const up = request({ host: "127.0.0.1", port: this.port, path: q.url, method: q.method, headers }, (a) => this.pass(a, r, fault));
    up.on("error", () => r.destroy());
    r.on("close", () => up.destroy());
    up.end(body);
  }

  async pass(a, r, fault) {
    if (!fault) return void a.pipe(r.writeHead(a.statusCode, a.headers));
    const chunks = [];
    for await (const chunk of a) {
      chunks.push(chunk);
      if (fault.cut) break; // a stream does not end
    }
    const body = Buffer.concat(chunks);
    if (fault.repeat) {
      if (body.length) this.cached = { headers: a.headers, body };
      return void r.writeHead(a.statusCode, a.headers).end(body);
    }
    if (fault.cut === "body") {
      const { "content-length": _, ...headers } = a.headers;
      r.writeHead(a.statusCode, headers).write(body.subarray(0, (body.length + 1) >> 1));
    }
    r.socket?.end(); // without an end of the answer
  }

  upgrade(q, socket, head) {
    socket.on("error", () => {});
    const fault = this.fault(q);
    if (fault?.status) return void socket.end(`HTTP/1.1 ${fault.status} Refused\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`);
    if (fault) return void socket.destroy();
    const up = connect(this.port, "127.0.0.1", () => {
      const lines = q.rawHeaders.reduce((text, s, i) => text + s + (i % 2 ? "\r\n" : ": "), "");
      up.write(`GET ${q.url} HTTP/1.1\r\n${lines.replace(/^Host: .*$/im, `Host: 127.0.0.1:${this.port}`).replace(/^Origin: .*\r\n/im, "")}\r\n`);
      up.write(head);
      socket.pipe(up).pipe(socket);
    });
    up.on("error", () => socket.destroy());
    socket.on("close", () => up.destroy());
  }

  heal() {
    this.faults = [];
  }

  end() {
    this.server.closeAllConnections();
    this.server.close();
  }
}

const problemOf = ({ status, problem, retry_after_ms }) => JSON.stringify({ title: "Refused", status, code: problem, detail: "refused by the test", retry_after_ms });

/**
 * Begins a client in a page or in this process. It must not use anything around it. Waits of
 * the client are a tenth as long.
 */
export async function begin({ id, url, module, transport, token, topic }) {
  const { Client } = await import(module ?? url + "/v1/client.js");
  const wait = (globalThis.unscaled ??= globalThis.setTimeout);
  globalThis.setTimeout = (f, ms, ...args) => wait(f, ms / 10, ...args);
  let tokens = 0;
  const options = { static: { token: "static" }, fresh: { token: () => "token-" + ++tokens } }[token] ?? {};
  const client = new Client(url, { transports: [transport], WebSocket: globalThis.WebSocket ?? globalThis.ws, ...options });
  const cell = ((globalThis.cells ??= {})[id] = { client, items: [], states: [], troubles: [] });
  client.onState((s) => cell.states.push(s));
  cell.subscribe = () => {
    const s = client.subscribe(topic, { from: "oldest", onError: (e) => cell.troubles.push(e.code) }, (m) => cell.items.push(m.gap?.reason ?? m.data));
    s.started.catch((e) => (cell.ended = e.code));
  };
  cell.publish = () => client.publish(topic, 1, { idempotencyKey: "one" }).then(() => (cell.published = true), (e) => (cell.rejected = e.code));
}

const seen = (id) => {
  const { items, states, troubles, ended, published, rejected } = globalThis.cells[id];
  return { items, states, troubles, ended, published, rejected };
};

let ids = 0;

/** Runs a cell. `tab` evaluates functions, in a page or here. */
export async function tryCell({ row, transport }, daemon, tab, more = {}) {
  const id = "cell" + ++ids;
  const topic = "answers." + id;
  const post = (n) => daemon.publish(topic, n, `${id}-${n}`);
  const proxy = await FaultyProxy.start(daemon.port, row.faults);
  const context = await tab(proxy.url);
  const see = () => context.evaluate(seen, id);
  const reaches = async (what, test) => {
    let state;
    await until(() => `${what}: ${JSON.stringify({ ...state, states: state?.states.slice(-4) })}, ${proxy.hits} faults`, async () => test((state = await see())), 20_000);
    return state;
  };
  try {
    await context.evaluate(begin, { id, url: proxy.url, transport, token: row.token, topic, ...more });
    if (ofPublish(row)) {
      await context.evaluate((id) => void globalThis.cells[id].publish(), id);
      const { published, rejected } = await reaches("the publish has an outcome", (s) => s.published || s.rejected);
      assert.equal(rejected, row.code);
      const held = await fetch(`${daemon.url}/v1/topics/${topic}/messages`).then((r) => r.text());
      assert.equal(held.split('"data":').length - 1, published ? 1 : 0, "messages that were published");
      return;
    }
    await post(1);
    await context.evaluate((id) => void globalThis.cells[id].subscribe(), id);
    await post(2);
    if (row.expect === "ends") {
      const s = await reaches("the subscription ends", (s) => s.ended || s.troubles.length);
      assert.deepEqual([s.ended ?? s.troubles[0], s.troubles], [row.code, [row.code]]);
      return;
    }
    if (row.expect === "waits") {
      const { status } = row.faults[0].answer;
      const visible = transport !== "websocket" || row.faults[0].on === "open";
      const why = row.reason ? new RegExp(`^${status} .* ${row.reason}$`) : row.rush ? /end at once: is this pubsubd/ : visible ? new RegExp(`^${status === 302 ? 200 : status} .* is this pubsubd`) : /WebSocket did not open/;
      await reaches(`the state says why: ${why}`, (s) => s.states.some((x) => x.state === "waiting" && why.test(x.reason)));
      if (row.rush) {
        await reaches("the application hears of it", (s) => s.troubles.includes("unexpected_answer"));
        assert.ok(proxy.hits <= 100, `${proxy.hits} requests`);
      } else await until("it tries again and again", () => proxy.hits >= 4, 20_000);
      const { ended, troubles } = await see();
      assert.deepEqual([ended, troubles.filter((t) => !row.rush || t !== "unexpected_answer")], [undefined, []]);
      proxy.heal();
    }
    await reaches("what was published is delivered", (s) => s.items.length >= 2);
    await post(3);
    const s = await reaches("what comes later is delivered", (s) => s.items.length >= 3);
    assert.deepEqual([s.items, s.ended], [[1, 2, 3], undefined]);
    assert.ok(proxy.hits > 0, "the fault was met");
  } finally {
    await context.evaluate((id) => globalThis.cells?.[id]?.client.close(), id);
    await context.close?.();
    proxy.end();
  }
}

/** Tries all cells, some at a time, as subtests. */
export async function tryAll(t, daemon, tab, atOnce, more, wanted = () => true) {
  const waiting = cells.filter(wanted).filter(({ row, transport }) => `${row.name}, ${transport}`.includes(process.env.CELLS ?? ""));
  const next = async () => {
    for (let cell; (cell = waiting.shift()); ) await t.test(`${cell.row.name}, ${cell.transport}`, () => tryCell(cell, daemon, tab, more));
  };
  await Promise.all(Array.from({ length: atOnce }, next));
}
