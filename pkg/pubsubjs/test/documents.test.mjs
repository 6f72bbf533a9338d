// The examples in JavaScript of the documents in pkg run as they are, but for addresses.
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Daemon, Process, until } from "./daemon.mjs";

const concepts = await readFile(new URL("../../README.md", import.meta.url), "utf8");

test("the program of the concepts prints messages, and where some are missing", { timeout: 60_000 }, async () => {
  const [, program] = /^```js\n(.*?)^```/ms.exec(concepts);
  assert.ok(program.trimEnd().split("\n").length <= 12);
  const folder = await mkdtemp(join(tmpdir(), "documents-"));
  const daemon = await Daemon.start();
  const file = join(folder, "program.mjs");
  await writeFile(file, program.replaceAll("http://127.0.0.1:8080", daemon.url).replace('"pubsubjs"', JSON.stringify(new URL("../dist/client.js", import.meta.url).href)));
  await daemon.publish("chat.42", { text: "hi" }, "concepts-1");
  const node = new Process(process.execPath, [file]);
  try {
    await until(() => "a message is printed: " + node.output, () => node.output.includes("{ text: 'hi' }"));
    await daemon.crash();
    await until(() => "a gap is printed: " + node.output, () => /missing: restarted after chat\.42@\w+:1\n/.test(node.output));
  } finally {
    await node.stop("SIGKILL");
    await daemon.end();
    await rm(folder, { recursive: true });
  }
});
