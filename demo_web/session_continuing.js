/** The part of a session that outlives its connections: resume, and where that fails go on in a new one. */

import { decodeServer, encodeClient, WireError } from "./wire.js";
import { Gap, Misbehaved, Timeline } from "./session_timeline.js";
import { Receiver } from "./session_receiving.js";
import { Reconnecting } from "./session_reconnecting.js";
import { Watchdog } from "./session_watchdog.js";
import { Writer } from "./session_writing.js";

/**
 * @typedef {import("./session.js").Effect} Effect
 * @typedef {import("./session.js").State} State
 * @typedef {import("./session.js").Problem} Problem
 * @typedef {import("./session.js").Options} Options
 * @typedef {import("./wire.js").ServerMessage} ServerMessage
 * @typedef {{reason: string, utterance: number | null, restart_text_position: number | null}} Gone
 */

const GAP_PAUSE_MS = 1_000; // a second gap within this time, or the first thing after a resume, is no accident
const FUTILE_RESTARTS = 3; // in a row, without one segment spoken: the server dies of this text
const LATER = ["loading", "stopping"]; // reasons of `busy` that pass by themselves
const UNKNOWN = { reason: "unknown", utterance: null, restart_text_position: null };

/** Methods put what is to be done into `effects`; some throw Gap, Misbehaved and WireError, for `failBy`. */
export class Continuing {
  /** @type {State | "new"} */
  state = "new";
  /** @type {import("./wire.js").Opened | null} */
  opened = null;
  statistics = { bytes: 0, resumes: 0, restarts: 0 };
  over = false;
  lastSent = 0;
  keepAliveMs = Infinity;
  /** To be executed by who called. @type {Effect[]} */
  effects = [];
  clock = { now: 0, rtt: /** @type {number | null} */ (null) };
  receiver = new Receiver(this.clock, (effect) => this.#emit(effect));
  watchdog = new Watchdog(this.clock);
  writer = new Writer(this.clock, this.receiver, this.watchdog, (message) => this.send(message));
  reconnecting;
  /** @type {import("./wire.js").ClientMessage} */
  request;
  #reconnectMs;
  #patientUntil = Infinity; // with a server that is not ready for a first session
  #token = "";
  #epoch = 0;
  #resumable = false;
  /** Why there is no session, so that the next connection opens one; null: there is. @type {Gone | null} */
  #gone = UNKNOWN;
  #gapAt = -Infinity;
  #fresh = false; // resumed, and nothing new came yet
  #futile = 0;
  #probe = 0; // id of the ping that asks a connection which speaks again whether it hears, too
  #probed = false; // in this outage
  #unauthorized = false; // likewise
  #lost = ""; // what happened to the last connection

  /** @param {{[field: string]: unknown}} open @param {Options} options */
  constructor(open, { random = Math.random, reconnectMs = 120_000 }) {
    this.request = { ...open, type: "open", max_buffer_delay_ms: null };
    this.#reconnectMs = reconnectMs;
    this.reconnecting = new Reconnecting(this.clock, (effect) => this.#emit(effect), () => this.#greeting(), random);
  }

  /** Whether a first session was waited for long enough. */
  get impatient() { return !this.opened && this.clock.now >= this.#patientUntil; }

  /** @param {number} openingMs from the first attempt to `opened` */
  start(openingMs) {
    const { now } = this.clock;
    this.lastSent = now;
    this.#patientUntil = now + this.#reconnectMs;
    this.become("connecting", "");
    this.reconnecting.begin(now, openingMs);
  }

  #emit(/** @type {Effect} */ effect) {
    this.effects.push(effect);
  }

  /** @param {State} state @param {string} reason @param {Problem | null} [detail] */
  become(state, reason, detail = null) {
    this.state = state;
    this.#emit({ type: "state", state, reason, detail });
  }

  /** @param {State} state @param {string} reason @param {Problem | null} detail */
  end(state, reason, detail) {
    this.over = true;
    this.reconnecting.dropAll(1000);
    this.become(state, reason, detail);
  }

  fail(/** @type {Partial<Problem> & {code: string, message: string}} */ problem) {
    const { code, message, field = null, retryable = false, retryAfterMs = null, reason } = problem;
    const detail = { code, message, field, retryable, retryAfterMs };
    if (!this.over) this.end("failed", code, reason === undefined ? detail : { ...detail, reason });
  }

  failBy(/** @type {unknown} */ error) {
    if (error instanceof WireError && error.isOurs) {
      const { code, message, field } = error;
      return this.fail({ code, message, field });
    }
    if (error instanceof Gap) return this.#gap(error);
    const isTheirs = error instanceof Misbehaved || error instanceof WireError;
    this.fail(isTheirs ? { code: "misbehaved", message: error.message } : { code: "internal", message: String(error) });
  }

  /** Something is missing. What a connection lost, another one may bring. */
  #gap(/** @type {Gap} */ { message }) {
    const { now } = this.clock;
    const { carrier } = this.reconnecting;
    const isNoAccident = this.#fresh || now - this.#gapAt < GAP_PAUSE_MS;
    if (isNoAccident || carrier === null) return this.fail({ code: "misbehaved", message });
    this.#gapAt = now;
    this.reconnecting.drop(carrier);
    this.lose("gap", now);
  }

  giveUp() {
    const { why, heardAt } = this.reconnecting;
    const message = `${this.#lost}no connection within ${Math.round((this.clock.now - heardAt) / 1_000)} s: ${why}`;
    this.fail({ code: "unreachable", message, retryable: true });
  }

  // ---- sending ----

  /** Whether no connection carries the session at present. */
  get isOut() {
    return this.reconnecting.carrier === null || this.reconnecting.searching;
  }

  /** @param {import("./wire.js").ClientMessage} message whether a connection took it */
  send(message) {
    const connection = this.reconnecting.carrier;
    if (connection === null || this.reconnecting.searching) return false;
    this.lastSent = this.clock.now;
    this.#emit({ type: "send", connection, data: encodeClient(message) });
    return true;
  }

  /**
   * Nothing is acked on a connection that may not hear, while another one asks to go on from less.
   * @param {import("./session_utterance.js").Tracked} [ended]
   */
  ack(ended) {
    if (!this.isOut) this.send(this.receiver.ack(ended));
  }

  ackIfDue() {
    if (this.receiver.ackDue) this.ack();
  }

  get wantsAcks() {
    return this.receiver.live.size > 0 || this.receiver.owesAck || this.receiver.beingHeard().length > 0;
  }

  // ---- what the connection that carries the session brings ----

  /** Whether the server has something to say, and nothing here keeps it from it. */
  get awaitsSpeech() {
    const { live, maxLead } = this.receiver;
    if (!this.receiver.isOwed) return false;
    for (const entry of live.values()) {
      if (!entry.transcript.ended && !entry.cancelled) continue;
      if (entry.cancelled || maxLead === null) return true;
      if (this.receiver.beingHeard(entry.number).length) return false;
      return 2 * (entry.received - entry.heard) <= maxLead; // with more it may wait for the listener
    }
    return false;
  }

  /**
   * The connection spoke. After an outage that alone proves one direction: what was on its way comes, while nothing
   * gets through from here yet. So it is asked, and another one may still be quicker.
   * @param {ServerMessage} [message]
   */
  heard(message) {
    this.watchdog.heard();
    const connection = this.reconnecting.carrier;
    if (!this.isOut || connection === null) return;
    if (message?.type === "pong" && message.id === this.#probe) return this.#wake();
    if (this.#probed) return;
    this.#probed = true;
    this.#emit({ type: "send", connection, data: encodeClient({ type: "ping", id: ++this.#probe }) });
  }

  /** It was silent, and hears again before another one took over. */
  #wake() {
    this.reconnecting.carriedAgain();
    this.writer.giveWaiting();
    this.ack();
    this.become("ready", "recovered");
    this.writer.pump();
  }

  progress() {
    this.#fresh = false;
    this.reconnecting.progress();
  }

  take(/** @type {ServerMessage} */ message) {
    switch (message.type) {
      case "seq_ack":
        return this.writer.acked(message.seq, message.room);
      case "heartbeat":
      case "pong":
        return;
      case "goaway":
        this.writer.goingAway = true;
        return;
      case "busy":
        return LATER.includes(message.reason) ? this.#goOnLater(message) : this.#busy(message);
      case "error":
        return this.fail(message);
      case "opened":
      case "resumed":
      case "resume_failed":
        throw new Misbehaved(`the server sent \`${message.type}\` where it is not allowed`);
    }
    if (this.receiver.event(message)) {
      this.progress();
      if (message.type === "segment_end" || message.type === "done") this.#futile = 0;
    }
    this.ackIfDue();
    if (message.type === "done" || message.type === "cancelled") this.writer.pump();
  }

  #busy(/** @type {import("./wire.js").Busy} */ { retry_after_ms, reason, message }) {
    const told = message || `the server takes nothing more now (${reason})`;
    this.fail({ code: "busy", message: told, retryable: true, retryAfterMs: retry_after_ms, reason });
  }

  /** No engine is ready to speak: the session is over, and another one after the time says what is left. */
  #goOnLater(/** @type {import("./wire.js").Busy} */ { retry_after_ms }) {
    for (const entry of this.receiver.live.values()) if (entry.isUnheardOf) entry.started = false; // it was not taken
    this.#leave(UNKNOWN);
    this.reconnecting.later(retry_after_ms);
    this.lose("stopped", this.clock.now);
  }

