// Who is on a topic, by follow: it loads the list first, and again after a gap.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Client } from "../dist/client.js";
import { Daemon, until } from "./daemon.mjs";

let daemon;

before(async () => {
  Object.assign(process.env, { PUBSUBD_TOPICS_CHAT_PATTERN: "chat.*", PUBSUBD_TOPICS_CHAT_PRESENCE: "true", PUBSUBD_TOPICS_CHAT_PRESENCE_GRACE: "100ms" });
  daemon = await Daemon.start();
});

after(() => daemon.end());

/** Opens a stream of the topic for the client of this name. Returns a function that closes it. */
async function come(name) {
  const leave = new AbortController();
  await fetch(`${daemon.url}/v1/poll?topic=chat.42&client=${name}&mode=stream`, { signal: leave.signal });
  return () => leave.abort();
}

test("a page always has the list of who is on a topic", { timeout: 60_000 }, async () => {
  const client = new Client(daemon.url);
  let members;
  const load = async () => {
    const list = await (await fetch(daemon.url + "/v1/topics/chat.42/presence")).json();
    members = new Map(list.members.map((m) => [m.key, m]));
    return list.position;
  };
  void (async () => {
    for await (const { key, data } of client.follow("_presence.chat.42", { load }))
      data.event === "join" ? members.set(key, data) : members.delete(key);
  })();
  const has = (...names) => until(() => `${[...members.keys()]} are ${names}`, () => members && [...members.keys()].sort().join() === names.map((n) => "/" + n).join());
  const annGoes = await come("ann");
  await has("ann");
  await come("bob");
  await has("ann", "bob");
  await annGoes();
  await has("bob");
  assert.equal(members.get("/bob").client, "bob");
  await daemon.crash();
  await has();
  await come("cat");
  await has("cat");
  client.close();
});
