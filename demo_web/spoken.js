/** One utterance: as the page writes it, and as the player follows it: what of it sounds when, how it ended. Pure. */

/**
 * @typedef {{first: number, kind: "word" | "segment", detail: {segment: number, start: number, end: number}}} Cue
 * @typedef {{heardAll: boolean, samples: number, verified: boolean}} Heard
 */

/** Something being said. */
export class Utterance {
  text = "";
  #post;

  /**
   * @param {number} id
   * @param {Promise<Heard>} finished
   * @param {(message: {type: string, [field: string]: unknown}) => boolean} post gives whether it is still written to
   */
  constructor(id, finished, post) {
    this.id = id;
    /** Resolves when it was heard to its end or stopped; rejects with a PlayerError. */
    this.finished = finished;
    this.#post = post;
  }

  /** Throws TypeError where it is no string. @param {string} text any piece of it, cut anywhere */
  write(text) {
    checkText(text);
    if (this.#post({ type: "write", id: this.id, text })) this.text += text;
  }

  /** Says what was written, also if it looks unfinished. @param {boolean} [soft] only if it looks finished */
  flush(soft = false) {
    this.#post({ type: "flush", id: this.id, soft });
  }

  end() {
    this.#post({ type: "end", id: this.id });
  }
}

/** Throws TypeError where it is no string. @param {unknown} text */
export function checkText(text) {
  if (typeof text !== "string") throw new TypeError(`text must be a string, not ${text === null ? text : typeof text}`);
}

export class Spoken {
  /** @type {number | null} all of it was played: so many samples */
  ended = null;
  heard = false; // to its end
  stopping = false;
  /** @type {{samples: number} | null} */
  verified = null;
  /** @type {(heard: Heard) => void} */
  resolve = () => {};
  /** @type {(error: Error) => void} */
  reject = () => {};
  /** @type {Cue[]} that did not sound yet, in the order of the timeline */
  #cues = [];
  /** @type {{sample: number, end: number}[]} heard up to `end` once `sample` was played */
  #ends = [];
  /** @type {Map<number, {end: number, first_sample: number}>} */
  #segments = new Map();

  /** @param {number} id @param {number} at when it was asked for, by performance.now() */
  constructor(id, at) {
    this.id = id;
    this.at = at;
    /** @type {Promise<Heard>} */
    this.finished = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.finished.catch(() => {}); // who does not look does not want to know
  }

  /** @param {Record<string, any>} message an event of the protocol: its `type` says which fields */
  learn(message) {
    const { type, segment, start, end, kind } = message;
    if (type === "segment_begin") {
      const { first_sample } = message;
      this.#segments.set(segment, { end, first_sample });
      this.#add({ first: first_sample, kind: "segment", detail: { segment, start, end, ...(kind && { kind }) } });
    } else if (type === "timing" && message.words.length) {
      const from = message.words[0].first_sample;
      if ((this.#ends.at(-1)?.sample ?? 0) > from) { // these words hold, instead of what was told before
        this.#cues = this.#cues.filter((cue) => cue.kind !== "word" || cue.first < from);
        this.#ends = this.#ends.filter((each) => each.sample <= from);
      }
      for (const { start, end, first_sample, end_sample } of message.words) {
        this.#add({ first: first_sample, kind: "word", detail: { segment, start, end } });
        this.#ends.push({ sample: end_sample, end });
      }
    } else if (type === "segment_end") {
      const begun = this.#segments.get(segment);
      if (begun) this.#ends.push({ sample: begun.first_sample + message.samples, end: begun.end });
      this.#segments.delete(segment);
    }
  }

  /** @param {Cue} cue */
  #add(cue) {
    const late = cue.first < (this.#cues.at(-1)?.first ?? 0);
    this.#cues.push(cue);
    if (late) this.#cues.sort((a, b) => a.first - b.first);
  }

  /** The session was lost: what was known from this sample on comes anew. @param {number} sample */
  forget(sample) {
    this.#cues = this.#cues.filter(({ first }) => first < sample);
    this.#ends = this.#ends.filter((each) => each.sample <= sample);
  }

  /** What begins to sound up to this sample, once. @param {number} sample */
  due(sample) {
    const later = this.#cues.findIndex(({ first }) => first > sample);
    return this.#cues.splice(0, later < 0 ? Infinity : later);
  }

  /** @returns {Cue | undefined} what sounds next */
  get next() {
    return this.#cues[0];
  }

  /**
   * The text that was heard, in code points: to the end of the last word that sounded to its end.
   * @param {number} played
   */
  heardTextEnd(played) {
    return this.#ends.reduce((most, { sample, end }) => (sample <= played ? Math.max(most, end) : most), 0);
  }
}
