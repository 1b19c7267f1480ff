import assert from "node:assert/strict";
import test from "node:test";

import { Line, RoughLine } from "../../../demo_web/rough_line.js";

const SECONDS = 120;
const FRAME = 960; // bytes of 20 ms of PCM

/** Frames go down at their pace, an ack goes up after each. */
function play(seed) {
  const line = new RoughLine(0, seed);
  const seen = { up: [], down: [], cuts: [] };
  for (let now = 0; now < SECONDS * 1000; now += 20) {
    if (now >= line.cutAt) {
      seen.cuts.push(now);
      line.cutDone(now);
    }
    seen.down.push([now, line.arrival("down", FRAME, now)]);
    seen.up.push([now, line.arrival("up", 100, now)]);
  }
  return seen;
}

test("the same seed gives the same line, another one another", () => {
  assert.deepEqual(play(7), play(7));
  assert.notDeepEqual(play(7), play(8));
});

test("order is kept, everything takes some time, and arrives soon after the hole", () => {
  for (const seed of [1, 2, 3, -4, 2 ** 31]) {
    const { up, down, cuts } = play(seed);
    for (const way of [up, down]) {
      for (let i = 1; i < way.length; i++) {
        const wasCut = cuts.some((cut) => cut > way[i - 1][0] && cut <= way[i][0]);
        assert.ok(wasCut || way[i][1] >= way[i - 1][1], "overtaken");
      }
      assert.ok(way.every(([sent, at]) => at >= sent + 20));
      assert.ok(way.every(([sent, at]) => at <= sent + 6000), "nothing waits for ever");
    }
  }
});

test("there are holes of 0.3 to 1.5 s, the same ones both ways, and cuts now and then", () => {
  let cuts = 0;
  for (const seed of [1, 2, 3, 4]) {
    const seen = play(seed);
    cuts += seen.cuts.length;
    const arrivals = [...seen.up, ...seen.down].map(([, at]) => at).sort((a, b) => a - b);
    const gaps = arrivals.map((at, i) => at - (arrivals[i - 1] ?? at)).filter((gap) => gap > 250);
    assert.ok(gaps.length >= SECONDS / 10, `${gaps.length} holes`);
    assert.ok(gaps.every((gap) => gap <= 1700), `${Math.max(...gaps)} ms`);
  }
  assert.ok(cuts >= 4 && cuts <= 50, `${cuts} cuts`);
});

test("its rate is limited", () => {
  const line = new RoughLine(0, 5);
  let at = 0;
  for (let bytes = 0; bytes < 640_000; bytes += 6400) at = line.arrival("down", 6400, 0);
  assert.ok(at >= 10_000, `${at} ms for 640 kB`);
});

test("a line that is not rough passes at once; a rough one in order, and what waits when it ends", async () => {
  let cuts = 0;
  const line = new Line(() => cuts++);
  const seen = [];
  line.pass("down", 1, () => seen.push(0));
  assert.deepEqual(seen, [0]);
  line.rough(true, 3);
  line.pass("down", 1, () => seen.push(1));
  line.pass("down", 1, () => seen.push(2));
  assert.deepEqual(seen, [0]);
  await new Promise((resolve) => {
    line.pass("down", 1, resolve);
  });
  assert.deepEqual(seen, [0, 1, 2]);
  line.pass("up", 1, () => seen.push(3));
  line.pass("up", 1, () => seen.push(4));
  line.rough(false, 0);
  assert.deepEqual(seen, [0, 1, 2, 3, 4]);
  line.pass("up", 1, () => seen.push(5));
  assert.deepEqual(seen, [0, 1, 2, 3, 4, 5]);
  line.rough(true, 3);
  line.pass("up", 1, () => assert.fail("after close"));
  line.close();
  assert.equal(cuts, 0);
});
