// HTTP requests to the server: the address, the token, time-outs, and problems.

import { Problem, problemOf, refuse } from "./wire.js";

export type Token = string | (() => string | Promise<string>);

export interface Request {
  /** Default: POST with a body, else GET. */
  method?: string;
  body?: object;
  /** How long the whole answer may take, of a stream its head, in milliseconds. Default: 10000. */
  timeout?: number;
  /** What to return: the JSON of the answer (default), its text, or the Response, of which the signal ends the body, too. */
  as?: "json" | "text" | "stream";
  signal?: AbortSignal;
}

/** Calls a function when the signal aborts, at once if it has aborted; not after another has. */
export function onAbort(signal: AbortSignal | undefined, act: () => void, until: AbortSignal): void {
  signal?.aborted ? act() : signal?.addEventListener("abort", act, { signal: until });
}

/** Waits. Returns early when the signal aborts. */
export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, signal.aborted ? 0 : ms);
    signal.addEventListener("abort", end);
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

/** Back-off of attempt 0, 1, …: 200 ms doubled up to 10 s, or to 30 s after foreign answers, at random between half of it and all of it; at least what the server said, but not above an hour. */
export function backoff(attempt: number, error?: unknown): number {
  const most = Math.min(isForeign(error) ? 30_000 : 10_000, 200 * 2 ** attempt);
  return Math.max(most * (0.5 + Math.random() / 2), Math.min((error as Problem)?.retryAfterMs || 0, 3_600_000));
}

/** The error of an answer that is not the server's: it may pass, or it is the Problem `unexpected_answer`. */
export function foreign(status: number, retryAfterMs?: number, what = status + " without pubsubd's error body"): Error {
  const why = what + ": " + (/50[234]/.test(status as any) ? "the proxy does not reach pubsubd" : "is this pubsubd, or a proxy?");
  return status < 500 && !/4(08|2[59])/.test(status as any)
    ? new Problem("unexpected_answer", why, status, { retry_after_ms: retryAfterMs })
    : Object.assign(new Error(why), { retryAfterMs });
}

/** Reports whether another program refused the request. */
export const isForeign = (e: unknown) => (e as Problem)?.code === "unexpected_answer";

/** Reports whether a request that failed so may succeed when it is repeated. */
export function retryable(e: unknown): boolean {
  return !(e instanceof Problem) || e.status >= 500 || e.status === 429;
}

/** Reports whether the session cannot go on: a new one begins from the positions. */
export const isLost = (e: unknown) => /session_|ack|replaced|drain|frame/.test((e as Problem).code);

/** Reports whether the server will refuse the request again. What a proxy answers may pass: it answers 404 while the server is replaced. */
export const isFinal = (e: unknown) => !retryable(e) && !isForeign(e) && !isLost(e);

/** Reports whether the server itself refused the request for now: only then it is certain that nothing was done. */
export function undone(e: unknown): boolean {
  return [429, 503].includes((e as Problem)?.status);
}

export class Http {
  readonly base: string;
  /** The token in use, as far as it is known. */
  #bearer?: string | undefined;
  #asking?: Promise<string | undefined> | undefined; // for a new one

  #fetcher: typeof fetch;
  #token: Token | undefined;

  constructor(
    url: string,
    token: Token | undefined,
    fetcher: typeof fetch,
  ) {
    this.#fetcher = fetcher;
    this.#token = token;
    const page = (globalThis as any).location?.href;
    // To a URL of a page, push.example is a path.
    const href = /^(https?:|[./])/i.test(url) && URL.canParse(url, page) ? new URL(url, page).href : "";
    this.base = href.replace(/\/*([?#].*)?$/, "");
    if (!/^https?:..[^@/]+(\/|$)/.test(this.base)) refuse("request", url.replace(/.*@/, "…@"), "an address", "https://push.example or, in a page, /path");
  }

  /** The token in use, or a new one in the place of one that was refused. */
  async bearer(refused?: string): Promise<string | undefined> {
    if (this.#bearer === refused) {
      this.#asking ??= (async () => (typeof this.#token === "function" ? this.#token() : this.#token))().finally(() => (this.#asking = undefined));
      const bearer = await this.#asking;
      if (/[^!-~]\S/.test(bearer!)) throw new Error("not a token"); // such as an error page: no header can have it
      this.#bearer = bearer;
    }
    return this.#bearer;
  }

  /** Ends a session, and waits for nothing. The request outlives the page. Its id is enough: no token, and so no preflight. */
  beacon(session: string): void {
    void this.#fetcher(`${this.base}/v1/sessions/${session}/close`, { method: "POST", mode: "no-cors", keepalive: true }).catch(() => {});
  }

  /**
   * Sends a request. Throws a Problem for a refusal, `unexpected_answer` if another program
   * answered, and what fetch throws if no answer came. A refused token is asked for anew, once.
   */
  async ask(path: string, r: Request): Promise<any> {
    for (let bearer: string | undefined, fresh = false; ; fresh = true) {
      bearer = await this.bearer(bearer);
      // WebKit collects the signals of AbortSignal.any, and Node those of AbortSignal.timeout, too early. A timer and a listener keep this controller.
      const control = new AbortController();
      const abort = () => control.abort();
      const timer = setTimeout(abort, r.timeout ?? 10_000);
      onAbort(r.signal, abort, control.signal);
      try {
        const answer = await this.#fetcher(this.base + path, {
          method: r.method ?? (r.body && "POST") as string, // undefined is GET
          headers: { ...(bearer && { Authorization: "Bearer " + bearer }), ...(r.body && { "Content-Type": "application/json" }) },
          signal: control.signal,
          body: JSON.stringify(r.body) as string, // undefined without a body
        });
        const { ok, status } = answer;
        const ours = ok && answer.headers.get("Content-Type")?.includes("json");
        if (ours && r.as === "stream") return answer;
        const text = await answer.text();
        if (ours && r.as) return text;
        if (status === 401 && !fresh && bearer !== this.#token) continue;
        let said: any;
        try {
          said = JSON.parse(text);
        } catch (e) {
          if (ours || (ok && !text)) throw e; // it was cut; of answers without content nobody waits for one
        }
        if (ours) return said;
        throw said?.code ? problemOf(said, status) : foreign(status, +answer.headers.get("Retry-After")! * 1000);
      } finally {
        clearTimeout(timer);
        if (r.as !== "stream") abort(); // takes the listener away
      }
    }
  }
}
