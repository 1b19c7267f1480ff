/** The part of a session that speaks to the server: utterances, text, cancels. What has no room waits. */

import { chars, encodeClient, offset, wellFormed } from "./wire.js";
import { Backlog, pieces, SendWindow } from "./session_text.js";
import { Tracked } from "./session_utterance.js";

/**
 * @typedef {import("./session_text.js").Numbered} Numbered
 * @typedef {import("./session_text.js").Piece} Piece
 */

const SOFT_FLUSH_MS = 400; // a writer who pauses this long has probably finished a sentence

export class Writer {
  window = new SendWindow(0);
  hasSession = false; // without one everything waits
  goingAway = false; // the server said so: it gets no further utterance
  #maxChars = 1;
  #maxQueued = 1;
  #backlog = new Backlog();
  #half = ""; // the first half of a character whose second half is still to be written
  /** When text came that no flush followed. @type {number | null} */
  #lastInput = null;
  #sentSeq = 0; // numbered messages up to here were given to the connection that carries the session
  /** A message whose `seq_ack` tells the round trip. @type {{seq: number, at: number} | null} */
  timed = null;
  #clock;
  #receiver;
  #watchdog;
  #send;

  /**
   * @param {import("./session.js").Clock} clock
   * @param {import("./session_receiving.js").Receiver} receiver
   * @param {import("./session_watchdog.js").Watchdog} watchdog
   * @param {(message: import("./wire.js").ClientMessage) => boolean} send false: no connection carries the session
   */
  constructor(clock, receiver, watchdog, send) {
    this.#clock = clock;
    this.#receiver = receiver;
    this.#watchdog = watchdog;
    this.#send = send;
  }

  /** A new session, with these bounds; all that is not said yet waits for it, in order. */
  enter(/** @type {(name: string, absent: number) => number} */ limit) {
    this.#maxChars = Math.min(16_384, limit("text_chars", 16_384));
    this.#maxQueued = limit("queued_utterances", 64);
    this.window = new SendWindow(limit("text_window_chars", 262_144));
    this.#sentSeq = 0;
    this.hasSession = true;
    this.goingAway = false;
    this.#backlog = new Backlog();
    for (const { number, transcript } of this.#receiver.live.values()) this.#backlog.add(number, transcript.messages);
    this.pump();
  }

  // ---- what is written ----

  /** The newest utterance, while it takes text. */
  get #writing() {
    const entry = this.#receiver.live.get(this.#receiver.newest);
    return entry && !entry.cancelled && !entry.transcript.ended ? entry : undefined;
  }

  /** Throws WireError. */
  begin(/** @type {{[field: string]: unknown}} */ fields) {
    const utterance = this.#receiver.newest + 1;
    /** @type {import("./session_text.js").Start} */
    const start = { ...fields, type: "start", utterance };
    encodeClient({ ...start, seq: 1 });
    this.end();
    this.#receiver.newest = utterance;
    this.#receiver.live.set(utterance, new Tracked(start, this.#receiver.preSkip));
    this.#lastInput = null;
    this.#backlog.add(utterance, [start]);
    this.pump();
  }

