// A subscription: what one part of an application gets of some topics. It joins the
// items of the feed with what it reads from history, leaves out what it has had, and
// keeps its own pace, so that a slow reader delays nobody and loses nothing that
// history holds.

import { now, onAbort } from "./http.js";
import { Feed, resume, Want } from "./session.js";
import { checkName, checkOptions, covered, isForgotten, isPattern, Item, matches, nameOf, note, parsePosition, Problem, refuse, repeats } from "./wire.js";

export interface SubscribeOptions {
  /**
   * Where to begin: `"now"` (default), `"oldest"`, `{ newest: 50 }` with the newest 50 messages of
   * each topic (1 to 1000), or the positions of an earlier subscription. Topics without a position
   * begin now. Positions of other topics are ignored.
   */
  from?: string | string[] | { newest: number } | undefined;
  /** At most so many deliveries in a time for each topic, such as `"5/s"` or `"1/10s"`: then the newest message of each key. */
  maxRate?: string | undefined;
  /** False leaves out what this client published. Default: true. */
  echo?: boolean | undefined;
  /** Ends the subscription. */
  signal?: AbortSignal | undefined;
  /**
   * With a callback: the server refused the subscription, and it has ended; or, with the code
   * `unexpected_answer`, a proxy seems to answer in the server's place, and the client goes on trying.
   * Default: console.error. An iteration throws a refusal instead.
   */
  onError?: ((problem: Problem) => void) | undefined;
}

/** Items of history, and the positions after which they begin. */
export interface Past {
  items: Item[];
  positions: string[];
}

/** Where a subscription lives. */
export interface Owner {
  feed(): Feed;
  /** Reads once what is held after the starts, without waiting. Retries; throws when the signal aborts. */
  read(starts: string[], signal: AbortSignal): Promise<Past>;
  /** Reports whether this client published the item. */
  isOwn(item: Item): boolean;
  remove(s: Subscription): void;
}

/** Items that wait for the application, and those that wait for history to be read. */
export const mostQueued = 1000;

const enum Mode {
  starting,
  behind, // history is read
  live,
}

/** The pace of one topic. */
interface Lane {
  next: number; // when items may be delivered again, as now() tells it
  last: string; // position of the newest item that came
  waiting: Item[];
  timer?: ReturnType<typeof setTimeout> | undefined;
}

/**
 * An async iterable of messages and gaps, in the order of each topic. The iteration ends
 * when the subscription is closed, and throws a Problem if the server refuses it.
 */
export class Subscription<T = any> implements AsyncIterable<Item<T>> {
  /** The topics and patterns, without positions. */
  readonly names: string[];
  /** Resolves to `positions` when the server has taken the subscription, or it was closed before. Rejects with a Problem if it is refused. */
  readonly started: Promise<string[]>;

  #mode: Mode = Mode.starting;
  #pending: Set<string>; // names that the feed has not begun
  #lag?: boolean; // history may hold more: what is not read yet, or what the feed skipped during the last reading
  #joined: string[]; // positions of the feed when this subscription came
  #seen = new Map<string, string>(); // positions of the last items that were queued
  #over = new Map<string, string>(); // topic@epoch of the epochs that a restart of the server ended
  #buffer: Item[] = []; // what the feed delivers before the subscription is live
  #target: string[] = []; // where history meets the buffer
  #queue: { item: Item; before: string | undefined }[] = [];
  #lanes = new Map<string, Lane>();
  /** @internal */
  readonly life = new AbortController();
  /** @internal Why the server refused it. */
  error?: Problem;
  #wake?: () => void; // wakes the application, which waits for items, or the reading of history, which waits for room
  #begun!: (positions: string[]) => void;
  #failed!: (e: Problem) => void;
  #given: string[]; // positions where topics begin
  #mark = ""; // where all topics begin, as it stands after the @: oldest, or newest-50
  #every: number; // milliseconds between deliveries of a topic; 0: no limit

  #owner: Owner;
  #options: SubscribeOptions;
  #callback: ((item: Item<T>) => void) | undefined;

