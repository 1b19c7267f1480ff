/** What is measured while it speaks: figures, the chart and the list of what happened. Written four times a second at most. */

import { Chart } from "./chart.js";
import { byId, number, say, sayReason, setText } from "./page.js";

const EVERY_MS = 250, KEPT = 60;
/** So long the rate shows that the server fills the buffer as fast as the line lets it: no measure for what comes afterwards. */
const BURST_MS = 3000;

/**
 * What the player reports: of the playout and of the connection.
 * @typedef {{bufferedMs?: number, prerollMs?: number, stalls?: number, received?: number, bytes?: number, bytesPerSecond?: number, reconnects?: number,
 *   restarts?: number, mode?: string, modeReason?: string, codec?: string, state?: string}} Report
 * @typedef {{secure: boolean, opus: boolean}} Support
 */

/**
 * Why this codec: a key of the texts.
 * @param {string} chosen  the format that was asked for @param {string} codec  pcm or opus, what is used @param {Support} support
 */
export function codecReason(chosen, codec, { secure, opus }) {
  if (codec === "pcm" && chosen !== "pcm" && !opus) return secure ? "used.no_webcodecs" : "used.insecure";
  if (chosen === "switch") return codec === "pcm" ? "used.switch.pcm" : "used.switch.opus";
  return chosen === "auto" && codec === "opus" ? "used.opus" : "used.chosen";
}

export class Figures {
  /** @type {Report} */
  #report = {};
  #support = { secure: true, opus: true };
  #settings = { format: "auto", mode: "auto", live: false };
  /** @type {{first: number | null, audible: number | null, verified: number | null}} */
  #known = { first: null, audible: null, verified: null };
  /** @type {{at: number, key: string, values: () => Record<string, string>}[]} */
  #log = [];
  /** How often what came to the list, also where it is not in it any more. @type {Record<string, number>} */
  #noted = {};
  #begun = 0;
  /** Since when audio comes, null: it does not yet. @type {number | null} */
  #flowing = null;
  /** Whether the checking is over, however it ended. */
  #judged = false;
  #timer = 0;
  #ticks = 0;
  #chart = new Chart(byId("chart", SVGElement), (key, values) => say(key, values));

  /** Something new is spoken. @param {{format: string, mode: string, live: boolean}} settings  `live`: its text comes bit by bit @param {Support} support */
  begin(settings, support) {
    this.#settings = settings;
    this.#support = support;
    this.#report = {};
    this.#known = { first: null, audible: null, verified: null };
    this.#begun = performance.now();
    this.#flowing = null;
    this.#judged = false;
    this.#log = [];
    this.#noted = {};
    this.note("log.speak");
    this.#timer ||= setInterval(() => this.#tick(), EVERY_MS);
  }

