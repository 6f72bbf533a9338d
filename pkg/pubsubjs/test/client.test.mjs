// The client against the daemon, and against servers that misbehave.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { runInNewContext } from "node:vm";
import WebSocket from "ws";
import { Client, Problem } from "../dist/client.js";
import { Cutter } from "./cutter.mjs";
import { Daemon, until } from "./daemon.mjs";

let daemon;
let topic; // a new one for each test
let count = 0;
const clients = [];

before(async () => (daemon = await Daemon.start({ "history-messages": 20_000 })));
after(() => daemon.end());
beforeEach(() => (topic = `t${++count}`));
after(() => clients.forEach((c) => c.close()));

const open = (options = {}, url = daemon.url) => {
  const c = new Client(url, { WebSocket, ...options });
  clients.push(c);
  return c;
};

const openAt = (url) => open({}, url);

/** Publishes numbers, in order. */
async function publish(from, to, at = topic, more = {}) {
  const messages = [];
  for (let n = from; n <= to; n++) messages.push({ topic: at, data: n, ...more });
  for (let i = 0; i < messages.length; i += 1000) {
    const r = await fetch(daemon.url + "/v1/messages", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(messages.slice(i, i + 1000)),
    });
    const results = await r.json();
    assert.ok(results.every((x) => x.position), JSON.stringify(results.find((x) => x.problem)));
  }
}

const range = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
const values = (items) => items.map((m) => m.gap?.reason ?? m.data);

/** Collects the items of a callback subscription. */
function collect(client, topics, options) {
  const items = [];
  const subscription = client.subscribe(topics, options ?? {}, (m) => items.push(m));
  return { items, subscription, has: (n) => until(() => `${n} items, have ${items.length}`, () => items.length >= n) };
}

for (const transport of ["websocket", "stream", "poll"]) {
  test(`${transport}: messages arrive in order, from the oldest, and topics come and go without a restart`, async () => {
    const client = open({ transports: [transport] });
    await publish(1, 3);
    const a = collect(client, topic, { from: "oldest" });
    await a.has(3);
    const states = [];
    client.onState((s) => states.push(s.state));
    const b = collect(client, topic + ".b");
    await b.subscription.started;
    await publish(1, 2, topic + ".b");
    await b.has(2);
    b.subscription.close();
    await publish(4, 5);
    await a.has(5);
    assert.deepEqual(values(a.items), range(1, 5));
    assert.deepEqual(values(b.items), [1, 2]);
    assert.deepEqual(states, [], "the connection went on");
    assert.equal(client.state.transport, transport);
  });
}

test("a second subscription joins from the oldest while messages flow, without a hole", async () => {
  const client = open();
  const live = collect(client, topic);
  await live.subscription.started;
  await publish(1, 500);
  const publishing = (async () => {
    for (let n = 501; n <= 1500; n += 10) await publish(n, n + 9);
  })();
  await live.has(600);
  const late = collect(client, topic, { from: "oldest" });
  await publishing;
  await live.has(1500);
  await late.has(1500);
  assert.deepEqual(values(live.items), range(1, 1500));
  assert.deepEqual(values(late.items), range(1, 1500));
});

test("a subscription that reads history first says that it has started", async () => {
  const client = open();
  await publish(1, 3);
  await collect(client, topic).subscription.started;
  const { subscription, items, has } = collect(client, topic, { from: "oldest" });
  await subscription.started;
  await has(3);
  assert.deepEqual(values(items), range(1, 3));
});

test("an iterator that is slow gets everything, and delays nobody", async () => {
  const client = open();
  const fast = collect(client, topic);
  const slow = client.subscribe(topic);
  await slow.started;
  const iterator = slow[Symbol.asyncIterator]();
  for (let n = 1; n <= 5000; n += 500) await publish(n, n + 499);
  await fast.has(5000);
  const got = [];
  for (let n = 0; n < 5000; n++) {
    got.push((await iterator.next()).value);
    if (n === 2500) assert.equal(JSON.stringify(slow.positions), JSON.stringify([got.at(-1).position]));
  }
  assert.deepEqual(values(got), range(1, 5000));
  await iterator.return();
});

