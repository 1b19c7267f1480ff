import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { FakeWorker, pass, reset, tap, world } from "./fake_browser.mjs";
import { Player, PlayerError } from "../../../demo_web/player.js";

const SECOND = 24000;
const KINDS = ["failure", "audio", "ended", "stopped", "state"];

/** A player, what it told, and what became of its utterances. */
class Desk {
  told = [];
  became = {};
  constructor(options = {}) {
    reset();
    this.player = new Player({ url: "http://speech.test/", ...options });
    for (const kind of KINDS) this.player.addEventListener(kind, ({ detail }) => this.told.push({ kind, ...detail }));
  }
  speak(text = "One.") {
    const utterance = this.player.speak(text);
    const { id } = utterance;
    this.became[id] = "pending";
    utterance.finished.then(
      ({ heardAll, samples }) => { this.became[id] = heardAll ? `heard ${samples}` : `stopped ${samples}`; },
      ({ code }) => { this.became[id] = code; },
    );
    return id;
  }
  /** An utterance of so many samples, and the ready sound. */
  async sounding(samples, ms = 200) {
    const id = this.speak();
    await pass(20);
    this.worker.speak(id, samples);
    await pass(ms);
    return id;
  }
  get worker() { return world.workers.at(-1); }
  get context() { return world.contexts.at(-1); }
  of(kind) { return this.told.filter((each) => each.kind === kind); }
}

let desk = /** @type {Desk} */ (/** @type {unknown} */ (null));
beforeEach(() => { desk = new Desk(); });

test("a value that is not allowed is refused where it is given, and what is being said goes on", async () => {
  const id = await desk.sounding(SECOND / 2);
  const cases = [
    ["speed", 9, "from 0.5 to 2"], ["pitch", "1", "from 0.5 to 2"], ["volume", NaN, "from 0 to 2"],
    ["voice", "", "1 to 128"], ["format", "mp3", "auto, opus, pcm, switch"], ["mode", null, "auto, stream, block"],
    ["prerollMs", -1, "from 0 to"],
  ];
  for (const [field, value, allowed] of cases) {
    for (const give of [() => desk.player.set({ [field]: value }), () => new Player({ [field]: value })]) {
      assert.throws(give, (error) =>
        error instanceof PlayerError && error.code === "bad_value" && error.field === field &&
        error.message.startsWith(`${field} must be`) && error.message.includes(allowed));
    }
  }
  for (const [field, give] of [
    ["voise", () => desk.player.set({ voise: "x" })], ["voise", () => new Player({ voise: "x" })],
    ["toString", () => desk.player.set({ toString: 1 })],
    ["url", () => desk.player.set({ url: "/" })], ["token", () => desk.player.set({ token: "t" })],
  ]) {
    assert.throws(give, (error) =>
      error instanceof PlayerError && error.code === "bad_value" && error.field === field &&
      error.message.startsWith(`${field} is not among voice, speed`));
  }
  desk.player.set({ speed: 2, pitch: null, voice: "a", format: "switch", prerollMs: 0, volume: undefined });
  await pass(500);
  assert.equal(desk.became[id], "heard 12000");
  desk.speak();
  assert.equal(desk.worker.of("begin").at(-1).start.speed, 2);
});

test("a session that fails takes only what was not over in it", async () => {
  const first = await desk.sounding(SECOND);
  const second = desk.speak();
  const detail = { code: "busy", message: "full", retryable: true, retryAfterMs: 5000 };
  desk.worker.say({ type: "state", state: "failed", reason: "full", detail, ids: [second] });
  await pass(50);
  assert.deepEqual(desk.became, { [first]: "pending", [second]: "busy" });
  assert.deepEqual([desk.of("failure")[0].retryAfterMs, desk.worker.of("cancel").length], [5000, 0]);
  await pass(1000);
  assert.equal(desk.became[first], "heard 24000");
  assert.deepEqual(desk.of("ended").map(({ id }) => id), [first]);
});

test("what is begun while the worker says that a session failed is not taken with it", async () => {
  const first = desk.speak();
  const second = desk.player.speak();
  const detail = { code: "internal", message: "x" };
  desk.worker.say({ type: "state", state: "failed", reason: "x", detail, ids: [first] });
  second.write("Two.");
  assert.equal(desk.worker.of("write").at(-1).id, second.id);
});

test("a failure that the page finds is told to the worker and the audio thread", async () => {
  const first = desk.speak();
  await pass(20);
  desk.worker.begin(first);
  desk.worker.audio(first, 0, SECOND);
  await pass(200);
  desk.worker.audio(first, 2 * SECOND, SECOND);
  await pass(50);
  assert.equal(desk.became[first], "misbehaved");
  assert.deepEqual(desk.worker.of("cancel"), [{ type: "cancel", id: null, played: null }]);
  const { heard } = desk.context;
  await pass(200);
  assert.equal(desk.context.heard, heard);
  const second = await desk.sounding(SECOND / 2, 600);
  assert.equal(desk.became[second], "heard 12000");
});

