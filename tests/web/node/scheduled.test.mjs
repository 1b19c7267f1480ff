import assert from "node:assert/strict";
import { test, mock } from "node:test";

import { FADE_S } from "../../../demo_web/playout.js";
import { Scheduled } from "../../../demo_web/scheduled.js";

mock.timers.enable({ apis: ["setTimeout"] }); // a tab whose timers stand still, but where a test lets them go on

/** What a context gives, rendered by hand: buffers at their places, the gain's automation evaluated at each sample. */
class FakeContext {
  currentTime = 1;
  nodes = [];
  points = [];
  constructor(sampleRate = 48000) {
    this.sampleRate = sampleRate;
  }
  createGain() {
    const points = this.points;
    const gain = {
      setValueAtTime: (value, time) => points.push({ value, time, kind: "set" }),
      linearRampToValueAtTime: (value, time) => points.push({ value, time, kind: "ramp" }),
      cancelScheduledValues: (time) => points.splice(0, Infinity, ...points.filter((each) => each.time < time)),
      get value() { return 1; },
    };
    return { gain, connect() {}, disconnect() {} };
  }
  createBuffer(_, length, sampleRate) {
    const data = new Float32Array(length);
    return { length, sampleRate, duration: length / sampleRate, getChannelData: () => data };
  }
  createBufferSource() {
    const node = {
      connect() {},
      disconnect: () => { node.gone = true; },
      start: (when) => { node.when = when; },
      stop: (until) => { node.until = until; },
    };
    this.nodes.push(node);
    return node;
  }
  gainAt(time) {
    let [value, at] = [1, 0];
    for (const point of [...this.points].sort((a, b) => a.time - b.time)) {
      if (point.time <= time) [value, at] = [point.value, point.time];
      else return point.kind === "ramp" ? value + ((point.value - value) * (time - at)) / (point.time - at) : value;
    }
    return value;
  }
  render(from, to) {
    const out = new Float32Array(Math.round((to - from) * this.sampleRate));
    for (const { when, until = Infinity, buffer, gone } of this.nodes) {
      const data = buffer.getChannelData(0);
      const start = Math.round((when - from) * this.sampleRate);
      for (let i = 0; i < data.length; i++) {
        const at = start + i;
        if (!gone && at >= 0 && at < out.length && from + at / this.sampleRate < until) out[at] += data[i];
      }
    }
    for (let i = 0; i < out.length; i++) out[i] *= this.gainAt(from + i / this.sampleRate);
    return out;
  }
}

class Desk {
  told = [];
  acks = [];
  constructor(sampleRate) {
    this.context = new FakeContext(sampleRate);
    this.scheduled = new Scheduled(this.context, {});
    this.scheduled.onmessage = ({ data }) => this.told.push({ ...data });
    this.port = { postMessage: (message) => this.acks.push(message), onmessage: null };
    this.scheduled.postMessage({ type: "port", port: this.port });
    this.at = {};
  }
  send(message) { this.port.onmessage({ data: message }); }
  begin(id, rate = 24000) { this.at[id] = 0; this.send({ type: "begin", id, rate, maxPrerollMs: 2000 }); }
  audio(id, samples, level = 8192) {
    this.send({ type: "audio", id, first: this.at[id], pcm: new Int16Array(samples).fill(level) });
    this.at[id] += samples;
  }
  complete(id) { this.send({ type: "complete", id, samples: this.at[id] }); }
  /** The clock goes on; then timers run once. */
  pass(seconds) {
    this.context.currentTime += seconds;
    mock.timers.tick(50);
  }
  of(type) { return this.told.filter((each) => each.type === type); }
  get report() { return this.of("report").at(-1); }
}

const ends = ({ when, buffer }) => when + buffer.duration;

for (const rate of [44100, 48000, 24000]) {
  test(`one directly after the other at ${rate} Hz, at the context's rate, all that is here`, () => {
    const desk = new Desk(rate);
    desk.begin(1);
    for (let i = 0; i < 40; i++) {
      desk.audio(1, 1200);
      desk.pass(i < 4 ? 0 : 0.03);
    }
    desk.complete(1);
    const { nodes } = desk.context;
    for (let n = 1; n < nodes.length; n++) assert.ok(Math.abs(nodes[n].when - ends(nodes[n - 1])) < 0.5 / rate);
    for (const { buffer } of nodes) assert.equal(buffer.sampleRate, rate);
    assert.ok(Math.abs(ends(nodes.at(-1)) - nodes[0].when - 2) < 1 / rate);
    const heard = desk.context.render(nodes[0].when, ends(nodes.at(-1)));
    assert.ok(heard.slice(200, -200).every((x) => Math.abs(x - 0.25) < 1e-4));
  });
}

