// The outbox in pages that are closed while messages wait, with a daemon that is away.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { browserName, browserOfTests, openPage, startBrowser } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";
import { Client } from "../dist/client.js";
import { Outbox } from "../dist/outbox.js";

const { skip, browser, other } = await browserOfTests();

/** In a page: how to open an outbox, and to look into its database. */
const kit = () => {
  window.sent = [];
  window.failed = [];
  window.errors = [];
  window.requests = 0; // that publish
  window.probes = 0;
  window.load = async (url) => {
    window.url = url;
    const modules = await Promise.all(["client", "outbox"].map((name) => import(`${url}/v1/${name}.js`)));
    Object.assign(window, ...modules);
  };
  // swallow: nothing answers a publish, which arrives. keep: failed messages are never taken. While window.refuse is set, tokens are refused.
  window.begin = ({ subject = "ann", token, swallow, keep, ...options } = {}) => {
    window.client = new Client(url, {
      token,
      fetch: async (to, init) => {
        const publishes = to.endsWith("/v1/messages");
        requests += publishes;
        probes += to.endsWith("/v1/sessions");
        if (publishes && window.refuse) return new Response('{"code":"unauthorized","status":401}', { status: 401, headers: { "Content-Type": "application/problem+json" } });
        const answer = await fetch(to, init);
        return publishes && swallow ? new Promise(() => (window.swallowed = true)) : answer;
      },
    });
    window.outbox = new Outbox(client, {
      subject,
      onSent: (m, { position }) => sent.push({ ...m, position }),
      onFailed: (m, { code }) => {
        failed.push({ ...m, code });
        return keep && new Promise(() => {});
      },
      onError: ({ code }) => errors.push(code),
      ...options,
    });
  };
  window.refusal = (promise) => promise.then(() => "", (e) => (e instanceof Problem ? e.code : String(e)));
  // Changes what the database has, or reads it.
  window.stored = (change) => new Promise((resolve, reject) => {
    const request = indexedDB.open(`pubsubd outbox ${url} ann`);
    request.onerror = reject;
    request.onsuccess = () => {
      const transaction = request.result.transaction("messages", "readwrite");
      const messages = transaction.objectStore("messages");
      const all = messages.getAll();
      const keys = messages.getAllKeys();
      keys.onsuccess = () => change && all.result.forEach((m, i) => messages.put((0, eval)(change)(m), keys.result[i]));
      transaction.oncomplete = () => (request.result.close(), resolve(all.result));
    };
  });
};

/** Runs a story with a daemon and a browser window, whose pages have the modules. */
async function withOutbox(story, settings = {}, shown = browser) {
  const daemon = await Daemon.start({ "cors-origins": other.url, ...settings }, { withLog: true });
  const context = await shown.newContext();
  try {
    await context.newPage(); // when its last page is closed, WebKit ends
    const open = async (options) => {
      const tab = await openPage(context, other.url);
      await tab.evaluate(kit);
      await tab.evaluate((url) => load(url), daemon.url);
      if (options) await tab.evaluate((o) => begin(o), options);
      return tab;
    };
    const held = async () => {
      const r = await fetch(`${daemon.url}/v1/topics/out/messages`);
      const frames = (await r.text()).trim().split("\n").map(JSON.parse);
      return frames.filter((f) => f.position).map(({ id, data, text, base64, type, key }) => ({ id, key, type, payload: data ?? text ?? base64 }));
    };
    await story({ daemon, open, held });
  } finally {
    await context.close();
    await daemon.end();
  }
}

const put = (tab, values) => tab.evaluate(async (all) => {
  const ids = [];
  for (const value of all) ids.push(await outbox.publish("out", value));
  return ids;
}, values);
const isEmpty = (tab) => until("the outbox is empty", () => tab.evaluate(async () => !(await outbox.pending()).length));
const payloads = async (held) => (await held()).map((m) => m.payload);

test("messages that were stored while the server was away are sent by another page, each once", { skip, timeout: 60_000 }, () =>
  withOutbox(async ({ daemon, open, held }) => {
    const tab = await open({});
    await daemon.process.stop("SIGKILL");
    const ids = await tab.evaluate(() => {
      const bytes = new Uint8Array([0, 1, 2, 255]);
      const value = { n: 1 };
      const all = Promise.all([
        outbox.publish("out", value, { key: "k" }),
        outbox.publish("out", "two", { type: "text/plain" }),
        outbox.publish("out", bytes.subarray(1)),
      ]);
      value.n = bytes[1] = 9; // too late
      return all;
    });
    await until("the page tried", () => tab.evaluate(() => probes > 1));
    assert.deepEqual((await tab.evaluate(() => stored())).map((m) => [m.id, "sent" in m]), ids.map((id) => [id, false]), "no mark: nothing can have been sent");
    assert.deepEqual(await tab.evaluate(async () => (await outbox.pending()).map((m) => m.id)), ids);
    await tab.close();
    await daemon.begin();
    const next = await open({});
    await isEmpty(next);
    assert.deepEqual(await held(), [
      { id: ids[0], key: "k", type: undefined, payload: { n: 1 } },
      { id: ids[1], key: undefined, type: "text/plain", payload: "two" },
      { id: ids[2], key: undefined, type: "application/octet-stream", payload: "AQL/" },
    ]);
    assert.deepEqual(await next.evaluate(() => [sent.map((m) => m.id), failed, errors]), [ids, [], []]);
  }));

