/**
 * The client's side of a session, without I/O: what connections, the writer and the listener say goes in, effects come
 * out, to be executed in order. It outlives its connections: docs/protocol.md, "Resuming".
 */

import { decodeFrame, decodeServer, encodeClient, WireError } from "./wire.js";
import { Gap, Misbehaved, Timeline } from "./session_timeline.js";
import { Receiver } from "./session_receiving.js";
import { Reconnecting } from "./session_reconnecting.js";
import { Watchdog } from "./session_watchdog.js";
import { Writer } from "./session_writing.js";

/**
 * @typedef {{code: string, message: string, field: string | null, retryable: boolean, retryAfterMs: number | null,
 *   reason?: string}} Problem `reason`: that of `busy`
 * @typedef {{type: "audio", utterance: number, first: number, count: number, codec: "pcm" | "opus",
 *   payload: Uint8Array | Uint8Array[] | null, silence: boolean, reset: boolean, skip: number, last: boolean}} Audio
 * @typedef {{type: "connect", connection: number} | {type: "send", connection: number, data: string}
 *   | {type: "drop", connection: number, code: number} | Audio | {type: "event", message: import("./wire.js").Event}
 *   | {type: "verified", utterance: number, samples: number, digest: string}
 *   | {type: "state", state: State, reason: string, detail: Problem | null}
 *   | {type: "restarted", utterance: number, sample: number, position: number}} Effect
 * @typedef {"connecting" | "ready" | "reconnecting" | "failed" | "closed"} State
 * @typedef {{now: number, rtt: number | null}} Clock
 * @typedef {import("./wire.js").ServerMessage} ServerMessage
 * @typedef {{reason: string, utterance: number | null, restart_text_position: number | null}} Gone
 */

const OPENING_MS = 10_000; // from the first attempt to `opened`
const LATE_TICK_MS = 250; // a tick this late means that this program slept, not the server
const GAP_PAUSE_MS = 1_000; // a second gap within this time, or the first thing after a resume, is no accident
const FUTILE_RESTARTS = 3; // in a row, without one segment spoken: the server dies of this text
const FINAL_CLOSES = [1003, 1007, 1008, 1009]; // the server refuses what this client says: it would again
const UNKNOWN = { reason: "unknown", utterance: null, restart_text_position: null };

/**
 * Times are milliseconds of one monotonic clock; samples and text positions are the utterance's own. Every method gives
 * effects and none throws; once the session is over there are none.
 */
export class Session {
  /** @type {State | "new"} */
  state = "new";
  /** @type {import("./wire.js").Opened | null} */
  opened = null;
  statistics = { bytes: 0, frames: 0, messages: 0, resumes: 0, restarts: 0, resentBytes: 0, outageMs: 0 };
  /** @type {Effect[]} */
  #effects = [];
  #clock = { now: 0, rtt: /** @type {number | null} */ (null) };
  #receiver = new Receiver(this.#clock, (effect) => this.#emit(effect));
  #watchdog = new Watchdog(this.#clock);
  #writer = new Writer(this.#clock, this.#receiver, this.#watchdog, (message) => this.#send(message));
  #reconnecting;
  /** @type {import("./wire.js").ClientMessage} */
  #request;
  #reconnectMs;
  #token = "";
  #epoch = 0;
  #resumable = false;
  #keepAliveMs = Infinity;
  /** Why there is no session, so that the next connection opens one; null: there is. @type {Gone | null} */
  #gone = UNKNOWN;
  #over = false;
  #lastSent = 0;
  #gapAt = -Infinity;
  #fresh = false; // resumed, and nothing new came yet
  #futile = 0;
  #probe = 0; // id of the ping that asks a connection which speaks again whether it hears, too
  #probed = false; // in this outage
  #lost = ""; // what happened to the last connection

