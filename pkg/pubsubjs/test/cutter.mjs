// A TCP forwarder that breaks connections as networks do.
import { once } from "node:events";
import { connect, createServer } from "node:net";

export class Cutter {
  /** Forwards connections to a port. A connection that begins with a request of "/" gets the page instead, if there is one. */
  static async start(port, page) {
    const c = new Cutter();
    Object.assign(c, { port, page, clients: new Set(), pairs: new Set(), silenced: new Set(), broken: {} });
    c.server = createServer({ noDelay: true }, (client) => c.accept(client));
    c.server.listen(0, "127.0.0.1");
    await once(c.server, "listening");
    c.url = `http://127.0.0.1:${c.server.address().port}`;
    return c;
  }

  accept(client) {
    this.clients.add(client);
    client.on("error", () => {});
    client.on("close", () => this.clients.delete(client));
    if (!this.page) return this.forward(client);
    client.once("data", (first) => {
      if (first.subarray(0, 6).toString() === "GET / ") {
        client.end(`HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: ${this.page.length}\r\n\r\n${this.page}`);
        return;
      }
      client.pause();
      client.unshift(first);
      this.forward(client);
    });
  }

  forward(client) {
    const server = connect({ port: this.port, host: "127.0.0.1", noDelay: true });
    const pair = { client, server, fault: undefined };
    this.pairs.add(pair);
    for (const [from, to] of [[client, server], [server, client]]) {
      from.on("error", () => {});
      from.on("data", (chunk) => this.pass(pair, from, to, chunk));
      from.on("close", () => pair.fault !== "silent" && this.drop(pair));
      from.on("end", () => pair.fault !== "silent" && to.end());
      from.resume();
    }
  }

  pass(pair, from, to, chunk) {
    if (pair.fault === "silent") return;
    if (pair.fault === "mid-frame" && from === pair.server) {
      pair.client.end(chunk.subarray(0, chunk.length >> 1));
      pair.server.destroy();
      this.leave(pair);
      return;
    }
    if (!to.write(chunk)) {
      from.pause();
      to.once("drain", () => from.resume());
    }
  }

  drop(pair) {
    this.leave(pair);
    pair.client.destroy();
    pair.server.destroy();
  }

  // Forgets a connection that has ended, and counts it by its fault.
  leave(pair) {
    if (this.pairs.delete(pair) && pair.fault) this.broken[pair.fault] = (this.broken[pair.fault] ?? 0) + 1;
  }

  /**
   * Breaks open connections, or the one given:
   * "mid-frame" closes after half of what the server sends next, "close" closes now, "reset" resets, and "silent" forwards nothing more.
   */
  break(fault, pairs = [...this.pairs]) {
    for (const pair of pairs) {
      pair.fault = fault;
      if (fault === "close") this.drop(pair);
      if (fault === "reset") {
        this.leave(pair);
        pair.client.resetAndDestroy();
        pair.server.destroy();
      }
      if (fault === "silent") {
        this.leave(pair);
        this.silenced.add(pair);
      }
    }
    return pairs.length;
  }

  async end() {
    for (const pair of [...this.pairs, ...this.silenced]) this.drop(pair);
    for (const client of this.clients) client.destroy(); // Firefox opens some before it needs them, and keeps them
    this.server.close();
    await once(this.server, "close");
  }
}
