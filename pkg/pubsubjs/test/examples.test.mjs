// The examples of deploy/examples, and the demonstration in the README, in a browser.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { cp, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { noBrowser, startBrowser } from "./browser.mjs";
import { Cutter } from "./cutter.mjs";
import { Daemon, freePort, Process, until } from "./daemon.mjs";

const repository = fileURLToPath(new URL("../../../", import.meta.url));
const examples = join(repository, "deploy/examples");
const skip = await noBrowser();
let browser;

before(async () => {
  if (!skip) browser = await startBrowser();
});

after(() => browser?.close());

/** Serves a copy of the pages, in which the daemon has another address. */
class Pages {
  static start(address, port, ...args) {
    return Pages.#start(address, port, (folder) => new Process(join(repository, "bin/examples"), [`--listen=127.0.0.1:${port}`, `--folder=${folder}`, ...args]));
  }

  /** Serves the pages, and runs a daemon, by the command of make run. */
  static startByMake(address, port, variables) {
    return Pages.#start(address, port, (folder) => {
      const settings = Object.entries({ PAGES: folder, PAGES_ADDRESS: `127.0.0.1:${port}`, ...variables }).map((pair) => pair.join("="));
      const [command] = /^exec .*$/m.exec(execFileSync("make", ["-n", "run", ...settings], { cwd: repository, encoding: "utf8" }));
      return new Process("sh", ["-c", command], { cwd: repository });
    });
  }

  static async #start(address, port, begin) {
    const p = new Pages();
    p.url = `http://127.0.0.1:${port}`;
    p.folder = await mkdtemp(join(tmpdir(), "pages-"));
    await cp(examples, p.folder, { recursive: true });
    for (const name of await readdir(p.folder)) if (name.endsWith(".html")) await p.write(name, await readFile(join(p.folder, name), "utf8"), address);
    p.process = begin(p.folder);
    await p.process.ready(p.url);
    return p;
  }

  write(name, text, address) {
    return writeFile(join(this.folder, name), text.replaceAll("http://127.0.0.1:8080", address));
  }

  async journal(topic) {
    return (await (await fetch(`${this.url}/journal/${topic}`)).json()).entries;
  }

  /** Kills the daemon, by the command that was printed last. */
  kill() {
    const [, pid] = [...this.process.output.matchAll(/: kill -9 (\d+)\n/g)].at(-1);
    process.kill(Number(pid), "SIGKILL");
  }

  async end() {
    await this.process.stop("SIGTERM");
    await rm(this.folder, { recursive: true });
  }
}

// Runs a test of a page. Connections of the page to the daemon can be cut. Fails on any error in a page.
async function withPages(run) {
  const port = await freePort();
  const daemon = await Daemon.start({ "cors-origins": `http://127.0.0.1:${port}` });
  const cutter = await Cutter.start(daemon.port);
  const pages = await Pages.start(cutter.url, port, `--server=${daemon.url}`);
  const context = await browser.newContext();
  try {
    const errors = [];
    context.on("weberror", (e) => errors.push(e.error()));
    await run({ daemon, cutter, pages, context });
    assert.deepEqual(errors, []);
  } finally {
    await context.close();
    await pages.end();
    await cutter.end();
    await daemon.end();
  }
}

async function open(context, url) {
  const tab = await context.newPage();
  tab.loads = 0;
  tab.on("request", (r) => (tab.loads += r.method() === "GET" && r.url().includes("/journal/") ? 1 : 0));
  await tab.goto(url);
  return tab;
}

const textOf = (tab, selector) => tab.locator(selector).textContent();

test("the answer of a model appears once: after a reload, in a second tab, over cuts and a crash", { skip, timeout: 90_000 }, () => withPages(async ({ daemon, cutter, pages, context }) => {
  const tab = await open(context, pages.url + "/llm.html");
  await tab.fill("[name=question]", "Why?");
  await tab.press("[name=question]", "Enter");
  const tokens = async (t) => parseInt(await textOf(t, "#count")) || 0;
  await until("the answer begins", async () => (await tokens(tab)) > 20);
  await tab.reload();
  const topic = new URL(tab.url()).search.slice(1);
  const second = await open(context, tab.url());
  await until("the second tab knows that the connection is there", () => second.locator("#state.open").count());
  await until("both tabs follow", async () => (await tokens(tab)) > 60 && (await tokens(second)) > 60);
  const loads = [tab.loads, second.loads];
  assert.ok(cutter.break("reset") > 0);
  await until("both tabs go on", async () => (await tokens(tab)) > 120 && (await tokens(second)) > 120);
  assert.deepEqual([tab.loads, second.loads], loads, "they resume after a cut; they do not load the answer again");
  await daemon.crash();
  const done = (t) => t.locator("main.done").count();
  await until("both answers are complete", async () => (await done(tab)) && (await done(second)));
  const entries = await pages.journal(topic);
  for (const t of [tab, second]) {
    assert.equal(await textOf(t, "#question"), "Why?");
    assert.equal(await textOf(t, "#answer"), entries.slice(1).join(""));
    assert.match(await textOf(t, "#answer"), /^I am .* once\.$/s);
  }
}));

