// A session at the server, and the connection that carries it: a WebSocket, a stream of
// fetch, or long polls, whichever gets through. The session is resumed by its count of
// frames; when that is not possible, it is opened anew from the positions.

import { backoff, foreign, Http, isFinal, isForeign, isLost, now, sleep, undone } from "./http.js";
import { covered, isForgotten, isPattern, Item, Limits, matches, nameOf, note, parseFrame, Problem, problemOf, repeats } from "./wire.js";

export type Transport = "websocket" | "stream" | "poll";

export interface State {
  /** `idle`: no subscription needs a connection. `waiting`: until the next attempt. `closed`: for good; make another client. */
  state: "idle" | "connecting" | "open" | "waiting" | "closed";
  /** The transport of an open connection. */
  transport?: Transport;
  /** Until the next attempt, in milliseconds. */
  waitMs?: number;
  /** Why the client waits, or is closed, in words. */
  reason?: string;
}

/** The state after an error. */
export const waiting = (ms: number, e: unknown): State => ({ state: "waiting", waitMs: Math.round(ms), reason: (e as Error).message });

/** What is wanted of a name: where it begins if the session never had it, and its rate. */
export interface Want {
  from?: string[] | undefined;
  maxRate?: string | undefined;
}

/** Where a subscription gets its items from: the session of this page, or that of the tab that leads. */
export interface Feed {
  /** The newest position of each name and topic. */
  readonly heads: Map<string, string>;
  /** The names that the feed delivers now. */
  readonly served: Map<string, Want>;
  /** Takes over what the host wants now. */
  update(): void;
  /** Something happened to the network or the page: look whether the connection is alive. Until that is known, the state may be another. */
  check(unsure?: State): void;
  /** Closes the connection. With `forGood` unset, it is opened again on update. */
  leave(forGood?: boolean): void;
}

/** Who owns a feed. */
export interface Host {
  wants(): Map<string, Want>;
  /** An item of the feed, and the position of its topic before it. */
  onItem(item: Item, before?: string): void;
  /** The names began as the feed could grant it, at these positions; those of topics that the patterns match are among them. */
  onStart(granted: Map<string, Want>, positions: string[]): void;
  /** The feed left something out of the topic. */
  onLapse(topic: string): void;
  /** The server refuses the names for good. */
  onRefused(names: string[], problem: Problem): void;
  /** Something is wrong that waiting may not mend. The feed goes on. */
  onTrouble(problem: Problem): void;
  onFeed(state: State): void;
}

/** What several want together: a name begins where all want it to, and has a rate if they agree on it. */
export function merge(all: Iterable<[string, Want]>): Map<string, Want> {
  const wants = new Map<string, Want>();
  for (const [name, want] of all) {
    const { from, maxRate } = wants.get(name) ?? want;
    wants.set(name, {
      from: String(from) === String(want.from) ? from : undefined,
      maxRate: maxRate === want.maxRate ? maxRate : undefined,
    });
  }
  // A topic of several names has one start and one rate at the server.
  for (const [pattern, one] of wants) {
    if (isPattern(pattern) && wants.size > 1) {
      for (const [name, other] of wants) {
        other.from = undefined;
        if (matches(pattern, name) && one.maxRate !== other.maxRate) one.maxRate = other.maxRate = undefined;
      }
    }
  }
  return wants;
}

/** Where names go on: at their positions, with those of all topics that their patterns match, else where they begin. */
export function resume(names: string[], positions: Map<string, string>, begin: (name: string) => string[] | undefined): string[] {
  const starts = new Map<string, string>();
  for (const name of names) {
    const at = positions.get(name);
    for (const start of at ? [at] : begin(name) ?? [name]) starts.set(nameOf(start), start);
  }
  for (const [topic, at] of positions) {
    if (!starts.has(topic) && names.some((name) => positions.has(name) && matches(name, topic))) starts.set(topic, at);
  }
  return [...starts.values()];
}

const beginMs = 5_000; // how long a transport may take to begin
const pingMs = 10_000; // how long the answer to a ping may take, and how late that of a poll
const lingerMs = 10_000; // how long a session without subscriptions is kept
const badMs = 300_000; // how long a transport that did not get through is left alone
const livedMs = 1_000; // a connection that lasted so long, or delivered something, ends a series of attempts

