import assert from "node:assert/strict";
import { test } from "node:test";
import { campaign, sum } from "./cuts.mjs";

test("clients in Node lose and repeat nothing over many cuts", { timeout: 120_000 }, async () => {
  const { made, cuts, messages, subscribers } = await campaign(300);
  assert.ok(made >= 300);
  assert.ok(cuts["mid-frame"] && cuts.close && cuts.reset, JSON.stringify(cuts));
  for (const name of ["gaps", "lost", "repeated", "disordered"]) assert.equal(sum(subscribers, name), 0, name);
  assert.equal(sum(subscribers, "delivered"), messages * subscribers.length);
});
