// An outbox: messages wait in IndexedDB until the server has them, so that they survive a
// reload. The tab that holds a lock sends for all tabs of the origin; the others store, and
// tell it.
//
// A message is marked in the database before it is sent for the first time. A mark that a
// page finds means that the message may have been published. It is sent again while the
// server still remembers its key. After that only the application can decide.

import { Problem, type Client, type Published, type PublishOptions } from "./client.js";
import { backoff, sleep } from "./http.js";
import { subjectOf } from "./subject.js";

export interface OutboxMessage<T = any> {
  /** Its idempotency key, which subscribers see as `id`. */
  id: string;
  topic: string;
  data: T;
  options: OutboxPublishOptions;
  /** When it was stored, in Unix milliseconds. */
  time: number;
}

export type OutboxPublishOptions = Pick<PublishOptions, "key" | "ttl" | "type">;

export interface OutboxOptions {
  /**
   * Whose messages these are: the subject of the user's tokens (the claim `sub`). Each subject of a
   * server has an outbox of its own. While the client has a JWT of another subject, nothing is sent.
   */
  subject: string;
  /**
   * Takes a message that the outbox does not send any more. `problem.code` is `unknown` (it may have
   * been published, and it is too late to repeat it safely), `expired` (it was never sent), or why
   * the server refused it. The message is kept until this returns, or until its promise resolves:
   * if the page ends before, the next page gets it again. Only the tab that sends is called.
   */
  onFailed: (message: OutboxMessage, problem: Problem) => unknown;
  /** The server has the message. Called in each open tab. */
  onSent?: (message: OutboxMessage, published: Published) => void;
  /**
   * Says why nothing is sent although the server may be there: for example it refuses the token. The
   * outbox keeps its messages, and tries again until it is closed. Default: console.error.
   */
  onError?: (problem: Problem) => void;
  /** Most messages that wait. Default: 1000. */
  maxMessages?: number;
  /** Most bytes of their payloads. Default: 5 MiB. */
  maxBytes?: number;
  /** A message that was not sent for so long fails with `expired`; one with a `ttl` does so after the ttl, too. Default: 24 hours. */
  maxAgeMs?: number;
}

/** A message as the database has it. Only the tab that sends changes it. */
interface Stored {
  id: string;
  topic: string;
  body: string | Uint8Array; // JSON, unless it has a type
  options?: OutboxPublishOptions;
  time: number;
  /** When it was first sent, in Unix milliseconds. */
  sent?: number | undefined;
  /** It failed. */
  problem?: { code: string; message: string; status: number };
}

/** A number that grows with each message, and the size of the payload: all keys tell what is held. */
type Key = [number, number];

const table = "messages";
/** Messages that are marked, and sent, at once: so many may be `unknown` after a crash. */
const mostAtOnce = 100;
/** How often the tab that sends looks for messages of which no tab told it. */
const idleMs = 60_000;

/**
 * Sends messages in order, each once, even if the page ends before the server has them. Make one
 * for each user. It ends with its client, or with `close`; what is stored stays. In Node, and in
 * pages without Web Locks or IndexedDB, the constructor throws the Problem `storage_failed`.
 */
export class Outbox {
  #client: Client;
  #options: OutboxOptions;
  #name: string;
  #db?: Promise<IDBDatabase> | undefined;
  #channel: BroadcastChannel;
  #life = new AbortController();
  #wake = new AbortController(); // ends a pause
  #skipped = new Set<number>(); // numbers of messages that the application has, or that cannot be read

