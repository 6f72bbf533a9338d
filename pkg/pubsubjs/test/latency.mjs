// Measures the time from publish in one tab to the callback in another, on each transport,
// beside the round trip of a bare WebSocket. `node test/latency.mjs 1000` sends that many messages.
import { once } from "node:events";
import { WebSocketServer } from "ws";
import { itemsOf, openPage, servePage, startBrowser } from "./browser.mjs";
import { Daemon, until } from "./daemon.mjs";
import { table, transports } from "./matrix.mjs";

const count = Number(process.argv[2] ?? 500);
const pause = 20; // milliseconds between two messages

function row(name, times) {
  times.sort((a, b) => a - b);
  const at = (q) => times[Math.min(times.length - 1, Math.floor(times.length * q))].toFixed(2);
  return [name, times.length, at(0.5).padStart(9), at(0.99).padStart(9)];
}

async function echo(tab) {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1", perMessageDeflate: false });
  server.on("connection", (socket) => socket.on("message", (text) => socket.send(text.toString())));
  await once(server, "listening");
  const times = await tab.evaluate(async ({ port, count, pause }) => {
    const socket = new WebSocket(`ws://127.0.0.1:${port}`);
    await new Promise((open) => (socket.onopen = open));
    const times = [];
    for (let i = 0; i < count; i++) {
      const sent = performance.now();
      const answered = new Promise((done) => (socket.onmessage = done));
      socket.send(JSON.stringify({ i }));
      await answered;
      times.push(performance.now() - sent);
      await new Promise((done) => setTimeout(done, pause));
    }
    return times;
  }, { port: server.address().port, count, pause });
  server.close();
  return times;
}

async function publishing(publisher, subscriber, url, transport) {
  const topic = "latency." + transport.toLowerCase();
  await publisher.evaluate((how) => follow(how), { url, topic: topic + ".own", transport: transport === "EventSource" ? "stream" : transport });
  await subscriber.evaluate(async (how) => {
    const take = items.push.bind(items);
    window.items.push = (item) => take({ ...item, took: performance.timeOrigin + performance.now() - item.data?.sent });
    await follow(how);
  }, { url, topic, transport });
  await publisher.evaluate(async ({ topic, count, pause }) => {
    for (let i = 0; i < count; i++) {
      await client.publish(topic, { sent: performance.timeOrigin + performance.now() });
      await new Promise((done) => setTimeout(done, pause));
    }
  }, { topic, count, pause });
  await until("all messages arrive", async () => (await itemsOf(subscriber)).length >= count);
  return (await itemsOf(subscriber)).map((item) => item.took).slice(count / 10); // without the warm-up
}

const [browser, other, daemon] = await Promise.all([startBrowser(), servePage(), Daemon.start({ "cors-origins": "*" })]);
try {
  const rows = [["", "messages", "median ms", "   p99 ms"]];
  for (const transport of transports) {
    const context = await browser.newContext();
    const [publisher, subscriber] = [await openPage(context, other.url), await openPage(context, other.url)];
    rows.push(row(transport, await publishing(publisher, subscriber, daemon.url, transport)));
    if (transport === transports.at(-1)) rows.push(row("WebSocket echo", await echo(publisher)));
    await context.close();
  }
  console.log(table(rows));
} finally {
  await browser.close();
  other.end();
  await daemon.end();
}
