import { Http } from "./http.js";
import { Item, Limits, Problem } from "./wire.js";
export type Transport = "websocket" | "stream" | "poll";
export interface State {
    /** `idle`: no subscription needs a connection. `waiting`: until the next attempt. `closed`: for good; make another client. */
    state: "idle" | "connecting" | "open" | "waiting" | "closed";
    /** The transport of an open connection. */
    transport?: Transport;
    /** Until the next attempt, in milliseconds. */
    waitMs?: number;
    /** Why the client waits, or is closed, in words. */
    reason?: string;
}
/** The state after an error. */
export declare const waiting: (ms: number, e: unknown) => State;
/** What is wanted of a name: where it begins if the session never had it, and its rate. */
export interface Want {
    from?: string[] | undefined;
    maxRate?: string | undefined;
}
/** Where a subscription gets its items from: the session of this page, or that of the tab that leads. */
export interface Feed {
    /** The newest position of each name and topic. */
    readonly heads: Map<string, string>;
    /** The names that the feed delivers now. */
    readonly served: Map<string, Want>;
    /** Takes over what the host wants now. */
    update(): void;
    /** Something happened to the network or the page: look whether the connection is alive. Until that is known, the state may be another. */
    check(unsure?: State): void;
    /** Closes the connection. With `forGood` unset, it is opened again on update. */
    leave(forGood?: boolean): void;
}
/** Who owns a feed. */
export interface Host {
    wants(): Map<string, Want>;
    /** An item of the feed, and the position of its topic before it. */
    onItem(item: Item, before?: string): void;
    /** The names began as the feed could grant it, at these positions; those of topics that the patterns match are among them. */
    onStart(granted: Map<string, Want>, positions: string[]): void;
    /** The feed left something out of the topic. */
    onLapse(topic: string): void;
    /** The server refuses the names for good. */
    onRefused(names: string[], problem: Problem): void;
    /** Something is wrong that waiting may not mend. The feed goes on. */
    onTrouble(problem: Problem): void;
    onFeed(state: State): void;
}
/** What several want together: a name begins where all want it to, and has a rate if they agree on it. */
export declare function merge(all: Iterable<[string, Want]>): Map<string, Want>;
/** Where names go on: at their positions, with those of all topics that their patterns match, else where they begin. */
export declare function resume(names: string[], positions: Map<string, string>, begin: (name: string) => string[] | undefined): string[];
interface Options {
    transports: Transport[];
    WebSocket?: typeof WebSocket | undefined;
}
export declare class Session implements Feed {
    #private;
    /** Where to begin names that were delivered before. */
    readonly heads: Map<string, string>;
    readonly served: Map<string, Want>;
    bounds?: Limits;
    constructor(http: Http, host: Host, options: Options, 
    /** Where to begin names that were delivered before. */
    heads?: Map<string, string>);
    update(): void;
    check(unsure?: State): void;
    leave(forGood?: boolean): void;
    poll(began: () => void): Promise<void>;
    stream(began: () => void): Promise<void>;
    websocket(began: () => void): Promise<void>;
}
export {};