test("positions resume in another client, of topics and patterns", async () => {
  const one = open();
  const a = collect(one, [topic + ".*", "other." + topic]);
  await a.subscription.started;
  await publish(1, 2, topic + ".x");
  await publish(1, 1, "other." + topic);
  await a.has(3);
  const from = a.subscription.positions;
  one.close();
  await publish(3, 4, topic + ".x");
  await publish(1, 2, topic + ".new");
  await publish(2, 2, "other." + topic);
  const b = collect(open(), [topic + ".*", "other." + topic], { from });
  await b.has(5);
  await publish(9, 9, topic + ".last");
  await b.has(6);
  assert.deepEqual(b.items.map((m) => `${m.topic} ${m.data}`).sort(), [`${topic}.last 9`, `${topic}.new 1`, `${topic}.new 2`, `${topic}.x 3`, `${topic}.x 4`, `other.${topic} 2`].sort());
});

test("a topic that is removed and added again from an earlier position is read from history", async () => {
  const client = open();
  const other = collect(client, topic + ".other");
  const a = collect(client, topic);
  await a.subscription.started;
  await publish(1, 10);
  await a.has(10);
  const from = a.items[4].position;
  a.subscription.close();
  const b = collect(client, topic, { from });
  await publish(11, 12);
  await b.has(7);
  assert.deepEqual(values(b.items), range(6, 12));
  other.subscription.close();
});

test("a gap says its reason, and what was kept follows", async () => {
  const d = await Daemon.start({ "history-messages": 3 });
  try {
    const client = open({}, d.url);
    for (let n = 1; n <= 7; n++) await d.publish(topic, n, "m" + n);
    const first = await (await fetch(`${d.url}/v1/topics/${topic}`)).json();
    const { items, has } = collect(client, topic, { from: first.position.replace(/\d+$/, "1") });
    await has(4);
    assert.deepEqual(values(items), ["evicted", 5, 6, 7]);
    assert.equal(items[0].gap.after, first.position.replace(/\d+$/, "1"));
  } finally {
    await d.end();
  }
});

/** A fetch that notes what was asked for, and the id, of each session that it opens. */
const noting = (opened) => async (url, init) => {
  const answer = await fetch(url, init);
  if (url.endsWith("/v1/sessions")) opened.push({ topics: JSON.parse(init.body).topics, id: (await answer.clone().json()).session });
  return answer;
};

const namesOf = (positions) => positions.map((at) => at.split("@")[0]).sort();

test("topics of a pattern that the server has forgotten are not named for ever", async () => {
  const d = await Daemon.start({ "history-age": "1s" });
  const opened = [];
  const client = open({ fetch: noting(opened) }, d.url);
  try {
    const { items, subscription, has } = collect(client, "chat.*");
    await subscription.started;
    const met = range(1, 501);
    await client.publishMany(met.map((n) => ({ topic: "chat." + n, data: n })));
    await has(501);
    await until("a new session tells which are forgotten", () => opened.length === 2);
    assert.ok(opened[1].topics.length > 1, "those that the client has met are named");
    for (let n = 2; namesOf(subscription.positions).length > 1; n++) {
      await until("the session is there", () => opened.length === n);
      await fetch(`${d.url}/v1/sessions/${opened[n - 1].id}/close`, { method: "POST" });
      await until("the next one", () => opened.length > n);
    }
    const before = opened.length;
    await fetch(`${d.url}/v1/sessions/${opened.at(-1).id}/close`, { method: "POST" });
    await until("one that names the pattern alone", () => opened.length > before);
    assert.deepEqual(namesOf(opened.at(-1).topics), ["chat.*"]);
    await client.publish("chat.7", "again");
    await until("it came", () => items.at(-1).data === "again");
    assert.deepEqual(items.filter((m) => m.gap), []);
    assert.deepEqual(values(items.slice(0, 501)).sort((a, b) => a - b), met);
    assert.deepEqual(values(items.slice(501)), ["again"]);
  } finally {
    client.close();
    await d.end();
  }
});

