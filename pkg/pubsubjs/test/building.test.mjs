// The code in pkg/BUILDING.md, as it stands but for addresses and files: JavaScript in Node and in Chromium, shell,
// PHP, Ruby, and the hook in Python. The tests of the Go and Python clients run the rest.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Client } from "../dist/client.js";
import { browserOfTests } from "./browser.mjs";
import { Daemon, freePort, Process, Proxy, until } from "./daemon.mjs";

const repository = fileURLToPath(new URL("../../../", import.meta.url));
const program = process.env.PUBSUBD ?? join(repository, "bin/pubsubd");
const { skip, browser, other } = await browserOfTests();

/** The code of each chapter, by language. */
const code = {};
const document = await readFile(join(repository, "pkg/BUILDING.md"), "utf8");
let chapter;
for (const [, heading, language, text] of document.matchAll(/^##+ ([^\n]+)$|^```(\w+)\n(.*?)^```$/gms)) {
  if (heading) chapter = code[heading] = {};
  else (chapter[language] ??= []).push(text);
}

const AsyncFunction = (async () => {}).constructor;
const load = (from) => import(from.startsWith("node:") ? from : "../dist/client.js");
const clients = [];
let folder, daemon;

/** Puts the daemon's address and the test's files into code, and makes its imports calls of load. */
const here = (text) => text.replaceAll("https://push.example.com", daemon?.url).replace(/"((key\.pem|shop\.key))"/g, (_, file) => JSON.stringify(join(folder, file)))
  .replace(/^import \{ (.*) \} from "(.*)";$/gm, (_, names, from) => `const { ${names.replaceAll(" as ", ": ")} } = await load("${from}");`);

/** Runs code in which the names of scope are variables, and returns the variables that are asked for. */
const run = (text, scope = {}, wanted = "") => new AsyncFunction("load", ...Object.keys(scope), `${here(text)}\nreturn { ${wanted} };`)(load, ...Object.values(scope));

/** Runs shell code, in which pubsubd is the daemon's program, in the folder of the test. */
async function shell(text, env = {}) {
  const { stdout } = await promisify(execFile)("bash", ["-euc", here(text)], { cwd: folder, env: { ...process.env, PATH: `${dirname(program)}:${process.env.PATH}`, ...env } });
  return stdout;
}

/** Says why a program is not there, or false. In CI it must be there. */
async function missing(name, remedy) {
  if (await promisify(execFile)(name, ["--version"]).then(() => true, () => false)) return false;
  if (process.env.CI) throw new Error(`no ${name}: install ${remedy}`);
  return `no ${name}: install ${remedy}`;
}

const rights = () => JSON.parse(code["Sign tokens"].json[0]);
const sign = async (id, name = id) => (await run(code["Sign tokens"].js[0], {}, "pushToken")).pushToken(id, name, rights());

/** Connects a user as the pages of the chapter Set up do. */
async function connect(id, name) {
  const fetch = async (path) => (assert.equal(path, "/push-token"), new Response(await sign(id, name)));
  const { client } = await run(code["Set up"].js[0], { fetch }, "client");
  clients.push(client);
  return client;
}

/** The back end, with its API key. */
async function backEnd() {
  const { push } = await run(code["Publish from a back end"].js[0], {}, "push");
  clients.push(push);
  return push;
}

/** Reads with the key of the back end. */
const read = async (path) => (await fetch(daemon.url + path, { headers: { Authorization: "Bearer " + (await readFile(join(folder, "shop.key"), "utf8")).trim() } })).text();

const published = async (topic) => {
  const answer = await read(`/v1/topics/${topic}/messages`);
  return answer.trim().split("\n").map((line) => JSON.parse(line)).filter((frame) => frame.position);
};

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "building-"));
  await writeFile(join(folder, "push.yaml"), code["Set up"].yaml[0]);
  const commands = code["Set up"].sh[0].split("\n");
  assert.ok(commands.includes("pubsubd serve --config push.yaml"));
  await shell(commands.filter((line) => !line.startsWith("pubsubd serve")).join("\n"));
  daemon = await Daemon.start({ config: "push.yaml", ...(other && { "cors-origins": other.url }) }, { cwd: folder });
});

