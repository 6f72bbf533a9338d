// What a page shows of the server's state: starts at the newest messages, pages of history, and who is on a topic.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";
import { Client } from "../dist/client.js";
import { Daemon, until } from "./daemon.mjs";

let daemon;
let topic; // a new one for each test
let count = 0;
const clients = [];

before(async () => {
  Object.assign(process.env, { PUBSUBD_TOPICS_ROOM_PATTERN: "room.*", PUBSUBD_TOPICS_ROOM_PRESENCE: "true", PUBSUBD_TOPICS_ROOM_PRESENCE_GRACE: "100ms" });
  daemon = await Daemon.start();
});
after(async () => {
  clients.forEach((c) => c.close());
  await daemon.end();
});
beforeEach(() => (topic = `room.${++count}`));

const open = (url = daemon.url, options = {}) => {
  const c = new Client(url, { transports: ["stream"], ...options });
  clients.push(c);
  return c;
};

const range = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
const values = (items) => items.map((m) => m.gap?.reason ?? m.data);
const isProblem = (code) => (e) => e.name === "Problem" && e.code === code;

async function publish(from, to, at = topic) {
  const body = JSON.stringify(range(from, to).map((data) => ({ topic: at, data })));
  const r = await fetch(daemon.url + "/v1/messages", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  return (await r.json()).map((m) => m.position);
}

/** Collects the items of a subscription. */
function collect(client, topics, options) {
  const items = [];
  const subscription = client.subscribe(topics, options, (m) => items.push(m));
  return { items, subscription, has: (n) => until(() => `${n} items, have ${items.length}`, () => items.length >= n, 10_000) };
}

/** A server that answers each request with the next of the answers, [status, body], and then with the last. */
async function serve(...answers) {
  const asked = [];
  const server = createServer((req, res) => {
    asked.push(req.url);
    const [status, body] = answers.length > 1 ? answers.shift() : answers[0];
    res.writeHead(status, { "Content-Type": "application/json" }).end(typeof body === "string" ? body : JSON.stringify(body));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  after(() => (server.closeAllConnections(), server.close()));
  return { url: `http://127.0.0.1:${server.address().port}`, asked };
}

const line = (frame) => JSON.stringify(frame) + "\n";

/** Opens a stream of the topic for the client of this name. Returns a function that closes it. */
async function come(name, at = topic) {
  const leave = new AbortController();
  await fetch(`${daemon.url}/v1/poll?topic=${at}&mode=stream${name ? "&client=" + name : ""}`, { signal: leave.signal });
  return () => leave.abort();
}

/** Collects the changes of a list. */
function watch(client, options = {}) {
  const changes = [];
  const list = client.presence(topic, options, (c) => changes.push(c));
  const has = (...names) => until(() => `${[...list.members.keys()]} are ${names}`, () => changes.length && [...list.members.keys()].sort().join() === names.map((n) => "/" + n).sort().join());
  return { list, changes, has };
}

test("a subscription begins with the newest messages, of a pattern with those of each topic", async () => {
  const [a, b] = [topic + ".a", topic + ".b"];
  await publish(1, 10, a);
  await publish(1, 2, b);
  const client = open();
  const one = collect(client, a, { from: { newest: 3 } });
  await one.has(3);
  const late = collect(client, a, { from: { newest: 2 } }); // the feed is open: it reads history
  await late.has(2);
  const all = collect(client, topic + ".*", { from: { newest: 4 } });
  await all.has(6);
  await publish(11, 11, a);
  await Promise.all([one.has(4), late.has(3), all.has(7)]);
  assert.deepEqual(values(one.items), [8, 9, 10, 11]);
  assert.deepEqual(values(late.items), [9, 10, 11]);
  assert.deepEqual(values(all.items.filter((m) => m.topic === a)), [7, 8, 9, 10, 11]);
  assert.deepEqual(values(all.items.filter((m) => m.topic === b)), [1, 2]);
});

test("a number of newest messages that is none is refused, with what is right", () => {
  const client = open();
  for (const newest of [0, 1001, -1, 1.5, "many", null, NaN]) {
    const message = `"${newest}" is not a number of messages: use 1 to 1000`;
    assert.throws(() => client.subscribe(topic, { from: { newest } }), { code: "invalid_position", message });
  }
  for (const newest of [1, 1000]) client.subscribe(topic, { from: { newest } }).close();
});

test("pages of history, backwards, are everything once, and a subscription goes on after the newest", async () => {
  await publish(1, 25);
  const client = open();
  const pages = [await client.history(topic, { limit: 10 })];
  await publish(26, 27);
  const after = collect(client, topic, { from: pages[0].next });
  while (pages[0].more) pages.unshift(await client.history(topic, { before: pages[0].before, limit: 10 }));
  await after.has(2);
  assert.deepEqual(pages.map((p) => values(p.items)), [range(1, 5), range(6, 15), range(16, 25)]);
  assert.deepEqual(values(after.items), [26, 27]);
});

test("a page that follows: load the newest, follow, page back", async () => {
  const positions = await publish(1, 10);
  const client = open();
  let page;
  const load = async (_position, _gap, signal) => (page = await client.history(topic, { limit: 4, signal })).next;
  const shown = [];
  const run = (async () => {
    for await (const { data } of client.follow(topic, { load })) if (shown.push(data) === 2) break;
  })();
  await until("the page is loaded", () => page);
  await publish(11, 12);
  await run;
  assert.deepEqual([values(page.items), page.next, shown], [range(7, 10), positions[9], [11, 12]]);
});

test("a loop that is left while it loads ends, whatever load throws then", async () => {
  let loading;
  const load = (_position, _gap, signal) => new Promise((_, fail) => ((loading = true), signal.addEventListener("abort", () => fail(new Error("aborted")))));
  const followed = open().follow(topic, { load });
  const next = followed.next();
  await until("it loads", () => loading);
  await followed.return();
  assert.deepEqual(await next, { done: true, value: undefined });
});

test("a topic that does not exist has an empty page, after which a subscription misses nothing", async () => {
  const client = open();
  const page = await client.history(topic);
  assert.deepEqual(page, { items: [], more: false, next: "oldest" });
  await publish(1, 2);
  const { items, has } = collect(client, topic, { from: page.next });
  await has(2);
  assert.deepEqual(values(items), [1, 2]);
  const followed = client.follow(topic, { load: () => page.next });
  assert.deepEqual([(await followed.next()).value.data, (await followed.next()).value.data], [1, 2]);
  await followed.return();
});

test("the page before a position of another epoch is a gap", async () => {
  await publish(1, 2);
  const { items, more } = await open().history(topic, { before: topic + "@other:7" });
  assert.deepEqual([values(items), more], [["restarted"], false]);
});

test("wrong arguments of history are refused, with what is right", async () => {
  const client = open();
  await assert.rejects(client.history("a.*"), isProblem("invalid_topic"));
  await assert.rejects(client.history(topic, { after: "x" }), { code: "invalid_request", message: '"after" is not an option: use before, limit, signal' });
  await assert.rejects(client.history(topic, { before: "newest" }), isProblem("invalid_position"));
  await publish(1, 1);
  await assert.rejects(client.history(topic, { limit: 5000 }), isProblem("invalid_request"));
});

test("an answer of history that was cut, or a refusal that may pass, is asked for again", async () => {
  const message = line({ position: "a@k:1", time: 1, data: 1 });
  const whole = message + line({ done: { position: "a@k:1", more: true } });
  const server = await serve([200, message], [200, message + whole.slice(message.length, -5)], [503, { code: "overloaded", status: 503 }], [200, whole]);
  const page = await open(server.url).history("a", { before: "a@k:2", limit: 1 });
  assert.deepEqual([values(page.items), page.before, page.more, page.next], [[1], "a@k:1", true, "a@k:1"]);
  assert.deepEqual(server.asked, Array(4).fill("/v1/topics/a/messages?before=a@k:2&limit=1"));
});

test("history ends with what the server refuses for good, when it is aborted, and with the client", async () => {
  const forbidden = await serve([403, { code: "forbidden", status: 403, detail: "no" }]);
  await assert.rejects(open(forbidden.url).history("a"), isProblem("forbidden"));
  const away = await serve([503, { code: "overloaded", status: 503 }]);
  const [client, control] = [open(away.url), new AbortController()];
  const [aborted, closed, signalled] = [client.history("a", { signal: control.signal }), client.history("a"), client.history("a", { signal: new AbortController().signal })];
  await until("they are asked for", () => away.asked.length >= 3);
  control.abort();
  await assert.rejects(aborted, isProblem("aborted"));
  client.close();
  await assert.rejects(closed, isProblem("closed"));
  await assert.rejects(signalled, isProblem("closed"));
  await assert.rejects(client.history("a"), isProblem("closed"));
  assert.throws(() => client.presence("a"), isProblem("closed"));
});

test("a list has who is there, and says what changes", async () => {
  const annGoes = await come("ann");
  const { list, changes, has } = watch(open());
  await has("ann");
  await come("bob");
  await has("ann", "bob");
  await annGoes();
  await has("bob");
  const bob = list.members.get("/bob");
  assert.deepEqual(Object.keys(bob).sort(), ["client", "key", "since"]);
  assert.deepEqual(changes.map((c) => [c.event, c.member?.key]), [["list", undefined], ["join", "/bob"], ["leave", "/ann"]]);
  assert.equal(changes[1].member, bob);
  assert.deepEqual([list.count, list.anonymous, list.exact], [1, 0, true]);
  await come(undefined);
  await until("somebody without a name is counted", () => list.anonymous === 1);
  assert.deepEqual(changes.at(-1), { event: "count" });
  list.close();
});

test("a list is an iterable of its changes, and ends when the loop is left or it is closed", async () => {
  await come("ann");
  const client = open();
  const list = client.presence(topic);
  for await (const { event } of list) {
    assert.deepEqual([event, list.count], ["list", 1]);
    break;
  }
  const other = client.presence(topic);
  const rest = (async () => {
    for await (const { event } of other) if (event === "list") setTimeout(other.close);
    return "ended";
  })();
  assert.equal(await rest, "ended");
});

test("a list is right again after the server has crashed", async () => {
  await come("ann");
  const { list, changes, has } = watch(open());
  await has("ann");
  await daemon.crash();
  await until("the list is read again", () => changes.filter((c) => c.event === "list").length > 1);
  await come("bob");
  await has("bob");
  list.close();
});

test("a list that is not permitted, or of a topic without presence, ends with the Problem", async () => {
  const [heard, client] = [[], open()];
  client.presence("other", { onError: (e) => heard.push(e) }, () => {});
  await until("it is told", () => heard.length);
  assert.ok(isProblem("not_found")(heard[0]), heard[0]);
  await assert.rejects(client.presence("other")[Symbol.asyncIterator]().next(), isProblem("not_found"));
  await assert.rejects(client.presence("a.*")[Symbol.asyncIterator]().next(), isProblem("invalid_topic"));
  await assert.rejects(client.presence(topic, { sginal: 1 })[Symbol.asyncIterator]().next(), { code: "invalid_request", message: '"sginal" is not an option: use signal, onError' });
});

test("a list is read again after a gap, but not after conflated; claims may be renewed, and counts come", async () => {
  const at = (n) => `_presence.a@k:${n}`;
  const ann = { key: "x/1", subject: "x", since: 5 };
  const lists = [
    [503, { code: "overloaded", status: 503 }],
    [200, { topic: "a", position: at(2), count: 1, anonymous: 0, exact: true, members: [ann] }],
    [200, { topic: "a", position: at(8), count: 812, anonymous: 3, exact: false, members: [ann, { key: "y" }] }],
  ];
  const news = (n, key, data) => line({ position: at(n), time: 1, key, data });
  const gap = (reason, from, to) => line({ gap: { topic: "_presence.a", reason, after: at(from), position: at(to) } });
  const polls = [
    news(2, "x/1", { event: "join", subject: "x", since: 5 }) + gap("conflated", 2, 3) + news(4, "x/1", { event: "join", subject: "x", claims: { name: "Ann" }, since: 5 }),
    news(5, "z", { event: "leave" }) + gap("deleted", 5, 8),
    news(9, "count", { event: "count", count: 900, anonymous: 4, exact: false }),
  ];
  let reads = 0;
  const server = createServer((req, res) => {
    const answer = (status, body) => res.writeHead(status, { "Content-Type": "application/json" }).end(typeof body === "string" ? body : JSON.stringify(body));
    if (req.url.endsWith("/presence")) return answer(...lists[reads++]);
    if (req.url === "/v1/sessions") return answer(200, { session: "s", positions: [at(0)], limits: { poll_timeout_ms: 1000, heartbeat_ms: 500, unacked: 100, idempotency_ms: 4000 } });
    if (req.url.includes("/poll") && polls.length && reads > 1) return answer(200, polls.shift());
    setTimeout(answer, 200, 200, "");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const seen = [];
  const list = open(`http://127.0.0.1:${server.address().port}`, { transports: ["poll"] }).presence("a", ({ event, member }) =>
    seen.push([event, member?.key, member?.claims?.name, list.count, list.exact]));
  await until(() => "all is told: " + JSON.stringify(seen), () => seen.length >= 5, 10_000);
  list.close();
  server.closeAllConnections();
  server.close();
  assert.deepEqual(seen, [
    ["list", undefined, undefined, 1, true],
    ["join", "x/1", "Ann", 1, true],
    ["leave", "z", undefined, 1, true], // the list does not have it
    ["list", undefined, undefined, 812, false],
    ["count", undefined, undefined, 900, false],
  ]);
  assert.deepEqual([reads, list.anonymous, list.members.size], [3, 4, 2]);
});
