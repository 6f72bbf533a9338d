import assert from "node:assert/strict";
import { test } from "node:test";
import { faults, judge } from "./ledger.mjs";

const published = ["a@k:1", "a@k:2", "a@k:3", "a@m:1", "a@m:2"];
const message = (place) => ({ position: "a@" + place });
const gap = (place) => ({ gap: { reason: "restarted" }, position: "a@" + place });

test("the ledger notices each fault", () => {
  const right = ["k:1", "k:2", "k:3"].map(message);
  const rest = [gap("m:0"), message("m:1"), message("m:2")];
  for (const [what, items, want] of [
    ["all", [...right, ...rest], { delivered: 5, gaps: 1, missed: 0 }],
    ["an announced loss", [message("k:1"), gap("m:0"), message("m:1"), message("m:2")], { gaps: 1, missed: 2 }],
    ["a loss", [message("k:1"), message("k:3"), ...rest], { lost: 1 }],
    ["a loss over a restart", [message("k:1"), message("m:1"), message("m:2")], { lost: 2 }],
    ["a loss at the end", [...right, ...rest.slice(0, 2)], { lost: 1 }],
    ["nothing delivered", [], { lost: 5, delivered: 0 }],
    ["a repetition", [...right, message("k:3"), ...rest], { repeated: 1 }],
    ["disorder", [message("k:2"), message("k:1"), message("k:3"), ...rest], { lost: 1, disordered: 1 }],
    ["an epoch that returns", [...right, ...rest, message("k:4")], { disordered: 1 }],
    ["a message whose publish got no answer", [...right, message("k:4"), ...rest], { delivered: 6 }],
  ]) {
    const got = judge(published, items);
    for (const name of ["lost", "repeated", "disordered"]) assert.equal(got[name], want[name] ?? 0, `${what}: ${name}`);
    for (const [name, n] of Object.entries(want)) assert.equal(got[name], n, `${what}: ${name}`);
  }
  assert.equal(faults({ lost: 1, repeated: 0, disordered: 2 }), "1 lost, 2 disordered");
});
