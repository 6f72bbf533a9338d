// The vectors of pkg/wire/testdata, compared as JavaScript values.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { source } from "./source.mjs";

const { checkName, checkTopic, nameOf, parseFrame, parsePosition } = await source("wire");

const vectors = async (name) => JSON.parse(await readFile(new URL(`../../wire/testdata/${name}.json`, import.meta.url), "utf8"));

// The vectors with numbers that JSON.parse does not keep, and these numbers.
const lossy = { "JSON numbers as published": ["1e400", "123456789012345678901234567890"] };

test("topics", async () => {
  const { valid, reserved, invalid } = await vectors("topics");
  assert.ok(valid.length && reserved.length && invalid.length);
  for (const name of [...valid, ...reserved]) checkTopic(name);
  for (const name of invalid) assert.throws(() => checkTopic(name), { code: "invalid_topic" }, JSON.stringify(name));
});

test("positions", async () => {
  const { positions, invalid_positions } = await vectors("positions");
  assert.ok(positions.length && invalid_positions.length);
  for (const { text, ...parts } of positions) assert.deepEqual(parsePosition(text), parts);
  for (const text of invalid_positions) assert.throws(() => parsePosition(text), /./, JSON.stringify(text));
});

test("starts", async () => {
  const { starts } = await vectors("positions");
  assert.ok(starts.length);
  for (const { text, topic, from, ...rest } of starts) {
    assert.equal(nameOf(text), topic);
    checkName(nameOf(text));
    if (from === "position") assert.deepEqual(parsePosition(text), { topic, ...rest });
  }
});

test("frames", async () => {
  const seen = new Set();
  for (const { name, line, content } of await vectors("frames")) {
    seen.add(content?.kind ?? "refused");
    if (!content) assert.throws(() => parseFrame(line), /./, name);
    else if (content.kind in (parseFrame(line) ?? {})) control(parseFrame(line)[content.kind], content, name);
    else assert.deepEqual(known(parseFrame(line)), wanted(content), name);
  }
  assert.deepEqual([...seen].sort(), ["done", "end", "gap", "heartbeat", "hello", "message", "moved", "refused"]);
});

test("the numbers that JSON.parse does not keep are listed", async () => {
  const found = {};
  for (const { name, content } of await vectors("frames")) {
    const lost = numbers(content?.json ?? "").filter((n) => decimal(n) !== decimal(String(Number(n))));
    if (lost.length) found[name] = lost;
  }
  assert.deepEqual(found, lossy);
});

const at = (topic, { epoch, offset }) => `${topic}@${epoch}:${offset}`;

// Checks the known members of a hello, an end or a done. Unknown ones may be there.
function control(got, { kind, ...want }, name) {
  assert.equal(got.frames, want.frames, name);
  for (const [member, value] of Object.entries(want)) {
    const text = { positions: () => value.map((p) => at(p.topic, p)), position: () => at(value.topic, value) }[member];
    assert.deepEqual(got[member], text ? text() : value, name);
  }
}

// Returns a frame without the members of an item that later servers may add. One of an unknown kind says nothing.
function known(frame) {
  if (frame && !["item", "hello", "end", "reply", "done", "moved"].some((kind) => kind in frame)) return undefined;
  if (!frame?.item) return frame;
  const { gap, ...rest } = frame.item;
  if (gap) return { item: { gap: pick(gap, ["reason", "after", "detail"]), ...pick(rest, ["topic", "position"]) } };
  return { item: pick(rest, ["topic", "position", "time", "id", "key", "by", "claims", "type", "data", "text", "bytes"]) };
}

const pick = (object, names) => Object.fromEntries(names.filter((name) => name in object).map((name) => [name, object[name]]));

// Returns what parseFrame must return for a heartbeat, a gap or a message.
function wanted(c) {
  if (c.kind === "heartbeat") return undefined;
  if (c.kind === "message") return { item: message(c, at(c.topic, c)) };
  return { item: { gap: { reason: c.reason, after: at(c.topic, c.after), ...(c.detail && { detail: c.detail }) }, topic: c.topic, position: at(c.topic, c.position) } };
}

function message({ topic, time, id, key, by, claims, type, json, utf8, hex }, position) {
  const all = { topic, position, time, id, key, by, type };
  if (claims !== undefined) all.claims = JSON.parse(claims);
  if (json !== undefined) all.data = JSON.parse(json);
  if (utf8 !== undefined) all.text = utf8;
  if (hex !== undefined) all.bytes = new Uint8Array(Buffer.from(hex, "hex"));
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
}

// Returns the numbers in a JSON text, as they are written there.
function numbers(json) {
  return json.replace(/"(?:[^"\\]|\\.)*"/g, '""').match(/-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g) ?? [];
}

// Returns a decimal number in one form: two numbers are equal if their forms are.
function decimal(text) {
  const [, sign, whole, part = "", power = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(text) ?? [text, text, ""];
  const digits = (whole + part).replace(/^0+/, "");
  const short = digits.replace(/0+$/, "");
  return short ? `${sign}${short}e${Number(power) - part.length + digits.length - short.length}` : sign && whole ? "0" : sign + whole;
}
