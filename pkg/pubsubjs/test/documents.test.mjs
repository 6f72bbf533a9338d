// The examples in JavaScript of the documents in pkg run as they are, but for addresses.
import assert from "node:assert/strict";
import { createHash, createHmac, randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Client } from "../dist/client.js";
import { browserOfTests, openPage } from "./browser.mjs";
import { Daemon, Process, until } from "./daemon.mjs";

const { skip, browser, other } = await browserOfTests();
const concepts = await readFile(new URL("../../README.md", import.meta.url), "utf8");
const compared = await readFile(new URL("../../COMPARED.md", import.meta.url), "utf8");
const secret = randomBytes(32);
const code = (value) => Buffer.from(value).toString("base64url");
let daemon, application, folder;

/** Returns the token of a user. */
function token() {
  const claims = { sub: "ann", iat: Date.now() / 1000, exp: Date.now() / 1000 + 600, pubsub: [{ topics: ["chat.>"], allow: ["subscribe", "publish", "presence"] }] };
  const signed = `${code(JSON.stringify({ alg: "HS256", kid: "k" }))}.${code(JSON.stringify(claims))}`;
  return `${signed}.${createHmac("sha256", secret).update(signed).digest("base64url")}`;
}

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "documents-"));
  process.env.PUSH_KEY = "psk_example";
  const key = { name: "backend", hash: createHash("sha256").update(process.env.PUSH_KEY).digest("hex"), rights: [{ topics: ["chat.>"], allow: ["publish"] }], created: "2026-01-01T00:00:00Z" };
  const [keys, apiKeys] = [join(folder, "key.json"), join(folder, "keys")];
  await writeFile(keys, JSON.stringify({ kty: "oct", kid: "k", alg: "HS256", k: code(secret) }), { mode: 0o600 });
  await writeFile(apiKeys, JSON.stringify(key) + "\n", { mode: 0o600 });
  daemon = await Daemon.start({
    "cors-origins": other?.url ?? "", "auth-keys": keys, "auth-api-keys": apiKeys,
    "auth-anonymous": '[{"topics":[">"],"allow":["subscribe","publish"]}]',
    topics: ["chat.pattern=chat.>", "chat.presence=true"],
  });
  application = createServer((_, answer) => answer.end('["stored"]'));
  application.listen(0, "127.0.0.1");
  await once(application, "listening");
});

after(async () => {
  application.closeAllConnections();
  application.close();
  await daemon.end();
  await rm(folder, { recursive: true });
});

/** Returns the blocks of JavaScript in a document, or below one of its headings. Each has so many lines at most. */
function examples(document, lines, heading) {
  const part = heading ? document.split(/^## /m).find((p) => p.startsWith(heading + "\n")) : document;
  const blocks = [...part.matchAll(/^```js\n(.*?)^```/gms)].map(([, block]) => block);
  for (const block of blocks) assert.ok(block.trimEnd().split("\n").length <= lines, `more than ${lines} lines: ${block}`);
  return blocks.map((block) => block.replaceAll("http://127.0.0.1:8080", daemon.url).replaceAll("https://app.example", `http://127.0.0.1:${application.address().port}`));
}

/** Runs an example. What the reader brings along is given by name. Returns a promise of its end. The end of the test closes its clients. */
function run(t, example, given = {}) {
  const clients = [];
  const Tracked = class extends Client {
    constructor(...args) {
      super(...args);
      clients.push(this);
    }
  };
  const all = { Client: Tracked, token, ...given };
  t.after(() => clients.forEach((c) => c.close()));
  const AsyncFunction = (async () => {}).constructor;
  return AsyncFunction(...Object.keys(all), example.replace(/^import .*$/m, ""))(...Object.values(all));
}

test("the program of the concepts prints messages, and where some are missing", { timeout: 60_000 }, async () => {
  const [program] = examples(concepts, 12);
  const file = join(folder, "program.mjs");
  await writeFile(file, program.replace('"pubsubjs"', JSON.stringify(new URL("../dist/client.js", import.meta.url).href)));
  await daemon.publish("chat.42", { text: "hi" }, "concepts-1");
  const node = new Process(process.execPath, [file]);
  try {
    await until(() => "a message is printed: " + node.output, () => node.output.includes("{ text: 'hi' }"));
    await daemon.crash();
    await until(() => "a gap is printed: " + node.output, () => /missing: restarted after chat\.42@\w+:1\n/.test(node.output));
  } finally {
    await node.stop("SIGKILL");
  }
});

test("a page that comes from Socket.IO shows messages, and reloads after a gap", { timeout: 60_000 }, async (t) => {
  const shown = [];
  let reloads = 0;
  const [page] = examples(compared, 10, "Socket.IO");
  await run(t, page, { show: (data) => shown.push(data.text), reload: () => reloads++ });
  await until("the message is shown", () => shown.includes("hi"));
  assert.equal(reloads, 0);
  await daemon.crash();
  await until("the page reloads", () => reloads === 1);
});

test("a back end and a page that come from Pusher", { timeout: 60_000 }, async (t) => {
  const shown = [];
  let members = [];
  const [backEnd, page] = examples(compared, 10, "Pusher Channels");
  await run(t, page, { show: (text) => shown.push(text), reload: () => {}, showMembers: (all) => (members = all) });
  await until("the page is a member", () => members.some((key) => key.startsWith("ann")));
  await run(t, backEnd);
  await until("the message is shown", () => shown.includes("hi"));
});

test("a page that comes from Centrifugo loads its state, and again after a gap", { timeout: 60_000 }, async (t) => {
  const shown = [];
  const states = [];
  const [page] = examples(compared, 10, "Centrifugo");
  void run(t, page, { show: (data) => shown.push(data), showAll: (state) => states.push(state) });
  await until("the state is shown", () => states.length === 1);
  await daemon.publish("chat.42", "new", "compared-1");
  await until("the message is shown", () => shown.includes("new"));
  await daemon.crash();
  await until("the state is shown again", () => states.length === 2);
  assert.deepEqual(states, [["stored"], ["stored"]]);
});

test("a page that comes from Mercure keeps its EventSource", { skip, timeout: 60_000 }, async () => {
  const [page] = examples(compared, 10, "Mercure");
  const context = await browser.newContext();
  try {
    const tab = await openPage(context, other.url);
    await daemon.publish("books.1", { status: "checked out" }, "compared-2");
    await tab.evaluate((example) => {
      Object.assign(window, { shown: [], gaps: [] });
      new Function("show", "reload", example)((data) => shown.push(data.status), (gap) => gaps.push(gap.reason));
    }, page);
    await until("the message is shown", () => tab.evaluate(() => shown.includes("checked out")));
    await daemon.crash();
    await until("the gap is there", () => tab.evaluate(() => gaps.includes("restarted")));
  } finally {
    await context.close();
  }
});