  /**
   * @param {{[field: string]: unknown}} open fields of `open`
   * @param {{random?: () => number, reconnectMs?: number}} [options]
   */
  constructor(open, { random = Math.random, reconnectMs = 120_000 } = {}) {
    this.#request = { ...open, type: "open", max_buffer_delay_ms: null };
    this.#reconnectMs = reconnectMs;
    this.#reconnecting = new Reconnecting(this.#clock, (effect) => this.#emit(effect), () => this.#greeting(), random);
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

  /** How long the last answer took, in ms; null: there was none. */
  get rtt() {
    return this.#clock.rtt;
  }

  /** When `tick` must be called; null: not yet, or never again. */
  get deadline() {
    if (this.#over) return null;
    let due = Math.min(this.#reconnecting.deadline, this.#writer.softFlushAt);
    if (!this.#isOut) {
      due = Math.min(due, this.#lastSent + this.#keepAliveMs);
      if (this.#receiver.isOwed) due = Math.min(due, this.#watchdog.silentAt);
      if (this.#awaitsSpeech) due = Math.min(due, this.#watchdog.stuckAt);
      if (this.#wantsAcks) due = Math.min(due, this.#receiver.ackTimer);
    }
    return due === Infinity ? null : due;
  }

  // ---- connections ----

  /** @param {number} now */
  start(now) {
    return this.#do(now, () => {
      encodeClient(this.#request);
      this.#lastSent = now;
      this.#become("connecting", "");
      this.#reconnecting.begin(now, OPENING_MS);
    });
  }

  /** @param {number} connection @param {number} now */
  connected(connection, now) {
    return this.#do(now, () => this.#reconnecting.connected(connection));
  }

  /**
   * It could not be opened.
   * @param {number} connection
   * @param {{code: string, message: string, retryable: boolean}} problem
   * @param {number} now
   */
  refused(connection, { code, message, retryable }, now) {
    return this.#do(now, () => {
      if (!this.#reconnecting.isOpen(connection)) return;
      if (retryable) this.#reconnecting.failed(connection, message);
      else this.#fail({ code, message });
    });
  }

  /** @param {number} connection @param {number} code @param {string} reason @param {number} now */
  closed(connection, code, reason, now) {
    return this.#do(now, () => {
      if (!this.#reconnecting.isOpen(connection)) return;
      const isCarrier = connection === this.#reconnecting.carrier;
      const why = reason || `the server closed the connection with code ${code}`;
      if (FINAL_CLOSES.includes(code) && (isCarrier || !this.opened)) throw new Misbehaved(why);
      if (!isCarrier) return this.#reconnecting.failed(connection, why);
      this.#reconnecting.carrier = null;
      this.#lose(this.#writer.goingAway || code === 1001 || code === 1012 ? "stopped" : "broken", now);
    });
  }

  /** Bytes came, though no whole message yet. @param {number} connection @param {number} now */
  heard(connection, now) {
    return this.#do(now, () => {
      if (connection === this.#reconnecting.carrier && !this.#isOut) this.#watchdog.heard();
    });
  }

  /** @param {number} connection @param {string} data @param {number} now */
  text(connection, data, now) {
    return this.#do(now, () => {
      if (!this.#reconnecting.isOpen(connection)) return;
      this.statistics.messages++;
      if (connection !== this.#reconnecting.carrier) return this.#answer(data, connection);
      const message = decodeServer(data);
      this.#heard(message);
      if (message.type !== "heartbeat" && message.type !== "pong") this.#watchdog.step();
      this.#take(message);
    });
  }

  /** @param {number} connection @param {Uint8Array} data @param {number} now */
  binary(connection, data, now) {
    return this.#do(now, () => {
      if (connection !== this.#reconnecting.carrier) return;
      this.statistics.bytes += data.length;
      this.statistics.frames++;
      this.#heard();
      this.#watchdog.step();
      if (this.#receiver.audio(decodeFrame(data))) this.#progress();
      this.statistics.resentBytes = Math.round(this.#receiver.resentBytes);
      this.#ackIfDue();
    });
  }

  /** @param {number} now */
  tick(now) {
    const due = this.deadline;
    if (due === null) return [];
    return this.#do(now, () => {
      const [watchdog, reconnecting, receiver] = [this.#watchdog, this.#reconnecting, this.#receiver];
      if (now - due > LATE_TICK_MS) {
        watchdog.slept();
        reconnecting.slept();
      }
      if (reconnecting.gaveUp) return this.#giveUp();
      reconnecting.tick();
      if (!this.#isOut && receiver.isOwed && now >= watchdog.silentAt) this.#lose("silent", watchdog.heardAt);
      if (!this.#isOut && this.#awaitsSpeech && now >= watchdog.stuckAt) {
        return this.#fail({ code: "misbehaved", message: "the server only says that it is alive", retryable: true });
      }
      if (now >= this.#writer.softFlushAt) this.#writer.say({ type: "flush", soft: true });
      if (this.#isOut) return;
      if (this.#wantsAcks && now >= receiver.ackTimer) this.#ack();
      if (now >= this.#lastSent + this.#keepAliveMs) this.#send({ type: "ping" });
    });
  }

  // ---- the writer ----

  /**
   * A new utterance, `newest` from then on; the one before takes no more text.
   * @param {{[field: string]: unknown}} fields of `start`: voice, speed, pitch, volume, seed, instruct, lexicon
   * @param {number} now
   */
  begin(fields, now) {
    return this.#do(now, () => this.#writer.begin(fields));
  }

  /** Text of the newest utterance, as much as there is. @param {string} text @param {number} now */
  write(text, now) {
    return this.#do(now, () => this.#writer.write(text));
  }

  /** Speak what came so far; `soft`: if it looks complete. @param {boolean} soft @param {number} now */
  flush(soft, now) {
    return this.#do(now, () => this.#writer.say({ type: "flush", soft }));
  }

  /** Speak what came so far, then silence. @param {number} ms @param {number} now */
  silence(ms, now) {
    return this.#do(now, () => this.#writer.silence(ms));
  }

  /** No more text for the newest utterance. @param {number} now */
  end(now) {
    return this.#do(now, () => this.#writer.end());
  }

  /**
   * Stop one utterance, or all that are unfinished or not yet heard. No audio of them is given any more.
   * @param {number | null} utterance
   * @param {number | null} played how far the listener heard it, or the first of them; null: as told last
   * @param {number} now
   */
  cancel(utterance, played, now) {
    return this.#do(now, () => {
      if (utterance !== null) return this.#writer.cancel(utterance, played);
      const all = [...this.#receiver.beingHeard(), ...this.#receiver.live.values()].filter((each) => !each.cancelled);
      for (const [index, { number }] of all.entries()) this.#writer.cancel(number, index ? null : played);
    });
  }

  /** The server sends no audio until `unpause`. @param {number} now */
  pause(now) {
    return this.#do(now, () => this.#writer.pause(true));
  }

  /** @param {number} now */
  unpause(now) {
    return this.#do(now, () => this.#writer.pause(false));
  }

  /** The session is over: the server drops what is unfinished. @param {number} now */
  close(now) {
    return this.#do(now, () => this.#end("closed", "", null));
  }

  // ---- the listener ----

  /**
   * @param {number} utterance
   * @param {number} sample heard up to here
   * @param {number} bufferedMs
   * @param {number} stalls
   * @param {number} now
   */
  played(utterance, sample, bufferedMs, stalls, now) {
    return this.#do(now, () => {
      const entry = this.#receiver.find(utterance);
      if (!entry) return;
      if (sample !== entry.played) this.#watchdog.step();
      const before = entry.heardAll;
      entry.played = Math.max(0, Math.floor(sample));
      entry.bufferedMs = Math.max(0, Math.round(bufferedMs));
      entry.stalls = stalls;
      if (!entry.heardAll || before) return;
      this.#ack(entry);
      this.#writer.pump();
    });
  }

  /** Whether the player is in the foreground. @param {boolean} visible @returns {Effect[]} */
  visible(visible) {
    this.#receiver.visible = visible;
    return [];
  }

  // ---- effects ----

  /** @param {number} now @param {() => void} what @returns {Effect[]} */
  #do(now, what) {
    if (this.#over) return [];
    this.#clock.now = now;
    try {
      what();
    } catch (error) {
      this.#failBy(error);
    }
    return this.#effects.splice(0);
  }

  #emit(/** @type {Effect} */ effect) {
    this.#effects.push(effect);
  }

  /** @param {State} state @param {string} reason @param {Problem | null} [detail] */
  #become(state, reason, detail = null) {
    this.state = state;
    this.#emit({ type: "state", state, reason, detail });
  }

  /** @param {State} state @param {string} reason @param {Problem | null} detail */
  #end(state, reason, detail) {
    this.#over = true;
    this.#reconnecting.dropAll(1000);
    this.#become(state, reason, detail);
  }

  #fail(/** @type {Partial<Problem> & {code: string, message: string}} */ problem) {
    const { code, message, field = null, retryable = false, retryAfterMs = null, reason } = problem;
    const detail = { code, message, field, retryable, retryAfterMs };
    if (!this.#over) this.#end("failed", code, reason === undefined ? detail : { ...detail, reason });
  }

  #failBy(/** @type {unknown} */ error) {
    if (error instanceof WireError && error.isOurs) this.#fail({ code: error.code, message: error.message, field: error.field });
    else if (error instanceof Gap) this.#gap(error);
    else if (error instanceof Misbehaved || error instanceof WireError) this.#fail({ code: "misbehaved", message: error.message });
    else throw error;
  }

  /** Something is missing. What a connection lost, another one may bring. */
  #gap(/** @type {Gap} */ { message }) {
    const { now } = this.#clock;
    const { carrier } = this.#reconnecting;
    if (this.#fresh || now - this.#gapAt < GAP_PAUSE_MS || carrier === null) return this.#fail({ code: "misbehaved", message });
    this.#gapAt = now;
    this.#reconnecting.drop(carrier);
    this.#lose("gap", now);
  }

  #giveUp() {
    const { why, heardAt, first } = this.#reconnecting;
    const outage = this.#clock.now - heardAt;
    if (!first) this.statistics.outageMs += outage;
    const message = `${this.#lost}no connection within ${Math.round(outage / 1_000)} s: ${why}`;
    this.#fail({ code: "unreachable", message, retryable: true });
  }

