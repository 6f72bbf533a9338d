// Starts at the newest messages.
import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { Client } from "../dist/client.js";
import { Daemon, until } from "./daemon.mjs";

let daemon;
let topic; // a new one for each test
let count = 0;
const clients = [];

before(async () => {
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
const values = (items) => items.map((m) => m.gap ?? m.data);

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