test("topics of a pattern that do not fit are gaps without a position, also in a session that is opened anew", async () => {
  const d = await Daemon.start({ "limits-pattern-bytes": 600 });
  const opened = [];
  const client = open({ fetch: noting(opened) }, d.url);
  try {
    const [topics, numbers] = [["chat.*", "chat.1", "chat.2"], range(1, 3)];
    const { items, subscription, has } = collect(client, "chat.*");
    await subscription.started;
    for (const n of numbers) await client.publish("chat." + n, n);
    await has(3);
    const gap = items.find((m) => m.gap);
    assert.deepEqual([gap.gap.reason, gap.topic, gap.gap.after], ["unfollowed", "chat.3", gap.position]);
    await client.publish("chat.3", "missed");
    await client.publish("chat.1", "more");
    await has(4);
    assert.deepEqual(values(items.slice(3)), ["more"]);
    assert.deepEqual(namesOf(subscription.positions), topics);
    await fetch(`${d.url}/v1/sessions/${opened[0].id}/close`, { method: "POST" });
    await has(5);
    assert.deepEqual(namesOf(opened[1].topics), topics, "the new session begins at the positions");
    assert.deepEqual([items[4].gap.reason, items[4].topic, items[4].gap.after], ["unfollowed", "chat.*", items[4].position]);
    await client.publish("chat.2", "again");
    await has(6);
    assert.deepEqual(values(items.slice(5)), ["again"]);
    assert.deepEqual(namesOf(subscription.positions), topics);
  } finally {
    client.close();
    await d.end();
  }
});

test("a restart without state is a gap, and delivery goes on", async () => {
  const d = await Daemon.start();
  try {
    const client = open({}, d.url);
    const { items, has, subscription } = collect(client, topic);
    await subscription.started;
    await d.publish(topic, 1, "a");
    await has(1);
    await d.crash();
    await d.publish(topic, 2, "b");
    await has(3);
    assert.deepEqual(values(items), [1, "restarted", 2]);
  } finally {
    await d.end();
  }
});

test("maxRate delivers the newest of each key; another subscription of the topic gets all", async () => {
  const client = open();
  const all = collect(client, topic);
  const paced = collect(client, topic, { maxRate: "4/s" });
  await paced.subscription.started;
  await publish(1, 1);
  await paced.has(1);
  for (let n = 2; n <= 40; n++) await publish(n, n);
  await all.has(40);
  await until("the newest", () => paced.items.at(-1).data === 40);
  assert.deepEqual(values(all.items), range(1, 40));
  assert.ok(paced.items.length < 20, `${paced.items.length} items`);
  // Messages and gaps cover every offset.
  let at = 0;
  for (const m of paced.items) {
    const offset = Number(/\d+$/.exec(m.position)[0]);
    if (m.gap) assert.equal(Number(/\d+$/.exec(m.gap.after)[0]), at);
    else assert.equal(offset, at + 1);
    at = offset;
  }
});

test("echo: false leaves out what this client published", async () => {
  const [ann, bob] = [open(), open()];
  const a = collect(ann, topic, { echo: false });
  const b = collect(bob, topic, { echo: false });
  await Promise.all([a.subscription.started, b.subscription.started]);
  await ann.publish(topic, "by ann");
  await bob.publish(topic, "by bob", { idempotencyKey: "chosen-" + topic });
  await Promise.all([a.has(1), b.has(1)]);
  await ann.publish(topic, "by ann again");
  await b.has(2);
  assert.deepEqual(values(a.items), ["by bob"]);
  assert.deepEqual(values(b.items), ["by ann", "by ann again"]);
});

