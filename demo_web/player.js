/**
 * The player: `new Player({url}).speak("...")` inside a click. See docs/embedding.md.
 *
 * It dispatches CustomEvents: state, event, word, segment, report, first, audible, ended, stopped, audio, warning,
 * failure.
 */

import { Loudspeaker } from "./audio.js";
import { Backstage } from "./backstage.js";
import { Clock } from "./clock.js";
import { check, PlayerError } from "./settings.js";
import { checkText, Spoken, Utterance } from "./spoken.js";

export { PlayerError, Utterance };

const REPORT_MS = 100;
const STOP_MS = 100; // an audio thread that does not answer by then is silent for another reason
const VERIFY_MS = 2000; // after the last sample
const [LEAST_MS, LATEST_MS] = [4, 20]; // until it is looked for the next word

/**
 * @typedef {import("./settings.js").Format} Format
 * @typedef {import("./settings.js").Settings} Settings
 * @typedef {string | null | undefined} Token
 * @typedef {{url?: string | URL, token?: Token | (() => Token | Promise<Token>), workerUrl?: string | URL}} Place
 * @typedef {{id: number, played: number, heardTextEnd: number}} Stopped samples, and code points of the text
 * @typedef {import("./spoken.js").Heard} Heard
 * @typedef {{code: string, message?: string, retryable?: boolean, retryAfterMs?: number, field?: string}} Problem
 */

const PLACE = ["url", "token", "workerUrl"];
const CLOSED = { code: "closed", message: "the player was closed" };

export class Player extends EventTarget {
  /** @type {Place & Settings} */
  #options;
  #audio;
  #backstage;
  /** @type {Map<number, Spoken>} that are not over, by id */
  #spoken = new Map();
  #newest = 0;
  #writing = 0;
  /** @type {Record<string, any>} the worker's latest figures */
  #statistics = {};
  #clock = new Clock();
  #reported = { at: 0, state: "" };
  #cueTimer = 0;
  /** @type {Set<(told: {id: number, played: number}) => void>} */
  #stopping = new Set();
  #ended = new AbortController();

