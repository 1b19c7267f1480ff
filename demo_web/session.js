/**
 * The client's side of a session, without I/O: what connections, the writer and the listener say goes in, effects come
 * out, to be executed in order. It outlives its connections: docs/protocol.md, "Resuming".
 */

import { decodeFrame, decodeServer, encodeClient, wellFormed, WireError } from "./wire.js";
import { Gap, Misbehaved, Timeline } from "./session_timeline.js";
import { Backlog, pieces, SendWindow } from "./session_text.js";
import { Receiver, Tracked } from "./session_receiving.js";
import { NO_ANSWER, Reconnecting } from "./session_reconnecting.js";

/**
 * @typedef {{code: string, message: string, field: string | null, retryable: boolean, retryAfterMs: number | null,
 *   reason?: string}} Problem `reason`: why a server is `busy`
 * @typedef {{type: "audio", utterance: number, first: number, count: number, codec: "pcm" | "opus",
 *   payload: Uint8Array | Uint8Array[] | null, silence: boolean, reset: boolean, skip: number, last: boolean}} Audio
 * @typedef {{type: "connect", connection: number} | {type: "send", connection: number, data: string}
 *   | {type: "drop", connection: number, code: number} | Audio | {type: "event", message: import("./wire.js").Event}
 *   | {type: "verified", utterance: number, samples: number, digest: string}
 *   | {type: "state", state: State, reason: string, detail: Problem | null}
 *   | {type: "restarted", utterance: number, sample: number, position: number}} Effect
 * @typedef {"connecting" | "ready" | "reconnecting" | "failed" | "closed"} State
 * @typedef {import("./wire.js").ServerMessage} ServerMessage
 * @typedef {import("./session_text.js").Numbered} Numbered
 * @typedef {{reason: string, utterance: number | null, restart_text_position: number | null}} Gone
 */

const OPENING_MS = 10_000; // from the first attempt to `opened`
const SOFT_FLUSH_MS = 400; // a writer who pauses this long has probably finished a sentence
const WATCHDOG_MS = 1_200; // the server speaks at least every 0.5 s while an utterance is unfinished ...
const MESSAGES_MS = 750; // ... and three messages take at most this long on the measured line
const STUCK_MS = 30_000; // heartbeats alone, while there is text to speak
const LATE_TICK_MS = 250; // a tick this late means that this program slept, not the server
const GAP_PAUSE_MS = 1_000; // a second gap within this time, or the first thing after a resume, is no accident
const FUTILE_RESTARTS = 3; // in a row, without one segment spoken: the server dies of this text
const FINAL_CLOSES = [1003, 1007, 1008, 1009]; // the server refuses what this client says: it would again
const MAX_SILENCE_MS = 60_000;

/** Times are milliseconds of one monotonic clock; samples and text positions are the utterance's own. */
export class Session {
  /** @type {State | "new"} */
  state = "new";
  /** @type {import("./wire.js").Opened | null} */
  opened = null;
  statistics = { bytes: 0, frames: 0, messages: 0, resumes: 0, restarts: 0, resentBytes: 0, outageMs: 0 };
  /** Of the last answer, in ms; null: none was measured. @type {number | null} */
  rtt = null;
  /** @type {import("./wire.js").ClientMessage} */
  #request;
  #reconnectMs;
  #receiver = new Receiver(0);
  #backlog = new Backlog();
  #window = new SendWindow(0);
  #reconnecting;
  #token = "";
  #epoch = 0;
  #resumable = false;
  #maxChars = 1;
  #maxQueued = 1;
  #keepAliveMs = Infinity;
  /** Why there is no session, so that the next connection opens one; null: there is. @type {Gone | null} */
  #gone = { reason: "new", utterance: null, restart_text_position: null };
  #over = false;
  #paused = false;
  #goingAway = false; // the server said so
  #half = ""; // the first half of a character whose second half is still to be written
  /** When text came that no flush followed. @type {number | null} */
  #lastInput = null;
  #lastSent = 0;
  #sentSeq = 0; // numbered messages up to here were given to the connection that carries the session
  /** A numbered message whose `seq_ack` tells the round trip. @type {{seq: number, at: number} | null} */
  #timed = null;
  #heardAt = 0;
  #stepAt = 0; // when the server last did more than be alive, or got something to do
  #patience = WATCHDOG_MS;
  #gapAt = -Infinity;
  #fresh = false; // resumed, and nothing new came yet
  #futile = 0;
  #probe = 0; // id of the ping that asks a connection which speaks again whether it hears, too
  #probed = false; // in this outage
  #lostWhy = "";

