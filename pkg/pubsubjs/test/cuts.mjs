// Cuts the connections of clients in Node while a publisher goes on, and accounts for
// every message. `node test/cuts.mjs 10000` makes that many cuts.
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import WebSocket from "ws";
import { Client } from "../dist/client.js";
import { Cutter } from "./cutter.mjs";
import { Daemon, until } from "./daemon.mjs";

// How often each fault is chosen, of 100. A silent death takes seconds to notice.
const mix = [["mid-frame", 50], ["close", 20], ["reset", 29], ["silent", 1]];

function anyFault() {
  let at = Math.random() * 100;
  return mix.find(([, share]) => (at -= share) < 0)?.[0] ?? "close";
}

// A subscriber checks messages that are numbered 1, 2, 3, … as they arrive.
class Subscriber {
  constructor(url, transport) {
    Object.assign(this, { transport, last: 0, delivered: 0, gaps: 0, repeated: 0, disordered: 0, skipped: new Set() });
    this.client = new Client(url, { transports: [transport], WebSocket });
    this.subscription = this.client.subscribe("cuts", { from: "oldest" }, (m) => this.take(m));
  }

  take(m) {
    if (m.gap) return void this.gaps++;
    const { n } = m.data;
    this.delivered++;
    if (n <= this.last) this[this.skipped.delete(n) ? "disordered" : "repeated"]++;
    for (let missing = this.last + 1; missing < n; missing++) this.skipped.add(missing);
    this.last = Math.max(this.last, n);
  }

  get lost() {
    return this.skipped.size;
  }
}

/** Makes so many cuts. Returns the counts of each transport, the cuts by fault, and the number of messages. */
export async function campaign(cuts, subscribers = 48) {
  const daemon = await Daemon.start();
  const cutter = await Cutter.start(daemon.port);
  const all = Array.from({ length: subscribers }, (_, i) => new Subscriber(cutter.url, ["websocket", "stream", "poll"][i % 3]));
  let messages = 0;
  const made = () => Object.values(cutter.broken).reduce((a, b) => a + b, 0);
  try {
    let over = false;
    const publishing = (async () => {
      for (; !over; await sleep(4)) await daemon.publish("cuts", { n: ++messages }, "cut-" + messages);
    })();
    await until("all subscribers are there", () => all.every((s) => s.delivered));
    // A connection lives for about half a second: clients that never live longer back off.
    for (; made() < cuts; await sleep(10)) {
      const open = [...cutter.pairs].filter((pair) => !pair.fault);
      if (open.length) cutter.break(anyFault(), [open[Math.floor(Math.random() * open.length)]]);
    }
    over = true;
    await publishing;
    await until(() => `all subscribers have message ${messages}: ${all.map((s) => `${s.transport} ${s.last}`)}`, () => all.every((s) => s.last === messages), 60_000);
  } finally {
    for (const s of all) s.client.close();
    await cutter.end();
    await daemon.end();
  }
  return { messages, cuts: cutter.broken, made: made(), subscribers: all };
}

/** Returns the sum of a count over subscribers. */
export const sum = (subscribers, name) => subscribers.reduce((n, s) => n + s[name], 0);

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { messages, cuts, made, subscribers } = await campaign(Number(process.argv[2] ?? 10_000));
  console.log(`${made} cuts ${JSON.stringify(cuts)}, ${messages} messages to ${subscribers.length} subscribers`);
  for (const transport of ["websocket", "stream", "poll"]) {
    const some = subscribers.filter((s) => s.transport === transport);
    console.log(transport.padEnd(10) + ["delivered", "gaps", "lost", "repeated", "disordered"].map((name) => `${sum(some, name)} ${name}`).join(", "));
  }
  if (["gaps", "lost", "repeated", "disordered"].some((name) => sum(subscribers, name))) process.exitCode = 1;
}