test("publish takes JSON, text and bytes, and says what is wrong", async () => {
  const client = open();
  const { items, has, subscription } = collect(client, topic);
  await subscription.started;
  const { position, time } = await client.publish(topic, { n: 1 }, { key: "k", ttl: 60 });
  assert.match(position, new RegExp(`^${topic}@\\w+:1$`));
  assert.ok(Math.abs(Date.now() - time) < 60_000);
  await client.publish(topic, "hello", { type: "text/plain" });
  await client.publish(topic, new Uint8Array([0, 255, 7]));
  await has(3);
  assert.deepEqual(items[0].data, { n: 1 });
  assert.equal(items[0].key, "k");
  assert.equal(items[1].text, "hello");
  assert.deepEqual([...items[2].bytes], [0, 255, 7]);
  await assert.rejects(client.publish("a..b", 1), { code: "invalid_topic" });
  await assert.rejects(client.publish("_sys.x", 1), { code: "reserved_topic" });
  await assert.rejects(client.publish(topic, undefined), { code: "invalid_body" });
  await assert.rejects(client.publish(topic, "x".repeat(100_000)), { code: "message_too_large" });
  const given = new AbortController();
  given.abort();
  await assert.rejects(client.publish(topic, 1, { signal: given.signal }), { code: "aborted", message: /may have been published/ });
  assert.throws(() => client.subscribe("a b"), { code: "invalid_topic" });
  assert.throws(() => client.subscribe("a", { from: "a@nowhere" }), { code: "invalid_position" });
  assert.throws(() => client.subscribe("a", { maxRate: "often" }), { code: "invalid_request" });
});

test("publish takes buffers and views as bytes, and refuses what JSON.stringify makes {} of", async () => {
  const client = open();
  const { items, has, subscription } = collect(client, topic);
  await subscription.started;
  const bytes = new Uint8Array([9, 1, 2, 3, 4, 9]);
  const view = (Kind, length) => new Kind(bytes.buffer.slice(1, 5), 0, length);
  const shared = new Uint8Array(new SharedArrayBuffer(4));
  shared.set([1, 2, 3, 4]);
  const other = runInNewContext("new Uint8Array([1, 2, 3, 4]).buffer"); // as of another frame of a page
  const all = [bytes.subarray(1, 5), bytes.buffer.slice(1, 5), new DataView(bytes.buffer, 1, 4), view(Float32Array, 1), view(Uint16Array, 2), shared.buffer, other, Buffer.from(bytes).subarray(1, 5)];
  for (const payload of all) await client.publish(topic, payload);
  await client.publish(topic, bytes.buffer, { type: "image/png" });
  await has(all.length + 1);
  for (const item of items.slice(0, -1)) assert.deepEqual([[...item.bytes], item.type], [[1, 2, 3, 4], "application/octet-stream"]);
  assert.deepEqual([[...items.at(-1).bytes], items.at(-1).type], [[...bytes], "image/png"]);
  for (const payload of [new Blob(["x"]), new FormData(), new Map([[1, 2]]), new Set(), new Error("x"), /x/, Promise.resolve(1), Symbol("x"), () => 1, undefined]) {
    const kind = Object.prototype.toString.call(payload).slice(8, -1);
    const refused = { code: "invalid_body", message: `"${kind}" is not a payload: use JSON, a string with a type, or an ArrayBuffer` };
    await assert.rejects(client.publish(topic, payload), refused, kind);
    if (typeof payload === "object") await assert.rejects(client.publish(topic, { deep: [payload] }), refused, "deep " + kind);
  }
  await assert.rejects(client.publish(topic, { deep: new Float32Array(1) }), { code: "invalid_body", message: /^"Float32Array" is not a payload/ });
  await assert.rejects(client.publish(topic, {}, { type: "text/plain" }), { code: "invalid_body", message: /^"Object" is not a payload: use JSON, a string with a type/ });
  class Point {
    x = 1;
    #y = 2;
  }
  const values = [new Date(0), [null, true, "s", 1.5], Object.create(null), new Point(), { f() {}, u: undefined }];
  for (const value of values) await client.publish(topic, value);
  await has(all.length + 1 + values.length);
  assert.deepEqual(items.slice(-values.length).map((m) => m.data), ["1970-01-01T00:00:00.000Z", [null, true, "s", 1.5], {}, { x: 1 }, {}]);
});

