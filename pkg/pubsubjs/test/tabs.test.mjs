// Many tabs in one process: stand-ins for Web Locks and BroadcastChannel know which tab
// calls them, so that tabs can crash and freeze. Words between tabs take a while.
import assert from "node:assert/strict";
import { AsyncLocalStorage } from "node:async_hooks";
import { after, before, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import WebSocket from "ws";
import { Client } from "../dist/client.js";
import { Daemon, until } from "./daemon.mjs";

const current = new AsyncLocalStorage(); // the tab whose code runs

class Locks {
  #held = new Map(); // by name
  #queues = new Map();

  request(name, options, run) {
    const tab = current.getStore();
    if (tab.crashed) return new Promise(() => {});
    const { promise, resolve, reject } = deferred();
    const request = { name, tab, run, resolve, reject };
    const queue = this.#queues.get(name) ?? [];
    this.#queues.set(name, queue);
    if (options.signal?.aborted) return Promise.reject(new DOMException("aborted", "AbortError"));
    if (options.steal) {
      this.#held.get(name)?.reject(new DOMException("stolen", "AbortError"));
      this.#held.delete(name);
      queue.unshift(request);
    } else queue.push(request);
    options.signal?.addEventListener("abort", () => {
      const at = queue.indexOf(request);
      if (at < 0) return;
      queue.splice(at, 1);
      reject(new DOMException("aborted", "AbortError"));
    });
    setImmediate(() => this.#grant(name));
    return promise;
  }

  #grant(name) {
    if (this.#held.has(name)) return;
    const request = this.#queues.get(name).shift();
    if (!request) return;
    this.#held.set(name, request);
    const release = (settle) => (value) => {
      if (this.#held.get(name) === request) this.#held.delete(name);
      settle(value);
      this.#grant(name);
    };
    current.run(request.tab, request.run, {}).then(release(request.resolve), release(request.reject));
  }

  /** Who holds the lead. */
  leader() {
    for (const [name, { tab }] of this.#held) if (name.endsWith(" lead")) return tab;
  }

  /** Releases what a tab that crashed holds, and forgets what it waits for. */
  drop(tab) {
    for (const [name, queue] of this.#queues) this.#queues.set(name, queue.filter((r) => r.tab !== tab));
    for (const [name, request] of this.#held) {
      if (request.tab !== tab) continue;
      this.#held.delete(name);
      this.#grant(name);
    }
  }

  get count() {
    return this.#held.size + [...this.#queues.values()].flat().length;
  }
}

function deferred() {
  const d = {};
  d.promise = new Promise((resolve, reject) => Object.assign(d, { resolve, reject }));
  return d;
}

const channels = new Set();

class Channel {
  constructor(name) {
    Object.assign(this, { name, tab: current.getStore() });
    this.tab.inbox ??= [];
    channels.add(this);
  }

  postMessage(word) {
    if (this.tab.crashed || this.tab.frozen) return;
    for (const to of channels) {
      if (to === this || to.name !== this.name) continue;
      // The words of one tab keep their order, whichever timer fires first; those of two do not.
      const words = (to.words ??= new Map()).get(this.tab) ?? [];
      to.words.set(this.tab, words);
      words.push(structuredClone(word));
      setTimeout(() => to.take(words.shift()), Math.random() * 10);
    }
  }

  take(data) {
    if (this.tab.crashed || !channels.has(this)) return;
    if (this.tab.frozen) this.tab.inbox.push(() => this.take(data));
    else current.run(this.tab, () => this.onmessage?.({ data }));
  }

  close() {
    channels.delete(this);
  }
}

const locks = new Locks();
Object.defineProperty(globalThis, "navigator", { value: { locks }, configurable: true });
globalThis.BroadcastChannel = Channel;

let daemon;
let topic;
let count = 0;
const tabs = []; // that live
const opened = [];

before(async () => (daemon = await Daemon.start({ "history-messages": 50_000 })));
const closeAll = () => tabs.splice(0).forEach((t) => t.close());
after(async () => {
  closeAll();
  opened.forEach((t) => t.close()); // also those that crashed
  await daemon.end();
});
beforeEach(() => {
  topic = `tabs${++count}`;
  closeAll();
});

/** A tab: a client, its connections, and ways to end it. */
function openTab(share = topic, { url: server = daemon.url, ...options } = {}) {
  const tab = { sockets: new Set() };
  class Socket extends WebSocket {
    constructor(url) {
      super(url);
      tab.sockets.add(this);
      this.on("close", () => tab.sockets.delete(this));
    }
  }
  const request = async (url, init) => {
    if (tab.crashed) return new Promise(() => {});
    if (tab.frozen) await new Promise((thawed) => tab.inbox.push(thawed)); // the code of a frozen page does not run
    return fetch(url, init);
  };
  current.run(tab, () => (tab.client = new Client(server, { share, WebSocket: Socket, fetch: request, transports: ["websocket"], ...options })));
  tab.subscribe = (topics, o = {}) => {
    const items = [];
    const subscription = current.run(tab, () => tab.client.subscribe(topics, o, (m) => items.push(m)));
    return { items, subscription, has: (n) => until(() => `${n} items, have ${items.length}`, () => items.length >= n, 40_000) };
  };
  tab.close = () => current.run(tab, () => tab.client.close());
  tab.crash = () => {
    tab.crashed = true;
    for (const s of tab.sockets) s.terminate();
    locks.drop(tab);
  };
  tab.freeze = () => {
    tab.frozen = true;
    for (const s of tab.sockets) s._socket?.pause();
  };
  tab.thaw = () => {
    tab.frozen = false;
    for (const s of tab.sockets) s._socket?.resume();
    for (const take of tab.inbox.splice(0)) take();
  };
  tabs.push(tab);
  opened.push(tab);
  return tab;
}

const values = (items) => items.map((m) => m.gap?.reason ?? m.data);
const range = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);

async function publish(from, to, at = topic) {
  const body = JSON.stringify(range(from, to).map((n) => ({ topic: at, data: n })));
  await fetch(daemon.url + "/v1/messages", { method: "POST", headers: { "Content-Type": "application/json" }, body });
}

const leads = () => until("a tab leads", () => locks.leader());

test("tabs share one connection, and get what each wants", async () => {
  const [a, b, c] = [openTab(), openTab(), openTab()];
  const [x, y, z] = [a.subscribe(topic), b.subscribe([topic, topic + ".b"]), c.subscribe(topic + ".*")];
  await Promise.all([x, y, z].map((s) => s.subscription.started));
  await publish(1, 50);
  await publish(1, 50, topic + ".b");
  await Promise.all([x.has(50), y.has(100), z.has(50)]);
  assert.deepEqual(values(x.items), range(1, 50));
  assert.deepEqual(values(z.items), range(1, 50));
  assert.equal(tabs.reduce((n, t) => n + t.sockets.size, 0), 1);
  await until("all say open", () => tabs.every((t) => t.client.state.state === "open"));
});

test("a tab that subscribes again begins now, not where it ended", async () => {
  const [a, b] = [openTab(), openTab()];
  a.subscribe(topic + ".other");
  await leads();
  for (const tab of [b, a]) {
    const one = tab.subscribe(topic);
    await one.subscription.started;
    await publish(1, 1);
    await one.has(1);
    one.subscription.close();
    await until("the topic is left", async () => (await (await fetch(`${daemon.url}/v1/topics/${topic}`)).json()).subscriptions === 0);
    await publish(2, 3);
    const two = tab.subscribe(topic);
    const [position] = await two.subscription.started;
    assert.ok(position);
    await publish(4, 4);
    await two.has(1);
    await sleep(50);
    assert.deepEqual(values(two.items), [4]);
    two.subscription.close();
  }
});

test("a topic that a pattern leaves out is a gap in each tab, also in one that leads later", async () => {
  const d = await Daemon.start({ "limits-pattern-bytes": 600 });
  const say = (n, data) => d.publish("chat." + n, data, data);
  try {
    const first = openTab(topic, { url: d.url });
    const a = first.subscribe("chat.*");
    await a.subscription.started;
    await leads();
    const topics = []; // where the second tab begins when it leads
    const second = openTab(topic, { url: d.url, fetch: (url, init) => (url.endsWith("/v1/sessions") && topics.push(...JSON.parse(init.body).topics), fetch(url, init)) });
    const b = second.subscribe("chat.*");
    await b.subscription.started;
    for (const n of range(1, 3)) await say(n, "m" + n);
    for (const { items, subscription, has } of [a, b]) {
      await has(3);
      const gap = items.find((m) => m.gap);
      assert.deepEqual([gap.gap.reason, gap.topic, gap.gap.after], ["unfollowed", "chat.3", gap.position]);
      assert.ok(!subscription.positions.some((at) => at.startsWith("chat.3@")), subscription.positions.join());
    }
    first.crash();
    await until("the second tab leads", () => locks.leader() === second);
    await b.has(4);
    await say(1, "more");
    await b.has(5);
    assert.deepEqual(b.items.slice(3).map((m) => m.gap?.reason ?? m.data), ["unfollowed", "more"]);
    assert.ok(![...topics, ...b.subscription.positions].some((at) => at.startsWith("chat.3@")), topics.join());
    assert.equal(topics.length, 3, topics.join());
  } finally {
    closeAll();
    await d.end();
  }
});

test("a name that is refused is not asked for again and again while its tab is frozen", async () => {
  let refused = 0;
  const options = {
    fetch: async (url, init) => {
      if (init.body?.includes("bad")) {
        refused++;
        return new Response(JSON.stringify({ code: "forbidden", detail: "bad is not yours" }), { status: 403 });
      }
      return fetch(url, init);
    },
  };
  const [a, b] = [openTab(topic, options), openTab(topic, options)];
  const x = a.subscribe(topic);
  await x.subscription.started;
  const bad = b.subscribe("bad", { onError() {} });
  await until("it is refused", () => refused > 0 && (b.freeze(), true));
  await sleep(300);
  assert.ok(refused < 4, `${refused} requests`);
  b.thaw();
  await assert.rejects(bad.subscription.started, (e) => e.code === "forbidden" && e.name === "Problem");
});

test("a tab that is closed while it joins holds no lock", async () => {
  const before = locks.count;
  for (let n = 0; n < 10; n++) {
    const tab = openTab();
    tab.subscribe(topic);
    for (let ticks = n; ticks > 0; ticks--) await new Promise(setImmediate);
    tab.close();
  }
  await until("all locks are free", () => locks.count <= before, 3000);
});

test("many looks at the connection do not depose a leader that answers", async () => {
  const [a, b] = [openTab(), openTab()];
  await a.subscribe(topic).subscription.started;
  await b.subscribe(topic).subscription.started;
  const leader = locks.leader();
  const follower = leader === a ? b : a;
  const listeners = {};
  // Events of the page reach the client by these.
  globalThis.document = { addEventListener: (type, f) => (listeners[type] = f), removeEventListener() {} };
  try {
    const c = openTab();
    await c.subscribe(topic).subscription.started;
    for (let n = 0; n < 10; n++) current.run(c, () => listeners.resume());
    await sleep(100);
    assert.equal(locks.leader(), leader);
  } finally {
    delete globalThis.document;
  }
  assert.ok(follower);
});

test("tabs without a token, or of subjects unknown, do not share", async () => {
  const token = (claims) => `h.${Buffer.from(JSON.stringify(claims)).toString("base64url")}.${Math.random()}`;
  const options = [{ token: () => Promise.reject(new Error("offline")) }, { token: token({ iss: "a" }) }, { token: token({ iss: "a" }) }, { token: token({ sub: "ann" }) }, { token: token({ sub: "ann" }) }];
  const all = options.map((o) => openTab(topic, o));
  all.forEach((t) => t.subscribe(topic));
  await until("they joined", () => [...channels].filter((c) => all.includes(c.tab)).length === 5);
  const names = all.map((t) => [...channels].find((c) => c.tab === t).name);
  assert.equal(new Set(names.slice(0, 4)).size, 4);
  assert.equal(names[3], names[4]);
});

// Ends of leaders at random, while a publisher goes on.
for (const kind of ["close", "crash", "freeze"]) {
  test(`leaders end (${kind}), and no tab loses, repeats or disorders anything`, async () => {
    const watched = []; // what lives to the end
    const all = [];
    const enter = () => {
      const tab = openTab();
      for (const name of [topic, topic + ".*"]) {
        const s = tab.subscribe(name, { from: "oldest" });
        all.push({ tab, name, ...s });
      }
      return tab;
    };
    let over = false;
    let published = 0;
    await publish(1, 1);
    const publishing = (async () => {
      for (published = 1; !over; await sleep(2)) {
        published++;
        await publish(published, published);
        await publish(published, published, `${topic}.${1 + (published % 40)}`);
      }
    })();
    for (let n = 0; n < 4; n++) enter();
    const rounds = kind === "freeze" ? 1 : 8;
    for (let n = 0; n < rounds; n++) {
      await leads();
      await sleep(100 + Math.random() * 300);
      const tab = locks.leader();
      if (!tab) continue;
      if (kind !== "freeze") {
        tab[kind]();
        tabs.splice(tabs.indexOf(tab), 1);
        enter();
        continue;
      }
      tab.freeze();
      await until("another leads", () => locks.leader() && locks.leader() !== tab, 30_000);
      await sleep(300);
      tab.thaw();
    }
    await sleep(300);
    over = true;
    await publishing;
    watched.push(...all.filter(({ tab }) => tabs.includes(tab)));
    assert.ok(watched.length >= 8);
    for (const s of watched) {
      const expected = s.name === topic ? published : published - 1;
      await until(() => `${kind}: ${s.name} has ${s.items.length} of ${expected}`, () => s.items.length >= expected, 40_000);
      const seen = new Map();
      for (const m of s.items) {
        assert.ok(!m.gap, JSON.stringify(m));
        const [at, before] = [Number(/\d+$/.exec(m.position)[0]), seen.get(m.topic) ?? 0];
        assert.equal(at, before + 1, `${m.topic}: ${at} after ${before}`);
        seen.set(m.topic, at);
      }
      assert.equal(s.items.length, expected);
    }
  });
}

test("where tabs may not speak to each other, each connects by itself", async () => {
  const { request } = locks;
  // Firefox without cookies.
  const refuse = () => new DOMException("insecure", "SecurityError");
  globalThis.BroadcastChannel = class {
    constructor() {
      throw refuse();
    }
  };
  locks.request = () => Promise.reject(refuse());
  try {
    const all = [openTab(), openTab()].map((t) => t.subscribe(topic));
    await Promise.all(all.map((s) => s.subscription.started));
    await publish(1, 5);
    for (const s of all) {
      await s.has(5);
      assert.deepEqual(values(s.items), range(1, 5));
    }
  } finally {
    globalThis.BroadcastChannel = Channel;
    locks.request = request;
  }
});

test("a leading tab that gets pagehide and lives on gives the lead away, and loses nothing", async () => {
  const page = new EventTarget();
  Object.assign(globalThis, { document: new EventTarget(), addEventListener: page.addEventListener.bind(page) });
  try {
    const [a, b] = [openTab(), openTab()];
    const all = [a, b].map((t) => t.subscribe(topic));
    await Promise.all(all.map((s) => s.subscription.started));
    await publish(1, 2);
    for (const s of all) await s.has(2);
    // Both tabs hear the events, one after the other.
    for (const tab of [a, b]) current.run(tab, () => page.dispatchEvent(new Event("pagehide")));
    await publish(3, 4);
    await new Promise((left) => setTimeout(left)); // after that of the client
    current.run(b, () => b.client.publish(topic + ".x", 1)); // only this tab says that it lives
    await all[1].has(4);
    current.run(a, () => page.dispatchEvent(new Event("pageshow")));
    await publish(5, 6);
    for (const s of all) {
      await s.has(6);
      assert.deepEqual(values(s.items), range(1, 6));
    }
  } finally {
    delete globalThis.document;
    delete globalThis.addEventListener;
  }
});
