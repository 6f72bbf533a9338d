import { Http } from "./http.js";
import { Session, State } from "./session.js";
import { Problem } from "./wire.js";
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
export type PublishResult = (Published & {
    problem?: undefined;
}) | {
    problem: Problem;
    position?: undefined;
    time?: undefined;
};
export declare class Publisher {
    #private;
    constructor(http: Http, session: () => Session | undefined, 
    /** Hears how publishing goes; undefined: nothing was published lately. */
    onState: (state?: State) => void);
    /** `ago`: for how many milliseconds the message may have been sent under its key. It is repeated only while the server remembers that. */
    publish(topic: string, payload: unknown, options?: PublishOptions, ago?: number): Promise<Published>;
    /** Publishes messages in order, and takes the next one when few of them wait. */
    publishMany(messages: Iterable<Publication>, options?: {
        signal?: AbortSignal;
    }): Promise<PublishResult[]>;
    /** Reports whether this client published the message. */
    isOwn: ({ id }: {
        id?: string;
        gap?: unknown;
    }) => boolean;
    /** Tries at once what waits. */
    retry: () => void;
    /** Fails what waits. */
    close(): void;
}
