/**
 * Plays without an AudioWorklet: buffers placed on the audio clock, one directly after the other, as soon as their
 * audio is here. So much lies ahead that timers matter little, which a hidden tab slows down; messages and the ends of
 * buffers drive it as well.
 */

import { FADE_S, Queue } from "./playout.js";
import { Resampler } from "./resampler.js";

const LEAD_S = 0.03; // from now to the first buffer: the main thread may be late by that
const LEAST_S = 0.005; // a ramp is heard whole if it begins a little later than now
const TICK_MS = 50;

/**
 * @typedef {import("./waiting.js").Waiting} Waiting
 * @typedef {{id: number, node: AudioBufferSourceNode, start: number, end: number, first: number, rate: number}} Piece
 *   seconds of the context; `first`: the utterance's sample that sounds at `start`
 */

/** Speaks the messages of the worklet's port: `postMessage`, `onmessage`. */
export class Scheduled extends Queue {
  /** @type {((event: {data: object}) => void) | null} */
  onmessage = null;
  #context;
  #fader;
  /** @type {Piece[]} that sound or will, in order */
  #pieces = [];
  #resampler = new Resampler(24000, 24000);
  #open = 0; // the resampler keeps the last samples of this utterance for what follows them
  #floats = new Float32Array(24000);
  #frame = 0; // of the context, where the next buffer goes
  #fadeAt = 0; // when what is here fades out, if nothing more comes
  #asked = 0;
  #timer = 0;

  /** @param {AudioContext} context @param {AudioNode} output */
  constructor(context, output) {
    super((message) => this.onmessage?.({ data: message }));
    this.#context = context;
    this.#fader = context.createGain();
    this.#fader.connect(output);
  }

  get time() {
    return this.#pieces.length ? Math.max(this.now, this.#pieces[0].start) : this.now + LEAD_S;
  }

  /** @param {import("./playout.js").FromPlayer} message */
  postMessage(message) {
    this.#look();
    this.command(message);
    if (message.type === "leave") {
      this.#fader.disconnect();
      this.#cut(0, 0);
    }
    this.#go();
  }

  /** @param {import("./playout.js").FromWorker} message */
  receive(message) {
    this.#look();
    if (message.type === "restart") this.#cut(message.id, message.first ?? 0);
    super.receive(message);
    this.#go();
  }

  /** @param {Waiting} one */
  played(one) {
    const piece = this.#pieces.find(({ id, end }) => id === one.id && end > this.now);
    if (!piece) return one.taken;
    const { first, start, rate } = piece;
    return Math.max(0, Math.min(one.taken, Math.floor(first + Math.max(0, this.now - start) * rate)));
  }

  /** @param {number} id @param {boolean} [atOnce] */
  stop(id, atOnce) {
    const head = this.waiting[0];
    if (head && head.id <= id && this.#pieces.length) {
      const gain = this.#fader.gain;
      const begin = this.#context.currentTime + LEAST_S;
      this.now = begin + FADE_S;
      gain.cancelScheduledValues(0);
      gain.setValueAtTime(gain.value, begin);
      gain.linearRampToValueAtTime(0, this.now);
      for (const one of this.waiting) one.rewind(this.played(one));
      for (const { node } of this.#pieces.splice(0)) {
        node.stop(this.now);
        if (atOnce) node.disconnect();
      }
      this.#fadeAt = 0;
      this.#frame = Math.ceil(this.now * this.#context.sampleRate);
    }
    super.stop(id);
  }

