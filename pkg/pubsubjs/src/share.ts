// Tabs that share one connection. One tab leads: it holds a lock and runs the session for
// all. The others tell it over a BroadcastChannel what they want, and get every item. Each
// tab leaves out what it does not want, and reads from history what it missed, so that
// neither a late join nor the end of the leader loses or repeats anything.

import type { Http } from "./http.js";
import { merge, type Feed, type Host, type Session, type State, type Want } from "./session.js";
import { subjectOf } from "./subject.js";
import { covered, matches, nameOf, note, Problem, repeats, type Item } from "./wire.js";

type Wants = [string, Want][];

/** What tabs tell each other. Messages of the leader have its term; those of an earlier term are ignored. */
type Word =
  | { kind: "want"; tab: string; wants: Wants }
  | { kind: "ping" }
  | { kind: "bye"; tab: string }
  | { kind: "lead" | "pong"; term: number }
  /** `before` is the leader's previous position of the topic. A tab that is not there has missed something. */
  | { kind: "items"; term: number; items: { item: Item; before: string | undefined }[] }
  | { kind: "start"; term: number; granted: Wants; positions: string[] }
  | { kind: "refused"; term: number; names: string[]; problem: Problem }
  | { kind: "state"; term: number; state: State };

const pingMs = 5_000;
const patience = 2; // pings without an answer, after which the leader is frozen

export class Shared implements Feed {
  readonly heads = new Map<string, string>();
  #served = new Map<string, Want>(); // names of this tab that the leader delivers

  #channel?: BroadcastChannel | undefined;
  #tab = "";
  #name = "";
  #term = 0;
  #session?: Session | undefined; // if this tab leads
  #state?: State; // of the session
  #tabs = new Map<string, Map<string, Want>>(); // what the others want, if this tab leads
  #news: { item: Item; before: string | undefined }[] = [];
  #stop?: AbortController | undefined; // releases the locks of this tab
  #queued?: AbortController; // ends the wait for the lead
  #release?: (() => void) | undefined; // gives the lead away
  #unanswered = 0;
  #timer?: ReturnType<typeof setInterval>;
  #closed = false;

  #http: Http;
  #key: string;
  #host: Host;
  #open: (host: Host, positions: Map<string, string>) => Session;
  #onSession: (session: Session | undefined) => void;

  constructor(
    http: Http,
    key: string,
    host: Host,
    open: (host: Host, positions: Map<string, string>) => Session,
    onSession: (session: Session | undefined) => void,
  ) {
    this.#http = http;
    this.#key = key;
    this.#host = host;
    this.#open = open;
    this.#onSession = onSession;
  }

  get served(): Map<string, Want> {
    return this.#session?.served ?? this.#served;
  }