  /**
   * Throws PlayerError `bad_value`. @param {Place & Settings} [options] `url`: of the server; left out, it is the one
   *   that this module came from
   */
  constructor(options = {}) {
    super();
    check(options, PLACE);
    this.#options = { format: "auto", mode: "auto", prerollMs: 120, ...options };
    const ears = {
      told: (/** @type {import("./audio.js").Told} */ message) => this.#told(message),
      state: (/** @type {string} */ state, /** @type {boolean} */ needsTap) => {
        if (state === "frozen") this.#clock.restart();
        this.#emit("audio", { state, needsTap });
      },
      lost: (/** @type {string} */ message, /** @type {boolean} */ portToo) => {
        if (portToo) this.#backstage.renew();
        this.#fail({ code: "no_audio", message, retryable: true });
      },
      idle: () => this.#spoken.size === 0,
    };
    const worklet = new URL("./worklet.js", import.meta.url).href;
    this.#audio = new Loudspeaker(ears, this.#options.prerollMs ?? 120, worklet);
    this.#backstage = new Backstage({
      url: streamUrl(options.url ?? new URL("../", import.meta.url)),
      workerUrl: new URL(options.workerUrl ?? "./worker.js", import.meta.url).href,
      port: (port) => this.#audio.post({ type: "port", port }, [port]),
      heard: (message) => this.#heard(message),
    });
    this.#see();
    document.addEventListener("visibilitychange", () => this.#see(), { signal: this.#ended.signal });
  }

  /** What this browser and address give. */
  get support() {
    const secure = globalThis.isSecureContext;
    const worklet = secure && "AudioWorkletNode" in globalThis; // the class alone may be there elsewhere
    const opus = "AudioDecoder" in globalThis;
    const worker = this.#backstage.worker;
    const missing = { insecure_context: secure, no_worklet: worklet, no_webcodecs: opus, no_worker: worker };
    const reasons = Object.entries(missing).flatMap(([code, there]) => (there ? [] : [code]));
    return { secure, worklet, opus, worker, reasons };
  }

  /** All that sounds passes here, for an AnalyserNode, say. Null before the first click; another one after `audio`. */
  get output() {
    return this.#audio.output;
  }

  get context() {
    return this.#audio.context;
  }

  /** Throws PlayerError `bad_value`. @param {Settings} settings for the next utterance; `prerollMs` at once */
  set(settings) {
    check(settings);
    this.#options = { ...this.#options, ...settings };
    if (settings.prerollMs !== undefined) this.#audio.preroll(settings.prerollMs);
  }

  /** Lets the page sound. Call it inside a click or a key press; `speak` does. */
  unlock() {
    return this.#audio.unlock();
  }

  /** Makes all ready to speak: the connection, and the sound but for the permission. */
  warm() {
    this.#audio.prepare();
    this.#backstage.post({ type: "warm", open: this.#open() });
  }

  /**
   * Says something, after what is being said. Throws TypeError where it is no string.
   * @param {string} [text] left out, it is written to the utterance
   * @returns {Utterance}
   */
  speak(text) {
    if (text !== undefined) checkText(text);
    const at = performance.now();
    const id = ++this.#newest;
    this.#endWriting();
    const { voice, speed, pitch, volume } = this.#options;
    this.#backstage.post({ type: "begin", id, open: this.#open(), start: { voice, speed, pitch, volume } });
    const spoken = new Spoken(id, at);
    this.#spoken.set(id, spoken);
    this.#writing = id;
    this.unlock();
    if (this.#ended.signal.aborted) this.#reject([id], CLOSED);
    const utterance = new Utterance(id, spoken.finished, (message) => {
      if (this.#writing !== id) return false;
      if (message.type === "end") this.#writing = 0;
      this.#backstage.post(message);
      return true;
    });
    if (text !== undefined) {
      utterance.write(text);
      utterance.end();
    }
    return utterance;
  }

  /** Silence, now. Resolves when it is silent. @returns {Promise<Stopped>} */
  async stop() {
    this.#endWriting();
    const meant = [...this.#spoken.values()].filter(({ stopping, heard }) => !stopping && !heard);
    for (const spoken of meant) spoken.stopping = true;
    const at = await this.#silence();
    if (!meant.length) return { ...at, heardTextEnd: this.#spoken.get(at.id)?.heardTextEnd(at.played) ?? 0 };
    const sounding = meant.find(({ id }) => id === at.id) ?? meant[0];
    const played = sounding.id === at.id ? at.played : sounding.ended ?? 0;
    const stopped = { id: sounding.id, played, heardTextEnd: sounding.heardTextEnd(played) };
    for (const spoken of meant) {
      if (spoken.ended === null) {
        this.#backstage.post({ type: "cancel", id: spoken.id, played: spoken === sounding ? played : 0 });
      }
      const samples = spoken === sounding ? played : spoken.ended ?? 0;
      this.#over(spoken, { heardAll: false, samples, verified: false });
    }
    this.#emit("stopped", stopped);
    return stopped;
  }

  /** @returns {Promise<{id: number, played: number}>} where the audio thread stopped */
  #silence() {
    return new Promise((resolve) => {
      const { id, played } = this.#clock.report;
      const done = (/** @type {{id: number, played: number}} */ told) => {
        clearTimeout(timer);
        this.#stopping.delete(done);
        resolve(told);
      };
      const timer = setTimeout(() => done({ id, played }), STOP_MS);
      this.#stopping.add(done);
      this.#quiet();
    });
  }

  #quiet() {
    this.#audio.post({ type: "stop", id: this.#newest, atOnce: !this.#audio.running });
  }

  /** Cuts the connection, to see what happens. */
  cut() {
    this.#backstage.post({ type: "cut" });
  }

  /** @param {boolean} on a bad network, to see what happens */
  rough(on) {
    this.#backstage.post({ type: "rough", on });
  }

  /** Frees everything; it cannot be used again. */
  close() {
    this.#ended.abort();
    clearTimeout(this.#cueTimer);
    this.#backstage.close();
    this.#audio.close();
    this.#reject([...this.#spoken.keys()], CLOSED);
  }

  /** What is heard now: a sample of an utterance's timeline at `rate` Hz; null: nothing. */
  clock() {
    const { context, latency } = this.#audio;
    return context && this.#clock.at(context.currentTime - latency);
  }

  // ---- what it hears ----

  /** @param {import("./audio.js").Told} message of the audio thread */
  #told(message) {
    const { type, id, played, time } = message;
    const spoken = this.#spoken.get(id);
    if (type === "report") return this.#place(message);
    if (type === "stopped") for (const done of this.#stopping) done({ id, played });
    if (!spoken) return;
    const ms = performance.now() - spoken.at;
    if (type === "first") this.#emit("first", { id, ms });
    if (type === "audible") this.#emit("audible", { id, ms: ms + Math.max(0, this.#audio.until(time)) });
    if (type === "broken") this.#fail({ code: "misbehaved", message: "audio is missing", retryable: true });
    if (type !== "ended") return;
    spoken.ended = played;
    setTimeout(() => this.#heardAll(spoken), Math.min(1000, Math.max(0, this.#audio.until(time))));
  }

  /** @param {Spoken} spoken all of it was heard */
  #heardAll(spoken) {
    if (spoken.stopping || !this.#spoken.has(spoken.id)) return;
    this.#cues();
    this.#emit("ended", { id: spoken.id });
    if (!spoken.verified) setTimeout(() => this.#finish(spoken), VERIFY_MS);
    spoken.heard = true;
    if (spoken.verified) this.#finish(spoken);
  }

  /** @param {Spoken} spoken */
  #finish(spoken) {
    const { ended, verified } = spoken;
    this.#over(spoken, { heardAll: true, samples: ended ?? 0, verified: verified?.samples === ended });
  }

  /** @param {Spoken} spoken @param {Heard} heard */
  #over(spoken, heard) {
    this.#spoken.delete(spoken.id);
    spoken.resolve(heard);
  }

  /** @param {import("./audio.js").Told} message a report */
  #place(message) {
    const report = { ...message }; // the audio thread uses it again
    this.#clock.learn(/** @type {import("./clock.js").Report} */ (/** @type {unknown} */ (report)));
    this.#cues();
    this.#tell();
  }

  #tell() {
    const { state } = this.#clock.report;
    const now = performance.now();
    if (state === this.#reported.state && now - this.#reported.at < REPORT_MS - 10) return;
    this.#reported = { at: now, state };
    this.#emit("report", { ...this.#statistics, ...this.#clock.report });
  }

  /** Words and segments as they are heard. */
  #cues() {
    clearTimeout(this.#cueTimer);
    const at = this.clock();
    for (const spoken of this.#spoken.values()) {
      const heard = spoken.id === at?.id ? at.sample : spoken.ended;
      if (heard === null || (at && spoken.id > at.id)) continue;
      for (const { kind, detail } of spoken.due(heard)) this.#emit(kind, { id: spoken.id, ...detail });
    }
    const next = at && this.#spoken.get(at.id)?.next;
    const ms = next ? Math.max(LEAST_MS, ((next.first - at.sample) / at.rate) * 1000) : LATEST_MS;
    if (this.#clock.report.state !== "playing") return;
    this.#cueTimer = setTimeout(() => this.#cues(), Math.min(ms, LATEST_MS));
  }

  /** @param {Record<string, any>} message of the worker */
  #heard({ type, id, ids, ...rest }) {
    const spoken = this.#spoken.get(id);
    if (type === "token") this.#token(rest.request);
    else if (type === "state") {
      this.#emit("state", rest);
      if (rest.state === "failed") this.#failed({ code: "misbehaved", message: rest.reason, ...rest.detail }, ids);
    } else if (type === "event") {
      spoken?.learn(rest.message);
      this.#emit("event", { id, message: rest.message });
    } else if (type === "verified" && spoken) {
      spoken.verified = { samples: rest.samples };
      if (spoken.heard) this.#finish(spoken);
    } else if (type === "restarted") spoken?.forget(rest.sample);
    else if (type === "warning") this.#emit("warning", rest);
    else if (type === "failure" && ids) this.#failed(/** @type {Problem} */ (rest), ids); // the others go on
    else if (type === "failure") this.#fail(/** @type {Problem} */ (rest));
    else if (type === "statistics") {
      this.#statistics = rest;
      this.#tell();
    }
  }

  /** @param {number} request */
  async #token(request) {
    const { token } = this.#options;
    try {
      const answer = typeof token === "function" ? await token() : token;
      this.#backstage.post({ type: "token", request, token: answer ?? null });
    } catch (error) {
      const away = error instanceof TypeError; // as `fetch` throws where nobody answers
      const { code = away ? "unreachable" : undefined, retryable, retryAfterMs, message = String(error) } =
        /** @type {Partial<PlayerError> & {retryAfterMs?: number}} */ (error ?? {});
      const why = { message, retryAfterMs, ...(code && { code }), ...(retryable !== undefined && { retryable }) };
      this.#backstage.post({ type: "token", request, token: null, error: why });
    }
  }

  /** As below, for a reason that neither the worker nor the audio thread knows. @param {Problem} detail */
  #fail(detail) {
    this.#backstage.post({ type: "cancel", id: null, played: null });
    this.#quiet();
    this.#failed(detail);
  }

  /** @param {Problem} detail @param {number[]} [ids] of what fails; left out: all that was not played to its end */
  #failed(detail, ids = [...this.#spoken.values()].flatMap(({ id, ended }) => (ended === null ? [id] : []))) {
    const { code, message = code, retryable = false, retryAfterMs = null } = detail;
    this.#reject(ids, detail);
    this.#emit("failure", { ...detail, message, retryable, retryAfterMs });
  }

  /** @param {number[]} ids @param {Problem} detail */
  #reject(ids, detail) {
    for (const id of ids) {
      this.#spoken.get(id)?.reject(new PlayerError(detail));
      this.#spoken.delete(id);
    }
    if (!this.#spoken.has(this.#writing)) this.#writing = 0;
  }

  // ---- small things ----

  #endWriting() {
    if (this.#writing) this.#backstage.post({ type: "end", id: this.#writing });
    this.#writing = 0;
  }

  #open() {
    const { format, mode } = this.#options;
    const opus = this.support.opus ? "opus" : "pcm";
    return { format: format === "auto" ? opus : format === "switch" ? "auto" : format, mode };
  }

  #see() {
    this.#backstage.post({ type: "visible", visible: document.visibilityState !== "hidden" });
  }

  /** @param {string} kind @param {object} detail */
  #emit(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
}

/** @param {string | URL} server */
function streamUrl(server) {
  const url = new URL(server, document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  if (!url.pathname.endsWith("/v1/stream")) url.pathname = url.pathname.replace(/\/?$/, "/v1/stream");
  return url.href;
}
