/**
 * Plays what the worker sends, on the audio thread (see `playout.js`). Rendering allocates nothing once its buffers fit;
 * a message that comes or goes does, a little: some fifty a second.
 */

import "./digest.js"; // named here, all are asked for at once
import { Playout } from "./playout.js";
import { Resampler } from "./resampler.js";
import "./waiting.js";

class PlayoutProcessor extends AudioWorkletProcessor {
  #playout = new Playout((message, transfer = []) => this.port.postMessage(message, transfer));
  #resampler = new Resampler(this.#playout.rate, sampleRate);
  #pulled = new Float32Array(2048);

  constructor() {
    super();
    this.port.onmessage = ({ data }) => this.#playout.command(data);
  }

  /** @param {Float32Array[][]} _ @param {Float32Array[][]} outputs */
  process(_, outputs) {
    const out = outputs[0][0];
    const playout = this.#playout;
    const rate = playout.tune();
    if (rate !== this.#resampler.from) this.#resampler = new Resampler(rate, sampleRate);
    const need = this.#resampler.needed(out.length);
    if (need > this.#pulled.length) this.#pulled = new Float32Array(need);
    playout.now = currentTime + out.length / sampleRate;
    playout.pull(this.#pulled, need);
    this.#resampler.push(this.#pulled, need);
    this.#resampler.pull(out, out.length);
    playout.ahead = this.#resampler.ahead / rate;
    playout.tick();
    return true;
  }
}

registerProcessor("cosystream-playout", PlayoutProcessor);