afterEach(() => clients.splice(0).forEach((c) => c.close()));

after(async () => {
  await daemon.end();
  await rm(folder, { recursive: true });
});

const php = await missing("php", "php-cli");
const python = await missing("python3", "python3");

test("a back end publishes from a shell and from Node", async () => {
  const isThere = async () => assert.deepEqual((await published("inbox.alice")).map(({ id, data }) => [id, data]), [["order-17-sent", { text: "Your order is on its way" }]]);
  assert.match(await shell(code["Publish from a back end"].sh[0]), /^\{"position":"inbox\.alice@/);
  await isThere();
  await backEnd();
  await isThere(); // the key makes it one message
});

for (const [language, head, skip] of [["php", "<?php\n", php], ["ruby", "", await missing("ruby", "ruby")]]) {
  test(`a back end publishes from ${language}, also when the daemon is back, and hears of a refusal`, { skip }, async () => {
    const publish = async (topic) => {
      await writeFile(join(folder, "publish"), head + here(code["Publish from a back end"][language][0]).replace(/(["'])inbox\.alice/, "$1" + topic));
      return shell(language + " publish");
    };
    await assert.rejects(publish("_own"), (err) => /RuntimeE/.test(err.stdout + err.stderr));
    await publish("inbox." + language);
    await publish("inbox." + language);
    assert.deepEqual((await published("inbox." + language)).map(({ id, data }) => [id, data]), [["order-17-sent", { text: "Your order is on its way" }]]);
    await daemon.process.stop("SIGKILL");
    const running = publish("inbox.again-" + language);
    await sleep(500);
    await daemon.begin();
    await running;
    assert.equal((await published("inbox.again-" + language)).length, 1);
  });
}

test("the daemon takes a token as Node signs it", async () => {
  await writeFile(join(folder, "token"), await sign("alice", "Alice"));
  const [command] = /pubsubd token inspect .* < token/.exec(document);
  assert.match(await shell(command), /public claim +name: Alice\n[^]*Accepted/);
});

test("PHP signs a token with the rights that it says", { skip: php }, async () => {
  await writeFile(join(folder, "rights.json"), code["Sign tokens"].json[0]);
  await writeFile(join(folder, "sign.php"), "<?php\n" + code["Sign tokens"].php[0] + "\necho push_token('alice', 'Alice', json_decode(file_get_contents('rights.json'), true));");
  const { stdout: token } = await promisify(execFile)("php", ["sign.php"], { cwd: folder });
  const status = async (topic) => (await fetch(`${daemon.url}/v1/poll?topic=${topic}@oldest`, { headers: { Authorization: "Bearer " + token } })).status;
  assert.deepEqual([await status("chat.42"), await status("inbox.alice"), await status("inbox.bob"), await status("chat.43")], [200, 200, 403, 403]);
});

for (const [name, language, file] of [[process.execPath, "js", "hook.mjs"], ["python3", "python", "hook.py"]]) {
  test(`a hook in ${language} checks the signature, messages and subscriptions`, { skip: name === "python3" && python }, async () => {
    const port = await freePort();
    const [exports, simulated] = code.Hooks.sh;
    const env = Object.fromEntries((await shell(exports + "\nenv")).split("\n").filter((line) => line.includes("HOOK")).map((line) => /(.*?)=(.*)/.exec(line).slice(1)));
    await writeFile(join(folder, file), code.Hooks[language][0].replace("9000", port));
    const hook = new Process(name, [file], { cwd: folder, env: { ...process.env, ...env } });
    const refusal = () => shell(simulated.replace("9000", port), env).then((answer) => JSON.parse(answer).refuse.detail, () => "");
    await until(() => "the hook refuses: " + hook.output, async () => (await refusal()) === "no advertisements here");
    const status = async (headers = {}) => (await fetch(`http://127.0.0.1:${port}/`, { method: "POST", body: "{}", headers })).status;
    assert.equal(await status(), 401);
    assert.equal(await status({ "Webhook-Id": "msg_1", "Webhook-Timestamp": String(Math.floor(Date.now() / 1000)), "Webhook-Signature": "v1,é" }), 401);
    assert.match(await shell(simulated.replace("9000", port).replace("$(date +%s)", "1774000000").replace("-s ", "-s -o /dev/null -w '%{http_code}' "), env), /^401$/);

    await writeFile(join(folder, "hooked.yaml"), code["Set up"].yaml[0] + code.Hooks.yaml[0].replaceAll("9000", port));
    const hooked = await Daemon.start({ config: "hooked.yaml", store: join(folder, "store-" + language) }, { cwd: folder, env });
    const usual = daemon;
    daemon = hooked;
    try {
      const [alice, eve] = [await connect("alice"), await connect("eve")];
      await alice.subscribe("chat.42", () => {}).started;
      await assert.rejects(eve.subscribe("chat.42", { onError: () => {} }, () => {}).started, { code: "forbidden", message: /^you are not in chat\.42;/ });
      await alice.publish("chat.42", { text: "hello" });
      await assert.rejects(alice.publish("chat.42", { text: "Casino!" }), { code: "forbidden", message: /^no advertisements here;/ });
      await hook.stop("SIGKILL");
      const refused = await fetch(hooked.url + "/v1/topics/chat.42/messages", { method: "POST", body: "1", headers: { "Content-Type": "application/json", Authorization: "Bearer " + (await sign("alice")) } });
      assert.equal((await refused.json()).code, "hook_failed");
    } finally {
      await hook.stop("SIGKILL");
      await hooked.end();
      daemon = usual;
    }
  });
}

test("presence", async () => {
  const [people, show] = [{}, () => {}];
  await run(code.Presence.js[0], { client: await connect("alice", "Alice"), people, show });
  await until(() => "Alice is here: " + people.textContent, () => people.textContent === "Alice");
  const bob = await connect("bob", "Bob");
  await run(code.Presence.js[0], { client: bob, people: {}, show });
  await until(() => "both are here: " + people.textContent, () => people.textContent === "Alice, Bob");
  assert.deepEqual(JSON.parse(await read("/v1/topics/chat.42/presence")).members.map((m) => m.subject), ["alice", "bob"]);
});

test("a typing indicator", async () => {
  const soon = (f, ms) => setTimeout(f, ms / 20);
  const users = [];
  for (const id of ["alice", "bob"]) {
    const user = { client: await connect(id), hint: {}, input: {}, setTimeout: soon };
    await run(code["Typing indicator"].js[0], user);
    users.push(user);
  }
  const [alice, bob] = users;
  await until("bob sees it", () => (alice.input.oninput(), bob.hint.textContent === "typing: alice"));
  await until("it ends", () => bob.hint.textContent === "");
  assert.equal(alice.hint.textContent, undefined, "her own is left out");
  assert.deepEqual(await published("typing.42"), [], "it is not stored");
});

test("notifications with an unread counter, on two devices", async () => {
  const devices = [];
  const device = async () => {
    const d = { client: await connect("dora"), me: { id: "dora" }, badge: {}, bell: {} };
    await run(code["Notifications with an unread counter"].js[0], d);
    devices.push(d);
  };
  const wantUnread = (n) => until(() => `${n} unread: ${devices.map((d) => d.badge.textContent)}`, () => devices.every((d) => d.badge.textContent === n));
  const push = await backEnd();
  await push.publish("inbox.dora", { text: "one" });
  await device();
  await push.publish("inbox.dora", { text: "two" });
  await device();
  await wantUnread(2);
  await devices[0].bell.onclick();
  await wantUnread("");
  await push.publish("inbox.dora", { text: "three" });
  await device();
  await wantUnread(1);
});

test("a live table loads once, and follows", async () => {
  const push = await backEnd();
  const table = [{ id: 1, state: "new" }, { id: 2, state: "new" }];
  let [shown, loads] = [[], 0];
  const fetch = async (path) => {
    assert.equal(path, "/api/orders");
    if (++loads === 1) throw new TypeError("the back end is away");
    return loads === 2 ? new Response("", { status: 502 }) : Response.json(table);
  };
  const [page, helper] = code["Live table"].js;
  const client = await connect("alice");
  void run(helper + page, { client, fetch, draw: (rows) => (shown = rows), setTimeout: (f, ms) => setTimeout(f, ms / 100) });
  const wantShown = (want) => until(() => JSON.stringify(shown), () => JSON.stringify(shown) === JSON.stringify(want));
  await wantShown(table);
  await push.publish("orders", { id: 2, state: "sent" });
  await push.publish("orders", { id: 1, deleted: true });
  await push.publish("orders", { id: 3, state: "new" });
  await wantShown([{ id: 2, state: "sent" }, { id: 3, state: "new" }]);
  assert.equal(loads, 3);
});

test("the tokens of a model: a reload in the middle, a stop, and a failure", async () => {
  const push = await backEnd();
  const model = async function* (tokens) {
    for (let n = 0; n < tokens; n++) {
      if (n && tokens === Infinity) throw new Error("the model fails");
      await sleep(10);
      yield n + " ";
    }
  };
  const [backEndCode, pageCode] = code["LLM tokens with a stop button"].js;
  const { answer, stop } = await run(backEndCode, { push, model }, "answer, stop");
  const open = async (topic) => {
    const client = await connect("alice");
    const page = { client, location: { hash: "#" + topic }, output: {}, stopButton: {}, notice: {}, fetch: async (path, { body }) => (assert.equal(path, "/api/stop"), stop(body)) };
    await run(pageCode, page);
    return page;
  };
  const whole = Array.from({ length: 1000 }, (_, n) => n + " ").join("");
  const answering = answer("llm.alice.1", 100); // in place of a question, the number of tokens
  const first = await open("llm.alice.1");
  await until("the answer begins", () => first.output.textContent.length > 20);
  first.client.close();
  const second = await open("llm.alice.1");
  await until("the page shows what came before it", () => second.output.textContent.length > first.output.textContent.length);
  assert.ok(whole.startsWith(second.output.textContent));
  await until("the answer ends", () => second.stopButton.disabled);
  assert.equal(second.output.textContent, whole.slice(0, whole.indexOf("100 ")));
  await answering;

  const stopped = answer("llm.alice.2", 1000);
  const third = await open("llm.alice.2");
  await until("the answer begins", () => third.output.textContent.length > 20);
  await third.stopButton.onclick();
  await stopped;
  await until("the answer ends", () => third.stopButton.disabled);
  assert.ok(whole.startsWith(third.output.textContent) && third.output.textContent.length < whole.length);
  assert.deepEqual([second.notice.textContent, third.notice.textContent], ["complete", "stopped"]);

  await answer("llm.alice.3", Infinity);
  const fourth = await open("llm.alice.3");
  await until("the page says that the model failed", () => fourth.notice.textContent === "failed");
  assert.equal(fourth.output.textContent, "0 ");
});

test("shared cursors", async () => {
  const users = [];
  for (const id of ["cara", "dan"]) { // they were not in the room before, so no grace keeps them there
    const cursors = new Map();
    const user = { client: await connect(id), me: { id }, board: {}, draw: (by, at) => cursors.set(by, at), erase: (by) => cursors.delete(by) };
    await run(code["Shared cursors"].js[0], user);
    user.inRoom = user.client.subscribe("chat.42", () => {});
    await user.inRoom.started;
    users.push({ ...user, cursors });
  }
  const [cara, dan] = users;
  let x = 0;
  const move = () => cara.board.onpointermove({ offsetX: ++x, offsetY: 2 * x });
  await until("dan sees a cursor", () => (move(), dan.cursors.has("cara")));
  for (let n = 0; n < 20; n++) move();
  await until("dan sees where it is", () => dan.cursors.get("cara").x === x);
  assert.equal(dan.cursors.get("cara").y, 2 * x);
  assert.equal(cara.cursors.size, 0);
  cara.inRoom.close(); // who unsubscribes leaves at once
  await until("her cursor is gone", () => dan.cursors.size === 0);
});

test("an outbox in the browser", { skip, timeout: 60_000 }, async () => {
  const context = await browser.newContext();
  const open = async () => {
    const tab = await context.newPage();
    await tab.goto(other.url);
    await tab.evaluate(async ({ text, token }) => {
      document.body.innerHTML = '<form id="form"><input id="input"></form><ul id="list"></ul>';
      const AsyncFunction = (async () => {}).constructor;
      await new AsyncFunction("load", "fetch", "me", text)((from) => import(from), async () => new Response(token), { id: "alice", name: "Alice" });
    }, { text: here(code["Set up"].js[0] + code["Outbox in the browser"].js[0]), token: await sign("alice", "Alice") });
    return tab;
  };
  const lines = (tab) => tab.locator("li").evaluateAll((all) => all.map((li) => [li.textContent, li.className]));
  const say = async (tab, text) => {
    await tab.fill("#input", text);
    await tab.press("#input", "Enter");
  };
  const wantLine = (tab, text, className) => until(() => `${text} ${className}`, async () => (await lines(tab)).some((line) => line[0] === text && line[1] === className));
  try {
    const first = await open();
    await say(first, "at once");
    await wantLine(first, "at once", "");
    await daemon.process.stop("SIGKILL");
    await say(first, "on a train");
    await wantLine(first, "on a train", "waiting");
    await first.close();
    await daemon.begin();
    const second = await open();
    await wantLine(second, "on a train", "");
    assert.deepEqual((await lines(second)).slice(-2), [["at once", ""], ["on a train", ""]]);
    assert.deepEqual((await published("chat.42")).slice(-2).map((m) => m.data.text), ["at once", "on a train"]);
  } finally {
    await context.close();
  }
});

test("a page below a path of the site", { skip, timeout: 60_000 }, async () => {
  const [line] = code["Transports and proxies"].nginx;
  const plain = await Daemon.start();
  const proxy = await Proxy.start("nginx", plain, "https://app.example", [["# " + line.trim(), line.trim()]]);
  const context = await browser.newContext();
  try {
    const tab = await context.newPage();
    await tab.goto(proxy.url);
    const data = await tab.evaluate(async ({ text, token }) => {
      const AsyncFunction = (async () => {}).constructor;
      const client = await new AsyncFunction("load", "token", text + "return client;")((from) => import(from), token);
      const came = new Promise((done) => client.subscribe("chat.42", { from: "oldest" }, (m) => done(m.data)));
      await client.publish("chat.42", "below a path");
      return came;
    }, { text: here(code["Transports and proxies"].js[0]), token: "ignored-by-a-daemon-without-keys" });
    assert.equal(data, "below a path");
    const [doctor] = /pubsubd doctor --url [^`]*/.exec(document);
    await writeFile(join(folder, "token"), "ignored-by-a-daemon-without-keys");
    const said = await shell(doctor.replace("https://push.example.com", proxy.url + "/push"));
    for (const check of ["stream", "websocket", "poll"]) assert.match(said, new RegExp(`^ok +${check} `, "m"));
    assert.match(await shell(`pubsubd publish --server ${proxy.url}/push below.a.path 1`), /^below\.a\.path@/);
  } finally {
    await context.close();
    await proxy.end();
    await plain.end();
  }
});

test("a test starts the daemon", async () => {
  const path = process.env.PATH;
  process.env.PATH = `${dirname(program)}:${path}`;
  try {
    const { startPubsubd } = await run(code["Test against it"].js[0], {}, "startPubsubd");
    const [flag] = /--history-messages=1/.exec(document);
    const started = await startPubsubd("--log-level=error", flag);
    const client = new Client(started.url);
    clients.push(client);
    const { position } = await client.publish("a", 0);
    for (const n of [1, 2]) await client.publish("a", n);
    const items = [];
    client.subscribe("a", { from: position }, (m) => items.push(m.gap?.reason ?? m.data));
    await until("the client has the gap", () => items.length === 2);
    assert.deepEqual(items, ["evicted", 2]);
    started.kill();
    await until("it has ended", () => fetch(started.url).then(() => false, () => true));
    await assert.rejects(startPubsubd("--no-such-flag", "--log-level=error"), /did not start/);
  } finally {
    process.env.PATH = path;
  }
});
