// Starts a browser, and pages that follow a topic.
import { access } from "node:fs/promises";
import { createServer } from "node:http";
import { once } from "node:events";
import { after } from "node:test";
import { chromium, firefox } from "playwright-core";
import { WebKit } from "./webkit.mjs";

const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

// When no frame of HTTP/2 came for so many seconds, Firefox pings, and waits so long. Otherwise a test would wait 66 s.
const impatient = { "network.http.http2.ping-threshold": 5, "network.http.http2.ping-timeout": 3 };

/** How to start each browser, the programs that it needs (of each list, one), and how to get them. */
const browsers = {
  chromium: {
    programs: [[process.env.CHROMIUM, "/usr/bin/chromium-headless-shell", "/usr/bin/chromium"]],
    remedy: "install chromium-headless-shell, or name its program in CHROMIUM",
    launch: (executablePath) => chromium.launch({ executablePath, args: flags }),
  },
  firefox: {
    programs: [[process.env.FIREFOX, "/usr/bin/firefox-esr", "/usr/bin/firefox"]],
    remedy: "install firefox-esr, or name its program in FIREFOX",
    // By WebDriver BiDi, as any Firefox speaks it. playwright-core 1.65 sends a command that Firefox 153 does not know.
    launch: (executablePath, preferences) => firefox.launch({ executablePath, channel: "moz-firefox", firefoxUserPrefs: { ...impatient, ...preferences } }),
  },
  webkit: {
    programs: [["/usr/bin/WebKitWebDriver"], ["/usr/bin/Xvfb"]],
    remedy: "install webkit2gtk-driver and xvfb",
    launch: () => WebKit.launch(),
  },
};

/** The browser of this run. */
export const browserName = process.env.BROWSER ?? "chromium";

/** The page of every test. */
export const page = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>test</title>';

/** Returns why the browser cannot be started, or false. In CI this is an error. */
export async function noBrowser(name = browserName) {
  if ((await programs(name)).every(Boolean)) return false;
  const remedy = `no ${name}: ${browsers[name].remedy}`;
  if (process.env.CI) throw new Error(remedy);
  return remedy;
}

const programs = (name) => Promise.all(browsers[name].programs.map(firstOf));

async function firstOf(paths) {
  for (const path of paths.filter(Boolean)) {
    if (await access(path).then(() => true, () => false)) return path;
  }
}

/** Starts a browser with a new, empty profile. Only Firefox takes preferences. */
export async function startBrowser(name = browserName, preferences) {
  const [program] = await programs(name);
  return browsers[name].launch(program, preferences);
}

/** Serves the page on another origin than the daemon's. */
export async function servePage() {
  const server = createServer((_, answer) => answer.setHeader("Content-Type", "text/html").end(page));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { url: `http://127.0.0.1:${server.address().port}`, end: () => (server.closeAllConnections(), server.close()) };
}

/**
 * Starts a browser and serves the page for the tests of a file, after which both end.
 * Without a browser, skip says why, and the others are undefined.
 */
export async function browserOfTests() {
  const skip = await noBrowser();
  if (skip) return { skip };
  const [browser, other] = await Promise.all([startBrowser(), servePage()]);
  after(async () => {
    await browser.close();
    other.end();
  });
  return { skip, browser, other };
}

/**
 * Opens a page at its origin, or of a file. A context of its own gives it its own connections.
 * In the page, follow(how) follows a topic and collects its items.
 */
export async function openPage(context, origin) {
  const tab = await context.newPage();
  tab.problems = [];
  tab.on("pageerror", (err) => tab.problems.push(String(err)));
  await tab.goto(origin.startsWith("file:") ? origin : origin + "/");
  await tab.evaluate(() => {
    setInterval(() => (window.garbage = Array.from({ length: 20_000 }, (_, n) => ({ n }))), 100); // a browser collects it, and what only a request holds
    window.sockets = 0; // that are open, or will be
    window.WebSocket = class extends WebSocket {
      constructor(...args) {
        super(...args);
        sockets++;
        this.addEventListener("close", () => sockets--);
      }
    };
    const summary = (item) => ({ gap: item.gap?.reason, position: item.position, id: item.id, data: item.data });
    window.items = [];
    window.follow = async ({ url, transport, topic, options = {}, subscribe = {}, tokens }) => {
      if (transport === "EventSource") return followEvents(url, topic);
      const { Client } = await import(url + "/v1/client.js");
      if (tokens) options.token = () => (tokens.length > 1 ? tokens.shift() : tokens[0]);
      window.client = new Client(url, { transports: transport && [transport], ...options });
      window.states = [];
      client.onState((s) => states.push(s.state));
      window.subscription = client.subscribe(topic, { from: "oldest", ...subscribe }, (item) => items.push(summary(item)));
    };

    // A page without the client: it watches for silence, and otherwise lets EventSource reconnect.
    const followEvents = (url, topic) => {
      let source, id, timer;
      const watch = (ms) => {
        clearTimeout(timer);
        timer = setTimeout(open, ms);
      };
      const open = () => {
        source?.close();
        source = new EventSource(`${url}/v1/sse?topic=${topic}@oldest&heartbeat=event${id ? "&last_event_id=" + id : ""}`);
        watch(5000);
        const on = (name, take) => source.addEventListener(name, (event) => {
          watch(2000);
          if (event.lastEventId) id = event.lastEventId;
          take?.(JSON.parse(event.data));
        });
        on("message", (m) => items.push(summary(m)));
        on("gap", ({ gap }) => items.push({ gap: gap.reason, position: gap.position }));
        for (const name of ["hello", "heartbeat", "end"]) on(name);
      };
      open();
    };
  });
  return tab;
}

/** Returns the items of a page from an index on. */
export const itemsOf = (tab, from = 0) => tab.evaluate((i) => items.slice(i), from);

/** Returns the number of a page's WebSockets. */
export const socketsOf = (tab) => tab.evaluate(() => sockets);

/** Reports whether the page has an item at this position. */
export const has = (tab, position) => tab.evaluate((p) => items.some((item) => item.position === p), position);