test("an option that is misspelt, and a start that is none, are refused, with what is right", async () => {
  const client = open();
  const refuses = (name, names) => ({ code: "invalid_request", message: `"${name}" is not an option: use ${names}` });
  const ofPublish = "idempotencyKey, ttl, key, type, signal, wait";
  assert.throws(() => client.subscribe(topic, { maxrate: "5/s" }), refuses("maxrate", "from, maxRate, echo, signal, onError"));
  assert.throws(() => new Client(daemon.url, { tokn: "t" }), refuses("tokn", "token, share, transports, fetch, WebSocket"));
  await assert.rejects(client.publish(topic, 1, { id: "k" }), refuses("id", ofPublish));
  await assert.rejects(client.publishMany([], { wait: true }), refuses("wait", "signal"));
  await assert.rejects(client.follow(topic, { load() {}, from: "oldest" }).next(), refuses("from", "maxRate, echo, signal"));
  for (const from of [5, "5", [5], "yesterday", {}]) {
    const detail = `"${from}" is not a position: use topic@epoch:offset, "now", "oldest" or {newest: 50}`;
    assert.throws(() => client.subscribe(topic, { from }), { code: "invalid_position", message: detail });
  }
  for (const from of [undefined, null, "now", [], ["now"]]) client.subscribe(topic, { from }).close();
});

test("publishMany publishes in order, and has a result for each", async () => {
  const client = open();
  const { items, has, subscription } = collect(client, topic);
  await subscription.started;
  const results = await client.publishMany([
    { topic, data: { n: 1 }, key: "k", ttl: 60, idempotencyKey: topic + "-1" },
    { topic, data: "two", type: "text/plain" },
    { topic: "a..b", data: 3 },
    { topic: "_sys.x", data: 4 },
    { topic, data: 5, id: "five" },
    { topic, data: new Uint8Array([6]) },
    { topic, data: { n: 1 }, key: "k", ttl: 60, idempotencyKey: topic + "-1" },
  ]);
  const codes = [undefined, undefined, "invalid_topic", "reserved_topic", "invalid_request", undefined, undefined];
  assert.deepEqual(results.map((r) => r.problem?.code), codes);
  assert.ok(results.every((r) => r.problem instanceof Problem || (r.position && r.time)));
  assert.equal(results[6].position, results[0].position, "the key was the same");
  await has(3);
  assert.deepEqual(items.map((m) => [m.id === topic + "-1", m.data ?? m.text ?? [...m.bytes]]), [[true, { n: 1 }], [false, "two"], [false, [6]]]);
  assert.deepEqual(await client.publishMany([]), []);
});

test("a payload that JSON cannot hold is refused, and so is a message that is none", async () => {
  const client = open();
  const cycle = {};
  cycle.self = cycle;
  const failing = { toJSON() { throw new Error("x"); } };
  for (const payload of [5n, { deep: [5n] }, cycle, failing]) {
    await assert.rejects(client.publish(topic, payload), { name: "Problem", code: "invalid_body", message: /is not a payload/ });
  }
  const results = await client.publishMany([{ topic, data: 1 }, null, undefined, 5, { topic: 5, data: 1 }, { data: 1 }, { topic, data: 5n }, { topic, data: 2 }]);
  const none = "invalid_topic";
  assert.deepEqual(results.map((r) => r.problem?.code), [undefined, none, none, none, none, none, "invalid_body", undefined]);
  assert.ok(results.every((r) => !r.problem || r.problem instanceof Problem));
});

test("publishMany ends when it is aborted, even if a message has a signal of its own", async () => {
  let requests = 0;
  const server = await serve(() => new Promise(() => requests++));
  const control = new AbortController();
  const aborted = openAt(server.url).publishMany([{ topic: "a", data: 1, signal: new AbortController().signal }], { signal: control.signal });
  await until("the request", () => requests === 1);
  control.abort();
  assert.equal((await Promise.race([aborted, new Promise((done) => setTimeout(done, 2_000, [{}]))]))[0].problem?.code, "aborted");
  server.end();
});