  // ---- from one connection to another ----

  /** @param {"broken" | "stopped" | "silent" | "gap"} why @param {number} heardAt */
  lose(why, heardAt) {
    this.writer.timed = null;
    if (!this.#resumable) this.#leave(UNKNOWN);
    if (!this.reconnecting.searching) {
      this.#lost = `${why}; `;
      this.#probed = false;
      this.become("reconnecting", why);
    }
    this.reconnecting.begin(heardAt, this.#reconnectMs);
  }

  /** The session is none any more: the next connection opens another one. */
  #leave(/** @type {Gone} */ gone) {
    this.#gone = gone;
    this.writer.hasSession = false;
    const { carrier } = this.reconnecting;
    if (carrier !== null) this.reconnecting.drop(carrier, 1000);
  }

  #greeting() {
    if (this.#gone) return { data: encodeClient(this.request), opens: true };
    const data = encodeClient({
      type: "resume",
      session: this.opened?.session,
      token: this.#token,
      epoch: this.#epoch,
      generation_seen: this.receiver.generation,
      events_seen: this.receiver.lastEvent,
      have_decoder: true,
      ...this.receiver.resumePosition,
    });
    return { data, opens: false };
  }

  /** What comes on a connection that does not carry the session. @param {string} data @param {number} connection */
  answer(data, connection) {
    const reconnecting = this.reconnecting;
    let message;
    try {
      message = decodeServer(data);
    } catch (error) {
      return reconnecting.failed(connection, String(error));
    }
    if (message.type === "busy") {
      if (!this.opened) {
        if (!LATER.includes(message.reason) || this.clock.now >= this.#patientUntil) return this.#busy(message);
        this.become("connecting", message.reason);
      }
      return reconnecting.failed(connection, message.message || message.reason, message.retry_after_ms || 100);
    }
    if (message.type === "error") {
      if (message.code === "unauthorized" && !this.#unauthorized) {
        this.#unauthorized = true; // perhaps only the token: the next connection has another one
        return reconnecting.failed(connection, message.message);
      }
      return message.retryable && this.opened ? reconnecting.failed(connection, message.message) : this.fail(message);
    }
    if (reconnecting.askedAt(connection) === null) return;
    if (message.type === "opened" && this.#gone) return this.#reopened(message, connection, this.#gone);
    if (message.type === "resumed" && !this.#gone) return this.#resumed(message, connection);
    if (message.type === "resume_failed" && !this.#gone) {
      if (!this.isOut) return reconnecting.failed(connection, message.reason);
      this.#leave(message);
      return reconnecting.askAgain(connection);
    }
    if (message.type === "opened" || message.type === "resumed" || message.type === "resume_failed") {
      throw new Misbehaved(`the server sent \`${message.type}\` where it is not allowed`);
    }
  }

  #takeOver(/** @type {number} */ connection) {
    this.#unauthorized = false;
    this.reconnecting.adopt(connection);
    this.watchdog.moved();
    this.lastSent = this.clock.now;
  }

  /** @param {import("./wire.js").Resumed} message @param {number} connection */
  #resumed(message, connection) {
    const receiver = this.receiver;
    if (message.generation <= receiver.generation) {
      throw new Misbehaved(`generation ${message.generation} is resumed after generation ${receiver.generation}`);
    }
    if (message.seq < this.writer.window.acked) {
      // A server that lost power lacks some of what it had taken, and does not know. This connection is that session's.
      this.#leave({ ...UNKNOWN, reason: "epoch" });
      return this.reconnecting.failed(connection, "the server lost some of the text");
    }
    this.#takeOver(connection);
    receiver.newGeneration(message.generation, message.epoch !== this.#epoch);
    if (receiver.mode.mode !== message.mode) receiver.mode = { mode: message.mode, reason: "resumed" };
    this.#epoch = message.epoch;
    this.#token = message.new_token || this.#token;
    this.statistics.resumes++;
    this.#fresh = true;
    this.writer.resumed(message.seq, message.room);
    this.ack();
    this.become("ready", "resumed");
    this.writer.pump();
  }

  /**
   * A new session: the first, or one that goes on with what another one left unsaid.
   * @param {import("./wire.js").Opened} opened
   * @param {number} connection
   * @param {Gone} gone
   */
  #reopened(opened, connection, gone) {
    const receiver = this.receiver;
    const before = this.opened;
    if (before && soundOf(opened) !== soundOf(before)) {
      return this.fail({ code: "gone", message: "a new session would sound different", retryable: true });
    }
    this.#takeOver(connection);
    this.#enter(opened);
    this.become("ready", before ? "restarted" : "opened");
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
        return this.fail({ code: "gone", message: "new sessions fail again and again at this text", retryable: true });
      }
    }
    this.writer.enter((name, absent) => positive(opened.limits, name, absent));
  }