const quickMs = 100; // five polls in a row that took less, and brought nothing new, were not answered by the server

/** Ends a connection because it has to be another one, at once. */
const changed = new Error();

/** Runs `silent` when `touch` was not called for so long. Looks each second. */
function watchdog(ms: () => number, silent: () => void) {
  let last = now();
  const touch = () => void (last = now());
  const timer = setInterval(() => {
    if (now() - last >= ms()) {
      touch();
      silent();
    }
  }, 1000);
  return { touch, stop: () => clearInterval(timer) };
}

interface Options {
  transports: Transport[];
  WebSocket?: typeof WebSocket | undefined;
}

export class Session implements Feed {
  readonly served = new Map<string, Want>();
  bounds?: Limits;

  #id?: string | undefined;
  #frames = 0; // messages and gaps of this session that arrived whole
  #names: string[] = []; // what the host wants
  #running?: boolean;
  #changing?: boolean;
  #atOnce = Infinity; // names in a request; one, to find the name that is refused
  #arrived = 0; // messages and gaps of all sessions that were new
  #quick = 0; // polls in a row that brought nothing, at once
  #closed?: boolean;
  #paused?: boolean; // until the next update
  #refused = 0; // how often in a row a token was refused
  #renewal?: ReturnType<typeof setTimeout>;
  #idleSince = Infinity;
  #crowd = 0; // of more topics than this, the server may have forgotten some: a new session tells, before it refuses too many
  #wake = new AbortController(); // ends a pause, or a connection that has to change
  #bad = new Map<Transport, number>(); // until when a transport is left alone
  #failed = new Set<Transport>(); // transports that did not begin since one did
  #probe?: (() => void) | undefined; // looks whether the connection is alive
  #unsure?: boolean; // the state says so, until something comes

  #http: Http;
  #host: Host;
  #options: Options;

  constructor(
    http: Http,
    host: Host,
    options: Options,
    /** Where to begin names that were delivered before. */
    readonly heads = new Map<string, string>(),
  ) {
    this.#http = http;
    this.#host = host;
    this.#options = options;
  }

