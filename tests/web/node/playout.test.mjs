import assert from "node:assert/strict";
import test from "node:test";
import { crc32 } from "node:zlib";

import { FADE_S, Playout } from "../../../demo_web/playout.js";
import { Preroll, Waiting } from "../../../demo_web/waiting.js";

const RATE = 24000;
const LEVEL = 8192; // a quarter of full scale

/** A playout whose device pulls 128 samples at a time; what it says is kept. */
class Desk {
  told = [];
  acks = [];
  heard = [];
  constructor(rate = RATE) {
    this.rate = rate;
    this.playout = new Playout((message) => this.told.push({ ...message }));
    this.port = { postMessage: (message) => this.acks.push(message), onmessage: null };
    this.playout.command({ type: "port", port: this.port });
  }
  send(message) { this.port.onmessage({ data: message }); }
  begin(id, rate = this.rate) {
    this.at = { ...this.at, [id]: 0 };
    this.send({ type: "begin", id, rate, maxPrerollMs: 2000 });
  }
  /** Audio at one level, or of the given samples. */
  audio(id, what) {
    const pcm = typeof what === "number" ? new Int16Array(what).fill(LEVEL) : what;
    this.send({ type: "audio", id, first: this.at[id], pcm });
    this.at[id] += pcm.length;
  }
  complete(id) { this.send({ type: "complete", id, samples: this.at[id] }); }
  pull(samples) {
    const heard = [];
    for (let done = 0; done < samples; done += 128) {
      const count = Math.min(128, samples - done);
      const out = new Float32Array(count).fill(NaN);
      const rate = this.playout.tune();
      this.playout.now += count / rate;
      this.playout.pull(out, count);
      this.playout.tick();
      heard.push(...out);
    }
    this.heard.push(...heard);
    return Float32Array.from(heard);
  }
  of(type) { return this.told.filter((each) => each.type === type); }
  get report() { return this.of("report").at(-1); }
  get steepest() {
    return this.heard.slice(1).reduce((most, x, i) => Math.max(most, Math.abs(x - this.heard[i])), 0);
  }
}

const silent = (samples) => samples.every((x) => x === 0);

test("plays once the pre-roll is there, then exactly what came", () => {
  const desk = new Desk();
  desk.begin(1);
  const pcm = Int16Array.from({ length: 9600 }, (_, i) => Math.round(9000 * Math.sin(i / 7)));
  desk.audio(1, pcm.slice(0, 2400));
  assert.ok(silent(desk.pull(480)));
  assert.equal(desk.report.state, "waiting");
  desk.audio(1, pcm.slice(2400));
  desk.complete(1);
  const out = desk.pull(9600 + 128);
  assert.deepEqual(out.slice(0, 9600), Float32Array.from(pcm, (x) => x / 32768));
  assert.ok(silent(out.slice(9600)));
  assert.deepEqual(desk.of("ended").map(({ id, played }) => [id, played]), [[1, 9600]]);
  assert.deepEqual([desk.report.received, desk.report.crc], [9600, crc32(Buffer.from(pcm.buffer))]);
  assert.equal(desk.report.state, "idle");
});

test("what is complete is played at once; what lacks a little is, after a while", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 240);
  desk.complete(1);
  assert.ok(!silent(desk.pull(128)));
  desk.pull(256);
  desk.begin(2);
  desk.audio(2, 1200);
  assert.ok(silent(desk.pull(5000)));
  assert.ok(!silent(desk.pull(1200)));
});

test("fades out before a hole and in after it; a stall is counted and adds to the pre-roll", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 4800);
  const before = desk.playout.preroll.seconds;
  desk.pull(6000);
  assert.deepEqual([desk.report.state, desk.report.stalls, desk.report.played], ["stalled", 1, 4800]);
  assert.ok(desk.playout.preroll.seconds > before);
  desk.audio(1, 9600);
  desk.pull(6000);
  assert.equal(desk.report.state, "playing");
  desk.complete(1);
  desk.pull(6000);
  assert.equal(desk.report.stalls, 1);
  assert.equal(desk.of("ended")[0].played, 14400);
  const edges = desk.heard.findIndex((x) => x !== 0);
  desk.heard = desk.heard.slice(edges, desk.heard.findLastIndex((x) => x !== 0) + 1);
  assert.ok(desk.steepest <= 0.25 / (FADE_S * RATE) + 1e-6, `${desk.steepest}`);
});