  /** From here on this session holds. */
  #enter(/** @type {import("./wire.js").Opened} */ opened) {
    const receiver = this.receiver;
    const { config, limits } = opened;
    const lead = config.max_lead_ms ?? null;
    receiver.rate = positive(config, "sample_rate", 24_000);
    receiver.maxLead = lead === null ? null : Math.floor((positive(config, "max_lead_ms", 1) * receiver.rate) / 1_000);
    receiver.mode = { mode: config.mode === "block" ? "block" : "stream", reason: "" };
    receiver.newSession(opened.generation, opened.pre_skip, positive(limits, "unacked_bytes", 524_288));
    this.keepAliveMs = positive(limits, "idle_timeout_ms", 60_000) / 3;
    this.#resumable = Number(limits.resume_ttl_ms) > 0;
    this.#token = opened.token;
    this.#epoch = opened.epoch;
    this.#gone = null;
    this.#fresh = false;
    this.opened = opened;
    if (typeof config.voice === "string" && config.voice) this.request = { ...this.request, voice: config.voice };
  }

  /** @param {import("./session_utterance.js").Tracked} entry @param {Gone} gone */
  #sayRest(entry, gone) {
    const named = gone.utterance === entry.number ? gone.restart_text_position : null;
    const { timeline, transcript } = entry;
    const isNews = !entry.isUnheardOf;
    entry.goOn(transcript.rest(timeline.received, named ?? 0), this.receiver.preSkip);
    const { number: utterance, baseSamples: sample, baseText: position } = entry;
    if (isNews) this.#emit({ type: "restarted", utterance, sample, position });
  }
}

/** What a listener builds on. */
function soundOf(/** @type {import("./wire.js").Opened} */ { config, pre_skip }) {
  return JSON.stringify([config.sample_rate ?? 24_000, config.format, pre_skip]);
}

/** @param {{[name: string]: unknown}} from @param {string} name @param {number} absent */
function positive(from, name, absent) {
  const value = from[name] ?? absent;
  if (Number.isSafeInteger(value) && Number(value) > 0) return Number(value);
  throw new Misbehaved(`the server's ${name} must be a positive whole number`);
}