  update(): void {
    if (this.#closed) return;
    this.#paused = false;
    this.#names = [...this.#host.wants().keys()];
    this.#prune();
    if (!this.#running && this.#names.length) void this.#run();
    else void this.#change();
  }

  check(unsure?: State): void {
    if (this.#probe) this.#probe();
    else if (!unsure) {
      this.#unsure = false;
      this.#wake.abort();
    }
    if (unsure && this.#running) {
      this.#unsure = true;
      this.#host.onFeed(unsure);
    }
  }

  leave(forGood?: boolean): void {
    this.#closed ||= forGood;
    this.#paused = true;
    this.#reopen();
  }

  /** Reports whether the topic is wanted, or the server delivers it still: it may be wanted again before that ends. */
  #wanted(topic: string): boolean {
    return [...this.#names, ...this.served.keys()].some((name) => matches(name, topic));
  }

  #prune(): void {
    for (const topic of this.heads.keys()) if (!this.#wanted(topic)) this.heads.delete(topic);
  }

  #forget(): void {
    this.#id = undefined;
    this.#frames = 0;
    this.#renew();
    this.served.clear();
    this.#prune();
  }

  async #run(): Promise<void> {
    this.#running = true;
    for (let attempt = 0; !this.#closed && !this.#paused && this.#needed(); ) {
      this.#wake = new AbortController();
      const before = this.#arrived;
      const begun = now();
      try {
        this.#host.onFeed({ state: "connecting" });
        if (!this.#id) await this.#open();
        else if (this.#refused) await this.#patch(this.#id);
        if (this.#wake.signal.aborted) continue;
        await this.#connect();
      } catch (e) {
        if (this.#wake.signal.aborted || e === changed) continue;
        this.#failed.clear();
        if (this.#arrived > before || now() - begun > livedMs) attempt = 0;
        if (isLost(e)) this.#forget();
        else if (isFinal(e) && ((e as Problem).status !== 401 || this.#refused++)) {
          this.leave(true);
          this.#host.onRefused([...this.#host.wants().keys()], e as Problem);
          this.#host.onFeed({ state: "closed", reason: (e as Error).message });
        }
        const ms = backoff(attempt++, e);
        if (this.#closed || !this.#needed()) continue;
        this.#host.onFeed(waiting(ms, e));
        await sleep(ms, this.#wake.signal);
      }
    }
    this.#running = false;
    this.#drop();
    if (!this.#closed) this.#host.onFeed({ state: this.#names.length ? "waiting" : "idle" });
  }

  /** Reports whether the session is needed, or was so lately. */
  #needed(): boolean {
    this.#idleSince = this.#names.length ? Infinity : Math.min(this.#idleSince, now());
    return !!(this.#names.length || this.#id) && now() - this.#idleSince < lingerMs;
  }

  /** Opens a session from the positions; names without one begin where the host wants them. */
  async #open(): Promise<void> {
    const wants = this.#host.wants();
    this.#forget();
    const names = [...wants.keys()].slice(0, this.#atOnce);
    await this.#accepted(names, async () => {
      const { granted, topics } = this.#plan(names, wants, true);
      const opened = await this.#http.ask("/v1/sessions", { body: { topics } });
      if (!opened.session) throw foreign(200);
      this.#id = opened.session;
      this.bounds = opened.limits;
      this.#unsure = false; // the server answered
      this.#begin(granted, opened);
      this.#crowd = this.heads.size + 500;
    });
    void this.#change();
  }

  /** Where names begin: at their position, in a new session where the host wants it, else now. */
  #plan(names: string[], wants: Map<string, Want>, opening = false): { granted: Map<string, Want>; topics: unknown[] } {
    const from = (name: string) => (opening && ![...this.heads.keys()].some((topic) => matches(name, topic)) ? wants.get(name)!.from : undefined);
    return {
      granted: new Map(names.map((name) => [name, { maxRate: wants.get(name)!.maxRate, from: from(name) }])),
      topics: resume(names, this.heads, from).map((start) => rated(start, wants)),
    };
  }

  /** Runs a request that adds names. Tells the host if the server refuses a name for good. */
  async #accepted(names: string[], request: () => Promise<void>): Promise<void> {
    try {
      await request();
    } catch (e) {
      if (!isFinal(e) || (e as Problem).status === 401) throw e;
      if (names.length > 1) this.#atOnce = 1;
      else this.#host.onRefused(names, e as Problem);
      throw changed;
    }
  }

  #begin(granted: Map<string, Want>, { positions, expires_ms }: { positions: string[]; expires_ms?: number }): void {
    this.#refused = 0;
    this.#renew(expires_ms);
    for (const [name, want] of granted) this.served.set(name, want);
    for (const at of positions) {
      const topic = nameOf(at);
      const head = this.heads.get(topic);
      if (!covered(at, head)) this.heads.set(topic, at);
      else if (isForgotten(at, head!) && !this.served.has(topic)) this.heads.delete(topic);
    }
    this.#host.onStart(granted, positions);
  }

  /** Makes the server's subscriptions what the host wants, one request at a time. */
  async #change(): Promise<void> {
    if (this.#changing) return;
    this.#changing = true;
    try {
      for (let attempt = 0; ; ) {
        await Promise.resolve(); // subscriptions that are made together are one request
        const id = this.#id;
        if (!id) return;
        const wants = this.#host.wants();
        const add = [...wants.keys()].filter((name) => !this.served.has(name)).slice(0, this.#atOnce);
        const names = [...this.served.keys()];
        const remove = names.filter((name) => !wants.has(name));
        if (!add.length) this.#atOnce = Infinity;
        // A subscription keeps its rate, and may go with a pattern that matches it: then a new session is surer.
        const other = names.some((name) => wants.has(name) && wants.get(name)!.maxRate !== this.served.get(name)!.maxRate);
        if (other || remove.some((gone) => names.some((name) => gone !== name && matches(gone, name)))) return this.#reopen();
        if (!add.length && !remove.length) return;
        try {
          await this.#accepted(add, () => this.#patch(id, add, remove, wants));
          attempt = 0;
        } catch (e) {
          if (e === changed || id !== this.#id) continue;
          // Without an answer the session may have the topics or not: only a new one is sure.
          if (!undone(e)) return this.#reopen();
          await sleep(backoff(attempt++, e), this.#wake.signal);
        }
      }
    } finally {
      this.#changing = false;
    }
  }

  /** Renews the token of the session when most of its time is over; after a failure, when most of the rest is. */
  #renew(ms?: number): void {
    clearTimeout(this.#renewal);
    if (!(ms! > 1000)) return; // soon the session says token_expired
    const id = this.#id!;
    const end = now() + ms!;
    this.#renewal = setTimeout(async () => {
      try {
        await this.#http.bearer(await this.#http.bearer());
        await this.#patch(id);
      } catch {
        if (id === this.#id) this.#renew(end - now());
      }
    }, Math.min(ms! * (0.75 + Math.random() / 10), 1e9));
  }

  /** Changes the subscriptions; in any case the session takes the token over. */
  async #patch(id: string, add: string[] = [], remove: string[] = [], wants?: Map<string, Want>): Promise<void> {
    // In an open session names begin now. If one was removed before, its frames may still be on
    // their way, and would hide what comes below them; so subscriptions read that from history.
    const { granted, topics } = this.#plan(add, wants!);
    const answer = await this.#http.ask("/v1/sessions/" + id, { method: "PATCH", body: { add: topics, remove } });
    if (this.#id !== id) return;
    for (const name of remove) this.served.delete(name);
    this.#prune();
    this.#begin(granted, answer);
  }

  /** Ends the session at the server; the next one begins from the positions. A page that is left may end in the middle of this. */
  #drop(): void {
    if (this.#id) this.#http.beacon(this.#id);
    this.#forget();
  }

  #reopen(): void {
    this.#drop();
    this.#wake.abort();
  }

  /** The first transport that may get through, else the last. */
  #best(): Transport {
    const { transports } = this.#options;
    return transports.find((t) => !this.#failed.has(t) && (this.#bad.get(t) ?? 0) < now()) ?? transports.at(-1)!;
  }

  /** Runs one connection. Returns or throws when it has ended. */
  async #connect(): Promise<void> {
    const transport = this.#best();
    let open: boolean | undefined;
    const began = () => {
      if (open && !this.#unsure) return;
      open = true;
      this.#unsure = false;
      for (const t of this.#failed) this.#bad.set(t, now() + badMs);
      this.#failed.clear();
      this.#host.onFeed({ state: "open", transport });
    };
    try {
      await this[transport](began);
    } catch (e) {
      // The count is uncertain after a stream that breaks without an end. After a poll that timed out, WebKit gives a new
      // connection of HTTP/2 only to the POST that opens a session.
      if (transport === "stream" ? !(e instanceof Problem) : (e as Error).name === "AbortError" && !this.#wake.signal.aborted) this.#drop();
      // If it did not begin without a refusal, another may get through what is in between.
      const again = !open && (isForeign(e) || !(e instanceof Problem)) && !this.#wake.signal.aborted && transport !== this.#options.transports.at(-1);
      if (again && this.#failed.add(transport)) throw changed;
      // A page cannot see why a WebSocket is refused: perhaps the server forgot the session.
      if (!open && transport === "websocket") this.#drop();
      throw e;
    } finally {
      this.#probe = undefined;
    }
  }

  /** Takes a line of an answer. */
  #take(line: string): void {
    const { item, end } = parseFrame(line);
    if (end) throw problemOf(end);
    if (!item) return;
    this.#frames++;
    const before = this.heads.get(item.topic);
    if (repeats(item, before)) return;
    this.#arrived++;
    if (!this.#wanted(item.topic)) return;
    note(item, this.heads);
    this.#host.onItem(item, before);
    if (this.heads.size > this.#crowd) this.#reopen();
  }

  #path(mode: string): string {
    return `/v1/sessions/${this.#id}/poll?ack=${this.#frames}&mode=${mode}&r=${Math.random()}`;
  }

  async poll(began: () => void): Promise<void> {
    if (!this.#unsure) this.#host.onFeed({ state: "open", transport: "poll" }); // the session is open, and an answer may take long
    while (this.#id && this.#needed() && this.#best() === "poll") {
      const most = this.bounds!.poll_timeout_ms;
      const before = this.#arrived;
      const begun = now();
      const text: string = await this.#http.ask(this.#path("batch"), { as: "text", signal: this.#wake.signal, timeout: most + pingMs });
      began();
      for (const line of text.split("\n")) this.#take(line);
      const news = this.#arrived > before;
      if (text && !news) this.#drop(); // an old answer of a cache: its frames must not count as an ack
      if (news || (!text && now() - begun >= Math.min(quickMs, most))) this.#quick = 0;
      else if (++this.#quick === 5) this.#drop(); // perhaps something answers for this session only
      else if (this.#quick % 5 === 0) {
        const problem = foreign(0, this.#quick > 10 ? 30_000 : Math.random() * 10_000, "polls end at once") as Problem;
        this.#host.onTrouble(problem);
        throw problem;
      }
    }
  }

  async stream(began: () => void): Promise<void> {
    const silent = new AbortController();
    let reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
    const abort = () => {
      silent.abort();
      reader?.cancel().catch(() => {}); // Deno leaves it waiting
    };
    let begun = false;
    const dog = watchdog(() => (begun ? 2 * this.bounds!.heartbeat_ms : beginMs), abort);
    this.#probe = () => void (this.#unsure && this.#wake.abort()); // two heartbeats tell; after the page was offline, only a new stream tells soon
    this.#wake.signal.addEventListener("abort", abort);
    try {
      const answer: Response = await this.#http.ask(this.#path("stream"), { as: "stream", signal: silent.signal });
      reader = answer.body!.getReader();
      const text = new TextDecoder();
      for (let rest = ""; this.#needed(); ) {
        const { value } = await reader.read();
        if (!value) throw new Error("the stream ended");
        dog.touch();
        const lines = (rest + text.decode(value, { stream: true })).split("\n");
        rest = lines.pop()!;
        for (const line of lines) {
          begun = true;
          began();
          this.#take(line);
        }
      }
    } finally {
      dog.stop();
      abort();
    }
  }

  websocket(began: () => void): Promise<void> {
    const socket = new this.#options.WebSocket!("ws" + this.#http.base.slice(4) + `/v1/ws?session=${this.#id}&ack=${this.#frames}`);
    return new Promise((_, reject) => {
      let begun: boolean | undefined;
      let pinged: boolean | undefined;
      let acked = this.#frames;
      let ackTimer: ReturnType<typeof setTimeout> | undefined;
      const end = (error: unknown) => {
        dog.stop();
        clearTimeout(ackTimer);
        socket.onmessage = null;
        socket.close();
        reject(error);
      };
      const close = () => end(new Error("the WebSocket " + (begun ? "was cut" : "did not open")));
      const ack = () => {
        ackTimer = undefined;
        if (this.#frames > acked) socket.send(JSON.stringify({ ack: (acked = this.#frames) }));
      };
      // A page does not see the pings of the server, so it sends its own.
      const ping = () => {
        if (pinged || !begun) return close();
        pinged = true;
        dog.touch();
        socket.send(JSON.stringify({ ping: true, ref: 0 }));
      };
      const dog = watchdog(() => (!begun ? beginMs : pinged ? pingMs : this.bounds!.heartbeat_ms), ping);
      this.#probe = () => void (begun && !pinged && ping());
      this.#wake.signal.addEventListener("abort", close);
      socket.onclose = socket.onerror = close;
      socket.onmessage = ({ data }) => {
        dog.touch();
        pinged = false;
        begun = true;
        if (!this.#needed()) return close();
        began();
        try {
          this.#take(data);
        } catch (e) {
          return end(e);
        }
        if (this.#frames - acked >= this.bounds!.unacked / 4) ack();
        ackTimer ??= setTimeout(ack, 1000);
      };
    });
  }
}

/** The element of `topics` or `add` for a start. Names that match one topic agree on its rate. */
function rated(start: string, wants: Map<string, Want>): unknown {
  const rate = [...wants].find(([name]) => matches(name, nameOf(start)))?.[1].maxRate;
  return rate ? { topic: start, max_rate: rate } : start;
}
