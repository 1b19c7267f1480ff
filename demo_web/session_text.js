/** What is written: numbered messages and their window, what waits for room, what each utterance is asked to say. */

import { chars, offset } from "./wire.js";
import { Misbehaved } from "./session_timeline.js";

/**
 * @typedef {import("./wire.js").Word} Word
 * @typedef {{type: "start", utterance: number, [field: string]: unknown}} Start
 * @typedef {{type: "text", text: string} | {type: "flush", soft: boolean}} Piece
 * @typedef {Start | Piece | {type: "end"} | {type: "cancel", utterance: number, played_sample: number | null}} Numbered
 */

const PIECE_CHARS = 4_096; // text is kept in pieces of at most so many characters ...
const MERGE_CHARS = 1_024; // ... and joined up to this length: a writer may send single characters
const REMEMBERED_WORDS = 1_024; // minutes of speech: further back nobody asks what was heard
const UNACKED_MESSAGES = 16_384; // more wait here

/** Numbers messages from 1 and counts how much text may still be sent. */
export class SendWindow {
  seq = 0;
  acked = 0;
  /** @type {(Numbered & {seq: number})[]} not confirmed by the server, oldest first; a resume sends them again */
  unacked = [];
  #granted;
  #flying = 0;

  /** @param {number} windowChars */
  constructor(windowChars) {
    this.#granted = windowChars;
  }

  /** Characters that may be sent now. */
  get room() {
    return this.unacked.length < UNACKED_MESSAGES ? Math.max(0, this.#granted - this.#flying) : 0;
  }

  /** @param {Numbered} message */
  number(message) {
    this.#flying += weight(message);
    const numbered = { ...message, seq: ++this.seq };
    this.unacked.push(numbered);
    return numbered;
  }

  /** What the server has and how much more it takes. Throws Misbehaved. @param {number} seq @param {number} room */
  ack(seq, room) {
    if (seq > this.seq) throw new Misbehaved(`the server acks message ${seq}, but only ${this.seq} were sent`);
    if (seq < this.acked) return; // a late repeat: the newer word stands
    let taken = 0;
    while (taken < this.unacked.length && this.unacked[taken].seq <= seq) this.#flying -= weight(this.unacked[taken++]);
    this.unacked.splice(0, taken);
    this.acked = seq;
    this.#granted = room;
  }
}

/** Messages of utterances in their order, until the server has room for them. */
export class Backlog {
  /** @type {{utterance: number, message: Numbered}[]} */
  #waiting = [];
  #taken = 0;

  get first() {
    return this.#waiting[this.#taken];
  }

  get isEmpty() {
    return !this.first;
  }

  shift() {
    if (++this.#taken < 1_024 && this.first) return;
    this.#waiting.splice(0, this.#taken);
    this.#taken = 0;
  }

  /** @param {number} utterance @param {Numbered[]} messages */
  add(utterance, messages) {
    for (const message of messages) this.#waiting.push({ utterance, message: { ...message } });
  }

  /** @param {number} utterance it was cancelled */
  drop(utterance) {
    this.#waiting = this.#waiting.slice(this.#taken).filter((each) => each.utterance !== utterance);
    this.#taken = 0;
  }
}

/** What a message takes of the window. */
function weight(/** @type {Numbered} */ message) {
  return message.type === "text" ? chars(message.text) : 0;
}

/** @param {string} text @returns {Piece[]} */
export function pieces(text) {
  /** @type {Piece[]} */
  const made = [];
  for (let at = 0; at < text.length; ) {
    const part = text.slice(at, at + 2 * PIECE_CHARS);
    const end = offset(part, PIECE_CHARS);
    made.push({ type: "text", text: part.slice(0, end) });
    at += end;
  }
  return made;
}

/**
 * @typedef {{number: number, start: number, end: number, first: number, silent: boolean, samples: number | null,
 *   words: Word[]}} Said
 */

/**
 * What one utterance was asked to say, and how far that is said: enough to go on from there in another session.
 * Positions and samples are those of this session's timeline. Text is forgotten once its segment is here.
 */
export class Transcript {
  ended = false;
  segments = 0; // that began
  replays = false; // the server restarted: it may tell again what it told before
  start;
  /** @type {Piece[]} */
  #pieces = [];
  #forgotten = 0; // characters before the first piece
  /** @type {Said[]} announced, and not yet here as a whole */
  #open = [];
  #told = -1; // the highest segment number that began
  /** @type {[sample: number, position: number][]} where words end */
  #ends = [];

  /** @param {Start} start @param {Piece[]} [rest] */
  constructor(start, rest = []) {
    this.start = start;
    this.#pieces = rest;
  }