test("one tab sends for all, and when it ends without an answer, another repeats what it sent", { skip, timeout: 60_000 }, () =>
  withOutbox(async ({ open, held }) => {
    const first = await open({});
    await put(first, [1, 2]);
    await isEmpty(first);
    const second = await open({});
    await put(second, [3, 4]);
    await isEmpty(second);
    await until("both tabs know", async () => (await first.evaluate(() => sent.length)) === 4 && (await second.evaluate(() => sent.length)) === 2);
    assert.equal(await second.evaluate(() => requests), 0);
    // A third tab is next after the first, if the second has gone.
    await second.close();
    await first.close();

    const deaf = await open({ swallow: true });
    const ids = await put(deaf, [5, 6]);
    await deaf.waitForFunction(() => window.swallowed);
    const heir = await open({});
    await put(heir, [7]);
    assert.equal(await heir.evaluate(() => requests), 0, "the other tab still has the lock");
    await deaf.close();
    await isEmpty(heir);
    assert.deepEqual(await payloads(held), [1, 2, 3, 4, 5, 6, 7]);
    assert.deepEqual(await heir.evaluate(() => [sent.slice(0, 2).map((m) => m.id), failed]), [ids, []]);
  }));

test("what may have been sent too long ago, or by a clock that was set back, is kept until the application takes it", { skip, timeout: 60_000 }, () =>
  withOutbox(async ({ open, held }) => {
    for (const [by, n] of [[-15_000, 1], [60_000, 2]]) {
      const deaf = await open({ swallow: true });
      await put(deaf, [n]);
      await deaf.waitForFunction(() => window.swallowed);
      await deaf.evaluate((ms) => stored(`(m) => ({ ...m, sent: m.sent + ${ms} })`), by);
      await deaf.close();
      const keeper = await open({ keep: true });
      await keeper.waitForFunction(() => failed.length);
      await put(keeper, ["later " + n]); // it blocks nothing
      await keeper.waitForFunction(() => sent.length);
      await keeper.close();
      const taker = await open({});
      await isEmpty(taker);
      assert.deepEqual(await taker.evaluate(() => [failed.map((m) => [m.code, m.data]), sent]), [[["unknown", n]], []]);
      await taker.close();
    }
    assert.deepEqual(await payloads(held), [1, "later 1", 2, "later 2"]);
  }, { "idempotency-window": "20s" })); // of which the client leaves 10 s for the last request

test("what the server refuses, what expired and what is damaged goes to the application, and the rest is sent", { skip, timeout: 60_000 }, () =>
  withOutbox(async ({ daemon, open, held }) => {
    const tab = await open({});
    await daemon.process.stop("SIGKILL");
    await put(tab, ["damaged", "no record", "old", "short"]);
    await tab.evaluate(() => stored(`(m) => ({
      '"damaged"': { ...m, body: "{" },
      '"no record"': "x",
      '"old"': { ...m, time: m.time - 86_400_001 },
      '"short"': { ...m, options: { ttl: 60 }, time: m.time - 60_001 },
    })[m.body]`));
    await tab.waitForFunction(() => failed.length === 2);
    assert.deepEqual(await tab.evaluate(() => failed.map((m) => m.code + " " + m.data).sort()), ["expired old", "expired short"]);
    await tab.evaluate(() => outbox.publish("_reserved", 1));
    await tab.evaluate(() => outbox.publish("out", "x".repeat(100_000)));
    await put(tab, ["fine"]);
    await tab.close();
    await daemon.begin();
    const keeper = await open({ keep: true });
    await keeper.waitForFunction(() => failed.length === 4 && sent.length === 1);
    await keeper.close();
    const taker = await open({});
    await isEmpty(taker);
    assert.equal(await taker.evaluate(() => requests), 0, "what was refused is not sent again");
    assert.deepEqual(await taker.evaluate(() => failed.map((m) => m.code).sort()), ["invalid_body", "invalid_topic", "message_too_large", "reserved_topic"]);
    assert.deepEqual(await payloads(held), ["fine"]);
  }));