test("exact positions by the clock, also where timers stand still", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 24000);
  const start = desk.context.nodes[0].when;
  desk.context.currentTime = start + 0.5;
  desk.audio(1, 4800);
  assert.ok(Math.abs(desk.report.played - 12000) <= 1, `${desk.report.played}`);
  assert.equal(desk.acks.at(-1).sample, desk.report.played);
  desk.complete(1);
  desk.context.currentTime = start + 1.3;
  desk.context.nodes.at(-1).onended();
  assert.deepEqual(desk.of("ended").map(({ id, played }) => [id, played]), [[1, 28800]]);
  assert.deepEqual([desk.acks.at(-1).sample, desk.report.state], [28800, "idle"]);
});

test("a hole: faded out before it without a timer, faded in after it, counted", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 4800);
  const [{ when }] = desk.context.nodes;
  const end = ends(desk.context.nodes[0]);
  let heard = desk.context.render(when, end);
  assert.ok(Math.abs(heard.at(-1)) < 0.01 && Math.abs(heard.at(-260) - 0.25) < 1e-3);
  desk.pass(0.5);
  assert.deepEqual([desk.report.state, desk.report.stalls], ["stalled", 1]);
  desk.audio(1, 9600);
  desk.complete(1);
  const again = desk.context.nodes[1].when;
  assert.ok(again > desk.context.currentTime);
  heard = desk.context.render(again, again + 0.05);
  assert.ok(heard[1] < 0.01 && Math.abs(heard[Math.ceil(FADE_S * 48000) + 1] - 0.25) < 1e-3);
  desk.pass(1);
  assert.equal(desk.of("ended")[0].played, 14400);
});

test("what comes in time takes the fade away; during it, it goes on after it", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 4800);
  desk.audio(1, 4800);
  const start = desk.context.nodes[0].when;
  assert.ok(desk.context.render(start + 0.01, start + 0.3).every((x) => Math.abs(x - 0.25) < 1e-3));
  const end = ends(desk.context.nodes[1]);
  desk.context.currentTime = end - 0.002;
  desk.audio(1, 4800);
  const heard = desk.context.render(end - 0.02, end + 0.02);
  const steep = heard.slice(1).reduce((most, x, i) => Math.max(most, Math.abs(x - heard[i])), 0);
  assert.ok(steep < 0.003, `${steep}`);
  assert.equal(desk.report.stalls, 0);
});

test("stop is silent within 20 ms and knows the sample", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 48000);
  const start = desk.context.nodes[0].when;
  desk.context.currentTime = start + 0.5;
  desk.scheduled.postMessage({ type: "stop", id: 1 });
  const [{ played }] = desk.of("stopped");
  assert.ok(played >= 12000 && played <= 12000 + 0.02 * 24000, `${played}`);
  const heard = desk.context.render(start + 0.4, start + 2);
  const last = heard.findLastIndex((x) => Math.abs(x) > 1e-4);
  assert.ok(last / 48000 < 0.12, `${last / 48000}`);
  const steep = heard.slice(1).reduce((most, x, i) => Math.max(most, Math.abs(x - heard[i])), 0);
  assert.ok(steep < 0.003, `${steep}`);
  desk.audio(1, 4800);
  desk.begin(2);
  desk.audio(2, 4800, 4096);
  const next = desk.context.nodes.at(-1);
  assert.ok(desk.context.render(next.when + 0.01, next.when + 0.1).every((x) => Math.abs(x - 0.125) < 1e-3));
});

test("stop in a context that does not run leaves nothing to be heard when it does", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 48000);
  desk.scheduled.postMessage({ type: "stop", id: 1, atOnce: true });
  assert.ok(desk.context.nodes.every(({ gone }) => gone));
  assert.equal(desk.of("stopped")[0].played, 0);
});