/** Serves the chat with a daemon of its own, to a user with a new profile. */
async function withChat(run, args = [], more = []) {
  const [port, client, admin] = [await freePort(), await freePort(), await freePort()];
  const address = `http://127.0.0.1:${client}`;
  const daemon = [join(repository, "bin/pubsubd"), "serve", `--listen-public=127.0.0.1:${client}`, `--listen-admin=127.0.0.1:${admin}`];
  const settings = ["--log-level=error", "--poll-heartbeat=500ms", "--poll-timeout=1s", "--topics=chat.presence_grace=200ms", "--session-inactivity-timeout=10s", ...more];
  const pages = await Pages.start(address, port, "--page=chat.html", `--server=${address}`, ...args, "--", ...daemon, ...settings);
  const context = await browser.newContext();
  try {
    const errors = [];
    context.on("weberror", (e) => errors.push(e.error()));
    await pages.process.ready(`http://127.0.0.1:${admin}/readyz`);
    await run({ pages, address, admin: `http://127.0.0.1:${admin}`, context });
    assert.deepEqual(errors, []);
  } finally {
    await context.close();
    await pages.end();
  }
}

/** Opens the chat in a tab that counts its connections, and tries to enter a room. */
async function enter(context, pages, name, room = "lobby") {
  const tab = await context.newPage();
  tab.sockets = tab.opened = tab.renewed = 0;
  tab.on("websocket", () => tab.sockets++);
  tab.on("response", (r) => {
    const { pathname } = new URL(r.url());
    if (r.request().method() === "POST" && pathname === "/v1/sessions") tab.opened++;
    if (r.request().method() === "PATCH" && r.ok()) tab.renewed++;
  });
  await tab.goto(pages.url + "/chat.html");
  await tab.fill("#name", name);
  await tab.selectOption("#room", room);
  await tab.click("#enter button");
  return tab;
}

const linesOf = (tab) => tab.locator("#lines li").evaluateAll((all) => all.map((line) => line.firstChild.textContent.split(" · ").slice(0, 2).concat(line.lastChild.textContent)));

async function say(tab, text) {
  await tab.fill("#text", text);
  await tab.press("#text", "Enter");
}

async function wantLines(tabs, want) {
  for (const tab of tabs) {
    await until("a tab shows " + want.at(-1), async () => (await linesOf(tab)).length >= want.length);
    assert.deepEqual(await linesOf(tab), want);
  }
}

async function wantHere(tab, want) {
  let got;
  await until(() => `${want}; the page says ${got}`, async () => (got = await textOf(tab, "#here")) === want);
}

const wantNotice = (tab, want) => until(`the notice ${want}`, async () => want.test(await textOf(tab, "#notice")));

