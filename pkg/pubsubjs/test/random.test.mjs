// Subscriptions that come and go at random, on each transport, while connections are cut:
// every subscription has all messages of its topics from where it began, once and in order.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import WebSocket from "ws";
import { Client } from "../dist/client.js";
import { Cutter } from "./cutter.mjs";
import { Daemon, until } from "./daemon.mjs";

const topics = ["f.a", "f.b", "f.c", "f.d", "g.a"];
const choices = ["f.a", "f.b", "f.c", "g.a", "f.*", "*.a", ">", ["f.a", "f.b"], ["f.*", "f.a"], ["g.a", "f.>"]];
const pick = (list) => list[Math.floor(Math.random() * list.length)];
const offset = (position) => Number(/\d+$/.exec(position)[0]);

// A watcher checks what one subscription gets.
class Watcher {
  constructor(client, names, options, callback) {
    Object.assign(this, { names, options, last: new Map(), log: [] });
    for (const at of Array.isArray(options.from) ? options.from : []) this.last.set(at.split("@")[0], offset(at));
    if (callback) this.subscription = client.subscribe(names, options, (m) => this.take(m));
    else {
      this.subscription = client.subscribe(names, options);
      this.loop = this.iterate();
    }
    void this.subscription.started.then((positions) => positions.forEach((at) => this.begins(at)));
  }

  async iterate() {
    for await (const m of this.subscription) {
      this.take(m);
      if (Math.random() < 0.05) await sleep(Math.random() * 20);
    }
  }

  begins(at) {
    const topic = at.split("@")[0];
    if (!this.last.has(topic)) this.last.set(topic, offset(at));
  }

  take(m) {
    this.log.push(m.position);
    assert.ok(!m.gap, JSON.stringify(m));
    const [at, last] = [offset(m.position), this.last.get(m.topic)];
    if (last !== undefined) assert.equal(at, last + 1, `${m.topic}: ${at} after ${last}: ${JSON.stringify([this.names, this.options])} ${this.log.slice(-5)}`);
    else if (this.options.from === "oldest") assert.equal(at, 1, `${m.topic} begins at ${at}`);
    this.last.set(m.topic, at);
  }
}

for (const transports of [["websocket"], ["stream"], ["poll"]]) {
  test(`subscriptions come and go at random over ${transports} while connections are cut`, async () => {
    const daemon = await Daemon.start();
    const cutter = await Cutter.start(daemon.port);
    const client = new Client(cutter.url, { WebSocket, transports });
    const errors = [];
    const listener = (e) => errors.push(e);
    process.on("unhandledRejection", listener);
    const live = [];
    const heads = new Map();
    try {
      let over = false;
      const publishing = (async () => {
        for (let n = 0; !over; n++) {
          const topic = pick(topics);
          heads.set(topic, offset(await daemon.publish(topic, n, "n" + n)));
          if (n % 4 === 0) await sleep(2);
        }
      })();
      for (const end = Date.now() + 5_000; Date.now() < end && !errors.length; await sleep(Math.random() * 30)) {
        const dice = Math.random();
        if (dice < 0.1) cutter.break(pick(["mid-frame", "reset", "close"]));
        else if (dice < 0.45 && live.length > 2) {
          const [gone] = live.splice(Math.floor(Math.random() * live.length), 1);
          gone.subscription.close();
          // Another goes on where it ended, at once or later.
          if (Math.random() < 0.7) {
            const from = gone.subscription.positions;
            if (Math.random() < 0.5) await sleep(Math.random() * 20);
            if (from.length) live.push(new Watcher(client, gone.names, { from }, Math.random() < 0.5));
          }
        } else if (live.length < 12) live.push(new Watcher(client, pick(choices), { from: pick(["oldest", undefined]) }, Math.random() < 0.5));
      }
      over = true;
      await publishing;
      const matching = (w, topic) => [w.names].flat().some((n) => n === ">" || n === topic || (n === "*.a" && topic.endsWith(".a")) || (/^f\.[*>]$/.test(n) && topic.startsWith("f.")));
      const behind = () => live.flatMap((w) => [...heads].filter(([t, head]) => matching(w, t) && w.last.has(t) && w.last.get(t) < head).map(([t, head]) => `${JSON.stringify([w.names, w.options])} ${t} ${w.last.get(t)} of ${head}`));
      if (!errors.length) await until(() => behind().slice(0, 3).join("\n"), () => errors.length || !behind().length, 20_000);
      assert.deepEqual(errors.map((e) => e.message), []);
    } finally {
      client.close();
      process.off("unhandledRejection", listener);
      await cutter.end();
      await daemon.end();
    }
  });
}
