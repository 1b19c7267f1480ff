import assert from "node:assert/strict";
import test from "node:test";

import { Spoken } from "../../../demo_web/spoken.js";

const word = (start, end, first_sample, end_sample) => ({ text: "x", start, end, first_sample, end_sample });

function spoken() {
  const it = new Spoken(1, 0);
  it.learn({ type: "segment_begin", segment: 0, start: 0, end: 10, first_sample: 0, kind: "speech" });
  it.learn({ type: "timing", segment: 0, words: [word(0, 3, 100, 400), word(4, 9, 500, 900)] });
  it.learn({ type: "segment_end", segment: 0, samples: 1000 });
  it.learn({ type: "segment_begin", segment: 1, start: 10, end: 20, first_sample: 1000, kind: "speech" });
  return it;
}

const kinds = (cues) => cues.map(({ kind, detail }) => `${kind} ${detail.start}`);

test("each is told once, when it begins to sound", () => {
  const it = spoken();
  assert.deepEqual(kinds(it.due(99)), ["segment 0"]);
  assert.equal(it.next.first, 100);
  assert.deepEqual(kinds(it.due(600)), ["word 0", "word 4"]);
  assert.deepEqual(it.due(600), []);
  assert.deepEqual(kinds(it.due(Infinity)), ["segment 10"]);
  assert.equal(it.next, undefined);
});

test("words that come after they sounded are told at once", () => {
  const it = spoken();
  it.due(2000);
  it.learn({ type: "timing", segment: 1, words: [word(10, 12, 1100, 1200)] });
  assert.deepEqual(kinds(it.due(2000)), ["word 10"]);
});

test("heard is what sounded to its end: words, or the segment without them", () => {
  const it = spoken();
  assert.deepEqual([0, 399, 400, 899, 900, 1000, 5000].map((sample) => it.heardTextEnd(sample)), [0, 0, 3, 3, 9, 10, 10]);
});

test("what a degraded segment tells again holds", () => {
  const it = spoken();
  it.learn({ type: "timing", segment: 1, words: [word(10, 14, 1000, 1200), word(15, 20, 1300, 1600)] });
  it.learn({ type: "timing", segment: 1, words: [word(15, 18, 1250, 1400), word(19, 20, 1500, 1600)] });
  assert.deepEqual(kinds(it.due(Infinity)), ["segment 0", "word 0", "word 4", "segment 10", "word 10", "word 15", "word 19"]);
  assert.deepEqual([1250, 1400, 1599].map((sample) => it.heardTextEnd(sample)), [14, 18, 18]);
});

test("after a restart what is known beyond it comes anew", () => {
  const it = spoken();
  it.forget(450);
  it.learn({ type: "segment_begin", segment: 1, start: 4, end: 20, first_sample: 450, kind: "speech" });
  it.learn({ type: "timing", segment: 1, words: [word(4, 9, 460, 700)] });
  assert.deepEqual(kinds(it.due(Infinity)), ["segment 0", "word 0", "segment 4", "word 4"]);
  assert.deepEqual([450, 700].map((sample) => it.heardTextEnd(sample)), [3, 9]);
});

test("a book's words cost no more than the number of them", () => {
  const it = new Spoken(1, 0);
  const at = performance.now();
  for (let i = 0; i < 100000; i++) {
    it.learn({ type: "timing", segment: i, words: [word(i, i + 1, 100 * i, 100 * i + 90)] });
    it.due(100 * i - 96000);
  }
  assert.ok(performance.now() - at < 5000);
  assert.equal(it.heardTextEnd(50000 * 100), 50000);
});