test("a chat: each has rights in rooms, a verified name, and sees who is there", { skip, timeout: 120_000 }, () => withChat(async ({ pages, address, context }) => {
  const ann = await enter(context, pages, "Ann");
  await wantHere(ann, "1 here: Ann");
  const bob = await enter(context, pages, "Bob");
  await wantHere(ann, "2 here: Ann, Bob");
  await wantHere(bob, "2 here: Ann, Bob");

  // Tabs of one profile share a connection, but not with another subject.
  await say(ann, "hello");
  await say(bob, "<b>hi</b>");
  const said = [["Ann", "@ann", "hello"], ["Bob", "@bob", "<b>hi</b>"]];
  await until("both messages are there", async () => (await linesOf(ann)).length === 2);
  assert.deepEqual((await linesOf(ann)).toSorted(), said);
  const order = await linesOf(ann);
  const again = await context.newPage();
  await again.goto(pages.url + "/index.html");
  await again.evaluate((secret) => (sessionStorage.secret = secret), await ann.evaluate(() => sessionStorage.secret));
  again.sockets = 0;
  again.on("websocket", () => again.sockets++);
  await again.goto(pages.url + "/chat.html");
  await again.fill("#name", "Ann");
  await again.click("#enter button");
  await wantHere(again, "2 here: Ann, Bob");
  await wantLines([ann, bob, again], order);
  assert.deepEqual([ann.sockets, bob.sockets, again.sockets], [1, 1, 0]);
  assert.deepEqual([await ann.locator(".own").count(), await bob.locator(".own").count(), await again.locator(".own").count()], [1, 1, 1]);
  await again.close();

  // Nobody can speak as another.
  const taken = await enter(context, pages, "ANN");
  await until("the name is taken", async () => /not in the room: choose another name/.test(await textOf(taken, "#here")));
  await taken.fill("#name", "Cy");
  await taken.click("#enter button");
  await wantHere(ann, "3 here: Ann, Bob, Cy");
  await taken.close();
  await wantHere(ann, "2 here: Ann, Bob");
  const token = async (name, secret) => (await (await fetch(pages.url + "/chat/token", { method: "POST", body: JSON.stringify({ name, secret }) })).json()).token;
  const publish = async (bearer, message) => {
    const headers = { "Content-Type": "application/json", ...(bearer && { Authorization: "Bearer " + bearer }) };
    const answer = await (await fetch(address + "/v1/messages", { method: "POST", headers, body: JSON.stringify([{ topic: "chat.lobby", ...message }]) })).json();
    return answer.code ?? answer[0].problem?.code ?? "published";
  };
  const bobs = await token("Bob", await bob.evaluate(() => sessionStorage.secret));
  assert.equal(await publish(bobs, { data: { text: "forged" }, by: "ann" }), "invalid_request");
  assert.equal(await publish(undefined, { data: { text: "forged" } }), "unauthorized");
  assert.equal(await publish(bobs.slice(0, -4) + "AAAA", { data: { text: "forged" } }), "unauthorized");
  // The moderation reads the last of similar members, and only that is published.
  assert.equal(await publish(bobs, { data: { text: "casino", TEXT: "by me", by: "ann", name: "Ann", claims: { name: "Ann" } } }), "published");
  await wantLines([ann, bob], [...order, ["Bob", "@bob", "by me"]]);

  // The moderation refuses with a reason, which the page shows.
  await say(bob, "Come to my CASINO");
  await wantNotice(bob, /Not sent: .*no advertisements/);
  assert.equal(await bob.inputValue("#text"), "Come to my CASINO");
  assert.equal(await publish(bobs, { data: ["casino"] }), "forbidden");
  assert.equal(await publish(bobs, { type: "text/plain", text: "casino" }), "forbidden");

  // Only the moderator may enter every room, and clear one.
  await bob.selectOption("#room", "staff");
  await until("bob is refused", async () => /not in the room: "bob" may not subscribe to "chat.staff"/.test(await textOf(bob, "#here")));
  assert.ok(await bob.locator("#say").isHidden());
  await wantHere(ann, "1 here: Ann");
  await bob.selectOption("#room", "lobby");
  await wantLines([bob], [...order, ["Bob", "@bob", "by me"]]);
  await bob.click("#clear");
  await wantNotice(bob, /"bob" may not delete/);
  await ann.click("#clear");
  await until("the room is empty", async () => !(await linesOf(bob)).length && !(await linesOf(ann)).length);
  await say(bob, "all new");
  await wantLines([ann, bob], [["Bob", "@bob", "all new"]]);
  await ann.selectOption("#room", "staff");
  await wantHere(ann, "1 here: Ann");
  await wantHere(bob, "1 here: Bob");
  assert.deepEqual(await linesOf(ann), []);

  // The other pages have no tokens, and only the rights that they need.
  const ticker = await open(context, pages.url + "/ticker.html");
  await until("a price is there", () => ticker.locator("#prices output").count());
}));

