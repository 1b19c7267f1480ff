/**
 * The player: `new Player({url}).speak("...")` inside a click. See docs/embedding.md.
 *
 * It dispatches CustomEvents: state, event, word, segment, report, first, audible, ended, stopped, audio, warning,
 * failure.
 */

import { Audio } from "./audio.js";
import { Backstage } from "./backstage.js";
import { Spoken } from "./spoken.js";

const REPORT_MS = 100;
const STOP_MS = 100; // an audio thread that does not answer by then is silent for another reason
const VERIFY_MS = 2000; // after the last sample
const [LEAST_MS, LATEST_MS] = [4, 20]; // until it is looked for the next word

/**
 * @typedef {"auto" | "opus" | "pcm" | "switch"} Format `auto`: Opus where this browser can decode it; `switch`: PCM
 *   that turns into Opus on a slow line
 * @typedef {{voice?: string, speed?: number, pitch?: number, volume?: number, format?: Format,
 *   mode?: "auto" | "stream" | "block", prerollMs?: number}} Settings
 * @typedef {string | null | undefined} Token
 * @typedef {{url?: string | URL, token?: Token | (() => Token | Promise<Token>), workerUrl?: string | URL}} Place
 * @typedef {{id: number, played: number, heardTextEnd: number}} Stopped samples, and code points of the text
 * @typedef {{heardAll: boolean, samples: number, verified: boolean}} Heard
 * @typedef {{id: number, rate: number, played: number, received: number, time: number, state: string}} Report
 */

/** @type {Report} */
const NOTHING = { id: 0, rate: 24000, played: 0, received: 0, time: 0, state: "idle" };

export class PlayerError extends Error {
  /** @param {{code: string, message?: string, retryable?: boolean}} detail */
  constructor({ code, message, retryable = false }) {
    super(message ?? code);
    this.name = "PlayerError";
    this.code = code;
    this.retryable = retryable;
  }
}

/** Something being said. */
export class Utterance {
  text = "";
  #post;

  /** @param {number} id @param {Promise<Heard>} finished @param {(message: object) => void} post */
  constructor(id, finished, post) {
    this.id = id;
    /** Resolves when it was heard to its end or stopped; rejects with a PlayerError. */
    this.finished = finished;
    this.#post = post;
  }

  /** @param {string} text any piece of it, cut anywhere */
  write(text) {
    this.text += text;
    this.#post({ type: "write", id: this.id, text });
  }

  /** Says what was written, also if it looks unfinished. @param {boolean} [soft] only if it does not */
  flush(soft = false) {
    this.#post({ type: "flush", id: this.id, soft });
  }

