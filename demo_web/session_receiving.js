/** What comes from the server: events and audio to their utterances, each exactly once, and the acks for them. */

import { Gap, Misbehaved } from "./session_timeline.js";

/**
 * @typedef {import("./session.js").Effect} Effect
 * @typedef {import("./wire.js").Event} Event
 * @typedef {import("./wire.js").Frame} Frame
 * @typedef {import("./session_utterance.js").Tracked} Tracked
 */

const ACK_INTERVAL_MS = 100; // on arrival at most this often ...
const ACK_TIMER_MS = 200; // ... and at least this often while something is unfinished ...
const ACK_BYTES = 32_768; // ... or after so much audio
const REMEMBERED = 64; // finished utterances whose listener may still report
const MAX_FRAME_S = 60;

/** The utterances of a session, what of them is here, and what the server is to know of that. */
export class Receiver {
  generation = 1;
  preSkip = 0;
  rate = 24_000;
  /** @type {number | null} samples; null: the server does not pace */
  maxLead = null;
  lastEvent = 0;
  visible = true;
  mode = { mode: /** @type {"stream" | "block"} */ ("stream"), reason: "" };
  ackDue = false; // at once
  /** @type {Map<number, Tracked>} begun and not finished, by number; one that is revived comes last */
  live = new Map();
  /** @type {Tracked[]} */
  finished = [];
  newest = 0;
  /** Where the last frame ended. */
  #newest = { utterance: 0, sample: 0 };
  #eventsBefore = 0; // of sessions that are gone; listeners see one numbering
  #ackBytes = ACK_BYTES;
  #ackedAt = 0;
  #arrived = 0;
  #acked = 0;
  /** What an ack confirms. */
  #position = { utterance: 0, sample: 0, event: 0 };

  #clock;
  #emit;

  /** @param {import("./session.js").Clock} clock @param {(effect: Effect) => void} emit */
  constructor(clock, emit) {
    this.#clock = clock;
    this.#emit = emit;
  }

  /**
   * A new session, perhaps after another one: events and audio are numbered from the start.
   * @param {number} generation
   * @param {number} preSkip
   * @param {number} unackedBytes
   */
  newSession(generation, preSkip, unackedBytes) {
    this.generation = generation;
    this.preSkip = preSkip;
    this.#ackBytes = Math.min(ACK_BYTES, Math.floor(unackedBytes / 4));
    for (const entry of this.finished) entry.isPast = true;
    this.#eventsBefore += this.lastEvent;
    this.lastEvent = 0;
    this.#newest = { utterance: 0, sample: 0 };
    this.#position = { utterance: 0, sample: 0, event: 0 };
    this.#acked = this.#arrived;
  }

  /** Another connection carries the session. @param {number} generation @param {boolean} replays see `Transcript` */
  newGeneration(generation, replays) {
    this.generation = generation;
    for (const entry of this.live.values()) {
      entry.newGeneration();
      entry.transcript.replays ||= replays;
    }
  }

  /** @param {number} number one that is unfinished, or finished lately */
  find(number) {
    return this.live.get(number) ?? this.finished.find((entry) => entry.number === number);
  }

  /** @param {Tracked} entry it was complete, but is cancelled while it still plays */
  revive(entry) {
    this.finished.splice(this.finished.indexOf(entry), 1);
    entry.samples = null;
    this.live.set(entry.number, entry);
  }

  /**
   * Finished utterances that were not played to their end, as far as the server knows them.
   * @param {number} [before] only those before this number
   */
  beingHeard(before = Infinity) {
    if (this.maxLead === null) return [];
    return this.finished.filter((each) => each.number < before && !(each.cancelled || each.heardAll || each.isPast));
  }

  /** Whether the server has something to do. */
  get isOwed() {
    for (const entry of this.live.values()) if (entry.started) return true;
    return false;
  }

  // ---- events ----

  /** Takes an event; false: it came before. Throws Gap, Misbehaved. @param {Event} event */
  event(event) {
    if (event.event <= this.lastEvent) return false;
    if (event.event !== this.lastEvent + 1) throw new Gap(`event ${event.event} came after event ${this.lastEvent}`);
    const entry = this.live.get(event.utterance);
    if (!entry && !(event.utterance >= 1 && event.utterance <= this.newest)) {
      throw new Misbehaved(`an event names utterance ${event.utterance}, which was never started`);
    }
    const lacksAudio = event.type === "done" && entry?.timeline.lacksAudio(event.samples);
    if (lacksAudio && !entry?.cancelled) throw new Gap("the last audio is missing");
    this.lastEvent = event.event;
    if (event.type === "mode") this.mode = { mode: event.mode, reason: event.reason };
    this.#confirm(0, 0, 1);
    if (entry && !lacksAudio) this.#tell(entry, event); // a cancelled one: `cancelled` follows
    return true;
  }

