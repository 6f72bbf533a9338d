// HTTP requests to the server: the address, the token, time-outs, and problems.

import { Problem, problemOf } from "./wire.js";

export type Token = string | (() => string | Promise<string>);

export interface Request {
  body?: object;
  /** How long the whole answer may take, of a stream its head, in milliseconds. Default: 10000. */
  timeout?: number;
  /** What to return: the JSON of the answer (default), its text, or the Response, of which the signal ends the body, too. */
  as?: "json" | "text" | "stream";
  signal?: AbortSignal;
  /** The request may outlive the page. */
  keepalive?: boolean;
}

/** Waits. Returns early when the signal aborts. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(end, ms);
    function end() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    }
    if (signal?.aborted) end();
    else signal?.addEventListener("abort", end);
  });
}

let base = Date.now() - performance.now();
let ahead = 0;

/**
 * Milliseconds of a clock for durations. It goes by whichever of two clocks went further: the
 * monotonic one does not count the time while a machine sleeps, and the other may be set back.
 */
export function now(): number {
  const monotonic = performance.now();
  const step = Date.now() - monotonic - base;
  if (Math.abs(step) > 500) {
    base += step;
    ahead += Math.max(step, 0);
  }
  return monotonic + ahead;
}

/** Back-off of attempt 0, 1, …: 200 ms doubled up to 10 s, at random between half of it and all of it; at least what the server said, but not above an hour. */
export function backoff(attempt: number, error?: unknown): number {
  const most = Math.min(10_000, 200 * 2 ** attempt);
  return Math.max(most * (0.5 + Math.random() / 2), Math.min((error as Problem)?.retryAfterMs || 0, 3_600_000));
}

/** Reports whether a request that failed so may succeed when it is repeated. */
export function retryable(e: unknown): boolean {
  return !(e instanceof Problem) || e.status >= 500 || e.status === 429;
}

/** Reports whether the server itself refused the request for now: only then it is certain that nothing was done. */
export function undone(e: unknown): boolean {
  return [429, 503].includes((e as Problem)?.status);
}

export class Http {
  readonly base: string;
  /** The token in use, as far as it is known. */
  #bearer?: string | undefined;

  #fetcher: typeof fetch;

  constructor(
    url: string,
    readonly token: Token | undefined,
    fetcher: typeof fetch,
  ) {
    this.#fetcher = fetcher;
    this.base = new URL(url, (globalThis as any).location?.href).href.replace(/\/*([?#].*)?$/, "");
  }

  /** The token in use, or a new one in the place of one that was refused. */
  async bearer(refused?: string): Promise<string | undefined> {
    if (this.#bearer === refused) this.#bearer = typeof this.token === "function" ? await this.token() : this.token;
    return this.#bearer;
  }

  /** Sends a request. Throws a Problem for a refusal, and what fetch throws if no answer came. A refused token is asked for anew, once. */
  async request(method: string, path: string, r: Request = {}): Promise<any> {
    for (let bearer: string | undefined, fresh = false; ; fresh = true) {
      bearer = await this.bearer(bearer);
      const headers: Record<string, string> = {};
      if (bearer) headers.Authorization = "Bearer " + bearer;
      if (r.body) headers["Content-Type"] = "application/json";
      // Node collects a signal of AbortSignal.timeout too early. A timer keeps this controller.
      const late = new AbortController();
      const timer = setTimeout(() => late.abort(), r.timeout ?? 10_000);
      try {
        const answer = await this.#fetcher(this.base + path, {
          method,
          headers,
          signal: AbortSignal.any([late.signal, r.signal ?? late.signal]),
          keepalive: r.keepalive as boolean,
          body: JSON.stringify(r.body) as string, // undefined without a body
        });
        if (answer.ok && r.as === "stream") return answer;
        const text = await answer.text();
        if (answer.ok) return r.as === "text" ? text : text && JSON.parse(text);
        if (answer.status === 401 && !fresh && bearer !== this.token) continue;
        let said: any;
        try {
          said = JSON.parse(text);
        } catch {}
        if (said?.code) throw problemOf(said, answer.status);
        throw Object.assign(new Error(answer.status + " without pubsubd's error body: is this a pubsubd server?"), { retryAfterMs: Number(answer.headers.get("Retry-After")) * 1000 });
      } finally {
        clearTimeout(timer);
      }
    }
  }
}