test("publishMany takes messages as the server takes them, and leaves room for others", async () => {
  let requests = 0;
  let answer;
  const gate = new Promise((resolve) => (answer = resolve));
  let published = 0;
  const server = await serve(async (_, body) => {
    requests++;
    await gate;
    return [200, body.map(() => ({ position: `a@k:${++published}`, time: 1 }))];
  });
  const client = openAt(server.url);
  let taken = 0;
  function* messages(n) {
    for (; taken < n; ) yield { topic: "a", data: ++taken };
  }
  const many = client.publishMany(messages(3000));
  await until("the first request", () => requests === 1);
  assert.equal(taken, 501, "500 wait, and one is at hand");
  const others = [client.publish("b", 1), client.publish("b", 2)];
  answer();
  const offsets = (await many).map((r) => Number(r.position.split(":")[1]));
  await Promise.all(others);
  assert.equal(offsets.length, 3000);
  assert.deepEqual(offsets, offsets.toSorted((a, b) => a - b));
  server.end();
});

test("publishMany ends when it is aborted or the client is closed, also of endless messages", async () => {
  let requests = 0;
  const server = await serve(() => new Promise(() => requests++));
  function* endless() {
    for (let n = 0; ; n++) yield { topic: "a", data: n };
  }
  const codes = (results) => [...new Set(results.map((r) => r.problem.code))];
  const control = new AbortController();
  const aborted = openAt(server.url).publishMany(endless(), { signal: control.signal });
  const client = openAt(server.url);
  const closed = client.publishMany(endless());
  await until("both have begun", () => requests === 2);
  control.abort();
  client.close();
  assert.deepEqual(codes(await aborted), ["aborted"]);
  assert.deepEqual(codes(await closed).sort(), ["closed", "unknown"]);
  assert.deepEqual(codes(await client.publishMany(endless())), ["closed"]);
  server.end();
});

test("messages that are published together keep their order", async () => {
  const client = open();
  const { items, has, subscription } = collect(client, topic);
  await subscription.started;
  await Promise.all(range(1, 300).map((n) => client.publish(topic, n)));
  await has(300);
  assert.deepEqual(values(items), range(1, 300));
});

test("follow loads first, delivers what comes after, and loads again on a gap", async () => {
  const client = open();
  await publish(1, 5);
  let state = 0; // of the application: the sum so far
  const log = [];
  const followed = client.follow(topic, {
    load: async (position, gap) => {
      const r = await fetch(`${daemon.url}/v1/topics/${topic}/messages?limit=1000`);
      const held = (await r.text()).trim().split("\n").map((l) => JSON.parse(l));
      await publish(6 + log.length * 10, 6 + log.length * 10); // comes after the position, and while it is loaded
      log.push(gap?.reason ?? "begin");
      state = held.filter((f) => f.data).reduce((n, f) => n + f.data, 0);
      return held.at(-1).done.position;
    },
  });
  const first = (await followed.next()).value;
  assert.equal(state, 15);
  assert.equal(first.data, 6);
  state += first.data;
  await fetch(`${daemon.url}/v1/topics/${topic}`, { method: "DELETE" });
  await publish(7, 7);
  for (;;) {
    const m = (await followed.next()).value;
    state += m.data;
    if (m.data === 16) break;
  }
  assert.deepEqual(log, ["begin", "deleted"]);
  assert.equal(state, 7 + 16);
  await followed.return();
});

test("follow goes on from a state that is older than the beginning", async () => {
  await publish(1, 5);
  const { position } = await (await fetch(`${daemon.url}/v1/topics/${topic}`)).json();
  const followed = open().follow(topic, { load: () => position.replace(/\d+$/, "2") });
  const got = [];
  for await (const m of followed) if (got.push(m.data) === 3) break;
  assert.deepEqual(got, [3, 4, 5]);
});