for (const [what, breakIt] of [
  ["no Web Audio", () => { delete globalThis.AudioContext; }],
  ["a context that cannot be made", () => { world.constructs = false; }],
]) {
  test(`${what} fails what was to be said, and the next one tries again`, async () => {
    const kept = globalThis.AudioContext;
    breakIt();
    const first = desk.speak();
    await pass(20);
    assert.equal(desk.became[first], "no_audio");
    tap();
    await pass(20);
    assert.equal(desk.of("failure").length, 1);
    [globalThis.AudioContext, world.constructs] = [kept, true];
    const second = await desk.sounding(SECOND / 2, 600);
    assert.equal(desk.became[second], "heard 12000");
  });
}

test("sound that can never be loaded fails, and the next one tries again", async () => {
  world.loads = false;
  const { createGain } = globalThis.AudioContext.prototype;
  let gains = 0;
  globalThis.AudioContext.prototype.createGain = function () {
    if (gains++ && !world.loads) throw new Error("away"); // as the module of the other way is
    return createGain.call(this);
  };
  const first = desk.speak();
  await pass(100_000);
  assert.equal(desk.became[first], "pending");
  await pass(30_000);
  assert.equal(desk.became[first], "no_audio");
  globalThis.AudioContext.prototype.createGain = createGain;
  world.loads = true;
  const second = await desk.sounding(SECOND / 2, 600);
  assert.equal(desk.became[second], "heard 12000");
});

test("a worker that fails is replaced", async () => {
  const first = await desk.sounding(SECOND);
  const [old] = world.workers;
  document.visibilityState = "hidden";
  for (const act of world.listeners.get("visibilitychange") ?? []) act();
  document.visibilityState = "visible";
  old.fail("a bug");
  await pass(50);
  assert.deepEqual([desk.became[first], desk.of("failure")[0].code, old.gone], ["no_worker", "no_worker", true]);
  assert.equal(world.workers.length, 2);
  assert.deepEqual(desk.worker.of("visible"), [{ type: "visible", visible: false }]);
  old.speak(first, SECOND);
  const second = await desk.sounding(SECOND / 2, 600);
  assert.equal(desk.became[second], "heard 12000");
});

test("the address of a worker that imports another is given back", async () => {
  globalThis.Worker = class extends FakeWorker {
    constructor(url) {
      if (!url.startsWith("blob:")) throw new Error("of another origin");
      super(url);
    }
  };
  new Player({ url: "http://speech.test/" });
  assert.equal(world.revoked, 0);
  world.workers.at(-1).say({ type: "warning", code: "x", message: "" });
  assert.equal(world.revoked, 1);
});

test("what is written after the end is no text of it", () => {
  const utterance = desk.player.speak();
  utterance.write("One. ");
  utterance.end();
  utterance.write("Two.");
  assert.equal(utterance.text, "One. ");
  assert.equal(desk.worker.of("write").length, 1);
});

test("stop resolves where the audio thread does not answer; what it says later is nobody's", async () => {
  const id = await desk.sounding(SECOND);
  desk.context.node.deaf = true;
  const stopped = desk.player.stop();
  await pass(120);
  assert.equal((await stopped).id, id);
  assert.match(desk.became[id], /^stopped/);
});

for (const more of [false, true]) {
  test(`heard to its end, not verified yet: a stop${more ? " of what comes after it" : ""} leaves it as it is`, async () => {
    const id = desk.speak();
    await pass(20);
    desk.worker.begin(id);
    desk.worker.audio(id, 0, SECOND / 2);
    desk.worker.port.postMessage({ type: "complete", id, samples: SECOND / 2 });
    await pass(600);
    assert.deepEqual([desk.became[id], desk.of("ended").length], ["pending", 1]);
    const next = more && desk.speak("Two.");
    await Promise.all([desk.player.stop(), pass(200)]);
    assert.equal(desk.became[id], "pending");
    assert.deepEqual(desk.of("stopped").map((each) => each.id), more ? [next] : []);
    desk.worker.say({ type: "verified", id, samples: SECOND / 2 });
    await pass(20);
    assert.equal(desk.became[id], "heard 12000");
    if (more) assert.equal(desk.became[next], "stopped 0");
  });
}

test("text that is no string is refused where it is given, and what is being said goes on", async () => {
  const id = await desk.sounding(SECOND / 2);
  const written = desk.player.speak();
  for (const text of [null, 7, {}, ["a"]]) {
    assert.throws(() => desk.player.speak(text), TypeError);
    assert.throws(() => written.write(text), TypeError);
  }
  written.write("One.");
  assert.equal(written.text, "One.");
  assert.equal(desk.worker.of("write").at(-1).id, written.id);
  await pass(500);
  assert.equal(desk.became[id], "heard 12000");
});

test("a closed player says so to whoever speaks", async () => {
  desk.player.close();
  const id = desk.speak();
  await pass(20);
  assert.equal(desk.became[id], "closed");
});

