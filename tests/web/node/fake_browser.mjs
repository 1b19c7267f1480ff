// What a player needs of a browser, without one: workers that say what a test tells them to, contexts whose clock a
// test moves, with the real playout on their audio threads.
import { mock } from "node:test";

import { Playout } from "../../../demo_web/playout.js";

const STEP_MS = 10;

export const world = {
  now: 1000, workers: [], contexts: [], listeners: new Map(), loads: true, constructs: true, revoked: 0,
};

performance.now = () => world.now;
globalThis.isSecureContext = true;
globalThis.document = {
  baseURI: "http://page.test/",
  visibilityState: "visible",
  addEventListener: (kind, act) => world.listeners.set(kind, [...(world.listeners.get(kind) ?? []), act]),
  removeEventListener: (kind, act) =>
    world.listeners.set(kind, (world.listeners.get(kind) ?? []).filter((each) => each !== act)),
};
export const tap = () => { for (const act of world.listeners.get("pointerdown") ?? []) act(); };
URL.createObjectURL = () => "blob:1";
URL.revokeObjectURL = () => { world.revoked++; };

class Port {
  onmessage = null;
  postMessage(data) { this.other.onmessage?.({ data }); }
}
globalThis.MessageChannel = class {
  port1 = new Port();
  port2 = new Port();
  constructor() { [this.port1.other, this.port2.other] = [this.port2, this.port1]; }
};

export class FakeWorker extends EventTarget {
  sent = [];
  onmessage = null;
  onerror = null;
  constructor(url) {
    super();
    this.url = url;
    world.workers.push(this);
  }
  postMessage(message) {
    this.sent.push(message);
    if (message.type === "setup") this.port = message.playout;
  }
  say(message) {
    this.onmessage?.({ data: message });
    this.dispatchEvent(new Event("message"));
  }
  fail(message) { this.onerror?.({ message, preventDefault() {} }); }
  terminate() { this.gone = true; }
  begin(id) { this.port.postMessage({ type: "begin", id, rate: 24000, maxPrerollMs: 2000 }); }
  audio(id, first, samples) {
    this.port.postMessage({ type: "audio", id, first, pcm: new Int16Array(samples).fill(8192) });
  }
  complete(id, samples) {
    this.port.postMessage({ type: "complete", id, samples });
    this.say({ type: "verified", id, samples, digest: "" });
  }
  /** All of an utterance at once. */
  speak(id, samples) {
    this.begin(id);
    this.audio(id, 0, samples);
    this.complete(id, samples);
  }
  of(type) { return this.sent.filter((each) => each.type === type); }
}

export class FakeContext {
  state = "suspended";
  currentTime = 0;
  outputLatency = 0;
  destination = {};
  heard = 0; // samples that were not silent
  audioWorklet = {
    addModule: async () => {
      if (!world.loads) throw new Error("away");
    },
  };
  constructor() {
    if (!world.constructs) throw new Error("too many contexts");
    world.contexts.push(this);
  }
  createGain() { return { connect() {} }; }
  turn(state) {
    this.state = state;
    this.onstatechange?.();
  }
  async resume() { this.turn("running"); }
  async suspend() { this.turn("suspended"); }
  async close() { this.turn("closed"); }
  render() {
    if (this.state !== "running" || this.frozen) return;
    this.currentTime += STEP_MS / 1000;
    const { playout, failed } = this.node ?? {};
    if (!playout || failed) return;
    playout.now = this.currentTime;
    const out = new Float32Array((playout.tune() * STEP_MS) / 1000);
    playout.pull(out, out.length);
    this.heard += out.filter((x) => x !== 0).length;
    playout.tick();
  }
}

globalThis.AudioWorkletNode = class {
  failed = false; // as after an exception in `process`
  deaf = false;
  constructor(context) {
    context.node = this;
    this.playout = new Playout((message) => this.port.onmessage?.({ data: { ...message } }));
    this.port = { onmessage: null, postMessage: (message) => this.deaf || this.playout.command(message) };
  }
  connect() {}
  fail() {
    this.failed = true;
    this.onprocessorerror?.();
  }
};

/** As a page that was just opened: nothing is left of the one before. */
export function reset() {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  Object.assign(world, { workers: [], contexts: [], loads: true, constructs: true, revoked: 0 });
  world.listeners.clear();
  globalThis.Worker = FakeWorker;
  globalThis.AudioContext = FakeContext;
}

const settle = () => new Promise((resolve) => setImmediate(resolve));

/** Time passes. */
export async function pass(ms) {
  await settle();
  for (let left = ms; left > 0; left -= STEP_MS) {
    world.now += STEP_MS;
    mock.timers.tick(STEP_MS);
    for (const context of world.contexts) context.render();
    await settle();
  }
}
