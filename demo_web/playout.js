/**
 * What waits to be played, and what to play now. Knows nothing of the browser but its ports' `postMessage`.
 *
 * As the Python client's playout: playing begins when the pre-roll is there (or the utterance is complete), and again
 * after it ran dry. The last samples before a hole are faded out, and it is faded in where it goes on. Positions are
 * samples of an utterance's own timeline, at its own rate; times are seconds of the audio context's clock.
 */

import { Preroll, Waiting } from "./waiting.js";

const PATIENCE = 2; // times the pre-roll: what is here by then is played, though it is less ...
const STILL_S = 0.5; // ... and so it is when nothing more came for so long: the server may wait for the listener
export const FADE_S = 0.005; // shorter clicks, longer is heard as a hole
const REST_S = 0.02; // of silence between utterances of different rates: the resampler's tail is out by then
const REPORT_S = 0.05;
const PLAYED_S = 0.1;

/**
 * @typedef {"idle" | "waiting" | "playing" | "stalled"} PlayState
 * @typedef {{type: string, id: number, rate?: number, maxPrerollMs?: number, first?: number, samples?: number,
 *   pcm?: Int16Array | Float32Array}} FromWorker
 * @typedef {{id: number, rate: number, taken: number, received: number, crc: number | null, stalls: number,
 *   started: boolean, complete: boolean, between: boolean, chunks: Waiting["chunks"]}} Kept
 * @typedef {{type: string, id?: number, atOnce?: boolean, ms?: number, port?: MessagePort, kept?: Kept[],
 *   late?: FromWorker[]}} FromPlayer
 * @typedef {(message: object, transfer?: Transferable[]) => void} Post
 */

