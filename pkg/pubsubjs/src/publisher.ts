// Publishing: a bounded queue, sent in order, each message under an idempotency key, so
// that a publish whose answer was lost can be repeated without publishing twice.

import { backoff, foreign, Http, isForeign, now, onAbort, retryable, sleep, undone } from "./http.js";
import { Session, State, waiting } from "./session.js";
import { mostQueued } from "./subscription.js";
import { checkOptions, encodeMessage, Problem, problemOf } from "./wire.js";

export interface PublishOptions {
  /** The idempotency key, which subscribers see as `id`: 1 to 255 bytes of printable ASCII. Default: a new one. */
  idempotencyKey?: string;
  /** The message is not delivered when it is older, in whole seconds. */
  ttl?: number;
  /** The conflation key. */
  key?: string;
  /** The media type of a string or of bytes. Without it a payload that is not bytes is JSON. */
  type?: string;
  /** True: when 1000 messages wait, this one waits, too. Default: the publish is rejected with `queue_full`. */
  wait?: boolean;
  /** Aborts the publish. The message may have been published all the same. */
  signal?: AbortSignal;
}

export interface Published {
  position: string;
  /** Unix milliseconds. */
  time: number;
}

/** A message of publishMany, with the arguments of publish. */
export interface Publication extends Omit<PublishOptions, "wait" | "signal"> {
  topic: string;
  /** A JSON value, a string with a type, or bytes. */
  data: unknown;
}

/** What became of a message of publishMany. */
export type PublishResult = (Published & { problem?: undefined }) | { problem: Problem; position?: undefined; time?: undefined };

interface Pending {
  body: Record<string, unknown>;
  size: number;
  /** When a request with it was sent that had no answer, as now() tells it. */
  lost?: number | undefined;
  settle(result: Published | Problem): void;
}

/** One request. The server takes 1000 messages, and 1 MiB. */
const mostInBatch = 100;
const batchChars = 250_000;
/** The server's window, if it does not say it. */
const windowMs = 120_000;
/** For how long after a publish the client is not idle. */
const calmMs = 10_000;

export class Publisher {
  #queue = new Set<Pending>();
  #sending?: boolean;
  #count = 0;
  #given = new Set<string>(); // the last ids that the application chose
  #own = Math.random().toString(36).slice(2, 14) + "-";
  #life = new AbortController();
  #wake = new AbortController(); // ends a pause
  #window?: number; // how long the server remembers a key, in milliseconds
  #most = mostInBatch; // messages in the next request: fewer after a proxy refused one

  #calm?: ReturnType<typeof setTimeout>; // until this client has not published lately

  #http: Http;
  #session: () => Session | undefined;
  #onState: (state?: State) => void;

  constructor(
    http: Http,
    session: () => Session | undefined,
    /** Hears how publishing goes; undefined: nothing was published lately. */
    onState: (state?: State) => void,
  ) {
    this.#http = http;
    this.#session = session;
    this.#onState = onState;
  }