  write(/** @type {string} */ text) {
    const entry = this.#writing;
    if (!entry) return;
    const whole = this.#half + text;
    this.#half = /[\ud800-\udbff]$/.test(whole) ? whole.slice(-1) : "";
    for (const piece of pieces(wellFormed(this.#half ? whole.slice(0, -1) : whole))) this.#add(entry, piece);
    this.#lastInput = this.#clock.now;
    this.pump();
  }

  say(/** @type {Piece | {type: "end"}} */ piece) {
    this.#lastInput = null;
    const entry = this.#writing;
    if (!entry) return;
    if (this.#half) this.#add(entry, { type: "text", text: wellFormed(this.#half) }); // its second half will not come
    this.#half = "";
    if (piece.type !== "end") {
      this.#add(entry, piece);
    } else {
      entry.transcript.ended = true;
      this.#backlog.add(entry.number, [piece]);
    }
    this.pump();
  }

  end() {
    this.say({ type: "end" });
  }

  get softFlushAt() {
    return this.#lastInput !== null && this.#backlog.isEmpty ? this.#lastInput + SOFT_FLUSH_MS : Infinity;
  }

  /** @param {number} number @param {number | null} played null: as told last */
  cancel(number, played) {
    const receiver = this.#receiver;
    const entry = receiver.find(number);
    if (!entry || entry.cancelled) return;
    if (!receiver.live.has(number)) {
      if (!receiver.beingHeard().includes(entry)) return;
      receiver.revive(entry);
      this.#watchdog.heard();
    }
    const told = played ?? (receiver.maxLead === null ? entry.played : entry.heard);
    entry.cancelled = true;
    entry.cancelSample = Math.floor(Math.max(0, Math.min(told ?? Infinity, entry.received)));
    if (number === receiver.newest) {
      this.#lastInput = null;
      this.#half = "";
    }
    this.#backlog.drop(number);
    if (!this.hasSession || !entry.started) {
      receiver.cancelledHere(entry);
    } else {
      const played_sample = told === null ? null : Math.max(0, entry.cancelSample - entry.baseSamples);
      this.number({ type: "cancel", utterance: number, played_sample });
    }
    this.pump();
  }

  // ---- what is sent ----

  /** As much of what waits as there is room for. */
  pump() {
    if (!this.hasSession) return;
    const receiver = this.#receiver;
    const mayStart = () => {
      let unfinished = receiver.beingHeard().length;
      for (const entry of receiver.live.values()) unfinished += entry.started ? 1 : 0;
      return !this.goingAway && unfinished < this.#maxQueued;
    };
    for (;;) {
      const next = this.#backlog.first;
      if (!next) return;
      const { utterance, message } = next;
      const room = this.window.room;
      if (message.type === "start") {
        if (!mayStart()) return;
        if (!receiver.isOwed) this.#watchdog.heard();
        const entry = receiver.live.get(utterance);
        if (entry) entry.started = true;
      } else if (message.type === "text" && chars(message.text) > Math.min(room, this.#maxChars)) {
        if (!room) return;
        const cut = offset(message.text, Math.min(room, this.#maxChars));
        this.number({ type: "text", text: message.text.slice(0, cut) });
        message.text = message.text.slice(cut);
        continue;
      }
      this.#backlog.shift();
      this.number(message);
    }
  }

  /** Sends it as soon as a connection carries the session, in order. */
  number(/** @type {Numbered} */ message) {
    if (!this.hasSession) return;
    this.#watchdog.step();
    this.#give(this.window.number(message));
  }

  /** Another connection carries the session, and the server has what came up to `seq`. Throws Misbehaved. */
  resumed(/** @type {number} */ seq, /** @type {number} */ room) {
    this.goingAway = false;
    this.window.ack(seq, room);
    this.#sentSeq = seq;
    this.giveWaiting();
  }

  /** Numbered messages that no connection was given yet. */
  giveWaiting() {
    for (const message of this.window.unacked) if (message.seq > this.#sentSeq) this.#give(message);
  }

  /** Throws Misbehaved. */
  acked(/** @type {number} */ seq, /** @type {number} */ room) {
    this.window.ack(seq, room);
    if (this.timed && seq >= this.timed.seq) {
      this.#clock.rtt = this.#clock.now - this.timed.at;
      this.timed = null;
    }
    this.pump();
  }

  #give(/** @type {Numbered & {seq: number}} */ message) {
    if (!this.#send(message)) return;
    this.#sentSeq = message.seq;
    this.timed ??= { seq: message.seq, at: this.#clock.now };
  }

  #add(/** @type {Tracked} */ entry, /** @type {Piece} */ piece) {
    entry.transcript.write(piece);
    this.#backlog.add(entry.number, [piece]);
  }
}
