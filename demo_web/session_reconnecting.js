/**
 * Which connection carries the session, and how another one takes over: attempts, their times, giving up.
 *
 * The connection that fell silent is kept until another one answers: whichever gets through first, both ways, wins.
 * Attempts start every half second, at most three at a time: the oldest is given time, the others make way for fresh
 * ones, because a fresh connection gets through at once when the line is back, while an old one waits for its
 * retransmission timer.
 */

/** @typedef {import("./session.js").Effect} Effect */

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
export const NO_ANSWER = "no answer: check the network and the server";

/** @typedef {{began: number, connected: boolean, asked: number | null, opens: boolean}} Attempt */

/** Times are milliseconds of one monotonic clock. Connections are numbered from 1. */
export class Reconnecting {
  /** @type {number | null} the connection that carries the session; null: gone */
  carrier = null;
  /** @type {number | null} since when the session is looked for; null: it is carried */
  lostAt = null;
  heardAt = 0; // when the server was last heard before that
  why = ""; // the last attempt's failure
  rtt = 0;
  retryAt = 0; // the server said that trying before is of no use
  first = true; // there was no session yet
  #greeting;
  #random;
  /** @type {Map<number, Attempt>} */
  #attempts = new Map();
  #numbers = 0;
  #lastAttempt = -Infinity;
  #nextAttempt = 0;
  #pause = PAUSE_MS;
  /** @type {number | null} null: something new came since a connection was adopted */
  #adoptedAt = null;
  #inVain = 0; // adoptions since something new came
  #givesUpAt = 0;

  /**
   * @param {() => {data: string, opens: boolean}} greeting what a new connection says first
   * @param {() => number} random
   */
  constructor(greeting, random) {
    this.#greeting = greeting;
    this.#random = random;
  }

  get searching() {
    return this.lostAt !== null;
  }

  /** @param {number} connection whether anything of it still counts */
  isOpen(connection) {
    return connection === this.carrier || this.#attempts.has(connection);
  }

  /**
   * The carrier fell silent, or is `gone`. The first attempt is made at once.
   * @param {number} now
   * @param {number} heardAt
   * @param {boolean} gone
   * @param {number} giveUpMs
   */
  begin(now, heardAt, gone, giveUpMs) {
    if (gone) this.carrier = null;
    if (this.lostAt === null) {
      this.lostAt = now;
      this.heardAt = heardAt;
      this.why = "";
      if (!this.#isFutile(now)) {
        this.#givesUpAt = now + giveUpMs;
        this.#pause = PAUSE_MS;
      }
    }
    const again = this.#inVain > 1 && this.#isFutile(now) ? this.#lastAttempt + PAUSE_MS : now;
    this.#nextAttempt = Math.max(now, again, this.retryAt);
    return this.tick(now);
  }

  /** Something new came over the carrier: an outage that follows is another one. */
  progress() {
    this.#adoptedAt = null;
    this.#inVain = 0;
  }