test("what comes while it fades out raises it again without a step", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 4800);
  desk.pull(4736);
  desk.audio(1, 4800);
  desk.pull(4864);
  assert.ok(desk.steepest <= 0.26 / (FADE_S * RATE) || desk.heard[0] !== 0);
  const inside = desk.heard.slice(1);
  const step = inside.slice(1).reduce((most, x, i) => Math.max(most, Math.abs(x - inside[i])), 0);
  assert.ok(step <= 0.25 / (FADE_S * RATE) + 1e-6, `${step}`);
  assert.equal(desk.report.stalls, 0);
});

test("silence of the writer is no stall", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 4800);
  desk.send({ type: "between", id: 1 });
  desk.pull(9600);
  assert.deepEqual([desk.report.state, desk.report.stalls], ["waiting", 0]);
});

test("utterances follow one another without a gap", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 4801);
  desk.complete(1);
  desk.begin(2);
  desk.audio(2, 4800);
  desk.complete(2);
  const out = desk.pull(9601);
  assert.ok(out.every((x) => x === 0.25));
  desk.pull(128);
  assert.deepEqual(desk.of("ended").map(({ id, played }) => [id, played]), [[1, 4801], [2, 4800]]);
});

test("one of another rate waits until the tail of the one before is out", () => {
  const desk = new Desk();
  desk.begin(1, 24000);
  desk.audio(1, 4800);
  desk.complete(1);
  desk.begin(2, 8000);
  desk.audio(2, 800);
  desk.complete(2);
  desk.pull(4864);
  assert.equal(desk.playout.tune(), 24000);
  desk.pull(480);
  assert.equal(desk.playout.tune(), 8000);
  desk.pull(1024);
  assert.deepEqual(desk.of("ended").map(({ id, played }) => [id, played]), [[1, 4800], [2, 800]]);
});

test("an utterance without a sample ends", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.complete(1);
  desk.pull(128);
  assert.deepEqual(desk.of("ended").map(({ id, played }) => [id, played]), [[1, 0]]);
  assert.equal(desk.of("audible").length, 0);
});

test("stop fades out in 5 ms, and nothing of it is taken any more", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.begin(2);
  desk.audio(1, 24000);
  desk.pull(4736);
  desk.playout.command({ type: "stop", id: 2 });
  assert.equal(desk.of("stopped").length, 0);
  const out = desk.pull(256);
  const length = FADE_S * RATE;
  assert.ok(out[length - 2] > 0 && silent(out.slice(length)));
  assert.ok(desk.steepest <= 0.25 / length + 1e-6 || desk.heard[0] === 0.25);
  assert.deepEqual(desk.of("stopped").map(({ id, played }) => [id, played]), [[1, 4736 + length]]);
  assert.deepEqual(desk.acks.at(-1), { type: "played", id: 1, sample: 4736 + length, bufferedMs: 798, stalls: 0 });
  desk.audio(1, 4800);
  desk.audio(2, 4800);
  desk.begin(1);
  assert.ok(silent(desk.pull(9600)));
  desk.begin(3);
  desk.audio(3, 4800);
  assert.ok(!silent(desk.pull(4800)));
});

test("what was asked for during the fade begins right after it", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 24000);
  desk.pull(4736);
  desk.playout.command({ type: "stop", id: 1 });
  desk.begin(2);
  desk.audio(2, 4800);
  desk.complete(2);
  desk.pull(9600);
  assert.deepEqual(desk.of("ended").map(({ id, played }) => [id, played]), [[2, 4800]]);
});

for (const [name, prepare] of Object.entries({
  "before anything came": () => {},
  "before its begin": (desk) => { desk.at = { 1: 0 }; },
  "before it sounds": (desk) => { desk.begin(1); desk.audio(1, 480); },
  "in a context that does not run": (desk) => { desk.begin(1); desk.audio(1, 4800); desk.pull(1280); },
})) {
  test(`stop ${name} is silent at once`, () => {
    const desk = new Desk();
    prepare(desk);
    desk.playout.command({ type: "stop", id: 1, atOnce: true });
    assert.equal(desk.of("stopped").length, 1);
    desk.begin(1);
    desk.audio(1, 9600);
    assert.ok(silent(desk.pull(9600)));
  });
}

