// The examples of deploy/examples, and the page in the README, in a browser.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
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
  static async start(address, port, ...args) {
    const p = new Pages();
    p.url = `http://127.0.0.1:${port}`;
    p.folder = await mkdtemp(join(tmpdir(), "pages-"));
    await cp(examples, p.folder, { recursive: true });
    for (const name of await readdir(p.folder)) if (name.endsWith(".html")) await p.write(name, await readFile(join(p.folder, name), "utf8"), address);
    p.process = new Process(join(repository, "bin/examples"), [`--listen=127.0.0.1:${port}`, `--folder=${p.folder}`, ...args]);
    await p.process.ready(p.url);
    return p;
  }

  write(name, text, address) {
    return writeFile(join(this.folder, name), text.replaceAll("http://127.0.0.1:8080", address));
  }

  async journal(topic) {
    return (await (await fetch(`${this.url}/journal/${topic}`)).json()).entries;
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

test("two people see each line of a chat once, also after restarts", { skip, timeout: 90_000 }, () => withPages(async ({ daemon, pages, context }) => {
  const other = await browser.newContext();
  const ann = await open(context, pages.url + "/chat.html");
  const bob = await open(other, pages.url + "/chat.html");
  const said = [];
  const say = async (tab, text) => {
    said.push(text);
    await tab.fill("#text", text);
    await tab.press("#text", "Enter");
  };
  const lines = (tab) => tab.locator("#lines li").evaluateAll((all) => all.map((line) => line.lastChild.textContent));
  const seen = async (...tabs) => {
    await until(`all tabs show ${said}`, async () => (await Promise.all(tabs.map(lines))).every((l) => l.includes(said.at(-1))));
    for (const tab of tabs) assert.deepEqual(await lines(tab), said);
  };
  try {
    await say(ann, "hello");
    await seen(ann, bob);
    await say(bob, "<b>hi</b>");
    await seen(ann, bob);
    await daemon.crash();
    await say(ann, "still there?");
    await seen(ann, bob);
    assert.match(await textOf(bob, "#notice"), /loaded again/);
    await daemon.process.stop("SIGTERM");
    await until("bob sees that the server is away", () => bob.locator("#state.waiting").count());
    await say(bob, "sent while the server was away");
    await daemon.begin();
    await seen(ann, bob, await open(context, ann.url()));
    await until("bob sees that the connection is there", () => bob.locator("#state.open").count());
    assert.equal(await bob.locator("#lines li.own").count(), 2);
  } finally {
    await other.close();
  }
}));

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

test("the page in the README works as it is", { skip, timeout: 60_000 }, async () => {
  const [, page] = /```html\n(.*?)```/s.exec(await readFile(join(repository, "README.md"), "utf8"));
  assert.equal(page.trimEnd().split("\n").length, 12);
  const [port, client, admin] = [await freePort(), await freePort(), await freePort()];
  const address = `http://127.0.0.1:${client}`;
  const daemon = [join(repository, "bin/pubsubd"), "serve", `--listen-public=127.0.0.1:${client}`, `--listen-admin=127.0.0.1:${admin}`, "--log-level=error"];
  const pages = await Pages.start(address, port, "--page=hello.html", "--", ...daemon);
  const context = await browser.newContext();
  try {
    assert.match(pages.process.output, new RegExp(`${pages.url}/hello.html`));
    await pages.write("hello.html", page, address);
    await pages.process.ready(`http://127.0.0.1:${admin}/readyz`);
    // By another name of this machine, the browser comes to the origin that the daemon allows.
    const tabs = await Promise.all([1, 2].map(() => open(context, `http://localhost:${port}/hello.html`)));
    await tabs[0].fill("input", "hello <world>");
    await tabs[0].press("input", "Enter");
    for (const tab of tabs) {
      await until("the page shows the message", async () => (await tab.locator("li").count()) > 0);
      assert.deepEqual(await tab.locator("li").allTextContents(), ["hello <world>"]);
    }
    // Someone kills the daemon.
    process.kill(Number((await promisify(execFile)("pgrep", ["-P", pages.process.child.pid])).stdout), "SIGKILL");
    await tabs[1].fill("input", "after the crash");
    await tabs[1].press("input", "Enter");
    for (const tab of tabs) {
      await until("the page goes on", async () => (await tab.locator("li").count()) > 2);
      assert.deepEqual(await tab.locator("li").allTextContents(), ["hello <world>", "restarted", "after the crash"]);
    }
    const allowed = async (origin) => (await fetch(address + "/v1/topics", { headers: { Origin: origin } })).headers.get("Access-Control-Allow-Origin");
    assert.equal(await allowed(pages.url), pages.url);
    assert.equal(await allowed(`http://localhost:${port}`), null);
    const foreign = await fetch(pages.url + "/llm", { method: "POST", headers: { Origin: "http://other.example" }, redirect: "manual" });
    assert.equal(foreign.status, 403);
  } finally {
    await context.close();
    await pages.end();
  }
  assert.equal(pages.process.child.exitCode, 0);
  await assert.rejects(fetch(address), "the daemon ends with the pages");
});

test("each example has fewer than 60 lines of code", async () => {
  for (const name of ["chat", "llm", "ticker"]) {
    const [, script] = /<script type="module">\n(.*?)<\/script>/s.exec(await readFile(join(examples, name + ".html"), "utf8"));
    const simulation = await readFile(join(examples, name + ".go"), "utf8").catch(() => "");
    const code = (script + simulation).split("\n").filter((line) => line.trim() && !line.trim().startsWith("//"));
    assert.ok(code.length < 60, `${name} has ${code.length} lines`);
  }
});