test("a chat goes on when tokens expire, on the same connection, and after a crash", { skip, timeout: 120_000 }, () => withChat(async ({ pages, context }) => {
  const ann = await enter(context, pages, "Ann");
  const bob = await enter(context, pages, "Bob");
  await wantHere(ann, "2 here: Ann, Bob");
  await wantHere(bob, "2 here: Ann, Bob");
  const before = [ann.renewed, bob.renewed];
  await until("both tokens are renewed three times", () => ann.renewed >= before[0] + 3 && bob.renewed >= before[1] + 3);
  await say(ann, "still there?");
  await wantLines([ann, bob], [["Ann", "@ann", "still there?"]]);
  assert.deepEqual([ann.sockets, bob.sockets, ann.opened, bob.opened], [1, 1, 1, 1], "connections and sessions stay");
  assert.equal(await textOf(bob, "#here"), "2 here: Ann, Bob");

  pages.kill();
  await wantNotice(ann, /restarted/);
  await wantNotice(bob, /restarted/);
  for (const tab of [ann, bob]) await until("both are here again, in any order", async () => /^2 here: (Ann, Bob|Bob, Ann)$/.test(await textOf(tab, "#here")));
  await say(bob, "now I am");
  await wantLines([ann, bob], [["Ann", "@ann", "still there?"], ["Bob", "@bob", "now I am"]]);
}, ["--token-life=4s"]));

test("a subject that is revoked is out, and nobody else notices", { skip, timeout: 60_000 }, async () => {
  const folder = await mkdtemp(join(tmpdir(), "operator-"));
  const key = randomBytes(32).toString("base64");
  await writeFile(join(folder, "admin.key"), key, { mode: 0o600 });
  const settings = [`--admin-key-file=${join(folder, "admin.key")}`, `--auth-revocations=${join(folder, "revocations")}`];
  await withChat(async ({ pages, address, admin, context }) => {
    const ann = await enter(context, pages, "Ann");
    await wantHere(ann, "1 here: Ann");
    const bob = await context.newPage();
    await bob.goto(pages.url + "/index.html");
    await bob.evaluate(async (url) => {
      const { Client } = await import(url + "/v1/client.js");
      const { token } = await (await fetch("chat/token", { method: "POST", body: JSON.stringify({ name: "Bob", secret: "s" }) })).json();
      window.client = new Client(url, { token, share: "chat" });
      window.subscription = client.subscribe("chat.lobby", { onError: (e) => (window.refusal = e.code) }, () => {});
      await subscription.started;
    }, address);
    await wantHere(ann, "2 here: Ann, Bob");
    const headers = { Authorization: "Bearer " + key, "Content-Type": "application/json" };
    const answer = await fetch(admin + "/revocations", { method: "POST", headers, body: JSON.stringify({ subject: "bob" }) });
    assert.equal(answer.status, 200, await answer.text());
    await wantHere(ann, "1 here: Ann");
    await until("the client of bob is closed", () => bob.evaluate(() => client.state.state === "closed"));
    assert.equal(await bob.evaluate(() => refusal), "unauthorized");
    await say(ann, "he is out");
    await wantLines([ann], [["Ann", "@ann", "he is out"]]);
    assert.deepEqual([ann.sockets, ann.opened], [1, 1]);
  }, [], settings);
  await rm(folder, { recursive: true });
});

test("the ticker shows every symbol, and keeps the rate", { skip, timeout: 90_000 }, () => withPages(async ({ pages, context }) => {
  const tab = await open(context, pages.url + "/ticker.html");
  const symbols = tab.locator("#prices article");
  await until("all symbols have a price", async () => (await symbols.count()) === 24 && (await symbols.locator("output").allTextContents()).every((t) => /^\d+\.\d\d$/.test(t)));
  const order = await tab.locator("h2").allTextContents();
  assert.deepEqual(order, order.toSorted());
  // Counts the prices of each symbol at a rate until each has as many.
  const count = async (rate, least) => {
    await tab.selectOption("#rate", rate);
    await tab.evaluate(() => {
      window.counts = Object.fromEntries([...document.querySelectorAll("#prices article")].map((a) => [a.id, 0]));
      window.began = performance.now();
      window.observer?.disconnect();
      window.observer = new MutationObserver((all) => all.forEach(({ target }) => target.tagName === "OUTPUT" && counts[target.parentElement.id]++));
      observer.observe(document.getElementById("prices"), { childList: true, subtree: true });
    });
    await until(`each symbol has ${least} prices`, () => tab.evaluate((n) => Object.values(counts).every((c) => c >= n), least));
    return tab.evaluate(() => ({ most: Math.max(...Object.values(counts)), seconds: (performance.now() - began) / 1000 }));
  };
  const slow = await count("1/2s", 2);
  assert.ok(slow.most <= slow.seconds / 2 + 1, `${slow.most} prices in ${slow.seconds} s`);
  await count("", 20);
  assert.equal(await tab.locator("#notice").isHidden(), true, "a price that was replaced is no loss");
}));

