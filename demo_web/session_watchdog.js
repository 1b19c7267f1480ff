/** When a server that owes audio counts as lost: it says nothing at all, or nothing but that it is alive. */

const WATCHDOG_MS = 1_200; // the server speaks at least every 0.5 s while an utterance is unfinished ...
const MESSAGES_MS = 750; // ... and three messages take at most this long on the measured line
const STUCK_MS = 30_000; // heartbeats alone, while there is text to speak

export class Watchdog {
  heardAt = 0;
  #stepAt = 0; // when the server last did more than be alive, or got something to do
  #patience = WATCHDOG_MS;
  #clock;

  /** @param {import("./session.js").Clock} clock */
  constructor(clock) {
    this.#clock = clock;
  }

  /** Another connection carries the session. */
  moved() {
    this.#patience = Math.max(WATCHDOG_MS, MESSAGES_MS + (this.#clock.rtt ?? 0));
    this.heardAt = this.#stepAt = this.#clock.now;
  }

  /** Anything came, or is owed from here on. */
  heard() {
    this.heardAt = Math.max(this.heardAt, this.#clock.now);
  }

  step() {
    this.#stepAt = this.#clock.now;
  }

  /** This program did not run for a while: messages may wait unread. */
  slept() {
    const lately = this.#clock.now - this.#patience / 2;
    this.heardAt = Math.max(this.heardAt, lately);
    this.#stepAt = Math.max(this.#stepAt, lately);
  }

  get silentAt() {
    return this.heardAt + this.#patience;
  }

  get stuckAt() {
    return this.#stepAt + STUCK_MS;
  }
}