  /** @internal */
  constructor(
    owner: Owner,
    topics: string | string[],
    options: SubscribeOptions,
    callback?: (item: Item<T>) => void,
  ) {
    this.#owner = owner;
    this.#options = options;
    this.#callback = callback;
    checkOptions(options, "from, maxRate, echo, signal, onError");
    this.names = [...new Set([topics].flat())];
    for (const name of this.names) checkName(name);
    const from: any = options.from ?? [];
    if (from === "oldest") this.#mark = "@oldest";
    else if (from.newest !== undefined) {
      if (!/^([1-9]\d{0,2}|1000)$/.test(from.newest)) refuse("position", from.newest, "a number of messages", "1 to 1000");
      this.#mark = "@newest-" + from.newest;
    }
    this.#given = this.#mark ? [] : [from].flat().filter((at) => at !== "now");
    for (const at of this.#given) if (this.#covers(parsePosition(at).topic)) this.#seen.set(nameOf(at), at);
    this.#every = interval(options.maxRate);
    this.started = new Promise((resolve, reject) => ((this.#begun = resolve), (this.#failed = reject)));
    this.started.catch(() => {});
    const { heads, served } = owner.feed();
    this.#joined = [...heads.values()];
    this.#pending = new Set(this.names);
    for (const name of this.names) if (served.has(name) && this.#pending.delete(name)) this.#place(name, undefined, []);
    queueMicrotask(() => {
      onAbort(options.signal, this.close, this.life.signal);
      this.settle();
    });
  }

  /** The positions of the last items that the application took. Give them as `from` to go on after them, also in another page or process. */
  get positions(): string[] {
    const at = new Map(this.#seen);
    for (const { item, before } of [...this.#queue].reverse()) before ? at.set(item.topic, before) : at.delete(item.topic);
    return [...at.values()];
  }

  /** Ends the subscription. Items that wait are dropped. */
  close = (): void => this.end();

  [Symbol.asyncIterator](): AsyncIterableIterator<Item<T>, void, void> {
    return closing(this.iterate(), this.close);
  }

  /** Iterates without closing the subscription at the end. */
  async *iterate(): AsyncGenerator<Item<T>, void, void> {
    for (;;) {
      while (this.#queue.length) {
        const { item } = this.#queue.shift()!;
        if (this.#queue.length <= mostQueued / 2) this.#wake?.();
        yield item;
      }
      if (this.error) throw this.error;
      if (this.life.signal.aborted) return;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  /** @internal What the feed should deliver of a name for this subscription. */
  want(name: string): Want {
    return { from: this.#mode === Mode.starting ? this.#startsOf(name) : undefined, maxRate: this.#options.maxRate };
  }

  /** @internal Takes an item of the feed. */
  offer(item: Item): void {
    if (!this.#covers(item.topic)) return;
    if (this.#mode === Mode.live) this.#accept(item);
    else if (this.#buffer.push(item) > mostQueued) this.lapse(item.topic);
  }

  /** @internal The feed has a hole in the topic, or the buffer is full: history holds what is missing. */
  lapse(topic: string): void {
    if (!this.#covers(topic)) return;
    if (this.#mode === Mode.live) return this.#fallBehind();
    this.#lag = true;
    this.#skip();
  }

  /** @internal Names began at the feed. */
  start(granted: Map<string, Want>, positions: string[]): void {
    for (const name of this.names) {
      if (granted.has(name) && this.#pending.delete(name)) this.#place(name, granted.get(name)!.from, positions);
    }
    // A topic that went to another name, or to another session, begins anew: what this subscription did not get before is in history.
    for (const at of positions) {
      if (!covered(at, this.#last(nameOf(at)) ?? (this.#mode === Mode.starting ? at : at.replace(/\d+$/, "0")))) this.lapse(nameOf(at));
    }
    this.settle();
  }

  /** @internal Goes on when all names have begun. */
  settle(): void {
    if (this.#mode !== Mode.starting || this.#pending.size) return;
    if (this.#lag) return this.#fallBehind();
    this.#begun([...this.#seen.values()]);
    this.#flush();
  }

  /** @internal Ends the subscription, with an error if the server refused it. */
  end(error?: Problem): void {
    if (this.life.signal.aborted) return;
    if (error) {
      this.error = error;
      this.#failed(error);
      this.trouble(error);
    } else {
      this.#seen = new Map(this.positions.map((at) => [nameOf(at), at]));
      this.#queue = [];
      this.#begun(this.positions);
    }
    this.#clearLanes();
    this.#owner.remove(this);
    this.life.abort();
    this.#wake?.();
  }

  /** @internal Tells the application of an error. */
  trouble(error: Problem): void {
    if (this.#callback) void tell(this.#options.onError ?? console.error, error);
  }

  /** Where a name begins, if not now. */
  #startsOf(name: string): string[] | undefined {
    if (this.#mark) return [name + this.#mark];
    if (isPattern(name) && !this.#given.some((at) => nameOf(at) === name)) return;
    const mine = this.#given.filter((at) => matches(name, nameOf(at)));
    return mine.length ? mine : undefined;
  }

  #covers(topic: string): boolean {
    return this.names.some((name) => matches(name, topic));
  }

  /** Places a name that the feed delivers now: it is live from there, or what is before is read from history. */
  #place(name: string, granted: string[] | undefined, positions: string[]): void {
    const starts = this.#startsOf(name);
    if (String(starts) !== String(granted)) return void (this.#lag = true);
    for (const at of [...(starts ? [] : this.#joined), ...positions]) {
      const topic = nameOf(at);
      if (matches(name, topic) && !covered(at, this.#seen.get(topic)) && (starts || !this.#startsOf(topic))) this.#seen.set(topic, at);
    }
  }

  /** Reads history up to the point where the buffer begins. */
  #fallBehind(): void {
    this.#mode = Mode.behind;
    this.#skip();
    this.#clearLanes();
    this.#catchUp().catch((e) => this.end(e));
  }

  /** Leaves what the feed has delivered to the reading of history. */
  #skip(): void {
    this.#buffer = [];
    this.#target = [...this.#owner.feed().heads.values()].filter((at) => this.#covers(nameOf(at)));
  }

  #clearLanes(): void {
    this.#lanes.forEach((lane) => clearTimeout(lane.timer));
    this.#lanes.clear();
  }

  /** The position of the last item that came. */
  #last(topic: string): string | undefined {
    return this.#lanes.get(topic)?.last ?? this.#seen.get(topic);
  }

  async #catchUp(): Promise<void> {
    const { signal } = this.life;
    for (;;) {
      this.#lag = false;
      while (this.#queue.length > mostQueued / 2) await new Promise<void>((resolve) => (this.#wake = resolve));
      if (signal.aborted) return;
      const came = new Map([...this.#seen.keys()].map((topic) => [topic, this.#last(topic)!]));
      const starts = resume(this.names, came, (name) => this.#startsOf(name));
      const { items, positions } = await this.#owner.read(starts, signal);
      if (signal.aborted) return;
      for (const at of positions) {
        const topic = nameOf(at);
        const head = this.#seen.get(topic);
        if (!head || isPattern(topic)) this.#seen.set(topic, at);
        else if (isForgotten(at, head) && !this.names.includes(topic)) this.#seen.delete(topic);
      }
      for (const item of items) {
        this.#lag = true;
        this.#accept(item, this.#every > 0);
      }
      this.#begun(this.positions);
      if (!(this.#lag && this.#target.some((at) => !covered(at, this.#last(nameOf(at)))))) return this.#flush();
    }
  }

  /** Delivers what waited, and is live. */
  #flush(): void {
    const items = this.#buffer;
    this.#buffer = [];
    for (const item of items) this.#accept(item);
    this.#mode = Mode.live;
  }

  /** Delivers an item unless it came before. */
  #accept(item: Item, paced = this.#every > 0 && !this.#fedAtPace(item.topic)): void {
    const { topic, position } = item;
    const lane = this.#lanes.get(topic);
    const era = (at: string) => at.split(":", 1)[0]!;
    // After a restart was read in history, the feed may still have items from before it.
    if (this.life.signal.aborted || era(position) === this.#over.get(topic) || repeats(item, this.#last(topic))) return;
    if (item.gap?.reason === "restarted" && era(item.gap.after) !== era(position)) this.#over.set(topic, era(item.gap.after));
    if (this.#options.echo === false && this.#owner.isOwn(item)) {
      if (!lane?.waiting.length) this.#seen.set(topic, position);
      if (lane) lane.last = position;
    } else if (paced) {
      this.#pace(item, lane);
    } else {
      this.#push(item);
    }
  }

  /** Reports whether the server keeps the pace of the topic. */
  #fedAtPace(topic: string): boolean {
    return this.names.some((name) => matches(name, topic) && this.#owner.feed().served.get(name)?.maxRate === this.#options.maxRate);
  }

  #push(item: Item): void {
    const before = this.#seen.get(item.topic);
    if (!this.#callback && this.#mode === Mode.live && this.#queue.length >= mostQueued) return this.#fallBehind();
    note(item, this.#seen);
    if (this.#callback) return void tell(this.#callback, item);
    this.#queue.push({ item, before });
    this.#wake?.();
  }

  #pace(item: Item, lane: Lane = { next: 0, last: "", waiting: [] }): void {
    const { topic, position } = item;
    this.#lanes.set(topic, lane);
    lane.last = position;
    lane.waiting.push(item);
    if (lane.waiting.length > mostQueued) lane.waiting = conflate(lane.waiting, this.#seen.get(topic));
    const rest = lane.waiting.length > mostQueued ? 0 : lane.next - now();
    if (rest > 0) lane.timer ??= setTimeout(() => this.#release(topic), rest);
    else this.#release(topic);
  }

  #release(topic: string): void {
    const lane = this.#lanes.get(topic)!;
    const items = conflate(lane.waiting, this.#seen.get(topic));
    clearTimeout(lane.timer);
    lane.timer = undefined;
    lane.waiting = [];
    lane.next = now() + this.#every;
    for (const item of items) if (this.#lanes.get(topic) === lane) this.#push(item);
  }
}

/** Calls a function of the application. Its fault is reported as an unhandled rejection, and stops nothing else. */
export const tell = async <T>(listener: (about: T) => void, about: T) => listener(about);

/** Makes a return call close first, so that it ends an iteration that waits. */
export function closing<T>(items: AsyncGenerator<T, void, void>, close: () => void): AsyncIterableIterator<T, void, void> {
  const end = items.return.bind(items);
  return Object.assign(items, { return: () => (close(), end()) });
}

/** Leaves the newest message of each key, and gaps where others were. The items are of one topic, in order; `after` is the position before them. */
export function conflate(items: Item[], after?: string): Item[] {
  const newest = new Map(items.flatMap((item) => (item.gap ? [] : [[item.key, item]])));
  const kept: Item[] = [];
  for (const item of items) {
    const { topic, position } = item;
    const last = kept.at(-1);
    if (item.gap ? item.gap.reason !== "conflated" : newest.get(item.key) === item) kept.push(item);
    else if (last?.gap?.reason === "conflated") last.position = position;
    else kept.push({ gap: { reason: "conflated", after: last?.position ?? after ?? position.replace(/\d+$/, "0") }, topic, position });
  }
  return kept;
}

/** Milliseconds of a rate such as `5/s`, `100/m` or `1/10s`; 0 without a rate. */
export function interval(rate: string | undefined): number {
  if (!rate) return 0;
  const [, count, per, unit] = /^(\d+)\/(\d*)(ms|s|m|h)$/.exec(rate) ?? [];
  const ms = ({ ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[unit!]! * +(per || 1)) / +count!;
  if (!(ms >= 1 && ms <= 3_600_000)) refuse("request", rate, "a rate", "5/s or 1/10s");
  return ms;
}
