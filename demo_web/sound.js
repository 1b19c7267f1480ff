/** What a session gives, in order, to the playout port: PCM as it comes, Opus decoded, ends cut to the sample. */

import { Coded, OpusDecoder } from "./opus.js";

/**
 * @typedef {{type: string, id: number, first?: number, pcm?: Int16Array | Float32Array, [field: string]: unknown}} Posted
 * @typedef {{id: number, message: Posted}} Plain
 * @typedef {{id: number, coded: Coded, skip: number, last: boolean, limit: number | null}} Decoding
 * @typedef {Omit<import("./session.js").Sounding, "type" | "utterance">} Sounding
 */

/** Its samples are of one utterance's timeline; utterances have the page's `id`. */
export class Sound {
  #port;
  #failed;
  /** @type {(Plain | Decoding)[]} */
  #queue = [];
  /** @type {Map<number, number>} where the next sample goes, of utterances that began */
  #at = new Map();
  /** @type {Map<number, OpusDecoder>} */
  #decoders = new Map();
  #rate = 24000;
  /** Of the last audio. */
  codec = "pcm";

  /** @param {MessagePort} port @param {(id: number, why: string) => void} failed an utterance's Opus cannot be decoded */
  constructor(port, failed) {
    this.#port = port;
    this.#failed = failed;
  }

  /** Milliseconds of audio that wait here. */
  get waitingMs() {
    let samples = 0;
    for (const item of this.#queue) samples += "coded" in item ? item.coded.pcm.length : item.message.pcm?.length ?? 0;
    return Math.round((samples * 1000) / this.#rate);
  }

  /** @param {number} id @param {number} rate Hz @param {number} maxPrerollMs */
  begin(id, rate, maxPrerollMs) {
    if (this.#at.has(id)) return;
    this.#rate = rate;
    this.#at.set(id, 0);
    this.post({ type: "begin", id, rate, maxPrerollMs });
  }

  /** After all that was given before.
   * @param {Posted} message */
  post(message) {
    this.#queue.push({ id: message.id, message });
    this.#drain();
  }

  /** @param {number} id @param {Sounding} audio */
  audio(id, audio) {
    this.codec = audio.codec;
    if (audio.codec === "pcm") return this.#pcm(id, audio);
    const packets = /** @type {Uint8Array[]} */ (audio.payload); // what the codec says
    if (packets.length === 0) return;
    let decoder = this.#decoders.get(id);
    if (decoder === undefined || audio.reset) {
      decoder?.finish();
      try {
        decoder = new OpusDecoder(this.#rate, () => this.#drain(), (why) => this.#failed(id, why));
      } catch (error) {
        return this.#failed(id, String(error)); // no memory, or too many of them
      }
      this.#decoders.set(id, decoder);
    }
    const coded = new Coded(packets, audio.count);
    this.#queue.push({ id, coded, skip: audio.skip, last: audio.last, limit: null });
    decoder.decode(coded);
    if (audio.last) this.#finish(id);
  }

  /** All of it was given; it has so many samples.
   * @param {number} id @param {number} samples */
  complete(id, samples) {
    this.#limit(id, samples);
    this.#finish(id);
    this.post({ type: "complete", id, samples });
  }

  /** Its audio goes on, or again, from this sample.
   * @param {number} id @param {number} first */
  restart(id, first) {
    this.#limit(id, first);
    this.#finish(id);
    this.post({ type: "restart", id, first });
  }

  /** Nothing more comes: what is here is played.
   * @param {number} id */
  abandon(id) {
    if (!this.#at.has(id)) return;
    this.#forget(id);
    this.post({ type: "complete", id, samples: this.#at.get(id) ?? 0 });
  }

  /** What is here is not wanted.
   * @param {number} id */
  drop(id) {
    this.#forget(id);
    this.#at.delete(id);
    this.#drain();
  }

  /** Nothing is wanted any more. */
  close() {
    for (const decoder of this.#decoders.values()) decoder.close();
    this.#queue = [];
    this.#port.close();
  }

  /** @param {number} id */
  #forget(id) {
    this.#queue = this.#queue.filter((item) => item.id !== id);
    this.#decoders.get(id)?.close();
    this.#decoders.delete(id);
  }

  /** @param {number} id */
  #finish(id) {
    this.#decoders.get(id)?.finish();
    this.#decoders.delete(id);
  }

  /** Only now it is known how much of the last packet is audio.
   * @param {number} id @param {number} samples */
  #limit(id, samples) {
    for (const item of this.#queue) if (item.id === id && "coded" in item) item.limit ??= samples;
  }

  /** @param {number} id @param {Sounding} audio */
  #pcm(id, audio) {
    const second = this.#rate; // a long silence goes in pieces
    for (let at = 0; audio.silence && at < audio.count; at += second) {
      const pcm = new Int16Array(Math.min(second, audio.count - at));
      this.post({ type: "audio", id, first: audio.first + at, pcm });
    }
    if (audio.silence || audio.count === 0) return;
    const bytes = /** @type {Uint8Array} */ (audio.payload); // what the codec says
    this.post({ type: "audio", id, first: audio.first, pcm: new Int16Array(bytes.slice().buffer) });
  }

  #drain() {
    for (let item = this.#queue[0]; item !== undefined; item = this.#queue[0]) {
      if ("coded" in item && !(item.coded.complete && (!item.last || item.limit !== null))) return;
      this.#queue.shift();
      if ("coded" in item) this.#decoded(item);
      else this.#send(item.message);
    }
  }

  /** @param {Decoding} item */
  #decoded({ id, coded, skip, limit }) {
    const first = this.#at.get(id) ?? 0;
    const end = Math.min(coded.pcm.length, skip + Math.max(0, (limit ?? Infinity) - first));
    if (end > skip) this.#send({ type: "audio", id, first, pcm: coded.pcm.slice(skip, end) });
  }

  /** @param {Posted} message */
  #send(message) {
    const { type, id, first = 0, pcm } = message;
    if (pcm !== undefined || type === "restart") this.#at.set(id, first + (pcm?.length ?? 0));
    if (type === "complete") this.#at.delete(id);
    this.#port.postMessage(message, pcm === undefined ? [] : [pcm.buffer]);
  }
}
