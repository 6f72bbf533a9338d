// The committed files of dist are what the sources build, and are small.
import assert from "node:assert/strict";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { build, checkSizes, root, sizes } from "../build.mjs";

async function contents(folder) {
  const names = (await readdir(folder)).sort();
  return Object.fromEntries(await Promise.all(names.map(async (name) => [name, await readFile(join(folder, name), "utf8")])));
}

test("dist is what the sources build", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "pubsubjs-"));
  t.after(() => rm(folder, { recursive: true }));
  await build(folder);
  assert.deepEqual(await contents(join(root, "dist")), await contents(folder), "run make web, and commit dist");
});

test("a module that is too large is refused", async () => {
  const modules = await sizes(join(root, "dist"));
  checkSizes(modules);
  assert.throws(() => checkSizes(modules.map((m) => ({ ...m, bound: m.gzip - 1 }))), /Make it smaller/);
});

test("a module imports only other modules of the package, and React", async () => {
  for (const [name, text] of Object.entries(await contents(join(root, "dist")))) {
    if (!name.endsWith(".js")) continue;
    for (const [, path] of text.matchAll(/(?:\bfrom|\bimport\(?)\s*["']([^"']+)["']/g)) {
      assert.match(path, /^(\.\/(client|live|share)\.js|react)$/, name);
      assert.ok(path !== "react" || name === "react.js", `${name} imports React`);
    }
  }
});
