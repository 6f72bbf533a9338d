import { Feed, Want } from "./session.js";
import { Item, Problem } from "./wire.js";
export interface SubscribeOptions {
    /**
     * Where to begin: `"now"` (default), `"oldest"`, `{ newest: 50 }` with the newest 50 messages of
     * each topic (1 to 1000), or the positions of an earlier subscription. Topics without a position
     * begin now. Positions of other topics are ignored.
     */
    from?: string | string[] | {
        newest: number;
    } | undefined;
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
export declare const mostQueued = 1000;
/**
 * An async iterable of messages and gaps, in the order of each topic. The iteration ends
 * when the subscription is closed, and throws a Problem if the server refuses it.
 */
export declare class Subscription<T = any> implements AsyncIterable<Item<T>> {
    #private;
    /** The topics and patterns, without positions. */
    readonly names: string[];
    /** Resolves to `positions` when the server has taken the subscription, or it was closed before. Rejects with a Problem if it is refused. */
    readonly started: Promise<string[]>;
    /** @internal */
    readonly life: AbortController;
    /** @internal Why the server refused it. */
    error?: Problem;
    /** @internal */
    constructor(owner: Owner, topics: string | string[], options: SubscribeOptions, callback?: (item: Item<T>) => void);
    /** The positions of the last items that the application took. Give them as `from` to go on after them, also in another page or process. */
    get positions(): string[];
    /** Ends the subscription. Items that wait are dropped. */
    close: () => void;
    [Symbol.asyncIterator](): AsyncIterableIterator<Item<T>, void, void>;
    /** Iterates without closing the subscription at the end. */
    iterate(): AsyncGenerator<Item<T>, void, void>;
    /** @internal What the feed should deliver of a name for this subscription. */
    want(name: string): Want;
    /** @internal Takes an item of the feed. */
    offer(item: Item): void;
    /** @internal The feed has a hole in the topic, or the buffer is full: history holds what is missing. */
    lapse(topic: string): void;
    /** @internal Names began at the feed. */
    start(granted: Map<string, Want>, positions: string[]): void;
    /** @internal Goes on when all names have begun. */
    settle(): void;
    /** @internal Ends the subscription, with an error if the server refused it. */
    end(error?: Problem): void;
    /** @internal Tells the application of an error. */
    trouble(error: Problem): void;
}
/** Calls a function of the application. Its fault is reported as an unhandled rejection, and stops nothing else. */
export declare const tell: <T>(listener: (about: T) => void, about: T) => Promise<void>;
/** Makes a return call close first, so that it ends an iteration that waits. */
export declare function closing<T>(items: AsyncGenerator<T, void, void>, close: () => void): AsyncIterableIterator<T, void, void>;
/** Leaves the newest message of each key, and gaps where others were. The items are of one topic, in order; `after` is the position before them. */
export declare function conflate(items: Item[], after?: string): Item[];
/** Milliseconds of a rate such as `5/s`, `100/m` or `1/10s`; 0 without a rate. */
export declare function interval(rate: string | undefined): number;