test("a stop that finds nothing leaves a later utterance alone", () => {
  const desk = new Desk();
  desk.begin(2);
  desk.audio(2, 9600);
  desk.pull(1280);
  desk.playout.command({ type: "stop", id: 1 });
  assert.ok(!silent(desk.pull(1280)));
});

test("restart replaces what was not played, and the digest with it", () => {
  const desk = new Desk();
  const pcm = Int16Array.from({ length: 12000 }, (_, i) => i);
  desk.begin(1);
  desk.audio(1, pcm.slice(0, 4000));
  desk.audio(1, new Int16Array(4000).fill(9));
  desk.pull(1280);
  desk.send({ type: "restart", id: 1, first: 5000 });
  desk.at[1] = 5000;
  pcm.fill(9, 4000, 5000);
  desk.audio(1, pcm.slice(5000));
  desk.complete(1);
  desk.pull(12000);
  assert.deepEqual([desk.report.played, desk.report.crc], [12000, crc32(Buffer.from(pcm.buffer))]);
  const after = Float32Array.from(desk.heard.slice(5000, 12000));
  assert.deepEqual(after, Float32Array.from(pcm.slice(5000), (x) => x / 32768));
});

test("restart before what was played: the digest is not known, the rest is right", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 3600);
  desk.audio(1, 1200);
  desk.pull(4096);
  desk.send({ type: "restart", id: 1, first: 2400 });
  desk.at[1] = 2400;
  desk.audio(1, 4800);
  desk.complete(1);
  desk.pull(9600);
  assert.deepEqual([desk.report.played, desk.report.received, desk.report.crc], [7200, 7200, null]);
});

test("a hole in what comes is said", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 480);
  desk.at[1] += 1;
  desk.audio(1, 480);
  assert.equal(desk.of("broken").length, 1);
  desk.send({ type: "complete", id: 1, samples: 999 });
  assert.equal(desk.of("broken").length, 2);
});

test("floats are digested as the samples they stand for", () => {
  const desk = new Desk();
  const pcm = Int16Array.from([0, 1, -1, 32767, -32768, 12345]);
  desk.begin(1);
  desk.audio(1, Float32Array.from(pcm, (x) => x / 32768));
  desk.complete(1);
  desk.pull(128);
  assert.equal(desk.report.crc, crc32(Buffer.from(pcm.buffer)));
});

test("acknowledges ten times a second, reports twenty times, and at once at the end", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 48000);
  desk.complete(1);
  desk.pull(48128);
  assert.ok(Math.abs(desk.acks.length - 20) <= 2, `${desk.acks.length} acks`);
  assert.ok(Math.abs(desk.of("report").length - 38) <= 4, `${desk.of("report").length} reports`);
  assert.equal(desk.acks.at(-1).sample, 48000);
});

test("another one goes on with what was not played", () => {
  const desk = new Desk();
  const pcm = Int16Array.from({ length: 9600 }, (_, i) => i);
  desk.begin(1);
  desk.audio(1, pcm.slice(0, 4000));
  desk.audio(1, pcm.slice(4000, 8000));
  desk.pull(4992);
  desk.playout.command({ type: "leave" });
  const { port, kept } = structuredClone({ port: null, kept: desk.of("left")[0].kept });
  assert.equal(port, null);
  const other = new Desk();
  other.at = { ...desk.at };
  other.playout.command({ type: "port", port: other.port, kept });
  other.audio(1, pcm.slice(8000));
  other.complete(1);
  const out = other.pull(9600 - 4992);
  assert.deepEqual(out.slice(200), Float32Array.from(pcm.slice(5192), (x) => x / 32768));
  other.pull(128);
  assert.equal(other.report.crc, crc32(Buffer.from(pcm.buffer)));
  assert.ok(silent(desk.pull(1280)));
});

test("the pre-roll follows jitter and stalls, and gets shorter again", () => {
  const preroll = new Preroll();
  assert.equal(preroll.seconds, 0.12);
  for (let i = 0; i < 40; i++) preroll.arrived(0.02, 0.02 * i + (i % 4 ? 0 : 0.05));
  assert.ok(Math.abs(preroll.seconds - 0.22) < 1e-9, `${preroll.seconds}`);
  const other = new Preroll();
  other.stalled();
  assert.equal(other.seconds, 0.24);
  other.stalled();
  assert.equal(other.seconds, 0.36);
  for (let i = 0; i < 20; i++) other.stalled();
  assert.equal(other.seconds, 2);
  other.played(10.1);
  assert.equal(other.seconds, 1.12);
  other.pause();
  other.arrived(0.02, 1000);
  for (let i = 0; i < 30; i++) other.arrived(0.02, 1000.02 + 0.02 * i);
  assert.ok(Math.abs(other.seconds - 1.12) < 1e-9);
});

