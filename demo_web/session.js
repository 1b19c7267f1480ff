/**
 * The client's side of a session, without I/O: what connections, the writer and the listener say goes in, effects come
 * out, to be executed in order. It outlives its connections: docs/protocol.md, "Resuming".
 */

import { decodeFrame, decodeServer, encodeClient, WireError } from "./wire.js";
import { Continuing } from "./session_continuing.js";
import { Misbehaved } from "./session_timeline.js";

/**
 * @typedef {{code: string, message: string, field: string | null, retryable: boolean, retryAfterMs: number | null,
 *   reason?: string}} Problem `reason`: that of `busy`
 * @typedef {{type: "audio", utterance: number, first: number, count: number, codec: "pcm" | "opus",
 *   payload: Uint8Array | Uint8Array[] | null, silence: boolean, reset: boolean, skip: number, last: boolean}} Sounding
 * @typedef {{type: "connect", connection: number} | {type: "send", connection: number, data: string}
 *   | {type: "drop", connection: number, code: number} | Sounding | {type: "event", message: import("./wire.js").Event}
 *   | {type: "verified", utterance: number, samples: number, digest: string}
 *   | {type: "refused", code: string, message: string, field: string | null}
 *   | {type: "state", state: State, reason: string, detail: Problem | null}
 *   | {type: "restarted", utterance: number, sample: number, position: number}} Effect
 * @typedef {"connecting" | "ready" | "reconnecting" | "failed" | "closed"} State
 * @typedef {{now: number, rtt: number | null}} Clock
 * @typedef {{random?: () => number, reconnectMs?: number, lateTickMs?: number}} Options `reconnectMs`: how long a lost
 *   session is looked for; `lateTickMs`: a tick this late means that this program slept, not the server
 */

const OPENING_MS = 10_000; // from the first attempt to `opened`
const FINAL_CLOSES = [1003, 1007, 1008, 1009]; // the server refuses what this client says: it would again

/**
 * Times are milliseconds of one monotonic clock; samples and text positions are the utterance's own. Every method gives
 * effects and none throws; once the session is over there are none.
 */
export class Session {
  #core;
  #lateTickMs;
  #told = ""; // why the first connection is not there yet

  /** @param {{[field: string]: unknown}} open fields of `open` @param {Options} [options] */
  constructor(open, options = {}) {
    this.#core = new Continuing(open, options);
    this.#lateTickMs = options.lateTickMs ?? 250;
  }

  // ---- looking ----

  get state() {
    return this.#core.state;
  }

  /** The server's answer to the last `open`; null: there was none. */
  get opened() {
    return this.#core.opened;
  }

  get statistics() {
    return this.#core.statistics;
  }

  /** The number of the utterance begun last; 0: none. */
  get newest() {
    return this.#core.receiver.newest;
  }

  get unfinished() {
    return this.#core.receiver.live.size > 0;
  }

  get mode() {
    return this.#core.receiver.mode;
  }

  /** How long the last answer took, in ms; null: there was none. */
  get rtt() {
    return this.#core.clock.rtt;
  }

