// State of the server that a page shows: a page of history, and who is on a topic. Loaded when
// the client first needs it.

import type { Client, Gap, Item, Message, Problem } from "./client.js";
import { closing, tell } from "./subscription.js";
import { checkOptions, checkTopic, parseAnswer, parsePosition } from "./wire.js";

export interface HistoryOptions {
  /** Reads the messages before this position: `before` of the page after them. Default: the newest. */
  before?: string | undefined;
  /** At most so many messages: 1 to 1000. Default: 100. */
  limit?: number | undefined;
  /** Ends the wait: rejects with `aborted`. */
  signal?: AbortSignal | undefined;
}

/** A page of history. */
export interface HistoryPage<T = any> {
  /** In ascending order, with gaps among them. */
  items: Item<T>[];
  /** Give it as `before` for the page of older messages. Undefined: the topic does not exist. */
  before?: string | undefined;
  /** Older messages are held. */
  more: boolean;
  /** Give it as `from` to subscribe after the newest page, or return it from `load` of follow. */
  next: string;
}

/** A subject and the `client` that its session named. All its sessions with this name are one member. */
export interface Member {
  key: string;
  /** The verified subject. */
  subject?: string;
  client?: string;
  /** Public claims of the member's token, such as its name. */
  claims?: Record<string, unknown>;
  /** When the member came, in Unix milliseconds. */
  since?: number;
}

/**
 * `list`: the list was read, at the beginning or after a gap; look at `members`. `join`: `member`
 * came, or its claims were renewed (it has the same `since`). `leave`: `member` went. `count`: only
 * the counts are others.
 */
export interface Change {
  event: "list" | "join" | "leave" | "count";
  /** Of a join and a leave. */
  member?: Member | undefined;
}

export interface PresenceOptions {
  /** Ends the list. */
  signal?: AbortSignal | undefined;
  /** With a callback: why the server refuses the list, which has ended. Default: console.error. An iteration throws it instead. */
  onError?: ((problem: Problem) => void) | undefined;
}

/**
 * Who is on a topic now, and an async iterable of the changes. The list is what it was after the
 * last change that the callback or the loop got; without either it stays empty.
 */
export interface Presence extends AsyncIterable<Change> {
  /** By key, in the order in which they came. Always the same Map. Above 500 members: 500 of them. */
  readonly members: Map<string, Member>;
  /** The number of members. */
  readonly count: number;
  /** Subscribers without a subject and a client. */
  readonly anonymous: number;
  /** False before the first list, and while the topic has too many members: then only the counts are kept. */
  readonly exact: boolean;
  close(): void;
}

interface Counts {
  count: number;
  anonymous: number;
  exact: boolean;
}

/** The answer of the server. */
interface List extends Counts {
  position: string;
  members: Member[];
}

const timeout = 30_000;

/** Reads a page of history. */
export async function readPage(client: Client, topic: string, options: HistoryOptions = {}): Promise<HistoryPage> {
  checkTopic(topic);
  checkOptions(options, "before, limit, signal");
  const { before, limit = 100, signal } = options;
  if (before) parsePosition(before);
  const query = before ? `before=${before}&limit=${limit}` : `newest=${limit}`;
  const request = { as: "text", signal, timeout } as const;
  try {
    return await client.retry(async () => {
      const { done, items } = parseAnswer(await client.http.ask(`/v1/topics/${topic}/messages?${query}`, request));
      // Without done the answer was cut.
      return done && { items, before: done.position, more: done.more, next: (items.at(-1) ?? done).position };
    }, signal);
  } catch (e) {
    if ((e as Problem).code !== "topic_unknown") throw e;
    return { items: [], more: false, next: "oldest" };
  }
}

/**
 * Keeps a list, and yields its changes: to the callback if there is one. The list is read at the
 * beginning and after each gap but `conflated`, of which the newest message of each member is enough.
 */
export function watch(
  client: Client,
  list: Presence & Counts,
  topic: string,
  options: PresenceOptions | ((change: Change) => void) = {},
  onChange?: (change: Change) => void,
): AsyncIterableIterator<Change, void, void> {
  if (typeof options === "function") return watch(client, list, topic, {}, options);
  const { signal, onError = console.error } = options;
  const { members } = list;
  const setCounts = ({ count, anonymous, exact }: Counts) => void Object.assign(list, { count, anonymous, exact });
  const load = (_: string, __: Gap | undefined, signal: AbortSignal) =>
    client.retry(async () => {
      const read: List = await client.http.ask(`/v1/topics/${topic}/presence`, { signal, timeout });
      members.clear();
      for (const member of read.members) members.set(member.key, member);
      setCounts(read);
      return read.position;
    }, signal);
  const turn = (m?: Message): Change => {
    if (!m) return { event: "list" };
    const { event, ...said } = m.data;
    if (event === "count") {
      setCounts(said);
      return { event };
    }
    const key = m.key!;
    const member = (event === "leave" && members.get(key)) || { key, ...said };
    if (event === "join") members.set(key, member);
    else if (event === "leave") members.delete(key);
    list.count = members.size;
    return { event, member };
  };
  const tracked = client.follow("_presence." + topic, { load, signal }, turn);
  const items = async function* (): AsyncGenerator<Change, void, void> {
    checkTopic(topic);
    checkOptions(options, "signal, onError");
    yield* tracked;
  };
  const changes = closing(items(), () => void tracked.return!());
  const run = async (onChange: (change: Change) => void) => {
    for await (const change of changes) void tell(onChange, change);
  };
  if (onChange) run(onChange).catch((e) => tell(onError, e));
  return changes;
}
