/** What is heard when, from the reports of the audio thread. Pure. */

/** @typedef {{id: number, rate: number, played: number, received: number, time: number, state: string}} Report */

/** @type {Report} */
const NOTHING = { id: 0, rate: 24000, played: 0, received: 0, time: 0, state: "idle" };

export class Clock {
  report = NOTHING; // the latest
  #before = NOTHING; // the last one of the utterance before

  /** Another context, whose times are others. */
  restart() {
    this.#before = NOTHING;
  }

  /** @param {Report} report */
  learn(report) {
    const { id, played, time } = this.report;
    if (report.id !== id) this.#before = { ...this.report, state: "waiting" };
    else if (report.state !== "playing" && report.played === played) report.time = time;
    this.report = report;
  }

  /** A sample of an utterance's timeline at `rate` Hz; null: nothing. @param {number} now of the context, at the ear */
  at(now) {
    for (const { id, rate, played, received, time, state } of [this.report, this.#before]) {
      const passed = (now - time) * rate;
      const sample = Math.floor(played + (state === "playing" ? passed : Math.min(0, passed)));
      if (!id || sample < 0) continue;
      return state === "idle" && passed >= 0 ? null : { id, sample: Math.min(sample, received), rate };
    }
    return null;
  }
}