  // ---- sending ----

  /** Whether no connection carries the session at present. */
  get #isOut() {
    return this.#reconnecting.carrier === null || this.#reconnecting.searching;
  }

  /** @param {import("./wire.js").ClientMessage} message whether a connection took it */
  #send(message) {
    const connection = this.#reconnecting.carrier;
    if (connection === null || this.#reconnecting.searching) return false;
    this.#lastSent = this.#clock.now;
    this.#emit({ type: "send", connection, data: encodeClient(message) });
    return true;
  }

  /**
   * Nothing is acked on a connection that may not hear, while another one asks to go on from less.
   * @param {import("./session_receiving.js").Tracked} [ended]
   */
  #ack(ended) {
    if (!this.#isOut) this.#send(this.#receiver.ack(ended));
  }

  #ackIfDue() {
    if (this.#receiver.ackDue) this.#ack();
  }

  get #wantsAcks() {
    return this.unfinished || this.#receiver.owesAck || this.#receiver.beingHeard().length > 0;
  }

  // ---- what the connection that carries the session brings ----

  /** Whether the server has something to say, and nothing here keeps it from it. */
  get #awaitsSpeech() {
    const { live, maxLead } = this.#receiver;
    if (this.#writer.paused || !this.#receiver.isOwed) return false;
    for (const entry of live.values()) {
      if (!entry.transcript.ended && !entry.cancelled) continue;
      if (entry.cancelled || maxLead === null) return true;
      if (this.#receiver.beingHeard(entry.number).length) return false;
      return 2 * (entry.received - entry.heard) <= maxLead; // with more it may wait for the listener
    }
    return false;
  }

  /**
   * The connection spoke. After an outage that alone proves one direction: what was on its way comes, while nothing gets
   * through from here yet. So it is asked, and another one may still be quicker.
   * @param {ServerMessage} [message]
   */
  #heard(message) {
    this.#watchdog.heard();
    const connection = this.#reconnecting.carrier;
    if (!this.#isOut || connection === null) return;
    if (message?.type === "pong" && message.id === this.#probe) return this.#wake();
    if (this.#probed) return;
    this.#probed = true;
    this.#emit({ type: "send", connection, data: encodeClient({ type: "ping", id: ++this.#probe }) });
  }

  /** It was silent, and hears again before another one took over. */
  #wake() {
    this.#reconnecting.carriedAgain();
    this.statistics.outageMs += this.#clock.now - this.#reconnecting.heardAt;
    this.#writer.giveWaiting();
    this.#ack();
    this.#become("ready", "recovered");
    this.#writer.pump();
  }

  #progress() {
    this.#fresh = false;
    this.#reconnecting.progress();
  }

  #take(/** @type {ServerMessage} */ message) {
    switch (message.type) {
      case "seq_ack":
        return this.#writer.acked(message.seq, message.room);
      case "heartbeat":
      case "pong":
        return;
      case "goaway":
        this.#writer.goingAway = true;
        return;
      case "busy":
        return this.#busy(message);
      case "error":
        return this.#fail(message);
      case "opened":
      case "resumed":
      case "resume_failed":
        throw new Misbehaved(`the server sent \`${message.type}\` where it is not allowed`);
    }
    if (this.#receiver.event(message)) {
      this.#progress();
      if (message.type === "segment_end" || message.type === "done") this.#futile = 0;
    }
    this.#ackIfDue();
    if (message.type === "done" || message.type === "cancelled") this.#writer.pump();
  }

  #busy(/** @type {import("./wire.js").Busy} */ { retry_after_ms, reason, message }) {
    const told = message || `the server takes nothing more now (${reason})`;
    this.#fail({ code: "busy", message: told, retryable: true, retryAfterMs: retry_after_ms, reason });
  }

  // ---- from one connection to another ----

  /** @param {"broken" | "stopped" | "silent" | "gap"} why @param {number} heardAt */
  #lose(why, heardAt) {
    this.#writer.timed = null;
    if (!this.#resumable) this.#leave(UNKNOWN);
    if (!this.#reconnecting.searching) {
      this.#lost = `${why}; `;
      this.#probed = false;
      this.#become("reconnecting", why);
    }
    this.#reconnecting.begin(heardAt, this.#reconnectMs);
  }

  /** The session is none any more: the next connection opens another one. */
  #leave(/** @type {Gone} */ gone) {
    this.#gone = gone;
    this.#writer.hasSession = false;
    const { carrier } = this.#reconnecting;
    if (carrier !== null) this.#reconnecting.drop(carrier);
  }

  #greeting() {
    if (this.#gone) return { data: encodeClient(this.#request), opens: true };
    const data = encodeClient({
      type: "resume",
      session: this.opened?.session,
      token: this.#token,
      epoch: this.#epoch,
      generation_seen: this.generation,
      events_seen: this.#receiver.lastEvent,
      have_decoder: true,
      ...this.#receiver.resumePosition,
    });
    return { data, opens: false };
  }

  /** What comes on a connection that does not carry the session. @param {string} data @param {number} connection */
  #answer(data, connection) {
    const reconnecting = this.#reconnecting;
    let message;
    try {
      message = decodeServer(data);
    } catch (error) {
      return reconnecting.failed(connection, String(error));
    }
    if (message.type === "busy") {
      if (!this.opened) return this.#busy(message);
      return reconnecting.failed(connection, message.message || message.reason, Math.max(100, message.retry_after_ms));
    }
    if (message.type === "error") {
      return message.retryable && this.opened ? reconnecting.failed(connection, message.message) : this.#fail(message);
    }
    if (reconnecting.askedAt(connection) === null) return;
    if (message.type === "opened" && this.#gone) return this.#reopened(message, connection, this.#gone);
    if (message.type === "resumed" && !this.#gone) return this.#resumed(message, connection);
    if (message.type === "resume_failed" && !this.#gone) {
      if (!this.#isOut) return reconnecting.failed(connection, message.reason);
      this.#leave(message);
      return reconnecting.askAgain(connection);
    }
    if (message.type === "opened" || message.type === "resumed" || message.type === "resume_failed") {
      throw new Misbehaved(`the server sent \`${message.type}\` where it is not allowed`);
    }
  }

  #takeOver(/** @type {number} */ connection) {
    const { heardAt, searching, first } = this.#reconnecting;
    if (searching && !first) this.statistics.outageMs += this.#clock.now - heardAt;
    this.#reconnecting.adopt(connection);
    this.#watchdog.moved();
    this.#lastSent = this.#clock.now;
  }

  /** @param {import("./wire.js").Resumed} message @param {number} connection */
  #resumed(message, connection) {
    const receiver = this.#receiver;
    if (message.generation <= receiver.generation) {
      throw new Misbehaved(`generation ${message.generation} is resumed after generation ${receiver.generation}`);
    }
    if (message.seq < this.#writer.window.acked) {
      // A server that lost power has not all that it had taken, and does not know. This connection carries that session.
      this.#leave({ ...UNKNOWN, reason: "epoch" });
      return this.#reconnecting.failed(connection, "the server lost some of the text");
    }
    this.#takeOver(connection);
    receiver.newGeneration(message.generation, message.epoch !== this.#epoch);
    if (receiver.mode.mode !== message.mode) receiver.mode = { mode: message.mode, reason: "resumed" };
    this.#epoch = message.epoch;
    this.#token = message.new_token || this.#token;
    this.statistics.resumes++;
    this.#fresh = true;
    this.#writer.resumed(message.seq, message.room);
    this.#ack();
    this.#become("ready", "resumed");
    this.#writer.pump();
  }

  /**
   * A new session: the first, or one that goes on with what another one left unsaid.
   * @param {import("./wire.js").Opened} opened
   * @param {number} connection
   * @param {Gone} gone
   */
  #reopened(opened, connection, gone) {
    const receiver = this.#receiver;
    const before = this.opened;
    if (before && sound(opened) !== sound(before)) {
      return this.#fail({ code: "gone", message: "a new session would sound different", retryable: true });
    }
    this.#takeOver(connection);
    this.#enter(opened);
    this.#become("ready", before ? "restarted" : "opened");
    let lost = false;
    for (const entry of [...receiver.live.values()]) {
      if (entry.cancelled) {
        receiver.cancelledHere(entry);
      } else if (!entry.started) {
        entry.timeline = new Timeline(opened.pre_skip);
      } else {
        lost = true;
        this.#sayRest(entry, gone);
      }
    }
    if (lost) {
      this.statistics.restarts++;
      if (++this.#futile > FUTILE_RESTARTS) {
        return this.#fail({ code: "gone", message: "new sessions fail at the same text again and again", retryable: true });
      }
    }
    this.#writer.enter((name, absent) => positive(opened.limits, name, absent));
  }

  /** From here on this session holds. */
  #enter(/** @type {import("./wire.js").Opened} */ opened) {
    const receiver = this.#receiver;
    const { config, limits } = opened;
    const lead = config.max_lead_ms ?? null;
    receiver.rate = positive(config, "sample_rate", 24_000);
    receiver.maxLead = lead === null ? null : Math.floor((positive(config, "max_lead_ms", 1) * receiver.rate) / 1_000);
    receiver.mode = { mode: config.mode === "block" ? "block" : "stream", reason: "" };
    receiver.newSession(opened.generation, opened.pre_skip, positive(limits, "unacked_bytes", 524_288));
    this.#keepAliveMs = positive(limits, "idle_timeout_ms", 60_000) / 3;
    this.#resumable = Number(limits.resume_ttl_ms) > 0;
    this.#token = opened.token;
    this.#epoch = opened.epoch;
    this.#gone = null;
    this.#fresh = false;
    this.opened = opened;
    if (typeof config.voice === "string" && config.voice) this.#request = { ...this.#request, voice: config.voice };
  }

  /** @param {import("./session_receiving.js").Tracked} entry @param {Gone} gone */
  #sayRest(entry, gone) {
    const named = gone.utterance === entry.number ? gone.restart_text_position : null;
    const { timeline, transcript } = entry;
    const isNews = timeline.received > 0 || transcript.segments > 0;
    entry.goOn(transcript.rest(timeline.received, named ?? 0, this.#receiver.rate), this.#receiver.preSkip);
    const { number: utterance, baseSamples: sample, baseText: position } = entry;
    if (isNews) this.#emit({ type: "restarted", utterance, sample, position });
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