  /** The silent connection spoke before another one took over: attempts that did not ask yet are of no use. */
  carriedAgain() {
    this.lostAt = null;
    return [...this.#attempts].filter(([, each]) => each.asked === null).map(([connection]) => this.drop(connection));
  }

  /**
   * This attempt carries the session now; all else goes.
   * @param {number} connection
   * @param {number} now
   */
  adopt(connection, now) {
    this.rtt = now - (this.#attempts.get(connection)?.asked ?? now);
    this.#attempts.delete(connection);
    const effects = this.dropAll();
    this.carrier = connection;
    this.lostAt = null;
    if (!this.first) {
      this.#adoptedAt = now;
      this.#inVain++;
    }
    this.first = false;
    return effects;
  }

  /**
   * The attempt is open. It asks, unless another one just did.
   * @param {number} connection
   * @param {number} now
   * @returns {Effect[]}
   */
  connected(connection, now) {
    const attempt = this.#attempts.get(connection);
    if (!attempt) return [];
    if (!this.searching) return [this.drop(connection)];
    attempt.connected = true;
    return this.#ask(now);
  }

  /**
   * The attempt came to nothing; another one follows in its time.
   * @param {number} connection
   * @param {string} why
   * @param {number} now
   * @param {number} [retryAfterMs]
   */
  failed(connection, why, now, retryAfterMs = 0) {
    if (!this.#attempts.has(connection)) return [];
    const dropped = this.drop(connection);
    this.why = why;
    if (this.first) this.#nextAttempt = Math.min(this.#nextAttempt, Math.max(now, this.#lastAttempt + PAUSE_MS));
    if (retryAfterMs) {
      this.retryAt = now + retryAfterMs;
      this.#nextAttempt = Math.max(this.#nextAttempt, this.retryAt);
    }
    return [dropped, ...(this.searching ? this.#ask(now) : [])];
  }

  /** @param {number} connection when it asked for the session */
  askedAt(connection) {
    return this.#attempts.get(connection)?.asked ?? null;
  }

  /**
   * The attempt asks for something else; it has its time again, and the others go.
   * @param {number} connection
   * @param {number} now
   * @returns {Effect[]}
   */
  askAgain(connection, now) {
    const others = [...this.#attempts.keys()].filter((each) => each !== connection).map((each) => this.drop(each));
    return [...others, this.#greet(connection, now)];
  }

  /** @param {number} now whether it takes too long */
  gaveUp(now) {
    return this.searching && now >= this.#givesUpAt;
  }

  /** @param {number} now this program did not run for a while: the attempts did not either */
  slept(now) {
    this.#givesUpAt = Math.max(this.#givesUpAt, now + (this.first ? 2 * ATTEMPT_MS : RUSH_MS));
  }

  /** @returns {number} when `tick` has something to do; Infinity while there is no attempt */
  get deadline() {
    let due = Infinity;
    for (const attempt of this.#attempts.values()) due = Math.min(due, endOf(attempt));
    if (!this.searching) return due;
    if (this.#spare() !== null) due = Math.min(due, this.#mayAskAt());
    return Math.min(due, this.#nextAttempt, this.#givesUpAt);
  }

  /**
   * Ends attempts that take too long, and makes new ones.
   * @param {number} now
   * @returns {Effect[]}
   */
  tick(now) {
    /** @type {Effect[]} */
    const effects = [];
    for (const [connection, attempt] of [...this.#attempts]) {
      if (now < endOf(attempt)) continue;
      this.why = NO_ANSWER;
      effects.push(this.drop(connection));
    }
    if (!this.searching) return effects;
    effects.push(...this.#ask(now));
    if (now < this.#nextAttempt) return effects;
    const stale = this.#attempts.size >= PENDING ? this.#stale(now) : null;
    if (stale !== null) effects.push(this.drop(stale));
    if (this.#attempts.size < PENDING) {
      this.#attempts.set(++this.#numbers, { began: now, connected: false, asked: null, opens: false });
      this.#lastAttempt = now;
      effects.push({ type: "connect", connection: this.#numbers });
    }
    this.#nextAttempt = now + this.#interval(now);
    return effects;
  }

  /**
   * Ends a connection. One that asked for a new session wants none; any other leaves the session to the server.
   * @param {number} connection
   * @returns {Effect}
   */
  drop(connection) {
    const opens = this.#attempts.get(connection)?.opens;
    this.#attempts.delete(connection);
    if (connection === this.carrier) this.carrier = null;
    return { type: "drop", connection, code: opens ? 1000 : 4000 };
  }

  /** Ends the attempts and the carrier. */
  dropAll() {
    const effects = [...this.#attempts.keys()].map((connection) => this.drop(connection));
    if (this.carrier !== null) effects.push(this.drop(this.carrier));
    return effects;
  }

  /** The session is over: no connection leaves it to the server. */
  end() {
    this.lostAt = null;
    return this.dropAll().map((effect) => (effect.type === "drop" ? { ...effect, code: 1000 } : effect));
  }

  /** Whether the connection that was adopted last brought nothing: then this is still the outage before it. */
  #isFutile(/** @type {number} */ now) {
    return this.#adoptedAt !== null && now - this.#adoptedAt < SETTLED_MS;
  }

  #interval(/** @type {number} */ now) {
    if (this.first) return FIRST_MS;
    if (now - (this.lostAt ?? now) >= RUSH_MS) this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE_MS);
    return this.#pause * (1 - JITTER + 2 * JITTER * this.#random());
  }

  /** The attempt that makes way: not the oldest, no young one, none that is open and may still ask. */
  #stale(/** @type {number} */ now) {
    const fresh = Math.max(FRESH_MS, FRESH_ROUND_TRIPS * this.rtt);
    const unanswered = 2 * (ANSWER_MS + this.rtt);
    for (const [connection, { began, connected, asked }] of [...this.#attempts].slice(1)) {
      if (asked === null ? !connected && now - began >= fresh : now - asked >= unanswered) return connection;
    }
    return null;
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
      if (asked !== null) due = Math.max(due, asked + (opens ? OPEN_ANSWER_MS : ANSWER_MS) + this.rtt);
    }
    return due;
  }

  /** @returns {Effect[]} */
  #ask(/** @type {number} */ now) {
    const spare = this.#spare();
    return spare === null || now < this.#mayAskAt() ? [] : [this.#greet(spare, now)];
  }

  /** @returns {Effect} */
  #greet(/** @type {number} */ connection, /** @type {number} */ now) {
    const { data, opens } = this.#greeting();
    const attempt = this.#attempts.get(connection);
    if (attempt) Object.assign(attempt, { asked: now, opens });
    return { type: "send", connection, data };
  }
}

/** @param {Attempt} attempt */
function endOf(attempt) {
  return (attempt.asked ?? attempt.began) + ATTEMPT_MS;
}
