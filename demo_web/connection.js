/** The shell of the browser's player, for a Worker or a page: sessions, tokens, sound, and what the page is told. */

import { Link } from "./link.js";
import { decodesOpus } from "./opus.js";
import { Line } from "./rough_line.js";
import { Sound } from "./sound.js";

const TOKEN_MS = 10000;
const STATISTICS_MS = 250;
const WINDOW_MS = 2000; // audio comes in pieces of up to a second: a rate over less would jump
const TOKEN_KEPT_MS = 5000; // for the next attempt, where no connection was made with it
const REMEMBERED = 64; // utterances that are over and may still be playing
const CLAUSE = 60; // code points: with less text unspoken, it is the writer who is waited for

/**
 * @typedef {Record<string, any>} Message of the page or the server: its `type` says which fields
 * @typedef {import("./session.js").Effect} Effect
 * @typedef {{id: number, link: Link, number: number, over: boolean, cancelled: boolean, ended: boolean,
 *   written: number, segmentEnd: number}} Entry `number`: the session's; the last two in code points
 */

/** Give it the page's messages; `post` takes those for the page. */
export class Connection {
  #post;
  #url = "";
  /** @type {Sound | null} */
  #sound = null;
  /** Whether Opus can be decoded; null: not known yet. @type {boolean | null} */
  #opus = null;
  /** @type {Link | null} */
  #link = null;
  /** @type {Map<number, Entry>} */
  #entries = new Map();
  /** Wait until setup is done, or until a session has finished that another configuration comes after. @type {Message[]} */
  #held = [];
  #request = 0;
  /** @type {Map<number, (answer: Message) => void>} */
  #asked = new Map();
  /** Of attempts that were not answered yet. @type {{token: Promise<string | null>, until: number} | null} */
  #given = null;
  #line = new Line(() => this.#link?.cut());
  #visible = true;
  #closed = false;
  #warned = false;
  #timer = 0;
  /** What had come when, over a window and one before it. @type {{link: Link | null, seen: {at: number, bytes: number}[]}} */
  #counted = { link: null, seen: [] };

  /** @param {(message: Message) => void} post */
  constructor(post) {
    this.#post = post;
  }