  constructor(client: Client, options: OutboxOptions) {
    const { subject, onFailed, onSent, onError, maxMessages, maxBytes, maxAgeMs, ...rest } = options;
    checkRest(rest);
    if (!subject || !onFailed) throw new Problem("invalid_request", "pass subject and onFailed");
    if (client.state.state === "closed") throw new Problem("closed", client.state.reason!);
    this.#client = client;
    this.#options = options;
    this.#name = ["pubsubd outbox", client.http.base, subject].join(" ");
    const { signal } = this.#life;
    try {
      if (!indexedDB) throw 0;
      this.#channel = new BroadcastChannel(this.#name);
      this.#channel.onmessage = ({ data }) => (data ? onSent?.(data.message, data.published) : this.#wakeUp());
      navigator.locks.request(this.#name, { signal }, () => this.#own()).catch((e) => this.#report(failed(e)));
    } catch (e) {
      throw failed(e);
    }
    const stop = client.onState(({ state }) => (state === "closed" ? this.close() : state === "open" && this.#wakeUp()));
    signal.addEventListener("abort", stop);
    addEventListener("online", () => this.#wakeUp(), { signal });
  }

  /**
   * Stores a message, and resolves to its id when the browser has it on disk. The payload is that of
   * `client.publish`. Rejects with a Problem if it is invalid; `queue_full` if the outbox or the disk
   * is full; `storage_failed`; or `closed`.
   */
  async publish(topic: string, data: unknown, options: OutboxPublishOptions = {}): Promise<string> {
    const { key, ttl, type, ...rest } = options;
    checkRest(rest);
    // An aborted publish is checked, and not sent.
    const checked = this.#client.publish(topic, data, { ...options, wait: true, signal: AbortSignal.abort() }).catch((e) => {
      if (e.code !== "aborted") throw e;
    });
    let body: any;
    try {
      body = copy(data, type); // now: the application may change it
    } catch {} // the client has refused it
    await checked;
    if (this.#life.signal.aborted) throw new Problem("closed", "the outbox was closed");
    const { maxMessages = 1000, maxBytes = 5 << 20 } = this.#options;
    const { size } = new Blob([body]);
    const id = crypto.randomUUID();
    let full = "";
    await this.#run((messages) => {
      const all = messages.getAllKeys();
      all.onsuccess = () => {
        const keys = all.result as Key[];
        const time = Date.now();
        if (keys.length >= maxMessages) full = maxMessages + " messages";
        else if (keys.reduce((sum, key) => sum + key[1], size) > maxBytes) full = maxBytes + " bytes";
        else messages.add({ id, topic, body, options: { key, ttl, type }, time }, [Math.max(time, 1 + (keys.at(-1)?.[0] ?? 0)), size]);
      };
    });
    if (full) throw new Problem("queue_full", `the outbox takes ${full}: wait until messages are sent`);
    this.#wakeUp();
    this.#channel.postMessage(0);
    return id;
  }

  /** The messages that wait, oldest first. */
  async pending(): Promise<OutboxMessage[]> {
    return (await this.#run((messages) => messages.getAll(), "readonly")).map(asMessage);
  }

  /** Deletes the messages that wait, for example when a user logs out. One that is being sent may be published. */
  async clear(): Promise<void> {
    await this.#run((messages) => messages.clear());
  }

  /** Sends nothing more, and lets another tab send. What is stored stays. */
  close(): void {
    this.#life.abort();
    this.#wakeUp();
    this.#channel.close();
    this.#db?.then((db) => db.close(), () => {});
  }

  #wakeUp(): void {
    this.#wake.abort();
    this.#wake = new AbortController();
  }

  /** Sends until the outbox is closed. This tab has the lock. */
  async #own(): Promise<void> {
    for (let attempt = 0; !this.#life.signal.aborted; ) {
      const wake = this.#wake.signal;
      let ms = idleMs;
      try {
        if (await this.#sendSome()) ms = attempt = 0;
      } catch (e) {
        ms = backoff(attempt++, e);
        this.#report(e);
      }
      if (ms) await sleep(ms, wake);
    }
  }

  /** Sends the oldest messages. Returns whether there were any. */
  async #sendSome(): Promise<boolean> {
    const keys = ((await this.#run((messages) => messages.getAllKeys(), "readonly")) as Key[]).filter(([n]) => !this.#skipped.has(n)).slice(0, mostAtOnce);
    const ready: { key: Key; stored: Stored }[] = [];
    for (const key of keys) {
      const stored: Stored | void = await this.#run((messages) => messages.get(key), "readonly").catch((e) => this.#report(e));
      if (!stored) this.#skipped.add(key[0]);
      else {
        const problem = this.#problemOf(stored);
        if (problem) await this.#fail(key, stored, problem);
        else ready.push({ key, stored });
      }
    }
    if (!ready.length) return keys.length > 0;

    await this.#reach();
    await this.#update(ready.filter(({ stored }) => !stored.sent).map(({ key }) => key), { sent: Date.now() });
    const results = await Promise.allSettled(ready.map(({ key, stored }) => this.#send(key, stored)));
    for (const { reason } of results as PromiseRejectedResult[]) if (reason) throw reason;
    return true;
  }

  /** Why a message cannot be sent. */
  #problemOf({ options: { ttl } = {}, time, sent, problem }: Stored): Problem | undefined {
    if (problem) return new Problem(problem.code, problem.message, problem.status);
    const now = Date.now();
    // The device's clock is the only one that lives longer than a page.
    if (sent) return sent > now ? new Problem("unknown", "the clock was set back; the message may have been published") : undefined;
    const most = Math.min(this.#options.maxAgeMs ?? 86_400_000, ttl! * 1000 || Infinity);
    if (now - time > most) return new Problem("expired", `not sent within ${most / 1000} s`);
    return;
  }

  /** Checks the token, and that the server answers. Without a mark, a message is certainly not sent. */
  async #reach(): Promise<void> {
    const { http, state } = this.#client;
    const { subject } = this.#options;
    const other = subjectOf(await http.bearer());
    if ((other ?? subject) !== subject) throw new Problem("forbidden", `the token is of ${other}, the outbox of ${subject}: make both for each user`);
    if (state.state === "open") return;
    try {
      http.beacon((await http.ask("/v1/sessions", { body: { topics: [] } })).session);
    } catch (e) {
      // The credentials may be those of a publisher only.
      if ((e as Problem).code !== "forbidden") throw e;
    }
  }

  /** Sends a message that is marked, and settles what is certain. Rejects if it has to wait. */
  async #send(key: Key, stored: Stored): Promise<void> {
    const message = asMessage(stored);
    const options = { ...message.options, idempotencyKey: message.id, wait: true, signal: this.#life.signal };
    const ago = stored.sent && Math.max(1, Date.now() - stored.sent);
    let published: Published;
    try {
      published = await this.#client.publish(message.topic, message.data, options, ago);
    } catch (e) {
      const problem = e as Problem;
      if (this.#life.signal.aborted) return; // the next tab sends it again
      if (problem.status !== 401) return this.#fail(key, stored, problem);
      // The user has to log in. It was not published, unless an earlier attempt had no answer.
      if (!ago && !/may have been/.test(problem.message)) await this.#update([key], { sent: undefined });
      throw e;
    }
    await this.#run((messages) => messages.delete(key));
    this.#channel.postMessage({ message, published });
    queueMicrotask(() => this.#options.onSent?.(message, published)); // what it throws is uncaught
  }

  /** Gives a message to the application, and forgets it when the application has taken it. */
  async #fail(key: Key, stored: Stored, problem: Problem): Promise<void> {
    const { code, message, status } = problem;
    if (!stored.problem) await this.#update([key], { problem: { code, message, status } });
    this.#skipped.add(key[0]);
    void (async () => {
      await this.#options.onFailed(asMessage(stored), problem);
      await this.#run((messages) => messages.delete(key)).catch((e) => this.#report(e));
    })();
  }

  /** Changes those of the messages that are still there. */
  async #update(keys: Key[], change: Partial<Stored>): Promise<void> {
    await this.#run((messages) => {
      for (const key of keys) {
        const old = messages.get(key);
        old.onsuccess = () => old.result && messages.put({ ...old.result, ...change }, key);
      }
    });
  }

  #report(e: unknown): void {
    const { aborted } = this.#life.signal;
    // What passes by itself is the client's state.
    if (!aborted && e instanceof Problem && e.status < 500 && e.status !== 429) (this.#options.onError ?? console.error)(e);
  }

  /** Runs a transaction, and resolves to the result of its request when it is on disk. Rejects with a Problem. */
  async #run(work: (messages: IDBObjectStore) => IDBRequest | void, mode: IDBTransactionMode = "readwrite"): Promise<any> {
    try {
      const db = await (this.#db ??= this.#open());
      return await new Promise((resolve, reject) => {
        const transaction = db.transaction(table, mode, { durability: "strict" });
        transaction.onabort = () => reject(transaction.error);
        const request = work(transaction.objectStore(table));
        transaction.oncomplete = () => resolve(request?.result);
      });
    } catch (e) {
      throw failed(e);
    }
  }

  #open(): Promise<IDBDatabase> {
    return new Promise((resolve, reject) => {
      const request = indexedDB.open(this.#name, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(table);
      request.onerror = () => {
        this.#db = undefined;
        reject(request.error);
      };
      request.onsuccess = () => {
        const db = request.result;
        db.onclose = () => (this.#db = undefined);
        db.onversionchange = () => {
          this.#report(new Problem("closed", "another page changes the outbox: reload this one"));
          this.close();
        };
        resolve(db);
      };
    });
  }
}

function checkRest(rest: object): void {
  for (const name of Object.keys(rest)) throw new Problem("invalid_request", name + " is not an option");
}

/** The Problem of an error of the browser. */
function failed(e: any): Problem {
  if (e?.name === "QuotaExceededError") return new Problem("queue_full", "the disk is full: wait until messages are sent");
  return new Problem("storage_failed", `no IndexedDB or Web Locks: use a browser with https, and no private window (${e?.message})`);
}

/** What is stored of a payload: bytes, or a string, which is JSON without a type. */
function copy(payload: any, type: string | undefined): unknown {
  const buffer = ArrayBuffer.isView(payload) ? payload.buffer : /ArrayBuffer/.test({}.toString.call(payload)) && payload;
  if (buffer) return new Uint8Array(buffer, payload.byteOffset, payload.byteLength).slice();
  return type ? payload : JSON.stringify(payload);
}

function asMessage({ id, topic, body, options = {}, time }: Stored): OutboxMessage {
  let data: any = body;
  if (typeof body === "string" && !options.type) {
    try {
      data = JSON.parse(body);
    } catch {
      data = undefined; // something damaged it: the client refuses to publish it
    }
  }
  return { id, topic, data, options, time };
}