const stop = (desk) => desk.playout.command({ type: "stop", id: 1 });
const end = (desk) => {
  desk.send({ type: "restart", id: 1, first: 0 });
  desk.send({ type: "complete", id: 1, samples: 0 });
};
for (const [how, leave] of [["a stop while it waits", stop], ["an end", end]]) {
  test(`${how} does not shorten the pre-roll of what follows`, () => {
    const desk = new Desk();
    desk.begin(1);
    desk.audio(1, 480);
    desk.pull(0.23 * RATE);
    leave(desk);
    desk.pull(0.05 * RATE);
    desk.begin(2);
    desk.audio(2, 480);
    assert.ok(silent(desk.pull(0.1 * RATE)));
    desk.audio(2, 4800);
    assert.ok(!silent(desk.pull(480)));
  });
}

test("what was all taken and is given to another one goes on with what comes next", () => {
  const waiting = new Waiting(1, RATE);
  const out = new Float32Array(30);
  for (const level of [1, 2, 3]) waiting.push(new Int16Array(10).fill(level));
  waiting.take(out, 0, 30);
  const other = Waiting.of({ ...waiting });
  other.push(new Int16Array(10).fill(4));
  out.fill(0);
  other.take(out, 20, 10);
  assert.deepEqual(out, Float32Array.from({ length: 30 }, (_, i) => (i < 20 ? 0 : 4 / 32768)));
});

test("what fades out as it leaves is not kept, and what was stopped does not come back", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 24000);
  desk.pull(4800);
  const kept = [{ ...desk.playout.waiting[0] }];
  desk.playout.command({ type: "stop", id: 1 });
  desk.playout.command({ type: "leave" });
  assert.deepEqual(desk.of("left").map((each) => each.kept), [[]]);
  assert.equal(desk.of("stopped").length, 1);
  const other = new Desk();
  other.playout.command({ type: "stop", id: 1 });
  const late = [{ type: "audio", id: 1, first: 24000, pcm: new Int16Array(480) }];
  other.playout.command({ type: "port", port: other.port, kept, late });
  assert.equal(other.playout.waiting.length, 0);
});

test("one without a port leaves all the same; a port that another one took the place of is not listened to", () => {
  const playout = new Playout((message) => told.push(message));
  const told = [];
  playout.command({ type: "leave" });
  assert.deepEqual([told[0].type, told[0].port], ["left", null]);
  const desk = new Desk();
  const old = desk.port;
  desk.playout.command({ type: "port", port: { postMessage() {} } });
  assert.equal(old.onmessage, null);
});

test("the jitter is the 95th percentile of the latest 200 arrivals", () => {
  const preroll = new Preroll();
  preroll.longest = 1000;
  const late = [];
  let now = 0;
  let seed = 1;
  preroll.arrived(0.02, now);
  for (let i = 0; i < 700; i++) {
    seed = (seed * 48271) % 2147483647;
    const by = i % 3 ? 0 : (seed / 2147483647) * (i < 400 ? 0.2 : 0.01);
    now += 0.02 + by;
    late.push(by);
    preroll.arrived(0.02, now);
    const known = late.slice(-200).sort((a, b) => a - b);
    const wanted = known.length < 20 ? 0 : known[Math.floor(0.95 * (known.length - 1))];
    assert.ok(Math.abs(preroll.seconds - 0.12 - 2 * wanted) < 1e-9, `${i}`);
  }
});

test("floats have the digest of what they round to", () => {
  const waiting = new Waiting(1, RATE);
  const floats = Float32Array.from({ length: 5000 }, (_, i) => 1.2 * Math.sin(i));
  waiting.push(floats.subarray(0, 4500));
  waiting.push(floats.subarray(4500));
  const rounded = Int16Array.from(floats, (x) => Math.max(-32768, Math.min(32767, Math.round(x * 32768))));
  assert.equal(waiting.crc, crc32(Buffer.from(rounded.buffer)));
});
