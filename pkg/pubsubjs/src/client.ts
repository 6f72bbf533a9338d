// The client: one connection for all subscriptions of a page, and publishing.

import { backoff, Http, isFinal, sleep, Token } from "./http.js";
import type { Change, HistoryOptions, HistoryPage, Member, Presence, PresenceOptions } from "./live.js";
import { Publication, Publisher, PublishOptions, Published, PublishResult } from "./publisher.js";
import { Feed, Host, merge, Session, State, Transport, Want } from "./session.js";
import { closing, Owner, Past, SubscribeOptions, Subscription, tell } from "./subscription.js";
import { checkOptions, checkTopic, covered, Gap, GapItem, GapReason, Item, Message, nameOf, parseAnswer, Problem, refuse, repeats } from "./wire.js";

export { covered, Problem, Subscription };
export type { Change, Gap, GapItem, GapReason, HistoryOptions, HistoryPage, Item, Member, Message, Presence, PresenceOptions, Publication, Published, PublishOptions, PublishResult, State, SubscribeOptions, Token, Transport };

export interface ClientOptions {
  /** Sent as a bearer token. A function is called again before the token expires, and when the server answers 401. While it throws, the client retries. */
  token?: Token;
  /**
   * Tabs of one origin with the same URL and the same key share one connection. Give each user
   * another key. Where the browser has no Web Locks (without https), each tab connects by itself.
   */
  share?: string;
  /** The transports to try, in order. Default: `["websocket", "stream", "poll"]`. Without a WebSocket class, the first is left out. */
  transports?: Transport[];
  /** Default: the global one. */
  fetch?: typeof fetch;
  /** Default: the global one. Node 20 has none: pass the class of the package `ws`, or leave it to the other transports. */
  WebSocket?: typeof WebSocket;
}

export interface FollowOptions {
  /**
   * Fetches the application's state. The state must contain everything up to the position. It is
   * called at the beginning, and again with each gap. If the state says its own position, return
   * that: delivery goes on after it. Returned `oldest`, it goes on with all that is held. `signal`
   * aborts when the iteration ends.
   */
  load: (position: string, gap: Gap | undefined, signal: AbortSignal) => unknown;
  /** As for subscribe. */
  maxRate?: string;
  echo?: boolean;
  signal?: AbortSignal;
}

const global = globalThis as any;

const offline: State = { state: "waiting", reason: "the browser is offline" };

/** What the application does while pagehide is dispatched is no sign that the page lives on. */
const enum Page {
  here = 0, // as a condition, false
  leaving,
  left,
}

/**
 * A connection to a pubsubd server. It opens with the first subscription, reconnects by itself,
 * and closes ten seconds after the last subscription has ended. One client serves all of a page.
 */
