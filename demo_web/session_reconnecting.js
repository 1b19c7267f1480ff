/**
 * Which connection carries the session, and how another one takes over: attempts, their times, giving up.
 *
 * The connection that fell silent is kept until another one answers: whichever gets through first, both ways, wins.
 * Attempts start every half second, at most three at a time: the oldest is given time, the others make way for fresh
 * ones, because a fresh connection gets through at once when the line is back, while an old one waits for its
 * retransmission timer.
 */

export const RUSH_MS = 30_000; // so long attempts keep their pace; then ever less often
const ATTEMPT_MS = 5_000; // an attempt that is not through by then is dropped; the same again for the answer
const PENDING = 3;
const FRESH_MS = 750; // a younger attempt never makes way for another one; on a slow line more ...
const FRESH_ROUND_TRIPS = 6; // ... TCP, TLS and WebSocket take up to four
const ANSWER_MS = 1_000; // so long a connection waits for the answer to `resume` before another one asks too
const OPEN_ANSWER_MS = 2_500; // the same for `open`: each makes a session
const FIRST_MS = 3_000; // at first nothing is known to be wrong: one attempt at a time
const PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8_000;
const JITTER = 0.2; // many clients that lost the same server do not come back in step
const SETTLED_MS = 5_000; // a connection that lived so long is no part of the outage before it
const NO_ANSWER = "no answer: check the network and the server";

/** @typedef {{began: number, connected: boolean, asked: number | null, opens: boolean}} Attempt */

/** Connections are numbered from 1. */
export class Reconnecting {
  /** The connection that carries the session; null: gone. @type {number | null} */
  carrier = null;
  /** Since when the session is looked for; null: it is carried. @type {number | null} */
  lostAt = null;
  heardAt = 0; // when the server was last heard before that
  why = NO_ANSWER; // the last attempt's failure
  first = true; // there was no session yet
  #rtt = 0; // of the carrier's greeting
  #retryAt = 0; // the server said that trying before is of no use
  /** @type {Map<number, Attempt>} */
  #attempts = new Map();
  #numbers = 0;
  #lastAttempt = -Infinity;
  #nextAttempt = 0;
  #pause = PAUSE_MS;
  /** Null: something new came since a connection was adopted. @type {number | null} */
  #adoptedAt = null;
  #inVain = 0; // adoptions since something new came
  #givesUpAt = 0;
  #clock;
  #emit;
  #greeting;
  #random;

  /**
   * @param {import("./session.js").Clock} clock
   * @param {(effect: import("./session.js").Effect) => void} emit
   * @param {() => {data: string, opens: boolean}} greeting what a new connection says first
   * @param {() => number} random
   */
  constructor(clock, emit, greeting, random) {
    this.#clock = clock;
    this.#emit = emit;
    this.#greeting = greeting;
    this.#random = random;
  }

  get searching() {
    return this.lostAt !== null;
  }

  /** Whether anything of this connection still counts. */
  isOpen(/** @type {number} */ connection) {
    return connection === this.carrier || this.#attempts.has(connection);
  }

  /**
   * The carrier fell silent, or is gone. The first attempt is made at once.
   * @param {number} heardAt
   * @param {number} giveUpMs
   */
  begin(heardAt, giveUpMs) {
    const { now } = this.#clock;
    // where the connection that was adopted last brought nothing this is still the outage before it
    const isFutile = this.#adoptedAt !== null && now - this.#adoptedAt < SETTLED_MS;
    if (this.lostAt === null) {
      this.lostAt = now;
      this.heardAt = heardAt;
      this.why = NO_ANSWER;
      if (!isFutile) {
        this.#givesUpAt = now + giveUpMs;
        this.#pause = PAUSE_MS;
      }
    }
    const again = this.#inVain > 1 && isFutile ? this.#lastAttempt + PAUSE_MS : now;
    this.#nextAttempt = Math.max(now, again, this.#retryAt);
    this.tick();
  }

  /** Something new came over the carrier: an outage that follows is another one. */
  progress() {
    this.#adoptedAt = null;
    this.#inVain = 0;
  }

