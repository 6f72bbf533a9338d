import type { Client, Item, Problem, State, SubscribeOptions } from "./client.js";
export interface TopicState<T = any> {
    /** The newest items, oldest first: messages and gaps. */
    items: Item<T>[];
    /** The newest item. */
    last?: Item<T> | undefined;
    /** Why the subscription was refused, by the server or for an invalid name. */
    error?: Problem | undefined;
}
export interface TopicOptions extends Pick<SubscribeOptions, "from" | "maxRate" | "echo"> {
    /** How many items to keep. Default: 100. */
    keep?: number;
}
/**
 * Subscribes a component to topics and patterns while it is mounted. With another client, other
 * topics or other options it begins anew, without items. Make the client outside of components.
 */
export declare function useTopic<T = any>(client: Client, topics: string | string[], options?: TopicOptions): TopicState<T>;
/** The state of the connection: `connecting`, `open`, `waiting`, `closed`, or `idle` without subscriptions. */
export declare function useConnection(client: Client): State;
