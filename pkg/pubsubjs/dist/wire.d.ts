import { Problem } from "./problem.js";
export { Problem };
/** A message of a topic. Exactly one of `data`, `text` and `bytes` is set, whichever the publisher chose. */
export interface Message<T = any> {
    /** Undefined in messages. */
    gap?: undefined;
    topic: string;
    /** `topic@epoch:offset`. Resume after this message with `{ from: position }`. */
    position: string;
    /** When the message was published, in Unix milliseconds. */
    time: number;
    /** A JSON payload. */
    data?: T;
    /** The payload of a text type. */
    text?: string;
    /** The payload of any other type. */
    bytes?: Uint8Array;
    /** The media type of `text` and `bytes`. */
    type?: string;
    /** The idempotency key of the publish. */
    id?: string;
    /** The conflation key. */
    key?: string;
    /** The verified subject of the publisher, if the topic tells it. An anonymous publisher has none. */
    by?: string;
    /** Public claims of the publisher's token, such as its name. */
    claims?: Record<string, unknown>;
}
/** Later servers may add reasons. */
export type GapReason = "expired" | "evicted" | "slow" | "restarted" | "conflated" | "deleted" | "forbidden" | "lost" | "unfollowed";
/** Why messages are missing, and after which one. */
export interface Gap {
    /**
     * `expired`, `evicted`, `slow`, `conflated`, `deleted`, `lost` (the server's machine crashed; messages
     * after `after` may be missing), or `restarted` (the server restarted; the same). With `unfollowed`, a
     * pattern matches more topics than fit: if `after` equals the item's `position`, nothing of the topic,
     * or of some topics of the pattern, follows until a second gap.
     */
    reason: GapReason;
    after: string;
    /** Of a topic that is forbidden: the application's own words. */
    detail?: string;
}
/** Stands where messages are missing: those after `gap.after`, up to and including `position`. */
export interface GapItem {
    gap: Gap;
    topic: string;
    position: string;
}
export type Item<T = any> = Message<T> | GapItem;
/** The bounds that the server names. Times are in milliseconds. */
export interface Limits {
    poll_timeout_ms: number;
    heartbeat_ms: number;
    unacked: number;
    idempotency_ms: number;
    [name: string]: number;
}
/** The Problem that the server sent. */
export declare const problemOf: (said: Refusal, status?: number) => Problem;
/** Throws the Problem that a value is not what it should be. */
export declare function refuse(code: string, value: unknown, what: string, right: string): never;
/** Throws a Problem if an option is none of the names: it is misspelt. */
export declare function checkOptions(options: object, names: string): void;
export interface Position {
    topic: string;
    epoch: string;
    offset: number;
}
/** Reports whether the name has a wildcard. */
export declare const isPattern: (name: string) => boolean;
/** Throws a Problem if the name is not a valid topic or, where patterns are allowed, a valid pattern. */
export declare function checkName(name: string, patterns?: boolean): void;
/** Throws a Problem if the name is not a valid topic. A pattern is not a topic. */
export declare const checkTopic: (name: string) => void;
/** Reports whether a pattern matches the topic. Every name matches itself. */
export declare function matches(pattern: string, topic: string): boolean;
/** Reads `topic@epoch:offset`. Throws a Problem if the text is not a position. */
export declare function parsePosition(text: string): Position;
/** The name that a position, or `topic@oldest`, begins with. */
export declare const nameOf: (start: string) => string;
/** Reports whether position `a` is at or before `b`: both are of one epoch, and its offset is not larger. */
export declare function covered(a: string, b: string | undefined): boolean;
/** Reports whether the server, which goes on from `at`, has forgotten a topic of which messages came up to the position `head`. */
export declare const isForgotten: (at: string, head: string) => boolean;
/**
 * Reports whether an item repeats what came up to a position. That a topic is forbidden now, or left out (a gap of no messages), is
 * news, even if no message is lost.
 */
export declare const repeats: (item: Item, at: string | undefined) => boolean;
/** Notes the position of an item. A topic that is left out gets none, because there may be many: its gap, of no messages, is the first item. */
export declare const note: (item: Item, at: Map<string, string>) => false | Map<string, string>;
/** A problem as the server sends it. */
export interface Refusal {
    code: string;
    status: number;
    detail?: string;
    remedy?: string;
    retry_after_ms?: number;
}
/** What a frame is: one of these. */
export interface Frame {
    item?: Item;
    /** `frames`: so many messages and gaps follow in this answer, if its end is to be known. */
    hello?: {
        positions: string[];
        session?: string;
        limits?: Limits;
        frames?: number;
    };
    end?: Refusal;
    reply?: {
        ref?: number;
        position?: string;
        time?: number;
        positions?: string[];
        problem?: Refusal;
    };
    done?: {
        position: string;
        more: boolean;
    };
}
/** Reads one NDJSON frame. Throws if the line is not a frame. A heartbeat, and a frame of an unknown kind, have none of the members. */
export declare function parseFrame(line: string): Frame;
/** Reads an answer: its items, and what its other frames say. */
export declare function parseAnswer(text: string): Frame & {
    items: Item[];
};
/** The message as POST /v1/messages and the `publish` command take it. Members that are undefined are left out of its JSON. */
export declare function encodeMessage(payload: any, message: {
    topic: string;
    type?: string;
    [member: string]: unknown;
}): Record<string, unknown>;
