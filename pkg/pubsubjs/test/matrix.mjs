// The cells of the test matrix: transport × way × fault.

export const transports = ["websocket", "stream", "poll", "EventSource"];
export const ways = ["same origin", "other origin", "TLS", "nginx", "Caddy"];
export const causes = ["mid-frame", "reset", "silent", "restart with state", "restart", "kill -9", "kill -9 with log"];

const dimensions = [transports, ways, causes];

/** Returns all cells, or those of some values. */
export function every([someTransports, someWays, someCauses] = dimensions) {
  return someTransports.flatMap((transport) => someWays.flatMap((way) => someCauses.map((fault) => [transport, way, fault])));
}

/** Returns cells in which each two values of two dimensions meet. The choice is always the same. */
export function pairwise(cells = every()) {
  const pairs = (cell) => [[0, 1], [0, 2], [1, 2]].map(([a, b]) => `${a}${cell[a]} ${b}${cell[b]}`);
  const open = new Set(cells.flatMap(pairs));
  const chosen = [];
  while (open.size) {
    const gain = (cell) => pairs(cell).filter((p) => open.has(p)).length;
    const best = cells.reduce((a, b) => (gain(b) > gain(a) ? b : a));
    chosen.push(best);
    for (const p of pairs(best)) open.delete(p);
  }
  return chosen;
}

/** Returns the number of pairs of values that cells must cover. */
export const pairCount = () => [[0, 1], [0, 2], [1, 2]].reduce((n, [a, b]) => n + dimensions[a].length * dimensions[b].length, 0);

/** Renders rows as a table with aligned columns. */
export function table(rows) {
  const widths = rows[0].map((_, i) => Math.max(...rows.map((row) => String(row[i]).length)));
  return rows.map((row) => row.map((value, i) => (typeof value === "number" ? String(value).padStart(widths[i]) : String(value).padEnd(widths[i]))).join("  ").trimEnd()).join("\n");
}