// ---- contexts that fail ----

test("an audio thread that fails is replaced; one that fails again is not, until the next text", async () => {
  const first = await desk.sounding(SECOND);
  desk.context.node.fail();
  await pass(400);
  assert.equal(world.contexts.length, 2);
  assert.deepEqual([desk.became[first], desk.of("failure").length], ["pending", 0]);
  desk.context.node.fail();
  await pass(1000);
  assert.deepEqual([desk.became[first], world.contexts.length], ["no_audio", 2]);
  const second = await desk.sounding(SECOND / 2, 600);
  assert.equal(desk.became[second], "heard 12000");
});

test("a failed audio thread that was replaced plays all", async () => {
  const id = await desk.sounding(SECOND);
  desk.context.node.fail();
  await pass(1200);
  assert.equal(desk.became[id], "heard 24000");
  const heard = world.contexts.reduce((sum, context) => sum + context.heard, 0);
  assert.ok(Math.abs(heard - SECOND) < 10, `${heard}`);
});

for (const tapped of [false, true]) {
  test(`a clock that stands still${tapped ? "; a tap while the old context hands over" : ""}`, async () => {
    const id = await desk.sounding(SECOND);
    const [old] = world.contexts;
    const { port } = old.node;
    const command = port.postMessage;
    port.postMessage = (message) => { setTimeout(() => command(message), 60); };
    old.frozen = true;
    while (old.state !== "closed" && desk.of("audio").at(-1).state !== "frozen") await pass(10);
    if (tapped) tap();
    await pass(30);
    assert.equal(world.contexts.length, tapped ? 2 : 1);
    await pass(1300);
    assert.deepEqual([world.contexts.length, desk.became[id]], [2, "heard 24000"]);
  });
}

test("an audio thread that gives nothing back: what was unfinished fails, the next text is heard", async () => {
  const first = await desk.sounding(SECOND);
  desk.context.node.deaf = desk.context.frozen = true;
  await pass(1500);
  assert.deepEqual([desk.became[first], world.contexts.length, world.workers.length], ["no_audio", 2, 2]);
  const second = await desk.sounding(SECOND / 2, 600);
  assert.equal(desk.became[second], "heard 12000");
});

test("what failed because the clock stood still is not heard when it runs again", async () => {
  const first = await desk.sounding(SECOND);
  const make = globalThis.AudioContext;
  globalThis.AudioContext = class extends make {
    frozen = true;
  };
  desk.context.frozen = true;
  while (desk.became[first] === "pending") await pass(100);
  assert.deepEqual(desk.of("failure").map(({ code, retryable }) => [code, retryable]), [["no_audio", true]]);
  globalThis.AudioContext = make;
  const before = world.contexts.length;
  while (world.contexts.length === before) await pass(100);
  await pass(500);
  assert.equal(desk.context.heard, 0);
  const second = await desk.sounding(SECOND / 2, 600);
  assert.equal(desk.became[second], "heard 12000");
});

test("closed while the old context hands over, it makes no other", async () => {
  await desk.sounding(SECOND);
  const [old] = world.contexts;
  old.node.deaf = old.frozen = true;
  while (desk.of("audio").at(-1).state !== "frozen") await pass(10);
  desk.player.close();
  await pass(1500);
  assert.deepEqual([world.contexts.length, old.state], [1, "closed"]);
  tap();
  await pass(20);
  assert.equal(world.contexts.length, 1);
});

// ---- rest ----

test("with nothing to say for long the context rests; a tap leaves it, the next text wakes it", async () => {
  const first = await desk.sounding(SECOND / 2, 600);
  assert.equal(desk.became[first], "heard 12000");
  await pass(29_000);
  assert.equal(desk.context.state, "running");
  await pass(2_000);
  assert.equal(desk.context.state, "suspended");
  tap();
  await pass(1_000);
  assert.equal(desk.context.state, "suspended");
  const { context } = desk;
  const resume = context.resume;
  const woken = (done) => setTimeout(() => resume.call(context).then(done), 150);
  context.resume = () => new Promise(woken); // devices take their time
  const second = await desk.sounding(SECOND / 2, 800);
  assert.equal(desk.became[second], "heard 12000");
  assert.ok(desk.of("audio").every(({ needsTap }) => !needsTap));
  assert.equal(world.contexts.length, 1);
});

test("what is still being written keeps it awake", async () => {
  desk.player.speak().write("One");
  await pass(40_000);
  assert.equal(desk.context.state, "running");
});

test("a context that may not be woken asks for a tap", async () => {
  await desk.sounding(SECOND / 2, 600);
  await pass(31_000);
  const { context } = desk;
  const resume = context.resume;
  context.resume = () => new Promise(() => {});
  const id = await desk.sounding(SECOND / 2, 600);
  assert.ok(desk.of("audio").at(-1).needsTap);
  context.resume = resume;
  tap();
  await pass(800);
  assert.equal(desk.became[id], "heard 12000");
});