  end() {
    this.#post({ type: "end", id: this.id });
  }
}

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
  #report = NOTHING;
  #before = this.#report; // the last one of the utterance before
  #reported = { at: 0, state: "" };
  #cueTimer = 0;
  /** @type {((told: {id: number, played: number}) => void)[]} */
  #stopping = [];
  #ended = new AbortController();

  /** @param {Place & Settings} [options] `url`: of the server; left out, it is the one that this module came from */
  constructor(options = {}) {
    super();
    this.#options = { format: "auto", mode: "auto", prerollMs: 120, ...options };
    const ears = {
      told: (/** @type {import("./audio.js").Told} */ message) => this.#told(message),
      state: (/** @type {string} */ state, /** @type {boolean} */ needsTap) => {
        if (state === "frozen") this.#before = NOTHING; // its times are of that context
        this.#emit("audio", { state, needsTap });
      },
      lost: (/** @type {string} */ message) => this.#fail({ code: "no_audio", message, retryable: true }),
    };
    const worklet = new URL("./worklet.js", import.meta.url).href;
    this.#audio = new Audio(ears, this.#options.prerollMs ?? 120, worklet);
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

  /** @param {Settings} settings for the next utterance; `prerollMs` at once */
  set(settings) {
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
   * Says something, after what is being said. @param {string} [text] left out, it is written to the utterance
   * @returns {Utterance}
   */
  speak(text) {
    const at = performance.now();
    const id = ++this.#newest;
    this.unlock();
    this.#endWriting();
    const { voice, speed, pitch, volume } = this.#options;
    this.#backstage.post({ type: "begin", id, open: this.#open(), start: { voice, speed, pitch, volume } });
    const spoken = new Spoken(id, at);
    this.#spoken.set(id, spoken);
    this.#writing = id;
    const utterance = new Utterance(id, spoken.finished, (message) => {
      if (this.#writing !== id) return;
      if ("type" in message && message.type === "end") this.#writing = 0;
      this.#backstage.post(message);
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
    const meant = [...this.#spoken.values()].filter(({ stopping }) => !stopping);
    for (const spoken of meant) spoken.stopping = true;
    const at = await this.#silence();
    if (!meant.length) return { ...at, heardTextEnd: 0 };
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
      const { id, played } = this.#report;
      setTimeout(() => resolve({ id, played }), STOP_MS);
      this.#stopping.push(resolve);
      this.#audio.post({ type: "stop", id: this.#newest, atOnce: !this.#audio.running });
    });
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
    this.#reject({ code: "closed", message: "the player was closed" });
  }

  /** What is heard now: a sample of an utterance's timeline at `rate` Hz; null: nothing. */
  clock() {
    const { context, latency } = this.#audio;
    if (!context) return null;
    const now = context.currentTime - latency;
    for (const { id, rate, played, received, time, state } of [this.#report, this.#before]) {
      const passed = (now - time) * rate;
      const sample = Math.floor(played + (state === "playing" ? passed : Math.min(0, passed)));
      if (id && sample >= 0) return state === "idle" && passed >= 0 ? null : { id, sample: Math.min(sample, received), rate };
    }
    return null;
  }

  // ---- what it hears ----

  /** @param {import("./audio.js").Told} message of the audio thread */
  #told(message) {
    const { type, id, played, time } = message;
    const spoken = this.#spoken.get(id);
    if (type === "report") return this.#place(message);
    if (type === "stopped") for (const resolve of this.#stopping.splice(0)) resolve({ id, played });
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
    const report = /** @type {Report} */ (/** @type {unknown} */ ({ ...message })); // the audio thread uses it again
    const current = this.#report;
    if (report.id !== current.id) this.#before = { ...current, state: "waiting" };
    else if (report.state !== "playing" && report.played === current.played) report.time = current.time;
    this.#report = report;
    this.#cues();
    this.#tell();
  }

  #tell() {
    const { state } = this.#report;
    const now = performance.now();
    if (state === this.#reported.state && now - this.#reported.at < REPORT_MS - 10) return;
    this.#reported = { at: now, state };
    this.#emit("report", { ...this.#statistics, ...this.#report });
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
    if (this.#report.state === "playing") this.#cueTimer = setTimeout(() => this.#cues(), Math.min(ms, LATEST_MS));
  }

  /** @param {Record<string, any>} message of the worker */
  #heard({ type, id, ...rest }) {
    const spoken = this.#spoken.get(id);
    if (type === "token") this.#token(rest.request);
    else if (type === "state") {
      this.#emit("state", rest);
      if (rest.state === "failed") this.#fail({ code: "misbehaved", message: rest.reason, ...rest.detail });
    } else if (type === "event") {
      spoken?.learn(rest.message);
      this.#emit("event", { id, message: rest.message });
    } else if (type === "verified" && spoken) {
      spoken.verified = { samples: rest.samples };
      if (spoken.heard) this.#finish(spoken);
    } else if (type === "restarted") spoken?.forget(rest.sample);
    else if (type === "warning") this.#emit("warning", rest);
    else if (type === "failure") this.#fail(/** @type {{code: string}} */ (rest));
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
      const { code = away ? "unreachable" : undefined, retryable, message = String(error) } =
        /** @type {Partial<PlayerError>} */ (error ?? {});
      const why = { message, ...(code && { code }), ...(retryable !== undefined && { retryable }) };
      this.#backstage.post({ type: "token", request, token: null, error: why });
    }
  }

  /** @param {{code: string, message?: string, retryable?: boolean, retryAfterMs?: number}} detail */
  #fail(detail) {
    const { code, message = code, retryable = false, retryAfterMs = null } = detail;
    this.#emit("failure", { ...detail, message, retryable, retryAfterMs });
    this.#reject({ code, message, retryable });
  }

  /** @param {{code: string, message: string, retryable?: boolean}} detail */
  #reject(detail) {
    this.#writing = 0;
    for (const spoken of this.#spoken.values()) spoken.reject(new PlayerError(detail));
    this.#spoken.clear();
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