test("follow with a rate yields the newest message, and does not load again for those that it replaced", async () => {
  let loads = 0;
  const followed = open().follow(topic, { maxRate: "2/s", load: () => void loads++ });
  const first = followed.next();
  await until("it has loaded", () => loads);
  await publish(1, 1);
  assert.equal((await first).value.data, 1);
  await publish(2, 9);
  assert.equal((await followed.next()).value.data, 9);
  assert.equal(loads, 1);
  await followed.return();
});

test("follow throws what load throws", async () => {
  const followed = open().follow(topic, { load: () => Promise.reject(new Error("no database")) });
  await assert.rejects(followed.next(), /no database/);
});

test("a signal ends subscriptions, and close ends the client", async () => {
  const client = open();
  const given = new AbortController();
  const ended = (async () => {
    for await (const m of client.subscribe(topic, { signal: given.signal })) void m;
    return "ended";
  })();
  given.abort();
  assert.equal(await ended, "ended");
  const other = client.subscribe(topic)[Symbol.asyncIterator]();
  const next = other.next();
  client.close();
  assert.equal((await next).done, true);
  assert.equal(client.state.state, "closed");
  await assert.rejects(client.publish(topic, 1), { code: "closed" });
  assert.throws(() => client.subscribe(topic), { code: "closed" });
});

test("a silent connection is noticed on each transport", async () => {
  for (const transport of ["websocket", "stream"]) {
    const cutter = await Cutter.start(daemon.port);
    const client = open({ transports: [transport] }, cutter.url);
    const { items, has, subscription } = collect(client, topic);
    await subscription.started;
    await until("open", () => client.state.state === "open");
    cutter.break("silent");
    await publish(1, 1);
    await has(1);
    assert.deepEqual(values(items), [1], transport);
    client.close();
    await cutter.end();
    topic += "x";
  }
});

test("a WebSocket that does not get through is replaced by a stream, and that by polls", async () => {
  class Refused extends EventTarget {
    close() {}
    constructor() {
      super();
      setTimeout(() => this.onclose?.());
    }
  }
  const client = open({ WebSocket: Refused });
  const a = collect(client, topic);
  await a.subscription.started;
  await until("open", () => client.state.state === "open");
  assert.equal(client.state.transport, "stream");
  // A proxy that holds a stream back until it ends.
  const buffering = (url, init) => (String(url).includes("mode=stream") ? new Promise((_, no) => init.signal.addEventListener("abort", () => no(new Error("aborted")))) : fetch(url, init));
  const other = open({ WebSocket: Refused, fetch: buffering });
  const b = collect(other, topic);
  await until("open with polls", () => other.state.transport === "poll");
  await publish(1, 2);
  await Promise.all([a.has(2), b.has(2)]);
  assert.deepEqual(values(b.items), [1, 2]);
});

