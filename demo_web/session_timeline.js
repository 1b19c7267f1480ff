/** One utterance as it arrives: no gap, nothing twice, and the digests that prove it whole. */

import { Sha256 } from "./digest.js";

/** @typedef {import("./wire.js").Frame} Frame */

/** The server broke the protocol. */
export class Misbehaved extends Error {}

/** Audio or an event is missing in between: another connection may bring it. */
export class Gap extends Misbehaved {}

const MAX_OPEN_SEGMENTS = 4_096; // begun, and audio or end still missing; a server has a handful
const ZEROS = new Uint8Array(65_536);

/** @typedef {{number: number, first: number, hash: Sha256, samples: number | null, digest: string}} Segment */

/**
 * Follows the frames and segments of one utterance. Samples are the frames' own: timeline samples for PCM, coded ones
 * for Opus; PCM may go on as Opus. Methods throw Misbehaved where the server contradicts itself, Gap where something is
 * missing.
 */
export class Timeline {
  next = 0; // all samples before are here
  lastCame = false;
  #preSkip;
  /** @type {Frame["codec"] | null} */
  #codec = null;
  /** @type {number | null} where Opus took over from PCM: what comes later has no samples to hash */
  #pcmEnd = null;
  /** @type {Segment[]} */
  #open = [];
  #knownEnd = 0; // where the last segment that is complete ends
  #digests = new Sha256();
  #wire = new Sha256();

  /** @param {number} preSkip */
  constructor(preSkip) {
    this.#preSkip = preSkip;
  }

  /** Whether positions count coded samples. */
  get isCoded() {
    return this.#codec === "opus";
  }

  /** How far the timeline is here, in timeline samples: without the codec's delay and the last padding. */
  get received() {
    const received = this.timeline(this.next);
    return this.isCoded && this.lastCame ? Math.min(received, this.#knownEnd) : received;
  }

  /** @param {number} sample its place on the timeline */
  timeline(sample) {
    return this.isCoded ? Math.max(0, sample - this.#preSkip) : sample;
  }

  /** Another connection carries the session: the wire's digest covers what it brings. */
  newGeneration() {
    this.#wire = new Sha256();
  }

  /**
   * Takes a frame. Gives how many of its first samples are known already; its whole count: a duplicate.
   * @param {Frame} frame
   */
  audio(frame) {
    let next = this.next;
    if (this.#codec === "pcm" && frame.codec === "opus") next += this.#preSkip;
    else if (this.isCoded && frame.codec === "pcm") throw new Misbehaved("an utterance went from Opus back to PCM");
    const known = next - frame.first;
    if (known < 0) throw new Gap(`sample ${frame.first} came after ${next}`);
    if (this.#codec !== frame.codec) {
      if (frame.codec === "opus") this.#pcmEnd = this.next;
      this.#codec = frame.codec;
      this.next = next;
    }
    this.lastCame ||= frame.last;
    this.#wire.update(frame.payload);
    if (known >= frame.count) return frame.count;
    if (frame.codec === "pcm") this.#hashSamples(frame, known);
    this.next = frame.first + frame.count;
    this.#closeSegments();
    return known;
  }

  /** @param {number} number @param {number} first */
  begin(number, first) {
    if (this.#open.length >= MAX_OPEN_SEGMENTS) throw new Misbehaved("too many segments are unfinished");
    if (first < (this.#open.at(-1)?.first ?? 0)) throw new Misbehaved(`segment ${number} starts before the last one`);
    this.#open.push({ number, first, hash: new Sha256(), samples: null, digest: "" });
  }

  /**
   * A segment is complete on the server's side; its audio may still be on the way.
   * @param {number} number
   * @param {number} samples
   * @param {string} digest
   */
  end(number, samples, digest) {
    const segment = this.#open.find((each) => each.number === number);
    if (!segment) throw new Misbehaved(`segment ${number} ended but never began`);
    Object.assign(segment, { samples, digest });
    this.#closeSegments();
  }

  /** @param {number} samples whether audio is missing of an utterance of that length */
  lacksAudio(samples) {
    return this.next < samples + (this.isCoded ? this.#preSkip : 0);
  }

  /** Checks the whole utterance. @param {import("./wire.js").Done} event */
  done({ samples, digest, wire_digest }) {
    if (this.lacksAudio(samples) || (!this.isCoded && this.next !== samples)) {
      throw new Misbehaved(`an utterance of ${samples} samples has ${this.timeline(this.next)}`);
    }
    if (this.#open.length) throw new Misbehaved(`segment ${this.#open[0].number} never ended`);
    if (this.#digests.hex() !== digest) throw new Misbehaved("an utterance is not the sum of its segments");
    if (this.#wire.hex() !== wire_digest) throw new Misbehaved("audio was altered on its way");
  }

  /** Feeds new samples to the segments they belong to: each to the last one that began at or before it. */
  #hashSamples(/** @type {Frame} */ frame, /** @type {number} */ skip) {
    let at = frame.first + skip;
    const end = frame.first + frame.count;
    /** @type {[Sha256, number, number][]} */
    const shares = [];
    for (const [index, segment] of this.#open.entries()) {
      let until = Math.min(end, this.#open[index + 1]?.first ?? end);
      if (segment.samples !== null) until = Math.min(until, segment.first + segment.samples);
      if (at < segment.first || at >= until) continue;
      shares.push([segment.hash, at, until]);
      at = until;
    }
    if (at < end) throw new Gap(`audio at sample ${at} belongs to no segment`);
    for (const [hash, from, until] of shares) {
      if (frame.silenceRun) {
        for (let left = 2 * (until - from); left > 0; left -= ZEROS.length) hash.update(ZEROS.subarray(0, left));
      } else {
        hash.update(frame.payload.subarray(2 * (from - frame.first), 2 * (until - frame.first)));
      }
    }
  }

  #closeSegments() {
    for (;;) {
      const head = this.#open[0];
      if (!head || head.samples === null) return;
      const end = head.first + head.samples;
      if (!this.isCoded && end > this.next) return;
      const provable = !this.isCoded || (this.#pcmEnd !== null && end <= this.#pcmEnd);
      if (provable && head.hash.hex() !== head.digest) {
        throw new Misbehaved(`segment ${head.number} is not what the server made`);
      }
      this.#knownEnd = end;
      this.#digests.update(raw(head.digest));
      this.#open.shift();
    }
  }
}

/** @param {string} digest */
function raw(digest) {
  if (!/^[0-9a-f]{64}$/.test(digest)) throw new Misbehaved(`a digest is 64 hex digits, not ${digest}`);
  return Uint8Array.from(/** @type {string[]} */ (digest.match(/../g)), (pair) => parseInt(pair, 16));
}
