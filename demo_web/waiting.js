/** One utterance that waits to be played, and how long playing should wait. Pure. */

import { crc32 } from "./digest.js";

const PREROLL_MS = 120; // covers the jitter of one engine chunk and a LAN
const JITTER_QUANTILE = 0.95;
const JITTER_FACTOR = 2;
const ARRIVALS = 200; // remembered to know the jitter; 4 s of 20 ms frames
const ENOUGH = 20; // of them, before they say anything: the first are the engine's warming up
const CALM_S = 10; // played without a stall: what stalls added is halved

/** How much audio should wait before playing begins, in seconds. */
export class Preroll {
  base = PREROLL_MS / 1000;
  longest = 2; // half of the lead that a server keeps
  #late = new Float64Array(ARRIVALS).fill(Infinity); // by how much each was later than the one before, in a ring ...
  #sorted = this.#late.slice(); // ... and in order
  #arrivals = 0;
  /** @type {number | null} when the next one is on time */
  #due = null;
  #jitter = 0;
  #boost = 0;
  #calm = 0;

  /** The base, twice the jitter, and what stalls added. */
  get seconds() {
    return Math.min(Math.max(this.base, this.longest), this.base + JITTER_FACTOR * this.#jitter + this.#boost);
  }

  /** So much audio came. @param {number} seconds @param {number} now in seconds */
  arrived(seconds, now) {
    if (this.#due !== null) {
      this.#remember(Math.max(0, now - this.#due));
      const known = Math.min(this.#arrivals, ARRIVALS);
      if (known >= ENOUGH) this.#jitter = this.#sorted[Math.floor(JITTER_QUANTILE * (known - 1))];
    }
    this.#due = now + seconds;
  }

  /** In the place of the oldest, without allocating anything. @param {number} late */
  #remember(late) {
    const place = this.#arrivals++ % ARRIVALS;
    const sorted = this.#sorted;
    let at = sorted.indexOf(this.#late[place]);
    for (; at > 0 && sorted[at - 1] > late; at--) sorted[at] = sorted[at - 1];
    for (; at < ARRIVALS - 1 && sorted[at + 1] < late; at++) sorted[at] = sorted[at + 1];
    sorted[at] = this.#late[place] = late;
  }

  /** Nothing is due: the next arrival says nothing about the line. */
  pause() {
    this.#due = null;
  }

  /** It ran dry. One hole adds little, so that sound is back soon; one after the other add ever more. */
  stalled() {
    this.#boost = Math.min(Math.max(this.base, 2 * this.#boost), this.longest);
    this.#calm = 0;
  }

  /** So much was played without a stall. @param {number} seconds */
  played(seconds) {
    this.#calm += seconds;
    if (this.#calm < CALM_S) return;
    this.#calm = 0;
    this.#boost /= 2;
  }
}

/** One utterance: what came, and how far it was taken out to be played. */
export class Waiting {
  taken = 0;
  received = 0;
  /** @type {number | null} CRC-32 of all that came, as s16le; null: a restart came after what it needs was gone */
  crc = 0;
  stalls = 0;
  started = false; // something of it sounded
  complete = false;
  between = false; // all that was announced is here: silence now is the writer's
  /** @type {{pcm: Int16Array | Float32Array, first: number, crc: number | null}[]} with the CRC before it */
  chunks = [];
  #index = 0; // of the chunk in which `taken` lies

  /** @param {number} id @param {number} rate in Hz */
  constructor(id, rate) {
    this.id = id;
    this.rate = rate;
  }

  /** One that another one had. @param {import("./playout.js").Kept} kept */
  static of(kept) {
    const waiting = Object.assign(new Waiting(kept.id, kept.rate), kept);
    waiting.rewind(kept.taken);
    return waiting;
  }

  /** Samples that can be taken. */
  get buffered() {
    return this.received - this.taken;
  }

  /** @param {Int16Array | Float32Array} pcm follows what came before */
  push(pcm) {
    this.chunks.push({ pcm, first: this.received, crc: this.crc });
    this.crc = digest(pcm, this.crc);
    this.received += pcm.length;
    this.between = this.complete = false;
  }

  /** Drops what came from this sample on. @param {number} first */
  cut(first) {
    while (this.chunks.length && this.chunks[this.chunks.length - 1].first >= first) this.#drop();
    const last = this.chunks[this.chunks.length - 1];
    if (last && first < this.received) {
      this.#drop();
      this.push(last.pcm.subarray(0, first - last.first));
    }
    if (first !== this.received) this.crc = null;
    this.received = first;
    this.complete = false;
    this.rewind(Math.min(this.taken, first));
  }

  #drop() {
    const chunk = this.chunks.pop();
    if (chunk) [this.received, this.crc] = [chunk.first, chunk.crc];
  }

  /** Goes back to what was taken already and is still here. @param {number} sample */
  rewind(sample) {
    this.taken = sample;
    const found = this.chunks.findIndex(({ pcm, first }) => first + pcm.length > sample);
    this.#index = found < 0 ? Math.max(0, this.chunks.length - 1) : found; // all of it was taken: the last one
  }

  /**
   * Takes out `count` samples, of those that are buffered, as floats.
   * @param {Float32Array} out @param {number} at @param {number} count
   */
  take(out, at, count) {
    while (count > 0) {
      const { pcm, first } = this.chunks[this.#index];
      const from = this.taken - first;
      const now = Math.min(count, pcm.length - from);
      const scale = pcm instanceof Int16Array ? 1 / 32768 : 1;
      for (let i = 0; i < now; i++) out[at + i] = pcm[from + i] * scale;
      this.taken += now;
      at += now;
      count -= now;
      if (from + now === pcm.length && this.#index < this.chunks.length - 1) this.#index++;
    }
  }

  /** What lies before this sample is never needed again. @param {number} sample at most `taken` */
  forget(sample) {
    while (this.chunks.length > 1 && this.#index > 0 && this.chunks[1].first <= sample) {
      this.chunks.shift();
      this.#index--;
    }
  }
}

let rounded = new Int16Array(4096); // used again for each chunk

/** @param {Int16Array | Float32Array} pcm @param {number | null} crc */
function digest(pcm, crc) {
  if (crc === null) return null;
  if (pcm instanceof Float32Array) {
    if (pcm.length > rounded.length) rounded = new Int16Array(pcm.length);
    for (let i = 0; i < pcm.length; i++) rounded[i] = Math.max(-32768, Math.min(32767, Math.round(pcm[i] * 32768)));
    pcm = rounded.subarray(0, pcm.length);
  }
  return crc32(new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength), crc);
}
