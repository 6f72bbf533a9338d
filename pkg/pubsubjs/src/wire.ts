// The words of pkg/wire/PROTOCOL.md: topics, positions, frames and problems.

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
export const problemOf = (said: Refusal, status = said.status) => new Problem(said.code, said.detail ?? said.code, status, said);

const quote = (text: unknown) => JSON.stringify(String(text).slice(0, 64));

/** Throws the Problem that a value is not what it should be. */
export function refuse(code: string, value: unknown, what: string, right: string): never {
  throw new Problem("invalid_" + code, `${quote(value)} is not ${what}: use ${right}`);
}

/** Throws a Problem if an option is none of the names: it is misspelt. */
export function checkOptions(options: object, names: string): void {
  for (const name in options) names.split(", ").includes(name) || refuse("request", name, "an option", names);
}

export interface Position {
  topic: string;
  epoch: string;
  offset: number;
}

/** Reports whether the name has a wildcard. */
export const isPattern = (name: string) => /[*>]/.test(name);

// The bounds of a presence topic, 16 segments and 255 characters, are those of the topic that it is about.
const validName = /^(_presence\.)?(?!.{256})(([\w-]+|\*)\.){0,15}([\w-]+|\*|>)$/;

/** Throws a Problem if the name is not a valid topic or, where patterns are allowed, a valid pattern. */
export function checkName(name: string, patterns = true): void {
  if (typeof name !== "string" || !validName.test(name) || (!patterns && isPattern(name))) refuse("topic", name, "a topic", "letters, digits, -, _ and dots; only subscribe takes * and >");
}

/** Throws a Problem if the name is not a valid topic. A pattern is not a topic. */
export const checkTopic = (name: string) => checkName(name, false);

/** Reports whether a pattern matches the topic. Every name matches itself. */
export function matches(pattern: string, topic: string): boolean {
  const want = pattern.split(".");
  const got = topic.split(".");
  if (topic[0] === "_" && isPattern(want[0]!)) return false;
  return want.every((t, i) => (t === ">" ? got.length > i : i < got.length && (t === "*" || t === got[i])))
    && (want.length === got.length || want.at(-1) === ">");
}

/** Reads `topic@epoch:offset`. Throws a Problem if the text is not a position. */
export function parsePosition(text: string): Position {
  const [, topic, epoch, digits] = /^([^@]*)@([0-9a-z]{1,16}):(0|[1-9]\d{0,15})$/.exec(text) ?? [];
  const offset = +digits!;
  if (!(offset < 2 ** 53)) refuse("position", text, "a position", 'topic@epoch:offset, "now", "oldest" or {newest: 50}');
  checkName(topic!);
  return { topic: topic!, epoch: epoch!, offset };
}

/** The name that a position, or `topic@oldest`, begins with. */
export const nameOf = (start: string) => start.split("@", 1)[0]!;

/** Reports whether position `a` is at or before `b`: both are of one epoch, and its offset is not larger. */
export function covered(a: string, b: string | undefined): boolean {
  if (!b) return false;
  const x = parsePosition(a);
  const y = parsePosition(b);
  return x.epoch === y.epoch && x.offset <= y.offset;
}

/** Reports whether the server, which goes on from `at`, has forgotten a topic of which messages came up to the position `head`. */
export const isForgotten = (at: string, head: string) => at !== head && /:0$/.test(at);

/**
 * Reports whether an item repeats what came up to a position. That a topic is forbidden now, or left out (a gap of no messages), is
 * news, even if no message is lost.
 */
export const repeats = (item: Item, at: string | undefined) => item.gap?.reason !== "forbidden" && item.gap?.after !== item.position && covered(item.position, at);

/** Notes the position of an item. A topic that is left out gets none, because there may be many: its gap, of no messages, is the first item. */
export const note = (item: Item, at: Map<string, string>) => (item.gap?.after !== item.position || at.has(item.topic)) && at.set(item.topic, item.position);

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
  hello?: { positions: string[]; session?: string; limits?: Limits; frames?: number };
  end?: Refusal;
  reply?: { ref?: number; position?: string; time?: number; positions?: string[]; problem?: Refusal };
  done?: { position: string; more: boolean };
}

/** Reads one NDJSON frame. Throws if the line is not a frame. A heartbeat, and a frame of an unknown kind, have none of the members. */
export function parseFrame(line: string): Frame {
  if (!line.trim()) return {};
  const f = JSON.parse(line);
  const valid = (ok: unknown) => {
    if (!ok) throw new Problem("invalid_frame", "not a frame: " + quote(line));
  };
  valid(/^\s*{/.test(line) && [f.hello, f.end, f.done, f.gap, f.position].filter((kind) => kind).length < 2);
  if (f.gap) {
    const { topic, position, ...gap } = f.gap;
    valid(gap.reason && parsePosition(gap.after).topic === topic && parsePosition(position).topic === topic);
    return { item: { gap, topic, position } };
  }
  if (f.done) parsePosition(f.done.position);
  if (!f.position) return f;
  const { base64, ...item } = f;
  item.topic = parsePosition(f.position).topic;
  if (base64 !== undefined) item.bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const payloads = [item.data, item.text, item.bytes].filter((x) => x !== undefined);
  valid(payloads.length === 1 && (item.data === undefined) === !!item.type && +item.time === item.time);
  return { item };
}

/** Reads an answer: its items, and what its other frames say. */
export function parseAnswer(text: string): Frame & { items: Item[] } {
  const frames = text.split("\n").map(parseFrame);
  return Object.assign({}, ...frames, { items: frames.flatMap((f) => f.item ?? []) });
}

/** The name of a kind of values, such as Array, Null or Blob, also for those of another frame of the page. */
const kindOf = (value: unknown) => ({}).toString.call(value).slice(8, -1);

/** The message as POST /v1/messages and the `publish` command take it. Members that are undefined are left out of its JSON. */
export function encodeMessage(payload: any, message: { topic: string; type?: string; [member: string]: unknown }): Record<string, unknown> {
  checkTopic(message.topic);
  const { type } = message;
  if (ArrayBuffer.isView(payload) || /ArrayBuffer/.test(kindOf(payload))) {
    const bytes = new Uint8Array(payload.buffer ?? payload, payload.byteOffset, payload.byteLength);
    const base64 = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
    return { ...message, type: type ?? "application/octet-stream", base64 };
  }
  let wrong = payload; // the value that JSON.stringify took last, which is at fault if it throws
  // JSON.stringify makes {} of a Map or a Blob.
  const check = (_: string, value: unknown) => {
    wrong = value;
    if (typeof value === "object" && !/^(Object|Array|Null)$/.test(kindOf(value))) throw value;
    return value;
  };
  try {
    if (typeof (type ? payload : JSON.stringify(payload, check)) === "string") return { ...message, [type ? "text" : "data"]: payload };
  } catch {} // a BigInt, a cycle, or a toJSON that throws
  refuse("body", kindOf(wrong), "a payload", "JSON, a string with a type, or an ArrayBuffer");
}