test("stop before the first sound", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 240);
  desk.scheduled.postMessage({ type: "stop", id: 1 });
  desk.audio(1, 24000);
  desk.complete(1);
  assert.equal(desk.context.nodes.length, 0);
  assert.deepEqual(desk.of("stopped").map(({ id, played }) => [id, played]), [[1, 0]]);
});

test("utterances follow one another; each ends by the clock", () => {
  const desk = new Desk(44100);
  desk.begin(1);
  desk.audio(1, 4800);
  desk.complete(1);
  desk.begin(2);
  desk.audio(2, 4800);
  desk.complete(2);
  const { nodes } = desk.context;
  for (let n = 1; n < nodes.length; n++) assert.ok(Math.abs(nodes[n].when - ends(nodes[n - 1])) < 0.5 / 44100);
  const start = nodes[0].when;
  desk.context.currentTime = start + 0.21;
  desk.audio(2, 0);
  desk.pass(0.01);
  assert.deepEqual(desk.of("ended").map(({ id }) => id), [1]);
  assert.equal(desk.report.id, 2);
  desk.pass(0.3);
  assert.deepEqual(desk.of("ended").map(({ id, played }) => [id, played]), [[1, 4800], [2, 4800]]);
});

test("restart takes back what was placed beyond it", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 24000, 8192);
  desk.audio(1, 24000, 9000);
  const start = desk.context.nodes[0].when;
  desk.context.currentTime = start + 0.2;
  desk.send({ type: "restart", id: 1, first: 12000 });
  desk.at[1] = 12000;
  desk.audio(1, 12000, 4096);
  desk.complete(1);
  const heard = desk.context.render(start, start + 1.2);
  const level = (seconds) => heard[Math.round(seconds * 48000)];
  assert.ok(Math.abs(level(0.45) - 0.25) < 1e-3 && Math.abs(level(0.55) - 0.125) < 1e-3 && level(1.1) === 0);
  desk.pass(2);
  assert.equal(desk.of("ended")[0].played, 24000);
});

test("another context goes on where this one was", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 24000);
  desk.audio(1, 24000);
  const start = desk.context.nodes[0].when;
  desk.context.currentTime = start + 0.6;
  desk.scheduled.postMessage({ type: "leave" });
  const [{ kept, late }] = desk.of("left");
  desk.audio(1, 2400);
  const other = new Desk(44100);
  other.scheduled.postMessage({ type: "port", port: other.port, kept, late });
  other.at = { ...desk.at };
  other.complete(1);
  const { nodes } = other.context;
  const length = nodes.reduce((sum, { buffer }) => sum + buffer.duration, 0);
  assert.ok(Math.abs(length - 1.5) < 0.001, `${length}`);
  other.pass(3);
  assert.deepEqual(other.of("ended").map(({ id, played }) => [id, played]), [[1, 50400]]);
  assert.ok(desk.context.render(start + 0.61, start + 2).every((x) => x === 0));
});

test("a thousand messages leave neither buffers nor automation behind", () => {
  const desk = new Desk();
  desk.begin(1);
  for (let i = 0; i < 1000; i++) {
    desk.audio(1, 480);
    desk.pass(i < 10 ? 0 : 0.02);
  }
  assert.ok(desk.scheduled.waiting[0].chunks.length < 100);
  assert.ok(desk.context.points.length < 20, `${desk.context.points.length}`);
});

test("after a stop the next text is placed as soon as it is here", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 4 * 24000);
  desk.context.currentTime += 0.5;
  desk.scheduled.postMessage({ type: "stop", id: 1 });
  desk.context.currentTime += 0.2;
  const before = desk.context.nodes.length;
  desk.begin(2);
  desk.audio(2, 24000, 4096);
  const [{ when }] = desk.context.nodes.slice(before);
  assert.ok(when - desk.context.currentTime < 0.05, `${when - desk.context.currentTime}`);
  assert.ok(desk.context.render(when + 0.01, when + 0.5).every((x) => Math.abs(x - 0.125) < 1e-3));
});

test("a stop while it waits does not shorten the pre-roll of what follows", () => {
  const desk = new Desk();
  desk.begin(1);
  desk.audio(1, 240);
  desk.pass(0.2);
  desk.scheduled.postMessage({ type: "stop", id: 1 });
  desk.begin(2);
  desk.audio(2, 240);
  desk.pass(0.1);
  desk.pass(0.05);
  assert.equal(desk.context.nodes.length, 0);
});
