// Drives WebKitGTK's MiniBrowser by WebDriver, with the part of Playwright's interface
// that the tests use. Playwright itself drives only a WebKit that it has changed.
import { spawn } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { freePort, Process, until } from "./daemon.mjs";

/** A display of its own, and the contexts on it. */
export class WebKit {
  #contexts = new Set();
  #display;
  #number;

  static async launch() {
    const b = new WebKit();
    b.#display = spawn("Xvfb", ["-displayfd", "3", "-nolisten", "tcp"], { stdio: ["ignore", "ignore", "ignore", "pipe"] });
    process.once("exit", () => b.#display.kill()); // without a display the browsers end, too
    const ended = once(b.#display, "exit").then(() => Promise.reject(new Error("Xvfb ended")));
    const [number] = await Promise.race([once(b.#display.stdio[3], "data"), ended]);
    b.#number = String(number).trim();
    return b;
  }

  /** Opens a browser with a profile of its own. */
  async newContext({ ignoreHTTPSErrors = false } = {}) {
    const context = await Context.start(this.#number, ignoreHTTPSErrors);
    this.#contexts.add(context);
    return context;
  }

  async newPage() {
    return (await this.newContext()).newPage();
  }

  async close() {
    await Promise.all([...this.#contexts].map((context) => context.close()));
    this.#display.kill();
    await once(this.#display, "exit");
  }
}

/** A driver, which has one session: a MiniBrowser, whose tabs are the pages. */
class Context {
  #driver;
  #folder;
  #url;
  #scripts = [];
  #spare; // the tab that the browser opens by itself
  #current; // the tab that commands go to
  #last = Promise.resolve(); // the newest command
  #closed;

  static async start(display, acceptInsecureCerts) {
    const c = new Context();
    const port = await freePort();
    c.#folder = await mkdtemp(join(tmpdir(), "webkit-"));
    c.#driver = new Process("WebKitWebDriver", ["--port=" + port], { env: { ...process.env, DISPLAY: ":" + display, HOME: c.#folder } });
    c.#url = `http://127.0.0.1:${port}`;
    await c.#driver.ready(c.#url + "/status");
    const { sessionId } = await c.#call("POST", "/session", { capabilities: { alwaysMatch: { acceptInsecureCerts } } });
    c.#url += "/session/" + sessionId;
    c.#current = c.#spare = await c.#call("GET", "/window");
    return c;
  }

  /** Runs a function in each page after it has loaded, before the test does anything there. */
  async addInitScript(f) {
    this.#scripts.push(f);
  }

  async newPage() {
    const tab = this.#spare ?? (await this.#next(() => this.#openTab())).handle;
    this.#spare = undefined;
    return new Page(this, (...command) => this.#inTab(tab, ...command), this.#scripts);
  }

  close() {
    return (this.#closed ??= (async () => {
      await this.#next(() => this.#call("DELETE", "")).catch(() => {});
      await this.#driver.stop("SIGTERM");
      await rm(this.#folder, { recursive: true, force: true, maxRetries: 5 });
    })());
  }

  async #call(method, path, body) {
    const answer = await fetch(this.#url + path, { method, body: body && JSON.stringify(body) });
    const { value } = await answer.json();
    if (!answer.ok) throw new Error(`${method} ${path}: ${value.error}: ${value.message}`);
    return value;
  }

  async #openTab() {
    // The driver opens a tab beside the current one, which may have been closed.
    if (!this.#current) await this.#call("POST", "/window", { handle: (this.#current = (await this.#call("GET", "/window/handles"))[0]) });
    return this.#call("POST", "/window/new", { type: "tab" });
  }

  /** Runs commands after those before: a session has one current tab. */
  #next(commands) {
    return (this.#last = this.#last.then(commands, commands));
  }

  #inTab(tab, method, path, body) {
    return this.#next(async () => {
      if (this.#current !== tab) await this.#call("POST", "/window", { handle: tab });
      this.#current = tab;
      if (method === "DELETE") this.#current = undefined;
      return this.#call(method, path, body);
    });
  }
}

// What runs in the page for each evaluate: it begins the function, and does not wait for it,
// because meanwhile no other page could do anything. Errors of the page come with the next look.
const begin = `
  if (!window.runs) {
    window.runs = new Map();
    window.pageErrors = [];
    addEventListener("error", (e) => pageErrors.push(String(e.error ?? e.message)));
    addEventListener("unhandledrejection", (e) => pageErrors.push(String(e.reason)));
  }
  const [key, source, argument] = arguments;
  const run = {};
  runs.set(key, run);
  (async () => (0, eval)("(" + source + ")")(argument))().then(
    (value) => (run.result = JSON.stringify({ value })),
    (err) => (run.result = JSON.stringify({ error: err + "\\n" + err?.stack })));`;

const look = `
  if (!window.runs?.has(arguments[0])) return { result: '{"error":"the page was left"}', errors: [] };
  return { result: runs.get(arguments[0]).result, errors: pageErrors.splice(0) };`;

class Page extends EventEmitter {
  #context;
  #command;
  #scripts;
  #count = 0;

  constructor(context, command, scripts) {
    super();
    this.#context = context;
    this.#command = command;
    this.#scripts = scripts;
  }

  context() {
    return this.#context;
  }

  async goto(url) {
    await this.#command("POST", "/url", { url });
    await this.evaluate(() => {});
    for (const f of this.#scripts) await this.evaluate(f);
  }

  async goBack() {
    await this.#command("POST", "/back", {});
  }

  async reload() {
    await this.#command("POST", "/refresh", {});
  }

  async close() {
    await this.#command("DELETE", "/window");
  }

  /** Runs a function in the page, and returns what it returns, if that is JSON. */
  async evaluate(f, argument = null) {
    const key = ++this.#count;
    const execute = (script, ...args) => this.#command("POST", "/execute/sync", { script, args });
    await execute(begin, key, String(f), argument);
    for (let ms = 1; ; ms = Math.min(2 * ms, 50)) {
      const { result, errors } = await execute(look, key);
      for (const err of errors) this.emit("pageerror", err);
      if (result) {
        const { value, error } = JSON.parse(result);
        if (error) throw new Error(error);
        return value;
      }
      await sleep(ms);
    }
  }

  waitForFunction(f, argument, { timeout = 30_000 } = {}) {
    return until(() => `${f} with ${JSON.stringify(argument)}`, () => this.evaluate(f, argument), timeout);
  }

  addScriptTag({ type, content }) {
    return this.evaluate((script) => void document.head.append(Object.assign(document.createElement("script"), script)), { type, textContent: content });
  }
}
