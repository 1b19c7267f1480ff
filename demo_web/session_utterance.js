/** What a session knows of one utterance: how much is here, how much of that was heard, what is left to say. */

import { Timeline } from "./session_timeline.js";
import { Transcript } from "./session_text.js";

/**
 * @typedef {import("./wire.js").Event} Event
 * @typedef {import("./wire.js").Frame} Frame
 */

const MAX_WARMING = 64; // frames; 80 ms and a packet are at most 35 of them

/**
 * An utterance from its `start` until nobody asks for it any more.
 *
 * It may be spoken in several parts, each in a session of its own: `base...` is what came before the present one, and
 * `timeline` and `transcript` count from there. All other samples are of the whole utterance's timeline.
 */
export class Tracked {
  started = false; // the server of the present session was told of it
  cancelled = false; // late audio is dropped
  cancelSample = 0; // how far it was heard, as the `cancel` said
  /** @type {number | null} as its player reports */
  played = null;
  /** @type {number | null} */
  bufferedMs = null;
  stalls = 0;
  /** @type {number | null} its length, once it is over */
  samples = null;
  baseSamples = 0;
  baseText = 0;
  baseSegments = 0;
  isPast = false; // it belongs to a session that is gone: the server does not know it
  #given = 0; // the decoder's output is wanted from here on
  #coded = false; // packets came since the present session began
  /** @type {Frame[]} known packets of a new encoder, for the decoder alone */
  #warming = [];

  /** @param {import("./session_text.js").Start} start @param {number} preSkip */
  constructor(start, preSkip) {
    this.number = start.utterance;
    this.timeline = new Timeline(preSkip);
    this.transcript = new Transcript(start);
  }

  get received() {
    return this.baseSamples + this.timeline.received;
  }

  /** Whether the present session said nothing of it. */
  get isUnheardOf() {
    return !this.timeline.received && !this.transcript.segments;
  }

  get heard() {
    return this.played ?? 0;
  }

  /** Whether it is complete and was played to its end. */
  get heardAll() {
    return this.samples !== null && this.heard >= this.samples;
  }

  /**
   * The event in the whole utterance's numbers.
   * @template {Event} E
   * @param {E} event
   * @param {number} number its own
   * @returns {E}
   */
  within(event, number) {
    const whole = { ...event, event: number };
    if ("segment" in whole) whole.segment += this.baseSegments;
    if (whole.type === "segment_begin") {
      whole.start += this.baseText;
      whole.end += this.baseText;
      whole.first_sample += this.baseSamples;
    } else if (whole.type === "timing") {
      whole.words = whole.words.map((word) => ({
        text: word.text,
        start: word.start + this.baseText,
        end: word.end + this.baseText,
        first_sample: word.first_sample + this.baseSamples,
        end_sample: word.end_sample + this.baseSamples,
      }));
    } else if (whole.type === "mode") {
      whole.at_sample += this.baseSamples;
    } else if (whole.type === "done") {
      whole.samples += this.baseSamples;
    } else if (whole.type === "cancelled") {
      whole.sample += this.baseSamples;
      whole.heard_text_end += this.baseText;
    }
    return whole;
  }

  /** Another connection carries the session. */
  newGeneration() {
    this.timeline.newGeneration();
    this.#warming = [];
  }

  /** @param {Frame} frame known as a whole: of use only where it warms a new decoder up */
  keepWarm(frame) {
    if (frame.codec !== "opus" || !frame.count) return;
    if (frame.decoderReset) this.#warming = [];
    else if (!this.#warming.length || this.#warming.length >= MAX_WARMING) return;
    this.#warming.push(frame);
  }

  /**
   * What of the frame goes to the listener: all but its first samples, with what a new decoder needs before.
   * @param {Frame} frame
   * @param {number} known
   * @param {number} preSkip
   * @returns {import("./session.js").Effect}
   */
  audio(frame, known, preSkip) {
    const warming = this.#warming;
    this.#warming = [];
    const base = { type: /** @type {const} */ ("audio"), utterance: this.number, codec: frame.codec, last: frame.last };
    if (frame.codec === "pcm") {
      const first = this.baseSamples + frame.first + known;
      const payload = frame.silenceRun ? null : frame.payload.subarray(2 * known);
      this.#given = first + frame.count - known;
      return { ...base, first, count: frame.count - known, payload, silence: frame.silenceRun, reset: false, skip: 0 };
    }
    let { first, packets } = frame;
    let reset = frame.decoderReset || !this.#coded;
    const end = first + frame.count;
    const before = warming.at(-1);
    if (!frame.decoderReset && before && before.first + before.count === first) {
      first = warming[0].first;
      packets = [...warming, frame].flatMap((each) => each.packets);
      reset = true;
    } else if (!reset) {
      const length = frame.count / packets.length;
      const whole = Math.floor(known / length); // packets that the decoder has had
      first += whole * length;
      packets = packets.slice(whole);
    }
    this.#coded = true;
    const count = end - first;
    const place = this.baseSamples + first - preSkip;
    const skip = Math.min(count, Math.max(0, this.#given - place));
    this.#given = Math.max(this.#given, place + count);
    return { ...base, first: this.baseSamples + first, count, payload: packets, silence: false, reset, skip };
  }

  /**
   * The rest is said by another session: everything counts from here.
   * @param {{position: number, pieces: import("./session_text.js").Piece[]}} rest
   * @param {number} preSkip
   */
  goOn(rest, preSkip) {
    const { start, ended, segments } = this.transcript;
    this.baseSamples = this.#given = this.received;
    this.baseText += rest.position;
    this.baseSegments += segments;
    this.timeline = new Timeline(preSkip);
    this.transcript = new Transcript(start, rest.pieces);
    this.transcript.ended = ended;
    this.#warming = [];
    this.#coded = this.started = false;
  }
}
