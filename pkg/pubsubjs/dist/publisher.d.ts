import { Http } from "./http.js";
import { Session, State } from "./session.js";
import { Item } from "./wire.js";
export interface PublishOptions {
    /** The idempotency key, which subscribers see as `id`: 1 to 255 bytes of printable ASCII. Default: a new one. */
    idempotencyKey?: string;
    /** The message is not delivered when it is older, in whole seconds. */
    ttl?: number;
    /** The conflation key. */
    key?: string;
    /** The media type of a string or of bytes. Without it a payload that is not bytes is JSON. */
    type?: string;
    /** Aborts the publish. The message may have been published all the same. */
    signal?: AbortSignal;
}
export interface Published {
    position: string;
    /** Unix milliseconds. */
    time: number;
}
export declare class Publisher {
    #private;
    constructor(http: Http, session: () => Session | undefined, 
    /** Hears how publishing goes; undefined: nothing was published lately. */
    onState: (state?: State) => void);
    publish(topic: string, payload: unknown, options?: PublishOptions): Promise<Published>;
    /** Reports whether this client published the message. */
    isOwn: (item: Item) => boolean;
    /** Tries at once what waits. */
    retry: () => void;
    /** Fails what waits. */
    close(): void;
}