  /** When `tick` must be called; null: not yet, or never again. */
  get deadline() {
    if (this.#core.over) return null;
    let due = Math.min(this.#core.reconnecting.deadline, this.#core.writer.softFlushAt);
    if (!this.#core.isOut) {
      due = Math.min(due, this.#core.lastSent + this.#core.keepAliveMs);
      if (this.#core.receiver.isOwed) due = Math.min(due, this.#core.watchdog.silentAt);
      if (this.#core.awaitsSpeech) due = Math.min(due, this.#core.watchdog.stuckAt);
      if (this.#core.wantsAcks) due = Math.min(due, this.#core.receiver.ackTimer);
    }
    return due === Infinity ? null : due;
  }

  // ---- connections ----

  /** @param {number} now */
  start(now) {
    return this.#do(now, () => {
      encodeClient(this.#core.request);
      this.#core.start(OPENING_MS);
    });
  }

  /** @param {number} connection @param {number} now */
  connected(connection, now) {
    return this.#do(now, () => this.#core.reconnecting.connected(connection));
  }

  /**
   * It could not be opened.
   * @param {number} connection
   * @param {{code: string, message: string, retryable: boolean, retryAfterMs?: number | null}} problem
   * @param {number} now
   */
  refused(connection, { code, message, retryable, retryAfterMs }, now) {
    return this.#do(now, () => {
      if (!this.#core.reconnecting.isOpen(connection)) return;
      if (!retryable) return this.#core.fail({ code, message });
      if (this.#core.impatient) return this.#core.fail({ code, message, retryable, retryAfterMs: retryAfterMs ?? null });
      this.#core.reconnecting.failed(connection, message, retryAfterMs ?? 0);
      this.#tell(code);
    });
  }

  /** @param {number} connection @param {number} code @param {string} reason @param {number} now */
  closed(connection, code, reason, now) {
    return this.#do(now, () => {
      if (!this.#core.reconnecting.isOpen(connection)) return;
      const isCarrier = connection === this.#core.reconnecting.carrier;
      const why = reason || `the server closed the connection with code ${code}`;
      if (FINAL_CLOSES.includes(code) && (isCarrier || !this.#core.opened)) throw new Misbehaved(why);
      if (!isCarrier) return this.#core.reconnecting.failed(connection, why);
      this.#core.reconnecting.carrier = null;
      this.#core.lose(this.#core.writer.goingAway || code === 1001 || code === 1012 ? "stopped" : "broken", now);
    });
  }

  /** @param {number} connection @param {string} data @param {number} now */
  text(connection, data, now) {
    return this.#do(now, () => {
      if (!this.#core.reconnecting.isOpen(connection)) return;
      if (connection !== this.#core.reconnecting.carrier) return this.#core.answer(data, connection);
      const message = decodeServer(data);
      this.#core.heard(message);
      if (message.type !== "heartbeat" && message.type !== "pong") this.#core.watchdog.step();
      this.#core.take(message);
    });
  }

  /** @param {number} connection @param {Uint8Array} data @param {number} now */
  binary(connection, data, now) {
    return this.#do(now, () => {
      if (connection !== this.#core.reconnecting.carrier) return;
      this.#core.statistics.bytes += data.length;
      this.#core.heard();
      this.#core.watchdog.step();
      if (this.#core.receiver.audio(decodeFrame(data))) this.#core.progress();
      this.#core.ackIfDue();
    });
  }

  /** @param {number} now */
  tick(now) {
    const due = this.deadline;
    if (due === null) return [];
    return this.#do(now, () => {
      const [watchdog, reconnecting, receiver] = [this.#core.watchdog, this.#core.reconnecting, this.#core.receiver];
      if (now - due > this.#lateTickMs) {
        watchdog.slept();
        reconnecting.slept();
      }
      if (reconnecting.gaveUp) return this.#core.giveUp();
      reconnecting.tick();
      if (reconnecting.unanswered) this.#tell("unreachable");
      if (!this.#core.isOut && receiver.isOwed && now >= watchdog.silentAt) this.#core.lose("silent", watchdog.heardAt);
      if (!this.#core.isOut && this.#core.awaitsSpeech && now >= watchdog.stuckAt) {
        const message = "the server only says that it is alive";
        return this.#core.fail({ code: "misbehaved", message, retryable: true });
      }
      if (now >= this.#core.writer.softFlushAt) this.#core.writer.say({ type: "flush", soft: true });
      if (this.#core.isOut) return;
      if (this.#core.wantsAcks && now >= receiver.ackTimer) this.#core.ack();
      if (now >= this.#core.lastSent + this.#core.keepAliveMs) this.#core.send({ type: "ping" });
    });
  }

  // ---- the writer ----

  /**
   * A new utterance, `newest` from then on; the one before takes no more text. Where a field is wrong there is none, and
   * what is spoken goes on: the effect is `refused`.
   * @param {{[field: string]: unknown}} fields of `start`: voice, speed, pitch, volume, seed, instruct
   * @param {number} now
   */
  begin(fields, now) {
    return this.#do(now, () => {
      try {
        this.#core.writer.begin(fields);
      } catch (error) {
        if (!(error instanceof WireError)) throw error;
        const { code, message, field } = error;
        this.#core.effects.push({ type: "refused", code, message, field });
      }
    });
  }

  /** Text of the newest utterance, as much as there is. @param {string} text @param {number} now */
  write(text, now) {
    return this.#do(now, () => this.#core.writer.write(text));
  }

  /** Speak what came so far; `soft`: if it looks complete. @param {boolean} soft @param {number} now */
  flush(soft, now) {
    return this.#do(now, () => this.#core.writer.say({ type: "flush", soft }));
  }

  /** No more text for the newest utterance. @param {number} now */
  end(now) {
    return this.#do(now, () => this.#core.writer.end());
  }

  /**
   * Stop one utterance, or all that are unfinished or not yet heard. No audio of them is given any more.
   * @param {number | null} utterance
   * @param {number | null} played how far the listener heard it, or the first of them; null: as told last
   * @param {number} now
   */
  cancel(utterance, played, now) {
    return this.#do(now, () => {
      if (utterance !== null) return this.#core.writer.cancel(utterance, played);
      const { receiver } = this.#core;
      const all = [...receiver.beingHeard(), ...receiver.live.values()].filter((each) => !each.cancelled);
      for (const [index, { number }] of all.entries()) this.#core.writer.cancel(number, index ? null : played);
    });
  }

  /** The session is over: the server drops what is unfinished. @param {number} now */
  close(now) {
    return this.#do(now, () => this.#core.end("closed", "", null));
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
      const entry = this.#core.receiver.find(utterance);
      if (!entry) return;
      if (sample !== entry.played) this.#core.watchdog.step();
      const before = entry.heardAll;
      entry.played = Math.max(0, Math.floor(sample));
      entry.bufferedMs = Math.max(0, Math.round(bufferedMs));
      entry.stalls = stalls;
      if (!entry.heardAll || before) return;
      this.#core.ack(entry);
      this.#core.writer.pump();
    });
  }

  /** Whether the player is in the foreground. @param {boolean} visible @returns {Effect[]} */
  visible(visible) {
    this.#core.receiver.visible = visible;
    return [];
  }

  /** Why there is no first connection yet. @param {string} why */
  #tell(why) {
    if (!this.#core.opened && why !== this.#told) this.#core.become("connecting", (this.#told = why));
  }

  /** @param {number} now @param {() => void} what @returns {Effect[]} */
  #do(now, what) {
    if (this.#core.over) return [];
    this.#core.clock.now = now;
    try {
      what();
    } catch (error) {
      this.#core.failBy(error);
    }
    return this.#core.effects.splice(0);
  }
}
