// Tokens: the client renews them in the same session, asks again when one is refused, and stops when that does not help.
import assert from "node:assert/strict";
import { createHmac, randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";
import WebSocket from "ws";
import { Client } from "../dist/client.js";
import { Cutter } from "./cutter.mjs";
import { noBrowser, openPage, servePage, startBrowser } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";

const secret = randomBytes(32);
const operator = "key-of-operators-for-tests";
const code = (value) => Buffer.from(value).toString("base64url");

/** Returns a token for topics, all by default, which is good for so many seconds. The issuer's clock may be ahead. */
function token(sub, seconds, ahead = 0, topics = [">"]) {
  const now = Date.now() / 1000 + ahead;
  const claims = { sub, iat: now, exp: now + seconds, name: sub.toUpperCase(), pubsub: [{ topics, allow: ["subscribe", "publish"] }] };
  const signed = `${code(JSON.stringify({ alg: "HS256", kid: "k" }))}.${code(JSON.stringify(claims))}`;
  return `${signed}.${createHmac("sha256", secret).update(signed).digest("base64url")}`;
}

const skip = await noBrowser();
let daemon, folder, topic, other, browser;
let count = 0;
const clients = [];

before(async () => {
  other = await servePage();
  if (!skip) browser = await startBrowser();
  folder = await mkdtemp(join(tmpdir(), "pubsubjs-"));
  await writeFile(join(folder, "key.json"), JSON.stringify({ kty: "oct", kid: "k", alg: "HS256", k: code(secret) }), { mode: 0o600 });
  await writeFile(join(folder, "admin.key"), operator, { mode: 0o600 });
  daemon = await Daemon.start({
    "auth-revocations": join(folder, "revocations"), "admin-key-file": join(folder, "admin.key"),
    "auth-keys": join(folder, "key.json"), "auth-public-claims": "name", "cors-origins": other.url,
    topics: ["id.pattern=id.>", "id.identity=true"],
  });
});
after(async () => {
  clients.forEach((c) => c.close());
  await browser?.close();
  other.end();
  await daemon.end();
  await rm(folder, { recursive: true });
});
beforeEach(() => (topic = `id.${++count}`));

const open = (options, url = daemon.url) => {
  const c = new Client(url, { WebSocket, ...options });
  clients.push(c);
  return c;
};

/** Collects the items of a subscription. */
function collect(client, options = {}) {
  const items = [];
  const subscription = client.subscribe(topic, options, (m) => items.push(m));
  return { items, subscription, has: (n) => until(() => `${n} items, have ${JSON.stringify(items)}`, () => items.length >= n) };
}

/** Counts how often a client opens a session, renews one, and connects. */
function watched() {
  const seen = { opened: 0, patched: 0, streams: 0, sockets: 0 };
  const counting = (url, options) => {
    if (options.method === "POST" && url.endsWith("/v1/sessions")) seen.opened++;
    if (options.method === "PATCH") seen.patched++;
    if (url.includes("mode=stream")) seen.streams++;
    return fetch(url, options);
  };
  class Counted extends WebSocket {
    constructor(...given) {
      super(...given);
      seen.sockets++;
    }
  }
  return { seen, options: { fetch: counting, WebSocket: Counted } };
}

for (const transport of ["websocket", "stream", "poll"]) {
  test(`${transport}: a token is renewed before it expires, without a reconnect`, async () => {
    const { seen, options } = watched();
    let asked = 0;
    const client = open({ ...options, transports: [transport], token: () => token("ann", asked++ ? 3600 : 8) });
    const states = [];
    const a = collect(client);
    await a.subscription.started;
    await until("it is open", () => client.state.state === "open");
    client.onState((s) => states.push(s));
    await until("the token is renewed", () => seen.patched === 1);
    await client.publish(topic, 1);
    await a.has(1);
    assert.deepEqual([asked, seen.opened, states], [2, 1, []]);
    assert.ok(seen.streams <= 1 && seen.sockets <= 1, JSON.stringify(seen));
  });

  test(`${transport}: after token_expired the session goes on with a new token`, async () => {
    const { seen, options } = watched();
    let asked = 0;
    // Renewals before the token expires fail: the source of tokens is away.
    const end = Date.now() + 3500;
    const source = () => {
      if (asked++ && Date.now() < end) throw new Error("away");
      return token("ann", asked === 1 ? 3 : 3600);
    };
    const client = open({ ...options, transports: [transport], token: source });
    const a = collect(client);
    await a.subscription.started;
    await until("it is renewed", () => seen.patched > 0 && Date.now() > end && client.state.state === "open");
    await client.publish(topic, 1);
    await a.has(1);
    assert.equal(seen.opened, 1, "the session was not opened anew");
    assert.deepEqual(a.items.map((m) => m.data), [1]);
  });

  test(`${transport}: a token that cannot be renewed closes the client, with the reason`, async () => {
    const { seen, options } = watched();
    const old = token("ann", 2);
    const client = open({ ...options, transports: [transport], token: old });
    const a = client.subscribe(topic);
    await a.started;
    await assert.rejects(async () => {
      for await (const m of a) void m;
    }, { code: "token_expired" });
    assert.equal(client.state.state, "closed");
    assert.match(client.state.reason, /expired/);
    assert.equal(seen.opened, 1);
    assert.ok(seen.patched <= 4, `${seen.patched} renewals`);
  });

  test(`${transport}: a session whose token an operator revokes is opened anew, with a new token, and loses nothing`, async () => {
    const { seen, options } = watched();
    const subject = "eve-" + transport;
    let asked = 0;
    const client = open({ ...options, transports: [transport], token: () => token(subject, 3600, asked++) });
    const a = collect(client);
    await a.subscription.started;
    await client.publish(topic, 1);
    await a.has(1);
    const revoked = await fetch(daemon.admin + "/revocations", { method: "POST", headers: { Authorization: "Bearer " + operator }, body: JSON.stringify({ subject }) });
    assert.deepEqual(await revoked.json(), { ended: 1 });
    await open({ token: token("bob", 60) }).publish(topic, 2);
    await a.has(2);
    assert.deepEqual(a.items.map((m) => m.data), [1, 2]);
    // Each opens a session: the first token; the same again, which the server refuses; the second.
    assert.deepEqual([asked, seen.opened, client.state.state], [2, 3, "open"]);
  });
}

test("a message tells its publisher, whom nobody can forge", async () => {
  const ann = open({ token: token("ann", 60) });
  const a = collect(ann);
  await a.subscription.started;
  await ann.publish(topic, 1);
  await open({ token: token("bob", 60) }).publish(topic, 2);
  await a.has(2);
  assert.deepEqual(a.items.map((m) => [m.by, m.claims]), [["ann", { name: "ANN" }], ["bob", { name: "BOB" }]]);
  const forged = await fetch(daemon.url + "/v1/messages", {
    method: "POST", headers: { "Content-Type": "application/json", Authorization: "Bearer " + token("bob", 60) },
    body: JSON.stringify([{ topic, data: 3, by: "ann" }]),
  });
  assert.equal((await forged.json())[0].problem.code, "invalid_request");
});

test("a source that returns the error page of a proxy is asked again", async () => {
  const pages = ["<html>\r\n<h1>502 Bad Gateway</h1>\r\n</html>\r\n", "Bad Gateway"];
  const states = [];
  const client = open({ token: () => pages.shift() ?? token("ann", 3600) + "\n" }); // as a file of it ends
  client.onState((s) => states.push(s));
  const a = collect(client);
  await client.publish(topic, 1);
  await a.subscription.started;
  await client.publish(topic, 2);
  await until("a message has come", () => a.items.at(-1)?.data === 2);
  assert.deepEqual(pages, []);
  assert.ok(states.some((s) => s.state === "waiting" && s.reason === "not a token"), JSON.stringify(states));
  client.close();
});

test("a token of another subject does not take a session over", async () => {
  let asked = 0;
  const client = open({ transports: ["poll"], token: () => token(asked++ ? "bob" : "ann", 3) });
  const a = client.subscribe(topic);
  await a.started;
  await assert.rejects(async () => {
    for await (const m of a) void m;
  }, { code: "forbidden" });
  assert.equal(client.state.state, "closed");
});

test("a session that was revoked is opened anew, with a new token, from the positions", async () => {
  const topics = [];
  const limits = { poll_timeout_ms: 1000, heartbeat_ms: 500, unacked: 100 };
  const answers = { ann: [201, { session: "s", positions: [topic + "@k:0"], limits }], revoked: [401, { code: "unauthorized", detail: "revoked" }] };
  let polls = 0;
  const server = createServer(async (req, res) => {
    let body = "";
    for await (const chunk of req) body += chunk;
    const [status, answer] = req.url.includes("poll")
      ? [[200, { position: topic + "@k:7", time: 1, data: 7 }], [410, { code: "session_ended", detail: "revoked" }], [200]][Math.min(polls++, 2)]
      : (topics.push(...JSON.parse(body).topics), answers[topics.length === 2 ? "revoked" : "ann"]);
    if (polls > 2) return;
    res.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(answer) + "\n");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  let asked = 0;
  const client = open({ transports: ["poll"], token: () => `t${++asked}` }, `http://127.0.0.1:${server.address().port}`);
  await collect(client).has(1);
  await until("the second session polls", () => polls === 3);
  assert.deepEqual([asked, topics], [2, [topic, topic + "@k:7", topic + "@k:7"]]);
  client.close();
  server.closeAllConnections();
  server.close();
});

for (const transport of ["websocket", "stream", "poll"]) {
  test(`${transport}: a token is asked for once, and serves the connections after a cut`, async () => {
    const cutter = await Cutter.start(daemon.port);
    let asked = 0;
    const source = async () => {
      asked++;
      await new Promise((done) => setTimeout(done, 50));
      return token("ann", 3600);
    };
    const client = open({ transports: [transport], token: source }, cutter.url);
    const published = client.publish(topic, 0); // needs the token at the same time
    const a = collect(client, { from: "oldest" });
    await published;
    await until("it is open", () => client.state.state === "open" && client.state.transport === transport);
    cutter.break("reset");
    await client.publish(topic, 1);
    await a.has(2);
    assert.deepEqual([asked, a.items.map((m) => m.data)], [1, [0, 1]]);
    client.close();
    await cutter.end();
  });

  test(`${transport}: a source of tokens that is slow does not hold up deliveries`, async () => {
    let asked = 0;
    let give;
    const source = () => (asked++ ? new Promise((done) => (give = () => done(token("ann", 3600)))) : token("ann", 4));
    const client = open({ transports: [transport], token: source });
    const a = collect(client);
    await a.subscription.started;
    await until("the source is asked again", () => give);
    const other = open({ token: token("bob", 60) });
    await other.publish(topic, 1);
    await a.has(1);
    give();
    await other.publish(topic, 2);
    await a.has(2);
    assert.deepEqual([asked, a.items.map((m) => m.data)], [2, [1, 2]]);
    client.close();
  });

  test(`${transport}: after a cut, a new token of lesser rights ends what it does not permit, and the rest goes on`, async () => {
    const cutter = await Cutter.start(daemon.port);
    let asked = 0;
    const source = () => (asked++ ? token("ann", 3600, 0, [topic]) : token("ann", 3, 0, [topic, topic + ".secret"]));
    const client = open({ transports: [transport], token: source }, cutter.url);
    const refused = [];
    const secret = [];
    client.subscribe(topic + ".secret", { onError: (e) => refused.push(e.code) }, (m) => secret.push(m.gap?.reason ?? m.data));
    const a = collect(client);
    await a.subscription.started;
    cutter.break("reset");
    await until("the right is gone", () => refused.includes("forbidden") || secret.includes("forbidden"));
    const other = open({ token: token("bob", 60) });
    for (const n of [1, 2]) await other.publish(topic, n);
    await other.publish(topic + ".secret", 1);
    await a.has(2);
    assert.deepEqual([a.items.map((m) => m.gap?.reason ?? m.data), secret.filter((x) => x !== "forbidden")], [[1, 2], []]);
    client.close();
    await cutter.end();
  });
}

test("a browser's WebSocket carries a token among its subprotocols", { skip }, async () => {
  const context = await browser.newContext();
  try {
    const tab = await openPage(context, other.url);
    const connect = (bearer) =>
      tab.evaluate(({ url, protocols }) => new Promise((done) => {
        const socket = new WebSocket(url, protocols);
        socket.onmessage = ({ data }) => done([socket.protocol, Object.keys(JSON.parse(data))[0]]);
        socket.onclose = () => done(["", "refused"]);
      }), { url: `${daemon.url.replace("http", "ws")}/v1/ws?topic=${topic}`, protocols: ["pubsubd.v1", "bearer." + bearer] });
    assert.deepEqual(await connect(token("ann", 60)), ["pubsubd.v1", "hello"]);
    assert.deepEqual(await connect("forged"), ["", "refused"]);
  } finally {
    await context.close();
  }
});

test("tabs of two subjects never share, also after their tokens are renewed", { skip }, async () => {
  const context = await browser.newContext();
  try {
    const tabs = [];
    for (const sub of ["ann", "ann", "bob"]) {
      const tab = await openPage(context, other.url);
      tab.renewals = tab.sockets = 0;
      tab.on("websocket", () => tab.sockets++);
      tab.on("request", (r) => (tab.renewals += r.method() === "PATCH" && r.postData() === '{"add":[],"remove":[]}'));
      const tokens = [token(sub, 8), token(sub, 60)];
      await tab.evaluate((how) => follow(how), { url: daemon.url, topic, options: { share: "room" }, tokens });
      await tab.evaluate(() => subscription.started);
      tabs.push(tab);
    }
    const renewals = () => tabs.map((tab) => tab.renewals);
    await until(() => "both leaders renew: " + renewals(), () => String(renewals()) === "1,0,1");
    await tabs[1].evaluate((t) => client.publish(t, "after"), topic);
    for (const tab of tabs) await tab.waitForFunction(() => items.length === 1);
    assert.deepEqual(tabs.map((tab) => tab.sockets), [1, 0, 1]);
  } finally {
    await context.close();
  }
});