  /** @param {Tracked} entry @param {Event} event */
  #tell(entry, event) {
    const { number, timeline, transcript } = entry;
    let whole = entry.within(event, this.#eventsBefore + event.event);
    if (event.type === "segment_begin") {
      if (!transcript.begin(event)) return;
      timeline.begin(event.segment, event.first_sample);
    } else if (event.type === "segment_end") {
      if (!transcript.end(event)) return;
      timeline.end(event.segment, event.samples, event.digest);
      transcript.received(timeline.received);
    } else if (event.type === "timing") {
      const words = transcript.timing(event);
      if (!words) return;
      whole = entry.within({ ...event, words }, whole.event);
    } else if (event.type === "cancelled") {
      this.#finish(entry, entry.baseSamples + event.sample);
    } else if (event.type === "done") {
      timeline.done(event);
      const samples = entry.baseSamples + event.samples;
      if (entry.cancelled && this.maxLead !== null && entry.heard < samples) return; // it crossed the cancel
      this.#finish(entry, samples);
      this.#confirm(number, timeline.next, 1);
      this.#emit({ type: "event", message: whole });
      if (entry.baseSamples || entry.cancelled) return; // not all of what was given is proven
      this.#emit({ type: "verified", utterance: number, samples, digest: event.digest });
      return;
    }
    if (!entry.cancelled || event.type === "cancelled") this.#emit({ type: "event", message: whole });
    if (event.type === "cancelled") entry.cancelled = true;
  }

  /** @param {Tracked} entry its session is gone, and nobody will confirm its cancel: what is known here must do */
  cancelledHere(entry) {
    const heard = Math.max(0, entry.cancelSample - entry.baseSamples);
    const end = entry.baseText + entry.transcript.heardTextEnd(heard);
    const sample = entry.received;
    this.#finish(entry, sample);
    entry.isPast = true;
    this.ackDue = false;
    const event = ++this.#eventsBefore + this.lastEvent;
    const utterance = entry.number;
    this.#emit({ type: "event", message: { type: "cancelled", event, utterance, sample, heard_text_end: end } });
  }

  /** @param {Tracked} entry @param {number} samples */
  #finish(entry, samples) {
    entry.samples = samples;
    this.live.delete(entry.number);
    this.finished.push(entry);
    if (this.finished.length > REMEMBERED) this.finished.shift();
    this.ackDue = true;
  }

  // ---- audio ----

  /** Takes a frame; false: nothing in it is new. Throws Gap, Misbehaved. @param {Frame} frame */
  audio(frame) {
    if (frame.generation < this.generation) return false; // an old connection's last words
    if (frame.generation > this.generation || !(frame.utterance >= 1 && frame.utterance <= this.newest)) {
      throw new Misbehaved(`a frame of generation ${frame.generation}, utterance ${frame.utterance}: neither began`);
    }
    const entry = this.live.get(frame.utterance);
    if (!entry) return false; // late audio of a cancelled utterance
    if (frame.count > MAX_FRAME_S * this.rate) throw new Misbehaved(`one frame has ${frame.count} samples`);
    const known = entry.timeline.audio(frame);
    if (known >= frame.count) {
      entry.keepWarm(frame);
      return false;
    }
    entry.transcript.received(entry.timeline.received);
    const effect = entry.audio(frame, known, this.preSkip);
    const end = frame.first + frame.count;
    this.#newest = { utterance: entry.number, sample: end };
    this.#confirm(entry.number, end, frame.payload.length + 1);
    const isTime = this.#clock.now - this.#ackedAt >= ACK_INTERVAL_MS;
    this.ackDue ||= isTime || this.#arrived - this.#acked >= this.#ackBytes;
    if (!entry.cancelled) this.#emit(effect);
    return true;
  }

  // ---- acks ----

  /** Something arrived that no ack covers. */
  get owesAck() {
    return this.#arrived > this.#acked;
  }

  get ackTimer() {
    return this.#ackedAt + ACK_TIMER_MS;
  }

  /** The end of an utterance that was cancelled may come after audio of the next: acks never go back for it. */
  #confirm(/** @type {number} */ utterance, /** @type {number} */ sample, /** @type {number} */ cost) {
    this.#arrived += cost;
    const at = this.#position;
    at.event = this.lastEvent;
    if (utterance > at.utterance || (utterance === at.utterance && sample > at.sample)) {
      Object.assign(at, { utterance, sample });
    }
  }

  /**
   * What arrived and what was played, as an `ack`.
   * @param {Tracked} [ended] all of this one was heard: the server is told so, though audio of the next is here
   * @returns {import("./wire.js").ClientMessage}
   */
  ack(ended) {
    const at = this.#position;
    this.ackDue = false;
    this.#ackedAt = this.#clock.now;
    this.#acked = this.#arrived;
    let sample = at.sample;
    let entry = this.find(at.utterance);
    const heard = ended && ended.number < at.utterance && !ended.isPast ? ended : this.beingHeard(at.utterance)[0];
    if (heard) {
      entry = heard; // the server paces itself by what is played
      sample = heard.timeline.next;
    }
    const base = { type: "ack", generation: this.generation, event: at.event, visible: this.visible };
    if (!entry) return { ...base, utterance: at.utterance, next_sample: 0 };
    const end = entry.baseSamples + entry.timeline.timeline(sample);
    const played = Math.min(entry.heard, end);
    return {
      ...base,
      utterance: entry.number,
      next_sample: sample,
      played_sample: Math.max(0, played - entry.baseSamples),
      buffered_ms: entry.bufferedMs ?? Math.floor(((end - played) * 1_000) / this.rate),
      stalls: entry.stalls,
    };
  }

  /** For `resume`: the last utterance of which audio arrived, where it goes on, how far it was played. */
  get resumePosition() {
    const { utterance, sample } = this.#newest;
    const entry = this.find(utterance);
    const played = entry ? Math.max(0, Math.min(entry.heard, entry.received) - entry.baseSamples) : 0;
    return { utterance, next_sample: sample, played_sample: played };
  }
}
