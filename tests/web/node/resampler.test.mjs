import assert from "node:assert/strict";
import test from "node:test";

import { Resampler } from "../../../demo_web/resampler.js";

const RATES = [8000, 16000, 22050, 24000, 44100, 48000, 96000];

/** Resamples in pieces as an audio callback does: as much input as 128 output samples need. */
function inBlocks(input, from, to, frames, block = 128) {
  const resampler = new Resampler(from, to);
  const out = new Float32Array(frames);
  let at = 0;
  for (let done = 0; done < frames; done += block) {
    const count = Math.min(block, frames - done);
    const need = resampler.needed(count);
    const piece = new Float32Array(need);
    piece.set(input.subarray(at, at + need));
    resampler.push(piece, need);
    at += need;
    resampler.pull(out.subarray(done), count);
  }
  return out;
}

function tone(frequency, rate, seconds, amplitude = 0.5) {
  const step = (2 * Math.PI * frequency) / rate;
  return Float32Array.from({ length: rate * seconds }, (_, i) => amplitude * Math.sin(step * i));
}

/** Level in dB of the best sine of this frequency, and of what is left beside it, both against `amplitude`. */
function fit(out, frequency, rate, amplitude = 0.5) {
  const part = out.subarray(Math.floor(out.length / 4), Math.floor((3 * out.length) / 4));
  let [ss, cc, sc, ys, yc] = [0, 0, 0, 0, 0];
  for (let i = 0; i < part.length; i++) {
    const [s, c] = [Math.sin((2 * Math.PI * frequency * i) / rate), Math.cos((2 * Math.PI * frequency * i) / rate)];
    ss += s * s; cc += c * c; sc += s * c; ys += part[i] * s; yc += part[i] * c;
  }
  const d = ss * cc - sc * sc;
  const [a, b] = [(ys * cc - yc * sc) / d, (yc * ss - ys * sc) / d];
  let rest = 0;
  for (let i = 0; i < part.length; i++) {
    const at = (2 * Math.PI * frequency * i) / rate;
    rest += (part[i] - a * Math.sin(at) - b * Math.cos(at)) ** 2;
  }
  return {
    gain: 20 * Math.log10(Math.hypot(a, b) / amplitude),
    rest: 10 * Math.log10((2 * rest) / part.length / amplitude ** 2 + 1e-30),
  };
}

for (const from of RATES) {
  for (const to of RATES) {
    test(`${from} to ${to}: flat, no images, no clicks at the edges of blocks`, () => {
      const nyquist = Math.min(from, to) / 2;
      for (const share of [0.013, 0.31, 0.7, 0.9]) {
        const frequency = nyquist * share;
        const out = inBlocks(tone(frequency, from, 1), from, to, Math.floor(to * 0.5));
        const { gain, rest } = fit(out, frequency, to);
        assert.ok(Math.abs(gain) < 0.1, `${share} of Nyquist: ${gain.toFixed(3)} dB`);
        assert.ok(rest < -80, `${share} of Nyquist: everything else at ${rest.toFixed(1)} dB`);
      }
    });
  }
}

test("what the lower rate cannot hold is gone", () => {
  for (const [from, to] of [[48000, 24000], [44100, 16000], [96000, 22050]]) {
    const out = inBlocks(tone((to / 2) * 1.02, from, 1), from, to, to / 2);
    const most = out.subarray(1000, out.length - 1000).reduce((a, b) => Math.max(a, Math.abs(b)), 0);
    assert.ok(20 * Math.log10(most / 0.5) < -80);
  }
});

test("the same samples whatever the blocks; each output lies where the input does", () => {
  const input = tone(1000, 24000, 1);
  const whole = inBlocks(input, 24000, 44100, 20000, 20000);
  for (const block of [1, 7, 128, 1024]) assert.deepEqual(inBlocks(input, 24000, 44100, 20000, block), whole);
  for (let n = 1000; n < 2000; n++) {
    assert.ok(Math.abs(whole[n] - 0.5 * Math.sin((2 * Math.PI * 1000 * n) / 44100)) < 1e-4);
  }
});

test("equal rates: the samples themselves, at once", () => {
  const input = tone(1000, 48000, 0.1);
  assert.deepEqual(inBlocks(input, 48000, 48000, 4800), input);
  assert.equal(new Resampler(48000, 48000).needed(128), 128);
});

test("what is ahead, available and needed agree over hours", () => {
  const resampler = new Resampler(22050, 48000);
  const zeros = new Float32Array(128);
  const out = new Float32Array(256);
  let [pushed, pulled] = [0, 0];
  for (let i = 0; i < 200000; i++) {
    const need = resampler.needed(128);
    resampler.push(zeros, need);
    assert.equal(resampler.needed(128), 0);
    assert.ok(resampler.available >= 128);
    resampler.pull(out, 128);
    pushed += need;
    pulled += 128;
    assert.ok(Math.abs(pushed - resampler.ahead - (pulled * 22050) / 48000) < 1e-6);
  }
});

test("all of it comes out once the tail is pushed", () => {
  const resampler = new Resampler(24000, 44100);
  resampler.push(new Float32Array(24000), 24000);
  assert.ok(resampler.available < 44100);
  resampler.push(new Float32Array(resampler.tail), resampler.tail);
  assert.equal(resampler.available, 44100);
});

test("rates that share little still work", () => {
  const out = inBlocks(tone(440, 24000, 1), 24000, 47999, 20000);
  const { gain, rest } = fit(out, 440, 47999);
  assert.ok(Math.abs(gain) < 0.1 && rest < -60, `${gain} ${rest}`);
});

test("steady running allocates nothing, and one core does it in far less than its time", () => {
  const resampler = new Resampler(24000, 44100);
  const block = new Float32Array(128);
  const out = new Float32Array(128);
  const run = (seconds) => {
    for (let i = 0; i < (seconds * 44100) / 128; i++) {
      resampler.push(block, resampler.needed(128));
      resampler.pull(out, 128);
    }
  };
  run(5);
  globalThis.gc?.();
  const before = process.memoryUsage();
  const at = performance.now();
  run(60);
  const took = performance.now() - at;
  const after = process.memoryUsage();
  assert.ok(after.heapUsed + after.arrayBuffers - before.heapUsed - before.arrayBuffers < 1 << 20);
  assert.ok(took < 6000, `60 s took ${took} ms`);
});