export class Client {
  /** @internal Outboxes and the list of presence send requests, too. */
  readonly http: Http;
  #feed: Feed;
  #session: Session | undefined; // unless another tab may lead
  #subs = new Set<Subscription>();
  #publisher: Publisher;
  #listeners = new Set<(state: State) => void>();
  #now: State = { state: "idle" };
  #feeding: State = this.#now; // the state of the feed
  #publishing: State | undefined; // how the last publishes went
  #host: Host & Owner = {
    feed: () => this.#feed,
    read: (starts, signal) => this.#read(starts, signal),
    isOwn: (item) => this.#publisher.isOwn(item),
    remove: (s) => void (this.#subs.delete(s) && this.#feed.update()),
    wants: () => merge([...this.#subs].flatMap((s) => s.names.map((name) => [name, s.want(name)] as [string, Want]))),
    onItem: (item) => this.#subs.forEach((s) => s.offer(item)),
    onStart: (granted, positions) => this.#subs.forEach((s) => s.start(granted, positions)),
    onLapse: (topic) => this.#subs.forEach((s) => s.lapse(topic)),
    onRefused: (names, problem) => this.#subs.forEach((s) => s.names.some((n) => names.includes(n)) && s.end(problem)),
    onTrouble: (problem) => this.#subs.forEach((s) => s.trouble(problem)),
    onFeed: (state) => this.#show((this.#feeding = state)),
  };

  /**
   * `url` is the address of the server, such as `https://push.example.com`. In a page it may be
   * `/path`, and is the page's own origin by default. Throws a Problem if it is no such address, or
   * an option is unknown.
   */
  constructor(url = "/", options: ClientOptions = {}) {
    checkOptions(options, "token, share, transports, fetch, WebSocket");
    this.http = new Http(url, options.token, options.fetch ?? global.fetch.bind(global));
    const WebSocket = options.WebSocket ?? global.WebSocket;
    const transports = (options.transports ?? ["websocket", "stream", "poll"]).filter((t) => t !== "websocket" || WebSocket);
    if (!transports.length) throw new Problem("invalid_request", "transports: add stream or poll");
    const open = (h: Host, positions?: Map<string, string>) =>
      new Session(this.http, h, { transports, WebSocket }, positions);
    // Web Locks need https, or a page of this machine; Node before 24 has none.
    if (options.share === undefined || !global.navigator?.locks) this.#feed = this.#session = open(this.#host);
    else {
      // Until the module is there, nothing is delivered.
      this.#feed = open(this.#host);
      this.#feed.leave(true);
      const begin = (feed: Feed) => {
        this.#feed = feed;
        this.#closed ? feed.leave(true) : feed.update();
      };
      import("./share.js").then(
        ({ Shared }) => begin(new Shared(this.http, options.share!, this.#host, open, (session) => (this.#session = session))),
      ).catch(() => begin((this.#session = open(this.#host)))); // no worse than without sharing
    }
    this.#publisher = new Publisher(this.http, () => this.#session, (state) => {
      this.#publishing = state;
      this.#show(this.#feeding);
    });
    this.#watchPage();
  }

  /** What the connection does now. It is `idle` without subscriptions, when nothing was published for ten seconds. */
  get state(): State {
    return this.#now;
  }

  /** Calls `listener` with each new state. Returns a function that stops it. */
  onState = (listener: (state: State) => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /**
   * Subscribes to topics and patterns: as an async iterable, or with a callback for each item.
   * An item is a message, or a gap where messages are lost: test `item.gap`, which has the reason, first.
   * Throws a Problem for an invalid name, position, rate or option, and `closed` after close.
   */
  subscribe<T = any>(topics: string | string[], options: SubscribeOptions | ((item: Item<T>) => void) = {}, callback?: (item: Item<T>) => void): Subscription<T> {
    if (typeof options === "function") return this.subscribe(topics, {}, options);
    if (this.#closed) throw this.#closed;
    const s = new Subscription<T>(this.#host, topics, options, callback);
    this.#subs.add(s);
    this.#goOn();
    return s;
  }

  /**
   * Loads the state of a topic, then yields every message after it; on a gap it loads the state
   * again, but not on `conflated`, which only `maxRate` asks for. What `load` throws ends the iteration.
   */
  follow<T = any>(topic: string, { load, ...rest }: FollowOptions): AsyncIterableIterator<Message<T>, void, void>;
  /** @internal With `turn` it yields what `turn` makes of each message, and of undefined after each load. */
  follow<T>(topic: string, options: FollowOptions, turn: (m?: Message) => T): AsyncIterableIterator<T, void, void>;
  follow(topic: string, { load, ...rest }: FollowOptions, turn?: (m?: Message) => unknown): AsyncIterableIterator<any, void, void> {
    const begin = (from?: string) => this.subscribe(topic, { ...rest, from });
    let s: Subscription | undefined;
    const items = async function* (): AsyncGenerator<unknown, void, void> {
      checkTopic(topic);
      checkOptions(rest, "maxRate, echo, signal");
      s = begin();
      try {
        let at = (await s.started)[0];
        for (let gap: Gap | undefined; at; ) {
          const loaded = await load(at, gap, s.life.signal);
          if (typeof loaded === "string") {
            const after = loaded === "oldest" ? "" : loaded;
            if (after && nameOf(after) !== topic) refuse("position", loaded, "of the topic", topic);
            if (covered(at, after)) at = after;
            else if (!gap) {
              // The state is older than the beginning: what is between comes from history.
              s.close();
              s = begin(loaded);
              at = after;
            }
          }
          if (turn) yield turn();
          gap = undefined;
          for await (const item of s.iterate()) {
            if (repeats(item, at)) continue;
            at = item.position;
            if (!item.gap) yield turn ? turn(item) : item;
            else if (item.gap.reason !== "conflated") {
              gap = item.gap;
              break;
            }
          }
          if (!gap) return;
        }
      } catch (e) {
        if (!s.life.signal.aborted || (e = s.error)) throw e; // of a subscription that was closed, load may throw
      } finally {
        s.close();
      }
    };
    return closing(items(), () => s?.close());
  }

  /**
   * Publishes a JSON value, a string with a type, or bytes: an ArrayBuffer or a view of one. While the
   * server is away the publish waits, without end unless `signal` ends it; at most 1000 wait, unless
   * `wait` is true. Rejects with a Problem:
   * `queue_full`; `aborted`; `closed`; `unknown` if the answer was lost and it is too late to
   * repeat the publish safely; or what the server refuses.
   */
  publish(topic: string, payload: unknown, options?: PublishOptions): Promise<Published>;
  /** @internal For how many milliseconds the message may have been sent under its key. */
  publish(topic: string, payload: unknown, options?: PublishOptions, ago?: number): Promise<Published>;
  publish(...args: Parameters<Publisher["publish"]>): Promise<Published> {
    if (this.#page) this.#goOn();
    return this.#publisher.publish(...args);
  }

  /**
   * Publishes messages, in order. Resolves to a result for each: test `problem` first, since the
   * mistake in one message does not stop the others. Of a generator it takes the next message when
   * fewer than 500 of its messages wait. When `signal` aborts, or the client is closed, it takes no
   * more, and the results are of those that it took.
   */
  publishMany(messages: Iterable<Publication>, options?: { signal?: AbortSignal }): Promise<PublishResult[]> {
    if (this.#page) this.#goOn();
    return this.#publisher.publishMany(messages, options);
  }

  /**
   * Reads the newest messages of a topic, or with `before` those just before that position. Retries
   * until `signal` aborts. Rejects with a Problem.
   */
  history<T = any>(topic: string, options?: HistoryOptions): Promise<HistoryPage<T>> {
    return import("./live.js").then((live) => live.readPage(this, topic, options));
  }

  /**
   * Who is on a topic, as a list that stays right: with a callback for each change, or as an async
   * iterable of the changes. Needs the right `presence`.
   */
  presence(topic: string, options?: PresenceOptions | ((change: Change) => void), onChange?: (change: Change) => void): Presence {
    if (this.#closed) throw this.#closed;
    const changes = import("./live.js").then((live) => live.watch(this, list, topic, options, onChange));
    changes.catch(console.error); // the module was not found
    const list: Presence = {
      members: new Map(),
      count: 0,
      anonymous: 0,
      exact: false,
      close: () => void changes.then((c) => c.return!()),
      async *[Symbol.asyncIterator]() {
        yield* await changes;
      },
    };
    return list;
  }

  /** Ends all subscriptions, the connection, and what waits to be published. */
  close(): void {
    this.#feed.leave(true);
    this.#subs.forEach((s) => s.close());
    this.#publisher.close();
    this.#life.abort();
    this.#show({ state: "closed", reason: "the client was closed" });
  }

  /** Set when the client was closed. */
  get #closed(): Problem | false {
    return this.#now.state === "closed" && new Problem("closed", this.#now.reason!);
  }

  /** @internal Tries until something is returned. Throws what the server refuses for good. */
  async retry<T>(attempt: () => Promise<T | false | undefined>, signal = this.#life.signal): Promise<T> {
    for (let n = 0; ; n++) {
      if (this.#closed) throw this.#closed;
      if (signal.aborted) throw new Problem("aborted", "aborted");
      try {
        const got = await attempt();
        if (got) return got;
        throw new Error("the answer was cut");
      } catch (e) {
        if (isFinal(e)) throw e;
        await sleep(backoff(n, e), signal);
      }
    }
  }

  #read(starts: string[], signal: AbortSignal): Promise<Past> {
    return this.retry(async () => {
      const { hello, items } = parseAnswer(await this.http.ask("/v1/poll?hello=true", { body: { topics: starts }, as: "text", signal, timeout: 30_000 }));
      // Firefox and WebKit take some answers that were cut for whole ones.
      return items.length === hello?.frames && { items, positions: hello!.positions };
    }, signal);
  }

  #show(state: State): void {
    if (state.state === "idle") state = this.#publishing ?? state;
    if (this.#closed || JSON.stringify(state) === JSON.stringify(this.#now)) return;
    this.#now = state;
    this.#listeners.forEach((l) => tell(l, state));
  }

  #life = new AbortController();

  #page = Page.here;

  /** Takes over what is wanted now, and ends the pause of a page that was left. */
  #goOn(): void {
    if (this.#page === Page.leaving) return;
    this.#page = Page.here;
    this.#feed.update();
  }

  /** Looks after the connection when the page or the network changes. */
  #watchPage(): void {
    const on = (target: any, type: string, listener: (e: any) => void) => {
      target?.addEventListener?.(type, listener, { signal: this.#life.signal });
    };
    const { document } = global;
    if (!document) return;
    const live = () => {
      this.#page = Page.here;
      this.#feed.update();
    };
    const look = () => {
      live();
      if (this.#publishing === offline) this.#publishing = undefined;
      this.#show(this.#feeding);
      this.#feed.check();
      this.#publisher.retry();
    };
    // While the browser is offline, other events are no sign that the connection is back.
    const maybe = () => (global.navigator?.onLine === false ? live() : look());
    on(global, "online", look);
    on(global, "offline", () => {
      this.#publishing &&= offline;
      this.#show(this.#feeding);
      this.#feed.check(offline);
    });
    on(global.navigator?.connection, "change", maybe);
    on(document, "resume", maybe);
    on(document, "visibilitychange", () => document.hidden || maybe());
    // A page that is left, perhaps for the back-forward cache, ends its session. It may live on without a pageshow.
    on(global, "pagehide", () => {
      this.#page = Page.leaving;
      this.#feed.leave();
      setTimeout(() => (this.#page &&= Page.left));
    });
    on(global, "pageshow", live);
  }
}
