// What an application, the network or a proxy may do to the client at an awkward moment.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import WebSocket from "ws";
import { Client } from "../dist/client.js";
import { Cutter } from "./cutter.mjs";
import { Daemon, until } from "./daemon.mjs";

let daemon;
let topic; // a new one for each test
let count = 0;
const clients = [];

before(async () => (daemon = await Daemon.start({ "history-messages": 20_000 })));
after(async () => {
  clients.forEach((c) => c.close());
  await daemon.end();
});
beforeEach(() => (topic = `r${++count}`));

const open = (options = {}, url = daemon.url) => {
  const c = new Client(url, { WebSocket, ...options });
  clients.push(c);
  return c;
};

/** Publishes numbers in order. Returns the last position. */
async function publish(from, to, at = topic) {
  const messages = range(from, to).map((n) => ({ topic: at, data: n }));
  let last;
  for (let i = 0; i < messages.length; i += 1000) {
    const body = JSON.stringify(messages.slice(i, i + 1000));
    const r = await fetch(daemon.url + "/v1/messages", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    last = (await r.json()).at(-1).position;
  }
  return last;
}

const range = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
const values = (items) => items.map((m) => m.gap?.reason ?? m.data);

/** Collects the items of a subscription with a callback. */
function collect(client, topics, options = {}) {
  const items = [];
  const subscription = client.subscribe(topics, options, (m) => items.push(m));
  return { items, subscription, has: (n) => until(() => `${n} items, have ${items.length}`, () => items.length >= n, 10_000) };
}

/** A server of the test's own. The handler returns status, answer (JSON, or a text as it is) and headers; nothing breaks the connection. */
async function serve(handler) {
  const server = createServer(async (req, res) => {
    let body = "";
    for await (const chunk of req) body += chunk;
    const [status, answer, headers] = (await handler(req, body && JSON.parse(body))) ?? [];
    if (!status) return void req.socket.destroy();
    res.writeHead(status, { "Content-Type": "application/json", ...headers });
    res.end(answer === undefined ? "" : typeof answer === "string" ? answer : JSON.stringify(answer));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { url: `http://127.0.0.1:${server.address().port}`, end: () => (server.closeAllConnections(), server.close()) };
}

const limits = { poll_timeout_ms: 1000, heartbeat_ms: 500, unacked: 100, idempotency_ms: 4000 };
const frames = (...all) => all.map((f) => JSON.stringify(f) + "\n").join("");
const message = (position, data) => ({ position, time: 1, data });

/** Runs a function. Returns the errors that nobody caught meanwhile. */
async function uncaught(run) {
  const errors = [];
  const listener = (e) => errors.push(e);
  const old = process.listeners("unhandledRejection");
  process.removeAllListeners("unhandledRejection").on("unhandledRejection", listener);
  try {
    await run();
  } finally {
    process.removeAllListeners("unhandledRejection");
    for (const l of old) process.on("unhandledRejection", l);
  }
  return errors.map((e) => e.message);
}

test("the positions of an iteration that was broken off are those of the items taken", async () => {
  const client = open();
  const s = client.subscribe(topic);
  await s.started;
  const all = collect(client, topic);
  await publish(1, 10);
  await all.has(10);
  for await (const m of s) if (m.data === 3) break;
  const rest = collect(client, topic, { from: s.positions });
  await rest.has(7);
  assert.deepEqual(values(rest.items), range(4, 10));
});

test("positions before the start are those given", async () => {
  const from = [await publish(1, 1)];
  const s = open().subscribe(topic, { from });
  assert.deepEqual(s.positions, from);
  s.close();
  assert.deepEqual(s.positions, from);
});

test("a topic that is left and subscribed to again at once goes on without a hole", async () => {
  const cutter = await Cutter.start(daemon.port);
  const client = open({ transports: ["websocket"] }, cutter.url);
  const one = collect(client, topic);
  await one.subscription.started;
  await publish(1, 2);
  await one.has(2);
  one.subscription.close();
  const two = collect(client, topic);
  const [position] = await two.subscription.started;
  assert.match(position, /:2$/);
  cutter.break("reset"); // before anything came
  await publish(3, 4);
  await two.has(2);
  assert.deepEqual(values(two.items), [3, 4]);
  client.close();
  await cutter.end();
});

test("a topic that is subscribed to while the server removes it loses nothing", async () => {
  let removed;
  const gone = new Promise((done) => (removed = done));
  const client = open({
    transports: ["websocket"],
    fetch: async (url, init) => {
      const r = await fetch(url, init);
      if (init.method === "PATCH" && JSON.parse(init.body).remove.includes(topic)) {
        removed();
        await sleep(300);
      }
      return r;
    },
  });
  collect(client, topic + ".other");
  const one = collect(client, topic);
  await one.subscription.started;
  await publish(1, 2);
  await one.has(2);
  one.subscription.close();
  await gone;
  const two = collect(client, topic);
  await two.subscription.started;
  await publish(3, 4);
  await two.has(2);
  assert.deepEqual(values(two.items), [3, 4]);
});

test("a topic that changes hands between two patterns loses nothing for a third subscription", async () => {
  let openPolls, removed, answer;
  const polls = new Promise((done) => (openPolls = done));
  const gone = new Promise((done) => (removed = done));
  const answered = new Promise((done) => (answer = done));
  const client = open({
    transports: ["poll"],
    fetch: async (url, init) => {
      if (!init.method) await polls; // so that the session has messages that it did not send
      const r = await fetch(url, init);
      if (init.method === "PATCH" && JSON.parse(init.body).remove.length) {
        removed();
        await answered;
      }
      return r;
    },
  });
  await publish(1, 1, topic + ".a");
  const one = client.subscribe(topic + ".*");
  await one.started;
  await publish(2, 3, topic + ".a");
  // One request removes the first pattern and adds the second. The topic begins anew at the server.
  one.close();
  const two = collect(client, topic + ".>");
  await gone;
  const three = collect(client, topic + ".*");
  assert.match((await three.subscription.started).find((at) => at.includes(".a@")), /:1$/);
  answer();
  await two.subscription.started;
  openPolls();
  await publish(4, 4, topic + ".a");
  await three.has(3);
  await two.has(1);
  assert.deepEqual([values(two.items), values(three.items)], [[4], [2, 3, 4]]);
});

test("follow begins again at once after it was ended", async () => {
  const client = open();
  const load = (position) => assert.match(position, /@/);
  collect(client, topic + ".other");
  const one = client.follow(topic, { load });
  const first = one.next();
  await until("the subscription", async () => (await fetch(`${daemon.url}/v1/topics/${topic}`)).ok);
  await publish(1, 1);
  await first;
  await one.return();
  const two = client.follow(topic, { load });
  const next = two.next();
  await sleep(100);
  await publish(2, 2);
  assert.equal((await next).value.data, 2);
  await two.return();
});

test("an iteration that waits ends when it is returned", async () => {
  const client = open();
  const iterator = client.subscribe(topic)[Symbol.asyncIterator]();
  const next = iterator.next();
  await iterator.return();
  assert.equal((await next).done, true);
  const followed = client.follow(topic, { load() {} });
  const waits = followed.next();
  await sleep(200);
  await followed.return();
  assert.equal((await waits).done, true);
});

test("a callback that closes its subscription gets nothing more", async () => {
  await publish(1, 10);
  const client = open();
  for (const options of [{ from: "oldest" }, { from: "oldest", maxRate: "1000/s" }]) {
    const got = [];
    collect(client, topic); // so that the second reads history
    const s = client.subscribe(topic, options, (m) => got.push(m.data) === 2 && s.close());
    await until("two", () => got.length >= 2);
    await sleep(50);
    assert.deepEqual(got, options.maxRate ? got.slice(0, 2) : [1, 2]);
  }
});

test("subscriptions that are made together begin each where it wants", async () => {
  await publish(1, 5);
  const client = open();
  const old = collect(client, topic, { from: "oldest" });
  const now = collect(client, topic);
  await Promise.all([old.subscription.started, now.subscription.started]);
  await old.has(5);
  await publish(6, 7);
  await old.has(7);
  await now.has(2);
  assert.deepEqual(values(old.items), range(1, 7));
  assert.deepEqual(values(now.items), [6, 7]);
});

test("a pattern without a rate gets everything of a topic that has one", async () => {
  const client = open();
  const all = collect(client, topic + ".*");
  const paced = collect(client, topic + ".a", { maxRate: "2/s" });
  await Promise.all([all.subscription.started, paced.subscription.started]);
  for (let n = 1; n <= 20; n++) await publish(n, n, topic + ".a");
  await until("the last", () => all.items.at(-1)?.data === 20);
  assert.deepEqual(values(all.items), range(1, 20));
  await until("the newest", () => paced.items.at(-1)?.data === 20);
  assert.ok(paced.items.length < 10);
});

test("a long history is read at its pace, not in a loop", async () => {
  await publish(1, 5000);
  let reads = 0;
  const client = open({ fetch: (url, init) => (String(url).includes("/v1/poll") && reads++, fetch(url, init)) });
  await collect(client, topic).subscription.started;
  const paced = collect(client, topic, { from: "oldest", maxRate: "1/2s" });
  await until("the newest", () => paced.items.at(-1)?.data === 5000);
  assert.ok(reads < 30, `${reads} reads`);
});

test("a listener that throws stops nothing", async () => {
  const client = open();
  let told = 0;
  const errors = await uncaught(async () => {
    client.onState(() => {
      told++;
      throw new Error("a fault of the application");
    });
    const a = collect(client, topic);
    await a.subscription.started;
    await publish(1, 1);
    await a.has(1);
    client.close();
    await sleep(20);
  });
  assert.equal(client.state.state, "closed");
  assert.deepEqual(errors, Array(told).fill("a fault of the application"));
});

test("Retry-After as a date is not a reason to hurry", async () => {
  let requests = 0;
  const server = await serve(() => {
    requests++;
    return [503, "<html>", { "Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT" }];
  });
  const client = open({ transports: ["poll"] }, server.url);
  client.subscribe("a");
  await until("a wait", () => client.state.state === "waiting");
  assert.ok(client.state.waitMs >= 100, JSON.stringify(client.state));
  await sleep(300);
  assert.ok(requests < 5, `${requests} requests`);
  client.close();
  server.end();
});

test("after an outage the WebSocket is used again", async () => {
  const cutter = await Cutter.start(daemon.port);
  let down = false;
  class Socket extends WebSocket {
    constructor(url) {
      super(down ? "ws://127.0.0.1:1" : url);
    }
  }
  const client = open({ WebSocket: Socket, fetch: (url, init) => (down ? Promise.reject(new TypeError("offline")) : fetch(url, init)) }, cutter.url);
  const a = collect(client, topic);
  await until("open", () => client.state.transport === "websocket");
  down = true;
  cutter.break("reset");
  await until("waiting twice", () => client.state.state === "waiting" && client.state.waitMs > 400);
  down = false;
  await until("open", () => client.state.state === "open");
  assert.equal(client.state.transport, "websocket");
  await publish(1, 1);
  await a.has(1);
  client.close();
  await cutter.end();
});

test("messages of an epoch that is over do not come after those of the next", async () => {
  // The feed is at a@k1:2. History is read slowly, and meanwhile the server restarts.
  let polls = 0;
  let frame = 0;
  const feed = [
    [],
    [message("a@k1:2", "two")],
    [message("a@k1:3", "three")],
    [{ gap: { topic: "a", reason: "restarted", after: "a@k1:3", position: "a@k2:0" } }, message("a@k2:1", "new one"), message("a@k2:2", "new two")],
  ];
  let next;
  const step = () => next?.();
  const server = await serve(async (req, body) => {
    if (req.method === "POST" && req.url === "/v1/sessions") return [201, { session: "s", positions: ["a@k1:1"], limits }];
    if (req.url.startsWith("/v1/sessions/s/poll")) {
      if (++frame > feed.length) return new Promise((done) => setTimeout(() => done([200, ""]), 900));
      await new Promise((done) => (next = done));
      return [200, frames(...feed[frame - 1])];
    }
    if (req.url.startsWith("/v1/poll")) {
      polls++;
      if (polls === 1) {
        await new Promise((done) => setTimeout(done, 300)); // three comes meanwhile
        return [200, frames({ hello: { positions: body.topics, frames: 1 } }, message("a@k1:1", "one"))];
      }
      const start = body.topics[0];
      const hello = { hello: { positions: [start], frames: polls === 2 ? 2 : 0 } };
      if (polls === 2) return [200, frames(hello, { gap: { topic: "a", reason: "restarted", after: start, position: "a@k2:0" } }, message("a@k2:1", "new one"))];
      return [200, frames(hello)];
    }
    return [204];
  });
  const client = open({ transports: ["poll"] }, server.url);
  const live = collect(client, "a");
  await live.subscription.started;
  const pump = setInterval(step, 20);
  await live.has(1);
  const late = collect(client, "a", { from: "a@k1:0" });
  await live.has(5);
  await late.has(4);
  await sleep(400);
  clearInterval(pump);
  assert.deepEqual(values(late.items), ["one", "restarted", "new one", "new two"]);
  client.close();
  server.end();
});

test("frames of an unknown kind are ignored, and moved, which only echo=false asks for", async () => {
  const acks = [];
  const feed = [
    [message("a@k1:2", "two"), { moved: { positions: ["a@k1:900"] } }],
    [{ later: { position: "a@k1:99" } }, message("a@k1:3", "three")],
  ];
  const server = await serve(async (req) => {
    if (req.method === "POST" && req.url === "/v1/sessions") return [201, { session: "s1", positions: ["a@k1:1"], limits }];
    if (!req.url.startsWith("/v1/sessions/s1/poll")) return [204];
    acks.push(new URL(req.url, "http://x").searchParams.get("ack"));
    const frame = feed.shift();
    return frame ? [200, frames(...frame)] : new Promise((done) => setTimeout(() => done([200, ""]), 900));
  });
  const client = open({ transports: ["poll"] }, server.url);
  const all = collect(client, "a");
  await until("three polls", () => acks.length === 3);
  assert.deepEqual(acks, ["0", "1", "2"]);
  assert.deepEqual(values(all.items), ["two", "three"]);
  assert.deepEqual(all.subscription.positions, ["a@k1:3"]);
  client.close();
  server.end();
});

test("a client that the server has closed says so to new subscriptions", async () => {
  const server = await serve(() => [401, { code: "unauthorized", detail: "the token has expired" }]);
  const client = open({ token: "bad" }, server.url);
  await assert.rejects(client.subscribe("a").started, { code: "unauthorized" });
  assert.throws(() => client.subscribe("b"), { code: "closed", message: /expired/ });
  server.end();
});

test("a message that is too large fails alone", async () => {
  const client = open();
  const large = client.publish(topic, "x".repeat(1_100_000));
  const small = client.publish(topic, "small");
  await assert.rejects(large, { code: "message_too_large" });
  assert.match((await small).position, /:1$/);
});

test("a publish under way when the client is closed is reported as unknown", async () => {
  let published = 0;
  const server = await serve(() => {
    published++;
    return new Promise(() => {});
  });
  const client = open({}, server.url);
  const sent = client.publish("a", 1);
  await until("the request", () => published === 1);
  const queued = client.publish("a", 2);
  client.close();
  await assert.rejects(sent, { code: "unknown" });
  await assert.rejects(queued, { code: "closed" });
  server.end();
});

test("a publish without an answer fails after the window, also when nothing answers any more", async () => {
  let lost = 0;
  const server = await serve((req) => {
    if (req.url === "/v1/sessions" && req.method === "POST" && lost === 0) return [201, { session: "s", positions: [], limits: { ...limits, idempotency_ms: 1500 } }];
    if (req.url === "/v1/messages") lost++;
    return lost ? undefined : [204];
  });
  const client = open({ transports: ["poll"] }, server.url);
  await client.subscribe("a").started;
  await assert.rejects(client.publish("a", 1), { code: "unknown" });
  client.close();
  server.end();
});

test("follow refuses a position of another topic", async () => {
  const position = await publish(1, 50, topic + ".other");
  const followed = open().follow(topic, { load: () => position });
  await assert.rejects(followed.next(), { code: "invalid_position" });
});

/** A proxy that refuses some publishes with a page of its own. Returns how many requests it refused. */
async function refusing(refuses, status) {
  const p = { refused: 0 };
  const server = await serve(async (req, body) => {
    if (body && req.url === "/v1/messages" && refuses(JSON.stringify(body))) {
      p.refused++;
      return [status, "<h1>refused</h1>", { "Content-Type": "text/html" }];
    }
    const r = await fetch(daemon.url + req.url, { method: req.method, headers: { "Content-Type": "application/json" }, body: body && JSON.stringify(body) });
    return [r.status, await r.text(), { "Content-Type": r.headers.get("content-type") ?? "" }];
  });
  return Object.assign(p, server);
}

const outcomes = (all) => Promise.all(all.map((p) => p.then(() => "published", (e) => e.code)));

test("a proxy that refuses one message refuses no other: the batch is halved until it stands alone", async () => {
  const proxy = await refusing((body) => /select \* from/i.test(body), 403);
  const client = open({ transports: ["poll"] }, proxy.url);
  const other = client.publish(topic + ".other", 0);
  const all = range(1, 40).map((n) => client.publish(topic, n === 23 ? "SELECT * FROM users" : n));
  const want = range(1, 40).map((n) => (n === 23 ? "unexpected_answer" : "published"));
  assert.deepEqual(await outcomes(all), want);
  await other;
  assert.ok(proxy.refused <= 12, `${proxy.refused} requests were refused`);
  const held = await fetch(`${daemon.url}/v1/topics/${topic}/messages`).then((r) => r.text());
  assert.deepEqual([...held.matchAll(/"data":(\d+)/g)].map((m) => Number(m[1])), range(1, 40).filter((n) => n !== 23));
  proxy.end();
});

test("small messages are published behind a proxy that takes only small requests", async () => {
  const proxy = await refusing((body) => body.length > 1000, 413);
  const client = open({ transports: ["poll"] }, proxy.url);
  const all = range(1, 20).map((n) => client.publish(topic, "y".repeat(100) + n));
  const large = client.publish(topic, "y".repeat(2000)).catch((e) => [e.code, e.status]);
  assert.deepEqual(await outcomes(all), range(1, 20).map(() => "published"));
  assert.deepEqual(await large, ["unexpected_answer", 413]);
  proxy.end();
});

test("a proxy that refuses everything is not asked in a rush, and each publish fails", async () => {
  const proxy = await refusing(() => true, 403);
  const client = open({ transports: ["poll"] }, proxy.url);
  const states = [];
  client.onState((s) => states.push(s));
  const all = range(1, 6).map((n) => client.publish(topic, n));
  assert.deepEqual(await outcomes(all), range(1, 6).map(() => "unexpected_answer"));
  assert.ok(proxy.refused <= 12, `${proxy.refused} requests were refused`);
  await until("nothing waits", () => client.state.state === "open");
  assert.match(states[0].reason, /^403 without pubsubd's error body: is this pubsubd, or a proxy/);
  proxy.end();
});

test("a refusal after a lost answer says that the message may have been published", async () => {
  let requests = 0;
  const server = await serve((req) => {
    if (req.url !== "/v1/messages") return [403, { code: "forbidden", status: 403 }];
    return ++requests === 1 ? [] : [401, { code: "unauthorized", status: 401, detail: "the key was revoked" }];
  });
  await assert.rejects(open({}, server.url).publish(topic, 1), { code: "unauthorized", status: 401, message: "the key was revoked; the message may have been published" });
  server.end();
});

test("an answer to a reading of history that was cut is not its end", async () => {
  const last = await publish(1, 60);
  let reads = 0;
  // Browsers resolve some answers that were cut: here with whole lines.
  const cut = async (url, init) => {
    const answer = await fetch(url, init);
    if (!String(url).includes("/v1/poll") || ++reads % 2 === 0) return answer;
    const lines = (await answer.text()).split("\n").slice(0, 11);
    return new Response(lines.map((l) => l + "\n").join(""), { headers: answer.headers });
  };
  const client = open({ fetch: cut, transports: ["poll"] });
  await client.subscribe(topic, () => {}).started;
  const late = collect(client, topic, { from: "oldest" });
  await late.has(60);
  assert.deepEqual(values(late.items), range(1, 60));
  assert.equal(late.items.at(-1).position, last);
  assert.ok(reads >= 2, "an answer was cut");
  client.close();
});

test("a reading of history that began before the feed skipped something does not end the catching up", async () => {
  let answered, release;
  const held = new Promise((resolve) => (answered = resolve));
  const go = new Promise((resolve) => (release = resolve));
  const slow = async (url, init) => {
    const answer = await fetch(url, init);
    if (String(url).includes("/v1/poll")) {
      answered();
      await go;
    }
    return answer;
  };
  const client = open({ fetch: slow });
  const early = collect(client, topic);
  await early.subscription.started;
  const late = collect(client, topic, { from: "oldest" });
  await held; // history was empty
  await publish(1, 1200); // more than a subscription keeps while it reads
  await early.has(1200);
  release();
  await late.has(1200);
  await publish(1201, 1201);
  await late.has(1201);
  assert.deepEqual(values(late.items), range(1, 1201));
  client.close();
});

test("a subscription to a pattern and to one of its topics begins the topic where it is told to", async () => {
  const client = open();
  const early = collect(client, topic + ".*");
  await early.subscription.started;
  await publish(1, 3, topic + ".a");
  await early.has(3);
  const late = collect(client, [topic + ".*", topic + ".a"], { from: [early.items[0].position] });
  await late.has(2);
  assert.deepEqual(values(late.items), [2, 3]);
  client.close();
});

test("a topic that is named while the connection is away takes nothing from a pattern", async () => {
  let down = false;
  let session;
  const client = open({
    fetch: async (url, init) => {
      if (down) throw new TypeError("down");
      const answer = await fetch(url, init);
      if (String(url).endsWith("/v1/sessions")) ({ session } = await answer.clone().json());
      return answer;
    },
  });
  const all = collect(client, topic + ".*");
  await all.subscription.started;
  await until("it is open", () => client.state.state === "open");
  down = true;
  await fetch(`${daemon.url}/v1/sessions/${session}/close`, { method: "POST" });
  await until("it waits", () => client.state.state === "waiting");
  await publish(1, 3, topic + ".a");
  const one = collect(client, topic + ".a");
  down = false;
  await one.subscription.started;
  await publish(4, 4, topic + ".a");
  await Promise.all([all.has(4), one.has(1)]);
  assert.deepEqual(values(all.items), range(1, 4));
  assert.deepEqual(values(one.items), [4]);
  client.close();
});

test("an address that no request can be sent to is refused, with the remedy", async (t) => {
  const refused = (told) => ({ code: "invalid_request", message: `"${told}" is not an address: use https://push.example or, in a page, /path` });
  const wrong = ["push.example", "ws://127.0.0.1:1", "localhost:1", "http://", "https://push.example:port", ""];
  const relative = ["/push", "//127.0.0.1:1", "./push"];
  for (const url of [...wrong, ...relative]) assert.throws(() => new Client(url), refused(url), url);
  assert.throws(() => new Client("http://user:pw@127.0.0.1:1/path"), refused("…@127.0.0.1:1/path"));
  globalThis.location = { href: "https://app.example/shop/cart" };
  t.after(() => delete globalThis.location);
  for (const url of wrong) assert.throws(() => new Client(url), refused(url), url);
  for (const url of [...relative, "https://push.example/sub/", "HTTPS://Push.Example", undefined]) new Client(url).close();
  delete globalThis.location;
  const client = open({}, daemon.url + "/v1");
  await assert.rejects(client.subscribe("a", { onError: () => {} }, () => {}).started, { code: "not_found" });
  await assert.rejects(client.publish("a", 1), { code: "not_found" });
  client.close();
});

test("a client that publishes is not idle until ten seconds after", async (t) => {
  const client = open();
  assert.equal(client.state.state, "idle");
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const published = client.publish(topic, 1);
  await published;
  await new Promise(setImmediate);
  assert.equal(client.state.state, "open");
  t.mock.timers.tick(9_999);
  assert.equal(client.state.state, "open");
  t.mock.timers.tick(1);
  assert.equal(client.state.state, "idle");
});

for (const transport of ["websocket", "stream", "poll"]) {
  test(`${transport}: a connection that is cut before anything came loses nothing, twice`, async () => {
    const cutter = await Cutter.start(daemon.port);
    const client = open({ transports: [transport] }, cutter.url);
    const own = collect(client, topic);
    await own.subscription.started;
    await until("it is open", () => client.state.state === "open");
    cutter.break("reset");
    await publish(1, 1);
    await own.has(1);
    await until("it is open", () => client.state.state === "open");
    cutter.break("close");
    await publish(2, 2);
    await own.has(2);
    assert.deepEqual(values(own.items), [1, 2]);
    client.close();
    await cutter.end();
  });
}

test("an old answer of a cache acknowledges nothing that did not come", async () => {
  // The cache answers the second poll with the first answer. Two is in an answer that was lost.
  let sessions = 0;
  let polls = 0;
  const asked = [];
  const server = await serve(async (req, body) => {
    if (req.method === "POST" && req.url === "/v1/sessions") return [201, { session: "s" + ++sessions, positions: [body.topics[0].includes("@") ? body.topics[0] : "a@k:0"], limits }];
    if (req.url.endsWith("/close")) return [204];
    asked.push(req.url.replace(/^.*(s\d)\/poll\?(ack=\d+).*$/, "$1 $2"));
    if (++polls <= 2) return [200, frames(message("a@k:1", "one"))];
    if (sessions === 1) return [200, frames(message("a@k:3", "three"))]; // two was acknowledged
    if (polls === 3) return [200, frames(message("a@k:2", "two"), message("a@k:3", "three"))];
    return new Promise((done) => setTimeout(() => done([200, ""]), 900));
  });
  const client = open({ transports: ["poll"] }, server.url);
  const own = collect(client, "a");
  await own.has(3);
  assert.deepEqual([values(own.items), asked.slice(0, 3)], [["one", "two", "three"], ["s1 ack=0", "s1 ack=1", "s2 ack=0"]]);
  client.close();
  server.end();
});