  /** Nothing is spoken any more. @param {boolean} whole  it came to its end */
  end(whole) {
    this.#judged ||= !whole;
    clearInterval(this.#timer);
    this.#timer = 0;
    if (this.#report.bufferedMs) this.#report.bufferedMs = 0;
    this.#report.bytesPerSecond = undefined;
    this.show();
    this.#chart.draw(performance.now());
    this.#summary();
  }

  /** @param {Report} report */
  report(report) {
    const { stalls = 0, restarts } = this.#report;
    if ((report.stalls ?? 0) > stalls) this.note("log.underrun", "underrun");
    const { mode = "", modeReason = "" } = report;
    if (this.#report.mode && mode && this.#report.mode !== mode)
      this.note("log.mode", "mode", () => ({ mode: say(`mode.${mode}`), reason: sayReason(modeReason) }));
    if (restarts !== undefined && (report.restarts ?? 0) > restarts) this.note("log.restarted");
    Object.assign(this.#report, report);
  }

  /** @param {"first"|"audible"} name @param {number} value  ms */
  know(name, value) {
    this.#known[name] = value;
    if (name === "audible") this.note("log.audible");
    else this.show();
  }

  /** @param {number | null} samples  that were right, all of them; null: it is not known and will not be */
  judge(samples) {
    this.#judged = true;
    this.#known.verified = samples;
    if (samples !== null) this.note("log.verified", undefined, () => ({ n: number(samples) }));
    this.show();
  }

  /** @param {string} key  of what happened @param {"mode"|"underrun"|"reconnect"} [kind]  its mark in the chart
   * @param {() => Record<string, string>} [values] */
  note(key, kind, values = () => ({})) {
    if (kind) this.#chart.marks.push({ time: performance.now(), kind });
    this.#noted[key] = (this.#noted[key] ?? 0) + 1;
    this.#log.push({ at: performance.now() - this.#begun, key, values });
    if (this.#log.length > KEPT) this.#log.shift();
    this.#list();
    this.show();
  }

  #tick() {
    const { bufferedMs = 0, bytesPerSecond = 0 } = this.#report, now = performance.now();
    if (bytesPerSecond) this.#flowing ??= now;
    const burst = now - (this.#flowing ?? now) < BURST_MS;
    this.#chart.points.push({ time: now, buffer: bufferedMs / 1000, rate: bytesPerSecond * 8 / 1000, burst });
    this.show();
    if (this.#ticks++ % 2 === 0) this.#chart.draw(now);
  }

  /** Everything, in the language that is set. */
  show() {
    const { bufferedMs, prerollMs, stalls, received = 0, bytes = 0, bytesPerSecond, reconnects, mode, modeReason = "", codec } = this.#report;
    const { first, audible, verified } = this.#known, { "log.back": back = 0, "log.restarted": anew = 0 } = this.#noted;
    const value = /** @param {string} id @param {string | null} text @param {string} note */ (id, text, note) => {
      setText(`${id}-value`, text ?? "–");
      setText(`${id}-note`, text === null ? "" : note);
    };
    const heard = audible ?? first;
    value("first", heard === null ? null : say("ms", { n: number(heard) }), audible === null ? say("figure.first.only")
      : first === null ? "" : say(this.#settings.live ? "figure.first.live" : "figure.first.note", { ms: say("ms", { n: number(first) }) }));
    value("buffer", bufferedMs === undefined ? null : say("s", { n: number(bufferedMs / 1000, 1) }),
      prerollMs === undefined ? "" : say("figure.buffer.note", { ms: say("ms", { n: number(prerollMs) }) }));
    value("mode", mode ? say(`mode.${mode}`) : null, sayReason(this.#settings.mode === "auto" ? modeReason : "fixed"));
    value("format", codec ? (codec === "opus" ? "Opus" : "PCM") : null, codec ? say(codecReason(this.#settings.format, codec, this.#support)) : "");
    value("bitrate", bytesPerSecond === undefined ? bytes ? "–" : null : say("kbit", { n: number(bytesPerSecond * 8 / 1000) }),
      say("figure.bitrate.note", { mb: number(bytes / 1e6, 2) }));
    value("underruns", stalls === undefined ? null : number(stalls), say("figure.underruns.note"));
    value("reconnects", reconnects === undefined && !back ? null : number(back), say("figure.reconnects.note", { n: number(anew) }));
    value("verified", verified !== null ? number(verified) : received ? number(received) : null,
      say(verified === null ? this.#judged ? "figure.verified.not" : "figure.verified.wait" : codec === "opus" ? "figure.verified.opus" : "figure.verified.note"));
    byId("underruns-value", HTMLElement).className = stalls ? "warn" : "";
    byId("verified-value", HTMLElement).className = verified !== null ? "good" : received ? "soft" : "";
  }

  /** After the language has changed. */
  translate() {
    this.show();
    this.#list();
    this.#chart.draw(this.#chart.points.at(-1)?.time ?? performance.now());
    this.#summary();
  }

  #list() {
    const list = byId("log", HTMLElement);
    list.replaceChildren(...this.#log.map(({ at, key, values }) => {
      const item = document.createElement("li"), when = document.createElement("time");
      when.textContent = say("s", { n: number(at / 1000, 1) });
      item.append(when, say(key, values()));
      return item;
    }));
    list.scrollTop = list.scrollHeight;
  }

  #summary() {
    const count = /** @param {string} kind */ kind => this.#chart.marks.filter(each => each.kind === kind).length;
    const last = this.#chart.points.at(-1);
    if (last) setText("chart-summary", say("chart.summary", {
      buffer: say("s", { n: number(last.buffer, 1) }), bitrate: say("kbit", { n: number(last.rate) }),
      modes: count("mode"), underruns: count("underrun"), reconnects: this.#noted["log.back"] ?? 0 }));
  }
}