  /** What came before now was heard. */
  #look() {
    this.now = this.#context.currentTime;
    while (this.#pieces.length && this.#pieces[0].end <= this.now) this.#pieces.shift();
    for (let head = this.waiting[0]; head; head = this.waiting[0]) {
      head.forget(this.played(head));
      if (!head.complete || head.buffered || this.#pieces[0]?.id === head.id) break;
      this.end();
    }
    if (this.running && !this.#pieces.length) this.ranDry();
  }

  /** Places what is here, and looks again soon. */
  #go() {
    const again = this.waiting[0]?.started;
    if (this.running || this.start(this.now - this.#asked)) {
      for (const [i, one] of this.waiting.entries()) {
        this.#place(one, this.waiting[i + 1], again);
        if (!one.complete) break;
      }
    }
    this.#asked = this.now;
    this.#fade();
    this.tick();
    clearTimeout(this.#timer);
    if (this.waiting.length) this.#timer = setTimeout(() => this.#again(), TICK_MS);
  }

  #again() {
    this.#look();
    this.#go();
  }

  /** @param {Waiting} one @param {Waiting} [next] @param {boolean} [again] */
  #place(one, next, again) {
    const { id, rate, buffered } = one;
    const { sampleRate } = this.#context;
    const fresh = !this.#pieces.length && !one.taken;
    if (fresh || rate !== this.#resampler.from || sampleRate !== this.#resampler.to) this.#renew(rate);
    const resampler = this.#resampler;
    const first = one.taken - resampler.ahead;
    if (buffered) {
      if (buffered > this.#floats.length) this.#floats = new Float32Array(buffered);
      one.take(this.#floats, 0, buffered);
      resampler.push(this.#floats, buffered);
      this.#open = id;
    }
    if (this.#open === id && one.complete && !(next?.buffered && next.rate === rate)) {
      resampler.push(new Float32Array(resampler.tail), resampler.tail);
      this.#open = 0;
    }
    const frames = resampler.available;
    if (!frames) return;
    const buffer = this.#context.createBuffer(1, frames, sampleRate);
    resampler.pull(buffer.getChannelData(0), frames);
    if (!this.#pieces.length) {
      this.#frame = Math.max(this.#frame, Math.ceil((this.now + LEAD_S) * sampleRate));
      this.#rise(again ? 0 : 1);
    } else if (this.#fadeAt && this.#fadeAt <= this.now) this.#rise(0);
    const node = this.#context.createBufferSource();
    node.buffer = buffer;
    node.connect(this.#fader);
    node.onended = () => this.#again();
    const start = this.#frame / sampleRate;
    node.start(start);
    this.#frame += frames;
    this.#pieces.push({ id, node, start, end: this.#frame / sampleRate, first, rate });
  }

  /** @param {number} rate */
  #renew(rate) {
    this.#resampler = new Resampler(rate, this.#context.sampleRate);
    this.#open = 0;
  }

  /** The next buffer sounds in full, at once or faded in. @param {number} from the gain that it begins with */
  #rise(from) {
    const gain = this.#fader.gain;
    const start = this.#frame / this.#context.sampleRate;
    gain.setValueAtTime(from, start);
    gain.linearRampToValueAtTime(1, start + FADE_S);
    this.#fadeAt = 0;
  }

  /** Lets the end of what is placed fade out, as long as more may follow it. */
  #fade() {
    const gain = this.#fader.gain;
    const last = this.#pieces[this.#pieces.length - 1];
    if (this.#fadeAt && this.#fadeAt <= this.now) return;
    if (this.#fadeAt) gain.cancelScheduledValues(this.#fadeAt);
    this.#fadeAt = 0;
    if (!last || this.waiting.find((one) => one.id === last.id)?.complete) return;
    this.#fadeAt = last.end - FADE_S;
    gain.setValueAtTime(1, this.#fadeAt);
    gain.linearRampToValueAtTime(0, last.end);
  }

  /**
   * Nothing of this utterance from `first` on, and of those after it, sounds.
   * @param {number} id @param {number} first
   */
  #cut(id, first) {
    const beyond = (/** @type {Piece} */ each) => each.first + (each.end - each.start) * each.rate > first;
    const at = this.#pieces.findIndex((each) => each.id > id || (each.id === id && beyond(each)));
    if (at < 0) return;
    const piece = this.#pieces[at];
    const until = piece.id === id ? (first - piece.first) / piece.rate : 0;
    const end = Math.max(this.now, piece.start + until);
    for (const { node } of this.#pieces.splice(at)) node.stop(end);
    if (end > piece.start && end > this.now) this.#pieces.push({ ...piece, end });
    for (const one of this.waiting) if (one.id > id) one.rewind(0);
    this.#frame = Math.ceil(end * this.#context.sampleRate);
    this.#renew(piece.rate);
  }
}