  /** The silent connection spoke before another one took over: attempts that did not ask yet are of no use. */
  carriedAgain() {
    this.lostAt = null;
    for (const [connection, { asked }] of [...this.#attempts]) if (asked === null) this.drop(connection);
  }

  /** This attempt carries the session now; all else goes. */
  adopt(/** @type {number} */ connection) {
    const { now } = this.#clock;
    this.#clock.rtt = this.#rtt = now - (this.askedAt(connection) ?? now);
    this.#attempts.delete(connection);
    this.dropAll();
    this.carrier = connection;
    this.lostAt = null;
    if (!this.first) {
      this.#adoptedAt = now;
      this.#inVain++;
    }
    this.first = false;
  }

  /** The attempt is open. It asks, unless another one just did. */
  connected(/** @type {number} */ connection) {
    const attempt = this.#attempts.get(connection);
    if (!attempt) return;
    if (!this.searching) return this.drop(connection);
    attempt.connected = true;
    this.#ask();
  }

  /**
   * The attempt came to nothing; another one follows in its time.
   * @param {number} connection
   * @param {string} why
   * @param {number} [retryAfterMs]
   */
  failed(connection, why, retryAfterMs = 0) {
    if (!this.#attempts.has(connection)) return;
    const { now } = this.#clock;
    this.drop(connection);
    this.why = why;
    this.later(retryAfterMs);
    if (this.first) this.#nextAttempt = Math.min(this.#nextAttempt, Math.max(now, this.#lastAttempt + PAUSE_MS));
    this.#nextAttempt = Math.max(this.#nextAttempt, this.#retryAt);
    if (this.searching) this.#ask();
  }

  /** The server said when to come again. */
  later(/** @type {number} */ retryAfterMs) {
    if (!retryAfterMs) return;
    this.#retryAt = this.#clock.now + Math.max(100, retryAfterMs);
    if (this.first) this.#givesUpAt = Math.max(this.#givesUpAt, this.#retryAt + 2 * ATTEMPT_MS); // it is there
  }

  /** When this attempt asked for the session. */
  askedAt(/** @type {number} */ connection) {
    return this.#attempts.get(connection)?.asked ?? null;
  }

  /** The attempt asks for something else; it has its time again, and the others go. */
  askAgain(/** @type {number} */ connection) {
    for (const each of [...this.#attempts.keys()]) if (each !== connection) this.drop(each);
    this.#greet(connection);
  }

  /** Whether an attempt got no answer in its time. */
  get unanswered() {
    return this.#numbers > 1 && this.why === NO_ANSWER;
  }

  get gaveUp() {
    return this.searching && this.#clock.now >= this.#givesUpAt;
  }

  /** This program did not run for a while: the attempts did not either. */
  slept() {
    this.#givesUpAt = Math.max(this.#givesUpAt, this.#clock.now + (this.first ? 2 * ATTEMPT_MS : RUSH_MS));
  }

  /** When `tick` has something to do; Infinity while there is no attempt. */
  get deadline() {
    let due = Infinity;
    for (const attempt of this.#attempts.values()) due = Math.min(due, endOf(attempt));
    if (!this.searching) return due;
    if (this.#spare() !== null) due = Math.min(due, this.#mayAskAt());
    return Math.min(due, this.#nextAttempt, this.#givesUpAt);
  }

  /** Ends attempts that take too long, and makes new ones. */
  tick() {
    const { now } = this.#clock;
    for (const [connection, attempt] of [...this.#attempts]) {
      if (now < endOf(attempt)) continue;
      this.why = NO_ANSWER;
      this.drop(connection);
    }
    if (!this.searching) return;
    this.#ask();
    if (now < this.#nextAttempt) return;
    if (this.#attempts.size >= PENDING) this.#makeWay();
    if (this.#attempts.size < PENDING) {
      this.#attempts.set(++this.#numbers, { began: now, connected: false, asked: null, opens: false });
      this.#lastAttempt = now;
      this.#emit({ type: "connect", connection: this.#numbers });
    }
    if (now - (this.lostAt ?? now) >= RUSH_MS) this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE_MS);
    const pause = this.#pause * (1 - JITTER + 2 * JITTER * this.#random());
    this.#nextAttempt = now + (this.first ? FIRST_MS : pause);
  }

  /**
   * Ends a connection. One that asked for a new session wants none; any other leaves the session to the server.
   * @param {number} connection
   * @param {number} [code]
   */
  drop(connection, code = this.#attempts.get(connection)?.opens ? 1000 : 4000) {
    this.#attempts.delete(connection);
    if (connection === this.carrier) this.carrier = null;
    this.#emit({ type: "drop", connection, code });
  }

  /** Ends the attempts and the carrier. @param {number} [code] */
  dropAll(code) {
    for (const connection of [...this.#attempts.keys()]) this.drop(connection, code);
    if (this.carrier !== null) this.drop(this.carrier, code);
  }

  /** Ends one attempt: not the oldest, no young one, none that is open and may still ask. */
  #makeWay() {
    const { now } = this.#clock;
    const fresh = Math.max(FRESH_MS, FRESH_ROUND_TRIPS * this.#rtt);
    const unanswered = 2 * (ANSWER_MS + this.#rtt);
    for (const [connection, { began, connected, asked }] of [...this.#attempts].slice(1)) {
      const isStale = asked === null ? !connected && now - began >= fresh : now - asked >= unanswered;
      if (isStale) return this.drop(connection);
    }
  }

  /** The newest connection that is open and has not asked. */
  #spare() {
    let spare = null;
    for (const [connection, each] of this.#attempts) if (each.connected && each.asked === null) spare = connection;
    return spare;
  }

  #mayAskAt() {
    let due = -Infinity;
    for (const { asked, opens } of this.#attempts.values()) {
      if (asked !== null) due = Math.max(due, asked + (opens ? OPEN_ANSWER_MS : ANSWER_MS) + this.#rtt);
    }
    return due;
  }

  #ask() {
    const spare = this.#spare();
    if (spare !== null && this.#clock.now >= this.#mayAskAt()) this.#greet(spare);
  }

  #greet(/** @type {number} */ connection) {
    const { data, opens } = this.#greeting();
    const attempt = this.#attempts.get(connection);
    if (attempt) Object.assign(attempt, { asked: this.#clock.now, opens });
    this.#emit({ type: "send", connection, data });
  }
}

function endOf(/** @type {Attempt} */ { asked, began }) {
  return (asked ?? began) + ATTEMPT_MS;
}