  update(): void {
    if (this.#closed) return;
    if (!this.#stop) return void this.#join();
    if (this.#session) return this.#session.update();
    const wants = this.#host.wants();
    const names = [...wants.keys()];
    for (const name of this.#served.keys()) if (!wants.has(name)) this.#served.delete(name);
    for (const topic of this.heads.keys()) if (!names.some((name) => matches(name, topic))) this.heads.delete(topic);
    this.#say({ kind: "want", tab: this.#tab, wants: [...wants] });
  }

  check(unsure?: State): void {
    if (this.#session) this.#session.check(unsure);
    else this.#say({ kind: "ping" });
  }

  leave(forGood = false): void {
    this.#closed ||= forGood;
    this.#resign();
    this.#say({ kind: "bye", tab: this.#tab });
    this.#queued?.abort();
    this.#stop?.abort();
    this.#stop = undefined;
    this.#channel?.close();
    this.#channel = undefined;
    clearInterval(this.#timer);
  }

  /** Joins the tabs with the same server, key and subject. */
  async #join(): Promise<void> {
    const stop = (this.#stop = new AbortController());
    // Without a token this tab shares with no other: they may be of another subject.
    const token = await this.#http.bearer().catch(() => this.#key + Math.random());
    const subject = subjectOf(token);
    if (stop.signal.aborted) return;
    this.#name = ["pubsubd", this.#http.base, this.#key, subject ? "sub " + subject : token].join(" ");
    this.#tab = Math.random().toString(36).slice(2);
    this.#term = 0;
    this.#served.clear();
    try {
      this.#channel = new BroadcastChannel(this.#name);
      this.#channel.onmessage = ({ data }) => this.#hear(data);
    } catch {} // Firefox without cookies: this tab connects by itself
    // The leader asks for this lock, and so learns of the end of this tab.
    await new Promise<void>((held) => {
      const hold = () => (held(), aborted(stop.signal));
      void this.#lock("tab " + this.#tab, { signal: stop.signal }, hold).then(held);
    });
    if (stop.signal.aborted) return;
    this.update();
    this.#timer = setInterval(() => this.#session || this.#ping(), pingMs);
    void this.#lead(false);
  }

  /** Runs `hold` with a lock. A page that may have no locks shares with no other, and runs it without. */
  #lock(suffix: string, options: LockOptions, hold: () => Promise<void>): Promise<void> {
    return navigator.locks.request(this.#name + " " + suffix, options, hold).catch((e) => (e.name === "AbortError" ? undefined : hold()));
  }

  /** Waits for the lead, or takes it from a tab that is frozen. */
  async #lead(steal: boolean): Promise<void> {
    this.#queued?.abort();
    const queued = (this.#queued = new AbortController());
    await this.#lock("lead", steal ? { steal } : { signal: queued.signal }, async () => {
      if (queued.signal.aborted) return;
      // Above the terms of all earlier leaders, also of those that this tab has not heard.
      this.#term = Math.max(this.#term + 1, Date.now());
      this.#say({ kind: "lead", term: this.#term });
      this.#served.clear();
      this.#session = this.#open(this.#asHost(), this.heads);
      this.#onSession(this.#session);
      this.#session.update();
      await new Promise<void>((release) => (this.#release = release));
    });
    if (queued.signal.aborted) return;
    // Another tab took the lead, or this one gave it away.
    this.#resign();
    void this.#lead(false);
  }

  #resign(): void {
    this.#session?.leave(true);
    this.#session = undefined;
    this.#onSession(undefined);
    this.#tabs.clear();
    this.#release?.();
    this.#release = undefined;
  }

  #ping(): void {
    if (this.#unanswered++ < patience) return this.#say({ kind: "ping" });
    this.#unanswered = 0;
    void this.#lead(true);
  }

  #say(word: Word): void {
    if (word.kind !== "items") this.#flush();
    this.#channel?.postMessage(word);
  }

  /** Sends the items that wait, so that all words keep their order. */
  #flush(): void {
    if (this.#news.length) this.#say({ kind: "items", term: this.#term, items: this.#news.splice(0) });
  }

  #hear(word: Word): void {
    if (word.kind === "want") return this.#wanted(word.tab, word.wants);
    if (word.kind === "ping") return void (this.#session && this.#say({ kind: "pong", term: this.#term }));
    if (word.kind === "bye") return this.#gone(word.tab);
    if (word.term < this.#term) return;
    if (word.term > this.#term || word.kind === "lead") {
      // Another leads now.
      this.#term = word.term;
      this.#served.clear();
      this.#resign();
      this.update();
    }
    this.#unanswered = 0;
    if (this.#session) return;
    if (word.kind === "items") for (const { item, before } of word.items) this.#item(item, before);
    else if (word.kind === "start") this.#start(new Map(word.granted), word.positions);
    else if (word.kind === "refused") this.#host.onRefused(word.names, Object.assign(new Problem(word.problem.code, word.problem.message), word.problem));
    else if (word.kind === "state") this.#told(word.state);
  }

  #told(state: State): void {
    this.#host.onFeed(state);
    // The server refuses everything for good.
    if (state.state === "closed") this.leave(true);
  }

  /** Takes an item of the leader. */
  #item(item: Item, before: string | undefined): void {
    const mine = this.heads.get(item.topic);
    if (repeats(item, mine)) return;
    note(item, this.heads);
    if ((before || mine) && !(before && covered(before, mine))) this.#host.onLapse(item.topic);
    else this.#host.onItem(item);
  }

  #start(granted: Map<string, Want>, positions: string[]): void {
    const wants = this.#host.wants();
    for (const [name, want] of granted) if (wants.has(name)) this.#served.set(name, want);
    for (const at of positions) if (!covered(at, this.heads.get(nameOf(at)))) this.heads.set(nameOf(at), at);
    this.#host.onStart(granted, positions);
  }

  /** The leader: a tab says what it wants. */
  #wanted(tab: string, wants: Wants): void {
    if (!this.#session) return;
    const session = this.#session;
    // When the lock of the tab is free, the tab is gone.
    if (!this.#tabs.has(tab)) void this.#lock("tab " + tab, { signal: this.#stop!.signal }, async () => this.#gone(tab));
    this.#tabs.set(tab, new Map(wants));
    const here = wants.filter(([name]) => session.served.has(name));
    this.#say({
      kind: "start",
      term: this.#term,
      granted: here.map(([name]) => [name, { maxRate: session.served.get(name)!.maxRate }]),
      positions: here.length ? [...session.heads.values()] : [],
    });
    if (this.#state) this.#say({ kind: "state", term: this.#term, state: this.#state });
    session.update();
  }

  #gone(tab: string): void {
    if (this.#tabs.delete(tab)) this.#session?.update();
  }

  /** What the session of the leader serves: this tab and the others. */
  #asHost(): Host {
    const host = this.#host;
    return {
      wants: () => merge([host.wants(), ...this.#tabs.values()].flatMap((wants) => [...wants])),
      onItem: (item, before) => {
        if (this.#news.push({ item, before }) === 1) queueMicrotask(() => this.#flush());
        host.onItem(item);
      },
      onStart: (granted, positions) => {
        this.#say({ kind: "start", term: this.#term, granted: [...granted], positions });
        host.onStart(granted, positions);
      },
      onLapse: host.onLapse,
      onTrouble: host.onTrouble,
      onRefused: (names, problem) => {
        // A tab that is frozen says only later that it wants them no more.
        for (const wants of this.#tabs.values()) names.forEach((name) => wants.delete(name));
        this.#say({ kind: "refused", term: this.#term, names, problem: { ...problem, message: problem.message } });
        host.onRefused(names, problem);
      },
      onFeed: (state) => {
        this.#state = state;
        this.#say({ kind: "state", term: this.#term, state });
        this.#told(state);
      },
    };
  }
}

const aborted = (signal: AbortSignal) =>
  new Promise<void>((resolve) => (signal.aborted ? resolve() : signal.addEventListener("abort", () => resolve())));
