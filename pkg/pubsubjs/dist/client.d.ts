import { Http, Token } from "./http.js";
import type { Change, HistoryOptions, HistoryPage, Member, Presence, PresenceOptions } from "./live.js";
import { Publication, PublishOptions, Published, PublishResult } from "./publisher.js";
import { State, Transport } from "./session.js";
import { SubscribeOptions, Subscription } from "./subscription.js";
import { covered, Gap, GapItem, GapReason, Item, Message, Problem } from "./wire.js";
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
/**
 * A connection to a pubsubd server. It opens with the first subscription, reconnects by itself,
 * and closes ten seconds after the last subscription has ended. One client serves all of a page.
 */
export declare class Client {
    #private;
    /** @internal Outboxes and the list of presence send requests, too. */
    readonly http: Http;
    /**
     * `url` is the address of the server, such as `https://push.example.com`. In a page it may be
     * `/path`, and is the page's own origin by default. Throws a Problem if it is no such address, or
     * an option is unknown.
     */
    constructor(url?: string, options?: ClientOptions);
    /** What the connection does now. It is `idle` without subscriptions, when nothing was published for ten seconds. */
    get state(): State;
    /** Calls `listener` with each new state. Returns a function that stops it. */
    onState: (listener: (state: State) => void) => (() => void);
    /**
     * Subscribes to topics and patterns: as an async iterable, or with a callback for each item.
     * An item is a message, or a gap where messages are lost: test `item.gap`, which has the reason, first.
     * Throws a Problem for an invalid name, position, rate or option, and `closed` after close.
     */
    subscribe<T = any>(topics: string | string[], options?: SubscribeOptions | ((item: Item<T>) => void), callback?: (item: Item<T>) => void): Subscription<T>;
    /**
     * Loads the state of a topic, then yields every message after it; on a gap it loads the state
     * again, but not on `conflated`, which only `maxRate` asks for. What `load` throws ends the iteration.
     */
    follow<T = any>(topic: string, { load, ...rest }: FollowOptions): AsyncIterableIterator<Message<T>, void, void>;
    /** @internal With `turn` it yields what `turn` makes of each message, and of undefined after each load. */
    follow<T>(topic: string, options: FollowOptions, turn: (m?: Message) => T): AsyncIterableIterator<T, void, void>;
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
    /**
     * Publishes messages, in order. Resolves to a result for each: test `problem` first, since the
     * mistake in one message does not stop the others. Of a generator it takes the next message when
     * fewer than 500 of its messages wait. When `signal` aborts, or the client is closed, it takes no
     * more, and the results are of those that it took.
     */
    publishMany(messages: Iterable<Publication>, options?: {
        signal?: AbortSignal;
    }): Promise<PublishResult[]>;
    /**
     * Reads the newest messages of a topic, or with `before` those just before that position. Retries
     * until `signal` aborts. Rejects with a Problem.
     */
    history<T = any>(topic: string, options?: HistoryOptions): Promise<HistoryPage<T>>;
    /**
     * Who is on a topic, as a list that stays right: with a callback for each change, or as an async
     * iterable of the changes. Needs the right `presence`.
     */
    presence(topic: string, options?: PresenceOptions | ((change: Change) => void), onChange?: (change: Change) => void): Presence;
    /** Ends all subscriptions, the connection, and what waits to be published. */
    close(): void;
    /** @internal Tries until something is returned. Throws what the server refuses for good. */
    retry<T>(attempt: () => Promise<T | false | undefined>, signal?: AbortSignal): Promise<T>;
}
