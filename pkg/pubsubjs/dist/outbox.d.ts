import { Problem, type Client, type Published, type PublishOptions } from "./client.js";
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
/**
 * Sends messages in order, each once, even if the page ends before the server has them. Make one
 * for each user. It ends with its client, or with `close`; what is stored stays. In Node, and in
 * pages without Web Locks or IndexedDB, the constructor throws the Problem `storage_failed`.
 */
export declare class Outbox {
    #private;
    constructor(client: Client, options: OutboxOptions);
    /**
     * Stores a message, and resolves to its id when the browser has it on disk. The payload is that of
     * `client.publish`. Rejects with a Problem if it is invalid; `queue_full` if the outbox or the disk
     * is full; `storage_failed`; or `closed`.
     */
    publish(topic: string, data: unknown, options?: OutboxPublishOptions): Promise<string>;
    /** The messages that wait, oldest first. */
    pending(): Promise<OutboxMessage[]>;
    /** Deletes the messages that wait, for example when a user logs out. One that is being sent may be published. */
    clear(): Promise<void>;
    /** Sends nothing more, and lets another tab send. What is stored stays. */
    close(): void;
}
