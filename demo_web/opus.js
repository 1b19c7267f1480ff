/** Opus through WebCodecs: exactly the samples that the packets stand for, at the session's rate. */

const CODEC = { codec: "opus", sampleRate: 48000, numberOfChannels: 1 };

/** Whether this browser decodes Opus. @returns {Promise<boolean>} */
export async function decodesOpus() {
  try {
    return (await AudioDecoder.isConfigSupported(CODEC)).supported === true;
  } catch {
    return false; // there is none, or not without a secure context
  }
}

/** One packet or several: what they give is `pcm`, complete once `got` reaches its length. */
export class Coded {
  got = 0;
  /** @param {Uint8Array[]} packets @param {number} count samples, at the session's rate */
  constructor(packets, count) {
    this.packets = packets;
    this.pcm = new Float32Array(count);
  }

  get complete() {
    return this.got === this.pcm.length;
  }
}

/** A decoder's life: from a frame with `decoder_reset` to the next. */
export class OpusDecoder {
  #decoder;
  #rate;
  /** @type {Coded[]} */
  #waiting = [];
  #time = 0;
  #changed;
  #failed;

  /** Throws where the browser makes no decoder.
   * @param {number} rate Hz; one that 48000 is a multiple of
   * @param {() => void} changed something is complete
   * @param {(why: string) => void} failed what is not complete yet will not be */
  constructor(rate, changed, failed) {
    this.#rate = rate;
    this.#changed = changed;
    this.#failed = failed;
    this.#decoder = new AudioDecoder({
      output: (data) => this.#output(data),
      error: (error) => this.#fail(error.message),
    });
    this.#decoder.configure(CODEC);
  }

  /** @param {Coded} coded */
  decode(coded) {
    this.#waiting.push(coded);
    const duration = ((coded.pcm.length / coded.packets.length) * 1e6) / this.#rate;
    try {
      for (const data of coded.packets) {
        this.#decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: this.#time, duration, data }));
        this.#time += Math.round(duration);
      }
    } catch (error) {
      this.#fail(String(error)); // it had failed before
    }
  }

  /** Nothing more goes in: what is inside comes out, then it is closed. */
  finish() {
    if (this.#decoder.state !== "configured") return;
    this.#decoder.flush().then(
      () => {
        if (this.#waiting.length > 0) this.#fail(`${this.#waiting.length} packets gave too few samples`);
        else this.close();
      },
      () => {}, // closed, or `error` was told
    );
  }

  /** What is inside is of no use. */
  close() {
    this.#waiting = [];
    if (this.#decoder.state !== "closed") this.#decoder.close();
  }

  /** @param {string} why */
  #fail(why) {
    this.close();
    this.#failed(why);
  }

  /** @param {AudioData} data */
  #output(data) {
    const step = data.sampleRate / this.#rate; // Opus has no content above half of the session's rate: no filter
    const decoded = new Float32Array(data.numberOfFrames);
    data.copyTo(decoded, { planeIndex: 0, format: "f32-planar" });
    data.close();
    if (!Number.isInteger(step)) return this.#fail(`decoded at ${data.sampleRate} Hz`);
    for (let at = 0; at < decoded.length; ) {
      const coded = this.#waiting[0];
      if (coded === undefined) return this.#fail("more samples than the packets have");
      for (; at < decoded.length && !coded.complete; at += step) coded.pcm[coded.got++] = decoded[at];
      if (coded.complete) this.#waiting.shift();
    }
    this.#changed();
  }
}
