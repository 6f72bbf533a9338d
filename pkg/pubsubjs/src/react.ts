// Hooks for React.

import { useEffect, useRef, useState, useSyncExternalStore } from "react";
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
export function useTopic<T = any>(client: Client, topics: string | string[], options: TopicOptions = {}): TopicState<T> {
  const { keep = 100, ...rest } = options;
  const identity = JSON.stringify([topics, rest]);
  const [state, setState] = useState<TopicState<T> & { identity: string }>({ items: [], identity });
  const waiting = useRef<Item<T>[]>([]);
  useEffect(() => {
    setState({ items: [], identity });
    waiting.current = [];
    const onError = (error: Problem) => setState((s) => ({ ...s, error }));
    // Items that come together are one rendering.
    const take = (item: Item<T>) => {
      if (waiting.current.push(item) > 1) return;
      queueMicrotask(() => {
        const items = waiting.current.splice(0);
        setState((s) => ({ ...s, items: [...s.items, ...items].slice(-keep), last: items.at(-1) ?? s.last }));
      });
    };
    try {
      return client.subscribe<T>(topics, { ...rest, onError }, take).close;
    } catch (e) {
      onError(e as Problem); // thrown here, it would unmount the whole page
    }
  }, [client, identity, keep]);
  return state.identity === identity ? state : { items: [] };
}

/** The state of the connection: `connecting`, `open`, `waiting`, `closed`, or `idle` without subscriptions. */
export function useConnection(client: Client): State {
  return useSyncExternalStore(client.onState, () => client.state, () => client.state);
}