  /** @param {Message} message */
  receive(message) {
    const { type, id } = message;
    if (this.#closed) return;
    if (type === "setup") this.#setup(message.url, message.playout);
    else if (type === "token") this.#asked.get(message.request)?.(message);
    else if (type === "visible") this.#see(message.visible);
    else if (type === "cut") this.#link?.cut();
    else if (type === "rough") this.#line.rough(message.on, Math.floor(Math.random() * 2 ** 32));
    else if (type === "close") this.#close();
    else if (type === "cancel") this.#cancel(id, message.played);
    else if (this.#opus === null || this.#held.some((each) => each.id <= id)) this.#held.push(message);
    else if (type === "warm") this.#ready(message.open);
    else if (type === "begin") this.#begin(message);
    else this.#write(message);
  }

  /** @param {string} url @param {MessagePort} playout */
  async #setup(url, playout) {
    this.#url = url;
    this.#sound = new Sound(playout, (id, why) => this.#undecodable(id, why));
    playout.onmessage = ({ data }) => this.#played(data);
    this.#opus = await decodesOpus();
    if (!this.#closed) this.#release();
  }

  #release() {
    if (this.#busy) return;
    const held = this.#held;
    this.#held = [];
    for (const message of held) this.receive(message);
  }

  /** @param {boolean} visible */
  #see(visible) {
    this.#visible = visible;
    this.#link?.do(this.#link.session.visible(visible));
  }

  #close() {
    this.#closed = true;
    this.#held = [];
    this.#link?.close();
    this.#link = null;
    this.#line.close();
    this.#sound?.close();
    clearTimeout(this.#timer);
  }

  // ---- sessions ----

  /** Whether the session has something to say, or to confirm. */
  get #busy() {
    const asks = this.#link?.state === "ready";
    return [...this.#entries.values()].some((entry) => !entry.over && (asks || !entry.cancelled));
  }

  /** The session for this configuration; null: another one must finish before.
   * @param {Message} wanted @returns {Link | null} */
  #ready(wanted) {
    const pcm = !this.#opus && (wanted.format === "opus" || wanted.format === "auto");
    if (pcm && !this.#warned) {
      this.#warned = true;
      this.#post({ type: "warning", code: "no_opus", message: "Opus cannot be decoded here: sound comes as PCM" });
    }
    const open = pcm ? { ...wanted, format: "pcm" } : wanted;
    const old = this.#link;
    // An idle session that looks for its server is not waited for: a new one is there sooner.
    const fits = old !== null && (old.state !== "reconnecting" || this.#busy);
    if (fits && JSON.stringify(old.open) === JSON.stringify(open)) return old;
    if (this.#busy) return null;
    this.#link = null;
    old?.close();
    const network = { url: this.#url, token: () => this.#token(), used: () => (this.#given = null), line: this.#line };
    const link = (this.#link = new Link(open, network, (of, effect) => this.#effect(of, effect)));
    link.do([...link.session.visible(this.#visible), ...link.session.start(performance.now())]);
    return link;
  }

  /** For one connection; attempts that follow each other share it. @returns {Promise<string | null>} */
  #token() {
    if (this.#given && performance.now() < this.#given.until) return this.#given.token;
    const given = { token: this.#ask(), until: Infinity };
    this.#given = given;
    given.token.then(
      () => (given.until = performance.now() + TOKEN_KEPT_MS),
      () => (given.until = 0),
    );
    return given.token;
  }

  /** @returns {Promise<string | null>} */
  #ask() {
    const request = ++this.#request;
    return new Promise((resolve, reject) => {
      const late = { code: "unreachable", message: "the page gave no token in time", retryable: true };
      const timer = setTimeout(() => answer({ error: late }), TOKEN_MS);
      const answer = (/** @type {Message} */ { token, error }) => {
        clearTimeout(timer);
        this.#asked.delete(request);
        const message = String(error?.message ?? error);
        const { retryable = error?.code === "unreachable" } = error ?? {};
        const code = error?.code ?? (retryable ? "unreachable" : "unauthorized");
        if (error) reject({ ...error, code, retryable, message });
        else resolve(token);
      };
      this.#asked.set(request, answer);
      this.#post({ type: "token", request });
    });
  }

  // ---- the writer and the listener ----

  /** @param {Message} message */
  #begin(message) {
    const link = this.#ready(message.open);
    if (link === null) return void this.#held.push(message);
    if (link !== this.#link) return; // it failed at once
    const effects = link.session.begin(message.start ?? {}, performance.now());
    const { id } = message;
    const refused = effects.find((each) => each.type === "refused");
    if (refused) return this.#post({ ...refused, type: "failure", ids: [id], retryable: false });
    const number = link.session.newest;
    const entry = { id, link, number, over: false, cancelled: false, ended: false, written: 0, segmentEnd: 0 };
    link.entries.set(number, entry);
    this.#entries.set(id, entry);
    for (const old of this.#entries.values()) {
      if (old.over && this.#entries.size > REMEMBERED) this.#forget(old);
    }
    link.do(effects);
    if (this.#timer === 0) this.#count();
  }

  /** @param {Message} message */
  #write(message) {
    const entry = this.#entries.get(message.id);
    if (entry === undefined || entry.over || entry.cancelled || entry.ended) return;
    const { session } = entry.link;
    if (entry.number !== session.newest) return; // another one is being written
    const now = performance.now();
    if (message.type === "write") {
      entry.written += [...message.text].length;
      entry.link.do(session.write(message.text, now));
    } else if (message.type === "flush") {
      entry.link.do(session.flush(message.soft, now));
    } else if (message.type === "end") {
      entry.ended = true;
      entry.link.do(session.end(now));
    }
  }

  /** @param {number | null} id @param {number | null} played */
  #cancel(id, played) {
    const meant = (/** @type {{id?: number}} */ each) => each.id !== undefined && (id === null || each.id === id);
    for (const { type, id: unsaid } of this.#held.filter(meant)) {
      if (type !== "begin") continue;
      this.#post({ type: "event", id: unsaid, message: { type: "cancelled", utterance: unsaid, sample: 0, heard_text_end: 0 } });
    }
    this.#held = this.#held.filter((each) => !meant(each));
    const entries = [...this.#entries.values()].filter((entry) => meant(entry) && entry.link === this.#link);
    for (const entry of entries) {
      entry.cancelled = true;
      this.#sound?.drop(entry.id);
    }
    if (this.#link === null || entries.length === 0) return;
    const { session } = this.#link;
    this.#link.do(session.cancel(id === null ? null : entries[0].number, played, performance.now()));
    this.#release();
  }

  /** @param {Message} message */
  #played({ type, id, sample, bufferedMs, stalls }) {
    const entry = this.#entries.get(id);
    if (type !== "played" || entry === undefined || entry.link !== this.#link) return;
    const buffered = Math.round(bufferedMs) + (this.#sound?.waitingMs ?? 0);
    entry.link.do(entry.link.session.played(entry.number, sample, buffered, stalls, performance.now()));
  }

  /** @param {Entry} entry */
  #forget(entry) {
    this.#entries.delete(entry.id);
    entry.link.entries.delete(entry.number);
  }

  // ---- what a session says ----

  /** @param {Link} link @param {Effect} effect */
  #effect(link, effect) {
    const { type } = effect;
    if (type === "connect" || type === "send" || type === "drop" || type === "refused") return;
    if (type === "state") return this.#state(link, effect);
    const entry = link.entries.get(type === "event" ? effect.message.utterance : effect.utterance);
    if (entry === undefined) return;
    const { id } = entry;
    if (type === "event") return this.#event(entry, effect.message);
    if (type !== "verified" && entry.cancelled) return;
    if (type === "audio") return this.#sounding(entry).audio(id, effect);
    if (type === "restarted") this.#sounding(entry).restart(id, effect.sample);
    this.#post({ ...effect, utterance: undefined, id });
  }

  /** The playout, which has been told of the utterance. @param {Entry} entry */
  #sounding({ id, link }) {
    const { sample_rate: rate, max_lead_ms: lead } = /** @type {Message} */ (link.session.opened).config;
    const sound = /** @type {Sound} */ (this.#sound); // since setup
    sound.begin(id, rate, lead === null ? 4000 : (lead * 3) / 4); // with all of it, each would wait for the other
    return sound;
  }

  /** @param {Entry} entry @param {Message} message */
  #event(entry, message) {
    const { id } = entry;
    const { type } = message;
    if (type === "segment_begin") entry.segmentEnd = message.end;
    if (type === "segment_end" && !entry.ended && !entry.cancelled && entry.written - entry.segmentEnd < CLAUSE) {
      this.#sounding(entry).post({ type: "between", id });
    }
    if (type === "done" && !entry.cancelled) this.#sounding(entry).complete(id, message.samples);
    if (type === "cancelled") this.#sound?.drop(id);
    this.#post({ type: "event", id, message: { ...message, utterance: id } });
    if (type !== "done" && type !== "cancelled") return;
    entry.over = true;
    queueMicrotask(() => this.#release()); // may close this session, which has more to say about this utterance
  }

  /** @param {Link} link @param {{state: string, reason: unknown, detail: unknown}} effect */
  #state(link, { state, reason, detail }) {
    const idle = link.session.opened !== null && !this.#busy;
    link.state = state;
    if (link !== this.#link) return;
    const over = state === "failed" || state === "closed";
    const ids = [];
    if (over) this.#link = null;
    for (const entry of this.#entries.values()) {
      if (!over || entry.link !== link) continue;
      if (!entry.over && !entry.cancelled) {
        this.#sound?.abandon(entry.id);
        ids.push(entry.id);
      }
      entry.over = true;
    }
    if (state === "failed") for (const { type, id } of this.#held.splice(0)) if (type === "begin") ids.push(id);
    if (state === "ready") this.#post({ type: "opened", message: link.session.opened });
    // Nobody waits for an idle session: the next utterance has a new one.
    const told = over && idle ? { state: "closed", reason: "idle" } : { state, reason };
    this.#post({ type: "state", ...told, detail, ...(state === "failed" && { ids }) });
    if (over) link.close();
    this.#release();
  }

  /** @param {number} id @param {string} why */
  #undecodable(id, why) {
    const entry = this.#entries.get(id);
    this.#opus = false;
    this.#sound?.abandon(id);
    if (entry === undefined || entry.cancelled) return;
    const detail = { code: "no_opus", message: why, field: null, retryable: true, retryAfterMs: 0 };
    if (entry.link !== this.#link) return this.#post({ type: "failure", ids: [id], ...detail });
    entry.over = false; // not all of it is heard, whatever the server said
    this.#state(entry.link, { state: "failed", reason: why, detail });
  }

  // ---- statistics ----

  #count() {
    this.#rate();
    this.#timer = Number(setTimeout(() => this.#report(), STATISTICS_MS)); // an object in Node
  }

  /** Bytes a second, over the window. */
  #rate() {
    const link = this.#link;
    if (link !== this.#counted.link) this.#counted = { link, seen: [] };
    const { seen } = this.#counted;
    const now = performance.now();
    const bytes = link?.session.statistics.bytes ?? 0;
    seen.push({ at: now, bytes });
    while (seen.length > 1 && seen[1].at <= now - WINDOW_MS) seen.shift();
    return Math.max(0, bytes - seen[0].bytes) * 1000 / Math.max(WINDOW_MS, now - seen[0].at);
  }

  #report() {
    this.#timer = 0;
    if (this.#link === null) return;
    const { statistics, mode, rtt, unfinished } = this.#link.session;
    const { bytes, resumes, restarts } = statistics;
    const bytesPerSecond = this.#rate();
    this.#post({
      type: "statistics", bytes, bytesPerSecond, reconnects: resumes, restarts, rttMs: rtt, mode: mode.mode,
      modeReason: mode.reason, codec: this.#sound?.codec,
    });
    if (unfinished || bytesPerSecond) this.#count(); // the last one says 0
    else this.#counted.link = null;
  }
}
