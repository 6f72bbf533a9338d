// Durations while a clock is set, or the machine sleeps.
import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

let imports = 0;

/** Loads the clock with a monotonic and a wall clock of the test. */
async function clock(t) {
  const c = { monotonic: 5_000, wall: 1_700_000_000_000 };
  t.mock.method(performance, "now", () => c.monotonic);
  t.mock.method(Date, "now", () => c.wall);
  const { now } = await source("http", ++imports);
  const begun = now();
  c.pass = (monotonic, wall = monotonic) => ((c.monotonic += monotonic), (c.wall += wall));
  c.went = () => now() - begun;
  return c;
}

test("a duration is what passed, without small steps of the wall clock", async (t) => {
  const c = await clock(t);
  for (let i = 0; i < 100; i++) {
    c.pass(10, i % 2 ? 12 : 8);
    c.went();
  }
  assert.equal(c.went(), 1000);
});

test("a wall clock that is set back does not make a duration shorter", async (t) => {
  const c = await clock(t);
  c.pass(1000, 1000 - 3_600_000);
  assert.equal(c.went(), 1000);
  c.pass(1000);
  assert.equal(c.went(), 2000);
});

test("a wall clock that is set forward, or a machine that sleeps, makes it longer", async (t) => {
  const c = await clock(t);
  c.pass(0, 600_000); // a suspend of ten minutes: the monotonic clock stands still
  assert.equal(c.went(), 600_000);
  c.pass(1000);
  assert.equal(c.went(), 601_000);
  c.pass(0, -600_000); // set back
  c.pass(0, 600_000); // not looked at meanwhile
  assert.equal(c.went(), 601_000);
});
