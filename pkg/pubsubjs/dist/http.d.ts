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
export declare function onAbort(signal: AbortSignal | undefined, act: () => void, until: AbortSignal): void;
/** Waits. Returns early when the signal aborts. */
export declare function sleep(ms: number, signal: AbortSignal): Promise<void>;
/**
 * Milliseconds of a clock for durations. It goes by whichever of two clocks went further: the
 * monotonic one does not count the time while a machine sleeps, and the other may be set back.
 */
export declare function now(): number;
/** Back-off of attempt 0, 1, …: 200 ms doubled up to 10 s, or to 30 s after foreign answers, at random between half of it and all of it; at least what the server said, but not above an hour. */
export declare function backoff(attempt: number, error?: unknown): number;
/** The error of an answer that is not the server's: it may pass, or it is the Problem `unexpected_answer`. */
export declare function foreign(status: number, retryAfterMs?: number, what?: string): Error;
/** Reports whether another program refused the request. */
export declare const isForeign: (e: unknown) => boolean;
/** Reports whether a request that failed so may succeed when it is repeated. */
export declare function retryable(e: unknown): boolean;
/** Reports whether the session cannot go on: a new one begins from the positions. */
export declare const isLost: (e: unknown) => boolean;
/** Reports whether the server will refuse the request again. What a proxy answers may pass: it answers 404 while the server is replaced. */
export declare const isFinal: (e: unknown) => boolean;
/** Reports whether the server itself refused the request for now: only then it is certain that nothing was done. */
export declare function undone(e: unknown): boolean;
export declare class Http {
    #private;
    readonly base: string;
    constructor(url: string, token: Token | undefined, fetcher: typeof fetch);
    /** The token in use, or a new one in the place of one that was refused. */
    bearer(refused?: string): Promise<string | undefined>;
    /** Ends a session, and waits for nothing. The request outlives the page. Its id is enough: no token, and so no preflight. */
    beacon(session: string): void;
    /**
     * Sends a request. Throws a Problem for a refusal, `unexpected_answer` if another program
     * answered, and what fetch throws if no answer came. A refused token is asked for anew, once.
     */
    ask(path: string, r: Request): Promise<any>;
}
