/**
 * Resampling of a stream by a windowed sinc, from any rate to any. Nothing is allocated once the buffers fit.
 *
 * Linear phase without delay: output sample n is the input at n * from / to, so positions stay exact. For that some
 * input must be there ahead of it (`ahead`). Flat to 0.1 dB up to 0.9 of the lower rate's Nyquist frequency, 80 dB
 * down from there on.
 */

const CROSSINGS = 56; // of the sinc on either side: the transition then fits between 0.9 and 1.0
const CUTOFF = 0.95;
const BETA = 8.6; // Kaiser window, 86 dB
const MOST_PHASES = 1024; // all usual pairs of rates need fewer; other pairs take the nearest phase

/** @type {Map<string, Float32Array<ArrayBuffer>>} by the rates; one takes milliseconds to make */
const TABLES = new Map();

/** @param {number} a @param {number} b @returns {number} */
const divisor = (a, b) => (b ? divisor(b, a % b) : a);

/** @param {number} x @returns {number} the modified Bessel function of order 0 */
function bessel(x) {
  let sum = 1;
  for (let term = 1, k = 1; term > sum * 1e-12; k++) sum += term *= (x / (2 * k)) ** 2;
  return sum;
}

export class Resampler {
  #up; // output position in input samples = n * #down / #up
  #down;
  #phases = 1;
  #before = 0; // taps before the position, and after it
  #after = 0;
  #table = Float32Array.of(1);
  #input = new Float32Array(4096);
  #filled = 0;
  #at = 0; // the next output lies in #input at #at + #part / #up
  #part = 0;

  /** @param {number} from rate of the input in Hz @param {number} to rate of the output in Hz; both whole numbers */
  constructor(from, to) {
    this.from = from;
    this.to = to;
    const common = divisor(from, to);
    this.#up = to / common;
    this.#down = from / common;
    if (from === to) return;
    const scale = Math.min(1, to / from);
    this.#after = Math.ceil(CROSSINGS / scale);
    this.#before = this.#after - 1;
    this.#phases = Math.min(this.#up, MOST_PHASES);
    const pair = `${from}:${to}`;
    this.#table = TABLES.get(pair) ?? sinc(this.#after, this.#phases, scale * CUTOFF);
    TABLES.set(pair, this.#table);
    this.#at = this.#filled = this.#before;
  }

  /** Input samples that were pushed and do not sound yet. */
  get ahead() {
    return this.#filled - this.#at - this.#part / this.#up;
  }

  /** Zeros to push after the last sample, so that all of it comes out. */
  get tail() {
    return this.#after;
  }

  /** Output samples that can be pulled now. */
  get available() {
    const room = (this.#filled - this.#after - this.#at) * this.#up - this.#part;
    return room > 0 ? Math.ceil(room / this.#down) : 0;
  }

  /** @param {number} count @returns {number} input samples to push before so many output samples can be pulled */
  needed(count) {
    const last = this.#at + Math.floor((this.#part + (count - 1) * this.#down) / this.#up);
    return Math.max(0, last + this.#after + 1 - this.#filled);
  }

  /** @param {Float32Array} samples @param {number} count how many of them */
  push(samples, count) {
    if (this.#filled + count > this.#input.length) this.#makeRoom(count);
    const input = this.#input;
    for (let i = 0, to = this.#filled; i < count; i++) input[to++] = samples[i];
    this.#filled += count;
  }

  /** @param {Float32Array} out @param {number} count at most `available` */
  pull(out, count) {
    const input = this.#input;
    const table = this.#table;
    const taps = this.#before + this.#after + 1;
    for (let n = 0; n < count; n++) {
      let tap = (this.#phases === this.#up ? this.#part : Math.floor((this.#part * this.#phases) / this.#up)) * taps;
      let sum = 0;
      for (let i = this.#at - this.#before, end = i + taps; i < end; i++) sum += input[i] * table[tap++];
      out[n] = sum;
      this.#part += this.#down;
      const whole = Math.floor(this.#part / this.#up);
      this.#at += whole;
      this.#part -= whole * this.#up;
    }
  }

  /** @param {number} count */
  #makeRoom(count) {
    const start = Math.min(this.#at - this.#before, this.#filled);
    const kept = this.#filled - start;
    const room = kept + count > this.#input.length ? new Float32Array(2 * (kept + count)) : this.#input;
    if (room === this.#input) room.copyWithin(0, start, this.#filled);
    else room.set(this.#input.subarray(start, this.#filled));
    this.#input = room;
    this.#at -= start;
    this.#filled = kept;
  }
}

/**
 * The filter at each phase, one after the other; each lets a constant pass unchanged.
 * @param {number} half taps on either side @param {number} phases @param {number} cutoff 1 is the input's Nyquist
 */
function sinc(half, phases, cutoff) {
  const table = new Float32Array(2 * half * phases);
  const scale = 1 / bessel(BETA);
  for (let phase = 0; phase < phases; phase++) {
    const start = phase * 2 * half;
    let sum = 0;
    for (let tap = 0; tap < 2 * half; tap++) {
      const x = tap - half + 1 - phase / phases;
      const angle = Math.PI * cutoff * x;
      const window = bessel(BETA * Math.sqrt(Math.max(0, 1 - (x / half) ** 2))) * scale;
      sum += table[start + tap] = (x ? Math.sin(angle) / angle : 1) * window;
    }
    for (let tap = start; tap < start + 2 * half; tap++) table[tap] /= sum;
  }
  return table;
}