  /** @param {Piece} piece */
  write(piece) {
    const last = this.#pieces.at(-1);
    if (piece.type === "flush" && (!last || (last.type === "flush" && (piece.soft || !last.soft)))) return;
    if (piece.type === "text" && last?.type === "text" && last.text.length + piece.text.length <= MERGE_CHARS) {
      this.#pieces[this.#pieces.length - 1] = { type: "text", text: last.text + piece.text };
    } else {
      this.#pieces.push(piece);
    }
  }

  /** A segment begins. False: that was told before. @param {import("./wire.js").SegmentBegin} event */
  begin({ segment, start, end, first_sample, kind }) {
    if (this.replays && segment <= this.#told) return false;
    this.#told = Math.max(this.#told, segment);
    this.segments++;
    const silent = kind === "silence";
    this.#open.push({ number: segment, start, end, first: first_sample, silent, samples: null, words: [] });
    return true;
  }

  /** Gives the words that are new; null where none is. @param {import("./wire.js").Timing} event */
  timing(event) {
    let words = event.words;
    const segment = this.#find(event.segment);
    if (!segment) return this.replays && event.segment <= this.#told ? null : words;
    if (this.replays) {
      const key = (/** @type {Word} */ word) => `${word.start} ${word.end} ${word.first_sample}`;
      const known = new Set(segment.words.map(key));
      words = words.filter((word) => !known.has(key(word)));
      if (!words.length && event.words.length) return null;
    }
    segment.words.push(...words);
    for (const word of words) this.#ends.push([word.end_sample, word.end]);
    this.#ends.splice(0, this.#ends.length - REMEMBERED_WORDS);
    return words;
  }

  /** A segment is complete. False: that was told before. @param {import("./wire.js").SegmentEnd} event */
  end(event) {
    const segment = this.#find(event.segment);
    if (!segment) return !(this.replays && event.segment <= this.#told);
    if (this.replays && segment.samples !== null) return false;
    segment.samples = event.samples;
    if (!segment.words.length) this.#ends.push([segment.first + event.samples, segment.end]);
    return true;
  }

  /** @param {number} sample audio is here up to this one: forgets what need not be said again */
  received(sample) {
    for (let first; (first = this.#open[0]) && first.samples !== null && first.first + first.samples <= sample; ) {
      this.#forget(first);
      this.#open.shift();
    }
  }

  /** @param {number} played the end of the last word, or segment without words, that was played to its end */
  heardTextEnd(played) {
    let position = 0;
    for (const [sample, end] of this.#ends) if (sample <= played) position = end;
    return position;
  }

  /**
   * What to say again after audio up to `received`: from the word on in which it broke off, from the segment's start on
   * without word times; never before `atLeast`, a position that the server named, where the text has it.
   * @param {number} received
   * @param {number} atLeast
   * @returns {{position: number, pieces: Piece[]}}
   */
  rest(received, atLeast) {
    const left = [...this.#pieces];
    let position = this.#forgotten;
    const segment = this.#open[0];
    if (segment?.silent) dropFlushes(left);
    else if (segment) position = Math.max(position, brokeOff(segment, received));
    let total = this.#forgotten;
    for (const piece of left) total += piece.type === "text" ? chars(piece.text) : 0;
    if (atLeast <= total) position = Math.max(position, atLeast);
    dropText(left, position - this.#forgotten);
    return { position, pieces: left };
  }

  /** What says the rest: `start`, text and its like, `end`. @returns {Numbered[]} */
  get messages() {
    return [this.start, ...this.#pieces, ...(this.ended ? [{ type: /** @type {const} */ ("end") }] : [])];
  }

  #find(/** @type {number} */ number) {
    return this.#open.find((segment) => segment.number === number);
  }

  #forget(/** @type {Said} */ segment) {
    if (segment.silent) return dropFlushes(this.#pieces);
    dropText(this.#pieces, segment.end - this.#forgotten);
    this.#forgotten = Math.max(this.#forgotten, segment.end);
  }
}

/** The text position at which a segment was when its audio broke off. */
function brokeOff(/** @type {Said} */ segment, /** @type {number} */ received) {
  const index = segment.words.findIndex((word) => word.end_sample > received);
  if (index >= 0) return index ? segment.words[index].start : segment.start;
  const last = segment.words.at(-1);
  if (!last) return segment.start;
  return segment.samples !== null ? segment.end : last.end;
}

/** Removes so many characters from the front, and the flushes among them. */
function dropText(/** @type {Piece[]} */ left, /** @type {number} */ count) {
  while (left.length && count > 0) {
    const piece = /** @type {Piece} */ (left.shift());
    if (piece.type !== "text") continue;
    const size = chars(piece.text);
    if (size > count) left.unshift({ type: "text", text: piece.text.slice(offset(piece.text, count)) });
    count -= size;
  }
}

function dropFlushes(/** @type {Piece[]} */ left) {
  while (left[0]?.type === "flush") left.shift();
}
