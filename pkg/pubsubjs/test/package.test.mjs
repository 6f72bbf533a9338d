// The packed package works in an empty project, without a network.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { access, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { root } from "../build.mjs";

const run = promisify(execFile);
let project;

before(async () => {
  project = await mkdtemp(join(tmpdir(), "pubsubjs-"));
  const { stdout } = await run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", project], { cwd: root });
  const [{ filename }] = JSON.parse(stdout);
  await writeFile(join(project, "package.json"), '{"private":true,"type":"module"}');
  await run("npm", ["install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", "./" + filename], { cwd: project });
});

after(() => rm(project, { recursive: true }));

test("the package has every file that it exports, and no other module", async () => {
  const folder = join(project, "node_modules/pubsubjs");
  const { exports, dependencies } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  assert.equal(dependencies, undefined);
  for (const file of Object.values(exports).flatMap(Object.values)) await access(join(folder, file));
  await assert.rejects(access(join(folder, "src")));
  const licence = await readFile(join(root, "../../LICENSE"), "utf8");
  assert.equal(await readFile(join(folder, "LICENSE"), "utf8"), licence);
  await assert.rejects(access(join(project, "node_modules/react")), "React is optional");
});

test("Node imports it", async () => {
  await writeFile(join(project, "main.mjs"), `
    import { Client, Problem } from "pubsubjs";
    const client = new Client("http://127.0.0.1:9");
    console.log(typeof client.subscribe, new Problem("x", "y") instanceof Error);
    client.close();`);
  const { stdout } = await run(process.execPath, ["main.mjs"], { cwd: project });
  assert.equal(stdout, "function true\n");
});

// check type-checks a file of a project that uses the package.
async function check(module, moduleResolution, text) {
  await writeFile(join(project, "main.ts"), text);
  const options = { strict: true, noEmit: true, target: "es2022", module, moduleResolution, lib: ["es2022", "dom"], types: [] };
  await writeFile(join(project, "tsconfig.json"), JSON.stringify({ compilerOptions: options, files: ["main.ts"] }));
  await run(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "--project", project]);
}

const right = `
  import { Client, type Message, type Problem } from "pubsubjs";
  import { Outbox } from "pubsubjs/outbox";
  const client = new Client("https://push.example", { token: async () => "t", transports: ["stream"] });
  async function read(): Promise<string> {
    for await (const m of client.subscribe("chat.42", { from: "oldest" })) {
      if (m.gap) return m.gap.reason;
      const message: Message = m;
      console.log(message.data, message.position);
    }
    const { position } = await client.publish("chat.42", { text: "hi" }, { ttl: 5 });
    for (const r of await client.publishMany([{ topic: "chat.42", data: position, idempotencyKey: "k" }])) {
      if (r.problem) throw r.problem;
      console.log(r.position, r.time);
    }
    const { items, before, more, next } = await client.history<{ text: string }>("chat.42", { limit: 5, before: position });
    const last: Message<{ text: string }> | undefined = items.find((m) => !m.gap);
    client.subscribe("chat.42", { from: more ? next : { newest: 5 } }).close();
    for await (const m of client.follow("chat.42", { load: async (at, gap, signal) => (await client.history("chat.42", { signal })).next })) return m.text!;
    const who = client.presence("chat.42", ({ event, member }) => console.log(event, member?.claims, who.count, before, last?.data?.text));
    for await (const { event } of who) return event;
    return position;
  }
  read().catch((err: Problem) => console.log(err.code, err.remedy));
  const outbox = new Outbox(client, { subject: "ann", onFailed: (m, problem) => console.log(m.topic, m.time, problem.code) });
  const id: Promise<string> = outbox.publish("chat.42", { text: "hi" }, { key: "k" });
  id.then(() => outbox.close());
  const stop: () => void = client.onState((s) => console.log(s.state, s.waitMs));
  stop();`;

for (const [module, resolution] of [["nodenext", "nodenext"], ["esnext", "bundler"]]) {
  test(`TypeScript knows its types with ${resolution}`, async () => {
    await check(module, resolution, right);
    await assert.rejects(check(module, resolution, right.replace('"oldest"', "17")), "the types are checked");
    await assert.rejects(check(module, resolution, right.replace("client.publish", "client.shout")));
    await assert.rejects(check(module, resolution, right.replace("idempotencyKey", "id")));
    await assert.rejects(check(module, resolution, right.replace('subject: "ann", ', "")), "an outbox is of a subject");
  });
}