/** The utterances that wait, the messages about them, and when playing may begin. */
export class Queue {
  preroll = new Preroll();
  /** @type {Waiting[]} the first is the one being played */
  waiting = [];
  running = false;
  now = 0;
  #over = 0; // utterances up to this id are over
  #waitedFor = 0; // seconds since there was something to play ...
  #still = 0; // ... and since the last of it came
  /** @type {MessagePort | null} to the worker */
  #port = null;
  #said = "idle";
  #reportAt = 0;
  #playedAt = 0;
  #report = { type: "report", id: 0, rate: 0, played: 0, received: 0, crc: /** @type {number | null} */ (0),
    bufferedMs: 0, prerollMs: 0, stalls: 0, state: this.state, time: 0 };

  /** @param {Post} post to the player */
  constructor(post) {
    this.post = post;
  }

  /** @returns {PlayState} */
  get state() {
    const head = this.waiting[0];
    if (!head) return "idle";
    return this.running ? "playing" : head.started && !head.between && !head.complete ? "stalled" : "waiting";
  }

  /** How far an utterance was played. @param {Waiting} one @returns {number} */
  played(one) {
    return one.taken;
  }

  /** When that sounds. */
  get time() {
    return this.now;
  }

  /** A message of the player. @param {FromPlayer} message */
  command({ type, id = 0, atOnce, ms = 0, port, kept = [], late = [] }) {
    if (type === "stop") this.stop(id, atOnce);
    else if (type === "preroll") this.preroll.base = ms / 1000;
    else if (type === "port" && port) {
      for (const one of kept) if (one.id > this.#over) this.waiting.push(Waiting.of(one));
      if (this.#port) this.#port.onmessage = null;
      this.#port = port;
      port.onmessage = ({ data }) => this.receive(data);
      for (const message of late) this.receive(message);
    } else if (type === "leave") {
      const left = this.#port;
      this.#port = null;
      if (left) left.onmessage = ({ data }) => late.push(data); // until another one listens, in the same thread
      for (const one of this.waiting) one.rewind(this.played(one));
      this.post({ type: "left", port: left, kept: this.waiting.splice(0), late }, left ? [left] : []);
    }
  }

  /** A message of the worker. @param {FromWorker} message */
  receive({ type, id, rate = 24000, maxPrerollMs, first = 0, samples, pcm }) {
    if (id <= this.#over) return;
    const one = this.waiting.find((other) => other.id === id);
    if (type === "begin" && !one) {
      this.waiting.push(new Waiting(id, rate));
      if (maxPrerollMs) this.preroll.longest = maxPrerollMs / 1000;
      this.preroll.pause();
    }
    if (!one) return;
    if (type === "audio" && pcm?.length) {
      if (first !== one.received) return this.tell("broken", one);
      one.push(pcm);
      this.#still = 0;
      this.preroll.arrived(pcm.length / one.rate, this.now);
      if (first === 0) this.tell("first", one);
    } else if (type === "restart") {
      one.cut(first);
      this.preroll.pause();
    } else if (type === "between" || type === "complete") {
      one[type] = true;
      this.preroll.pause();
      if (type === "complete" && samples !== undefined && samples !== one.received) this.tell("broken", one);
    }
  }

  /**
   * Begins to play if it is time to. @param {number} seconds that passed since it was asked last
   * @returns {boolean} whether it did
   */
  start(seconds) {
    const head = this.waiting[0];
    if (!head?.buffered) return false;
    this.#waitedFor += seconds;
    this.#still += seconds;
    const wanted = this.preroll.seconds;
    const enough = head.complete || head.buffered >= wanted * head.rate;
    if (!enough && this.#waitedFor < PATIENCE * wanted && this.#still < STILL_S) return false;
    this.#waitedFor = this.#still = 0;
    this.running = true;
    if (!head.started) this.tell("audible", head);
    head.started = true;
    return true;
  }

  /** The first one has nothing left to be played now. */
  ranDry() {
    const head = this.waiting[0];
    this.running = false;
    if (!head || !head.started || head.complete || head.between) return;
    head.stalls++;
    this.preroll.stalled();
  }

  /** The first one was played to its end. */
  end() {
    const head = this.waiting.shift();
    if (!head) return;
    this.#over = head.id;
    this.#waitedFor = this.#still = 0;
    this.tell("ended", head);
  }

  /**
   * All up to this id are over, and nothing of them is taken any more.
   * @param {number} id @param {boolean} [_atOnce] no sample is wanted any more, not even for a fade
   */
  stop(id, _atOnce) {
    this.#over = Math.max(this.#over, id);
    const head = this.waiting[0];
    if (head && head.id > id) return;
    this.running = false;
    this.#waitedFor = this.#still = 0;
    this.waiting = this.waiting.filter((one) => one.id > id);
    if (head) this.tell("stopped", head);
    else this.post({ type: "stopped", id: 0, played: 0, time: this.now });
  }

  /** @param {"first" | "audible" | "ended" | "stopped" | "broken"} type @param {Waiting} one */
  tell(type, one) {
    this.post({ type, id: one.id, played: this.played(one), time: this.time });
    if (type !== "ended" && type !== "stopped") return;
    this.#acknowledge(one);
    this.say(one);
  }

  /** Says where things stand, where that is due. */
  tick() {
    const head = this.waiting[0];
    const state = this.state;
    if (state !== this.#said || (head && (head.id !== this.#report.id || this.now >= this.#reportAt))) this.say();
    if (head && this.now >= this.#playedAt) this.#acknowledge(head);
  }

  /** @param {Waiting} one */
  #acknowledge(one) {
    this.#playedAt = this.now + PLAYED_S;
    const { id, stalls } = one;
    const bufferedMs = this.#bufferedMs(one);
    this.#port?.postMessage({ type: "played", id, sample: this.played(one), bufferedMs, stalls });
  }

  /** @param {Waiting} one */
  #bufferedMs(one) {
    return Math.round(((one.received - this.played(one)) * 1000) / one.rate);
  }

  /** @param {Waiting} [about] */
  say(about = this.waiting[0]) {
    const report = this.#report;
    if (about) {
      report.id = about.id;
      report.rate = about.rate;
      report.played = this.played(about);
      report.received = about.received;
      report.crc = about.crc;
      report.bufferedMs = this.#bufferedMs(about);
      report.stalls = about.stalls;
    }
    report.prerollMs = Math.round(this.preroll.seconds * 1000);
    report.state = this.#said = this.state;
    report.time = this.time;
    this.#reportAt = this.now + REPORT_S;
    this.post(report);
  }
}

/** What a sound device pulls from: exactly as many samples as it asks for. */
export class Playout extends Queue {
  rate = 24000;
  #gain = 1;
  #rest = REST_S; // seconds of silence since the last sample
  #stop = 0; // a stop of ids up to this one fades out ...
  #stopAt = 0; // ... until here, over so many samples
  #stopFade = 0;
  ahead = 0; // seconds between what was pulled last and its sound

  get time() {
    return this.now + this.ahead;
  }

  /**
   * As above, once they are faded out.
   * @param {number} id @param {boolean} [atOnce]
   */
  stop(id, atOnce = false) {
    const head = this.waiting[0];
    if (!head || head.id > id || !this.running || !head.buffered || atOnce) return super.stop(id);
    this.#stop = id;
    this.#stopFade = Math.min(head.buffered, Math.ceil(FADE_S * head.rate));
    this.#stopAt = head.taken + this.#stopFade;
  }

  /** @param {FromPlayer} message */
  command(message) {
    if (message.type === "leave" && this.#stop >= (this.waiting[0]?.id ?? Infinity)) super.stop(this.#stop);
    super.command(message);
  }

  /** The rate of what is pulled next: that of the utterance to be played, once all of the one before is out. */
  tune() {
    const head = this.waiting[0];
    if (head && this.#rest >= REST_S) this.rate = head.rate;
    return this.rate;
  }

  /**
   * What to play now: silence where there is no audio.
   * @param {Float32Array} out @param {number} count samples at `rate`
   */
  pull(out, count) {
    let done = 0;
    for (let head = this.waiting[0]; head; head = this.waiting[0]) {
      if (!head.buffered && head.complete) {
        this.end();
        continue;
      }
      if (head.rate !== this.rate || done === count) break;
      if (!(head.started && this.running) && !this.#begin(head, count - done)) break;
      const stopping = this.#stop >= head.id;
      const now = Math.min(count - done, head.buffered, stopping ? this.#stopAt - head.taken : Infinity);
      this.#take(head, out, done, now, stopping);
      done += now;
      if (stopping && (head.taken >= this.#stopAt || !head.buffered)) super.stop(this.#stop);
      else if (!head.buffered && !head.complete) break;
    }
    this.preroll.played(done / this.rate);
    this.#rest = done ? 0 : this.#rest + count / this.rate;
    if (done < count) {
      if (this.running) this.ranDry();
      out.fill(0, done, count);
    }
  }

  /** @param {Waiting} head @param {number} silent samples of silence, if it cannot begin */
  #begin(head, silent) {
    const again = head.started;
    if (!this.start(silent / this.rate)) return false;
    this.#gain = again ? 0 : 1;
    return true;
  }

  /**
   * @param {Waiting} head @param {Float32Array} out @param {number} at @param {number} count
   * @param {boolean} stopping
   */
  #take(head, out, at, count, stopping) {
    const fade = Math.ceil(FADE_S * this.rate);
    const length = stopping ? this.#stopFade : fade;
    let left = stopping ? this.#stopAt - head.taken : head.complete ? Infinity : head.buffered;
    head.take(out, at, count);
    head.forget(head.taken);
    if (this.#gain === 1 && left - count >= length) return;
    for (let i = at; i < at + count; i++) {
      this.#gain = Math.min(1, this.#gain + 1 / fade, --left / length);
      out[i] *= this.#gain;
    }
  }
}