  /** `ago`: for how many milliseconds the message may have been sent under its key. It is repeated only while the server remembers that. */
  publish(topic: string, payload: unknown, options: PublishOptions = {}, ago?: number): Promise<Published> {
    return new Promise((resolve, reject) => {
      checkOptions(options, "idempotencyKey, ttl, key, type, signal, wait");
      const { idempotencyKey: id, signal, wait, ...rest } = options;
      if (this.#queue.size >= mostQueued && !wait) throw new Problem("queue_full", mostQueued + " messages wait: use the option wait");
      if (this.#life.signal.aborted) throw closed();
      if (id) {
        this.#given.add(id);
        const [oldest] = this.#given;
        if (this.#given.size > mostQueued) this.#given.delete(oldest!);
      }
      const body = encodeMessage(payload, { ...rest, topic, id: id ?? this.#own + this.#count++ });
      const over = new AbortController();
      const abort = () => p.settle(maybe(new Problem("aborted", "aborted")));
      const p: Pending = {
        body,
        size: JSON.stringify(body).length,
        lost: ago && now() - ago,
        settle: (result) => {
          this.#queue.delete(p);
          over.abort();
          result instanceof Problem ? reject(result) : resolve(result);
        },
      };
      this.#queue.add(p);
      onAbort(signal, abort, over.signal);
      if (!this.#sending) void this.#send();
    });
  }

  /** Publishes messages in order, and takes the next one when few of them wait. */
  async publishMany(messages: Iterable<Publication>, options: { signal?: AbortSignal } = {}): Promise<PublishResult[]> {
    checkOptions(options, "signal");
    const results: Promise<PublishResult>[] = [];
    for (const message of messages) {
      const { topic, data, ...rest } = Object(message) as Publication; // of null, too: it has no topic
      // The other half of the queue is for others.
      if (results.length >= mostQueued / 2) await results.at(-mostQueued / 2);
      results.push(this.publish(topic, data, { ...rest, ...options, wait: true }).catch((problem) => ({ problem })));
      if (options.signal?.aborted || this.#life.signal.aborted) break;
    }
    return Promise.all(results);
  }

  /** Reports whether this client published the message. */
  isOwn = ({ id = "" }: { id?: string; gap?: unknown }): boolean => id.startsWith(this.#own) || this.#given.has(id);

  /** Tries at once what waits. */
  retry = (): void => {
    this.#wake.abort();
    this.#wake = new AbortController();
  };

  /** Fails what waits. */
  close(): void {
    this.#life.abort();
    this.#wake.abort();
    for (const p of this.#queue) p.settle(p.lost ? unknown() : closed());
  }

  async #send(): Promise<void> {
    this.#sending = true;
    clearTimeout(this.#calm);
    await Promise.resolve(); // messages that are published together are one request
    for (let attempt = 0; this.#queue.size; ) {
      let size = 0;
      const error = await this.#attempt([...this.#queue].slice(0, this.#most).filter((p, i) => (size += p.size) <= batchChars || !i));
      if (!error || !this.#queue.size) {
        attempt = 0;
        this.#onState({ state: "open" });
      } else {
        // A request without the message that a proxy refuses may get through: it is found soon, but not in a rush.
        const ms = backoff(isForeign(error) ? 1 : attempt++, error);
        this.#onState(waiting(ms, error));
        await sleep(ms, this.#wake.signal);
      }
    }
    this.#sending = false;
    const calm: any = (this.#calm = setTimeout(this.#onState, calmMs));
    calm.unref?.(); // lets Node end
  }

  /** Sends a batch, and settles what is certain. Returns why some of it has to be sent again. */
  async #attempt(batch: Pending[]): Promise<unknown> {
    let error: unknown;
    if (batch.some((p) => p.lost)) await this.#learn().catch((e) => (error = e));
    const window = this.#window ?? windowMs;
    // A repetition must arrive before the server forgets the key.
    const timeout = Math.min(10_000, window / 2);
    const at = now();
    for (const p of batch) if (p.lost && at - p.lost > window - timeout) p.settle(unknown());
    batch = batch.filter((p) => this.#queue.has(p));
    if (error || !batch.length) return error;
    for (const p of batch) p.lost ??= at; // at: this is the first attempt of which nothing is known
    const results = await this.#http
      .ask("/v1/messages", { body: batch.map((p) => p.body), timeout, signal: this.#life.signal })
      .catch((e) => void (error = e));
    if (!error && results?.length !== batch.length) error = foreign(200);
    if (!error) this.#most = Math.min(this.#most + 1, mostInBatch);
    else if (isForeign(error) && batch.length > 1) {
      // Perhaps it refuses one of these, or their size: nothing of it was published.
      for (const p of batch) if (p.lost === at) p.lost = undefined;
      this.#most = batch.length >> 1;
      return error;
    }
    for (const [i, p] of batch.entries()) {
      const result = results?.[i];
      const problem = result?.problem ? problemOf(result.problem) : error;
      if (result?.position) p.settle(result);
      else if (problem && !retryable(problem)) p.settle(p.lost === at ? (problem as Problem) : maybe(problem as Problem));
      else {
        if (undone(problem) && p.lost === at) p.lost = undefined;
        error ??= problem ?? foreign(200);
      }
    }
    return error;
  }

  /** Asks for the server's window before anything is repeated: a session says it. Throws if the server is still away. */
  async #learn(): Promise<void> {
    let limits = this.#session()?.bounds;
    if (!limits && !this.#window) {
      try {
        const opened = await this.#http.ask("/v1/sessions", { body: { topics: [] } });
        this.#http.beacon(opened.session);
        limits = opened.limits;
      } catch (e) {
        // A refusal tells that something is back; the credentials may be those of a publisher only.
        if (!(e instanceof Problem)) throw e;
      }
    }
    if (limits) this.#window = limits.idempotency_ms;
  }
}

const closed = () => new Problem("closed", "the client was closed");
const maybe = ({ code, message, status }: { code: string; message: string; status?: number }) =>
  new Problem(code, message + "; the message may have been published", status);
const unknown = () => maybe(new Problem("unknown", "no answer in time"));
