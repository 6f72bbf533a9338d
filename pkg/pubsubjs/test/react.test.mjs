// A component shows what it follows, and a name that nobody can follow does not take the page away.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { noBrowser, servePage, startBrowser } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";

const skip = await noBrowser();
const app = `
  import React, { StrictMode, useState } from "react";
  import { createRoot } from "react-dom/client";
  import { Client } from "./dist/client.js";
  import { useConnection, useTopic } from "./dist/react.js";

  const client = new Client(window.url);
  const show = React.createElement;
  function Room({ topic }) {
    const { items, last, error } = useTopic(client, topic, { from: "oldest", keep: 2 });
    const words = [useConnection(client).state, error?.code, last?.data, ...items.map((m) => m.gap?.reason ?? m.data)];
    return show("p", null, words.filter(Boolean).join(" "));
  }
  function App() {
    const [topic, setTopic] = useState("room.1");
    window.setTopic = setTopic;
    return topic && show(Room, { topic });
  }
  window.publish = (topic, data) => client.publish(topic, data);
  createRoot(document.body).render(show(StrictMode, null, show(App)));
`;

let daemon, pages, browser;
before(async () => {
  if (skip) return;
  pages = await servePage();
  daemon = await Daemon.start({ "cors-origins": pages.url });
  browser = await startBrowser();
});
after(() => Promise.all([browser?.close(), daemon?.end(), pages?.end()]));

test("a component shows the newest items, another topic, and why a topic is refused", { skip }, async () => {
  const resolveDir = new URL("..", import.meta.url).pathname;
  const { outputFiles } = await build({ stdin: { contents: app, resolveDir }, bundle: true, format: "esm", write: false, define: { "process.env.NODE_ENV": '"development"' }, external: ["./share.js"] });
  const tab = await browser.newPage();
  const problems = [];
  tab.on("pageerror", (err) => problems.push(String(err)));
  await tab.goto(pages.url);
  await tab.evaluate((url) => (window.url = url), daemon.url);
  await tab.addScriptTag({ type: "module", content: outputFiles[0].text });
  const shows = (text) => tab.waitForFunction((t) => document.body.innerText === t, text, { timeout: 10_000 });
  await shows("open");
  for (const word of ["one", "two", "three"]) await tab.evaluate((w) => publish("room.1", w), word);
  await shows("open three two three");
  await tab.evaluate(() => setTopic("no topic"));
  await tab.waitForFunction(() => document.body.innerText.includes("invalid_topic"), null, { timeout: 10_000 });
  await tab.evaluate(() => setTopic("room.1"));
  await shows("open three two three");
  // StrictMode mounts each component twice: one subscription is left, and none after the end.
  const subscriptions = async () => (await (await fetch(daemon.url + "/v1/topics/room.1")).json()).subscriptions;
  assert.equal(await subscriptions(), 1);
  await tab.evaluate(() => setTopic(""));
  await until("the topic is left", async () => (await subscriptions()) === 0);
  assert.deepEqual(problems, []);
});
