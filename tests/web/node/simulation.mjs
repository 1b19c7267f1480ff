// One session of the page against the fake server, over lines that break where they are told to, in their own time.

import assert from "node:assert/strict";
import { Session } from "../../../demo_web/session.js";
import { FakeServer, PACKET, PRE_SKIP, RATE, speech } from "./fake_server.mjs";

const GARBAGE = 30_000; // what a new decoder gives before it has settled
const SETTLE = 1_600;

/** Numbers that only depend on the seed. */
export function seeded(seed) {
  let state = (seed + 1) * 0x9e3779b1;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** What a listener has of one utterance, and what it should have. */
class Heard {
  constructor() {
    Object.assign(this, {
      samples: [],
      kept: [],
      position: 0,
      text: "",
      over: null,
      events: [],
      verified: false,
      restarts: 0,
      decoder: null,
      played: 0,
    });
  }

  /** What was kept when another session went on, and what that says. */
  get expected() {
    return [...this.kept, ...speech([...this.text].slice(this.position).join(""))];
  }

  take(effect) {
    const { codec, first, count, payload, silence, reset, skip } = effect;
    if (codec === "pcm") {
      assert.equal(first, this.samples.length, "audio goes on where it ended");
      if (silence) return this.add(Array(count).fill(0));
      assert.equal(payload.length, 2 * count);
      const view = new DataView(payload.buffer, payload.byteOffset, payload.length);
      return this.add(Array.from({ length: count }, (_, i) => view.getInt16(2 * i, true)));
    }
    assert.equal(count, payload.length * PACKET);
    if (reset) this.decoder = { at: first, settled: first - (this.base ?? 0) === 0 ? 0 : SETTLE };
    assert.equal(this.decoder?.at, first, "the decoder goes on where it was");
    this.decoder.at += count;
    let samples = payload.flatMap((packet) => {
      const view = new DataView(packet.buffer, packet.byteOffset, packet.length);
      return Array.from({ length: packet.length / 2 }, (_, i) => view.getInt16(2 * i, true));
    });
    samples = samples.map((sample) => (this.decoder.settled-- > 0 ? GARBAGE : sample));
    assert.ok(skip >= 0 && skip <= count);
    assert.equal(first + skip - PRE_SKIP, skip < count ? this.samples.length : first + skip - PRE_SKIP);
    this.add(samples.slice(skip));
  }

  add(samples) {
    assert.equal(this.over, null, "nothing comes after the end");
    for (const sample of samples) this.samples.push(sample);
  }
}

/**
 * `faults`: {[point]: what} where a point is `s` or `c` and the number of a message that the server or the client sent,
 * and what is `cut` (the connection breaks before it arrives), `cut after`, `hole` (nothing passes any more, nobody is
 * told), `pause` (nothing passes for 2 s), `lose` (that message) or `twice` (that event), `forget` (the server loses the
 * session, and the connection breaks).
 */
export class Simulation {
  constructor({ open = {}, server = {}, faults = {}, seed = 0, delay = 20, reconnectMs = 60_000 } = {}) {
    Object.assign(this, {
      now: 0,
      queue: [],
      order: 0,
      faults,
      delay,
      effects: [],
      heard: new Map(),
      states: [],
      counts: { s: 0, c: 0 },
    });
    this.lines = new Map(); // connection: {up, dropped, held: until when nothing passes, last: arrivals each way}
    this.random = seeded(seed);
    this.session = new Session(open, { random: this.random, reconnectMs });
    const wire = {
      send: (connection, data) => this.pass(connection, "s", data, (each) => this.arrive(connection, each)),
      cut: (connection) => this.break(connection),
      wake: () => {},
      now: () => this.now,
    };
    this.server = new FakeServer(wire, { ...server, switches: open.format === "auto" });
    this.pacing = false;
    this.down = [Infinity, -Infinity]; // connections are refused between these times
  }

  // ---- time ----

  at(time, what) {
    const entry = { time: Math.max(time, this.now), order: this.order++, what };
    let index = this.queue.length;
    while (index > 0 && this.queue[index - 1].time > entry.time) index--;
    this.queue.splice(index, 0, entry);
  }

  run(until) {
    for (let steps = 0; this.queue.length && this.queue[0].time <= until; steps++) {
      assert.ok(steps < 100_000, "the simulation does not end");
      const { time, what } = this.queue.shift();
      this.now = time;
      what();
    }
    this.now = until;
  }

  // ---- lines ----

  pass(connection, side, data, deliver) {
    const line = this.lines.get(connection);
    if (!line?.up) return;
    const fault = this.faults[`${side}${++this.counts[side]}`];
    if (fault === "forget") this.server.sessionsById.clear();
    if (fault === "hole") line.held = Infinity;
    if (fault === "pause") line.held = this.now + 2_000;
    if (fault === "cut" || fault === "forget") return this.break(connection);
    // Where PCM turns into Opus a frame that is missing alone is only found at the end, by the digest.
    if (fault === "lose" && (typeof data === "string" || !this.server.options.switches)) return;
    const time = Math.max(line.held ?? 0, this.now + this.delay, line.last[side] ?? 0);
    if (time === Infinity) return;
    line.last[side] = time;
    for (let copy = fault === "twice" && String(data).includes('"event":') ? 2 : 1; copy > 0; copy--)
      this.at(time, () => this.lines.get(connection) === line && line.up && deliver(data));
    if (fault === "cut after") this.at(time, () => this.break(connection));
  }

  break(connection) {
    const line = this.lines.get(connection);
    if (!line?.up) return;
    line.up = false;
    this.server.closed(connection, 1006);
    if (line.held === Infinity) return;
    this.at(this.now + this.delay, () => !line.dropped && this.do(this.session.closed(connection, 1006, "", this.now)));
  }

  arrive(connection, data) {
    if (this.lines.get(connection)?.dropped) return;
    if (typeof data === "string") this.do(this.session.text(connection, data, this.now));
    else this.do(this.session.binary(connection, data, this.now));
  }

  // ---- the shell ----

  do(effects) {
    for (const effect of effects) {
      this.effects.push({ ...effect, now: this.now });
      this.execute(effect);
    }
    const due = this.session.deadline;
    if (due !== null && due !== this.armed) {
      this.armed = due;
      this.at(due, () => {
        if (this.session.deadline === due) {
          this.armed = null;
          this.do(this.session.tick(this.now));
        }
      });
    }
    this.pace();
  }

  execute(effect) {
    if (effect.type === "connect") {
      const { connection } = effect;
      const line = { up: true, last: {}, dropped: false };
      this.lines.set(connection, line);
      if (this.now >= this.down[0] && this.now < this.down[1]) {
        line.up = false;
        const problem = { code: "unreachable", message: "down", retryable: true };
        return this.at(this.now + 5, () => this.do(this.session.refused(connection, problem, this.now)));
      }
      this.at(
        this.now + 2 * this.delay,
        () => line.up && !line.dropped && this.do(this.session.connected(connection, this.now)),
      );
    } else if (effect.type === "send") {
      this.pass(effect.connection, "c", effect.data, (data) => {
        this.server.receive(effect.connection, data);
        this.pace();
      });
    } else if (effect.type === "drop") {
      const line = this.lines.get(effect.connection);
      line.dropped = true;
      if (line.up && line.held !== Infinity)
        this.at(Math.max(line.held ?? 0, this.now + this.delay), () => {
          line.up = false;
          this.server.closed(effect.connection, effect.code);
        });
    } else if (effect.type === "state") {
      this.states.push(
        effect.state === "failed"
          ? `failed ${effect.detail.code}: ${effect.detail.message}`
          : `${effect.state} ${effect.reason}`.trim(),
      );
    } else {
      this.tell(effect);
    }
  }

  of(number) {
    if (!this.heard.has(number)) this.heard.set(number, new Heard());
    return this.heard.get(number);
  }

  tell(effect) {
    const heard = this.of(effect.type === "event" ? effect.message.utterance : effect.utterance);
    if (effect.type === "audio") return heard.take(effect);
    if (effect.type === "verified") {
      assert.equal(effect.samples, heard.samples.length);
      heard.verified = true;
      return;
    }
    if (effect.type === "restarted") {
      assert.ok(effect.sample <= heard.samples.length, "only what is here is kept");
      heard.samples.length = effect.sample;
      heard.kept = heard.expected.slice(0, effect.sample);
      heard.position = effect.position;
      heard.base = effect.sample;
      heard.decoder = null;
      heard.restarts++;
      return;
    }
    const { message } = effect;
    assert.ok(message.event > (this.lastEvent ?? 0), "events grow");
    this.lastEvent = message.event;
    heard.events.push(message);
    if (message.type === "done" || message.type === "cancelled") heard.over = message;
    if (message.type === "done") heard.samples.length = Math.min(heard.samples.length, message.samples); // padding
    this.pace();
  }

  /** The server sends an item each millisecond, as far as it may; it says that it is alive. */
  pace() {
    if (this.pacing) return;
    this.pacing = true;
    const step = () => {
      let more = false;
      for (const session of this.server.sessionsById.values()) more = session.step() || more;
      if (more) this.at(this.now + 1, step);
      else this.pacing = false;
    };
    this.at(this.now, step);
  }

  start() {
    const beat = () => {
      for (const session of this.server.sessionsById.values()) {
        const owes = [...session.utterances.values()].some((each) => session.isUnfinished(each));
        if (owes || this.now % 15_000 === 0) session.send({ type: "heartbeat" });
      }
      this.at(this.now + 500, beat);
    };
    this.at(500, beat);
    this.do(this.session.start(this.now));
    return this;
  }

  /** Plays what is here, as fast as time goes, and tells so every 100 ms. */
  play(step = 100) {
    const report = () => {
      for (const number of [...this.heard.keys()].sort((a, b) => a - b)) {
        const heard = this.heard.get(number);
        if (heard.over?.type === "cancelled" || (heard.over && heard.played >= heard.over.samples)) continue;
        heard.played = Math.min(heard.samples.length, heard.played + (RATE * step) / 1_000);
        this.do(
          this.session.played(
            number,
            heard.played,
            ((heard.samples.length - heard.played) * 1_000) / RATE,
            0,
            this.now,
          ),
        );
        break;
      }
      this.at(this.now + step, report);
    };
    this.at(this.now + step, report);
  }

  // ---- the writer ----

  say(number, text) {
    this.of(number).text += text;
    this.do(this.session.write(text, this.now));
  }

  /** Checks that an utterance was said as a whole, sample by sample. */
  check(number) {
    const heard = this.of(number);
    assert.equal(heard.over?.type, "done", `utterance ${number} is complete`);
    const { expected } = heard;
    assert.equal(heard.samples.length, expected.length, "samples");
    const wrong = expected.findIndex((sample, index) => sample !== heard.samples[index]);
    assert.equal(wrong, -1, `sample ${wrong} is ${heard.samples[wrong]} instead of ${expected[wrong]}`);
    assert.equal(heard.over.samples, expected.length);
    if (heard.restarts) return;
    assert.ok(heard.verified);
    const begun = heard.events.filter((each) => each.type === "segment_begin");
    let at = 0;
    for (const [index, event] of begun.entries()) {
      assert.deepEqual([event.segment, event.start], [index, at], "segments follow each other");
      at = event.end;
    }
    assert.equal(at, [...heard.text].length);
    assert.equal(heard.events.filter((each) => each.type === "segment_end").length, begun.length);
    const words = heard.events.filter((each) => each.type === "timing").flatMap((each) => each.words);
    if (this.server.options.words)
      assert.equal(words.map((each) => each.text).join(" "), heard.text.trim().replace(/\s+/g, " "));
    assert.equal(heard.events.filter((each) => each.type === "done").length, 1);
  }
}