  /**
   * @param {{[field: string]: unknown}} open fields of `open`
   * @param {{random?: () => number, reconnectMs?: number}} [options]
   */
  constructor(open, { random = Math.random, reconnectMs = 120_000 } = {}) {
    this.#request = { ...open, type: "open", max_buffer_delay_ms: null };
    this.#reconnectMs = reconnectMs;
    this.#reconnecting = new Reconnecting(() => this.#greeting(), random);
  }

  // ---- looking ----

  /** The number of the utterance begun last; 0: none. */
  get newest() {
    return this.#receiver.newest;
  }

  get unfinished() {
    return this.#receiver.live.size > 0;
  }

  get mode() {
    return this.#receiver.mode;
  }

  get generation() {
    return this.#receiver.generation;
  }

  /** When `tick` must be called; null: not yet, or never again. */
  get deadline() {
    if (this.#over) return null;
    let due = this.#reconnecting.deadline;
    if (this.#lastInput !== null && this.#backlog.isEmpty) due = Math.min(due, this.#lastInput + SOFT_FLUSH_MS);
    if (!this.#isOut) {
      due = Math.min(due, this.#lastSent + this.#keepAliveMs);
      if (this.#isOwed) {
        due = Math.min(due, this.#heardAt + this.#patience);
        if (this.#awaitsSpeech) due = Math.min(due, this.#stepAt + STUCK_MS);
      }
      if (this.#wantsAcks) due = Math.min(due, this.#receiver.ackTimer);
    }
    return due === Infinity ? null : due;
  }

  // ---- connections ----

  /**
   * @param {number} now
   * @returns {Effect[]}
   */
  start(now) {
    try {
      encodeClient(this.#request);
    } catch (error) {
      return this.#failBy(error);
    }
    this.#heardAt = this.#stepAt = this.#lastSent = now;
    return [...this.#become("connecting", ""), ...this.#reconnecting.begin(now, now, true, OPENING_MS)];
  }

  /** @param {number} connection @param {number} now @returns {Effect[]} */
  connected(connection, now) {
    return this.#over ? [] : this.#reconnecting.connected(connection, now);
  }

  /**
   * It could not be opened.
   * @param {number} connection
   * @param {{code: string, message: string, retryable: boolean}} problem
   * @param {number} now
   * @returns {Effect[]}
   */
  refused(connection, problem, now) {
    if (this.#over || !this.#reconnecting.isOpen(connection)) return [];
    if (!problem.retryable) return this.#fail(problem.code, problem.message);
    return this.#reconnecting.failed(connection, problem.message, now);
  }

  /** @param {number} connection @param {number} code @param {string} reason @param {number} now @returns {Effect[]} */
  closed(connection, code, reason, now) {
    if (this.#over || !this.#reconnecting.isOpen(connection)) return [];
    const isCarrier = connection === this.#reconnecting.carrier;
    if (FINAL_CLOSES.includes(code) && (isCarrier || this.opened === null)) {
      return this.#fail("misbehaved", `the server closed the connection with code ${code}: ${reason}`);
    }
    if (!isCarrier) return this.#reconnecting.failed(connection, reason || `closed with code ${code}`, now);
    const stopped = this.#goingAway || code === 1001 || code === 1012;
    return this.#lose(stopped ? "stopped" : "broken", now, now, true);
  }

  /** Bytes came, though no whole message yet. @param {number} connection @param {number} now @returns {Effect[]} */
  heard(connection, now) {
    if (connection === this.#reconnecting.carrier && !this.#isOut) this.#heardAt = Math.max(this.#heardAt, now);
    return [];
  }

  /** @param {number} connection @param {string} data @param {number} now @returns {Effect[]} */
  text(connection, data, now) {
    if (this.#over || !this.#reconnecting.isOpen(connection)) return [];
    const isCarrier = connection === this.#reconnecting.carrier;
    this.statistics.messages++;
    /** @type {Effect[]} */
    const effects = [];
    try {
      const message = decodeServer(data);
      if (!isCarrier) return this.#answer(message, connection, now);
      effects.push(...this.#heard(now, message));
      if (message.type !== "heartbeat" && message.type !== "pong") this.#stepAt = now;
      return [...effects, ...this.#take(message, now)];
    } catch (error) {
      if (error instanceof WireError && !isCarrier) return this.#reconnecting.failed(connection, error.message, now);
      return [...effects, ...this.#failBy(error, now)];
    }
  }

  /** @param {number} connection @param {Uint8Array} data @param {number} now @returns {Effect[]} */
  binary(connection, data, now) {
    if (this.#over || connection !== this.#reconnecting.carrier) return [];
    this.statistics.bytes += data.length;
    this.statistics.frames++;
    const effects = this.#heard(now);
    this.#stepAt = now;
    try {
      const taken = this.#receiver.audio(decodeFrame(data), now);
      this.statistics.resentBytes = Math.round(this.#receiver.resentBytes);
      if (taken) this.#progress();
      return [...effects, ...(taken ?? []), ...this.#ackIfDue(now)];
    } catch (error) {
      return [...effects, ...this.#failBy(error, now)];
    }
  }

  /** @param {number} now @returns {Effect[]} */
  tick(now) {
    const due = this.deadline;
    if (this.#over || due === null) return [];
    if (now - due > LATE_TICK_MS) {
      const lately = now - this.#patience / 2; // messages may wait unread
      this.#heardAt = Math.max(this.#heardAt, lately);
      this.#stepAt = Math.max(this.#stepAt, lately);
      this.#reconnecting.slept(now);
    }
    if (this.#reconnecting.gaveUp(now)) return this.#giveUp(now);
    const effects = this.#reconnecting.tick(now);
    if (!this.#isOut && this.#isOwed) {
      if (now >= this.#heardAt + this.#patience) effects.push(...this.#lose("silent", now, this.#heardAt, false));
      else if (this.#awaitsSpeech && now >= this.#stepAt + STUCK_MS) {
        return [...effects, ...this.#fail("misbehaved", "the server has stopped speaking: it only says that it is alive", true)];
      }
    }
    if (this.#lastInput !== null && this.#backlog.isEmpty && now >= this.#lastInput + SOFT_FLUSH_MS) {
      effects.push(...this.flush(true, now));
    }
    if (this.#isOut) return effects;
    if (this.#wantsAcks && now >= this.#receiver.ackTimer) effects.push(...this.#ack(now));
    if (now >= this.#lastSent + this.#keepAliveMs) effects.push(...this.#give({ type: "ping" }, now));
    return effects;
  }

  // ---- the writer ----

  /**
   * A new utterance, `newest` from then on; the one before takes no more text.
   * @param {{[field: string]: unknown}} fields of `start`: voice, speed, pitch, volume, seed, instruct, lexicon
   * @param {number} now
   * @returns {Effect[]}
   */
  begin(fields, now) {
    if (this.#over) return [];
    const effects = this.end(now);
    const utterance = this.#receiver.newest + 1;
    /** @type {import("./session_text.js").Start} */
    const start = { ...fields, type: "start", utterance };
    try {
      encodeClient({ ...start, seq: 1 });
    } catch (error) {
      return this.#failBy(error);
    }
    this.#receiver.newest = utterance;
    this.#receiver.live.set(utterance, new Tracked(start, this.#receiver.preSkip));
    this.#lastInput = null;
    this.#backlog.add(utterance, [start]);
    return [...effects, ...this.#pump(now)];
  }

  /** Text of the newest utterance, as much as there is. @param {string} text @param {number} now @returns {Effect[]} */
  write(text, now) {
    const entry = this.#writing;
    if (!entry) return [];
    const whole = this.#half + text;
    this.#half = /[\ud800-\udbff]$/.test(whole) ? whole.slice(-1) : "";
    for (const piece of pieces(wellFormed(this.#half ? whole.slice(0, -1) : whole))) this.#add(entry, piece);
    this.#lastInput = now;
    return this.#pump(now);
  }

  /** Speak what came so far; `soft`: if it looks complete. @param {boolean} soft @param {number} now @returns {Effect[]} */
  flush(soft, now) {
    return this.#say({ type: "flush", soft }, now);
  }

  /** Speak what came so far, then silence. @param {number} ms @param {number} now @returns {Effect[]} */
  silence(ms, now) {
    const effects = [];
    for (let left = Math.round(ms); left > 0; left -= MAX_SILENCE_MS) {
      effects.push(...this.#say({ type: "silence", ms: Math.min(left, MAX_SILENCE_MS) }, now));
    }
    return effects;
  }

  /** No more text for the newest utterance. @param {number} now @returns {Effect[]} */
  end(now) {
    const entry = this.#writing;
    if (!entry) return [];
    this.#finishCharacter(entry);
    entry.transcript.ended = true;
    this.#lastInput = null;
    this.#backlog.add(entry.number, [{ type: "end" }]);
    return this.#pump(now);
  }

  /**
   * Stop one utterance, or all that are unfinished or not yet heard. No audio of them is given any more.
   * @param {number | null} utterance
   * @param {number | null} played how far the listener heard it, or the first of them; null: as told last
   * @param {number} now
   * @returns {Effect[]}
   */
  cancel(utterance, played, now) {
    if (this.#over) return [];
    if (utterance !== null) return this.#cancel(utterance, played, now);
    const all = [...this.#receiver.beingHeard(), ...this.#receiver.live.values()].filter((each) => !each.cancelled);
    return all.flatMap(({ number }, index) => this.#cancel(number, index ? null : played, now));
  }

  /** The server sends no audio until `unpause`. @param {number} now @returns {Effect[]} */
  pause(now) {
    this.#paused = true;
    return this.#number({ type: "pause" }, now);
  }

  /** @param {number} now @returns {Effect[]} */
  unpause(now) {
    this.#paused = false;
    return this.#number({ type: "unpause" }, now);
  }

  /** The session is over: the server drops what is unfinished. @param {number} _now @returns {Effect[]} */
  close(_now) {
    if (this.#over) return [];
    this.#over = true;
    return [...this.#reconnecting.end(), ...this.#become("closed", "")];
  }

  // ---- the listener ----

  /**
   * @param {number} utterance
   * @param {number} sample heard up to here
   * @param {number} bufferedMs
   * @param {number} stalls
   * @param {number} now
   * @returns {Effect[]}
   */
  played(utterance, sample, bufferedMs, stalls, now) {
    const entry = this.#receiver.find(utterance);
    if (this.#over || !entry) return [];
    if (sample !== entry.played) this.#stepAt = now;
    const before = entry.heardAll;
    entry.played = Math.max(0, Math.floor(sample));
    entry.bufferedMs = Math.max(0, Math.round(bufferedMs));
    entry.stalls = stalls;
    if (!entry.heardAll || before) return [];
    return [...this.#give(this.#receiver.ack(now, entry), now), ...this.#pump(now)];
  }

  /** Whether the player is in the foreground. @param {boolean} visible @returns {Effect[]} */
  visible(visible) {
    this.#receiver.visible = visible;
    return [];
  }

  // ---- inside: what is said ----

  /** Whether no connection carries the session at present. */
  get #isOut() {
    return this.#reconnecting.carrier === null || this.#reconnecting.searching;
  }

  /** The newest utterance, while it takes text. */
  get #writing() {
    const entry = this.#over ? undefined : this.#receiver.live.get(this.#receiver.newest);
    return entry && !entry.cancelled && !entry.transcript.ended ? entry : undefined;
  }

  /** @param {Tracked} entry @param {import("./session_text.js").Piece} piece */
  #add(entry, piece) {
    entry.transcript.write(piece);
    this.#backlog.add(entry.number, [piece]);
  }

  /** @param {Tracked} entry its second half will not come */
  #finishCharacter(entry) {
    if (this.#half) this.#add(entry, { type: "text", text: wellFormed(this.#half) });
    this.#half = "";
  }

  /** @param {import("./session_text.js").Piece} piece @param {number} now */
  #say(piece, now) {
    const entry = this.#writing;
    if (!entry) return [];
    this.#finishCharacter(entry);
    this.#add(entry, piece);
    this.#lastInput = null;
    return this.#pump(now);
  }

  /** @param {number} number @param {number | null} played @param {number} now */
  #cancel(number, played, now) {
    const receiver = this.#receiver;
    const entry = receiver.find(number);
    if (!entry || entry.cancelled) return [];
    const isLive = receiver.live.has(number);
    if (!isLive) {
      if (!receiver.beingHeard().includes(entry)) return [];
      receiver.revive(entry);
      this.#beginWatch(now);
    }
    const told = played ?? (receiver.maxLead === null ? entry.played : entry.heard);
    entry.cancelled = true;
    entry.cancelSample = Math.max(0, Math.min(told ?? Infinity, entry.received));
    if (number === receiver.newest) {
      this.#lastInput = null;
      this.#half = "";
    }
    this.#backlog.drop(number);
    if (this.#gone || !entry.started) return [...receiver.cancelledHere(entry), ...this.#pump(now)];
    const played_sample = told === null ? null : Math.max(0, Math.floor(entry.cancelSample) - entry.baseSamples);
    return [...this.#number({ type: "cancel", utterance: number, played_sample }, now), ...this.#pump(now)];
  }

  /** @param {Numbered} message @param {number} now */
  #number(message, now) {
    if (this.#over || this.#gone) return [];
    this.#stepAt = now;
    return this.#give(this.#window.number(message), now);
  }

  /** As much of what waits as there is room for. @param {number} now */
  #pump(now) {
    if (this.#gone || this.#backlog.isEmpty) return [];
    const receiver = this.#receiver;
    const mayStart = () => {
      let unfinished = receiver.beingHeard().length;
      for (const entry of receiver.live.values()) unfinished += entry.started ? 1 : 0;
      return !this.#goingAway && unfinished < this.#maxQueued;
    };
    const taken = this.#backlog.take(this.#window, this.#maxChars, mayStart, (number) => {
      if (!this.#isOwed) this.#beginWatch(now);
      const entry = receiver.live.get(number);
      if (entry) entry.started = true;
    });
    if (taken.length) this.#stepAt = now;
    return taken.flatMap((message) => this.#give(message, now));
  }

  /** @param {import("./wire.js").ClientMessage & {seq?: number}} message @param {number} now @returns {Effect[]} */
  #give(message, now) {
    const { carrier, searching } = this.#reconnecting;
    if (carrier === null || searching) return [];
    this.#lastSent = now;
    if (message.seq !== undefined) {
      this.#sentSeq = message.seq;
      this.#timed ??= { seq: message.seq, at: now };
    }
    return [{ type: "send", connection: carrier, data: encodeClient(message) }];
  }

  /** @param {number} now */
  #ack(now) {
    return this.#isOut ? [] : this.#give(this.#receiver.ack(now), now);
  }

  /** Nothing is acked on a connection that may not hear, while another one asks to go on from less. */
  #ackIfDue(/** @type {number} */ now) {
    return this.#receiver.ackDue ? this.#ack(now) : [];
  }

  get #wantsAcks() {
    const { live, owesAck } = this.#receiver;
    return live.size > 0 || owesAck || this.#receiver.beingHeard().length > 0;
  }

  // ---- inside: whether the server is there ----

  #beginWatch(/** @type {number} */ now) {
    this.#heardAt = Math.max(this.#heardAt, now);
  }

  /** Whether the server has something to do. */
  get #isOwed() {
    for (const entry of this.#receiver.live.values()) if (entry.started) return true;
    return false;
  }

  /** Whether the server has something to say, and nothing here keeps it from it. */
  get #awaitsSpeech() {
    const { live, maxLead } = this.#receiver;
    if (this.#paused) return false;
    for (const entry of live.values()) {
      if (!entry.transcript.ended && !entry.cancelled) continue;
      if (entry.cancelled || maxLead === null) return true;
      if (this.#receiver.beingHeard(entry.number).length) return false;
      return 2 * (entry.received - entry.heard) <= maxLead; // with more it may wait for the listener
    }
    return false;
  }

  /**
   * The connection that carries the session spoke. After an outage that alone proves one direction: what was on its way
   * comes, while nothing gets through from here yet. So it is asked, and another one may still be quicker.
   * @param {number} now
   * @param {ServerMessage} [message]
   * @returns {Effect[]}
   */
  #heard(now, message) {
    this.#heardAt = Math.max(this.#heardAt, now);
    const { carrier } = this.#reconnecting;
    if (!this.#isOut || carrier === null) return [];
    if (message?.type === "pong" && message.id === this.#probe) return this.#wake(now);
    if (this.#probed) return [];
    this.#probed = true;
    return [{ type: "send", connection: carrier, data: encodeClient({ type: "ping", id: ++this.#probe }) }];
  }

  /** Something new came. */
  #progress() {
    this.#fresh = false;
    this.#reconnecting.progress();
  }

  /** @param {ServerMessage} message @param {number} now @returns {Effect[]} */
  #take(message, now) {
    switch (message.type) {
      case "seq_ack":
        this.#window.ack(message.seq, message.room);
        if (this.#timed && message.seq >= this.#timed.seq) {
          this.rtt = now - this.#timed.at;
          this.#timed = null;
        }
        return this.#pump(now);
      case "heartbeat":
      case "pong":
        return [];
      case "goaway":
        this.#goingAway = true;
        return [];
      case "busy":
        return this.#busy(message);
      case "error":
        return this.#fail(message.code, message.message, message.retryable, message.field);
      case "opened":
      case "resumed":
      case "resume_failed":
        throw new Misbehaved(`the server sent \`${message.type}\` where it is not allowed`);
    }
    const taken = this.#receiver.event(message);
    if (taken) {
      this.#progress();
      if (message.type === "segment_end" || message.type === "done") this.#futile = 0;
    }
    const over = message.type === "done" || message.type === "cancelled";
    return [...(taken ?? []), ...this.#ackIfDue(now), ...(over ? this.#pump(now) : [])];
  }

  // ---- inside: the end ----

  /** @param {State} state @param {string} reason @param {Problem | null} [detail] @returns {Effect[]} */
  #become(state, reason, detail = null) {
    this.state = state;
    return [{ type: "state", state, reason, detail }];
  }

  /**
   * @param {string} code
   * @param {string} message
   * @param {boolean} [retryable]
   * @param {string | null} [field]
   * @param {number | null} [retryAfterMs]
   * @param {{reason?: string}} [why] of `busy`
   * @returns {Effect[]}
   */
  #fail(code, message, retryable = false, field = null, retryAfterMs = null, why = {}) {
    if (this.#over) return [];
    this.#over = true;
    const detail = { code, message, field, retryable, retryAfterMs, ...why };
    return [...this.#reconnecting.end(), ...this.#become("failed", code, detail)];
  }

  /** @param {import("./wire.js").Busy} message */
  #busy({ retry_after_ms, reason, message }) {
    const told = message || `the server takes nothing more now (${reason})`;
    return this.#fail("busy", told, true, null, retry_after_ms, { reason });
  }

  /** @param {unknown} error @param {number} [now] @returns {Effect[]} */
  #failBy(error, now) {
    if (error instanceof Gap && now !== undefined) return this.#gap(error, now);
    if (error instanceof WireError && now === undefined) return this.#fail(error.code, error.message, false, error.field);
    if (error instanceof Misbehaved || error instanceof WireError) return this.#fail("misbehaved", error.message);
    throw error;
  }

  /** Something is missing. What a connection lost, another one may bring. @param {Gap} gap @param {number} now */
  #gap(gap, now) {
    const { carrier } = this.#reconnecting;
    if (this.#fresh || now - this.#gapAt < GAP_PAUSE_MS || carrier === null) return this.#fail("misbehaved", gap.message);
    this.#gapAt = now;
    return [this.#reconnecting.drop(carrier), ...this.#lose("gap", now, now, true)];
  }

  #giveUp(/** @type {number} */ now) {
    const { why, heardAt, first } = this.#reconnecting;
    if (!first) this.statistics.outageMs += now - heardAt;
    const lost = first ? "" : `${this.#lostWhy}; `;
    return this.#fail("unreachable", `${lost}no connection within ${Math.round((now - heardAt) / 1_000)} s: ${why || NO_ANSWER}`, true);
  }

  // ---- inside: from one connection to another ----

  /**
   * The connection is of no use any more (`gone`), or says nothing.
   * @param {"broken" | "stopped" | "silent" | "gap"} why
   * @param {number} now
   * @param {number} heardAt
   * @param {boolean} gone
   * @returns {Effect[]}
   */
  #lose(why, now, heardAt, gone) {
    /** @type {Effect[]} */
    const effects = [];
    this.#timed = null;
    if (!this.#resumable && !this.#gone) effects.push(...this.#leave({ reason: "unknown" }));
    if (!this.#reconnecting.searching) {
      this.#lostWhy = why;
      this.#probed = false;
      effects.push(...this.#become("reconnecting", why));
    }
    return [...effects, ...this.#reconnecting.begin(now, heardAt, gone, this.#reconnectMs)];
  }

  /** The session is none any more: the next connection opens another one. @param {Partial<Gone>} gone @returns {Effect[]} */
  #leave({ reason = "unknown", utterance = null, restart_text_position = null }) {
    this.#gone = { reason, utterance, restart_text_position };
    const { carrier } = this.#reconnecting;
    return carrier === null ? [] : [this.#reconnecting.drop(carrier)];
  }

  /** The connection that was silent speaks and hears again, before another one took over. */
  #wake(/** @type {number} */ now) {
    const effects = this.#reconnecting.carriedAgain();
    this.statistics.outageMs += now - this.#reconnecting.heardAt;
    this.#beginWatch(now);
    return [...effects, ...this.#giveWaiting(now), ...this.#ack(now), ...this.#become("ready", "recovered"), ...this.#pump(now)];
  }

  /** Numbered messages that no connection was given yet. */
  #giveWaiting(/** @type {number} */ now) {
    return this.#window.unacked.filter(({ seq }) => seq > this.#sentSeq).flatMap((message) => this.#give(message, now));
  }

  #greeting() {
    if (this.#gone) return { data: encodeClient(this.#request), opens: true };
    const resume = {
      type: "resume",
      session: this.opened?.session,
      token: this.#token,
      epoch: this.#epoch,
      generation_seen: this.#receiver.generation,
      events_seen: this.#receiver.lastEvent,
      have_decoder: true,
      ...this.#receiver.resumePosition,
    };
    return { data: encodeClient(resume), opens: false };
  }

  /** What comes on a connection that does not carry the session. */
  /** @param {ServerMessage} message @param {number} connection @param {number} now @returns {Effect[]} */
  #answer(message, connection, now) {
    const reconnecting = this.#reconnecting;
    if (message.type === "busy") {
      if (this.opened === null) return this.#busy(message);
      return reconnecting.failed(connection, message.message || message.reason, now, Math.max(100, message.retry_after_ms));
    }
    if (message.type === "error") {
      if (message.retryable && this.opened) return reconnecting.failed(connection, message.message, now);
      return this.#fail(message.code, message.message, message.retryable, message.field);
    }
    if (reconnecting.askedAt(connection) === null) return [];
    if (message.type === "opened" && this.#gone) return this.#reopened(message, connection, this.#gone, now);
    if (message.type === "resumed" && !this.#gone) return this.#resumed(message, connection, now);
    if (message.type === "resume_failed" && !this.#gone) {
      if (!this.#isOut) return reconnecting.failed(connection, message.reason, now);
      return [...this.#leave(message), ...reconnecting.askAgain(connection, now)];
    }
    if (message.type === "opened" || message.type === "resumed" || message.type === "resume_failed") {
      throw new Misbehaved(`the server sent \`${message.type}\` where it is not allowed`);
    }
    return [];
  }

  /** @param {number} connection @param {number} now @returns {Effect[]} */
  #takeOver(connection, now) {
    const { heardAt, searching, first } = this.#reconnecting;
    if (searching && !first) this.statistics.outageMs += now - heardAt;
    const effects = this.#reconnecting.adopt(connection, now);
    this.rtt = this.#reconnecting.rtt;
    this.#patience = Math.max(WATCHDOG_MS, MESSAGES_MS + this.rtt);
    this.#heardAt = this.#stepAt = this.#lastSent = now;
    this.#goingAway = false;
    return effects;
  }

  /** @param {import("./wire.js").Resumed} message @param {number} connection @param {number} now @returns {Effect[]} */
  #resumed(message, connection, now) {
    const receiver = this.#receiver;
    if (message.generation <= receiver.generation) {
      throw new Misbehaved(`generation ${message.generation} is resumed after generation ${receiver.generation}`);
    }
    if (message.seq < this.#window.acked) {
      // A server that lost power has not all that it had taken, and does not know. This connection carries that session.
      return [...this.#leave({ reason: "epoch" }), ...this.#reconnecting.failed(connection, "text was lost", now)];
    }
    const effects = this.#takeOver(connection, now);
    const replays = message.epoch !== this.#epoch; // the server restarted and may tell some things again
    receiver.generation = message.generation;
    this.#epoch = message.epoch;
    this.#token = message.new_token || this.#token;
    this.statistics.resumes++;
    if (receiver.mode.mode !== message.mode) receiver.mode = { mode: message.mode, reason: "resumed" };
    this.#fresh = true;
    this.#window.ack(message.seq, message.room);
    this.#sentSeq = message.seq;
    for (const entry of receiver.live.values()) {
      entry.newGeneration();
      if (replays) entry.transcript.replays = true;
    }
    effects.push(...this.#giveWaiting(now), ...this.#ack(now));
    return [...effects, ...this.#become("ready", "resumed"), ...this.#pump(now)];
  }

  /**
   * A new session: the first, or one that goes on with what another one left unsaid.
   * @param {import("./wire.js").Opened} opened
   * @param {number} connection
   * @param {Gone} gone
   * @param {number} now
   * @returns {Effect[]}
   */
  #reopened(opened, connection, gone, now) {
    const receiver = this.#receiver;
    const before = this.opened;
    if (before && sound(opened) !== sound(before)) {
      return this.#fail("gone", "the session could not be resumed, and a new one sounds different", true);
    }
    const effects = this.#takeOver(connection, now);
    this.#enter(opened);
    /** @type {Effect[]} */
    const told = [];
    let lost = false;
    for (const entry of [...receiver.live.values()]) {
      if (entry.cancelled) {
        told.push(...receiver.cancelledHere(entry));
      } else if (!entry.started) {
        entry.timeline = new Timeline(opened.pre_skip);
      } else {
        lost = true;
        told.push(...this.#sayRest(entry, gone));
      }
    }
    this.#requeue();
    if (lost) {
      this.statistics.restarts++;
      if (++this.#futile > FUTILE_RESTARTS) {
        return [...effects, ...told, ...this.#fail("gone", "new sessions fail at the same text again and again", true)];
      }
    }
    effects.push(...this.#become("ready", before ? "restarted" : "opened"), ...told);
    if (this.#paused) effects.push(...this.#number({ type: "pause" }, now));
    return [...effects, ...this.#pump(now)];
  }

  /** @param {import("./wire.js").Opened} opened from here on this session holds */
  #enter(opened) {
    const receiver = this.#receiver;
    const { config, limits } = opened;
    const lead = config.max_lead_ms ?? null;
    receiver.rate = positive(config, "sample_rate", 24_000);
    receiver.maxLead = lead === null ? null : Math.floor((positive(config, "max_lead_ms", 1) * receiver.rate) / 1_000);
    receiver.mode = { mode: config.mode === "block" ? "block" : "stream", reason: "" };
    receiver.newSession(opened.generation, opened.pre_skip, positive(limits, "unacked_bytes", 524_288));
    this.#maxChars = Math.min(16_384, positive(limits, "text_chars", 16_384));
    this.#maxQueued = positive(limits, "queued_utterances", 64);
    this.#keepAliveMs = positive(limits, "idle_timeout_ms", 60_000) / 3;
    this.#resumable = Number(limits.resume_ttl_ms) > 0;
    this.#window = new SendWindow(positive(limits, "text_window_chars", 262_144));
    this.#sentSeq = 0;
    this.#token = opened.token;
    this.#epoch = opened.epoch;
    this.#gone = null;
    this.#fresh = false;
    this.opened = opened;
    const { voice } = config;
    if (typeof voice === "string" && voice) this.#request = { ...this.#request, voice };
  }

  /** @param {Tracked} entry @param {Gone} gone @returns {Effect[]} */
  #sayRest(entry, gone) {
    const named = gone.utterance === entry.number ? gone.restart_text_position : null;
    const { rate, preSkip } = this.#receiver;
    const rest = entry.transcript.rest(entry.timeline.received, named ?? 0, rate);
    const isNews = entry.timeline.received > 0 || entry.transcript.segments > 0;
    entry.goOn(rest, preSkip);
    if (!isNews) return [];
    return [{ type: "restarted", utterance: entry.number, sample: entry.baseSamples, position: entry.baseText }];
  }

  /** What is left of every utterance waits again, in order. */
  #requeue() {
    this.#backlog = new Backlog();
    for (const { number, cancelled, transcript } of this.#receiver.live.values()) {
      if (!cancelled) this.#backlog.add(number, transcript.messages);
    }
  }
}

/** What a listener builds on. */
function sound(/** @type {import("./wire.js").Opened} */ { config, pre_skip }) {
  return JSON.stringify([config.sample_rate ?? 24_000, config.format, pre_skip]);
}

/** @param {{[name: string]: unknown}} from @param {string} name @param {number} absent */
function positive(from, name, absent) {
  const value = from[name] ?? absent;
  if (Number.isSafeInteger(value) && Number(value) > 0) return Number(value);
  throw new Misbehaved(`the server's ${name} must be a positive whole number`);
}