/** A server of the test's own. The handler gets the request's JSON and returns status and JSON. */
async function serve(handler) {
  const server = createServer(async (req, res) => {
    let body = "";
    for await (const chunk of req) body += chunk;
    const [status, answer, headers] = (await handler(req, body && JSON.parse(body))) ?? [];
    if (!status) return void req.socket.destroy();
    res.writeHead(status, { "Content-Type": "application/json", ...headers }).end(answer === undefined ? "" : JSON.stringify(answer));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { url: `http://127.0.0.1:${server.address().port}`, end: () => (server.closeAllConnections(), server.close()) };
}

const limits = { poll_timeout_ms: 1000, heartbeat_ms: 500, unacked: 100, idempotency_ms: 4000 };

test("a publish whose answer was lost is repeated with its key, and after the window fails as unknown", async () => {
  const seen = [];
  let lose = 2;
  const server = await serve((req, body) => {
    if (req.url === "/v1/sessions") return [201, { session: "s", positions: [], limits }];
    if (req.url.endsWith("/close")) return [204];
    seen.push(body.map((m) => m.id));
    if (lose-- > 0) return;
    return [200, body.map((_, i) => ({ position: `a@k:${i + 1}`, time: 1 }))];
  });
  const client = open({}, server.url);
  assert.equal((await client.publish("a", 1)).position, "a@k:1");
  assert.equal(seen.length, 3);
  assert.deepEqual(new Set(seen.flat()).size, 1);
  seen.length = 0;
  lose = Infinity;
  await assert.rejects(client.publish("a", 2), { code: "unknown" });
  const sent = seen.length;
  await sleep(1500);
  assert.equal(seen.length, sent, "it is never repeated afterwards");
  server.end();
});

test("a refusal that says to wait is obeyed, and the offline queue has a bound", async () => {
  let refuse = true;
  const times = [];
  const server = await serve((_, body) => {
    times.push(Date.now());
    return refuse
      ? [429, { code: "limited", detail: "too fast", retry_after_ms: 600 }, { "Retry-After": "1" }]
      : [200, body.map((_, i) => ({ position: `a@k:${i + 1}`, time: 1 }))];
  });
  const client = open({}, server.url);
  const waiting = range(1, 1000).map((n) => client.publish("a", n));
  await assert.rejects(client.publish("a", 1001), { code: "queue_full", message: /the option wait/ });
  waiting.push(client.publish("a", 1001, { wait: true }));
  await until("two attempts", () => times.length === 2);
  assert.ok(times[1] - times[0] >= 590, `${times[1] - times[0]} ms`);
  refuse = false;
  await Promise.all(waiting);
  server.end();
});

test("a token that is refused is asked for anew, once; then the client is closed", async () => {
  const tokens = [];
  const server = await serve((req) => {
    tokens.push(req.headers.authorization);
    return req.headers.authorization === "Bearer good" || req.url.includes("poll")
      ? [201, { session: "s", positions: ["a@k:0"], limits }]
      : [401, { code: "unauthorized", detail: "the token has expired" }];
  });
  let asked = 0;
  const client = open({ token: async () => ["old", "good"][asked++], transports: ["poll"] }, server.url);
  await client.subscribe("a").started;
  assert.deepEqual(tokens.slice(0, 2), ["Bearer old", "Bearer good"]);
  client.close();
  const other = open({ token: "bad" }, server.url);
  await assert.rejects(async () => {
    for await (const m of other.subscribe("a")) void m;
  }, { code: "unauthorized" });
  assert.equal(other.state.state, "closed");
  assert.match(other.state.reason, /expired/);
  server.end();
});

test("one name that is refused does not harm the others", async () => {
  const server = await serve((req, body) => {
    const names = (body?.topics ?? body?.add ?? []).map((t) => t.topic ?? t);
    if (names.includes("bad")) return [403, { code: "forbidden", detail: "bad is not yours" }];
    if (req.method === "POST" && req.url === "/v1/sessions") return [201, { session: "s", positions: names.map((n) => n + "@k:0"), limits }];
    if (req.method === "PATCH") return [200, { positions: names.map((n) => n + "@k:0") }];
    return new Promise((done) => setTimeout(() => done([200]), 300));
  });
  const client = open({ transports: ["poll"] }, server.url);
  const [a, bad, b] = ["a", "bad", "b"].map((name) => client.subscribe(name));
  await assert.rejects(bad.started, { code: "forbidden" });
  await Promise.all([a.started, b.started]);
  client.close();
  server.end();
});

test("a key to share is no hindrance where tabs cannot share", async () => {
  const c = open({ share: "key" });
  await publish(1, 2);
  const seen = [];
  for await (const m of c.subscribe(topic, { from: "oldest" })) {
    seen.push(m.data);
    if (seen.length === 2) break;
  }
  assert.deepEqual(seen, [1, 2]);
});

test("only subscribe takes a pattern", async () => {
  const c = open();
  const refused = { code: "invalid_topic", message: /^"a\.\*" is not a topic: .* only subscribe takes \*/ };
  await assert.rejects(c.publish("a.*", 1), refused);
  await assert.rejects(c.follow("a.*", { load() {} }).next(), refused);
});
