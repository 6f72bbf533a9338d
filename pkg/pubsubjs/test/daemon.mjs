// Starts the daemon and the proxies of deploy for tests.
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const repository = fileURLToPath(new URL("../../../", import.meta.url));

const given = new Set(); // ports that this process has chosen

/** Returns a port on which nobody listens. It is below the ephemeral ports, so that no client gets it meanwhile. */
export async function freePort() {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 10_000);
    if (given.has(port)) continue;
    given.add(port);
    const server = createServer();
    const free = await new Promise((done) => server.once("error", () => done(false)).listen(port, "127.0.0.1", () => done(true)));
    if (!free) continue;
    server.close();
    await once(server, "close");
    return port;
  }
}

/** Polls until done returns true, for at most ms. */
export async function until(what, done, ms = 30_000) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(5)) {
    if (await done()) return;
  }
  throw new Error(`not after ${ms / 1000} s: ${typeof what === "function" ? what() : what}`);
}

const answers = (url) => fetch(url, { signal: AbortSignal.timeout(1000) }).then((r) => (r.body?.cancel(), r.ok), () => false);

/** A process and its output. */
export class Process {
  constructor(program, args, options) {
    this.output = "";
    this.child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
    this.ended = new Promise((done) => this.child.once("error", (err) => ((this.output += err), done())).once("close", () => done()));
    for (const stream of [this.child.stdout, this.child.stderr]) stream.on("data", (text) => (this.output += text));
  }

  /** Waits until the URL answers 200. */
  async ready(url) {
    let over = false;
    void this.ended.then(() => (over = true));
    await until(() => `${url} answers: ${this.output}`, async () => {
      if (over) throw new Error("the process ended: " + this.output);
      return answers(url);
    });
  }

  async stop(signal) {
    this.child.kill(signal);
    await this.ended;
  }
}

/** Settings with which a test does not wait long. */
const quick = { "poll-heartbeat": "500ms", "poll-timeout": "1s", "drain-window": "300ms", "history-messages": 100_000, "history-bytes": "64MiB", "log-level": "error" };

/** Makes a certificate that no authority has signed, which this process accepts from now on. Returns the settings for it. */
async function certificate(folder) {
  const [cert, key] = [join(folder, "cert.pem"), join(folder, "key.pem")];
  const kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"];
  await promisify(execFile)("openssl", ["req", "-x509", ...kind, "-keyout", key, "-out", cert]);
  process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0";
  return { "tls-cert": cert, "tls-key": key };
}

/** A daemon on ports that it keeps over restarts. */
export class Daemon {
  static async start(settings = {}, { withLog = false, withTLS = false, cwd, env } = {}) {
    const d = new Daemon();
    d.surroundings = { cwd, env: { ...process.env, ...env } };
    d.folder = await mkdtemp(join(tmpdir(), "pubsubd-"));
    d.port = await freePort();
    d.adminPort = await freePort();
    d.url = `${withTLS ? "https" : "http"}://127.0.0.1:${d.port}`;
    d.admin = `http://127.0.0.1:${d.adminPort}`;
    d.settings = { ...quick, "listen-public": `127.0.0.1:${d.port}`, "listen-admin": `127.0.0.1:${d.adminPort}`, ...settings };
    if (withLog) d.settings.store = join(d.folder, "log");
    if (withTLS) Object.assign(d.settings, await certificate(d.folder));
    await d.begin();
    return d;
  }

  async begin(more = {}) {
    const flags = Object.entries({ ...this.settings, ...more }).flatMap(([name, value]) => [value].flat().map((v) => `--${name}=${v}`));
    this.process = new Process(process.env.PUBSUBD ?? join(repository, "bin/pubsubd"), ["serve", ...flags], this.surroundings);
    await this.process.ready(this.admin + "/readyz");
  }

