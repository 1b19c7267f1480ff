/** A bad network, imitated: delays, holes, a limited rate, now and then a cut. The order of what passes is kept. */

const GOOD_MS = [2500, 7000]; // between two holes
const HOLE_MS = [300, 1500];
const DELAY_MS = [20, 140];
const RATE = { up: 16, down: 64 }; // bytes a millisecond; PCM at 24 kHz needs 48
const CUT_EVERY = 4; // one hole of so many ends with a cut, on average

/** @typedef {"up" | "down"} Direction */

/** When what is sent arrives. Pure: the same seed and calls give the same line. Times in ms of one clock. */
export class RoughLine {
  /** When the connections break next; it moves on with `arrival`. */
  cutAt = Infinity;
  #state;
  #hole = { begins: 0, ends: 0 };
  #free = { up: 0, down: 0 };
  #last = { up: 0, down: 0 };

  /** @param {number} now @param {number} seed any integer */
  constructor(now, seed) {
    this.#state = seed >>> 0;
    this.#hole.ends = now;
    this.#advance(now);
  }

  /** When so many bytes that are sent at `now` are there, never before what was sent the same way earlier.
   * @param {Direction} direction @param {number} bytes @param {number} now @returns {number} */
  arrival(direction, bytes, now) {
    this.#advance(now);
    const sent = Math.max(now, this.#free[direction]) + bytes / RATE[direction];
    this.#free[direction] = sent;
    let at = sent + this.#between(DELAY_MS);
    this.#advance(at);
    if (at >= this.#hole.begins) at = Math.max(at, this.#hole.ends);
    return (this.#last[direction] = Math.max(at, this.#last[direction]));
  }

  /** The cut has been made.
   * @param {number} now */
  cutDone(now) {
    this.cutAt = Infinity;
    this.#free = { up: now, down: now }; // what was on its way is lost
    this.#last = { ...this.#free };
  }

  /** @param {number} now */
  #advance(now) {
    while (now >= this.#hole.ends) {
      const begins = this.#hole.ends + this.#between(GOOD_MS);
      this.#hole = { begins, ends: begins + this.#between(HOLE_MS) };
      if (this.#random() * CUT_EVERY < 1 && this.cutAt === Infinity) this.cutAt = this.#hole.ends;
    }
  }

  /** @param {number[]} range */
  #between([least, most]) {
    return least + this.#random() * (most - least);
  }

  /** From 0 to 1: a linear congruential generator, because Math.random takes no seed. */
  #random() {
    this.#state = (Math.imul(this.#state, 1664525) + 1013904223) >>> 0;
    return this.#state / 2 ** 32;
  }
}

/** Does things in order: at once, or when the rough line lets them pass. */
export class Line {
  /** @type {Record<Direction, {at: number, act: () => void}[]>} */
  #waiting = { up: [], down: [] };
  /** @type {RoughLine | null} */
  #rough = null;
  #cut;
  #timer = 0;

  /** @param {() => void} cut breaks every connection */
  constructor(cut) {
    this.#cut = cut;
  }

  /** @param {boolean} on @param {number} seed */
  rough(on, seed) {
    if (on === (this.#rough !== null)) return;
    this.#rough = on ? new RoughLine(performance.now(), seed) : null;
    if (!on) this.#pass(Infinity);
    this.#arm();
  }

  /** @param {Direction} direction @param {number} bytes @param {() => void} act */
  pass(direction, bytes, act) {
    if (this.#rough === null) return act();
    this.#waiting[direction].push({ at: this.#rough.arrival(direction, bytes, performance.now()), act });
    this.#arm();
  }

  /** Nothing that waits happens any more. */
  close() {
    this.#waiting = { up: [], down: [] };
    this.#rough = null;
    clearTimeout(this.#timer);
  }

  /** @param {number} now */
  #pass(now) {
    for (const waiting of Object.values(this.#waiting)) {
      while (waiting.length > 0 && waiting[0].at <= now) waiting.shift()?.act();
    }
  }

  #arm() {
    clearTimeout(this.#timer);
    if (this.#rough === null) return;
    const { up, down } = this.#waiting;
    const due = Math.min(up[0]?.at ?? Infinity, down[0]?.at ?? Infinity, this.#rough.cutAt);
    if (due < Infinity) this.#timer = Number(setTimeout(() => this.#due(), Math.max(0, due - performance.now())));
  }

  #due() {
    const now = performance.now();
    this.#pass(now);
    if (this.#rough !== null && now >= this.#rough.cutAt) {
      this.#waiting = { up: [], down: [] };
      this.#rough.cutDone(now);
      this.#cut();
    }
    this.#arm();
  }
}