test("the script in the README is in the page that it shows", async () => {
  const lines = async (path) => (await readFile(join(repository, path), "utf8")).split("\n").map((line) => line.trim());
  const readme = (await lines("README.md")).join("\n");
  const page = await lines("deploy/examples/hello.html");
  for (const line of /```js\n(.*?)\n```/s.exec(readme)[1].split("\n")) assert.ok(page.includes(line), line);
});

// The steps in the README under "Try it", without a store for its last step.
for (const [kind, afterwards] of [["a store", []], ["no store", ["gap: restarted"]]]) {
  test(`the demonstration with ${kind}`, { skip, timeout: 60_000 }, async () => {
    const [port, client, admin] = [await freePort(), await freePort(), await freePort()];
    const address = `http://127.0.0.1:${client}`;
    const store = await mkdtemp(join(tmpdir(), "store-"));
    const listen = `--listen-public=127.0.0.1:${client} --listen-admin=127.0.0.1:${admin} --log-level=error`;
    const pages = await Pages.startByMake(address, port, { ARGS: listen, STORE: kind === "a store" ? store : "" });
    const contexts = await Promise.all([1, 2].map(() => browser.newContext()));
    const heard = (tab) => tab.locator("#heard li").allTextContents();
    const say = async (tab, text) => {
      await tab.fill("#words", text);
      await tab.press("#words", "Enter");
    };
    try {
      await until("the page is printed", () => pages.process.output.includes(`${pages.url}/hello.html`));
      await pages.process.ready(`http://127.0.0.1:${admin}/readyz`);
      // By another name of this machine, the browser comes to the origin that the daemon allows.
      const tabs = await Promise.all(contexts.map((context) => open(context, `http://localhost:${port}/hello.html`)));
      const bothShow = async (...texts) => {
        for (const tab of tabs) await until(async () => `${await heard(tab)}`, async () => (await heard(tab)).length === texts.length);
        for (const tab of tabs) assert.deepEqual(await heard(tab), texts);
      };
      await say(tabs[0], "hello <world>");
      await bothShow("hello <world>");

      await contexts[1].setOffline(true);
      await until("the page notices it", async () => (await textOf(tabs[1], "#state")) === "waiting");
      await say(tabs[1], "from the train");
      await say(tabs[0], "from home");
      await until("the other page goes on", async () => (await heard(tabs[0])).includes("from home"));
      assert.deepEqual(await heard(tabs[1]), ["hello <world>"]);
      await contexts[1].setOffline(false);
      const agreed = ["hello <world>", "from home", "from the train"];
      await bothShow(...agreed);

      pages.kill();
      await say(tabs[1], "after the kill");
      await bothShow(...agreed, ...afterwards, "after the kill");

      const allowed = async (origin) => (await fetch(address + "/v1/topics", { headers: { Origin: origin } })).headers.get("Access-Control-Allow-Origin");
      assert.equal(await allowed(pages.url), pages.url);
      assert.equal(await allowed(`http://localhost:${port}`), null);
      const foreign = await fetch(pages.url + "/llm", { method: "POST", headers: { Origin: "http://other.example" }, redirect: "manual" });
      assert.equal(foreign.status, 403);
    } finally {
      await Promise.all(contexts.map((context) => context.close()));
      await pages.end();
      await rm(store, { recursive: true });
    }
    assert.equal(pages.process.child.exitCode, 0);
    await assert.rejects(fetch(address), "the daemon ends with the pages");
  });
}

test("each example is short", async () => {
  const read = (name) => readFile(join(examples, name), "utf8").catch(() => "");
  for (const name of ["llm", "ticker"]) {
    const [, script] = /<script type="module">\n(.*?)<\/script>/s.exec(await read(name + ".html"));
    const code = (script + (await read(name + ".go"))).split("\n").filter((line) => line.trim() && !line.trim().startsWith("//"));
    assert.ok(code.length < 60, `${name} has ${code.length} lines`);
  }
  const chat = ((await read("chat.html")) + (await read("chat.go"))).trimEnd().split("\n");
  assert.ok(chat.length < 150, `the page and the back end of the chat have ${chat.length} lines`);
});