  get #state() {
    return { store: join(this.folder, "store"), "store-sync": "stop" };
  }

  /** Ends the daemon as planned, and starts it again. With its state no message is lost. */
  async restart(withState) {
    const state = withState ? this.#state : {};
    if (withState && !this.keeps) throw new Error("start the daemon with keepState");
    await this.process.stop("SIGTERM");
    await this.begin(state);
  }

  /** Ends the daemon without warning, and starts it again. With a log no message is lost. */
  async crash() {
    await this.process.stop("SIGKILL");
    await this.begin();
  }

  /** Lets restart(true) keep the state. */
  static async keepState(settings, options) {
    const d = await Daemon.start(settings, options);
    await d.process.stop("SIGKILL");
    d.keeps = true;
    await d.begin(d.#state);
    return d;
  }

  /** Publishes until the daemon answers. Returns the position. */
  async publish(topic, message, id) {
    for (;;) {
      try {
        const r = await fetch(`${this.url}/v1/topics/${topic}/messages`, {
          method: "POST", body: JSON.stringify(message), signal: AbortSignal.timeout(5000),
          headers: { "Content-Type": "application/json", "Idempotency-Key": `"${id}"` },
        });
        const answer = await r.json();
        if (r.ok) return answer.position;
        if (r.status < 500 && r.status !== 429) throw new Error(JSON.stringify(answer), { cause: "refused" });
      } catch (err) {
        if (err.cause === "refused") throw err;
      }
      await sleep(20);
    }
  }

  /** Returns the value of a metric without labels. */
  async metric(name) {
    const text = await (await fetch(this.admin + "/metrics")).text();
    return Number(new RegExp(`^${name} (.*)$`, "m").exec(text)?.[1] ?? NaN);
  }

  async end() {
    await this.process.stop("SIGKILL");
    await rm(this.folder, { recursive: true, force: true });
  }
}

/** How tests run each proxy: its example, as shipped but for addresses, ports and files. */
const proxies = {
  nginx: {
    program: "nginx",
    example: "nginx/pubsubd.conf",
    args: (dir) => ["-e", `${dir}/error.log`, "-p", dir, "-c", `${dir}/config`],
    around: (text, dir) => `daemon off;\nworker_processes 1;\npid ${dir}/pid;\nevents { worker_connections 256; }\nhttp {\n`
      + ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map((name) => `\t${name}_temp_path ${dir}/${name};\n`).join("") + text + "\n}\n",
    swaps: (port, daemon, origin, dir) => [
      ["listen 80;", `listen 127.0.0.1:${port};`], ["server 127.0.0.1:8080;", `server 127.0.0.1:${daemon.port};`], ["/var/log/nginx", dir],
      ["# https://app.example", origin],
    ],
  },
  Caddy: {
    program: "caddy",
    example: "caddy/Caddyfile",
    args: (dir) => ["run", "--adapter", "caddyfile", "--config", `${dir}/config`],
    around: (text) => text,
    swaps: (port, daemon, origin) => [
      ["\n{$SITE::80} {\n", `\n:${port} {\n\tbind 127.0.0.1\n`], ["127.0.0.1:8080", `127.0.0.1:${daemon.port}`], ["health_port 8081", `health_port ${daemon.adminPort}`],
      ["# @listed {", "@listed {"], ["# \theader Origin https://app.example\n", `\theader Origin ${origin}\n`],
      ["\t\t\t# \theader Origin https://www.app.example\n\t\t\t# }\n\t\t\t# header", "\t\t\t}\n\t\t\theader"],
    ],
  },
};

/** A proxy before a daemon, with the example configuration of deploy and these changes. It allows one other origin. */
export class Proxy {
  static async start(name, daemon, origin, changes = []) {
    const kind = proxies[name];
    const p = new Proxy();
    p.port = await freePort();
    p.url = `http://127.0.0.1:${p.port}`;
    p.folder = await mkdtemp(join(tmpdir(), name));
    await chmod(p.folder, 0o755); // nginx started by root runs as another user
    let text = await readFile(join(repository, "deploy", kind.example), "utf8");
    for (const [from, to] of [...kind.swaps(p.port, daemon, origin, p.folder), ...changes]) {
      if (!text.includes(from)) throw new Error(`deploy/${kind.example} no longer has ${JSON.stringify(from)}: change this test`);
      text = text.replaceAll(from, to);
    }
    await writeFile(join(p.folder, "config"), kind.around(text, p.folder));
    const env = { ...process.env, XDG_CONFIG_HOME: p.folder, XDG_DATA_HOME: p.folder, PATH: process.env.PATH + ":/usr/sbin" };
    p.process = new Process(kind.program, kind.args(p.folder), { env });
    await p.process.ready(p.url + "/v1/topics");
    return p;
  }

  async end() {
    await this.process.stop("SIGINT");
    await rm(this.folder, { recursive: true, force: true });
  }
}