test("the outbox refuses what is invalid, and what is more than it may hold", { skip, timeout: 60_000 }, () =>
  withOutbox(async ({ daemon, open }) => {
    const tab = await open();
    await daemon.process.stop("SIGKILL");
    await tab.evaluate(() => begin({ maxMessages: 3, maxBytes: 20 }));
    const refused = (...args) => tab.evaluate((a) => refusal(outbox.publish(...a)), args);
    assert.deepEqual([await refused("a.*", 1), await refused("out", 1, { kye: "k" }), await refused("out", 1, { type: "text/plain" })], ["invalid_topic", "invalid_request", "invalid_body"]);
    assert.equal(await tab.evaluate(() => refusal(outbox.publish("out", new Map()))), "invalid_body");
    assert.equal(await tab.evaluate(() => { try { begin({ maxMesages: 3 }); } catch (e) { return e.code; } }), "invalid_request");
    assert.deepEqual([await refused("out", "x".repeat(18)), await refused("out", 1)], ["", "queue_full"]);
    await tab.evaluate(() => outbox.clear());
    assert.deepEqual([await refused("out", 1), await refused("out", 1), await refused("out", 1), await refused("out", 1)], ["", "", "", "queue_full"]);
    // The browser has no space.
    await tab.evaluate(() => (IDBObjectStore.prototype.add = function (...args) {
      const request = this.put(...args);
      request.onsuccess = () => this.transaction.abort();
      Object.defineProperty(this.transaction, "error", { value: new DOMException("full", "QuotaExceededError") });
    }, outbox.clear()));
    assert.equal(await refused("out", 1), "queue_full");
  }));

test("with the token of another user nothing is sent, and while a token is refused the messages wait", { skip, timeout: 60_000 }, () =>
  withOutbox(async ({ open, held }) => {
    const token = (sub) => `e30.${Buffer.from(JSON.stringify({ sub })).toString("base64url")}.x`;
    const bob = await open({ token: token("bob") });
    await put(bob, [1]);
    await bob.waitForFunction(() => errors.includes("forbidden"));
    assert.equal(await bob.evaluate(() => requests), 0);
    await bob.close();
    const ann = await open({ token: token("ann") });
    await isEmpty(ann);
    assert.deepEqual(await payloads(held), [1]);
    assert.deepEqual(await ann.evaluate(() => errors), []);
    await ann.evaluate(() => (window.refuse = true));
    await put(ann, [2, 3]);
    await ann.waitForFunction(() => errors.includes("unauthorized"));
    await until("the marks are gone", () => ann.evaluate(async () => (await stored()).every((m) => !m.sent)));
    await ann.evaluate(() => (window.refuse = false));
    await put(ann, [4]);
    await isEmpty(ann);
    assert.deepEqual(await payloads(held), [1, 2, 3, 4]);
    assert.deepEqual(await ann.evaluate(() => failed), []);
  }));

test("an outbox ends with its client, with close, and when another page deletes its database", { skip, timeout: 60_000 }, () =>
  withOutbox(async ({ open, held }) => {
    const [a, b, c] = [await open({}), await open({}), await open({})];
    await a.evaluate(() => client.close());
    assert.equal(await a.evaluate(() => refusal(outbox.publish("out", 1))), "closed");
    assert.equal(await a.evaluate(() => { try { new Outbox(client, { subject: "ann", onFailed() {} }); } catch (e) { return e.code; } }), "closed");
    await put(c, [1]);
    await isEmpty(c); // b sends
    await b.evaluate(() => outbox.close());
    assert.equal(await b.evaluate(() => refusal(outbox.publish("out", 1))), "closed");
    await put(c, [2]);
    await isEmpty(c);
    assert.deepEqual(await payloads(held), [1, 2]);
    await b.evaluate(() => new Promise((done, fail) => Object.assign(indexedDB.deleteDatabase(`pubsubd outbox ${url} ann`), { onsuccess: done, onerror: fail })).then(() => {}));
    assert.deepEqual(await c.evaluate(async () => [await refusal(outbox.publish("out", 1)), errors]), ["closed", ["closed"]]);
  }));

test("the example of the README works as it is", { skip, timeout: 60_000 }, () =>
  withOutbox(async ({ open, held }) => {
    const [, example] = /```js\n(import \{ Outbox \}.*?)```/s.exec(await readFile(new URL("../README.md", import.meta.url), "utf8"));
    const tab = await open();
    await tab.evaluate(async (code) => {
      window.client = new Client(url);
      window.me = { id: "ann" };
      window.confirm = () => true;
      const AsyncFunction = (async () => {}).constructor;
      const text = code.replace(/import (\{.*?\}) from "https:\/\/push.example(.*?)";.*/, (_, names, path) => `const ${names} = await import("${url}${path}");`).replaceAll("chat.42", "out");
      await AsyncFunction(text + "; window.outbox = outbox;")();
    }, example);
    await isEmpty(tab);
    assert.deepEqual(await payloads(held), [{ text: "hi" }]);
  }));

test("Node has no outbox", () => {
  const client = new Client("http://127.0.0.1:9");
  assert.throws(() => new Outbox(client, { subject: "ann", onFailed() {} }), { code: "storage_failed", message: /use a browser with https/ });
  client.close();
});

// Then Firefox has neither IndexedDB nor locks.
if (browserName === "firefox") {
  test("a page that may store nothing gets an error", { skip, timeout: 60_000 }, async () => {
    const blocked = await startBrowser("firefox", { "network.cookie.cookieBehavior": 2 });
    try {
      await withOutbox(async ({ open }) => {
        const tab = await open();
        assert.equal(await tab.evaluate(async () => { try { begin(); } catch (e) { return e.code; } return refusal(outbox.publish("out", 1)); }), "storage_failed");
      }, {}, blocked);
    } finally {
      await blocked.close();
    }
  });
}
